package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	// pruneBehindBatches bounds what one batch of a tail prunes after it; a tail comes by again.
	pruneBehindBatches = 4
	// settleBatches bounds what the end of a checkpoint row prunes. What is left goes with the next one, or with Prune.
	settleBatches = 200
)

// openCapturedSQL gives the rows of checkpoints that still read the captured log: what their partition stands for, and up to which number they
// need nothing any more. One that is only declared needs nothing: its claim notes the position from which it reads on. Where all sources
// are captured, the watermark is such a number too, and that of a program which fills the rows itself is the only one. $1 tables.
const openCapturedSQL = `
  WITH readers AS MATERIALIZED (
    SELECT d.name,
           d.definition::json -> 'table' IS NULL
           OR d.definition::json #>> '{table,layout}' = 'Syncular'
           OR d.definition::json #>> '{table,partition,column}' <> '' AS by_partition,
           NOT EXISTS (
             SELECT
               FROM json_array_elements(d.definition::json #> '{checkpoint,sources}') AS source
              WHERE source ->> 'changes' <> 'Capture') AS all_captured
      FROM {schema}.sync_backfill_definitions d
     WHERE EXISTS (
       SELECT
         FROM json_array_elements(d.definition::json #> '{checkpoint,sources}') AS source
        WHERE source ->> 'changes' = 'Capture'
          AND source ->> 'table' = ANY ($1::text[]))
  )
  SELECT c.name, c.partition, c.schema_version AS version,
         CASE WHEN r.by_partition THEN c.partition ELSE '*' END AS bare,
         greatest(coalesce(k.position, 0), CASE WHEN r.all_captured THEN c.watermark ELSE 0 END) AS position
    FROM readers r
    JOIN {schema}.sync_backfill_checkpoints c
      ON c.name = r.name
    LEFT JOIN {schema}.sync_backfill_progress k
      ON k.checkpoint = c.name
     AND k.kind = 'position'
     AND k.partition = c.partition
     AND k.range_no = 1
   WHERE c.state = 'backfilling'`

// pruneBehind deletes the captured log that nobody needs any more after the position of a row has moved, and now and then that of all
// partitions: nobody comes by for those that no open row covers. So the log does not grow with the time that a backfill takes. It waits
// for nobody for long, and leaves what it does not get to the next time.
func (s *Store) pruneBehind(ctx context.Context, plan *backfillPlan, partition string) error {
	bare := plan.bareOf(partition)
	if s.backfills.pruneAll(plan.name(), time.Now()) {
		bare = storage.AllPartitions
	}
	err := s.pruneCaptured(ctx, plan.captureRules(), bare, pruneBehindBatches)
	if storage.ClassOf(err).Retryable() {
		return nil
	}
	return err
}

// pruneCaptured prunes the log of captured tables as far as no open checkpoint needs it, in so many small transactions at most.
func (s *Store) pruneCaptured(ctx context.Context, rules []captured, bare string, batches int) error {
	what := "prune the captured log of " + strings.Join(ruleTables(rules), ", ")
	for range batches {
		var deleted int64
		err := s.inTx(ctx, what, txOptions{lockTimeout: batchWait}, func(ctx context.Context, tx pgx.Tx) (err error) {
			deleted, err = s.pruneCapturedOnce(ctx, tx, rules, bare)
			return err
		})
		if err != nil || deleted < pruneBatch {
			return err
		}
	}
	return nil
}

func ruleTables(rules []captured) []string {
	tables := make([]string, len(rules))
	for i, rule := range rules {
		tables[i] = rule.table
	}
	return tables
}

