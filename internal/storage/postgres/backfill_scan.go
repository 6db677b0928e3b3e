package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// quickWait bounds each wait of a batch that takes its rows without looking. It is short: rows of the batch are locked meanwhile.
const quickWait = 25 * time.Millisecond

// ScanBatch does one batch of a key range in one transaction. An update whose expressions read nothing but their own row is
// one statement over the range; if it meets a row that the program holds it is undone, and the same range is done again with
// the rows locked first, as far as they are free; the others are written down as leftovers.
//
// Unverifiable says that the tables are not those of the pass any more; it is found out when a process begins on a range. If the row
// has more than 10,000 leftovers nothing is done, and Skipped is their number: they have to be tried first. A
// paused checkpoint gives a batch with nothing but its settings.
//
// Errors: CodeOwnershipLost, after which nothing of the batch is left; CodeLockTimeout; CodeInvalidSQL, which names the key in a batch
// of one row.
func (s *Store) ScanBatch(ctx context.Context, claim storage.Claim, lease storage.Lease) (storage.Batch, error) {
	batch, err := s.scanBatch(ctx, claim, lease)
	if sqlStateClass(err) != "42" && sqlStateClass(err) != "22" {
		return batch, err
	}
	// A key column may have changed its type since the plan was read.
	s.backfills.forget(claim.Token)
	return s.scanBatch(ctx, claim, lease)
}

// scanWay is how a batch takes its rows.
type scanWay int

const (
	withoutLooking scanWay = iota // fill the range in one statement, which waits for rows that are held
	asAWhole                      // lock the rows of the range that are free, then fill the range
	rowByRow                      // lock the rows of the range that are free, then fill exactly these
)

// errRangeMoved undoes a batch that would have filled rows that it had not locked.
var errRangeMoved = errors.New("rows of the range were not locked")

func (s *Store) scanBatch(ctx context.Context, claim storage.Claim, lease storage.Lease) (storage.Batch, error) {
	plan, err := s.plan(ctx, claim)
	if err != nil {
		return storage.Batch{}, err
	}
	if !s.backfills.quiet(claim.Name) {
		return s.scanOnce(ctx, claim, lease, rowByRow)
	}
	way := asAWhole
	if plan.ownRow {
		way = withoutLooking
	}
	batch, err := s.scanOnce(ctx, claim, lease, way)
	if !errors.Is(err, errRangeMoved) && storage.CodeOf(err) != storage.CodeLockTimeout {
		return batch, err
	}
	s.backfills.met(claim.Name)
	return s.scanOnce(ctx, claim, lease, rowByRow)
}

func (s *Store) scanOnce(ctx context.Context, claim storage.Claim, lease storage.Lease, way scanWay) (storage.Batch, error) {
	what := fmt.Sprintf("scan range %d of checkpoint %q, partition %q", lease.Range, claim.Name, lease.Partition)
	plan, err := s.plan(ctx, claim)
	if err != nil {
		return storage.Batch{}, err
	}
	scan := &scan{lease: lease}
	also := []step{scan.reading(s, claim), byKeySQL(true)}
	place, going := s.backfills.expected(claim.Token, lease.Range)
	if going {
		finding, err := scan.findingEnd(plan.table, place)
		if err != nil {
			return storage.Batch{}, err
		}
		also = append(also, finding)
	} else {
		also = append(also, s.readingFacts(claim.Name, lease.Partition, &scan.facts))
	}
	work := func(ctx context.Context, b *batchTx) (storage.Batch, error) {
		scan.batchTx = b
		if err := scan.begin(); err != nil {
			return storage.Batch{}, err
		}
		if !going {
			if err := scan.checkFacts(ctx); err != nil {
				return storage.Batch{}, err
			}
		}
		if err := scan.findEnd(ctx); err != nil {
			return storage.Batch{}, err
		}
		switch way {
		case withoutLooking:
			return scan.withoutLooking(ctx)
		case asAWhole:
			return scan.asAWhole(ctx)
		default:
			return scan.rowByRow(ctx)
		}
	}
	wait := quickWait
	if way == rowByRow {
		wait = batchWait
	}
	batch, err := s.inBatch(ctx, what, claim, lease.Partition, wait, work, also...)
	if err == nil && scan.end != nil && !batch.Done {
		s.backfills.expect(claim.Token, lease.Range, scan.place(storage.EncodeKey(scan.end)))
	}
	return batch, err
}

