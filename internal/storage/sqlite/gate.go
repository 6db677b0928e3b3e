package sqlite

import (
	"context"
	"database/sql"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/gatesql"
)

// ReadServeGate reads all that decides whether a program of the running version may serve, in one statement and one snapshot
// (docs/design.md sections 2 and 8). A database without our catalog is no error: Catalog is false.
//
// Errors: CodeNewerCatalog; an error never means open.
func (s *Store) ReadServeGate(ctx context.Context, running int64) (storage.ServeGate, error) {
	var gate storage.ServeGate
	err := s.inTx(ctx, "read the serve gate", false, func(ctx context.Context, tx *sql.Conn) (err error) {
		gate, err = s.gateIn(ctx, tx, running, "")
		return err
	})
	if err != nil {
		return storage.ServeGate{}, err
	}
	return gate, nil
}

// gateIn reads the gate inside somebody's transaction. It looks for the catalog first, in the same snapshot; the gate itself is
// one statement.
func (s *Store) gateIn(ctx context.Context, q querier, running int64, partition string) (storage.ServeGate, error) {
	exists, err := hasTable(ctx, q, "sync_barrier_owner")
	if err != nil {
		return storage.ServeGate{}, err
	}
	if !exists {
		return storage.ServeGate{Running: running, Database: storage.DatabaseIdentity{Database: s.path, Schema: "main"}}, nil
	}
	return s.scanGate(q.QueryRowContext(ctx, gatesql.SQLite(), running, partition), running)
}

// scanGate reads the one row of the gate's statement.
func (s *Store) scanGate(row *sql.Row, running int64) (storage.ServeGate, error) {
	var read gatesql.SQLiteRow
	if err := row.Scan(read.Targets()...); err != nil {
		return storage.ServeGate{}, err
	}
	return read.ServeGate(running, s.path)
}

// hasTable says whether the file has a table of that name.
func hasTable(ctx context.Context, q querier, name string) (exists bool, err error) {
	err = q.QueryRowContext(ctx, `
		SELECT EXISTS (
		  SELECT 1 FROM main.sqlite_schema
		   WHERE type = 'table'
		     AND name = ?)`, name).Scan(&exists)
	return exists, err
}
