package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// MaxCommitSeq gives the last sequence number of a partition, 0 if it has none.
func (s *Store) MaxCommitSeq(ctx context.Context, partition string) (int64, error) {
	if err := storage.CheckPartition(partition); err != nil {
		return 0, err
	}
	var seq int64
	err := s.readOnce(ctx, fmt.Sprintf("read the log position of partition %q", partition), []any{&seq}, `
		SELECT coalesce((SELECT max_commit_seq FROM main.sync_partitions WHERE partition = ?1), 0)`, partition)
	return seq, err
}

// SourceCoverageSeq gives the newest commit of a partition that changed one of the tables, 0 if none. Each table is one probe of the
// index (partition, tbl, commit_seq), however long the log is. CodeInvalidSpec without tables.
func (s *Store) SourceCoverageSeq(ctx context.Context, partition string, tables []string) (int64, error) {
	if err := checkCoverageQuestion(partition, tables, 0); err != nil {
		return 0, err
	}
	var seq int64
	err := s.readOnce(ctx, fmt.Sprintf("read the newest source change of partition %q", partition), []any{&seq}, `
		WITH RECURSIVE `+loggedSources+`
		SELECT coalesce(max(
		         (SELECT c.commit_seq
		            FROM main.sync_changes c
		           WHERE c.partition = ?1
		             AND c.tbl = source.tbl
		           ORDER BY c.commit_seq DESC
		           LIMIT 1)), 0)
		  FROM source`, partition, jsonList(tables))
	return seq, err
}

// loggedSources gives, as the relation source(tbl), the names under which the log of a partition has changes of some tables. In the names of
// tables SQLite does not tell the case of ASCII letters apart, so a program may log as todos what is declared as Todos; compared
// byte for byte its changes would be missed. The names in the log are stepped through by the index (partition, tbl, commit_seq),
// however long it is. ?1 partition, ?2 tables as JSON.
const loggedSources = `
  logged(tbl) AS (
    SELECT (SELECT c.tbl
              FROM main.sync_changes c
             WHERE c.partition = ?1
             ORDER BY c.tbl
             LIMIT 1)
    UNION ALL
    SELECT (SELECT c.tbl
              FROM main.sync_changes c
             WHERE c.partition = ?1
               AND c.tbl > logged.tbl
             ORDER BY c.tbl
             LIMIT 1)
      FROM logged
     WHERE logged.tbl IS NOT NULL
  ),
  source(tbl) AS (
    SELECT DISTINCT logged.tbl
      FROM logged
      JOIN json_each(?2) AS named
        ON logged.tbl = named.value COLLATE NOCASE
  )`

// readLoggedSources gives those names.
func readLoggedSources(ctx context.Context, q querier, partition string, tables []string) ([]string, error) {
	names, err := collect(ctx, q, func(row interface{ Scan(...any) error }) (name string, err error) {
		return name, row.Scan(&name)
	}, "WITH RECURSIVE "+loggedSources+" SELECT tbl FROM source ORDER BY tbl", partition, jsonList(tables))
	return names, translate(err, fmt.Sprintf("read the names of tables in the log of partition %q", partition))
}

// coverageSQL answers in one statement, so that a prune cannot come between horizon and log. The log of a partition is dense: it is
// whole above a number exactly if it has as many commits above it as numbers were given out. ?1 partition, ?2 tables as JSON, ?3 the
// number above which changes are asked for, ?4 the number above which the log has to be whole.
const coverageSQL = `
WITH RECURSIVE ` + loggedSources + `
SELECT coalesce(p.max_commit_seq, 0),
       coalesce(p.horizon_seq, 0),
       (SELECT count(*)
          FROM main.sync_commits c
         WHERE c.partition = ?1
           AND c.commit_seq > max(?4, coalesce(p.horizon_seq, 0))),
       EXISTS (
         SELECT 1
           FROM source
          CROSS JOIN main.sync_changes c
          WHERE c.partition = ?1
            AND c.tbl = source.tbl
            AND c.commit_seq > ?3)
  FROM (SELECT 1) AS one
  LEFT JOIN main.sync_partitions p
    ON p.partition = ?1`

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
// have been pruned, because the log ends before seq, or because commits are missing from it. CodeInvalidSpec.
func (s *Store) HasSourceChangesAbove(ctx context.Context, partition string, tables []string, seq int64) (storage.Coverage, error) {
	if err := checkCoverageQuestion(partition, tables, seq); err != nil {
		return storage.Coverage{}, err
	}
	var facts coverageFacts
	err := s.readOnce(ctx, fmt.Sprintf("look for source changes of partition %q above %d", partition, seq),
		[]any{&facts.last, &facts.horizon, &facts.kept, &facts.hit}, coverageSQL, partition, jsonList(tables), seq, seq)
	if err != nil {
		return storage.Coverage{}, err
	}
	return facts.judge(seq, seq), nil
}

// coverageIn asks the same inside a transaction, with a log that has to be whole above whole.
func coverageIn(ctx context.Context, q querier, partition string, tables []string, seq, whole int64) (storage.Coverage, error) {
	var facts coverageFacts
	err := q.QueryRowContext(ctx, coverageSQL, partition, jsonList(tables), seq, whole).Scan(&facts.last, &facts.horizon, &facts.kept, &facts.hit)
	if err != nil {
		return storage.Coverage{}, translate(err, fmt.Sprintf("look for source changes of partition %q above %d", partition, seq))
	}
	return facts.judge(seq, whole), nil
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
	return s.inTx(ctx, fmt.Sprintf("rotate the log epoch of partition %q", partition), true, func(ctx context.Context, tx *sql.Conn) error {
		// A partition of the log that the registry does not know has an epoch to lose as well: that it had none.
		_, err := tx.ExecContext(ctx, `
			INSERT INTO main.sync_partition_registry(partition, log_epoch, last_authenticated_at_ms)
			SELECT known.partition, '', 0
			  FROM (SELECT partition FROM main.sync_partitions
			         WHERE ?1 = '*'
			        UNION
			        SELECT ?1 WHERE ?1 <> '*') AS known
			 WHERE true
			ON CONFLICT (partition) DO NOTHING`, partition)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `
			UPDATE main.sync_partition_registry
			   SET log_epoch = `+randomEpoch+`
			 WHERE partition = ?1
			    OR ?1 = '*'`, partition)
		return err
	})
}

// randomEpoch is drawn anew for each row.
const randomEpoch = `lower(hex(randomblob(16)))`

// readOnce runs one reading statement that returns one row: one snapshot, no transaction block.
func (s *Store) readOnce(ctx context.Context, what string, targets []any, text string, arguments ...any) error {
	conn, err := s.acquire(ctx, what)
	if err != nil {
		return err
	}
	defer release(conn, false)
	return translate(conn.QueryRowContext(ctx, text, arguments...).Scan(targets...), what)
}

// jsonList passes a list of names as one parameter, for json_each.
func jsonList(names []string) string {
	text, _ := json.Marshal(names) // strings always encode
	return string(text)
}
