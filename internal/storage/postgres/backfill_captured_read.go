package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// opRange is the sync_changes.op of a range of keys. 4 announces a partition, and is no change (capture_function.sql).
const opRange = 3

// capturedChange is a row of the captured log.
type capturedChange struct {
	logPlace
	table, rowID string
	op           int16
	listed       bool // its payload lists keys
}

// capturedLog is what the captured log shows.
type capturedLog struct {
	changes []capturedChange
	more    bool   // there are more than were asked for
	reason  string // why it cannot answer, "" if it can
}

// allVisible is the end of a reading that goes as far as can be read.
var allVisible = snapshot{running: []int64{}, unbounded: true}

// capturedSQL reads the changes of captured partitions that are not applied, in the order of their places. Not applied is what was
// running in the snapshot of the position ($2) and what came after it ($1): two ranges of the index, however much the log holds in between
// because an old transaction keeps it from being pruned. $3 and $4 bound the reading in the same way, $5 to $7 are the place behind which it
// goes on, $8 how many changes are read. A range that was logged for each slice of a hash is read in the first slice.
const capturedSQL = `
WITH due AS MATERIALIZED ({due}
)
SELECT c.commit_seq, c.partition, c.idx::bigint, c.tbl, c.row_id, c.op, c.payload IS NOT NULL
  FROM due d
 CROSS JOIN LATERAL (
   (SELECT l.*
      FROM {schema}.sync_changes l
     WHERE l.partition = d.partition
       AND l.tbl = d.tbl
       AND l.commit_seq >= greatest($1::bigint, $5::bigint)
       AND {bounds}
     ORDER BY l.commit_seq, l.idx
     LIMIT $8::bigint)
   UNION ALL
   (SELECT l.*
      FROM {schema}.sync_changes l
     WHERE l.partition = d.partition
       AND l.tbl = d.tbl
       AND l.commit_seq = ANY ($2::bigint[])
       AND {bounds}
     ORDER BY l.commit_seq, l.idx
     LIMIT $8::bigint)
 ) AS c
 ORDER BY c.commit_seq, c.partition, c.idx
 LIMIT $8::bigint`

const capturedBoundsSQL = `l.commit_seq < $3::bigint
       AND l.commit_seq <> ALL ($4::bigint[])
       AND (l.commit_seq, l.partition, l.idx::bigint) > ($5::bigint, $6::text, $7::bigint)
       AND l.op <> 4
       AND (l.op <> 3 OR l.payload IS NOT NULL OR d.first_slice IS NULL OR l.partition = d.first_slice)`

// readCapturedLog reads what is not applied of the captured log, up to a snapshot and behind a place, at most limit changes.
//
// The horizon is read in a statement after the one that reads the log. What a prune deleted before, it deleted together with moving the
// horizon, so it shows; in the other order a prune in between would leave no trace.
//
// In a restored copy, where numbers have begun anew, rows and horizons of before have numbers of the future. They say nothing: no transaction of
// this server has them.
func (b *batchTx) readCapturedLog(ctx context.Context, p capturedPosition, upto snapshot, limit int) (capturedLog, error) {
	var log capturedLog
	var horizon int64
	var truncated string
	place := logPlace{Index: math.MinInt64}
	if !upto.unbounded && p.At != nil {
		if place = *p.At; len(place.Key) > 0 {
			place.Index-- // the range is read again
		}
	}
	if upto.unbounded {
		upto.end = p.now.end // under the locks of an activation nobody has captured anything since
	}
	due := b.store.dueSQL(b.plan.captureRules(), b.plan.bareOf(b.partition()))
	err := send(ctx, b.Tx,
		step{
			what: "read the captured log", sql: b.store.sql(capturedSQL, "due", due, "bounds", capturedBoundsSQL),
			arguments: []any{p.applied.end, p.applied.running, upto.end, upto.running, place.Seq, place.Partition, place.Index, int64(limit) + 1},
			rows: func(rows pgx.Rows) (err error) {
				log.changes, err = collectCaptured(rows)
				return err
			},
		},
		step{
			what: "look for a TRUNCATE", rows: scanRow(&truncated),
			arguments: []any{b.plan.sourceTables(), p.applied.end, p.applied.running, p.now.end},
			sql: b.store.sql(`
				SELECT coalesce(min(c.tbl), '')
				  FROM {schema}.sync_changes c
				 WHERE c.partition = '*'
				   AND c.tbl = ANY ($1::text[])
				   AND (c.commit_seq >= $2::bigint AND c.commit_seq < $4::bigint OR c.commit_seq = ANY ($3::bigint[]))`),
		},
		step{
			what: "read the horizon of the captured log", rows: scanRow(&horizon),
			sql: "SELECT coalesce(max(d.horizon_seq), 0) FROM (" + due + ") AS d",
		})
	if err != nil {
		return log, err
	}
	switch {
	case truncated != "":
		log.reason = fmt.Sprintf("table %q was truncated since the pass began, and nobody can tell which rows are gone", truncated)
	case horizon > p.position && horizon < p.now.end:
		log.reason = fmt.Sprintf("the captured log is pruned up to %d, and changes above %d are needed", horizon, p.position)
	}
	if log.more = len(log.changes) > limit; log.more {
		log.changes = log.changes[:limit]
	}
	return log, nil
}

