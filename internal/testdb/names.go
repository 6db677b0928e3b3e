package testdb

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// superuser is the name of the superuser of the servers that are started here.
const superuser = "postgres"

// maxTestName is how much of a test's name goes into the name of its database:
// PostgreSQL cuts identifiers at 63 bytes, and the random part must survive.
const maxTestName = 40

// databaseName returns a name that no other test has, and that tells a person
// who looks at the server which test it belongs to.
func databaseName(t testing.TB) string {
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '_'
		}
	}, t.Name())
	if len(readable) > maxTestName {
		readable = readable[:maxTestName]
	}
	return readable + "_" + randomHex(t, 6)
}

// quote returns a name as an SQL identifier.
func quote(name string) string {
	return pgx.Identifier{name}.Sanitize()
}

// serverURL returns the URL of a database on a server of ours. TLS is off, for
// these servers have none and asking costs a round trip per connection.
func serverURL(port int, password, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// withDatabase returns the URL of another database on the same server.
func withDatabase(t testing.TB, dsn, database string) string {
	t.Helper()
	u := mustParse(t, dsn)
	u.Path = "/" + database
	return u.String()
}

// withUser returns the same URL for another role, and the database it names.
func withUser(t testing.TB, dsn, user, password string) (roleURL, database string) {
	t.Helper()
	u := mustParse(t, dsn)
	u.User = url.UserPassword(user, password)
	return u.String(), strings.TrimPrefix(u.Path, "/")
}

// mustParse reads a URL. The message of a failure does not hold the URL, which
// may hold a password.
func mustParse(t testing.TB, dsn string) *url.URL {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		t.Fatal("the connection string is not of the form postgres://user:password@host:port/database")
	}
	return u
}

// randomHex returns n random bytes in hexadecimal digits.
func randomHex(t testing.TB, n int) string {
	t.Helper()
	text, err := randomText(n)
	if err != nil {
		t.Fatalf("draw a random name: %v", err)
	}
	return text
}

func randomText(n int) (string, error) {
	buffer := make([]byte, n)
	if _, err := rand.Read(buffer); err != nil {
		return "", err
	}
	return hex.EncodeToString(buffer), nil
}