// byKeySQL keeps PostgreSQL from reading the whole table for a batch of it, or lets it choose again: of a row comparison it estimates the
// first column only, so where many rows share that a batch seems to be most of the table.
func byKeySQL(only bool) step {
	wholeTable := "on"
	if only {
		wholeTable = "off"
	}
	return step{what: "go by the key", sql: "SET LOCAL enable_seqscan = " + wholeTable}
}

// scan is a batch of a key range.
type scan struct {
	*batchTx
	lease        storage.Lease
	held         bool    // the lease is still this worker's
	done         bool    // the range is finished
	lower, upper *string // bounds of the range, as stored
	cursor       *string
	from         []string // rows above it are to be done; nil: from the first row
	end          []string // last key of this batch; nil: to the last row
	limit        int      // rows of this batch
	last         bool     // this batch ends the range
	facts        string   // of the pass, read with the first batch of this process

	found                 batchPlace // the place for which the end was looked for
	foundFrom, foundUpper []string
	ends                  [][]string // what was found
}

// reading reads where the range stands.
func (s *scan) reading(store *Store, claim storage.Claim) step {
	return step{
		what: "read the range",
		sql: store.sql(`
			SELECT lower_key, upper_key, cursor_key, done
			  FROM {schema}.sync_backfill_progress
			 WHERE checkpoint = $1::text
			   AND kind = 'range'
			   AND partition = $2::text
			   AND range_no = $3::integer
			   AND lease_epoch = $4::bigint
			   AND claim_token = $5::text`),
		arguments: []any{claim.Name, s.lease.Partition, s.lease.Range, s.lease.Epoch, claim.Token},
		rows: func(rows pgx.Rows) error {
			s.held = rows.Next()
			if !s.held {
				return rows.Err()
			}
			return rows.Scan(&s.lower, &s.upper, &s.cursor, &s.done)
		},
	}
}

// begin judges what was read.
func (s *scan) begin() error {
	switch {
	case !s.held:
		return s.leaseLost()
	case s.done:
		return batchEnded{storage.Batch{Done: true, Settings: s.settings, Leftovers: s.leftovers}}
	case s.leftovers > leftoversBound:
		return batchEnded{storage.Batch{Skipped: s.leftovers, Leftovers: s.leftovers, Settings: s.settings}}
	}
	s.limit = s.settings.WithDefaults().BatchRows
	if s.lease.Limit > 0 {
		s.limit = min(s.limit, s.lease.Limit)
	}
	return nil
}

// checkFacts keeps a worker from beginning on a range for nothing. What decides is asked again by the tail and by the activation.
func (s *scan) checkFacts(ctx context.Context) error {
	reason, err := s.store.checkFacts(ctx, s.Tx, s.plan, s.facts)
	if err == nil && reason != "" {
		return s.unverifiable(reason)
	}
	return err
}

func (s *scan) leaseLost() error {
	return storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q, partition %q: another worker took range %d", s.claim.Name, s.partition(), s.lease.Range)
}

// batchPlace is where a batch begins, how far its range goes, and how many rows it may have. Keys are as stored; nil has no text.
type batchPlace struct {
	from, upper      string
	bounded, unbegun bool
	limit            int
}

// place is where a batch behind a key begins.
func (s *scan) place(from string) batchPlace {
	place := batchPlace{from: from, limit: s.limit}
	if s.upper != nil {
		place.upper, place.bounded = *s.upper, true
	}
	return place
}

// findEnd finds the last key of the batch, unless it was found with the head: that begins at the cursor where this process left it, which
// is nearly always where it still is.
func (s *scan) findEnd(ctx context.Context) error {
	from := s.cursor
	if from == nil {
		from = s.lower
	}
	place := s.place("")
	if place.unbegun = from == nil; from != nil {
		place.from = *from
	}
	if s.found != place {
		finding, err := s.findingEnd(s.plan.table, place)
		if err != nil {
			return err
		}
		if err := send(ctx, s.Tx, finding); err != nil {
			return err
		}
	}
	s.from = s.foundFrom
	if len(s.ends) == 0 {
		s.end, s.last = s.foundUpper, true
		return nil
	}
	s.end = s.ends[0]
	return nil
}

