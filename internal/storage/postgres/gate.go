package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/gatesql"
)

const stateNoTable = "42P01"

// ReadServeGate reads all that decides whether a program of the running version may serve, in one statement and one snapshot
// (docs/design.md sections 2 and 8). A database without our catalog is no error: Catalog is false.
//
// Errors: CodeNewerCatalog; an error never means open.
func (s *Store) ReadServeGate(ctx context.Context, running int64) (storage.ServeGate, error) {
	var gate storage.ServeGate
	collect := func(rows pgx.Rows) (err error) {
		gate, err = s.scanGate(rows, running)
		return err
	}
	err := s.readOnce(ctx, "read the serve gate", collect, s.gateStatement(true), running, nil)
	if sqlState(err) == stateNoPrivilege {
		// If it was only the right to read the identifier that is missing, the gate goes without; what else is missing fails again.
		err = s.readOnce(ctx, "read the serve gate", collect, s.gateStatement(false), running, nil)
	}
	return s.withoutCatalog(gate, running, err)
}

// gateStatement is the gate's statement, with the system identifier where the role may read it.
func (s *Store) gateStatement(system bool) string { return gatesql.Postgres(s.schema, system) }

// withoutCatalog turns the error of a missing table of ours into a gate that says so. Such a gate is closed.
func (s *Store) withoutCatalog(gate storage.ServeGate, running int64, err error) (storage.ServeGate, error) {
	switch {
	case err == nil:
		return gate, nil
	case sqlState(err) == stateNoTable:
		return storage.ServeGate{Running: running, Database: storage.DatabaseIdentity{Schema: s.schemaName}}, nil
	default:
		return storage.ServeGate{}, err
	}
}

// gateIn reads the gate inside somebody's transaction. A statement that fails would end that transaction, so it looks for the
// catalog first; the gate itself is still one statement.
func (s *Store) gateIn(ctx context.Context, q querier, running int64, partition string) (storage.ServeGate, error) {
	var exists, system bool
	err := q.QueryRow(ctx, `
		SELECT to_regclass($1::text) IS NOT NULL,
		       has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')`,
		s.schema+".sync_barrier_owner").Scan(&exists, &system)
	if err != nil {
		return storage.ServeGate{}, err
	}
	if !exists {
		return storage.ServeGate{Running: running, Database: storage.DatabaseIdentity{Schema: s.schemaName}}, nil
	}
	rows, err := q.Query(ctx, s.gateStatement(system), running, partition)
	if err != nil {
		return storage.ServeGate{}, err
	}
	defer rows.Close()
	gate, err := s.scanGate(rows, running)
	rows.Close()
	if err == nil {
		err = rows.Err()
	}
	return gate, err
}

// scanGate reads the one row of the gate's statement.
func (s *Store) scanGate(rows pgx.Rows, running int64) (storage.ServeGate, error) {
	var row gatesql.PostgresRow
	if err := scanRow(row.Targets()...)(rows); err != nil {
		return storage.ServeGate{}, err
	}
	return row.ServeGate(running, s.schemaName)
}
