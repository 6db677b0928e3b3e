package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// todosBackfill has so many todos in the partitions a and b, and a checkpoint that counts how often each was filled.
func todosBackfill(t testing.TB, rows int, partitions ...string) *backfillTest {
	t.Helper()
	table := todosTable(nullableColumn("filled", storage.TypeInteger))
	b := newBackfill(t, []string{
		"PRAGMA journal_mode = WAL",
		"CREATE TABLE todos(id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, title TEXT NOT NULL)",
		manyRows("todos", "id, tenant, title", "n, CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END, 'Title ' || n", rows),
	}, []storage.Table{table}, counting("todos", partitions...))
	return b
}

func (b *backfillTest) setBatch(rows int) {
	b.Helper()
	if err := b.store.WriteSettings(testContext(b), "fill", storage.Settings{BatchRows: rows}); err != nil {
		b.Fatalf("change the settings: %v", err)
	}
}

// attempts are all a worker can do. Each is refused once its claim is lost.
func (b *backfillTest) attempts(claim storage.Claim, lease storage.Lease) map[string]func(ctx context.Context) error {
	partition := lease.Partition
	row, _ := claim.Row(partition)
	owner := storage.Ownership{Partition: partition, Name: claim.Name, OwnerEpoch: row.OwnerEpoch, Token: claim.Token}
	return map[string]func(ctx context.Context) error{
		"take ranges": func(ctx context.Context) error { _, err := b.store.TakeRanges(ctx, claim, 0, 1); return err },
		"scan":        func(ctx context.Context) error { _, err := b.store.ScanBatch(ctx, claim, lease); return err },
		"tail":        func(ctx context.Context) error { _, err := b.store.TailBatch(ctx, claim, partition, 10); return err },
		"leftovers": func(ctx context.Context) error {
			_, err := b.store.RetryLeftovers(ctx, claim, partition, 10)
			return err
		},
		"verify": func(ctx context.Context) error { return b.store.VerifyRow(ctx, claim, partition) },
		"advance": func(ctx context.Context) error {
			moved, err := b.store.AdvanceCheckpoint(ctx, storage.Advance{Ownership: owner, Watermark: 1 << 30})
			return lostUnless(moved, err)
		},
		"activate": func(ctx context.Context) error {
			report, err := b.store.Activate(ctx, claim, storage.Activation{Partition: partition})
			return lostUnless(report.Outcome != storage.OutcomeLost, err)
		},
		"activate as a program": func(ctx context.Context) error {
			outcome, err := b.store.ActivateCheckpoint(ctx, owner, 1<<30)
			return lostUnless(outcome != storage.OutcomeLost, err)
		},
	}
}

func lostUnless(owner bool, err error) error {
	if err == nil && !owner {
		return storage.Refuse(storage.CodeOwnershipLost, "not the owner")
	}
	return err
}

// wantRefused lets a frozen worker try all it can and compares the whole database before and after.
func (b *backfillTest) wantRefused(claim storage.Claim, lease storage.Lease, also ...storage.Code) {
	b.Helper()
	for name, attempt := range b.attempts(claim, lease) {
		before := b.program.dump()
		err := attempt(testContext(b))
		code := storage.CodeOf(err)
		if code != storage.CodeOwnershipLost && !slices.Contains(also, code) {
			b.Errorf("%s: got code %q (%v), want %q", name, code, err, storage.CodeOwnershipLost)
		}
		if b.program.dump() != before {
			b.Errorf("%s: the worker that lost its claim left a write behind", name)
		}
	}
}

