package postgres

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// logWindow is the part (position, upto] of one partition's log, with the changes of the sources in it.
type logWindow struct {
	partition     string
	position      int64 // up to which everything is applied
	upto          int64 // last commit of the window
	last, horizon int64 // as sync_partitions says
	kept          int64 // commits of the window that are there
	epoch, noted  string
	known         bool // its position is written down
	changes       []logChange
}

// logChange is one change of a source.
type logChange struct {
	seq          int64
	table, rowID string
}

// problem says why the window proves nothing, "" if it does. Its facts and its changes come from one statement, so no prune
// lies between them.
func (w logWindow) problem() string {
	switch {
	case w.known && w.epoch != w.noted:
		return epochChanged(w.partition)
	case w.horizon > w.position:
		return fmt.Sprintf("partition %q: commits up to %d are pruned, and changes above %d are needed", w.partition, w.horizon, w.position)
	case w.last < w.position:
		return fmt.Sprintf("partition %q: the log ends at %d, before %d", w.partition, w.last, w.position)
	case w.kept != w.upto-w.position:
		return fmt.Sprintf("partition %q: of the %d commits above %d up to %d there are %d", w.partition, w.upto-w.position, w.position, w.upto, w.kept)
	}
	return ""
}

// logQuestion asks for the log of one checkpoint row.
type logQuestion struct {
	checkpoint string
	partition  string
	position   int64  // of a listed partition
	epoch      string // of its log, at the claim
	changes    int    // read about so many changes
	commits    int64  // and of each partition at most so many commits
	partitions int    // and so many partitions; 0: all
}

// listedSQL is the one window of a listed partition. $3 position, $4 epoch at the claim.
const listedSQL = `
  SELECT $1::text AS partition, $3::bigint AS position, coalesce(p.max_commit_seq, 0) AS last, coalesce(p.horizon_seq, 0) AS horizon,
         coalesce(r.log_epoch, '') AS epoch, $4::text AS noted, $2::text IS NOT NULL AS known, $8::bigint AS partitions
    FROM (SELECT) AS one
    LEFT JOIN {schema}.sync_partitions p
      ON p.partition = $1::text
    LEFT JOIN {schema}.sync_partition_registry r
      ON r.partition = $1::text`

// allSQL are the windows of '*': the partitions whose log does not stand where it was noted, or is not the log it was.
const allSQL = `
  SELECT p.partition, coalesce(n.position, $3::bigint) AS position, p.max_commit_seq AS last, p.horizon_seq AS horizon,
         coalesce(r.log_epoch, '') AS epoch, coalesce(n.facts, $4::text) AS noted, n.partition IS NOT NULL AS known
    FROM {schema}.sync_partitions p
    LEFT JOIN {schema}.sync_backfill_progress n
      ON n.checkpoint = $2::text
     AND n.kind = 'position'
     AND n.partition = p.partition
     AND n.range_no = 0
    LEFT JOIN {schema}.sync_partition_registry r
      ON r.partition = p.partition
   WHERE $1::text = '*'
     AND NOT starts_with(p.partition, 'capture:')
     AND (p.max_commit_seq <> coalesce(n.position, 0)
          OR p.horizon_seq > coalesce(n.position, 0)
          OR n.facts <> coalesce(r.log_epoch, ''))
   ORDER BY p.partition
   LIMIT nullif($8::bigint, 0)`

// logSQL reads the windows and their changes in one snapshot. $5 the source tables, $6 changes at most of each partition, $7 commits at
// most of each partition, $8 partitions at most.
const logSQL = `
WITH due AS MATERIALIZED ({due}
), windows AS MATERIALIZED (
  SELECT d.*, least(d.last, d.position + $7::bigint) AS upto,
         (SELECT count(*)
            FROM {schema}.sync_commits k
           WHERE k.partition = d.partition
             AND k.commit_seq > d.position
             AND k.commit_seq <= least(d.last, d.position + $7::bigint)) AS kept
    FROM due d
)
SELECT w.partition, w.position, w.upto, w.last, w.horizon, w.kept, w.epoch, w.noted, w.known,
       coalesce(change.commit_seq, 0), coalesce(change.tbl, ''), coalesce(change.row_id, '')
  FROM windows w
  LEFT JOIN LATERAL (
    SELECT c.commit_seq, c.idx, c.tbl, c.row_id
      FROM {schema}.sync_changes c
     WHERE c.partition = w.partition
       AND c.commit_seq > w.position
       AND c.commit_seq <= w.upto
       AND c.tbl = ANY ($5::text[])
     ORDER BY c.commit_seq, c.idx
     LIMIT $6::bigint
  ) AS change
    ON true
 ORDER BY w.partition, change.commit_seq, change.idx`

// logAnswer is what the log says.
type logAnswer struct {
	windows  []logWindow
	complete bool   // nothing more is there
	reason   string // why it cannot answer, "" if it can
}

