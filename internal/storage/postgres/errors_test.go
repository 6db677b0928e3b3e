package postgres

import (
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestAFailedConnectionSaysEachThingOnce(t *testing.T) {
	away := changed(t, testdb.Postgres(t), func(u *url.URL) { u.Host, u.RawQuery = "127.0.0.1:1", "" }) // sslmode=prefer: tried twice
	_, err := Open(testContext(t), Config{URL: away})
	expectCode(t, err, storage.CodeConnectionLost)
	if text := err.Error(); strings.Count(text, "refused") != 1 || strings.Count(text, "127.0.0.1:1:") != 1 || strings.Contains(text, "\n") {
		t.Errorf("error %q", text)
	}
	for said, want := range map[string]string{
		"hostname resolving error: lookup db: no such host\nlookup db: no such host":                                      "lookup db: no such host",
		"a:1 (x): dial error: dial tcp a:1: refused\nb:1 (x): dial error: dial tcp b:1: refused\na:1 (x): tls error: EOF": "dial tcp a:1: refused; dial tcp b:1: refused; a:1 (x): tls error: EOF",
	} {
		cause := errors.Join(errors.New(said), io.EOF)
		if got := eachOnce(cause); got.Error() != want+"; EOF" || !errors.Is(got, io.EOF) {
			t.Errorf("%q becomes %q, want %q", said, got, want)
		}
	}
}

// A worker ends for good where the user's SQL is wrong, and waits where the server has no room for what is right.
func TestAServerWithoutRoomIsWaitedForAndWrongSQLIsNot(t *testing.T) {
	for what, c := range map[string]struct {
		state string
		want  storage.Class
	}{
		"the disk is full":     {"53100", storage.ClassConnectionLost},
		"no memory is left":    {"53200", storage.ClassConnectionLost},
		"the disk fails":       {"58030", storage.ClassConnectionLost},
		"no connection is had": {"53300", storage.ClassConnectionLost},
		"division by zero":     {"22012", storage.ClassInvalidSQL},
		"a value too large":    {"54000", storage.ClassInvalidSQL},
		"no such column":       {"42703", storage.ClassInvalidSQL},
	} {
		err := translateUserSQL(&pgconn.PgError{Code: c.state, Message: what}, "update of table \"todos\"")
		if got := storage.ClassOf(err); got != c.want || got.Retryable() != (c.want == storage.ClassConnectionLost) {
			t.Errorf("%s (%s) is %s, want %s", what, c.state, got, c.want)
		}
	}
}
