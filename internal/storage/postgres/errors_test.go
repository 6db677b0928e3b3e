package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

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
