package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// MaxCommitSeq gives the last sequence number of a partition, 0 if it has none.
func (s *Store) MaxCommitSeq(ctx context.Context, partition string) (int64, error) {
	if err := storage.CheckPartition(partition); err != nil {
		return 0, err
	}
	var seq int64
	err := s.readOnce(ctx, fmt.Sprintf("read the log position of partition %q", partition), scanRow(&seq), s.sql(`
		SELECT coalesce((SELECT max_commit_seq FROM {schema}.sync_partitions WHERE partition = $1::text), 0)`), partition)
	return seq, err
}

// SourceCoverageSeq gives the newest commit of a partition that changed one of the tables, 0 if none. Each table is one probe of the
// index (partition, tbl, commit_seq), however long the log is. Of captured tables it is the newest transaction, and the partition is what
// users write. CodeInvalidSpec without tables.
func (s *Store) SourceCoverageSeq(ctx context.Context, partition string, tables []string) (int64, error) {
	if partition == storage.AllPartitions {
		return s.capturedSeq(ctx, partition, tables)
	}
	if err := checkCoverageQuestion(partition, tables, 0); err != nil {
		return 0, err
	}
	var seq, captured int64
	err := s.readOnce(ctx, fmt.Sprintf("read the newest source change of partition %q", partition), scanRow(&seq, &captured), s.sql(`
		SELECT coalesce(max(newest.commit_seq), 0), `+countCapturedSQL+`
		  FROM unnest($2::text[]) AS source(tbl)
		 CROSS JOIN LATERAL (
		   SELECT c.partition, c.tbl, c.commit_seq
		     FROM {schema}.sync_changes c
		    WHERE (c.partition, c.tbl, c.commit_seq) <= ($1::text, source.tbl, 9223372036854775807)
		    ORDER BY c.partition DESC, c.tbl DESC, c.commit_seq DESC
		    LIMIT 1
		 ) AS newest
		 WHERE newest.partition = $1::text
		   AND newest.tbl = source.tbl`), partition, tables)
	if err == nil && captured > 0 {
		return s.capturedSeq(ctx, partition, tables)
	}
	return seq, err
}

// countCapturedSQL counts the tables asked for whose log triggers write for an open checkpoint. $2 tables.
const countCapturedSQL = `(
         SELECT count(*)
           FROM unnest($2::text[]) AS asked(tbl)
          WHERE EXISTS (
            SELECT
              FROM {schema}.sync_backfill_definitions d
             CROSS JOIN LATERAL json_array_elements(d.definition::json #> '{checkpoint,sources}') AS named
             WHERE named ->> 'table' = asked.tbl
               AND named ->> 'changes' = 'Capture'
               AND EXISTS (
                 SELECT
                   FROM {schema}.sync_backfill_checkpoints c
                  WHERE c.name = d.name
                    AND c.schema_version = d.version
                    AND c.state <> 'activated')))`

// coverageSQL answers in one statement, so that a prune cannot come between horizon and log. The log of a partition is dense: it is
// whole above a number exactly if it has as many commits above it as numbers were given out. A change above the number is looked for as
// the first entry of the index (partition, tbl, commit_seq) from there on: a plain test for existence would be planned as a walk over
// the log where a table is rare in it. $1 partition, $2 tables, $3 the number above which changes are asked for, $4 the number
// above which the log has to be whole.
const coverageSQL = `
SELECT coalesce(p.max_commit_seq, 0),
       coalesce(p.horizon_seq, 0),
       (SELECT count(*)
          FROM {schema}.sync_commits c
         WHERE c.partition = $1::text
           AND c.commit_seq > greatest($4::bigint, coalesce(p.horizon_seq, 0))),
       EXISTS (
         SELECT
           FROM unnest($2::text[]) AS source(tbl)
          CROSS JOIN LATERAL (
            SELECT c.partition, c.tbl
              FROM {schema}.sync_changes c
             WHERE (c.partition, c.tbl, c.commit_seq) > ($1::text, source.tbl, $3::bigint)
             ORDER BY c.partition, c.tbl, c.commit_seq
             LIMIT 1
          ) AS following
          WHERE following.partition = $1::text
            AND following.tbl = source.tbl)
  FROM (SELECT) AS one
  LEFT JOIN {schema}.sync_partitions p
    ON p.partition = $1::text`

// coverageFacts is the row of coverageSQL.
type coverageFacts struct {
	last, horizon, kept int64
	hit                 bool
}

// judge says what the facts mean for changes above seq, in a log that has to be whole above whole. That the log cannot answer weighs more
// than a change it shows: whoever tails on from seq would pass over what is missing.
func (f coverageFacts) judge(seq, whole int64) storage.Coverage {
	whole = max(whole, f.horizon)
	switch missing := f.last - whole - f.kept; {
	case f.horizon > seq:
		return unverifiable("commits up to %d are pruned, and changes above %d are asked for", f.horizon, seq)
	case f.last < seq:
		return unverifiable("the log ends at %d, before %d", f.last, seq)
	case missing > 0:
		return unverifiable("%d commits between %d and %d are missing", missing, whole+1, f.last)
	case missing < 0:
		return unverifiable("%d commits are above the last one given out, %d", -missing, f.last)
	case f.hit:
		return storage.Coverage{Verdict: storage.Changed}
	default:
		return storage.Coverage{Verdict: storage.Clean}
	}
}

