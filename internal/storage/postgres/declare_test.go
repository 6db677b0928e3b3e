package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

var errUndo = errors.New("undo")

// inParallel runs a step in a goroutine and gives the channel of its error.
func inParallel(step func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- step() }()
	return ended
}

func (db *barrierDB) claimLetters() storage.Ownership {
	db.t.Helper()
	claim, err := db.store.ClaimCheckpoint(db.ctx, "a", "letters")
	if err != nil {
		db.t.Fatalf("claim: %v", err)
	}
	return storage.Ownership{Partition: "a", Name: "letters", OwnerEpoch: claim.Rows[0].OwnerEpoch, Token: claim.Token}
}

// The last open checkpoint is being activated: whoever still sees it open may not declare, since at the commit the gate is open.
func TestNothingIsDeclaredWhileTheLastOpenCheckpointIsBeingActivated(t *testing.T) {
	db := externalDB(t)
	owner := db.claimLetters()
	declare := func() error {
		_, err := db.store.DeclareCheckpoint(db.ctx, external("more", 2, "b"), []storage.Table{plainTodos()})
		return err
	}
	flipped := make(chan struct{})
	commit := make(chan struct{})
	activated := inParallel(func() error {
		return db.store.inTx(db.ctx, "activate", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			if ok, err := db.store.flip(ctx, tx, owner, 0); err != nil || !ok {
				return errors.Join(err, errUndo)
			}
			close(flipped)
			<-commit
			return nil
		})
	})
	<-flipped
	expectCode(t, declare(), storage.CodeLockTimeout)
	db.wantGate(2, storage.GateBackfilling)
	close(commit)
	if err := <-activated; err != nil {
		t.Fatalf("activate: %v", err)
	}
	db.wantGate(2, storage.GateOpen)
	expectCode(t, declare(), storage.CodeConflict)
	db.wantGate(2, storage.GateOpen)
	db.wantText("0", "SELECT count(*) FROM sync_writer_fence WHERE partition = 'b'")
}

// A declaration is under way: the last open checkpoint is not activated before it, or the gate would open for a moment.
func TestTheLastOpenCheckpointIsNotActivatedWhileAnotherIsBeingDeclared(t *testing.T) {
	db := externalDB(t)
	owner := db.claimLetters()
	declared := make(chan struct{})
	commit := make(chan struct{})
	ended := inParallel(func() error {
		return db.store.inTx(db.ctx, "declare", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			if err := db.store.declare(ctx, tx, external("more", 2, "b"), []storage.Table{plainTodos()}); err != nil {
				return err
			}
			close(declared)
			<-commit
			return nil
		})
	})
	<-declared
	_, err := db.store.ActivateCheckpoint(db.ctx, owner, 0)
	expectCode(t, err, storage.CodeLockTimeout)
	close(commit)
	if err := <-ended; err != nil {
		t.Fatalf("declare: %v", err)
	}
	outcome, err := db.store.ActivateCheckpoint(db.ctx, owner, 0)
	if err != nil || outcome != storage.OutcomeActivated {
		t.Fatalf("activate after it: %v, %v", outcome, err)
	}
	if gate := db.wantGate(2, storage.GateBackfilling); gate.Pending[0].Name != "more" {
		t.Errorf("the gate waits for %+v", gate.Pending)
	}
}

// A barrier is under way: a declaration waits for it in bounded time, and afterwards its version is no longer the marker's.
func TestADeclarationDoesNotSlipPastABarrier(t *testing.T) {
	db := externalDB(t)
	barrier := connect(t, db.url)
	barrier.run("BEGIN")
	barrier.run("LOCK TABLE sync_schema_meta IN EXCLUSIVE MODE")
	barrier.run("UPDATE sync_schema_meta SET schema_version = 3")
	declare := func() error {
		_, err := db.store.DeclareCheckpoint(db.ctx, external("more", 2, "b"), []storage.Table{plainTodos()})
		return err
	}
	err := declare()
	expectCode(t, err, storage.CodeLockTimeout)
	if refused := asError(t, err); refused.Table != "sync_schema_meta" {
		t.Errorf("the table to wait for is %q", refused.Table)
	}
	barrier.run("COMMIT")
	expectCode(t, declare(), storage.CodeConflict)
	db.wantText("1", "SELECT count(*) FROM sync_backfill_definitions")
}

