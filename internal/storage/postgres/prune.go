package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// pruneBatch is how many commits one transaction of a prune deletes.
const pruneBatch = 5000

// Prune moves the horizon of a partition to seq, at most to the end of its log, and then deletes the log at or below the horizon now in
// force, which it returns. The horizon is committed first: from then on nobody takes the absence of a commit below it for an answer.
// The rows follow in small transactions that hold nothing a writer waits for; if one fails, the next prune deletes them.
//
// The log of a captured partition, whose key begins with "capture:", goes at most up to the transaction below which none is open: what an
// older one captured may become visible later.
//
// Errors: CodeInvalidSpec; CodePruneRefused names the open checkpoint that still needs a part of the log, unless force.
func (s *Store) Prune(ctx context.Context, partition string, seq int64, force bool) (int64, error) {
	if !isCaptured(partition) {
		if err := storage.CheckPartition(partition); err != nil {
			return 0, err
		}
	}
	if seq < 0 {
		return 0, storage.Refuse(storage.CodeInvalidSpec, "prune partition %q: sequence number %d is below 0", partition, seq)
	}
	horizon, err := s.moveHorizon(ctx, partition, seq, force)
	if err != nil {
		return 0, s.explainMissing(ctx, err, fmt.Sprintf("prune partition %q", partition))
	}
	for {
		deleted, err := s.pruneOnce(ctx, partition, horizon)
		if err != nil {
			return 0, err
		}
		if deleted == 0 {
			return horizon, s.pruneOrphans(ctx, partition, horizon)
		}
	}
}

func isCaptured(partition string) bool { return strings.HasPrefix(partition, storage.CapturePrefix) }

// moveHorizon gives the number up to which the log may be deleted now.
func (s *Store) moveHorizon(ctx context.Context, partition string, seq int64, force bool) (horizon int64, err error) {
	what := fmt.Sprintf("move the horizon of partition %q", partition)
	err = s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		var last int64
		// The row lock lets two pruners decide one after the other; the second sees the horizon of the first.
		err := tx.QueryRow(ctx, s.sql(`
			SELECT CASE WHEN starts_with(partition, 'capture:') THEN `+safeSQL+` ELSE max_commit_seq END, horizon_seq
			  FROM {schema}.sync_partitions
			 WHERE partition = $1::text
			   FOR NO KEY UPDATE`), partition).Scan(&last, &horizon)
		if errors.Is(err, pgx.ErrNoRows) {
			if isCaptured(partition) {
				return storage.CheckPartition(partition) // which refuses what is reserved
			}
			return nil // no log, nothing to prune
		}
		if err != nil {
			return err
		}
		wanted := min(seq, last)
		ofAnotherTime := isCaptured(partition) && horizon > last // a restored copy: it tells no reader that anything is missing
		if wanted <= horizon && !ofAnotherTime {
			return nil
		}
		if !force || ofAnotherTime {
			if err := s.checkPrune(ctx, tx, partition, wanted); err != nil {
				return err
			}
		}
		if ofAnotherTime {
			horizon = wanted
			return nil
		}
		return tx.QueryRow(ctx, s.sql(`
			UPDATE {schema}.sync_partitions
			   SET horizon_seq = greatest(horizon_seq, $2::bigint)
			 WHERE partition = $1::text
			RETURNING horizon_seq`), partition, wanted).Scan(&horizon)
	})
	return horizon, err
}

// checkPrune refuses to prune what an open checkpoint still needs. A declared one needs nothing yet: its claim notes the position from
// which it reads on. A claimed row '*' has its position per partition, and needs all of a partition that has none.
func (s *Store) checkPrune(ctx context.Context, tx pgx.Tx, partition string, seq int64) error {
	if isCaptured(partition) {
		return s.checkCapturedPrune(ctx, tx, partition, seq)
	}
	var name, row string
	var version, needs int64
	err := tx.QueryRow(ctx, s.sql(`
		WITH open AS (
		  SELECT c.name, c.partition, c.schema_version,
		         CASE WHEN c.partition = '*' AND d.name IS NOT NULL
		              THEN coalesce(p.position, 0)
		              ELSE c.watermark
		          END AS position
		    FROM {schema}.sync_backfill_checkpoints c
		    LEFT JOIN {schema}.sync_backfill_definitions d
		      ON d.name = c.name
		    LEFT JOIN {schema}.sync_backfill_progress p
		      ON p.checkpoint = c.name
		     AND p.kind = 'position'
		     AND p.partition = $1::text
		     AND p.range_no = 0
		   WHERE c.partition IN ($1::text, '*')
		     AND c.state = 'backfilling'
		     AND (d.name IS NULL OR EXISTS ( -- the log of captured sources is another one
		       SELECT
		         FROM json_array_elements(d.definition::json #> '{checkpoint,sources}') AS source
		        WHERE source ->> 'changes' <> 'Capture'))
		)
		SELECT name, partition, schema_version, position
		  FROM open
		 WHERE position < $2::bigint
		 ORDER BY position, name
		 LIMIT 1`), partition, seq).Scan(&name, &row, &version, &needs)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return refusePrune(partition, seq, name, version, row, needs)
}

func refusePrune(partition string, seq int64, name string, version int64, row string, needs int64) error {
	return storage.Refuse(storage.CodePruneRefused,
		"prune partition %q up to %d: checkpoint %q of version %d (row %q) has applied its log up to %d only", partition, seq, name, version, row, needs).
		WithHint("prune up to %d, wait until it is activated, or force it and let its pass start again", needs)
}

// pruneOnce deletes some of the log at or below the horizon and says how many commits that were. Commits that another pruner is
// deleting are passed over, so that two of them never wait for each other.
func (s *Store) pruneOnce(ctx context.Context, partition string, horizon int64) (deleted int64, err error) {
	what := fmt.Sprintf("prune the log of partition %q up to %d", partition, horizon)
	err = s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql(`
			WITH doomed AS (
			  SELECT commit_seq
			    FROM {schema}.sync_commits
			   WHERE partition = $1::text
			     AND commit_seq <= $2::bigint
			   ORDER BY commit_seq
			   LIMIT $3::bigint
			     FOR UPDATE SKIP LOCKED
			),
			changes AS (
			  DELETE FROM {schema}.sync_changes c
			   USING doomed d
			   WHERE c.partition = $1::text
			     AND c.commit_seq = d.commit_seq
			     AND c.op <> 4
			),
			commits AS (
			  DELETE FROM {schema}.sync_commits c
			   USING doomed d
			   WHERE c.partition = $1::text
			     AND c.commit_seq = d.commit_seq
			  RETURNING c.commit_seq
			)
			SELECT count(*) FROM commits`), partition, horizon, int64(pruneBatch)).Scan(&deleted)
	})
	return deleted, err
}

// pruneOrphans deletes changes whose commits somebody else has deleted.
func (s *Store) pruneOrphans(ctx context.Context, partition string, horizon int64) error {
	what := fmt.Sprintf("prune changes without commits of partition %q up to %d", partition, horizon)
	return s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql(`
			DELETE FROM {schema}.sync_changes c
			 WHERE c.partition = $1::text
			   AND c.commit_seq <= $2::bigint
			   AND c.op <> 4 -- announces a partition, and has no commit: without it nobody would read what is logged there
			   AND NOT EXISTS (
			     SELECT FROM {schema}.sync_commits k
			      WHERE k.partition = c.partition
			        AND k.commit_seq = c.commit_seq)`), partition, horizon)
		return err
	})
}
