package postgres

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The log of captured sources (docs/design.md section 5). A commit's number is its transaction's id, and ids do not come in the order of
// commits: a number alone cannot say what is applied while an older transaction is open. So a checkpoint row keeps a snapshot: what was
// visible in it is applied, and all that is left belongs to the transactions that were running in it and to those that came later. All
// captured partitions of a row share the snapshot, since ids are of one clock; a new partition needs nothing.
//
// The position is the number below which no transaction was running. It is what the horizon is compared with, and up to which the log may go.

// capturedRange is the range_no of the progress row of kind 'position' that a checkpoint row keeps for its captured sources; those of
// CommitLog partitions have 0.
const capturedRange = 1

// safeSQL is the number below which no transaction runs.
const safeSQL = `(pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint - 1)`

// snapshot is a pg_snapshot: all transactions below its end had ended, but for those that were running. A prepared transaction runs.
type snapshot struct {
	text      string
	begin     int64 // the lowest that was running, or the end
	end       int64
	running   []int64
	unbounded bool // not a snapshot: everything that can be read is in it
}

// parseSnapshot reads "xmin:xmax:xip,xip" (PostgreSQL manual, "Transaction ID and Snapshot Information Functions").
func parseSnapshot(text string) (snapshot, error) {
	s := snapshot{text: text, running: []int64{}}
	parts := strings.Split(text, ":")
	var err error
	number := func(text string) (n int64) {
		if err == nil {
			n, err = strconv.ParseInt(text, 10, 64)
		}
		return n
	}
	if len(parts) != 3 {
		return s, storage.Refuse(storage.CodeContentDrift, "the stored position in the captured log cannot be read")
	}
	s.begin, s.end = number(parts[0]), number(parts[1])
	if parts[2] != "" {
		for _, id := range strings.Split(parts[2], ",") {
			s.running = append(s.running, number(id))
		}
	}
	if err != nil {
		return s, &storage.Error{Code: storage.CodeContentDrift, Message: "the stored position in the captured log cannot be read", Err: err}
	}
	return s, nil
}

// safe is the number up to which every transaction had ended.
func (s snapshot) safe() int64 { return s.begin - 1 }

// capturedPosition is how far the captured log is applied to a checkpoint row (facts of its progress row, as JSON).
type capturedPosition struct {
	Applied string    `json:"applied"`           // a snapshot: what is visible in it is applied
	Reading string    `json:"reading,omitempty"` // the snapshot up to which a reading is under way that is larger than a batch
	At      *logPlace `json:"at,omitempty"`      // how far that reading is

	position         int64
	stored           string // as it was read
	applied, reading snapshot
	now              snapshot // taken in a statement before any that reads the log
}

// logPlace is a place in the order of a reading: by number, partition and index.
type logPlace struct {
	Seq       int64    `json:"seq"`
	Partition string   `json:"partition"`
	Index     int64    `json:"index"`
	Key       []string `json:"key,omitempty"` // of a range, the last key that is applied; empty: all of it
}

// readingPosition reads the position of a checkpoint row, and the snapshot of this moment. The log has to be read in a later statement:
// then whatever ended in the snapshot can be read.
func (s *Store) readingPosition(checkpoint, partition string, p *capturedPosition) step {
	return step{
		what: "read the position in the captured log",
		sql: s.sql(`
			SELECT coalesce(max(position), 0), coalesce(max(facts), ''), pg_catalog.pg_current_snapshot()::text
			  FROM {schema}.sync_backfill_progress
			 WHERE checkpoint = $1::text
			   AND kind = 'position'
			   AND partition = $2::text
			   AND range_no = $3::integer`),
		arguments: []any{checkpoint, partition, capturedRange},
		rows: func(rows pgx.Rows) error {
			*p = capturedPosition{}
			return scanRow(&p.position, &p.stored, &p.now.text)(rows)
		},
	}
}

// decode takes apart what readingPosition read. reason says why it proves nothing.
func (p *capturedPosition) decode() (reason string, err error) {
	if p.now, err = parseSnapshot(p.now.text); err != nil {
		return "", err
	}
	if p.stored == "" {
		return "the pass has no position in the captured log", nil
	}
	if err := json.Unmarshal([]byte(p.stored), p); err != nil {
		return "", &storage.Error{Code: storage.CodeContentDrift, Message: "the stored position in the captured log cannot be read", Err: err}
	}
	if p.applied, err = parseSnapshot(p.Applied); err != nil {
		return "", err
	}
	if p.Reading != "" {
		if p.reading, err = parseSnapshot(p.Reading); err != nil {
			return "", err
		}
	}
	if max(p.position, p.applied.end, p.reading.end) > p.now.end {
		return "transaction numbers have begun anew since the position in the captured log was noted: the database is a restored copy", nil
	}
	return "", nil
}

// readPosition reads and decodes the position of a batch's row.
func (b *batchTx) readPosition(ctx context.Context) (p capturedPosition, reason string, err error) {
	if err := send(ctx, b.Tx, b.store.readingPosition(b.claim.Name, b.partition(), &p)); err != nil {
		return p, "", err
	}
	reason, err = p.decode()
	return p, reason, err
}

// begins gives the snapshot up to which a batch reads: a reading that is under way goes on with the one it began with. Were the end
// moved with each batch, a program could write faster than we read, and no reading would end.
func (p *capturedPosition) begins() {
	if p.Reading == "" {
		p.Reading, p.reading, p.At = p.now.text, p.now, nil
	}
}

