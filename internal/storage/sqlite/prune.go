package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// pruneBatch is how many commits one transaction of a prune deletes.
const pruneBatch = 1000

// Prune moves the horizon of a partition to seq, at most to the end of its log, and then deletes the log at or below the horizon now in
// force, which it returns. The horizon is committed first: from then on nobody takes the absence of a commit below it for an answer.
// The rows follow in small transactions, so that no writer waits long; if one fails, the next prune deletes them.
//
// Errors: CodeInvalidSpec; CodePruneRefused names the open checkpoint that still needs a part of the log, unless force.
func (s *Store) Prune(ctx context.Context, partition string, seq int64, force bool) (int64, error) {
	if err := storage.CheckPartition(partition); err != nil {
		return 0, err
	}
	if seq < 0 {
		return 0, storage.Refuse(storage.CodeInvalidSpec, "prune partition %q: sequence number %d is below 0", partition, seq)
	}
	horizon, err := s.moveHorizon(ctx, partition, seq, force)
	if err != nil {
		return 0, err
	}
	for {
		deleted, err := s.pruneOnce(ctx, partition, horizon)
		if err != nil {
			return 0, err
		}
		if deleted == 0 {
			return horizon, nil
		}
	}
}

func (s *Store) moveHorizon(ctx context.Context, partition string, seq int64, force bool) (horizon int64, err error) {
	what := fmt.Sprintf("move the horizon of partition %q", partition)
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		var last int64
		err := tx.QueryRowContext(ctx, `
			SELECT max_commit_seq, horizon_seq
			  FROM main.sync_partitions
			 WHERE partition = ?1`, partition).Scan(&last, &horizon)
		if noRows(err) {
			return nil // no log, nothing to prune
		}
		if err != nil {
			return err
		}
		wanted := min(seq, last)
		if wanted <= horizon {
			return nil
		}
		if !force {
			if err := s.checkPrune(ctx, tx, partition, wanted); err != nil {
				return err
			}
		}
		return tx.QueryRowContext(ctx, `
			UPDATE main.sync_partitions
			   SET horizon_seq = max(horizon_seq, ?2)
			 WHERE partition = ?1
			RETURNING horizon_seq`, partition, wanted).Scan(&horizon)
	})
	return horizon, err
}

// checkPrune refuses to prune what an open checkpoint still needs. A declared one needs nothing yet: its claim notes the position from
// which it reads on. A claimed row '*' has its position per partition, and needs all of a partition that has none.
func (s *Store) checkPrune(ctx context.Context, tx *sql.Conn, partition string, seq int64) error {
	var name, row string
	var version, needs int64
	err := tx.QueryRowContext(ctx, `
		WITH open AS (
		  SELECT c.name, c.partition, c.schema_version,
		         CASE WHEN c.partition = '*' AND d.name IS NOT NULL
		              THEN coalesce(p.position, 0)
		              ELSE c.watermark
		          END AS position
		    FROM main.sync_backfill_checkpoints c
		    LEFT JOIN main.sync_backfill_definitions d
		      ON d.name = c.name
		    LEFT JOIN main.sync_backfill_progress p
		      ON p.checkpoint = c.name
		     AND p.kind = 'position'
		     AND p.partition = ?1
		   WHERE c.partition IN (?1, '*')
		     AND c.state = 'backfilling'
		)
		SELECT name, partition, schema_version, position
		  FROM open
		 WHERE position < ?2
		 ORDER BY position, name
		 LIMIT 1`, partition, seq).Scan(&name, &row, &version, &needs)
	switch {
	case noRows(err):
		return nil
	case err != nil:
		return err
	}
	return storage.Refuse(storage.CodePruneRefused,
		"prune partition %q up to %d: checkpoint %q of version %d (row %q) has applied its log up to %d only", partition, seq, name, version, row, needs).
		WithHint("prune up to %d, wait until it is activated, or force it and let its pass start again", needs)
}

// pruneOnce deletes some of the log at or below the horizon and says how many commits that were.
func (s *Store) pruneOnce(ctx context.Context, partition string, horizon int64) (deleted int64, err error) {
	what := fmt.Sprintf("prune the log of partition %q up to %d", partition, horizon)
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		var upTo sql.NullInt64
		err := tx.QueryRowContext(ctx, `
			SELECT count(*), max(commit_seq)
			  FROM (SELECT commit_seq
			          FROM main.sync_commits
			         WHERE partition = ?1
			           AND commit_seq <= ?2
			         ORDER BY commit_seq
			         LIMIT ?3)`, partition, horizon, pruneBatch).Scan(&deleted, &upTo)
		if err != nil || deleted == 0 {
			return err
		}
		for _, table := range []string{"sync_changes", "sync_commits"} {
			_, err := tx.ExecContext(ctx, `
				DELETE FROM main.`+table+`
				 WHERE partition = ?1
				   AND commit_seq <= ?2`, partition, upTo.Int64)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return deleted, err
}
