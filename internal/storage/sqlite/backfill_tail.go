package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// partitionsPerTail is how many partitions one tail batch of a row '*' looks at.
const partitionsPerTail = 1000

// TailBatch applies logged source changes above the position of a claimed row, whole commits, at most limit changes, and moves the position.
// Where there is nothing to do it does not take the write lock. A row that this claim has activated has nothing left; a paused checkpoint
// gives a batch with nothing but its settings.
//
// Errors: CodeOwnershipLost; CodeInvalidSpec for an external checkpoint. Batch.Unverifiable if the log cannot answer.
func (s *Store) TailBatch(ctx context.Context, claim storage.Claim, partition string, limit int) (batch storage.Batch, err error) {
	what := fmt.Sprintf("tail checkpoint %q in partition %q", claim.Name, partition)
	idle := false
	err = s.inTx(ctx, what, false, func(ctx context.Context, tx *sql.Conn) error {
		t, err := openTail(ctx, tx, claim, partition)
		if err != nil {
			return err
		}
		idle, batch = t.idle(), t.batch
		return nil
	})
	if err != nil || idle {
		return batch, err
	}
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		t, err := openTail(ctx, tx, claim, partition)
		if err == nil && !t.idle() {
			err = t.run(ctx, claim, int64(max(1, limit)))
		}
		if err == nil {
			batch = t.batch
		}
		return err
	})
	if err != nil {
		return storage.Batch{Settings: batch.Settings}, err
	}
	return batch, nil
}

// tail is one tail batch in one transaction.
type tail struct {
	*work
	row   owned
	found []behind
	batch storage.Batch
}

func openTail(ctx context.Context, tx *sql.Conn, claim storage.Claim, partition string) (*tail, error) {
	w, row, err := openWork(ctx, tx, claim, partition)
	if err != nil {
		return nil, err
	}
	t := &tail{work: w, row: row, batch: storage.Batch{Settings: w.definition.Checkpoint.Settings}}
	if row.State == storage.Activated || t.batch.Settings.Paused {
		t.batch.Done = row.State == storage.Activated
		return t, nil
	}
	if t.batch.Unverifiable, err = w.changedSince(ctx, row); err != nil || t.batch.Unverifiable != "" {
		return t, err
	}
	if t.batch.Leftovers, err = w.countLeftovers(ctx, row); err != nil {
		return t, err
	}
	t.found, t.batch.Unverifiable, err = w.readBehind(ctx, row, partitionsPerTail)
	return t, err
}

// idle says that there is nothing to apply, and marks the batch so.
func (t *tail) idle() bool {
	if t.batch.Unverifiable != "" || t.batch.Done || t.batch.Settings.Paused {
		return true
	}
	for _, b := range t.found {
		if b.last > b.position {
			return false
		}
	}
	t.batch.Done = true
	return true
}

// step is how far one partition's log is read by a batch.
type step struct {
	behind
	upTo int64
}

func (t *tail) run(ctx context.Context, claim storage.Claim, limit int64) error {
	if err := t.makeRelations(ctx); err != nil {
		return err
	}
	steps, err := t.read(ctx, limit)
	if err != nil || t.batch.Unverifiable != "" {
		return firstError(err, t.dropRelations(ctx))
	}
	if t.batch.Rows, err = t.applyKeys(ctx); err != nil {
		return err
	}
	for _, s := range steps {
		if err := t.movePosition(ctx, t.row, s.behind, s.upTo); err != nil {
			return err
		}
	}
	if err := t.dropRelations(ctx); err != nil {
		return err
	}
	return checkOwner(ctx, t.tx, claim, t.row.Partition, storage.Backfilling)
}

// read collects the keys of the next changes, partition by partition, until there are enough.
func (t *tail) read(ctx context.Context, limit int64) (steps []step, err error) {
	t.batch.Done = len(t.found) < partitionsPerTail
	for _, b := range t.found {
		if limit <= 0 {
			t.batch.Done = false
			break
		}
		upTo, all, err := t.stretchOf(ctx, b, limit)
		if err != nil {
			return nil, err
		}
		changes, reason, err := t.collectChanges(ctx, b, upTo)
		if err != nil {
			return nil, err
		}
		if reason != "" {
			t.batch.Unverifiable, t.batch.Done = reason, false
			return nil, nil
		}
		limit -= changes
		t.batch.Done = t.batch.Done && all
		steps = append(steps, step{behind: b, upTo: upTo})
	}
	return steps, nil
}

// RetryLeftovers does the leftovers of a row, at most limit of them. No batch of ours leaves any: with one writer at a time it never meets a
// row that somebody holds. What stands there was written by another program, or came with the database.
//
// Errors: CodeOwnershipLost; CodeInvalidSQL.
func (s *Store) RetryLeftovers(ctx context.Context, claim storage.Claim, partition string, limit int) (batch storage.Batch, err error) {
	what := fmt.Sprintf("retry the leftovers of checkpoint %q in partition %q", claim.Name, partition)
	left := int64(0)
	err = s.inTx(ctx, what, false, func(ctx context.Context, tx *sql.Conn) error {
		w, row, err := openWork(ctx, tx, claim, partition)
		if err != nil {
			return err
		}
		batch = storage.Batch{Settings: w.definition.Checkpoint.Settings}
		left, err = w.countLeftovers(ctx, row)
		batch.Leftovers, batch.Done = left, left == 0
		return err
	})
	if err != nil || left == 0 || batch.Settings.Paused {
		return batch, err
	}
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		w, row, err := openWork(ctx, tx, claim, partition)
		if err != nil {
			return err
		}
		return w.retry(ctx, claim, row, max(1, limit), &batch)
	})
	if err != nil {
		return storage.Batch{Settings: batch.Settings}, err
	}
	return batch, nil
}

func (w *work) retry(ctx context.Context, claim storage.Claim, row owned, limit int, batch *storage.Batch) error {
	if err := w.makeRelations(ctx); err != nil {
		return err
	}
	done, err := w.collectLeftovers(ctx, row, limit)
	if err != nil {
		return err
	}
	if batch.Rows, err = w.applyKeys(ctx); err != nil {
		return err
	}
	if err := w.dropLeftovers(ctx, row, done); err != nil {
		return err
	}
	if batch.Leftovers, err = w.countLeftovers(ctx, row); err != nil {
		return err
	}
	batch.Done = batch.Leftovers == 0
	if err := w.dropRelations(ctx); err != nil {
		return err
	}
	return checkOwner(ctx, w.tx, claim, row.Partition, storage.Backfilling)
}

func (w *work) countLeftovers(ctx context.Context, row owned) (int64, error) {
	return w.count(ctx, "count the leftovers", `
		SELECT count(*)
		  FROM main.sync_backfill_leftovers
		 WHERE checkpoint = ?1
		   AND partition = ?2`, row.Name, row.Partition)
}
