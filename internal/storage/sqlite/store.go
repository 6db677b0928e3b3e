package sqlite

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Store is one SQLite database file that carries a barrier. Open makes it.
type Store struct {
	db      *sql.DB
	path    string // as it was given, for messages
	given   string // absolute, with symbolic links as they stand: they may lead elsewhere later
	file    string // where they led when it was opened
	opened  os.FileInfo
	queries map[string]storage.RegisteredQuery
	busy    time.Duration
	// turn lets one transaction of this store at a time ask for the file's write lock: SQLite has no queue, so whoever asks often
	// enough would starve the others.
	turn chan struct{}
}

var _ storage.Store = (*Store)(nil)

// querier is what reads and writes have in common, inside a transaction or on a connection of the pool.
type querier interface {
	ExecContext(ctx context.Context, query string, arguments ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, arguments ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, arguments ...any) *sql.Row
}

// Close ends all connections. A connection that is in use ends when its transaction does. It is idempotent.
func (s *Store) Close() {
	// Closing has nothing to say to anybody: what was committed is in the file.
	_ = s.db.Close()
}

// quoteIdentifier quotes a name for use in SQL text.
func quoteIdentifier(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// quoteLiteral quotes a text for use in SQL text, where a parameter cannot stand (what a plan shows and a barrier then runs).
func quoteLiteral(text string) string {
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}

// nowMillis is the time that is written beside rows. It is for people; nothing is decided by it.
func nowMillis() int64 { return time.Now().UnixMilli() }
