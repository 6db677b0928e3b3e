package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// scanWindow is how many rows, as a multiple of the batch, a batch looks at where most of them belong to other partitions. It bounds
// how long the program waits.
const scanWindow = 10

// ScanBatch does one batch of a range in one transaction: keys above the cursor, applied, cursor moved, ownership checked last. SQLite has
// one writer, so nobody holds any of the rows, and the program waits until the batch is done: it is short.
//
// A paused checkpoint gives a batch with nothing but its settings, a row that this claim has activated one that is done.
//
// Errors: CodeOwnershipLost leaves nothing of the batch behind; CodeInvalidSQL, which names the key in a batch of one row.
func (s *Store) ScanBatch(ctx context.Context, claim storage.Claim, lease storage.Lease) (batch storage.Batch, err error) {
	what := fmt.Sprintf("scan range %d of checkpoint %q", lease.Range, claim.Name)
	var done func(error) error // names the key of a batch of one row, if it fails at COMMIT
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		batch, done = storage.Batch{}, nil
		w, row, err := openWork(ctx, tx, claim, lease.Partition)
		if err != nil {
			return err
		}
		batch.Settings = w.definition.Checkpoint.Settings
		if row.State == storage.Activated {
			batch.Done = true
			return nil
		}
		r, err := w.readRange(ctx, claim, lease)
		if err != nil {
			return err
		}
		if batch.Done = r.done; r.done || batch.Settings.Paused {
			return nil
		}
		last, err := w.scan(ctx, claim, lease, r, &batch)
		if err != nil {
			return err
		}
		if err := checkLease(ctx, tx, claim, lease); err != nil {
			return err
		}
		if batch.Rows == 1 && lease.Limit == 1 {
			done = func(err error) error { return w.named(err, last) }
		}
		return nil
	})
	if err != nil && done != nil {
		err = done(err)
	}
	if err != nil {
		return storage.Batch{Settings: batch.Settings}, err
	}
	return batch, nil
}

// scanRange is a key range with its cursor.
type scanRange struct {
	keyRange
	done bool
}

// readRange reads a range. CodeOwnershipLost if another worker holds it, or the pass that it belonged to was given up.
func (w *work) readRange(ctx context.Context, claim storage.Claim, lease storage.Lease) (r scanRange, err error) {
	if err := checkLease(ctx, w.tx, claim, lease); err != nil {
		return r, err
	}
	var cursor, upper sql.NullString
	err = w.tx.QueryRowContext(ctx, `
		SELECT cursor_key, upper_key, done
		  FROM main.sync_backfill_progress
		 WHERE checkpoint = ?1
		   AND kind = 'range'
		   AND partition = ?2
		   AND range_no = ?3`, claim.Name, lease.Partition, lease.Range).Scan(&cursor, &upper, &r.done)
	if err != nil {
		return r, err
	}
	r.part = w.partOf(lease.Partition)
	for _, bound := range []struct {
		text sql.NullString
		key  *[]any
	}{{cursor, &r.after}, {upper, &r.upTo}} {
		if !bound.text.Valid {
			continue
		}
		if *bound.key, err = decodeCursor(bound.text.String, len(w.key.columns)); err != nil {
			return r, err
		}
	}
	return r, nil
}

// scan applies the next keys of a range and moves its cursor to the last one that it looked at, which it returns.
func (w *work) scan(ctx context.Context, claim storage.Claim, lease storage.Lease, r scanRange, batch *storage.Batch) (last []any, err error) {
	limit := batch.Settings.WithDefaults().BatchRows
	if lease.Limit > 0 {
		limit = min(limit, lease.Limit)
	}
	if err := w.makeRelations(ctx); err != nil {
		return nil, err
	}
	if last, err = w.fillBatch(ctx, r, limit); err != nil {
		return nil, err
	}
	if batch.Rows, err = w.count(ctx, "count a batch", "SELECT count(*) FROM "+batchRelation); err != nil {
		return nil, err
	}
	if batch.Rows > 0 {
		if err := w.fill(ctx, batch.Rows); err != nil {
			return nil, w.nameKey(ctx, err, limit)
		}
	}
	if batch.Done, err = w.isLast(ctx, r, last); err != nil {
		return nil, err
	}
	if err := w.dropRelations(ctx); err != nil {
		return nil, err
	}
	return last, w.moveCursor(ctx, claim, lease, last, batch)
}

// fillBatch puts the next keys of a range into batch and returns the last key it looked at, nil if there was none.
func (w *work) fillBatch(ctx context.Context, r scanRange, limit int) (last []any, err error) {
	condition, arguments := r.condition(w.key, "t.")
	if r.part.column == "" || r.part.leads {
		err := w.exec(ctx, "fill a batch", `
			INSERT INTO `+batchRelation+`
			SELECT `+w.key.list("t.")+`
			  FROM `+w.table()+` AS t
			 WHERE `+condition+`
			 ORDER BY `+w.key.order("t.", "")+`
			 LIMIT ?`, append(arguments, limit)...)
		if err != nil {
			return nil, err
		}
		return w.readKeyOf(ctx, "read the end of a batch", `
			SELECT `+w.key.values("b.")+`
			  FROM `+batchRelation+` AS b
			 ORDER BY `+w.key.order("b.", " DESC")+`
			 LIMIT 1`)
	}
	return w.fillFromPart(ctx, r.part, condition, arguments, limit)
}