// pruneCapturedOnce moves the horizons and deletes in one transaction: the horizon is what tells a reader that rows are missing, since
// numbers of a captured log have gaps by their nature. Nothing above the floor goes, whatever the horizon: in a restored copy that is of a
// time with other numbers.
func (s *Store) pruneCapturedOnce(ctx context.Context, tx pgx.Tx, rules []captured, bare string) (deleted int64, err error) {
	// Of a table without a partition column every checkpoint row reads all partitions.
	whole := bare == storage.AllPartitions || slices.ContainsFunc(rules, func(c captured) bool { return c.partition.column == nil })
	var floor int64
	err = tx.QueryRow(ctx, s.sql(`
		SELECT least(`+safeSQL+`, (SELECT min(o.position)
		                             FROM (`+openCapturedSQL+`) AS o
		                            WHERE $3::boolean OR o.partition IN ('*', 'default', $2::text) AND o.bare IN ('*', $2::text)))`), ruleTables(rules), bare, whole).Scan(&floor)
	if err != nil {
		return 0, fmt.Errorf("look who needs the captured log: %w", err)
	}
	for _, rule := range rules {
		if err := s.makeAnnounced(ctx, tx, rule, floor); err != nil {
			return 0, err
		}
	}
	due := s.dueSQL(rules, bare)
	_, err = tx.Exec(ctx, s.sql(`
		WITH due AS MATERIALIZED ({due}
		)
		UPDATE {schema}.sync_partitions p
		   SET horizon_seq = $1::bigint
		 WHERE p.partition IN (SELECT d.partition FROM due d WHERE d.horizon_seq < $1::bigint)
		   AND p.horizon_seq < $1::bigint
		   AND EXISTS (
		     SELECT
		       FROM {schema}.sync_commits k
		      WHERE k.partition = p.partition
		        AND k.commit_seq <= $1::bigint)`, "due", due), floor)
	if err != nil {
		return 0, fmt.Errorf("move the horizons of the captured log: %w", err)
	}
	err = tx.QueryRow(ctx, s.sql(`
		WITH due AS MATERIALIZED ({due}
		), doomed AS (
		  SELECT old.partition, old.commit_seq
		    FROM (SELECT DISTINCT d.partition, d.horizon_seq FROM due d) AS d
		   CROSS JOIN LATERAL (
		     SELECT k.partition, k.commit_seq
		       FROM {schema}.sync_commits k
		      WHERE k.partition = d.partition
		        AND k.commit_seq <= d.horizon_seq
		        AND k.commit_seq <= $2::bigint
		      ORDER BY k.commit_seq
		      LIMIT $1::bigint
		        FOR UPDATE SKIP LOCKED) AS old
		   LIMIT $1::bigint
		), changes AS (
		  DELETE FROM {schema}.sync_changes c
		   USING doomed d
		   WHERE c.partition = d.partition
		     AND c.commit_seq = d.commit_seq
		), commits AS (
		  DELETE FROM {schema}.sync_commits c
		   USING doomed d
		   WHERE c.partition = d.partition
		     AND c.commit_seq = d.commit_seq
		  RETURNING c.commit_seq
		)
		SELECT count(*) FROM commits`, "due", due), int64(pruneBatch), floor).Scan(&deleted)
	if err != nil {
		return 0, fmt.Errorf("delete from the captured log: %w", err)
	}
	return deleted, nil
}

// makeAnnounced makes the rows of partitions that writers have announced, and deletes the announcements. The floor was found before: whatever
// is deleted has been seen here, so no partition loses its announcement before it has a row. No writer makes one, so none is waited for.
func (s *Store) makeAnnounced(ctx context.Context, tx pgx.Tx, rule captured, floor int64) error {
	if rule.partition.column == nil {
		return nil
	}
	what := fmt.Sprintf("make the captured partitions of table %q", rule.table)
	return send(ctx, tx,
		step{what: what, arguments: []any{rule.prefix(), rule.table}, sql: s.sql(`
			INSERT INTO {schema}.sync_partitions(partition)
			SELECT DISTINCT a.row_id
			  FROM {schema}.sync_changes a
			 WHERE a.partition = $1::text
			   AND a.tbl = $2::text
			   AND a.op = 4
			   AND NOT EXISTS (SELECT FROM {schema}.sync_partitions p WHERE p.partition = a.row_id)
			 ORDER BY 1
			    ON CONFLICT (partition) DO NOTHING`)},
		step{what: what, arguments: []any{rule.prefix(), rule.table, floor}, sql: s.sql(`
			UPDATE {schema}.sync_partitions p
			   SET horizon_seq = $3::bigint
			 WHERE p.partition = $1::text
			   AND p.horizon_seq < $3::bigint
			   AND EXISTS (
			     SELECT
			       FROM {schema}.sync_changes a
			      WHERE a.partition = $1::text
			        AND a.tbl = $2::text
			        AND a.op = 4
			        AND a.commit_seq <= $3::bigint)`)},
		step{what: what, arguments: []any{rule.prefix(), rule.table, floor}, sql: s.sql(`
			DELETE FROM {schema}.sync_changes a
			 WHERE a.partition = $1::text
			   AND a.tbl = $2::text
			   AND a.op = 4
			   AND a.commit_seq <= $3::bigint`)})
}

