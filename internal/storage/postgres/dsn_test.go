package postgres

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestURLsAreTakenApart(t *testing.T) {
	cases := []struct{ url, address, user, password, database string }{
		{"postgres://u:p@db:5433/app", "db:5433/app", "u", "p", "app"},
		{"postgresql://u@db/app", "db:5432/app", "u", "", "app"},
		{"postgres://u:p%40%3A%2F%3F%23%25%27%5C%20@db/app", "db:5432/app", "u", `p@:/?#%'\ `, "app"},
		{"postgres://o%27brien:p@db/a%20pp", "db:5432/a pp", "o'brien", "p", "a pp"},
		{"postgres://u:p@[::1]:6000/app", "[::1]:6000/app", "u", "p", "app"},
		{"postgres://u:p@[fe80::1]/app", "[fe80::1]:5432/app", "u", "p", "app"},
		{"postgres://u:p@a:1,b,c:3/app", "a:1,b:5432,c:3/app", "u", "p", "app"},
		{"postgres://u:p@ignored/?host=db&port=7&dbname=app", "db:7/app", "u", "p", "app"},
		{"postgres:///app?host=db&user=u&password=p", "db:5432/app", "u", "p", "app"},
		{"postgres://u:p@db/app?sslmode=require&application_name=x&connect_timeout=2", "db:5432/app", "u", "p", "app"},
	}
	for _, c := range cases {
		t.Run(c.url, func(t *testing.T) {
			target, err := parseURL(c.url)
			if err != nil {
				t.Fatal(err)
			}
			if target.address() != c.address || target.settings["user"] != c.user || target.settings["password"] != c.password || target.settings["database"] != c.database {
				t.Errorf("%s, %+v", target.address(), target.settings)
			}
			config, err := target.driverConfig()
			if err != nil {
				t.Fatal(err)
			}
			if config.ConnConfig.User != c.user || config.ConnConfig.Password != c.password || config.ConnConfig.Database != c.database {
				t.Errorf("the driver has %s, %s", config.ConnConfig.User, config.ConnConfig.Database)
			}
		})
	}
}

func TestURLsThatCannotBeRightAreRefusedWithoutBeingRepeated(t *testing.T) {
	const secret = "hunter2"
	cases := map[string]string{
		"":                                                         "does not begin with postgres://",
		"mysql://u:hunter2@db/app":                                 "does not begin with postgres://",
		"host=db user=u password=hunter2":                          "does not begin with postgres://",
		"postgres://u:hunter2%zz@db/app":                           "cannot be read",
		"postgres://u:hunter2/x@db/app":                            "cannot be read",
		"postgres://u:hunter2@/app":                                "names no host",
		"postgres://:hunter2@db/app":                               "names no user",
		"postgres://u:hunter2@db":                                  "names no database",
		"postgres://u:hunter2@db/":                                 "names no database",
		"postgres://u:hunter2@db:hunter2/app":                      "port that is no number",
		"postgres://u:hunter2@db:70000/app":                        "port that is no number",
		"postgres://u:hunter2@db:0/app":                            "port that is no number",
		"postgres://u:hunter2@%2Ftmp/app":                          "socket directory",
		"postgres://u:hunter2@db/app?host=/t":                      "socket directory",
		"postgres://u:hunter2@db/app?host=%40t":                    "socket directory",
		"postgres://u:x@y/app?hunter2@db/app":                      "cannot be read", // the password was x@y/app?hunter2
		"postgres://u:p@db/app?connect_timeout=hunter2":            "connect_timeout is invalid",
		"postgres://u:p@db/app?sslcertmode=hunter2":                "sslcertmode is invalid",
		"postgres://u:p@db/app?require_auth=hunter2":               "require_auth is invalid",
		"postgres://u:p@db/app?min_protocol_version=hunter2":       "min_protocol_version is invalid",
		"postgres://u:p@db/app?channel_binding=hunter2":            "channel_binding is invalid",
		"postgres://u:hunter2@db/app#fragment":                     "cannot be read",
		"postgres://u:p@ss/hunter2@db/app":                         "cannot be read",
		"postgres://u:hunter2@db/app?a=%zz":                        "cannot be read",
		"postgres://u:hunter2@db/app?passfile=/x":                  "parameter passfile",
		"postgres://u:hunter2@db/app?service=x":                    "parameter service",
		"postgres://u:hunter2@db/app?servicefile=x":                "parameter servicefile",
		"postgres://u:hunter2@db/app?sslrootcert=/ca":              "parameter sslrootcert",
		"postgres://u:hunter2@db/app?sslcert=/c&sslkey=/k":         "parameter sslcert",
		"postgres://u:hunter2@db/app?sslkey=/k":                    "parameter sslkey",
		"postgres://u:hunter2@db/app?sslmode=hunter2":              "sslmode is invalid",
		"postgres://u:hunter2@db/app?target_session_attrs=hunter2": "target_session_attrs is invalid",
	}
	for url, want := range cases {
		t.Run(url, func(t *testing.T) {
			_, err := Open(testContext(t), Config{URL: url})
			expectCode(t, err, storage.CodeInvalidSpec)
			if err == nil {
				return
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("error %v repeats the password", err)
			}
		})
	}
}

