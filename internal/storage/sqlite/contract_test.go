package sqlite

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/storagetest"
)

// TestContract runs the contract of storage.Store against SQLite files. Both capabilities are missing by SQLite's nature: it has one lock for
// all writers of a file.
func TestContract(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storagetest.Database {
		path := newFile(t)
		return storagetest.Database{
			Dialect:      storage.SQLite,
			Capabilities: storagetest.Capabilities{Contenders: 20},
			OpenStore: func(t testing.TB, queries ...storage.RegisteredQuery) storage.Store {
				return openWith(t, Config{Path: path, Create: true, Queries: queries, BusyTimeout: 4 * time.Second})
			},
			Connect: func(t testing.TB) storagetest.Connection { return connect(t, path) },
		}
	})
}

// connection is one connection of a program that knows nothing of us.
type connection struct{ conn *sql.Conn }

func connect(t testing.TB, path string) connection {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=30000")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = db.Close()
	})
	return connection{conn}
}

func (c connection) Exec(ctx context.Context, statement string, arguments ...any) (int64, error) {
	result, err := c.conn.ExecContext(ctx, statement, arguments...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (c connection) Query(ctx context.Context, query string, arguments ...any) ([][]any, error) {
	rows, err := c.conn.QueryContext(ctx, query, arguments...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	return scanAll(rows)
}

// scanAll reads all rows as the driver gives them.
func scanAll(rows *sql.Rows) ([][]any, error) {
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var all [][]any
	for rows.Next() {
		values, places := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			places[i] = &values[i]
		}
		if err := rows.Scan(places...); err != nil {
			return nil, err
		}
		all = append(all, values)
	}
	return all, rows.Err()
}
