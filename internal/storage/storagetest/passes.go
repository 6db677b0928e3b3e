package storagetest

import (
	"context"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The steps of a backfill as its runner takes them, without its pauses.

func (f *fixture) take(claim storage.Claim, index, of int) []storage.Lease {
	f.Helper()
	leases, err := f.store.TakeRanges(f.ctx, claim, index, of)
	f.must(err, "take ranges")
	return leases
}

// maxBatches bounds every loop over batches.
const maxBatches = 10_000

// scan takes all ranges of a claim and scans them to their ends.
func (f *fixture) scan(claim storage.Claim) (rows int64) {
	f.Helper()
	for _, lease := range f.take(claim, 0, 1) {
		rows += f.scanRange(claim, lease)
	}
	return rows
}

func (f *fixture) scanRange(claim storage.Claim, lease storage.Lease) (rows int64) {
	f.Helper()
	for range maxBatches {
		if lease.Done {
			return rows
		}
		var batch storage.Batch
		f.must(retry(f.ctx, func() (err error) {
			batch, err = f.store.ScanBatch(f.ctx, claim, lease)
			return err
		}), "scan a batch")
		rows += batch.Rows
		lease.Done = batch.Done
	}
	f.Fatalf("range %d does not end", lease.Range)
	return rows
}

// tail applies the log until nothing is left to read.
func (f *fixture) tail(claim storage.Claim, partition string) (rows int64) {
	f.Helper()
	for range maxBatches {
		var batch storage.Batch
		f.must(retry(f.ctx, func() (err error) {
			batch, err = f.store.TailBatch(f.ctx, claim, partition, 100)
			return err
		}), "tail a batch")
		if batch.Unverifiable != "" {
			f.Fatalf("the tail is unverifiable: %s", batch.Unverifiable)
		}
		rows += batch.Rows
		if batch.Done {
			return rows
		}
	}
	f.Fatalf("the tail of partition %q does not end", partition)
	return rows
}

func (f *fixture) leftovers(claim storage.Claim, partition string) {
	f.Helper()
	for range maxBatches {
		var batch storage.Batch
		f.must(retry(f.ctx, func() (err error) {
			batch, err = f.store.RetryLeftovers(f.ctx, claim, partition, 100)
			return err
		}), "retry leftovers")
		if batch.Done {
			return
		}
	}
	f.Fatalf("leftovers of partition %q do not end", partition)
}

// finish brings a scanned row to its activation, and compares the derived data with its definition inside that transaction.
func (f *fixture) finish(claim storage.Claim, partition string) storage.ActivationReport {
	f.Helper()
	f.tail(claim, partition)
	f.leftovers(claim, partition)
	f.must(f.store.VerifyRow(f.ctx, claim, partition), "verify")
	return f.attempt(claim, storage.Activation{Partition: partition})
}

// attempt tries an activation until it is not merely late.
func (f *fixture) attempt(claim storage.Claim, activation storage.Activation) (report storage.ActivationReport) {
	f.Helper()
	f.must(retry(f.ctx, func() (err error) {
		report, err = f.store.Activate(f.ctx, claim, activation)
		return err
	}), "activate")
	return report
}

const wrongTitles = "SELECT count(*) FROM todos WHERE (title_norm IS NULL OR title_norm <> lower(title))"

// derived compares all of title_norm with its definition.
func (f *fixture) derived() {
	f.Helper()
	same(f, "rows whose title_norm is wrong", f.number(wrongTitles), 0)
}

func (f *fixture) filled() int64 {
	f.Helper()
	return f.number("SELECT count(*) FROM todos WHERE title_norm IS NOT NULL")
}

// derivedWords compares the table words with its definition, both ways.
func (f *fixture) derivedWords() {
	f.Helper()
	same(f, "words missing or wrong", f.number(`SELECT count(*) FROM todos LEFT JOIN words ON words.id = todos.id WHERE words.word IS NULL OR words.word <> lower(todos.title)`), 0)
	same(f, "words of todos that are gone", f.number(`SELECT count(*) FROM words WHERE NOT EXISTS (SELECT 1 FROM todos WHERE todos.id = words.id)`), 0)
}

// wrongInside counts wrong titles inside somebody's transaction.
func wrongInside(ctx context.Context, q storage.Querier) error {
	rows, err := q.Query(ctx, wrongTitles)
	if err != nil {
		return err
	}
	if got := fmt.Sprint(rows[0][0]); got != "0" {
		return fmt.Errorf("%s rows are wrong at the activation", got)
	}
	return nil
}

// fill puts many todos into a partition at once, as a load does that needs no log: before the checkpoint is claimed.
func (f *fixture) fill(partition string, first, count int64) {
	f.Helper()
	tx := f.begin(partition, 99)
	for id := first; id < first+count; id++ {
		_, err := tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES ($1, $2, $3)", id, partition, fmt.Sprint("Title ", id))
		f.must(err, "fill todos")
	}
	f.must(tx.Commit(f.ctx), "commit")
}
