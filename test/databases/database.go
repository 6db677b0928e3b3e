package databases

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/storage/sqlite"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// Database is a database that a test may fill. It ends with the test.
type Database struct {
	Dialect storage.Dialect
	// Address is the URL of a superuser, or the path of the file.
	Address string
}

// Each runs a test on a fresh database of each product.
func Each(t *testing.T, run func(t *testing.T, db Database)) {
	t.Helper()
	for _, dialect := range []storage.Dialect{storage.PostgreSQL, storage.SQLite} {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()
			run(t, New(t, dialect))
		})
	}
}

// New gives an empty database.
func New(t testing.TB, dialect storage.Dialect) Database {
	t.Helper()
	if dialect == storage.PostgreSQL {
		return Database{Dialect: dialect, Address: testdb.Postgres(t)}
	}
	return Database{Dialect: dialect, Address: filepath.Join(t.TempDir(), "app.db")}
}

// Open opens a Store, as one process would.
func (d Database) Open(ctx context.Context, queries ...storage.RegisteredQuery) (storage.Store, error) {
	if d.Dialect == storage.PostgreSQL {
		store, err := postgres.Open(ctx, postgres.Config{URL: d.Address, Queries: queries})
		if err != nil {
			return nil, err
		}
		return store, nil
	}
	store, err := sqlite.Open(ctx, sqlite.Config{Path: d.Address, Create: true, Queries: queries})
	if err != nil {
		return nil, err
	}
	return store, nil
}

// Store opens a Store that is closed when the test ends.
func (d Database) Store(t testing.TB, queries ...storage.RegisteredQuery) storage.Store {
	t.Helper()
	store, err := d.Open(t.Context(), queries...)
	if err != nil {
		t.Fatalf("open a store: %v", err)
	}
	t.Cleanup(store.Close)
	return store
}
