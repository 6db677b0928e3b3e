package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// DeclareCheckpoint writes row, definition and fence of a checkpoint in one transaction, outside a barrier. Declared again with the same
// content it stays as it is. tables are the declarations of the tables it names.
//
// Errors: those of storage.DecideDeclare, CodeInvalidSQL where its SQL cannot run, CodeLockTimeout.
func (s *Store) DeclareCheckpoint(ctx context.Context, checkpoint storage.Checkpoint, tables []storage.Table) (rows []storage.CheckpointRow, err error) {
	if err := storage.CheckDeclaration(checkpoint, tables); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("declare checkpoint %q of version %d", checkpoint.Name, checkpoint.Version)
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		if err := s.declare(ctx, tx, checkpoint, tables); err != nil {
			return err
		}
		rows, err = rowsOf(ctx, tx, checkpoint.Name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func noVersionYet(checkpoint storage.Checkpoint) error {
	return storage.Refuse(storage.CodeConflict, "checkpoint %q of version %d: this database has no Syncbarrier catalog", checkpoint.Name, checkpoint.Version).
		WithHint("apply a version first")
}

// declare does the work under the write lock, so what is read here stays true until COMMIT, the closed gate included.
func (s *Store) declare(ctx context.Context, tx *sql.Conn, checkpoint storage.Checkpoint, tables []storage.Table) error {
	objects, err := readObjects(ctx, tx)
	if err != nil {
		return err
	}
	target := storage.Target{Version: checkpoint.Version, Tables: tables, Checkpoints: []storage.Checkpoint{checkpoint}}
	facts, err := readFacts(ctx, tx, objects, target)
	switch {
	case err != nil:
		return err
	case facts.Protocol == 0:
		return noVersionYet(checkpoint)
	case facts.Protocol > storage.CatalogProtocol:
		return newerCatalog(facts.Protocol)
	}
	gate, err := s.gateIn(ctx, tx, checkpoint.Version, "")
	if err != nil {
		return err
	}
	decision, err := storage.DecideDeclare(checkpoint, tables, facts, gate)
	if err != nil {
		return err
	}
	positions, err := raiseFence(ctx, tx, decision.Raise)
	if err != nil {
		return err
	}
	if err := declareRows(ctx, tx, []storage.Checkpoint{checkpoint}, tables); err != nil || decision.Exists {
		return err
	}
	if err := checkDefinitions(ctx, tx, []storage.Checkpoint{checkpoint}, tables); err != nil {
		return err
	}
	return addToHistory(ctx, tx, checkpoint.Version, decision.Entries, positions)
}

// declareRows writes the rows of checkpoints, their definitions and their settings, in a barrier's transaction or that of DeclareCheckpoint.
// What is there already stays.
func declareRows(ctx context.Context, q querier, checkpoints []storage.Checkpoint, tables []storage.Table) error {
	for _, c := range checkpoints {
		definition, err := storage.EncodeDefinition(storage.NewDefinition(c, tables))
		if err != nil {
			return err
		}
		settings, err := storage.EncodeSettings(c.Settings)
		if err != nil {
			return err
		}
		_, err = q.ExecContext(ctx, `
			INSERT INTO main.sync_backfill_definitions(name, version, hash, definition, settings)
			VALUES (?1, ?2, ?3, ?4, ?5)
			ON CONFLICT (name) DO NOTHING`, c.Name, c.Version, c.Hash(), definition, settings)
		if err != nil {
			return translate(err, fmt.Sprintf("write the definition of checkpoint %q", c.Name))
		}
		for _, partition := range c.Rows() {
			// The guard raises owner_epoch to what abandoned rows of that name had.
			_, err := q.ExecContext(ctx, `
				INSERT INTO main.sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
				VALUES (?1, ?2, ?3, 'declared', ?4)
				ON CONFLICT (partition, name) DO NOTHING`, partition, c.Name, c.Version, nowMillis())
			if err != nil {
				return translate(err, fmt.Sprintf("declare checkpoint %q in partition %q", c.Name, partition))
			}
			if partition == storage.AllPartitions {
				continue
			}
			// The epoch tells a log from one that took its place; a pass notes it when it begins.
			if err := noteEpoch(ctx, q, partition); err != nil {
				return err
			}
		}
	}
	return nil
}

// addToHistory records the checkpoint with the version it belongs to: from now on the gate requires it. positions are where the log stood
// when the fence was raised for it.
func addToHistory(ctx context.Context, tx *sql.Conn, version int64, entries storage.HistoryEntries, positions map[string]int64) error {
	text, err := storage.EncodeEntries(entries)
	if err != nil {
		return err
	}
	raised, err := json.Marshal(positions)
	if err != nil {
		return fmt.Errorf("encode the positions of the log: %w", err)
	}
	changed, err := affected(tx.ExecContext(ctx, `
		UPDATE main.sync_barrier_history
		   SET entries = ?2,
		       raised = json_patch(raised, ?3),
		       min_writer_version = max(min_writer_version,
		         coalesce((SELECT required_writer_version FROM main.sync_writer_fence WHERE partition = '*'), 0))
		 WHERE version = ?1`, version, text, string(raised)))
	if err != nil {
		return translate(err, fmt.Sprintf("write the history of version %d", version))
	}
	if changed != 1 {
		return storage.Refuse(storage.CodeConflict, "the history has no record of version %d", version)
	}
	return nil
}

// rowsOf reads the rows of one checkpoint inside a transaction.
func rowsOf(ctx context.Context, q querier, name string) ([]storage.CheckpointRow, error) {
	return collect(ctx, q, scanCheckpoint, `
		SELECT `+checkpointColumns+`
		  FROM main.sync_backfill_checkpoints
		 WHERE name = ?1
		 ORDER BY partition`, name)
}

// AbandonCheckpoint deletes the rows of a checkpoint, its definition and its progress, under the write lock. Its name stays used, with by
// whom and why in the history, and the gate no longer needs it. The highest owner epochs stay: a claim of rows declared again could
// otherwise be equal to one that a worker still holds. It returns how many rows went.
//
// Errors: CodeInvalidSpec without a name and a reason; CodeCheckpointNotDeclared; CodeCheckpointActivated if all of its rows are.
func (s *Store) AbandonCheckpoint(ctx context.Context, name string, version int64, by, reason string) (rows int, err error) {
	if strings.TrimSpace(by) == "" || strings.TrimSpace(reason) == "" {
		return 0, storage.Refuse(storage.CodeInvalidSpec, "abandon checkpoint %q: by whom and why must be said", name)
	}
	what := fmt.Sprintf("abandon checkpoint %q", name)
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		rows, err = abandon(ctx, tx, name, version, by+": "+reason)
		return err
	})
	if err != nil {
		return 0, err
	}
	return rows, nil
}

