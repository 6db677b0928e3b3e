package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// DeclareCheckpoint writes row, definition and fence of a checkpoint in one transaction, outside a barrier. Declared again with the same
// content it stays as it is. tables are the declarations of the tables it names.
//
// Errors: those of storage.DecideDeclare, CodeInvalidSQL where its SQL cannot run, CodeLockTimeout with Table.
func (s *Store) DeclareCheckpoint(ctx context.Context, checkpoint storage.Checkpoint, tables []storage.Table) ([]storage.CheckpointRow, error) {
	if err := storage.CheckDeclaration(checkpoint, tables); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("declare checkpoint %q of version %d", checkpoint.Name, checkpoint.Version)
	locks, err := s.locksToDeclare(ctx, what, checkpoint)
	if err != nil {
		return nil, err
	}
	var rows []storage.CheckpointRow
	err = s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		if err := takeLocks(ctx, tx, locks); err != nil {
			return err
		}
		if err := s.declare(ctx, tx, checkpoint, tables); err != nil {
			return err
		}
		rows, err = s.rowsOf(ctx, tx, checkpoint.Name)
		return err
	})
	return rows, s.explainLock(ctx, err, defaultLockTimeout)
}

// locksToDeclare keeps to the order of a barrier's locks. The marker's table last: it keeps barriers and other declarations out, so that
// what is read under it stays true until COMMIT. Where the fence is there already, no writer is waited for: it never goes down.
func (s *Store) locksToDeclare(ctx context.Context, what string, checkpoint storage.Checkpoint) (lockSet, error) {
	var forAll, lowest int64
	err := s.readOnce(ctx, what+": read the fence", scanRow(&forAll, &lowest), s.sql(`
		SELECT coalesce(max(required_writer_version) FILTER (WHERE partition = '*'), 0),
		       CASE WHEN count(*) FILTER (WHERE partition = ANY ($1::text[])) < cardinality($1::text[])
		            THEN 0
		            ELSE coalesce(min(required_writer_version) FILTER (WHERE partition = ANY ($1::text[])), 0)
		       END
		  FROM {schema}.sync_writer_fence`), checkpoint.Rows())
	switch {
	case sqlState(err) == stateNoTable:
		return nil, noVersionYet(checkpoint)
	case err != nil:
		return nil, err
	}
	raisesAll := forAll < checkpoint.Version && (len(checkpoint.Partitions) == 0 || captures(checkpoint))
	var locks, logged lockSet
	err = s.inTx(ctx, what+": look at its sources", txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		locks, logged, err = s.sourcesToDeclare(ctx, tx, checkpoint, raisesAll)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !raisesAll && forAll < checkpoint.Version && lowest < checkpoint.Version {
		locks.add(s.schemaName, "sync_partitions", exclusive)
	}
	for _, lock := range logged {
		locks.add(lock.schema, lock.table, lock.mode)
	}
	if raisesAll {
		locks.add(s.schemaName, "sync_commits", shareRowExclusive)
	}
	locks.add(s.schemaName, "sync_schema_meta", exclusive)
	return locks, nil
}

func noVersionYet(checkpoint storage.Checkpoint) error {
	return storage.Refuse(storage.CodeConflict, "checkpoint %q of version %d: this database schema has no Syncbarrier catalog", checkpoint.Name, checkpoint.Version).
		WithHint("apply a version first")
}

// declare does the work under the locks.
func (s *Store) declare(ctx context.Context, tx pgx.Tx, checkpoint storage.Checkpoint, tables []storage.Table) error {
	target := storage.Target{Version: checkpoint.Version, Tables: tables, Checkpoints: []storage.Checkpoint{checkpoint}}
	facts, err := s.readFacts(ctx, tx, target, nil)
	if err != nil {
		return err
	}
	if facts.Protocol == 0 {
		return noVersionYet(checkpoint)
	}
	gate, err := s.gateIn(ctx, tx, checkpoint.Version, "")
	if err != nil {
		return err
	}
	decision, err := storage.DecideDeclare(checkpoint, tables, facts, gate)
	if err != nil {
		return err
	}
	positions, err := s.raiseFence(ctx, tx, decision.Raise)
	if err != nil {
		return err
	}
	if !decision.Exists {
		if err := s.keepGateClosed(ctx, tx, gate); err != nil {
			return err
		}
	}
	if err := s.declareRows(ctx, tx, checkpoint, tables); err != nil {
		return err
	}
	if err := s.ensureSourcesOf(ctx, tx, checkpoint, max(facts.Fence, decision.Raise[storage.AllPartitions])); err != nil {
		return err
	}
	if decision.Exists {
		return nil
	}
	if err := s.checkDefinitions(ctx, tx, checkpoint, tables); err != nil {
		return err
	}
	return s.addToHistory(ctx, tx, checkpoint.Version, decision.Entries, positions)
}

// keepGateClosed holds one of the rows that keep the gate closed until COMMIT. Were the last of them activated meanwhile, programs
// would begin to serve on a proof that no longer holds once our row is there.
func (s *Store) keepGateClosed(ctx context.Context, tx pgx.Tx, gate storage.ServeGate) error {
	if gate.PendingTotal == 0 {
		return nil // closed by what only a barrier, an abandon or a declaration mends, and those wait for the marker's lock
	}
	tag, err := tx.Exec(ctx, s.sql(`
		SELECT
		  FROM {schema}.sync_backfill_checkpoints
		 WHERE state <> 'activated'
		   AND schema_version <= $1::bigint
		 LIMIT 1
		   FOR SHARE SKIP LOCKED`), gate.Running)
	if err != nil {
		return fmt.Errorf("hold an open checkpoint: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return &storage.Error{
			Code: storage.CodeLockTimeout, Table: "sync_backfill_checkpoints",
			Message: fmt.Sprintf("the last open checkpoints up to version %d are being changed right now", gate.Running),
			Hint:    "try again; if they are activated, the gate is open and nothing more can be declared for this version",
		}
	}
	return nil
}

// declareRows writes the rows of a checkpoint, its definition and its settings, in a barrier's transaction or that of DeclareCheckpoint. What
// is there already stays.
func (s *Store) declareRows(ctx context.Context, tx pgx.Tx, checkpoint storage.Checkpoint, tables []storage.Table) error {
	definition, err := storage.EncodeDefinition(storage.NewDefinition(checkpoint, tables))
	if err != nil {
		return err
	}
	settings, err := storage.EncodeSettings(checkpoint.Settings)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_backfill_definitions(name, version, hash, definition, settings)
		VALUES ($1::text, $2::bigint, $3::text, $4::text, $5::text)
		ON CONFLICT (name) DO NOTHING`), checkpoint.Name, checkpoint.Version, checkpoint.Hash(), definition, settings)
	if err != nil {
		return fmt.Errorf("write the definition of checkpoint %q: %w", checkpoint.Name, err)
	}
	_, err = tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
		SELECT listed.partition, $1::text, $2::bigint, 'declared', `+nowMS+`
		  FROM unnest($3::text[]) AS listed(partition)
		ON CONFLICT (partition, name) DO NOTHING`), checkpoint.Name, checkpoint.Version, checkpoint.Rows())
	if err != nil {
		return fmt.Errorf("write the rows of checkpoint %q: %w", checkpoint.Name, err)
	}
	// The epoch tells a log from one that took its place; a pass notes it when it begins.
	_, err = tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_partition_registry(partition, log_epoch, last_authenticated_at_ms)
		SELECT listed.partition, `+randomEpoch+`, 0
		  FROM unnest($1::text[]) AS listed(partition)
		ON CONFLICT (partition) DO NOTHING`), checkpoint.Partitions)
	if err != nil {
		return fmt.Errorf("give the partitions of checkpoint %q a log epoch: %w", checkpoint.Name, err)
	}
	return nil
}

// addToHistory records the checkpoint with the version it belongs to: from now on the gate requires it. positions are where the log stood
// when the fence was raised for it.
func (s *Store) addToHistory(ctx context.Context, tx pgx.Tx, version int64, entries storage.HistoryEntries, positions map[string]int64) error {
	text, err := storage.EncodeEntries(entries)
	if err != nil {
		return err
	}
	raised, err := json.Marshal(positions)
	if err != nil {
		return fmt.Errorf("encode the positions of the log: %w", err)
	}
	tag, err := tx.Exec(ctx, s.sql(`
		UPDATE {schema}.sync_barrier_history
		   SET entries = $2::text,
		       raised = (raised::jsonb || $3::text::jsonb)::text,
		       min_writer_version = greatest(min_writer_version,
		         coalesce((SELECT required_writer_version FROM {schema}.sync_writer_fence WHERE partition = '*'), 0))
		 WHERE version = $1::bigint`), version, text, string(raised))
	if err != nil {
		return fmt.Errorf("write the history of version %d: %w", version, err)
	}
	if tag.RowsAffected() != 1 {
		return storage.Refuse(storage.CodeConflict, "the history has no record of version %d", version)
	}
	return nil
}

// rowsOf reads the rows of one checkpoint inside a transaction.
func (s *Store) rowsOf(ctx context.Context, tx pgx.Tx, name string) ([]storage.CheckpointRow, error) {
	found, err := tx.Query(ctx, s.sql(`
		SELECT `+checkpointColumns+`
		  FROM {schema}.sync_backfill_checkpoints
		 WHERE name = $1::text
		 ORDER BY partition`), name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, scanCheckpoint)
}

// abandonTimeout bounds each statement of an abandon: a checkpoint may have a row for each of 100,000 partitions.
const abandonTimeout = 2 * time.Minute

// AbandonCheckpoint deletes the rows of a checkpoint that is not done, with its work, and keeps its name used, with by whom and why in the
// history. The gate no longer needs it; the fence stays, and so does the highest owner epoch of each row. It returns how many rows went.
//
// Errors: CodeCheckpointNotDeclared; CodeCheckpointActivated if there is nothing left to abandon; CodeInvalidSpec without by or reason.
func (s *Store) AbandonCheckpoint(ctx context.Context, name string, version int64, by, reason string) (count int, err error) {
	if strings.TrimSpace(by) == "" || strings.TrimSpace(reason) == "" {
		return 0, storage.Refuse(storage.CodeInvalidSpec, "abandon checkpoint %q: by whom and why has to be said", name)
	}
	what := fmt.Sprintf("abandon checkpoint %q of version %d", name, version)
	locks := lockSet{{schema: s.schemaName, table: "sync_schema_meta", mode: exclusive}}
	err = s.inTx(ctx, what, txOptions{statementTimeout: abandonTimeout}, func(ctx context.Context, tx pgx.Tx) error {
		if err := takeLocks(ctx, tx, locks); err != nil {
			return err
		}
		count, err = s.abandon(ctx, tx, name, version, by+": "+reason)
		return err
	})
	if err != nil {
		return 0, s.explainLock(ctx, s.explainMissing(ctx, err, what), defaultLockTimeout)
	}
	if err := s.settleUnused(ctx); err != nil { // nobody reads its sources now
		return count, fmt.Errorf("checkpoint %q is abandoned, but the capture of its sources goes on until the next apply: %w", name, err)
	}
	return count, nil
}

func (s *Store) abandon(ctx context.Context, tx pgx.Tx, name string, version int64, why string) (int, error) {
	// Ranges first, as a batch takes them: the other way round a batch and we would wait for each other.
	_, err := tx.Exec(ctx, s.sql(`
		SELECT
		  FROM {schema}.sync_backfill_progress
		 WHERE checkpoint = $1::text
		   AND kind = 'range'
		 ORDER BY partition, range_no
		   FOR UPDATE`), name)
	if err != nil {
		return 0, err
	}
	// Locked, so that no row is activated between the look and the delete.
	rows, err := tx.Query(ctx, s.sql(`
		SELECT state
		  FROM {schema}.sync_backfill_checkpoints
		 WHERE name = $1::text
		   AND schema_version = $2::bigint
		 ORDER BY partition
		   FOR UPDATE`), name, version)
	if err != nil {
		return 0, err
	}
	states, err := pgx.CollectRows(rows, pgx.RowTo[storage.State])
	if err != nil {
		return 0, err
	}
	open := 0
	for _, state := range states {
		if state != storage.Activated {
			open++
		}
	}
	switch {
	case len(states) == 0:
		return 0, storage.Refuse(storage.CodeCheckpointNotDeclared, "no checkpoint %q of version %d is declared", name, version)
	case open == 0:
		return 0, storage.Refuse(storage.CodeCheckpointActivated, "checkpoint %q of version %d is activated, and nothing of it is left to abandon", name, version)
	}
	if err := s.recordAbandoned(ctx, tx, name, version, why); err != nil {
		return 0, err
	}
	for _, statement := range []sqlText{
		`DELETE FROM {schema}.sync_backfill_checkpoints WHERE name = $1::text`,
		`DELETE FROM {schema}.sync_backfill_leftovers WHERE checkpoint = $1::text`,
		`DELETE FROM {schema}.sync_backfill_definitions WHERE name = $1::text`,
		`DELETE FROM {schema}.sync_backfill_progress WHERE checkpoint = $1::text AND kind NOT IN ('abandoned', 'floor')`,
	} {
		if _, err := tx.Exec(ctx, s.sql(statement), name); err != nil {
			return 0, err
		}
	}
	return len(states), nil
}

// recordAbandoned writes the row that lets the guard pass the delete, the epoch that each row's next claim has to be above, and the
// word of it in the history.
func (s *Store) recordAbandoned(ctx context.Context, tx pgx.Tx, name string, version int64, why string) error {
	_, err := tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_backfill_progress(checkpoint, kind, partition, last_error, position, updated_at_ms)
		VALUES ($1::text, 'abandoned', '*', $2::text, $3::bigint, `+nowMS+`)
		ON CONFLICT (checkpoint, kind, partition, range_no) DO UPDATE
		   SET last_error = EXCLUDED.last_error,
		       position = EXCLUDED.position,
		       updated_at_ms = EXCLUDED.updated_at_ms`), name, why, version)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_backfill_progress AS p(checkpoint, kind, partition, owner_epoch, updated_at_ms)
		SELECT c.name, 'floor', c.partition, c.owner_epoch, `+nowMS+`
		  FROM {schema}.sync_backfill_checkpoints c
		 WHERE c.name = $1::text
		ON CONFLICT (checkpoint, kind, partition, range_no) DO UPDATE
		   SET owner_epoch = greatest(p.owner_epoch, EXCLUDED.owner_epoch),
		       updated_at_ms = EXCLUDED.updated_at_ms`), name)
	if err != nil {
		return err
	}
	var text string
	err = tx.QueryRow(ctx, s.sql(`SELECT entries FROM {schema}.sync_barrier_history WHERE version = $1::bigint`), version).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // another program brought the database to that version; the row of kind abandoned keeps the name used
	}
	if err != nil {
		return err
	}
	entries, err := storage.DecodeEntries(version, text)
	if err != nil {
		return err
	}
	entry := entries.Checkpoints[name]
	entry.Abandoned = why
	entries.Checkpoints[name] = entry
	if text, err = storage.EncodeEntries(entries); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.sql(`UPDATE {schema}.sync_barrier_history SET entries = $2::text WHERE version = $1::bigint`), version, text)
	return err
}
