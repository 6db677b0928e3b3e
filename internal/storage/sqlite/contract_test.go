package sqlite

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/storagetest"
)

func TestContract(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storagetest.Database {
		path := newFile(t)
		// A program would have made the file, with a write-ahead log: readers then go on while somebody writes.
		openProgram(t, path).exec("PRAGMA journal_mode = WAL")
		return storagetest.Database{
			Dialect: storage.SQLite,
			// Waiting writers ask again and again, since nobody wakes them.
			Capabilities: storagetest.Capabilities{Contenders: 30},
			OpenStore: func(t testing.TB, queries ...storage.RegisteredQuery) storage.Store {
				return openWith(t, Config{Path: path, Create: true, Queries: queries, BusyTimeout: 2 * time.Second})
			},
			Connect: func(t testing.TB) storagetest.Connection { return connection{openProgram(t, path)} },
		}
	})
}

// connection is a program's for the contract. Placeholders are $1 in SQLite too.
type connection struct{ program }

func (c connection) Exec(ctx context.Context, text string, arguments ...any) (int64, error) {
	result, err := c.db.ExecContext(ctx, text, arguments...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (c connection) Query(ctx context.Context, text string, arguments ...any) (all [][]any, err error) {
	var rows *sql.Rows
	if rows, err = c.db.QueryContext(ctx, text, arguments...); err != nil {
		return nil, err
	}
	_, all, err = collectResult(rows)
	return all, err
}
