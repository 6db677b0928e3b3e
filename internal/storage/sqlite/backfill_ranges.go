package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	rowsPerRange = 50_000
	maxRanges    = 64 // of one checkpoint row
)

// cut is where the table is cut for one checkpoint row: the upper bounds of all ranges but the last.
type cut struct {
	bounds []string
	rows   int64
}

// cutAll seeks the cuts for every row whose pass begins with this claim.
func (c *claimer) cutAll(ctx context.Context) (map[string]cut, error) {
	cuts := map[string]cut{}
	if c.work == nil {
		return cuts, nil
	}
	var counts map[string]int64
	for _, row := range c.rows {
		if !c.begins(row) {
			continue
		}
		if counts == nil {
			var err error
			if counts, err = c.work.countRows(ctx); err != nil {
				return nil, err
			}
		}
		part := c.work.partOf(row.Partition)
		rows := counts[storage.AllPartitions]
		if part.column != "" {
			rows = counts[row.Partition]
		}
		bounds, err := c.work.seekBounds(ctx, part, rows)
		if err != nil {
			return nil, err
		}
		cuts[row.Partition] = cut{bounds: bounds, rows: rows}
	}
	return cuts, nil
}

// part is the part of the table that a checkpoint row covers: all of it, or the rows of one partition.
type part struct {
	column    string // the column that holds the partition; "": all rows
	leads     bool   // the column is the first of the key, so the part is one stretch of it
	partition string
}

// partOf gives the part of a checkpoint row.
func (w *work) partOf(partition string) part {
	table := w.definition.Table
	switch {
	case partition == storage.AllPartitions:
		return part{}
	case table.Layout == storage.Syncular:
		return part{column: storage.ColumnPartition, leads: true, partition: partition}
	case table.Partition.Column != "":
		return part{column: table.Partition.Column, partition: partition}
	default:
		return part{}
	}
}

// text is the partition of a row as text. A partition key is exact, whatever the column's collation.
func (p part) text(qualifier string) string {
	return "CAST(" + qualifier + quoteIdentifier(p.column) + " AS TEXT)"
}

// condition says that a row belongs to the part.
func (p part) condition(qualifier string) (string, []any) {
	if p.column == "" {
		return "", nil
	}
	return p.text(qualifier) + " = ? COLLATE BINARY", []any{p.partition}
}

// countRows counts the rows of the table, in all and by partition.
func (w *work) countRows(ctx context.Context) (map[string]int64, error) {
	counts := map[string]int64{}
	all, err := w.count(ctx, "count the rows of the table", "SELECT count(*) FROM "+w.table())
	if err != nil {
		return nil, err
	}
	counts[storage.AllPartitions] = all
	p := w.partOf("of any")
	if p.column == "" || len(w.definition.Checkpoint.Partitions) == 0 {
		return counts, nil
	}
	type counted struct {
		partition string
		rows      int64
	}
	listed, err := collect(ctx, w.tx, func(row interface{ Scan(...any) error }) (one counted, err error) {
		return one, row.Scan(&one.partition, &one.rows)
	}, `
		SELECT `+p.text("t.")+` COLLATE BINARY AS partition, count(*)
		  FROM `+w.table()+` AS t
		 WHERE t.`+quoteIdentifier(p.column)+` IS NOT NULL
		 GROUP BY 1`)
	for _, one := range listed {
		counts[one.partition] = one.rows
	}
	return counts, translate(err, "count the rows by partition")
}

// seekBounds seeks the key at the end of every so many rows.
func (w *work) seekBounds(ctx context.Context, p part, rows int64) (bounds []string, err error) {
	size := max(rowsPerRange, (rows+maxRanges-1)/maxRanges)
	var after []any
	for wanted := (rows - 1) / size; wanted > int64(len(bounds)); {
		stretch := keyRange{part: p, after: after}
		condition, arguments := stretch.condition(w.key, "t.")
		inPart, more := p.condition("t.")
		if inPart != "" && !p.leads {
			condition, arguments = and(condition, inPart), append(arguments, more...)
		}
		key, err := w.readKeyOf(ctx, "seek the bounds of ranges", `
			SELECT `+w.key.values("t.")+`
			  FROM `+w.table()+` AS t
			 WHERE `+condition+`
			 ORDER BY `+w.key.order("t.", "")+`
			 LIMIT 1 OFFSET ?`, append(arguments, size-1)...)
		if err != nil || key == nil {
			return bounds, err
		}
		bound, err := encodeCursor(key)
		if err != nil {
			return nil, err
		}
		bounds, after = append(bounds, bound), key
	}
	return bounds, nil
}

// readKeyOf runs a query for one key; nil if it finds none.
func (w *work) readKeyOf(ctx context.Context, what, text string, arguments ...any) ([]any, error) {
	keys, err := w.readKeys(ctx, what, text, arguments...)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	return keys[0], nil
}