// pruneTruncates deletes what is logged of TRUNCATE and no open checkpoint needs any more. It stands in partition '*', which has no horizon:
// only what is below the position of each goes.
func (s *Store) pruneTruncates(ctx context.Context, tx pgx.Tx) error {
	var floor int64
	err := tx.QueryRow(ctx, s.sql(`
		SELECT least(`+safeSQL+`, (SELECT min(k.position)
		                             FROM {schema}.sync_backfill_checkpoints c
		                             JOIN {schema}.sync_backfill_progress k
		                               ON k.checkpoint = c.name
		                              AND k.kind = 'position'
		                              AND k.partition = c.partition
		                              AND k.range_no = 1
		                            WHERE c.state = 'backfilling'))`)).Scan(&floor)
	if err != nil {
		return fmt.Errorf("look who needs the log of TRUNCATE: %w", err)
	}
	_, err = tx.Exec(ctx, s.sql(`
		WITH changes AS (
		  DELETE FROM {schema}.sync_changes
		   WHERE partition = '*'
		     AND commit_seq <= $1::bigint
		)
		DELETE FROM {schema}.sync_commits
		 WHERE partition = '*'
		   AND commit_seq <= $1::bigint`), floor)
	if err != nil {
		return fmt.Errorf("delete from the log of TRUNCATE: %w", err)
	}
	return nil
}

// settleCapture ends what is not needed any more after a checkpoint row was activated: capture that no open checkpoint needs is switched off
// and dropped, and its log is pruned. Each is a short transaction of its own that waits for nobody for long: the program would queue behind
// it. What it does not get is left to the next activation, barrier or prune. The TRUNCATE trigger of a source whose program writes the log
// itself goes in the same way.
func (s *Store) settleCapture(ctx context.Context, plan *backfillPlan, partition string) error {
	for _, table := range plan.loggedTables() {
		if _, err := s.endCapture(ctx, table); err != nil && !storage.ClassOf(err).Retryable() {
			return err
		}
	}
	for _, rule := range plan.captureRules() {
		bare, batches := plan.bareOf(partition), pruneBehindBatches
		unused, err := s.endCapture(ctx, rule.table)
		if unused {
			bare, batches = storage.AllPartitions, settleBatches
		}
		if err == nil {
			err = s.pruneCaptured(ctx, []captured{rule}, bare, batches)
		}
		if err == nil && unused {
			err = s.inTx(ctx, "prune the log of TRUNCATE", txOptions{lockTimeout: batchWait}, s.pruneTruncates)
		}
		if err != nil && !storage.ClassOf(err).Retryable() {
			return err
		}
	}
	return nil
}

// endCapture switches the capture of a table off if no open checkpoint needs it, and then drops it.
func (s *Store) endCapture(ctx context.Context, table string) (unused bool, err error) {
	options := txOptions{lockTimeout: batchWait}
	err = s.inTx(ctx, fmt.Sprintf("switch the capture of %q off", table), options, func(ctx context.Context, tx pgx.Tx) (err error) {
		unused, err = s.disableUnused(ctx, tx, table)
		return err
	})
	if err != nil || !unused {
		return false, err
	}
	return true, s.inTx(ctx, fmt.Sprintf("drop the capture of %q", table), options, func(ctx context.Context, tx pgx.Tx) error {
		_, err := s.dropCapture(ctx, tx, table)
		return err
	})
}

// disableUnused switches the capture of a table off, in a transaction that then holds the table SHARE ROW EXCLUSIVE. Whether somebody
// needs it is read under that lock: a declaration that is on its way takes the same one.
func (s *Store) disableUnused(ctx context.Context, tx pgx.Tx, table string) (unused bool, err error) {
	needed := func() (bool, error) {
		needs, err := s.readSourceNeeds(ctx, tx)
		return slices.ContainsFunc(needs, func(n *sourceNeed) bool { return n.table.Name == table && !n.unused }), err
	}
	if open, err := needed(); err != nil || open {
		return false, err
	}
	if _, err := s.lockSource(ctx, tx, table, shareRowExclusive); err != nil {
		return false, err
	}
	if open, err := needed(); err != nil || open {
		return false, err
	}
	return true, s.disableCapture(ctx, tx, table)
}