// findingEnd finds the last key of a batch. If fewer rows are left than a batch has, there is none, and the batch goes to the end of the
// range. The numbers stand in the text: a plan for any number would sort the whole table.
func (s *scan) findingEnd(t keyTable, place batchPlace) (step, error) {
	s.found, s.foundFrom, s.foundUpper, s.ends = place, nil, nil, nil
	var err error
	if !place.unbegun {
		if s.foundFrom, err = t.decode(&place.from); err != nil {
			return step{}, err
		}
	}
	if place.bounded {
		if s.foundUpper, err = t.decode(&place.upper); err != nil {
			return step{}, err
		}
	}
	condition := t.inRange("t.", s.foundFrom, s.foundUpper, s.lease.Partition)
	return step{
		what: fmt.Sprintf("read the keys of table %q", t.declared.Name), arguments: condition.arguments,
		sql: fmt.Sprintf(`
SELECT %s
  FROM %s AS t
 WHERE %s
 ORDER BY %s
OFFSET %d
 LIMIT 1`, t.texts("t."), t.sql, condition.sql(), t.names("t."), place.limit-1),
		rows: func(rows pgx.Rows) (err error) {
			s.ends, err = t.collectKeys(rows)
			return err
		},
	}, nil
}

// withoutLooking fills all rows of the batch in one statement, which waits for rows that the program holds.
func (s *scan) withoutLooking(ctx context.Context) (storage.Batch, error) {
	batch := storage.Batch{Done: s.last, Leftovers: s.leftovers}
	wanted := int64(s.limit)
	steps := s.updateRange(&batch.Rows)
	var err error
	if !s.last {
		// As many rows as were counted to the end of the batch; in one round trip with what counts them anew.
		err = s.advance(ctx, wanted, steps...)
	} else {
		if err = send(ctx, s.Tx, append([]step{s.countRange(&wanted)}, steps...)...); err == nil {
			err = s.advance(ctx, batch.Rows)
		}
	}
	if err == nil && batch.Rows < wanted {
		err = errRangeMoved // rows are gone, or something keeps the update from them: whoever locks them first can tell
	}
	return batch, err
}

// countRange counts the rows of the batch.
func (s *scan) countRange(rows *int64) step {
	t := s.plan.table
	condition := t.inRange("t.", s.from, s.end, s.partition())
	return step{
		what: fmt.Sprintf("count rows of table %q", t.declared.Name), arguments: condition.arguments, rows: scanRow(rows),
		sql: fmt.Sprintf("SELECT count(*) FROM %s AS t WHERE %s", t.sql, condition.sql()),
	}
}

// updateRange is the update of all rows of the batch. rows becomes their number.
func (s *scan) updateRange(rows *int64) []step {
	t := s.plan.table
	condition := t.inRange("", s.from, s.end, s.partition())
	return s.checkingConstraints(s.applying("update", s.single()), step{
		arguments: condition.arguments,
		sql:       fmt.Sprintf("UPDATE %s\n   SET %s\n WHERE %s", t.sql, s.plan.set, condition.sql()),
		done:      func(tag pgconn.CommandTag) { *rows = tag.RowsAffected() },
	})
}

// single is the key of a batch of one row, for errors.
func (s *scan) single() [][]string {
	if s.limit == 1 && s.end != nil {
		return [][]string{s.end}
	}
	return nil
}