// advance moves the position behind what a batch applied. place is where it stopped, nil if the reading is complete.
func (p *capturedPosition) advance(place *logPlace) {
	if place != nil {
		p.At = place
		return
	}
	p.Applied, p.applied = p.Reading, p.reading
	p.position = max(p.position, p.applied.safe())
	p.Reading, p.At = "", nil
}

func (p *capturedPosition) encode() string {
	text, _ := json.Marshal(p) // strings and numbers always encode
	return string(text)
}

// movingPosition stores a position, if nobody else has moved it.
func (b *batchTx) movingPosition(p capturedPosition, count func(pgconn.CommandTag)) step {
	return step{
		what: "move the position in the captured log",
		sql: b.store.sql(`
			UPDATE {schema}.sync_backfill_progress
			   SET position = $4::bigint,
			       facts = $5::text,
			       updated_at_ms = ` + nowMS + `
			 WHERE checkpoint = $1::text
			   AND kind = 'position'
			   AND partition = $2::text
			   AND range_no = $3::integer
			   AND facts = $6::text`),
		arguments: []any{b.claim.Name, b.partition(), capturedRange, p.position, p.encode(), p.stored},
		done:      count,
	}
}

// showingPosition lets the watermark of a row follow, where all its sources are captured: then it has no other meaning.
func (b *batchTx) showingPosition(position int64) step {
	return step{
		what: "show the position in the captured log",
		sql: b.store.sql(`
			UPDATE {schema}.sync_backfill_checkpoints c
			   SET watermark = greatest(c.watermark, $4::bigint),
			       observed_rows = greatest(c.observed_rows, (SELECT coalesce(sum(r.rows_done), 0)
			                                                    FROM {schema}.sync_backfill_progress r
			                                                   WHERE r.checkpoint = c.name
			                                                     AND r.kind = 'range'
			                                                     AND r.partition = c.partition)),
			       updated_at_ms = ` + nowMS + `
			 WHERE c.name = $1::text
			   AND c.partition = $2::text
			   AND c.owner_epoch = $3::bigint
			   AND c.state = 'backfilling'`),
		arguments: []any{b.claim.Name, b.partition(), b.row.OwnerEpoch, position},
	}
}

// captureRule is how the rows of a captured table belong to partitions, as far as readers of the log need it.
func captureRule(table storage.Table) captured {
	c := captured{table: table.Name, partition: capturedPartition{slices: table.Partition.Hash}}
	column := table.Partition.Column
	if table.Layout == storage.Syncular {
		column = storage.ColumnPartition
	}
	if column != "" {
		c.partition = capturedPartition{column: &capturedColumn{name: column}}
	}
	return c
}

// loggedTables are the sources whose program writes their log itself, sorted.
func (p *backfillPlan) loggedTables() []string { return p.tablesOf(storage.CommitLog) }

// capturedTables are the sources whose log triggers write, sorted.
func (p *backfillPlan) capturedTables() []string { return p.tablesOf(storage.Capture) }

func (p *backfillPlan) tablesOf(changes storage.Changes) []string {
	tables := []string{}
	for _, source := range p.sources {
		if source.Changes == changes {
			tables = append(tables, source.Table)
		}
	}
	slices.Sort(tables)
	return tables
}

// captures says whether triggers write the log of some source, allCaptured whether of each.
func (p *backfillPlan) captures() bool    { return len(p.capturedTables()) > 0 }
func (p *backfillPlan) allCaptured() bool { return p.captures() && len(p.loggedTables()) == 0 }

// captureRules are the rules of the captured sources.
func (p *backfillPlan) captureRules() []captured {
	var rules []captured
	for _, source := range p.sources {
		if source.Changes == storage.Capture {
			rules = append(rules, captureRule(source.table.declared))
		}
	}
	return rules
}

// bareOf is what a row's partition stands for in the captured sources. Where the backfilled table has no partitions, all its rows are
// in one, whatever partitions a source has.
func (p *backfillPlan) bareOf(partition string) string {
	if !p.definition.Checkpoint.Backfill.External() && p.table.partition == "" {
		return storage.AllPartitions
	}
	return partition
}

// dueSQL gives the captured partitions that concern a row of a checkpoint, as a relation (partition, horizon_seq, tbl, first_slice): those
// with a row, and those that are announced only (capture_function.sql). The partition stands in the text, so that the planner
// knows it and finds a single partition by its key.
func (s *Store) dueSQL(rules []captured, bare string) string {
	parts := make([]string, len(rules))
	for i, rule := range rules {
		first := "NULL"
		if rule.partition.slices > 0 {
			first = quoteText(rule.prefix() + "#0")
		}
		parts[i] = s.sql(`
  SELECT p.partition, p.horizon_seq, {table}::text AS tbl, {first slice}::text AS first_slice
    FROM {schema}.sync_partitions p
   WHERE {of the row}`, "table", quoteText(rule.table), "first slice", first, "of the row", rule.partitionsSQL("p.partition", quoteText(bare)))
		if rule.partition.column != nil {
			parts[i] += s.sql(`
  UNION ALL
  SELECT DISTINCT a.row_id, 0::bigint, a.tbl, NULL::text
    FROM {schema}.sync_changes a
   WHERE a.partition = {prefix}
     AND a.tbl = {table}
     AND a.op = 4
     AND {of the row}
     AND NOT EXISTS (SELECT FROM {schema}.sync_partitions p WHERE p.partition = a.row_id)`,
				"prefix", quoteText(rule.prefix()), "table", quoteText(rule.table), "of the row", rule.partitionsSQL("a.row_id", quoteText(bare)))
		}
	}
	return strings.Join(parts, "\n  UNION ALL")
}