func TestFrozenWorkerLeavesNothingBehind(t *testing.T) {
	for name, tt := range map[string]struct {
		takeOver func(b *backfillTest)
		also     []storage.Code
	}{
		"after another claim of all rows": {takeOver: func(b *backfillTest) {
			if _, err := b.store.ClaimAll(testContext(b), "fill", false); err != nil {
				b.Fatal(err)
			}
		}},
		"after a restart of the pass": {takeOver: func(b *backfillTest) {
			if _, err := b.store.ClaimAll(testContext(b), "fill", true); err != nil {
				b.Fatal(err)
			}
		}},
		"after a claim of its row alone": {takeOver: func(b *backfillTest) {
			if _, err := b.store.ClaimCheckpoint(testContext(b), "a", "fill"); err != nil {
				b.Fatal(err)
			}
		}},
		"after the checkpoint was abandoned": {
			takeOver: func(b *backfillTest) {
				if _, err := b.store.AbandonCheckpoint(testContext(b), "fill", 1, "alice", "a mistake"); err != nil {
					b.Fatal(err)
				}
			},
			also: []storage.Code{storage.CodeCheckpointNotDeclared},
		},
		"after a claim by a program of the sync protocol": {takeOver: func(b *backfillTest) {
			b.program.exec("UPDATE sync_backfill_checkpoints SET owner_epoch = owner_epoch + 1 WHERE name = 'fill'")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := todosBackfill(t, 40, "a")
			b.setBatch(5)
			b.begin()
			lease := b.take(0, 1)[0]
			if _, err := b.store.ScanBatch(testContext(t), b.claim, lease); err != nil {
				t.Fatal(err)
			}
			b.write("a", "todos", []string{"2"}, "UPDATE todos SET title = 'changed' WHERE id = 2")
			tt.takeOver(b)
			b.wantRefused(b.claim, lease, tt.also...)
			_, err := b.store.ReadClaim(testContext(t), "fill", b.claim.Token)
			if code := storage.CodeOf(err); code != storage.CodeOwnershipLost && !slices.Contains(tt.also, code) {
				t.Errorf("read the claim: got code %q (%v)", code, err)
			}
		})
	}
}

// The token alone is not the claim either.
func TestClaimWithAnotherEpochIsRefused(t *testing.T) {
	b := todosBackfill(t, 40, "a")
	b.begin()
	lease := b.take(0, 1)[0]
	b.claim.Rows[0].OwnerEpoch++
	b.wantRefused(b.claim, lease)
}

// Epochs come again after a restore: the copy does not know of later claims, so the same numbers are given out once more. Tokens are drawn,
// and do not come again.
func TestFrozenWorkerLeavesNothingBehindInARestoredCopy(t *testing.T) {
	b := todosBackfill(t, 40, "a")
	b.setBatch(5)
	b.begin()
	copied := newFile(t)
	b.program.exec("VACUUM INTO '" + copied + "'")
	b.begin()
	b.begin()
	frozen, lease := b.claim, b.take(0, 1)[0]
	row, _ := frozen.Row("a")

	restored := &backfillTest{TB: t, path: copied, store: openStore(t, copied), program: openProgram(t, copied)}
	for range 2 {
		restored.begin()
	}
	again, _ := restored.claim.Row("a")
	same(t, "epoch in the restored copy", again.OwnerEpoch, row.OwnerEpoch)
	restored.take(0, 1)
	restored.wantRefused(frozen, lease)
}

// The claim that the copy itself holds goes on, at the cursor that the copy holds.
func TestRestoredCopyGoesOnWhereItStood(t *testing.T) {
	b := todosBackfill(t, 40)
	b.setBatch(5)
	b.begin()
	lease := b.take(0, 1)[0]
	if _, err := b.store.ScanBatch(testContext(t), b.claim, lease); err != nil {
		t.Fatal(err)
	}
	b.store.Close()
	b.program.exec("PRAGMA wal_checkpoint(TRUNCATE)")
	content, err := os.ReadFile(b.path)
	if err != nil {
		t.Fatal(err)
	}
	copied := newFile(t)
	if err := os.WriteFile(copied, content, 0o600); err != nil {
		t.Fatal(err)
	}
	restored := &backfillTest{TB: t, path: copied, store: openStore(t, copied), program: openProgram(t, copied), claim: b.claim}
	_, rows := restored.finish(storage.AllPartitions)
	same(t, "rows scanned in the copy", rows, 35)
	same(t, "rows filled once", restored.program.number("SELECT count(*) FROM todos WHERE filled = 1"), 40)
}