func unverifiable(format string, args ...any) storage.Coverage {
	return storage.Coverage{Verdict: storage.Unverifiable, Reason: fmt.Sprintf(format, args...)}
}

// HasSourceChangesAbove says in one statement whether the log shows changes of the tables above seq, or cannot answer: because they may
// have been pruned, because the log ends before seq, or because commits are missing from it. Of captured tables seq is a transaction up
// to which all had ended when the log was read, and the partition is what users write; their log never shows what is in flight.
// CodeInvalidSpec.
func (s *Store) HasSourceChangesAbove(ctx context.Context, partition string, tables []string, seq int64) (storage.Coverage, error) {
	if partition == storage.AllPartitions {
		return s.capturedChangesAbove(ctx, partition, tables, seq)
	}
	if err := checkCoverageQuestion(partition, tables, seq); err != nil {
		return storage.Coverage{}, err
	}
	var facts coverageFacts
	var captured int64
	err := s.readOnce(ctx, fmt.Sprintf("look for source changes of partition %q above %d", partition, seq),
		scanRow(&facts.last, &facts.horizon, &facts.kept, &facts.hit, &captured),
		s.sql("SELECT *, "+countCapturedSQL+" FROM ("+coverageSQL+"\n) AS coverage"), partition, tables, seq, seq)
	switch {
	case err != nil:
		return storage.Coverage{}, err
	case captured > 0:
		return s.capturedChangesAbove(ctx, partition, tables, seq)
	}
	return facts.judge(seq, seq), nil
}

// coverageIn asks the same inside a transaction, with a log that has to be whole above whole.
func (s *Store) coverageIn(ctx context.Context, q querier, partition string, tables []string, seq, whole int64) (storage.Coverage, error) {
	var facts coverageFacts
	err := q.QueryRow(ctx, s.sql(coverageSQL), partition, tables, seq, whole).Scan(&facts.last, &facts.horizon, &facts.kept, &facts.hit)
	if err != nil {
		return storage.Coverage{}, translate(err, fmt.Sprintf("look for source changes of partition %q above %d", partition, seq))
	}
	return facts.judge(seq, whole), nil
}

// capturedSeq is SourceCoverageSeq for captured tables.
func (s *Store) capturedSeq(ctx context.Context, partition string, tables []string) (seq int64, err error) {
	what := fmt.Sprintf("read the newest captured change of partition %q", partition)
	err = s.askCaptured(ctx, what, tables, func(ctx context.Context, tx pgx.Tx, rules []captured) (err error) {
		seq, err = s.newestCaptured(ctx, tx, rules, partition)
		return err
	})
	return seq, err
}

// capturedChangesAbove is HasSourceChangesAbove for captured tables.
func (s *Store) capturedChangesAbove(ctx context.Context, partition string, tables []string, seq int64) (coverage storage.Coverage, err error) {
	what := fmt.Sprintf("look for captured changes of partition %q above %d", partition, seq)
	err = s.askCaptured(ctx, what, tables, func(ctx context.Context, tx pgx.Tx, rules []captured) (err error) {
		coverage, err = s.capturedCoverage(ctx, tx, rules, partition, seq, seq)
		return err
	})
	return coverage, err
}

// askCaptured asks the captured log in one snapshot. CodeInvalidSpec if it is not the log of all these tables.
func (s *Store) askCaptured(ctx context.Context, what string, tables []string, ask func(ctx context.Context, tx pgx.Tx, rules []captured) error) error {
	return s.inTx(ctx, what, txOptions{iso: pgx.RepeatableRead, readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		rules, err := s.capturedRules(ctx, tx, tables)
		if err != nil {
			return err
		}
		return ask(ctx, tx, rules)
	})
}

func checkCoverageQuestion(partition string, tables []string, seq int64) error {
	switch {
	case len(tables) == 0:
		return storage.Refuse(storage.CodeInvalidSpec, "no tables are named, so an answer would prove nothing")
	case seq < 0:
		return storage.Refuse(storage.CodeInvalidSpec, "sequence number %d is below 0", seq)
	}
	return storage.CheckPartition(partition)
}

// RotateLogEpoch gives a partition, or every partition for AllPartitions, a new random log epoch.
func (s *Store) RotateLogEpoch(ctx context.Context, partition string) error {
	if partition != storage.AllPartitions {
		if err := storage.CheckPartition(partition); err != nil {
			return err
		}
	}
	return s.inTx(ctx, fmt.Sprintf("rotate the log epoch of partition %q", partition), txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		// A partition of the log that the registry does not know has an epoch to lose as well: that it had none.
		_, err := tx.Exec(ctx, s.sql(`
			INSERT INTO {schema}.sync_partition_registry(partition, log_epoch, last_authenticated_at_ms)
			SELECT known.partition, '', 0
			  FROM (SELECT partition FROM {schema}.sync_partitions
			         WHERE $1::text = '*'
			        UNION
			        SELECT $1::text WHERE $1::text <> '*') AS known
			ON CONFLICT (partition) DO NOTHING`), partition)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, s.sql(`
			UPDATE {schema}.sync_partition_registry
			   SET log_epoch = `+randomEpoch+`
			 WHERE partition = $1::text
			    OR $1::text = '*'`), partition)
		return err
	})
}

// randomEpoch is drawn anew for each row.
const randomEpoch = `replace(gen_random_uuid()::text, '-', '')`