// readKeys runs a query for keys.
func (w *work) readKeys(ctx context.Context, what, text string, arguments ...any) ([][]any, error) {
	rows, err := w.tx.QueryContext(ctx, text, arguments...)
	if err != nil {
		return nil, translate(err, fmt.Sprintf("checkpoint %q: %s", w.definition.Name, what))
	}
	_, keys, err := collectResult(rows)
	return keys, translate(err, fmt.Sprintf("checkpoint %q: %s", w.definition.Name, what))
}

// keyRange is a stretch of the key: above after, up to upTo, as far as they are there.
type keyRange struct {
	part        part
	after, upTo []any
}

// condition gives the stretch as one that the key's index can walk from end to end. A part that leads the key is part of the bounds: an
// equality beside them would make SQLite walk the part from its beginning each time. Rows whose key holds NULL are in no stretch; activation
// refuses them.
func (r keyRange) condition(key tableKey, qualifier string) (condition string, arguments []any) {
	condition = "true"
	if null, possible := key.isNull(qualifier); possible {
		condition = "NOT (" + null + ")"
	}
	if r.after != nil {
		condition = and(condition, key.row(qualifier)+" > "+key.place())
		arguments = append(arguments, r.after...)
	}
	if r.upTo != nil {
		condition = and(condition, key.row(qualifier)+" <= "+key.place())
		arguments = append(arguments, r.upTo...)
	}
	if !r.part.leads {
		return condition, arguments
	}
	first := key.collated(qualifier)[0]
	switch {
	case r.after == nil && r.upTo == nil:
		condition, arguments = and(condition, first+" = ?"), append(arguments, r.part.partition)
	case r.after == nil:
		condition, arguments = and(condition, first+" >= ?"), append(arguments, r.part.partition)
	case r.upTo == nil:
		condition, arguments = and(condition, first+" <= ?"), append(arguments, r.part.partition)
	}
	return condition, arguments
}

func and(a, b string) string {
	if a == "true" {
		return b
	}
	return a + " AND " + b
}

// writeRanges writes the ranges of a row. They are numbered over the whole checkpoint, so that workers can share them out.
func (c *claimer) writeRanges(ctx context.Context, partition string, bounds []string) error {
	var next int64
	err := c.tx.QueryRowContext(ctx, `
		SELECT coalesce(max(range_no) + 1, 0)
		  FROM main.sync_backfill_progress
		 WHERE checkpoint = ?1
		   AND kind = 'range'`, c.request.name).Scan(&next)
	if err != nil {
		return err
	}
	var lower any
	for i := range len(bounds) + 1 {
		var upper any
		if i < len(bounds) {
			upper = bounds[i]
		}
		_, err := c.tx.ExecContext(ctx, `
			INSERT INTO main.sync_backfill_progress(checkpoint, kind, partition, range_no, claim_token, lower_key, upper_key, cursor_key, updated_at_ms)
			VALUES (?1, 'range', ?2, ?3, ?4, ?5, ?6, ?5, ?7)`,
			c.request.name, partition, next+int64(i), c.claim.Token, lower, upper, nowMillis())
		if err != nil {
			return err
		}
		lower = upper
	}
	return nil
}

// TakeRanges takes the ranges r of a claim with r mod of = index: their lease epochs are raised, so whoever held them before is refused
// from then on. Finished ones are returned too.
//
// Errors: CodeInvalidSpec; CodeOwnershipLost if the claim is not the newest.
func (s *Store) TakeRanges(ctx context.Context, claim storage.Claim, index, of int) (leases []storage.Lease, err error) {
	if of < 1 || index < 0 || index >= of {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "worker %d of %d: the first is 0 of 1", index, of)
	}
	what := fmt.Sprintf("take ranges of checkpoint %q", claim.Name)
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		leases, err = collect(ctx, tx, func(row interface{ Scan(...any) error }) (lease storage.Lease, err error) {
			return lease, row.Scan(&lease.Partition, &lease.Range, &lease.Epoch, &lease.Done, &lease.Rows)
		}, `
			UPDATE main.sync_backfill_progress AS r
			   SET lease_epoch = lease_epoch + 1,
			       claim_token = ?2,
			       updated_at_ms = ?3
			 WHERE r.checkpoint = ?1
			   AND r.kind = 'range'
			   AND r.range_no % ?4 = ?5
			   AND EXISTS (
			     SELECT 1
			       FROM main.sync_backfill_progress c
			      WHERE c.checkpoint = r.checkpoint
			        AND c.kind = 'claim'
			        AND c.partition = r.partition
			        AND c.claim_token = ?2)
			RETURNING partition, range_no, lease_epoch, done, rows_done`,
			claim.Name, claim.Token, nowMillis(), of, index)
		if err != nil {
			return err
		}
		for _, row := range claim.Rows {
			if _, err := readOwned(ctx, tx, claim, row.Partition); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	sortLeases(leases)
	return leases, nil
}
