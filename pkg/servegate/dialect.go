package servegate

import (
	"context"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/gatesql"
)

// Dialect is the kind of database behind a *sql.DB.
type Dialect string

// The databases that there is a gate for.
const (
	PostgreSQL Dialect = "PostgreSQL"
	SQLite     Dialect = "SQLite"
)

// dialect is the SQL of one kind of database.
type dialect interface {
	// gate reads the gate of a version. A database without a catalog is no error.
	gate(ctx context.Context, one queryRow, version int64) (storage.ServeGate, error)
	// positionSQL reads the last sequence and the epoch of a partition's log.
	positionSQL() string
	// versionSQL reads the stored version again after a snapshot, or is empty where no barrier can change what a snapshot shows.
	versionSQL() string
}

type postgresDialect struct{ schema, quoted string }

func newPostgres(schema string) postgresDialect {
	if schema == "" {
		schema = "public"
	}
	return postgresDialect{schema: schema, quoted: `"` + strings.ReplaceAll(schema, `"`, `""`) + `"`}
}

func (d postgresDialect) gate(ctx context.Context, one queryRow, version int64) (storage.ServeGate, error) {
	// A statement that fails ends the transaction, so what may be missing is asked for first.
	var catalog, system bool
	err := one(ctx, []any{&catalog, &system}, `
		SELECT to_regclass($1::text) IS NOT NULL,
		       has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')`, d.quoted+".sync_barrier_owner")
	if err != nil {
		return storage.ServeGate{}, fmt.Errorf("look for the catalog: %w", err)
	}
	if !catalog {
		return storage.ServeGate{Running: version, Database: storage.DatabaseIdentity{Schema: d.schema}}, nil
	}
	var row gatesql.PostgresRow
	if err := one(ctx, row.Targets(), gatesql.Postgres(d.quoted, system), version, nil); err != nil {
		return storage.ServeGate{}, err
	}
	return row.ServeGate(version, d.schema)
}

func (d postgresDialect) positionSQL() string {
	return `SELECT coalesce((SELECT max_commit_seq FROM ` + d.quoted + `.sync_partitions WHERE partition = $1::text), 0),
	               coalesce((SELECT log_epoch FROM ` + d.quoted + `.sync_partition_registry WHERE partition = $1::text), '')`
}

func (d postgresDialect) versionSQL() string {
	return `SELECT coalesce((SELECT schema_version FROM ` + d.quoted + `.sync_schema_meta WHERE id = 1), 0)`
}

type sqliteDialect struct{}

func (sqliteDialect) gate(ctx context.Context, one queryRow, version int64) (storage.ServeGate, error) {
	var catalog bool
	err := one(ctx, []any{&catalog}, `SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = 'sync_barrier_owner')`)
	if err != nil {
		return storage.ServeGate{}, fmt.Errorf("look for the catalog: %w", err)
	}
	if !catalog {
		return storage.ServeGate{Running: version, Database: storage.DatabaseIdentity{Schema: "main"}}, nil
	}
	var row gatesql.SQLiteRow
	if err := one(ctx, row.Targets(), gatesql.SQLite(), version, nil); err != nil {
		return storage.ServeGate{}, err
	}
	return row.ServeGate(version, "")
}

func (sqliteDialect) positionSQL() string {
	return `SELECT coalesce((SELECT max_commit_seq FROM main.sync_partitions WHERE partition = ?1), 0),
	               coalesce((SELECT log_epoch FROM main.sync_partition_registry WHERE partition = ?1), '')`
}

// versionSQL: a snapshot of SQLite is of the whole file, tables made and dropped included.
func (sqliteDialect) versionSQL() string { return "" }
