package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

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
	if err := recordAbandoned(ctx, tx, name, version, note, rows); err != nil {
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
func recordAbandoned(ctx context.Context, tx *sql.Conn, name string, version int64, note string, rows int) error {
	var text, hash string
	err := tx.QueryRowContext(ctx, `
		SELECT entries, coalesce((SELECT hash FROM main.sync_backfill_definitions WHERE name = ?2), '')
		  FROM main.sync_barrier_history
		 WHERE version = ?1`, version, name).Scan(&text, &hash)
	if noRows(err) {
		return nil // another program brought the database to that version
	}
	if err != nil {
		return err
	}
	entries, err := storage.DecodeEntries(version, text)
	if err != nil {
		return err
	}
	entry, recorded := entries.Checkpoints[name]
	if !recorded {
		entry = storage.HistoryCheckpoint{Hash: hash, Rows: rows} // declared after the barrier of its version
	}
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
