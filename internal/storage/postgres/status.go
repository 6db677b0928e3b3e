package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Status reads everything about a database schema that people ask for, in one snapshot. Only the number of refused writes is newer: a sequence
// knows no snapshots. A schema without our catalog is no error: Protocol is 0. CodeNewerCatalog.
func (s *Store) Status(ctx context.Context) (storage.Status, error) {
	var status storage.Status
	o := txOptions{iso: pgx.RepeatableRead, readOnly: true}
	err := s.inTx(ctx, "read the status of "+s.address+" schema "+s.schema, o, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		status, err = s.statusIn(ctx, tx)
		return err
	})
	if err != nil {
		return storage.Status{}, err
	}
	return status, nil
}

func (s *Store) statusIn(ctx context.Context, tx pgx.Tx) (status storage.Status, err error) {
	facts, err := s.readFacts(ctx, tx, storage.Target{}, nil)
	if err != nil {
		return status, err
	}
	if facts.Protocol > storage.CatalogProtocol {
		return status, storage.Refuse(storage.CodeNewerCatalog, "the catalog in schema %s has protocol %d, this program knows up to %d",
			s.schema, facts.Protocol, storage.CatalogProtocol)
	}
	status.Protocol, status.Owner = facts.Protocol, facts.Owner
	status.History, status.MinWriterVersion = facts.History, facts.Fence
	if facts.Marker != nil {
		status.StoredVersion = facts.Marker.Version
	}
	for _, row := range facts.History {
		if row.Version <= status.StoredVersion {
			status.MinReaderVersion = row.MinReaderVersion
		}
		if row.Version == status.StoredVersion {
			status.ContentHash = row.ContentHash
		}
	}
	if status.Database, err = s.identityIn(ctx, tx); err != nil || facts.Protocol == 0 {
		return status, err
	}
	return status, s.countStatus(ctx, tx, &status)
}

// countStatus reads what only a schema with our catalog has.
func (s *Store) countStatus(ctx context.Context, tx pgx.Tx, status *storage.Status) error {
	err := tx.QueryRow(ctx, s.sql(`
		SELECT (SELECT count(*) FROM {schema}.sync_partitions),
		       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.syncbarrier_refused)`)).
		Scan(&status.Partitions, &status.Refused)
	if err != nil {
		return fmt.Errorf("count partitions and refusals: %w", err)
	}
	rows, err := tx.Query(ctx, s.sql(`
		SELECT name
		  FROM {schema}.sync_backfill_checkpoints
		 GROUP BY name
		 ORDER BY max(schema_version), name`))
	if err != nil {
		return fmt.Errorf("read checkpoint names: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read checkpoint names: %w", err)
	}
	for _, name := range names {
		progress, err := s.progressIn(ctx, tx, name)
		if err != nil {
			return err
		}
		status.Checkpoints = append(status.Checkpoints, progress)
	}
	status.Sources, status.LogBytes, err = s.sourceStatus(ctx, tx)
	return err
}

// sourceStatus reads what there is of capture, by table, and how large the log is.
func (s *Store) sourceStatus(ctx context.Context, tx pgx.Tx) (found []storage.SourceStatus, logBytes int64, err error) {
	const what = "read the state of capture"
	sources, err := s.readSources(ctx, tx, nil)
	if err != nil {
		return nil, 0, err
	}
	for _, source := range sortedSources(sources) {
		if !source.fenced() && !source.writesRows() {
			continue
		}
		state := storage.SourceStatus{Table: source.table, Capturing: source.writesRows(), MinWriterVersion: max(0, source.enforced())}
		err := tx.QueryRow(ctx, s.sql(`
			WITH captured AS MATERIALIZED (
			  SELECT partition
			    FROM {schema}.sync_partitions
			   WHERE starts_with(partition, $1::text)
			     AND (partition <> $1::text OR NOT $4::boolean)
			   UNION
			  SELECT row_id -- announced: a worker makes its row
			    FROM {schema}.sync_changes
			   WHERE partition = $1::text
			     AND tbl = $2::text
			     AND op = 4
			)
			SELECT (SELECT count(*) FROM captured),
			       (SELECT count(*)
			          FROM (SELECT
			                  FROM captured
			                  JOIN {schema}.sync_changes c ON c.partition = captured.partition
			                 WHERE c.tbl = $2::text
			                 LIMIT $3::bigint) AS counted)`), captured{table: source.table}.prefix(), source.table, int64(storage.MaxCountedLogRows),
			source.function != nil && source.function.description.Column != "").
			Scan(&state.Partitions, &state.LogRows)
		if err != nil {
			return nil, 0, translate(err, what)
		}
		found = append(found, state)
	}
	err = tx.QueryRow(ctx, `
		SELECT coalesce(sum(pg_catalog.pg_total_relation_size(tree.relid)), 0)::bigint
		  FROM pg_catalog.pg_class c
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 CROSS JOIN LATERAL (SELECT c.oid::regclass
		                     UNION
		                     SELECT relid FROM pg_catalog.pg_partition_tree(c.oid)) AS tree(relid)
		 WHERE n.nspname = $1::text
		   AND c.relname IN ('sync_commits', 'sync_changes')`, s.schemaName).Scan(&logBytes)
	return found, logBytes, translate(err, what)
}
