package sqlite

import (
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// backfill is a database with a checkpoint under way, and a program beside it.
type backfillTest struct {
	testing.TB
	path    string
	store   *Store
	program program
	claim   storage.Claim
}

// newBackfill makes a database whose tables a program made and filled (setup), and brings it to version 1 with the checkpoint.
func newBackfill(t testing.TB, setup []string, tables []storage.Table, checkpoint storage.Checkpoint) *backfillTest {
	t.Helper()
	b := &backfillTest{TB: t, path: newFile(t)}
	b.store = openStore(t, b.path)
	b.program = openProgram(t, b.path)
	for _, statement := range setup {
		b.program.exec(statement)
	}
	apply(t, b.store, storage.Target{Version: 1, Tables: tables, Checkpoints: []storage.Checkpoint{checkpoint}, Owner: clinicOwner})
	return b
}

// begin claims the checkpoint.
func (b *backfillTest) begin() {
	b.Helper()
	claim, err := b.store.ClaimAll(testContext(b), "fill", false)
	if err != nil {
		b.Fatalf("claim: %v", err)
	}
	b.claim = claim
}

func (b *backfillTest) take(index, of int) []storage.Lease {
	b.Helper()
	leases, err := b.store.TakeRanges(testContext(b), b.claim, index, of)
	if err != nil {
		b.Fatalf("take ranges: %v", err)
	}
	return leases
}

// scan scans all ranges and gives the number of batches with rows, and of rows.
func (b *backfillTest) scan() (batches int, rows int64) {
	b.Helper()
	for _, lease := range b.take(0, 1) {
		for !lease.Done {
			batch, err := b.store.ScanBatch(testContext(b), b.claim, lease)
			if err != nil {
				b.Fatalf("scan range %d: %v", lease.Range, err)
			}
			batches++
			rows += batch.Rows
			lease.Done = batch.Done
			if batches > maxBatches {
				b.Fatalf("range %d does not end", lease.Range)
			}
		}
	}
	return batches, rows
}

// maxBatches bounds the loops of these tests.
const maxBatches = 2000

// tail reads the log to its end.
func (b *backfillTest) tail(partition string) (rows int64) {
	b.Helper()
	for range maxBatches {
		batch, err := b.store.TailBatch(testContext(b), b.claim, partition, 1000)
		if err != nil {
			b.Fatalf("tail: %v", err)
		}
		if batch.Unverifiable != "" {
			b.Fatalf("tail: unverifiable: %s", batch.Unverifiable)
		}
		rows += batch.Rows
		if batch.Done {
			return rows
		}
	}
	b.Fatalf("the tail of %s does not end", partition)
	return rows
}

func (b *backfillTest) activate(partition string) storage.ActivationReport {
	b.Helper()
	report, err := b.store.Activate(testContext(b), b.claim, storage.Activation{Partition: partition})
	if err != nil {
		b.Fatalf("activate: %v", err)
	}
	return report
}

// finish scans, tails, verifies and activates.
func (b *backfillTest) finish(partition string) (batches int, rows int64) {
	b.Helper()
	batches, rows = b.scan()
	b.tail(partition)
	if err := b.store.VerifyRow(testContext(b), b.claim, partition); err != nil {
		b.Fatalf("verify: %v", err)
	}
	same(b, "outcome", b.activate(partition).Outcome, storage.OutcomeActivated)
	return batches, rows
}

// write changes rows and logs them by their row ids, in one transaction, as a program of version 1 that follows the sync protocol does.
func (b *backfillTest) write(partition, table string, rowIDs []string, statement string, arguments ...any) {
	b.Helper()
	b.writeAs(1, partition, table, rowIDs, statement, arguments...)
}

func (b *backfillTest) writeAs(version int64, partition, table string, rowIDs []string, statement string, arguments ...any) {
	b.Helper()
	ctx := testContext(b)
	tx, err := b.store.Begin(ctx, partition, version)
	if err != nil {
		b.Fatalf("begin: %v", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if statement != "" {
		if _, err := tx.Exec(ctx, statement, arguments...); err != nil {
			b.Fatalf("%s: %v", statement, err)
		}
	}
	commit := storage.Commit{ClientID: "client", ClientCommitID: "commit", ActorID: "actor"}
	for _, rowID := range rowIDs {
		commit.Changes = append(commit.Changes, storage.Change{Table: table, RowID: rowID, Op: storage.OpUpsert})
	}
	if _, err := tx.AppendCommit(ctx, commit); err != nil {
		b.Fatalf("append a commit: %v", err)
	}
	if err := tx.Commit(ctx); err != nil {
		b.Fatalf("commit: %v", err)
	}
}

// counting is a checkpoint that counts in a column of its table how often a row was filled.
func counting(table string, partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "fill", Version: 1, Partitions: partitions,
		Sources:  []storage.Source{{Table: table, Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: table, Set: map[string]string{"filled": "coalesce(filled, 0) + 1"}}},
		Verify:   []storage.Verify{{Name: "filled", Query: fmt.Sprintf("SELECT * FROM %s WHERE filled IS NULL", table)}},
	}
}

// keyed declares a Plain table by the types of its key columns, with a column that counting fills.
func keyed(name string, keys ...storage.Column) storage.Table {
	t := storage.Table{Name: name, Layout: storage.Plain}
	for _, key := range keys {
		t.Columns = append(t.Columns, key)
		t.PrimaryKey = append(t.PrimaryKey, key.Name)
	}
	t.Columns = append(t.Columns, storage.Column{Name: "filled", Type: storage.TypeInteger, Nullable: true})
	return t
}

func key(name, sqlType string) storage.Column { return storage.Column{Name: name, SQLType: sqlType} }