func TestLeaseThatWasTakenAgainLeavesNothingBehind(t *testing.T) {
	b := todosBackfill(t, 40)
	b.setBatch(5)
	b.begin()
	older := b.take(0, 1)[0]
	newer := b.take(0, 1)[0]
	before := b.program.dump()
	_, err := b.store.ScanBatch(testContext(t), b.claim, older)
	wantCode(t, err, storage.CodeOwnershipLost)
	if b.program.dump() != before {
		t.Error("the worker that lost its range left a write behind")
	}
	if _, err := b.store.ScanBatch(testContext(t), b.claim, newer); err != nil {
		t.Fatal(err)
	}
	same(t, "rows filled", b.program.number("SELECT count(*) FROM todos WHERE filled = 1"), 5)
}

// The last statement of a batch is the ownership check. SQL of the user's that takes the claim away in the middle of a batch, as
// nothing else could do in SQLite, shows that it is really the last.
func TestOwnershipIsCheckedAfterEverythingElse(t *testing.T) {
	steal := "UPDATE sync_backfill_checkpoints SET owner_epoch = owner_epoch + 1; "
	checkpoint := counting("todos")
	checkpoint.Backfill = storage.Backfill{Statement: &storage.Statement{
		Table: "todos", Apply: "UPDATE todos SET filled = 1 WHERE id IN (SELECT id FROM batch); " + steal,
	}}
	b := newBackfill(t, []string{
		"CREATE TABLE todos(id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, title TEXT NOT NULL)",
		manyRows("todos", "id, tenant, title", "n, 'a', 'x'", 20),
	}, []storage.Table{todosTable(nullableColumn("filled", storage.TypeInteger))}, checkpoint)
	b.begin()
	lease := b.take(0, 1)[0]
	before := b.program.dump()
	_, err := b.store.ScanBatch(testContext(t), b.claim, lease)
	wantCode(t, err, storage.CodeOwnershipLost)
	if b.program.dump() != before {
		t.Error("a batch that lost its claim half-way left a write behind")
	}
	b.program.exec("UPDATE sync_backfill_progress SET done = 1 WHERE kind = 'range'")
	before = b.program.dump()
	report, err := b.store.Activate(testContext(t), b.claim, storage.Activation{
		Partition: storage.AllPartitions,
		BeforeCommit: func(ctx context.Context, q storage.Querier) error {
			_, err := q.Query(ctx, "UPDATE sync_backfill_progress SET claim_token = 'another' WHERE kind = 'claim' RETURNING 1")
			return err
		},
	})
	same(t, "outcome of an activation that loses its claim at its end", report.Outcome, storage.OutcomeLost)
	same(t, "error", err, nil)
	if b.program.dump() != before {
		t.Error("an activation that lost its claim at its end left a write behind")
	}
	b.write("a", "todos", []string{"3"}, "UPDATE todos SET title = 'y' WHERE id = 3")
	before = b.program.dump()
	_, err = b.store.TailBatch(testContext(t), b.claim, storage.AllPartitions, 10)
	wantCode(t, err, storage.CodeOwnershipLost)
	same(t, "outcome", b.activate(storage.AllPartitions).Outcome, storage.OutcomeLost)
	if b.program.dump() != before {
		t.Error("a tail batch or an activation that lost its claim half-way left a write behind")
	}
}

// A worker that is stopped between two batches, or inside one, loses nothing that it had reported and leaves nothing that it had not.
func TestStoppedWorkerIsFollowedByOneThatGoesOn(t *testing.T) {
	b := todosBackfill(t, 500)
	b.setBatch(50)
	b.begin()
	lease := b.take(0, 1)[0]
	reported := int64(0)
	for stop := time.Duration(0); !lease.Done; stop += 200 * time.Microsecond {
		ctx, cancel := context.WithTimeout(testContext(t), stop)
		batch, err := b.store.ScanBatch(ctx, b.claim, lease)
		cancel()
		switch {
		case err == nil:
			reported += batch.Rows
			lease.Done = batch.Done
		case storage.CodeOf(err) != storage.CodeCancelled:
			t.Fatalf("a batch that was stopped fails with %v", err)
		}
		same(t, "rows filled", b.program.number("SELECT count(*) FROM todos WHERE filled = 1"), reported)
		if !lease.Done {
			lease = b.take(0, 1)[0] // the next worker
		}
	}
	same(t, "rows filled in all", reported, 500)
	b.tail(storage.AllPartitions)
	same(t, "outcome", b.activate(storage.AllPartitions).Outcome, storage.OutcomeActivated)
}