func abandon(ctx context.Context, tx *sql.Conn, name string, version int64, note string) (int, error) {
	var rows, open int
	err := tx.QueryRowContext(ctx, `
		SELECT count(*), coalesce(sum(state <> 'activated'), 0)
		  FROM main.sync_backfill_checkpoints
		 WHERE name = ?1
		   AND schema_version = ?2`, name, version).Scan(&rows, &open)
	switch {
	case err != nil:
		return 0, err
	case rows == 0:
		return 0, storage.Refuse(storage.CodeCheckpointNotDeclared, "no checkpoint %q of version %d is declared", name, version)
	case open == 0:
		return 0, storage.Refuse(storage.CodeCheckpointActivated, "checkpoint %q of version %d is activated, and nothing waits for it any more", name, version)
	}
	if err := recordAbandoned(ctx, tx, name, version, note); err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO main.sync_backfill_progress(checkpoint, kind, partition, position, last_error, updated_at_ms)
		VALUES (?1, 'abandoned', '*', ?2, ?3, ?4)
		ON CONFLICT (checkpoint, kind, partition, range_no) DO NOTHING`, name, version, note, nowMillis())
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO main.sync_backfill_progress(checkpoint, kind, partition, owner_epoch, updated_at_ms)
		SELECT name, 'floor', partition, owner_epoch, ?2
		  FROM main.sync_backfill_checkpoints
		 WHERE name = ?1
		ON CONFLICT (checkpoint, kind, partition, range_no) DO UPDATE
		   SET owner_epoch = max(owner_epoch, excluded.owner_epoch)`, name, nowMillis())
	if err != nil {
		return 0, err
	}
	for _, statement := range []string{
		`DELETE FROM main.sync_backfill_checkpoints WHERE name = ?1`,
		`DELETE FROM main.sync_backfill_progress WHERE checkpoint = ?1 AND kind IN ('claim', 'range', 'position', 'proof')`,
		`DELETE FROM main.sync_backfill_leftovers WHERE checkpoint = ?1`,
		`DELETE FROM main.sync_backfill_definitions WHERE name = ?1`,
	} {
		if _, err := tx.ExecContext(ctx, statement, name); err != nil {
			return 0, err
		}
	}
	return rows, nil
}

// recordAbandoned writes it into the history of the checkpoint's version, where the gate looks for what must exist.
func recordAbandoned(ctx context.Context, tx *sql.Conn, name string, version int64, note string) error {
	var text string
	err := tx.QueryRowContext(ctx, `
		SELECT entries
		  FROM main.sync_barrier_history
		 WHERE version = ?1`, version).Scan(&text)
	if noRows(err) {
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
	entry.Abandoned = note
	entries.Checkpoints[name] = entry
	if text, err = storage.EncodeEntries(entries); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		UPDATE main.sync_barrier_history
		   SET entries = ?2
		 WHERE version = ?1`, version, text)
	return err
}