// readLog reads the log above the position of a checkpoint row, whole commits only. A commit that alone has more changes than were
// asked for is read all the same.
func (s *Store) readLog(ctx context.Context, tx pgx.Tx, plan *backfillPlan, q logQuestion) (logAnswer, error) {
	read := q.changes
	if q.partitions > 1 {
		read = min(read, changesPerPartition) // all partitions are read before the changes are counted
	}
	for ; ; read *= 4 {
		windows, err := s.readWindows(ctx, tx, plan, q, read)
		if err != nil {
			return logAnswer{}, err
		}
		for _, w := range windows {
			if problem := w.problem(); problem != "" {
				return logAnswer{reason: problem}, nil
			}
		}
		if cut, ok := cutWindows(windows, q.changes, read); ok {
			complete := len(cut) == len(windows) && (q.partitions == 0 || len(windows) < q.partitions) &&
				!slices.ContainsFunc(cut, func(w logWindow) bool { return w.upto < w.last })
			return logAnswer{windows: cut, complete: complete}, nil
		}
	}
}

// readWindows reads the windows with at most one change more than read of each.
func (s *Store) readWindows(ctx context.Context, tx pgx.Tx, plan *backfillPlan, q logQuestion, read int) ([]logWindow, error) {
	due := sqlText(listedSQL)
	if q.partition == storage.AllPartitions {
		due = allSQL
	}
	rows, err := tx.Query(ctx, s.sql(logSQL, "due", s.sql(due)), q.partition, q.checkpoint, q.position, q.epoch,
		plan.loggedTables(), int64(read)+1, q.commits, int64(q.partitions))
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	var windows []logWindow
	var w logWindow
	var change logChange
	_, err = pgx.ForEachRow(rows, []any{&w.partition, &w.position, &w.upto, &w.last, &w.horizon, &w.kept, &w.epoch, &w.noted, &w.known,
		&change.seq, &change.table, &change.rowID}, func() error {
		if len(windows) == 0 || windows[len(windows)-1].partition != w.partition {
			windows = append(windows, w)
		}
		if change.table != "" {
			last := &windows[len(windows)-1]
			last.changes = append(last.changes, change)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	return windows, nil
}

// cutWindows keeps about so many changes, cut between commits: part of a commit must not count as the whole. If the first commit
// alone has more, it is kept. read is how many changes of a window were read at most, and if there are more, the last commit
// read may be in part. ok is false if no commit at all is whole.
func cutWindows(windows []logWindow, changes, read int) (cut []logWindow, ok bool) {
	left := changes
	for _, w := range windows {
		whole := w
		if len(w.changes) > read {
			whole = w.until(w.changes[len(w.changes)-1].seq - 1)
		}
		kept := whole
		if len(whole.changes) > left {
			kept = whole.until(whole.changes[left].seq - 1)
			if len(cut) == 0 && kept.upto < whole.changes[0].seq {
				kept = whole.until(whole.changes[0].seq)
			}
		}
		if kept.upto > kept.position || kept.upto == w.upto {
			cut = append(cut, kept)
			left -= len(kept.changes)
		}
		if kept.upto < whole.upto {
			break
		}
	}
	return cut, len(cut) > 0 || !slices.ContainsFunc(windows, func(w logWindow) bool { return len(w.changes) > 0 })
}

// until is the window up to a commit.
func (w logWindow) until(seq int64) logWindow {
	w.upto = min(w.upto, seq)
	w.changes = slices.DeleteFunc(slices.Clone(w.changes), func(c logChange) bool { return c.seq > seq })
	return w
}

// loggedRows gives the keys of source rows that the windows name, each once. reason is not empty if a change names its row by something
// that is no key of its table: it might be the row that matters.
func (p *backfillPlan) loggedRows(windows []logWindow, into *changedRows) (reason string) {
	for _, w := range windows {
		for _, change := range w.changes {
			source, _ := p.source(change.table)
			key, ok := source.key(w.partition, change.rowID)
			if !ok {
				return fmt.Sprintf("commit %d of partition %q: %s", change.seq, w.partition, noKeyOf(source))
			}
			into.add(change.table, key)
		}
	}
	return ""
}

// concernedKeys gives the keys of the backfilled table that changed rows of the sources concern, each once. reason is not empty if a text
// is no key of its table. Then the transaction has failed.
func (s *Store) concernedKeys(ctx context.Context, tx pgx.Tx, plan *backfillPlan, changed changedRows) (keys [][]string, reason string, err error) {
	var all keySet
	for _, table := range slices.Sorted(maps.Keys(changed.byTable)) {
		source, _ := plan.source(table)
		keys := changed.byTable[table].keys
		if ok, err := castKeys(ctx, tx, source.table, keys); err != nil || !ok {
			return nil, noKeyOf(source), err
		}
		if source.Keys != "" {
			if keys, err = s.mapKeys(ctx, tx, plan, source, keys); err != nil {
				return nil, "", err
			}
		}
		all.add(keys...)
	}
	return all.keys, "", nil
}

func noKeyOf(source planSource) string {
	return fmt.Sprintf("the log names a row of table %q by something that is no key of it", source.Table)
}

// keySet collects keys, each once.
type keySet struct {
	keys [][]string
	seen map[string]bool
}

func (k *keySet) add(keys ...[]string) {
	if k.seen == nil {
		k.seen = map[string]bool{}
	}
	for _, key := range keys {
		if text := storage.EncodeKey(key); !k.seen[text] {
			k.seen[text] = true
			k.keys = append(k.keys, key)
		}
	}
}

// key reads the key of a source's row out of the log.
func (p planSource) key(partition, rowID string) ([]string, bool) {
	if p.table.declared.Layout == storage.Syncular {
		return []string{partition, rowID}, true
	}
	return storage.DecodeKey(rowID, len(p.table.columns))
}

// mapKeys asks the user's `keys` query which rows of the backfilled table changed rows of another source concern. The relation `changed` has
// the source's key columns.
func (s *Store) mapKeys(ctx context.Context, tx pgx.Tx, plan *backfillPlan, source planSource, changed [][]string) ([][]string, error) {
	t := plan.table
	what := fmt.Sprintf("checkpoint %q: the keys of source %q", plan.name(), source.Table)
	rows, err := tx.Query(ctx, fmt.Sprintf(`
WITH changed AS (SELECT DISTINCT * FROM %s AS named)
SELECT DISTINCT %s
  FROM (%s
       ) AS mapped
 WHERE %s`,
		source.table.set(1),
		t.list(func(_ int, c keyColumn) string { return fmt.Sprintf("mapped.%s::text::%s::text", c.name, c.kind) }),
		trimmed(source.Keys),
		t.join(" AND ", func(_ int, c keyColumn) string { return fmt.Sprintf("mapped.%s IS NOT NULL", c.name) })),
		source.table.arrays(changed)...)
	if err != nil {
		return nil, translateUserSQL(err, what)
	}
	keys, err := t.collectKeys(rows)
	return keys, translateUserSQL(err, what)
}

// castKeys says whether texts are keys of a table. If not, the transaction has failed.
func castKeys(ctx context.Context, tx pgx.Tx, table keyTable, keys [][]string) (bool, error) {
	_, err := tx.Exec(ctx, fmt.Sprintf("SELECT count(*) FROM (SELECT DISTINCT * FROM %s AS named) AS keys", table.set(1)), table.arrays(keys)...)
	if strings.HasPrefix(sqlState(err), "22") { // data exception: a text that the type does not take
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the keys of table %q: %w", table.declared.Name, err)
	}
	return true, nil
}

// rest is what is still to be done for a checkpoint row: the keys that the log shows above its position, and the leftovers.
type rest struct {
	keys     [][]string
	last     int64  // last commit of a listed partition
	complete bool   // these are all
	reason   string // why the log cannot answer, "" if it can
}

// readRest reads at most limit keys of the rest, in one snapshot of each log.
func (b *batchTx) readRest(ctx context.Context, facts string, limit int) (rest, error) {
	found := rest{complete: true}
	var changed changedRows
	if len(b.plan.loggedTables()) > 0 {
		if err := b.readLoggedRest(ctx, facts, limit, &changed, &found); err != nil || found.reason != "" {
			return found, err
		}
	}
	if b.plan.captures() {
		complete, reason, err := b.readCapturedRest(ctx, limit, &changed)
		if err != nil || reason != "" {
			return rest{reason: reason}, err
		}
		found.complete = found.complete && complete
	}
	keys, reason, err := b.store.concernedKeys(ctx, b.Tx, b.plan, changed)
	if err != nil || reason != "" {
		return rest{reason: reason}, err
	}
	leftovers, _, err := b.readLeftovers(ctx, limit+1)
	if err != nil {
		return rest{}, err
	}
	found.keys = append(keys, leftovers...)
	found.complete = found.complete && len(found.keys) <= limit
	return found, nil
}

func (b *batchTx) readLoggedRest(ctx context.Context, facts string, limit int, changed *changedRows, found *rest) error {
	noted, err := decodeFacts(facts)
	if err != nil {
		return err
	}
	answer, err := b.store.readLog(ctx, b.Tx, b.plan, logQuestion{
		checkpoint: b.claim.Name, partition: b.partition(), position: b.position, epoch: noted.LogEpoch, changes: limit, commits: math.MaxInt32,
	})
	if err != nil || answer.reason != "" {
		found.reason = answer.reason
		return err
	}
	found.complete, found.reason = answer.complete, b.plan.loggedRows(answer.windows, changed)
	if b.partition() != storage.AllPartitions {
		found.last = answer.windows[0].last
	}
	return nil
}