// An activation that meets a program that writes for long gives up in bounded time, changes nothing, and succeeds later by itself.
func TestActivationThatMeetsALockIsTriedAgain(t *testing.T) {
	b := todosBackfill(t, 40)
	b.begin()
	b.scan()
	b.write("a", "todos", []string{"2"}, "UPDATE todos SET title = 'changed' WHERE id = 2")
	impatient := openWith(t, Config{Path: b.path, BusyTimeout: 100 * time.Millisecond})
	tx, err := b.store.Begin(testContext(t), "a", 1)
	if err != nil {
		t.Fatal(err)
	}
	before := b.program.dump()
	for range 3 {
		begun := time.Now()
		_, err := impatient.Activate(testContext(t), b.claim, storage.Activation{Partition: storage.AllPartitions})
		wantCode(t, err, storage.CodeLockTimeout)
		wantText(t, err, b.path)
		if waited := time.Since(begun); waited > 2*time.Second {
			t.Errorf("the attempt gave up after %s", waited)
		}
		_, err = impatient.TailBatch(testContext(t), b.claim, storage.AllPartitions, 10)
		wantCode(t, err, storage.CodeLockTimeout)
	}
	if b.program.dump() != before {
		t.Error("an attempt that got no lock changed something")
	}
	if err := tx.Rollback(testContext(t)); err != nil {
		t.Fatal(err)
	}
	report, err := impatient.Activate(testContext(t), b.claim, storage.Activation{Partition: storage.AllPartitions})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "outcome", report.Outcome, storage.OutcomeActivated)
	same(t, "rest", report.Rest, 1)
}

// "Done" is said by the range that was scanned to its end, and by nothing else.
func TestMissingLastBatchKeepsTheCheckpointOpen(t *testing.T) {
	b := todosBackfill(t, 100)
	b.setBatch(30)
	b.begin()
	lease := b.take(0, 1)[0]
	for range 3 {
		if _, err := b.store.ScanBatch(testContext(t), b.claim, lease); err != nil {
			t.Fatal(err)
		}
	}
	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := b.store.ScanBatch(ended, b.claim, lease); !errors.Is(err, context.Canceled) {
		t.Errorf("the last batch gives %v", err)
	}
	_, err := b.store.Activate(testContext(t), b.claim, storage.Activation{Partition: storage.AllPartitions})
	wantCode(t, err, storage.CodeScanIncomplete)
	b.finish(storage.AllPartitions)
	same(t, "rows filled once", b.program.number("SELECT count(*) FROM todos WHERE filled = 1"), 100)
}

// Two workers share a row. The one that comes last activates it; for the other there is nothing left to do.
func TestRowThatAnotherWorkerActivatedIsNothingLeftToDo(t *testing.T) {
	b := todosBackfill(t, 40)
	b.begin()
	b.finish(storage.AllPartitions)
	lease := storage.Lease{Partition: storage.AllPartitions, Range: 0, Epoch: 1}
	for name, batch := range map[string]func(ctx context.Context) (storage.Batch, error){
		"scan": func(ctx context.Context) (storage.Batch, error) { return b.store.ScanBatch(ctx, b.claim, lease) },
		"tail": func(ctx context.Context) (storage.Batch, error) {
			return b.store.TailBatch(ctx, b.claim, storage.AllPartitions, 10)
		},
		"leftovers": func(ctx context.Context) (storage.Batch, error) {
			return b.store.RetryLeftovers(ctx, b.claim, storage.AllPartitions, 10)
		},
	} {
		got, err := batch(testContext(t))
		if err != nil || !got.Done || got.Rows != 0 {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	if err := b.store.VerifyRow(testContext(t), b.claim, storage.AllPartitions); err != nil {
		t.Errorf("verify: %v", err)
	}
	same(t, "outcome", fmt.Sprint(b.activate(storage.AllPartitions).Outcome), fmt.Sprint(storage.OutcomeActivated))
}