// asAWhole locks the rows of the range in a statement of its own, and fills the range: keys do not travel. Locked rows stay, so if as
// many rows are filled as were locked, they are the same.
func (s *scan) asAWhole(ctx context.Context) (storage.Batch, error) {
	t := s.plan.table
	condition := t.inRange("t.", s.from, s.end, s.partition())
	var locked, filled int64
	err := send(ctx, s.Tx,
		step{
			what: fmt.Sprintf("lock rows of table %q", t.declared.Name), arguments: condition.arguments, rows: scanRow(&locked),
			sql: fmt.Sprintf("SELECT count(*) FROM (SELECT FROM %s AS t WHERE %s\n ORDER BY %s%s) AS locked",
				t.sql, condition.sql(), t.names("t."), s.plan.lockClause(skipLocked)),
		},
		byKeySQL(false)) // the user's SQL may go over small tables
	if err != nil {
		return storage.Batch{}, err
	}
	steps := s.updateRange(&filled)
	if statement := s.plan.statement(); statement != nil {
		if err := s.makeBatch(ctx); err != nil {
			return storage.Batch{}, err
		}
		steps = s.runningOverBatch("apply", statement.Apply, s.single(), step{
			sql:       fmt.Sprintf("SELECT %s FROM %s AS t WHERE %s", t.names("t."), t.sql, condition.sql()),
			arguments: condition.arguments,
			done:      func(tag pgconn.CommandTag) { filled = tag.RowsAffected() },
		})
	}
	batch := storage.Batch{Rows: locked, Done: s.last, Leftovers: s.leftovers}
	if err := s.advance(ctx, locked, steps...); err != nil {
		return batch, err
	}
	if filled != locked {
		return batch, errRangeMoved
	}
	return batch, nil
}

// rowByRow locks the rows that are free in a statement of its own, fills them, and keeps the others for later.
func (s *scan) rowByRow(ctx context.Context) (storage.Batch, error) {
	sorted, err := s.lockRange(ctx, s.from, s.end)
	if err != nil {
		return storage.Batch{}, err
	}
	batch := storage.Batch{Rows: int64(len(sorted.locked)), Skipped: int64(len(sorted.held)), Done: s.last}
	batch.Leftovers = s.leftovers + batch.Skipped
	var steps []step
	if len(sorted.held) > 0 {
		if err := s.keepable(sorted.held); err != nil {
			return batch, err
		}
		steps = append(steps, s.keepingLeftovers(sorted.held))
	}
	if s.plan.statement() != nil || len(sorted.locked) == 0 {
		if err := s.apply(ctx, sorted); err != nil {
			return batch, err
		}
		return batch, s.advance(ctx, batch.Rows, steps...)
	}
	var updated int64
	if err := s.advance(ctx, batch.Rows, append(steps, s.updateKeys(sorted.locked, &updated)...)...); err != nil {
		return batch, err
	}
	return batch, s.checkFilled(ctx, sorted.locked, updated)
}

// advance sends what is left of the batch: the steps, then the cursor, then the ownership check.
func (s *scan) advance(ctx context.Context, rows int64, steps ...step) error {
	cursor := s.cursor
	if !s.last {
		text := storage.EncodeKey(s.end)
		cursor = &text
	}
	moved := false
	err := s.finish(ctx, append(steps, step{
		what: "move the cursor",
		sql: s.store.sql(`
			UPDATE {schema}.sync_backfill_progress
			   SET cursor_key = $6::text,
			       done = $7::boolean,
			       rows_done = rows_done + $8::bigint,
			       updated_at_ms = ` + nowMS + `
			 WHERE checkpoint = $1::text
			   AND kind = 'range'
			   AND partition = $2::text
			   AND range_no = $3::integer
			   AND lease_epoch = $4::bigint
			   AND claim_token = $5::text
			   AND cursor_key IS NOT DISTINCT FROM $9::text
			   AND NOT done`),
		arguments: []any{s.claim.Name, s.partition(), s.lease.Range, s.lease.Epoch, s.claim.Token, cursor, s.last, rows, s.cursor},
		done:      func(tag pgconn.CommandTag) { moved = tag.RowsAffected() == 1 },
	})...)
	if err == nil && !moved {
		return s.leaseLost()
	}
	return err
}

// sqlStateClass gives the first two characters of the server's state in the chain, "" if there is none.
func sqlStateClass(err error) string {
	state := sqlState(err)
	if len(state) < 2 || state == stateNoPrivilege {
		return ""
	}
	return state[:2]
}