// An append that is open when a fence is declared commits before the fence, or is refused.
func TestADeclarationWaitsForAppendsThatAreOpen(t *testing.T) {
	for name, checkpoint := range map[string]storage.Checkpoint{
		"listed": external("more", 2, "b"), "all": external("more", 2),
	} {
		t.Run(name, func(t *testing.T) {
			db := externalDB(t)
			old := connect(t, db.url)
			old.run("BEGIN")
			if err := old.append("b", 1); err != nil {
				t.Fatalf("append: %v", err)
			}
			declared := inParallel(func() error {
				_, err := db.store.DeclareCheckpoint(db.ctx, checkpoint, []storage.Table{plainTodos()})
				return err
			})
			db.eventually("the declaration waits for the open append", func() bool {
				return db.waiting("sync_partitions") || db.waiting("sync_commits")
			})
			old.run("COMMIT")
			if err := <-declared; err != nil {
				t.Fatalf("declare: %v", err)
			}
			expectFenced(t, old.append("b", 1))
			db.wantText("1", "SELECT count(*) FROM sync_commits WHERE writer_version = 1")
		})
	}
}

// Eight declare the same checkpoint at once: one does, the others find it; none of them lets the gate open.
func TestManyDeclareTheSameCheckpoint(t *testing.T) {
	db := externalDB(t)
	const declarers = 8
	var ended [declarers]<-chan error
	for i := range ended {
		store := openStore(t, Config{URL: db.url})
		ended[i] = inParallel(func() error {
			_, err := again(db.ctx, func() ([]storage.CheckpointRow, error) {
				return store.DeclareCheckpoint(db.ctx, external("more", 2, "b", "c"), []storage.Table{plainTodos()})
			})
			return err
		})
	}
	for i := range ended {
		if err := <-ended[i]; err != nil {
			t.Errorf("declarer %d: %v", i, err)
		}
	}
	db.wantText("2", "SELECT count(*) FROM sync_backfill_checkpoints WHERE name = 'more'")
	if gate := db.wantGate(2, storage.GateBackfilling); gate.PendingTotal != 3 {
		t.Errorf("%d rows are open, want 3", gate.PendingTotal)
	}
}

// A worker that was frozen in the middle of a batch when its checkpoint was abandoned leaves nothing of the batch behind.
func TestAnAbandonWaitsForNoWorkerAndLeavesItNothing(t *testing.T) {
	db := todosDB(t, 20, "a")
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	plan, err := db.store.plan(db.ctx, claim)
	if err != nil {
		t.Fatalf("read the plan: %v", err)
	}
	written := make(chan struct{})
	goOn := make(chan struct{})
	ended := inParallel(func() error {
		return db.store.inTx(db.ctx, "batch", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			b := &batchTx{Tx: tx, store: db.store, plan: plan, claim: claim, row: claim.Rows[0]}
			if _, err := tx.Exec(ctx, "UPDATE todos SET title_norm = lower(title) WHERE id = 2"); err != nil {
				return err
			}
			close(written)
			<-goOn
			return b.finish(ctx)
		})
	})
	<-written
	if count, err := db.store.AbandonCheckpoint(db.ctx, "norm", 2, "alice", "a mistake"); err != nil || count != 1 {
		t.Fatalf("abandon: %d, %v", count, err)
	}
	close(goOn)
	expectCode(t, <-ended, storage.CodeOwnershipLost)
	db.wantText("0", "SELECT count(*) FROM todos WHERE title_norm IS NOT NULL")
	_, err = db.store.ScanBatch(db.ctx, claim, lease)
	expectCode(t, err, storage.CodeOwnershipLost)
	db.wantGate(2, storage.GateOpen)
}