// fillFromPart fills a batch where rows of other partitions lie between. The batch ends after so many rows looked at, too.
func (w *work) fillFromPart(ctx context.Context, p part, condition string, arguments []any, limit int) (last []any, err error) {
	inPart, more := p.condition("t.")
	arguments = append(more, arguments...)
	rows, err := w.tx.QueryContext(ctx, `
		SELECT coalesce(`+inPart+`, 0), `+w.key.values("t.")+`
		  FROM `+w.table()+` AS t
		 WHERE `+condition+`
		 ORDER BY `+w.key.order("t.", "")+`
		 LIMIT ?`, append(arguments, max(scanWindow*limit, rowsPerStatement))...)
	if err != nil {
		return nil, translate(err, fmt.Sprintf("checkpoint %q: read the next keys", w.definition.Name))
	}
	var keys [][]any
	err = eachRow(rows, func(values []any) bool {
		last = values[1:]
		if values[0] == int64(1) {
			keys = append(keys, last)
		}
		return len(keys) < limit
	})
	if err != nil {
		return nil, translate(err, fmt.Sprintf("checkpoint %q: read the next keys", w.definition.Name))
	}
	return last, w.insertKeys(ctx, batchRelation, keys)
}

// eachRow hands rows on until there are no more or enough.
func eachRow(rows *sql.Rows, more func(values []any) bool) (err error) {
	defer func() { err = firstError(err, rows.Close()) }()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	for rows.Next() {
		values, targets := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			targets[i] = &values[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return err
		}
		for i := range values {
			values[i] = notNil(values[i])
		}
		if !more(values) {
			return nil
		}
	}
	return rows.Err()
}

// rowsPerStatement is how many rows one INSERT of keys has at most.
const rowsPerStatement = 200

// insertKeys puts keys into one of the temporary tables, each once.
func (w *work) insertKeys(ctx context.Context, relation string, keys [][]any) error {
	for len(keys) > 0 {
		part := keys[:min(rowsPerStatement, len(keys))]
		keys = keys[len(part):]
		var arguments []any
		for _, key := range part {
			arguments = append(arguments, key...)
		}
		err := w.exec(ctx, "fill "+relation, "INSERT OR IGNORE INTO "+relation+" VALUES "+places(len(part), len(part[0])), arguments...)
		if err != nil {
			return err
		}
	}
	return nil
}

// isLast says whether nothing of the range lies above the last key.
func (w *work) isLast(ctx context.Context, r scanRange, last []any) (bool, error) {
	if last == nil {
		return true, nil
	}
	r.after = last
	condition, arguments := r.condition(w.key, "t.")
	more, err := w.count(ctx, "look for more keys", "SELECT EXISTS (SELECT 1 FROM "+w.table()+" AS t WHERE "+condition+")", arguments...)
	return more == 0, err
}

// moveCursor notes how far the range is scanned. The key that the batch ended with is never looked at again.
func (w *work) moveCursor(ctx context.Context, claim storage.Claim, lease storage.Lease, last []any, batch *storage.Batch) error {
	var cursor any
	if last != nil {
		text, err := encodeCursor(last)
		if err != nil {
			return err
		}
		cursor = text
	}
	return w.exec(ctx, "move the cursor", `
		UPDATE main.sync_backfill_progress
		   SET cursor_key = coalesce(?6, cursor_key),
		       done = ?7,
		       rows_done = rows_done + ?8,
		       updated_at_ms = ?9
		 WHERE checkpoint = ?1
		   AND kind = 'range'
		   AND partition = ?2
		   AND range_no = ?3
		   AND lease_epoch = ?4
		   AND claim_token = ?5`,
		claim.Name, lease.Partition, lease.Range, lease.Epoch, claim.Token, cursor, batch.Done, batch.Rows, nowMillis())
}

// nameKey adds the key to an error of the user's SQL in a batch of one row.
func (w *work) nameKey(ctx context.Context, err error, limit int) error {
	if limit != 1 || storage.ClassOf(err) != storage.ClassInvalidSQL {
		return err
	}
	key, readErr := w.readKeyOf(ctx, "read the key that failed", "SELECT "+w.key.values("b.")+" FROM "+batchRelation+" AS b")
	if readErr != nil || key == nil {
		return err
	}
	return w.named(err, key)
}

// named adds a key to an error of the user's SQL.
func (w *work) named(err error, key []any) error {
	if storage.ClassOf(err) != storage.ClassInvalidSQL {
		return err
	}
	named := &storage.Error{
		Code: storage.CodeInvalidSQL, Err: err,
		Message: fmt.Sprintf("table %q, key %.200q", w.key.table, storage.EncodeKey(keyTexts(key))),
	}
	var refused *storage.Error
	if errors.As(err, &refused) { // taken in, not wrapped: its text ends with the code, which would then be said twice
		named.Message += ": " + refused.Message
		named.Hint, named.Err = refused.Hint, refused.Err
	}
	return named
}