func collectCaptured(rows pgx.Rows) ([]capturedChange, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c capturedChange, err error) {
		err = row.Scan(&c.Seq, &c.Partition, &c.Index, &c.table, &c.rowID, &c.op, &c.listed)
		return c, err
	})
}

// changedRows are keys of source rows, by table.
type changedRows struct {
	byTable map[string]*keySet
	count   int
}

func (c *changedRows) add(table string, keys ...[]string) {
	if c.byTable == nil {
		c.byTable = map[string]*keySet{}
	}
	if c.byTable[table] == nil {
		c.byTable[table] = &keySet{}
	}
	c.byTable[table].add(keys...)
	c.count += len(keys)
}

// gather collects the keys that changes name, about limit of them. place is where it stopped, nil if nothing is left of the log. reason
// is not empty if a change names its row by something that is no key of its table.
func (b *batchTx) gather(ctx context.Context, log capturedLog, from *logPlace, limit int, into *changedRows) (place *logPlace, reason string, err error) {
	for i, change := range log.changes {
		source, ok := b.plan.source(change.table)
		if !ok {
			continue
		}
		if into.count >= limit {
			return &log.changes[i-1].logPlace, "", nil
		}
		if change.op == opRange && !change.listed {
			if place, reason, err = b.gatherRange(ctx, change, source, from, limit, into); place != nil || reason != "" || err != nil {
				return place, reason, err
			}
			continue
		}
		texts := []string{change.rowID}
		if change.listed {
			if texts, err = b.readList(ctx, change); err != nil {
				return nil, "", err
			}
		}
		for _, text := range texts {
			key, ok := storage.DecodeKey(text, len(source.table.columns))
			if !ok {
				return nil, fmt.Sprintf("captured transaction %d: %s", change.Seq, noKeyOf(source)), nil
			}
			into.add(change.table, key)
		}
	}
	if log.more {
		return &log.changes[len(log.changes)-1].logPlace, "", nil
	}
	return nil, "", nil
}

// readList reads the keys of so many rows that are gone.
func (b *batchTx) readList(ctx context.Context, change capturedChange) (texts []string, err error) {
	var payload []byte
	err = b.QueryRow(ctx, b.store.sql(`
		SELECT payload
		  FROM {schema}.sync_changes
		 WHERE partition = $1::text
		   AND commit_seq = $2::bigint
		   AND idx = $3::integer`), change.Partition, change.Seq, change.Index).Scan(&payload)
	if err == nil {
		err = json.Unmarshal(payload, &texts)
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys of captured transaction %d: %w", change.Seq, err)
	}
	return texts, nil
}

// gatherRange reads the keys that are there now between the smallest and the largest key of a statement that changed very many rows.
func (b *batchTx) gatherRange(ctx context.Context, change capturedChange, source planSource, from *logPlace, limit int, into *changedRows) (*logPlace, string, error) {
	ends, ok := storage.DecodeKey(change.rowID, 2)
	if !ok {
		return nil, fmt.Sprintf("captured transaction %d: %s", change.Seq, noKeyOf(source)), nil
	}
	t, w := source.table, &where{}
	comparison := ">="
	first, readable := storage.DecodeKey(ends[0], len(t.columns))
	last, alsoReadable := storage.DecodeKey(ends[1], len(t.columns))
	if !readable || !alsoReadable {
		return nil, fmt.Sprintf("captured transaction %d: %s", change.Seq, noKeyOf(source)), nil
	}
	if from != nil && len(from.Key) > 0 && from.Seq == change.Seq && from.Partition == change.Partition && from.Index == change.Index {
		comparison, first = ">", from.Key
	}
	w.add(fmt.Sprintf("(%s) %s (%s)", t.names("t."), comparison, t.cast(w.next())), anySlice(first)...)
	w.add(fmt.Sprintf("(%s) <= (%s)", t.names("t."), t.cast(w.next())), anySlice(last)...)
	if rule := captureRule(t.declared); rule.partition.column != nil {
		// The keys of other partitions lie in between; their ranges are logged by themselves.
		w.add(fmt.Sprintf("%s = $%d::text", rule.keyOfText("t."+t.partition), w.next()), change.Partition)
	}
	left := limit - into.count
	var keys [][]string
	err := send(ctx, b.Tx, byKeySQL(true), step{
		what: fmt.Sprintf("read a range of table %q", t.declared.Name), arguments: w.arguments,
		sql: fmt.Sprintf("SELECT %s\n  FROM %s AS t\n WHERE %s\n ORDER BY %s\n LIMIT %d", t.texts("t."), t.sql, w.sql(), t.names("t."), left+1),
		rows: func(rows pgx.Rows) (err error) {
			keys, err = t.collectKeys(rows)
			return err
		},
	}, byKeySQL(false))
	if err != nil {
		return nil, "", err
	}
	if len(keys) <= left {
		into.add(change.table, keys...)
		return nil, "", nil
	}
	into.add(change.table, keys[:left]...)
	place := change.logPlace
	place.Key = keys[left-1]
	return &place, "", nil
}

