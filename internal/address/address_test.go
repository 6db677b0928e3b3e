package address

import (
	"net/url"
	"strings"
	"testing"
)

// TestEveryPasswordArrives: what is put together from parts is taken apart to the same parts, whatever they hold.
func TestEveryPasswordArrives(t *testing.T) {
	for _, password := range []string{`p@ss/w#rd`, `100%SS`, `a b'c"d\e`, `пароль`, `?sslmode=disable`, `:x`, `+&=;`, ``} {
		parts := Parts{Host: "clinic-rw.shop.svc", Database: `a/b c?d@e`, User: `o'brien@x:y`, Password: password, SSLMode: "verify-full"}
		text, err := parts.URL()
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := parsed.User.Password()
		if got != password || parsed.User.Username() != parts.User || parsed.Host != "clinic-rw.shop.svc:5432" ||
			strings.TrimPrefix(parsed.Path, "/") != parts.Database || parsed.Query().Get("sslmode") != "verify-full" {
			t.Errorf("password %q became %q at %s", password, got, parsed.Host)
		}
	}
}

func TestPartsThatCannotBeRightAreRefusedWithoutBeingRepeated(t *testing.T) {
	whole := Parts{Host: "db", Database: "app", User: "u", Password: "S3CRET"}
	for name, change := range map[string]func(*Parts){
		"host is empty":                  func(p *Parts) { p.Host = "" },
		"database is empty":              func(p *Parts) { p.Database = "" },
		"user is empty":                  func(p *Parts) { p.User = "" },
		"port is no number":              func(p *Parts) { p.Port = "S3CRET" },
		"port is no number from 1":       func(p *Parts) { p.Port = "0" },
		"neither a name nor an address":  func(p *Parts) { p.Host = "db/S3CRET@x" },
		"host is neither a name nor an ": func(p *Parts) { p.Host = "a,b" },
		"the host is neither":            func(p *Parts) { p.Host = "S3CRET\nS3CRET" },
		"the user is no name":            func(p *Parts) { p.User = strings.Repeat("S3CRET", 11) },
		"the database is no name":        func(p *Parts) { p.Database = "-----BEGIN KEY-----\nS3CRET" },
	} {
		parts := whole
		change(&parts)
		_, err := parts.URL()
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "S3CRET") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAHostWithoutADotIsAServiceOfTheNamespace(t *testing.T) {
	for text, want := range map[string]string{
		"postgres://u:p@clinic-rw/app":                    "postgres://u:p@clinic-rw.shop.svc/app",
		"postgresql://u:p@clinic-rw:5433/app?sslmode=off": "postgresql://u:p@clinic-rw.shop.svc:5433/app?sslmode=off",
		"postgres://u:p@a:1,b,c.x:3/app":                  "postgres://u:p@a.shop.svc:1,b.shop.svc,c.x:3/app",
		"postgres://u:p%40@db/app":                        "postgres://u:p%40@db.shop.svc/app",
		"postgres://u:p@10.0.0.1:5432/app":                "postgres://u:p@10.0.0.1:5432/app",
		"postgres://u:p@[::1]:6000/app":                   "postgres://u:p@[::1]:6000/app",
		"postgres://u:p@db.other.svc/app":                 "postgres://u:p@db.other.svc/app",
		"postgres:///app?user=u&host=db&port=7":           "postgres:///app?user=u&host=db.shop.svc&port=7",
		"postgres://u:p@%2Ftmp/app":                       "postgres://u:p@%2Ftmp/app",
		"host=db user=u":                                  "host=db user=u",
	} {
		if got := URLInNamespace(text, "shop"); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
	if got := URLInNamespace("postgres://u@db/app", ""); got != "postgres://u@db/app" {
		t.Errorf("without a namespace it became %s", got)
	}
	for host, want := range map[string]string{"db": "db.shop.svc", "db.x": "db.x", "::1": "::1", "": ""} {
		if got := InNamespace(host, "shop"); got != want {
			t.Errorf("%s became %s", host, got)
		}
	}
}

func TestOnlyTheLineEndIsTakenOff(t *testing.T) {
	for value, want := range map[string]string{"x\n": "x", "x\r\n": "x", " x ": " x ", "x\n\n": "x", "": ""} {
		if got := Clean([]byte(value)); got != want {
			t.Errorf("%q became %q", value, got)
		}
	}
}
