package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const checkpointColumns = `partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms`

func scanCheckpoint(row interface{ Scan(...any) error }) (storage.CheckpointRow, error) {
	var c storage.CheckpointRow
	var updated int64
	err := row.Scan(&c.Partition, &c.Name, &c.Version, &c.State, &c.Watermark, &c.OwnerEpoch, &c.ObservedRows, &updated)
	c.UpdatedAt = time.UnixMilli(updated).UTC()
	return c, err
}

// ReadCheckpoints gives the checkpoint rows of a partition, or all rows for AllPartitions, by name and partition. It is one statement.
func (s *Store) ReadCheckpoints(ctx context.Context, partition string) (found []storage.CheckpointRow, err error) {
	what := fmt.Sprintf("read the checkpoints of partition %q", partition)
	err = s.inTx(ctx, what, false, func(ctx context.Context, tx *sql.Conn) error {
		found, err = collect(ctx, tx, scanCheckpoint, `
			SELECT `+checkpointColumns+`
			  FROM main.sync_backfill_checkpoints
			 WHERE partition = ?1
			    OR ?1 = '*'
			 ORDER BY name, partition`, partition)
		return err
	})
	return found, err
}

// collect reads all rows of a query.
func collect[T any](ctx context.Context, q querier, scan func(interface{ Scan(...any) error }) (T, error), text string, arguments ...any) (all []T, err error) {
	rows, err := q.QueryContext(ctx, text, arguments...)
	if err != nil {
		return nil, err
	}
	defer func() { err = firstError(err, rows.Close()) }()
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// ReadDefinition gives what a checkpoint's workers need to know, with its settings as they stand.
//
// Errors: CodeCheckpointNotDeclared; CodeCheckpointDefinitionMissing where another program declared it.
func (s *Store) ReadDefinition(ctx context.Context, name string) (definition storage.Definition, err error) {
	what := fmt.Sprintf("read the definition of checkpoint %q", name)
	err = s.inTx(ctx, what, false, func(ctx context.Context, tx *sql.Conn) error {
		definition, err = definitionIn(ctx, tx, name)
		return err
	})
	return definition, err
}

// errNoCatalog is the cause of CodeCheckpointNotDeclared in a file that Syncbarrier never prepared, or was removed from.
var errNoCatalog = errors.New("the file has no Syncbarrier catalog")

// explainNoCatalog turns what SQLite says of a missing table of ours into that answer.
func explainNoCatalog(ctx context.Context, q querier, name string, err error) error {
	if err == nil || primaryCode(err) != codeError {
		return err
	}
	if exists, failed := hasTable(ctx, q, "sync_backfill_definitions"); failed != nil || exists {
		return err
	}
	return &storage.Error{
		Code: storage.CodeCheckpointNotDeclared, Message: fmt.Sprintf("no checkpoint %q is declared", name), Err: errNoCatalog,
		Hint: "apply a schema version first",
	}
}

// definitionSQL finds a definition, and whether the name has rows, in one snapshot. ?1 is the name.
const definitionSQL = `
SELECT EXISTS (SELECT 1 FROM main.sync_backfill_checkpoints c WHERE c.name = ?1),
       d.version, d.hash, d.definition, d.settings
  FROM (SELECT 1) AS one
  LEFT JOIN main.sync_backfill_definitions d
    ON d.name = ?1`

// definitionIn reads a definition inside a transaction.
func definitionIn(ctx context.Context, q querier, name string) (storage.Definition, error) {
	var declared bool
	var version *int64
	var hash, text, settings *string
	err := q.QueryRowContext(ctx, definitionSQL, name).Scan(&declared, &version, &hash, &text, &settings)
	switch {
	case err != nil:
		return storage.Definition{}, explainNoCatalog(ctx, q, name, err)
	case version != nil:
		return storage.DecodeDefinition(name, *version, *hash, *text, *settings)
	case declared:
		return storage.Definition{}, storage.Refuse(storage.CodeCheckpointDefinitionMissing,
			"checkpoint %q has no definition: another program declared it, and it is that program's to fill and activate", name)
	default:
		return storage.Definition{}, notDeclared(name)
	}
}

func notDeclared(name string) error {
	return storage.Refuse(storage.CodeCheckpointNotDeclared, "no checkpoint %q is declared", name)
}

// WriteSettings changes the live settings of a checkpoint. Workers see them with their next batch.
//
// Errors: CodeInvalidSpec names the field; CodeCheckpointNotDeclared, CodeCheckpointDefinitionMissing.
func (s *Store) WriteSettings(ctx context.Context, name string, settings storage.Settings) error {
	if err := settings.Check(); err != nil {
		return err
	}
	text, err := storage.EncodeSettings(settings)
	if err != nil {
		return err
	}
	return s.inTx(ctx, fmt.Sprintf("change the settings of checkpoint %q", name), true, func(ctx context.Context, tx *sql.Conn) error {
		changed, err := affected(tx.ExecContext(ctx, `
			UPDATE main.sync_backfill_definitions
			   SET settings = ?2
			 WHERE name = ?1`, name, text))
		if err != nil || changed == 1 {
			return explainNoCatalog(ctx, tx, name, err)
		}
		_, err = definitionIn(ctx, tx, name) // says why there is none
		return err
	})
}

// affected gives the rows that a statement changed.
func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// AdvanceCheckpoint moves a claimed row forward, a compare-and-swap on owner epoch and claim token. false: the caller is not the owner, the
// row is activated, or the watermark would go down. CodeInvalidSpec for the owner of a checkpoint that SQL fills: its tail alone knows how
// far the log is applied.
func (s *Store) AdvanceCheckpoint(ctx context.Context, advance storage.Advance) (moved bool, err error) {
	what := fmt.Sprintf("advance checkpoint %q in partition %q", advance.Name, advance.Partition)
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		moved, err = s.advance(ctx, tx, advance)
		return err
	})
	return moved && err == nil, err
}

func (s *Store) advance(ctx context.Context, tx *sql.Conn, advance storage.Advance) (bool, error) {
	changed, err := affected(tx.ExecContext(ctx, `
		UPDATE main.sync_backfill_checkpoints AS c
		   SET watermark = ?5,
		       observed_rows = max(c.observed_rows, ?6),
		       updated_at_ms = ?7
		 WHERE c.partition = ?1
		   AND c.name = ?2
		   AND c.owner_epoch = ?3
		   AND c.state = 'backfilling'
		   AND c.watermark <= ?5
		   AND EXISTS (
		     SELECT 1
		       FROM main.sync_backfill_progress p
		      WHERE p.checkpoint = c.name
		        AND p.kind = 'claim'
		        AND p.partition = c.partition
		        AND p.claim_token = ?4
		        AND p.owner_epoch = c.owner_epoch)`,
		advance.Partition, advance.Name, advance.OwnerEpoch, advance.Token, advance.Watermark, advance.ObservedRows, nowMillis()))
	if err != nil || changed != 1 {
		return false, explainNoCatalog(ctx, tx, advance.Name, err)
	}
	definition, err := definitionIn(ctx, tx, advance.Name)
	if storage.CodeOf(err) == storage.CodeCheckpointDefinitionMissing {
		return true, nil // another program's, which keeps its own books
	}
	if err == nil && !definition.Checkpoint.Backfill.External() {
		err = storage.RefuseAdvance(advance)
	}
	return err == nil, err
}