// readCapturedRest gathers what of the captured log is not applied, up to now. complete is false if there is more than limit.
func (b *batchTx) readCapturedRest(ctx context.Context, limit int, into *changedRows) (complete bool, reason string, err error) {
	p, reason, err := b.readPosition(ctx)
	if err != nil || reason != "" {
		return false, reason, err
	}
	log, err := b.readCapturedLog(ctx, p, allVisible, limit+1)
	if err != nil || log.reason != "" {
		return false, log.reason, err
	}
	place, reason, err := b.gather(ctx, log, nil, into.count+limit+1, into)
	return place == nil, reason, err
}

// capturedCoverage says whether the log of captured tables shows changes above a position, for a program that keeps its own books: a number
// up to which every transaction had ended when it read the log. Under the locks of an activation that is a proof; without, what is in
// flight is not seen. rules are those of the tables, bare is the partition as users write it.
func (s *Store) capturedCoverage(ctx context.Context, q querier, rules []captured, bare string, seq, needed int64) (storage.Coverage, error) {
	tables := make([]string, len(rules))
	for i, rule := range rules {
		tables[i] = rule.table
	}
	due := s.dueSQL(rules, bare)
	var end, horizon int64
	var hit bool
	err := q.QueryRow(ctx, s.sql(`
WITH due AS MATERIALIZED ({due}
)
SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint,
       coalesce((SELECT max(d.horizon_seq) FROM due d), 0),
       EXISTS (
         SELECT
           FROM due d
          CROSS JOIN LATERAL (
            SELECT
              FROM {schema}.sync_changes c
             WHERE c.partition = d.partition
               AND c.tbl = d.tbl
               AND c.commit_seq > $1::bigint
               AND c.commit_seq < pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint
             LIMIT 1) AS above)
       OR EXISTS (
         SELECT
           FROM {schema}.sync_changes c
          WHERE c.partition = '*'
            AND c.tbl = ANY ($2::text[])
            AND c.commit_seq > $1::bigint
            AND c.commit_seq < pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint)`, "due", due), seq, tables).Scan(&end, &horizon, &hit)
	switch {
	case err != nil:
		return storage.Coverage{}, fmt.Errorf("look for captured changes of %s above %d: %w", strings.Join(tables, ", "), seq, err)
	case seq >= end:
		return unverifiable("transaction %d has not begun: numbers began anew, or the position is not of this database", seq), nil
	case horizon > min(seq, needed) && horizon < end:
		return unverifiable("the captured log is pruned up to %d, and changes above %d are asked for", horizon, min(seq, needed)), nil
	case hit:
		return storage.Coverage{Verdict: storage.Changed}, nil
	}
	return storage.Coverage{Verdict: storage.Clean}, nil
}

// newestCaptured is the newest captured transaction that changed one of the tables, 0 if none.
func (s *Store) newestCaptured(ctx context.Context, q querier, rules []captured, bare string) (seq int64, err error) {
	err = q.QueryRow(ctx, s.sql(`
WITH due AS MATERIALIZED ({due}
)
SELECT coalesce(max(newest.commit_seq), 0)
  FROM due d
 CROSS JOIN LATERAL (
   SELECT c.commit_seq
     FROM {schema}.sync_changes c
    WHERE c.partition = d.partition
      AND c.tbl = d.tbl
      AND c.commit_seq < pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint
    ORDER BY c.commit_seq DESC
    LIMIT 1) AS newest`, "due", s.dueSQL(rules, bare))).Scan(&seq)
	return seq, err
}

// capturedRules gives the rules of tables whose log triggers write for an open checkpoint.
//
// CodeInvalidSpec if they do not write that of each: one number cannot be a position in both logs.
func (s *Store) capturedRules(ctx context.Context, q querier, tables []string) (rules []captured, err error) {
	needs, err := s.readSourceNeeds(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, need := range needs {
		if need.capture && slices.Contains(tables, need.table.Name) {
			rules = append(rules, captureRule(need.table))
		}
	}
	if len(rules) == 0 || len(rules) < len(tables) {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "%s are not all captured: a position in the log of a program is none in the captured log",
			strings.Join(tables, ", ")).WithHint("ask for captured tables and for others one after the other")
	}
	return rules, nil
}
