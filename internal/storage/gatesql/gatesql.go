package gatesql

import (
	_ "embed" // the statements
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

//go:embed postgres.sql
var postgresSQL string

//go:embed sqlite.sql
var sqliteSQL string

// Postgres returns the statement for PostgreSQL. schema is the quoted name of the database schema; system says that the role may
// execute pg_control_system(), without which the gate does not say which server it is of. $1 is the running version, $2 a partition or NULL.
func Postgres(schema string, system bool) string {
	expression := `''`
	if system {
		expression = `(SELECT system_identifier::text FROM pg_catalog.pg_control_system())`
	}
	return strings.NewReplacer("{schema}", schema, "{system}", expression).Replace(postgresSQL)
}

// SQLite returns the statement for SQLite. ?1 is the running version, ?2 a partition or NULL.
func SQLite() string { return sqliteSQL }

// PostgresRow is the row that the statement for PostgreSQL gives.
type PostgresRow struct {
	row
	standby          bool
	database, server string
}

// Targets are what a driver scans the columns into.
func (r *PostgresRow) Targets() []any {
	return append(r.targets(), &r.standby, &r.logEpoch, &r.system, &r.database, &r.server)
}

// ServeGate is what was scanned. schema is the name, unquoted, of the database schema. CodeNewerCatalog.
func (r *PostgresRow) ServeGate(running int64, schema string) (storage.ServeGate, error) {
	gate, err := r.gate(running)
	if err != nil {
		return storage.ServeGate{}, err
	}
	gate.Standby = r.standby
	gate.Database = storage.DatabaseIdentity{System: r.system, Database: r.database, Schema: schema, Server: "PostgreSQL " + r.server}
	return gate, nil
}

// SQLiteRow is the row that the statement for SQLite gives.
type SQLiteRow struct {
	row
	server string
}

// Targets are what a driver scans the columns into.
func (r *SQLiteRow) Targets() []any {
	return append(r.targets(), &r.logEpoch, &r.system, &r.server)
}

// ServeGate is what was scanned. path is that of the file. CodeNewerCatalog.
func (r *SQLiteRow) ServeGate(running int64, path string) (storage.ServeGate, error) {
	gate, err := r.gate(running)
	if err != nil {
		return storage.ServeGate{}, err
	}
	gate.Database = storage.DatabaseIdentity{System: r.system, Database: path, Schema: "main", Server: "SQLite " + r.server}
	return gate, nil
}

// row is what both statements give, with their first columns.
type row struct {
	protocol         int
	stored           *int64
	history          bool
	minReader        int64
	fence            *int64
	pendingTotal     int64
	pending, missing *string
	owner            storage.Owner
	logEpoch, system string
}

func (r *row) targets() []any {
	return []any{
		&r.protocol, &r.stored, &r.history, &r.minReader, &r.fence, &r.pendingTotal, &r.pending, &r.missing,
		&r.owner.Cluster, &r.owner.Namespace, &r.owner.Name, &r.owner.UID,
	}
}

func (r *row) gate(running int64) (storage.ServeGate, error) {
	if r.protocol > storage.CatalogProtocol {
		return storage.ServeGate{}, storage.Refuse(storage.CodeNewerCatalog,
			"read the serve gate: the catalog has protocol %d, this program knows up to %d", r.protocol, storage.CatalogProtocol)
	}
	gate := storage.ServeGate{
		Running: running, Catalog: r.protocol > 0, Marker: r.stored != nil, HistoryKnown: r.history,
		MinReaderVersion: r.minReader, PendingTotal: r.pendingTotal, LogEpoch: r.logEpoch,
		MinWriterVersion: math.MaxInt32 + 1, // without a row for all, the fence accepts nobody
	}
	if r.owner.Name != "" { // an empty name is nobody
		owner := r.owner
		gate.Owner = &owner
	}
	if r.stored != nil {
		gate.StoredVersion = *r.stored
	}
	if r.fence != nil {
		gate.MinWriterVersion = *r.fence
	}
	var err error
	if gate.Pending, err = decodePending(r.pending); err != nil {
		return storage.ServeGate{}, err
	}
	if gate.Missing, err = decodePending(r.missing); err != nil {
		return storage.ServeGate{}, err
	}
	return gate, nil
}

// decodePending reads a list of checkpoints; without one, or with an empty one, it returns nil.
func decodePending(text *string) ([]storage.PendingCheckpoint, error) {
	if text == nil {
		return nil, nil
	}
	var pending []storage.PendingCheckpoint
	if err := json.Unmarshal([]byte(*text), &pending); err != nil {
		return nil, fmt.Errorf("read the checkpoints of the serve gate: %w", err)
	}
	if len(pending) == 0 {
		return nil, nil
	}
	return pending, nil
}
