package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// gateSQL is the whole gate in one statement, so that all of it is read in one snapshot: read apart, a barrier that commits in
// between would show its marker without its checkpoints. ?1 is the running version, ?2 the partition whose log epoch is wanted, or NULL.
const gateSQL = `
WITH stored AS (
  SELECT (SELECT schema_version FROM main.sync_schema_meta WHERE id = 1) AS version
),
newest AS (
  SELECT h.min_reader_version
    FROM main.sync_barrier_history h
   WHERE h.version <= (SELECT version FROM stored)
   ORDER BY h.version DESC
   LIMIT 1
),
pending AS (
  SELECT c.partition, c.name, c.schema_version AS version, c.state
    FROM main.sync_backfill_checkpoints c
   WHERE c.state <> 'activated'
     AND c.schema_version <= ?1
),
recorded AS (
  SELECT h.version, entry.key AS name
    FROM main.sync_barrier_history h
    JOIN json_each(h.entries, '$.checkpoints') AS entry
   WHERE h.version <= ?1
     AND coalesce(entry.value ->> 'abandoned', '') = ''
),
missing AS (
  SELECT r.name, r.version
    FROM recorded r
   WHERE NOT EXISTS (
     SELECT 1 FROM main.sync_backfill_checkpoints c
      WHERE c.name = r.name
        AND c.schema_version = r.version)
)
SELECT coalesce((SELECT protocol FROM main.sync_barrier_owner WHERE id = 1), 0),
       stored.version,
       EXISTS (SELECT 1 FROM main.sync_barrier_history h WHERE h.version = stored.version),
       coalesce((SELECT min_reader_version FROM newest), 0),
       (SELECT required_writer_version FROM main.sync_writer_fence WHERE partition = '*'),
       (SELECT count(*) FROM pending),
       (SELECT json_group_array(json_object('partition', partition, 'name', name, 'version', version, 'state', state))
          FROM (SELECT * FROM pending ORDER BY version, name, partition LIMIT 10)),
       (SELECT json_group_array(json_object('partition', '', 'name', name, 'version', version))
          FROM (SELECT * FROM missing ORDER BY version, name LIMIT 10)),
       coalesce((SELECT log_epoch FROM main.sync_partition_registry WHERE partition = ?2), ''),
       coalesce((SELECT system_identifier FROM main.sync_barrier_owner WHERE id = 1), ''),
       sqlite_version()
  FROM stored`

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
	return s.scanGate(q.QueryRowContext(ctx, gateSQL, running, partition), running)
}

// scanGate reads the one row of gateSQL.
func (s *Store) scanGate(row *sql.Row, running int64) (storage.ServeGate, error) {
	gate := storage.ServeGate{Running: running}
	gate.Database = storage.DatabaseIdentity{Database: s.path, Schema: "main"}
	var protocol int
	var stored, fence *int64
	var pending, missing string
	err := row.Scan(&protocol, &stored, &gate.HistoryKnown, &gate.MinReaderVersion, &fence, &gate.PendingTotal, &pending, &missing,
		&gate.LogEpoch, &gate.Database.System, &gate.Database.Server)
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
	gate.Database.Server = "SQLite " + gate.Database.Server
	if gate.Pending, err = decodePending(pending); err != nil {
		return storage.ServeGate{}, err
	}
	gate.Missing, err = decodePending(missing)
	return gate, err
}

func decodePending(text string) ([]storage.PendingCheckpoint, error) {
	var listed []struct {
		Partition string
		Name      string
		Version   int64
		State     storage.State
	}
	if err := json.Unmarshal([]byte(text), &listed); err != nil {
		return nil, fmt.Errorf("read the checkpoints of the serve gate: %w", err)
	}
	var pending []storage.PendingCheckpoint
	for _, p := range listed {
		pending = append(pending, storage.PendingCheckpoint{Partition: p.Partition, Name: p.Name, Version: p.Version, State: p.State})
	}
	return pending, nil
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