// checkCapturedPrune refuses to prune what an open checkpoint still needs of the captured log.
func (s *Store) checkCapturedPrune(ctx context.Context, tx pgx.Tx, partition string, seq int64) error {
	needs, err := s.readSourceNeeds(ctx, tx)
	if err != nil {
		return err
	}
	for _, need := range needs {
		rule := captureRule(need.table)
		if !need.capture || !strings.HasPrefix(partition, rule.prefix()) {
			continue
		}
		var name, row string
		var version, position int64
		err := tx.QueryRow(ctx, s.sql(`
			SELECT o.name, o.partition, o.version, o.position
			  FROM (`+openCapturedSQL+`) AS o
			 WHERE o.position < $2::bigint
			   AND {of the table}
			 ORDER BY o.position, o.name
			 LIMIT 1`, "of the table", rule.partitionsSQL("$3::text", "o.bare")), []string{rule.table}, seq, partition).Scan(&name, &row, &version, &position)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			return fmt.Errorf("look who needs the captured log: %w", err)
		default:
			return refusePrune(partition, seq, name, version, row, position)
		}
	}
	return nil
}

// settleUnused ends the capture of sources that no open checkpoint reads and that nobody has ended, and prunes what is left of their log:
// whoever activated the last row was killed right after, or did not get the table, or an old transaction kept the log. Without it triggers
// would go on writing a log that nobody reads. It waits for nobody for long; what it does not get is left to the next time.
func (s *Store) settleUnused(ctx context.Context) error {
	var rules []captured
	const what = "look for capture that nobody needs"
	err := s.inTx(ctx, what, txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		needs, err := s.readSourceNeeds(ctx, tx)
		if err != nil {
			return err
		}
		sources, err := s.readSources(ctx, tx, tablesOfNeeds(needs))
		if err != nil {
			return err
		}
		rules = s.forgottenCaptures(sources, needs)
		for _, need := range needs {
			source, rule := sources[need.table.Name], captureRule(need.table)
			if !need.unused || source == nil {
				continue
			}
			left := len(s.captureRemoval(source, false)) > 0
			if !left && need.fenced {
				if left, err = s.hasCapturedLog(ctx, tx, rule); err != nil {
					return err
				}
			}
			if left {
				rules = append(rules, rule)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, rule := range rules {
		_, err := s.endCapture(ctx, rule.table)
		if err == nil {
			err = s.pruneCaptured(ctx, []captured{rule}, storage.AllPartitions, settleBatches)
		}
		if err != nil && !storage.ClassOf(err).Retryable() {
			return err
		}
	}
	return nil
}

// forgottenCaptures are captures that no definition speaks of any more: their checkpoint was abandoned. What their keys look like stands
// in the comment on their function.
func (s *Store) forgottenCaptures(sources map[string]*foundSource, needs []*sourceNeed) []captured {
	var rules []captured
	for _, source := range sortedSources(sources) {
		named := slices.ContainsFunc(needs, func(need *sourceNeed) bool { return need.table.Name == source.table })
		if named || len(s.captureRemoval(source, false)) == 0 {
			continue
		}
		rule := captured{table: source.table}
		if source.function != nil {
			rule.partition.slices = source.function.description.Slices
			if column := source.function.description.Column; column != "" {
				rule.partition.column = &capturedColumn{name: column}
			}
		}
		rules = append(rules, rule)
	}
	return rules
}

func (s *Store) hasCapturedLog(ctx context.Context, q querier, rule captured) (exists bool, err error) {
	err = q.QueryRow(ctx, s.sql(`
		SELECT EXISTS (
		  SELECT
		    FROM {schema}.sync_partitions p
		   CROSS JOIN LATERAL (
		     SELECT
		       FROM {schema}.sync_commits k
		      WHERE k.partition = p.partition
		      LIMIT 1) AS kept
		   WHERE starts_with(p.partition, $1::text))`), rule.prefix()).Scan(&exists)
	if err != nil {
		return false, fmt.Errorf("look for the captured log of table %q: %w", rule.table, err)
	}
	return exists, nil
}