// TestNothingOfTheEnvironmentTakesPart sets every variable the driver knows to something that would fail.
func TestNothingOfTheEnvironmentTakesPart(t *testing.T) {
	url := testdb.Postgres(t)
	for name, value := range map[string]string{
		"PGHOST": "/nowhere", "PGPORT": "1", "PGDATABASE": "nothing", "PGUSER": "nobody", "PGPASSWORD": "wrong", "PGPASSFILE": "/nowhere",
		"PGAPPNAME": "stray", "PGCONNECT_TIMEOUT": "none", "PGSSLMODE": "verify-full", "PGSSLKEY": "/nowhere", "PGSSLCERT": "/nowhere",
		"PGSSLCERTMODE": "require", "PGSSLSNI": "odd", "PGSSLROOTCERT": "/nowhere", "PGSSLPASSWORD": "x", "PGSSLNEGOTIATION": "direct",
		"PGTARGETSESSIONATTRS": "standby", "PGSERVICE": "missing", "PGSERVICEFILE": "/nowhere", "PGTZ": "Nowhere/Nowhere", "PGOPTIONS": "-c nothing=1",
		"PGMINPROTOCOLVERSION": "9", "PGMAXPROTOCOLVERSION": "9", "PGCHANNELBINDING": "require", "PGREQUIREAUTH": "none", "HOME": t.TempDir(),
	} {
		t.Setenv(name, value)
	}
	store := openStore(t, Config{URL: url})
	var application string
	if err := store.pool.QueryRow(testContext(t), "SELECT current_setting('application_name')").Scan(&application); err != nil {
		t.Fatal(err)
	}
	if application != defaultApplication {
		t.Errorf("application_name is %q", application)
	}
}

func TestTLSFilesComeByConfigurationOnly(t *testing.T) {
	target, err := parseURL("postgres://u:p@db/app")
	if err != nil {
		t.Fatal(err)
	}
	expectCode(t, target.addTLS(Config{TLSCert: "/c"}), storage.CodeInvalidSpec)
	expectCode(t, target.addTLS(Config{TLSKey: "/k"}), storage.CodeInvalidSpec)
	if err := target.addTLS(Config{TLSCA: "/no/ca.pem"}); err != nil || target.settings["sslmode"] != "verify-full" {
		t.Errorf("sslmode %s, error %v", target.settings["sslmode"], err)
	}
	_, err = target.driverConfig()
	expectCode(t, err, storage.CodeInvalidSpec)
	if err != nil && !strings.Contains(err.Error(), "/no/ca.pem") {
		t.Errorf("error %v does not name the file", err)
	}
	said, err := parseURL("postgres://u:p@db/app?sslmode=require")
	if err != nil {
		t.Fatal(err)
	}
	if err := said.addTLS(Config{TLSCA: "/ca"}); err != nil || said.settings["sslmode"] != "require" {
		t.Errorf("what the URL says is overruled: %s, %v", said.settings["sslmode"], err)
	}
}
