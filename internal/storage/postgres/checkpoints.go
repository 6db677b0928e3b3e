package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const checkpointColumns = `partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms`

func scanCheckpoint(row pgx.CollectableRow) (storage.CheckpointRow, error) {
	var c storage.CheckpointRow
	var updated int64
	err := row.Scan(&c.Partition, &c.Name, &c.Version, &c.State, &c.Watermark, &c.OwnerEpoch, &c.ObservedRows, &updated)
	c.UpdatedAt = time.UnixMilli(updated).UTC()
	return c, err
}

// ReadCheckpoints gives the checkpoint rows of a partition, or all rows for AllPartitions, by name and partition. It is one statement.
func (s *Store) ReadCheckpoints(ctx context.Context, partition string) (found []storage.CheckpointRow, err error) {
	collect := func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, scanCheckpoint)
		return err
	}
	what := fmt.Sprintf("read the checkpoints of partition %q", partition)
	err = s.readOnce(ctx, what, collect, s.sql(`
		SELECT `+checkpointColumns+`
		  FROM {schema}.sync_backfill_checkpoints
		 WHERE partition = $1::text
		    OR $1::text = '*'
		 ORDER BY name, partition`), partition)
	return found, s.explainMissing(ctx, err, what)
}

// ReadDefinition gives what a checkpoint's workers need to know, with its settings as they stand.
//
// Errors: CodeCheckpointNotDeclared; CodeCheckpointDefinitionMissing where another program declared it.
func (s *Store) ReadDefinition(ctx context.Context, name string) (definition storage.Definition, err error) {
	collect := func(rows pgx.Rows) (err error) {
		definition, err = scanDefinition(rows, name)
		return err
	}
	what := fmt.Sprintf("read the definition of checkpoint %q", name)
	err = s.readOnce(ctx, what, collect, s.sql(definitionSQL), name)
	return definition, s.explainMissing(ctx, err, what)
}

// definitionSQL finds a definition, and whether the name has rows, in one snapshot. $1 is the name.
const definitionSQL = `
SELECT EXISTS (SELECT FROM {schema}.sync_backfill_checkpoints c WHERE c.name = $1::text),
       d.version, d.hash, d.definition, d.settings
  FROM (SELECT) AS one
  LEFT JOIN {schema}.sync_backfill_definitions d
    ON d.name = $1::text`

func scanDefinition(rows pgx.Rows, name string) (storage.Definition, error) {
	var declared bool
	var version *int64
	var hash, text, settings *string
	if err := scanRow(&declared, &version, &hash, &text, &settings)(rows); err != nil {
		return storage.Definition{}, err
	}
	switch {
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

// definitionIn reads a definition inside a transaction.
func (s *Store) definitionIn(ctx context.Context, q querier, name string) (storage.Definition, error) {
	rows, err := q.Query(ctx, s.sql(definitionSQL), name)
	if err != nil {
		return storage.Definition{}, err
	}
	defer rows.Close()
	return scanDefinition(rows, name)
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
	what := fmt.Sprintf("change the settings of checkpoint %q", name)
	err = s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.sql(`
			UPDATE {schema}.sync_backfill_definitions
			   SET settings = $2::text
			 WHERE name = $1::text`), name, text)
		if err != nil || tag.RowsAffected() == 1 {
			return err
		}
		_, err = s.definitionIn(ctx, tx, name) // says why there is none
		return err
	})
	return s.explainMissing(ctx, err, what)
}

// AdvanceCheckpoint moves a claimed row forward, a compare-and-swap on owner epoch and claim token. false: the caller is not the owner, the
// row is activated, or the watermark would go down. CodeInvalidSpec for the owner of a checkpoint that SQL fills: its tail alone knows how
// far the log is applied.
func (s *Store) AdvanceCheckpoint(ctx context.Context, advance storage.Advance) (moved bool, err error) {
	what := fmt.Sprintf("advance checkpoint %q in partition %q", advance.Name, advance.Partition)
	err = s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		moved, err = s.advance(ctx, tx, advance)
		return err
	})
	return moved, s.explainMissing(ctx, err, what)
}

func (s *Store) advance(ctx context.Context, tx pgx.Tx, advance storage.Advance) (bool, error) {
	// A claim that commits while this waits for the row has raised the epoch, so the row no longer matches.
	tag, err := tx.Exec(ctx, s.sql(`
		UPDATE {schema}.sync_backfill_checkpoints c
		   SET watermark = $5::bigint,
		       observed_rows = greatest(c.observed_rows, $6::bigint),
		       updated_at_ms = `+nowMS+`
		 WHERE c.partition = $1::text
		   AND c.name = $2::text
		   AND c.owner_epoch = $3::bigint
		   AND c.state = 'backfilling'
		   AND c.watermark <= $5::bigint
		   AND EXISTS (
		     SELECT
		       FROM {schema}.sync_backfill_progress p
		      WHERE p.checkpoint = c.name
		        AND p.kind = 'claim'
		        AND p.partition = c.partition
		        AND p.claim_token = $4::text
		        AND p.owner_epoch = c.owner_epoch)`),
		advance.Partition, advance.Name, advance.OwnerEpoch, advance.Token, advance.Watermark, advance.ObservedRows)
	if err != nil || tag.RowsAffected() != 1 {
		return false, err
	}
	definition, err := s.definitionIn(ctx, tx, advance.Name)
	if storage.CodeOf(err) == storage.CodeCheckpointDefinitionMissing {
		return true, nil // another program's, which keeps its own books
	}
	if err == nil && !definition.Checkpoint.Backfill.External() {
		err = storage.RefuseAdvance(advance)
	}
	return err == nil, err
}
