package databases

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"modernc.org/sqlite"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Session is one connection of a program that knows nothing of Syncbarrier. It is for one goroutine. Placeholders are $1, $2 and so
// on in both products.
type Session struct {
	t    testing.TB
	pg   *pgx.Conn
	file *sql.Conn
}

// Session connects. The connection is closed when the test ends.
func (d Database) Session(t testing.TB) *Session {
	t.Helper()
	if d.Dialect == storage.PostgreSQL {
		conn, err := pgx.Connect(t.Context(), d.Address)
		if err != nil {
			t.Fatalf("connect: %v", err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = conn.Close(ctx) // the test may have broken it
		})
		return &Session{t: t, pg: conn}
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: d.Address}).EscapedPath()+"?_pragma=busy_timeout(20000)")
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = db.Close()
	})
	return &Session{t: t, file: conn}
}

var placeholder = regexp.MustCompile(`\$([0-9]+)`)

// Try runs a statement and returns its error.
func (s *Session) Try(ctx context.Context, statement string, arguments ...any) error {
	if s.pg != nil {
		_, err := s.pg.Exec(ctx, statement, arguments...)
		return err
	}
	_, err := s.file.ExecContext(ctx, placeholder.ReplaceAllString(statement, "?$1"), arguments...)
	return err
}

// Exec runs a statement that must succeed.
func (s *Session) Exec(statement string, arguments ...any) {
	s.t.Helper()
	if err := s.Try(s.t.Context(), statement, arguments...); err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
}

// Rows reads rows; numbers are int64.
func (s *Session) Rows(query string, arguments ...any) [][]any {
	s.t.Helper()
	rows, err := s.rows(s.t.Context(), query, arguments...)
	if err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	for _, row := range rows {
		for i, value := range row {
			switch n := value.(type) {
			case int32:
				row[i] = int64(n)
			case int16:
				row[i] = int64(n)
			}
		}
	}
	return rows
}

func (s *Session) rows(ctx context.Context, query string, arguments ...any) ([][]any, error) {
	if s.pg != nil {
		rows, err := s.pg.Query(ctx, query, arguments...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	}
	found, err := s.file.QueryContext(ctx, placeholder.ReplaceAllString(query, "?$1"), arguments...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	columns, err := found.Columns()
	if err != nil {
		return nil, err
	}
	var rows [][]any
	for found.Next() {
		row, places := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			places[i] = &row[i]
		}
		if err := found.Scan(places...); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, found.Err()
}

// Number reads one number; NULL and no row at all are 0.
func (s *Session) Number(query string, arguments ...any) int64 {
	s.t.Helper()
	rows := s.Rows(query, arguments...)
	if len(rows) == 0 || rows[0][0] == nil {
		return 0
	}
	n, ok := rows[0][0].(int64)
	if !ok {
		s.t.Fatalf("%s: got a %T, want a number", query, rows[0][0])
	}
	return n
}

// Text reads one text; no row at all is "".
func (s *Session) Text(query string, arguments ...any) string {
	s.t.Helper()
	rows := s.Rows(query, arguments...)
	if len(rows) == 0 {
		return ""
	}
	return fmt.Sprint(rows[0][0])
}

// PID is the server's process id of a PostgreSQL session.
func (s *Session) PID() int { return int(s.pg.PgConn().PID()) }

// WaitBlocked returns once some session of the PostgreSQL database, in a statement with this text, waits for a lock.
func (s *Session) WaitBlocked(text string) {
	s.t.Helper()
	s.WaitUntil(`
		SELECT count(*)
		  FROM pg_stat_activity
		 WHERE datname = current_database() AND pid <> pg_backend_pid()
		   AND wait_event_type = 'Lock' AND strpos(query, $1) > 0`, text)
}

// waitTimeout bounds a wait for something that another process does.
const waitTimeout = time.Minute

// WaitUntil returns once a query gives a number above 0.
func (s *Session) WaitUntil(query string, arguments ...any) {
	s.t.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for s.Number(query, arguments...) == 0 {
		select {
		case <-ticker.C:
		case <-deadline.C:
			s.t.Fatalf("after %s there still is nothing: %s %v", waitTimeout, query, arguments)
		}
	}
}

// Restore puts the content of another SQLite file in the place of this one's, through its pages, as the shell's .restore does. Other
// processes may have the file open.
func (s *Session) Restore(path string) {
	s.t.Helper()
	err := s.file.Raw(func(driverConn any) error {
		restore, err := driverConn.(interface {
			NewRestore(string) (*sqlite.Backup, error)
		}).NewRestore(path)
		if err != nil {
			return err
		}
		_, err = restore.Step(-1)
		return errors.Join(err, restore.Finish())
	})
	if err != nil {
		s.t.Fatalf("restore %s: %v", path, err)
	}
}
