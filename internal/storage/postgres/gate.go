package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const stateNoTable = "42P01"

// gateSQL is the whole gate in one statement, so that all of it is read in one snapshot: read apart, a barrier that commits in
// between would show its marker without its checkpoints. $1 is the running version, $2 the partition whose log epoch is wanted, or NULL.
// {system} gives the cluster's system identifier.
const gateSQL = `
WITH stored AS (
  SELECT (SELECT schema_version FROM {schema}.sync_schema_meta WHERE id = 1) AS version
),
newest AS (
  SELECT h.min_reader_version
    FROM {schema}.sync_barrier_history h
   WHERE h.version <= (SELECT version FROM stored)
   ORDER BY h.version DESC
   LIMIT 1
),
pending AS (
  SELECT c.partition, c.name, c.schema_version AS version, c.state
    FROM {schema}.sync_backfill_checkpoints c
   WHERE c.state <> 'activated'
     AND c.schema_version <= $1::bigint
),
recorded AS (
  SELECT h.version, entry.key AS name
    FROM {schema}.sync_barrier_history h
   CROSS JOIN LATERAL jsonb_each(h.entries::jsonb -> 'checkpoints') AS entry
   WHERE h.version <= $1::bigint
     AND coalesce(entry.value ->> 'abandoned', '') = ''
),
missing AS (
  SELECT r.name, r.version
    FROM recorded r
   -- One descent of the index for each name, whatever the planner thinks of names: the first row from here on is the one, or there
   -- is none. A plain test for existence reads the whole table where another name has most of its rows.
   WHERE NOT coalesce((
     SELECT (c.name, c.schema_version) = (r.name, r.version)
       FROM {schema}.sync_backfill_checkpoints c
      WHERE (c.name, c.schema_version) >= (r.name, r.version)
      ORDER BY c.name, c.schema_version
      LIMIT 1), false)
)
SELECT coalesce((SELECT protocol FROM {schema}.sync_barrier_owner WHERE id = 1), 0),
       stored.version,
       EXISTS (SELECT FROM {schema}.sync_barrier_history h WHERE h.version = stored.version),
       coalesce((SELECT min_reader_version FROM newest), 0),
       (SELECT required_writer_version FROM {schema}.sync_writer_fence WHERE partition = '*'),
       (SELECT count(*) FROM pending),
       (SELECT json_agg(p)::text
          FROM (SELECT * FROM pending ORDER BY version, name, partition LIMIT 10) p),
       (SELECT json_agg(m)::text
          FROM (SELECT * FROM missing ORDER BY version, name LIMIT 10) m),
       pg_is_in_recovery(),
       coalesce((SELECT log_epoch FROM {schema}.sync_partition_registry WHERE partition = $2::text), ''),
       {system},
       current_database()::text,
       current_setting('server_version')
  FROM stored`

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

// gateStatement is gateSQL, with the system identifier where the role may read it.
func (s *Store) gateStatement(system bool) string {
	expression := `''`
	if system {
		expression = `(SELECT system_identifier::text FROM pg_catalog.pg_control_system())`
	}
	return strings.ReplaceAll(s.sql(gateSQL), "{system}", expression)
}

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

// scanGate reads the one row of gateSQL.
func (s *Store) scanGate(rows pgx.Rows, running int64) (storage.ServeGate, error) {
	gate := storage.ServeGate{Running: running}
	gate.Database.Schema = s.schemaName
	var protocol int
	var stored, fence *int64
	var pending, missing *string
	err := scanRow(&protocol, &stored, &gate.HistoryKnown, &gate.MinReaderVersion, &fence, &gate.PendingTotal, &pending, &missing,
		&gate.Standby, &gate.LogEpoch, &gate.Database.System, &gate.Database.Database, &gate.Database.Server)(rows)
	if err != nil {
		return storage.ServeGate{}, err
	}
	if protocol > storage.CatalogProtocol {
		return storage.ServeGate{}, storage.Refuse(storage.CodeNewerCatalog,
			"read the serve gate: the catalog has protocol %d, this program knows up to %d", protocol, storage.CatalogProtocol)
	}
	gate.Catalog, gate.Marker = protocol > 0, stored != nil
	if stored != nil {
		gate.StoredVersion = *stored
	}
	gate.MinWriterVersion = math.MaxInt32 + 1 // without a row for all, the fence accepts nobody
	if fence != nil {
		gate.MinWriterVersion = *fence
	}
	gate.Database.Server = "PostgreSQL " + gate.Database.Server
	if gate.Pending, err = decodePending(pending); err != nil {
		return storage.ServeGate{}, err
	}
	gate.Missing, err = decodePending(missing)
	return gate, err
}

func decodePending(text *string) ([]storage.PendingCheckpoint, error) {
	if text == nil {
		return nil, nil
	}
	var listed []struct {
		Partition string
		Name      string
		Version   int64
		State     storage.State
	}
	if err := json.Unmarshal([]byte(*text), &listed); err != nil {
		return nil, fmt.Errorf("read the checkpoints of the serve gate: %w", err)
	}
	pending := make([]storage.PendingCheckpoint, len(listed))
	for i, p := range listed {
		pending[i] = storage.PendingCheckpoint{Partition: p.Partition, Name: p.Name, Version: p.Version, State: p.State}
	}
	return pending, nil
}
