package storagetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runFinish(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"verify names the query, the count and at most ten keys", verifyNames},
		{"verify is restricted to the partition of the row", verifyListed},
		{"wrong rows that the log still has are no failure yet", verifyPending},
		{"a row is activated with its rest, and derived data is right at that commit", finishRest},
		{"a row that is not scanned to its end is not activated", finishIncomplete},
		{"a rest over the limit is changed and rolled back", finishTooMuch},
		{"what the verify query finds under the lock stops the activation", finishVerifies},
		{"an error of the caller's last look rolls all back", finishHook},
		{"without the fence nothing is activated", finishFenceMissing},
		{"the last resort locks the tables and activates as well", finishTables},
		{"a leftover is applied by the activation", finishLeftover},
		{"every row of a checkpoint is activated by itself, and the gate opens with the last", finishEach},
		{"a database without standbys has no lag", finishLag},
	})
}

func verifyNames(f *fixture) {
	f.filling(20, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.must(f.store.VerifyRow(f.ctx, claim, "a"), "verify what is right")
	f.exec("UPDATE todos SET title_norm = 'wrong' WHERE tenant = 'a' AND id <= 12")
	err := f.store.VerifyRow(f.ctx, claim, "a")
	f.wantCode(err, storage.CodeVerificationFailed)
	f.wantMessage(err, "title-norm", "none-wrong", "12")
	named := 0
	for id := range 12 {
		if containsText(err.Error(), fmt.Sprintf("%d", id+1)) {
			named++
		}
	}
	if named == 0 {
		f.Errorf("no key is named: %v", err)
	}
	f.exec("UPDATE todos SET title_norm = 'wrong' WHERE tenant = 'a'")
	if err := f.store.VerifyRow(f.ctx, claim, "a"); len(err.Error()) > 2000 || !containsText(err.Error(), "20") {
		f.Errorf("with twenty wrong rows the error is %v", err)
	}
}

func verifyListed(f *fixture) {
	f.filling(5, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	same(f, "wrong rows of another partition", f.number(wrongTitles), 5)
	f.must(f.store.VerifyRow(f.ctx, claim, "a"), "verify")
}

func verifyPending(f *fixture) {
	f.filling(5, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.write("a", 2, 1, "CHANGED")
	f.write("a", 2, 50, "NEW")
	f.must(f.store.VerifyRow(f.ctx, claim, "a"), "verify what the tail is about to do")
	f.exec("UPDATE todos SET title_norm = 'wrong' WHERE id = 2")
	err := f.store.VerifyRow(f.ctx, claim, "a")
	f.wantCode(err, storage.CodeVerificationFailed)
	f.wantMessage(err, "1", "2")
}

func finishRest(f *fixture) {
	f.filling(20, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.tail(claim, "a")
	f.write("a", 2, 3, "CHANGED")
	f.write("a", 2, 100, "NEW")
	looked := false
	report := f.attempt(claim, storage.Activation{Partition: "a", BeforeCommit: func(ctx context.Context, q storage.Querier) error {
		looked = true
		rows, err := q.Query(ctx, wrongTitles+" AND tenant = 'a'")
		if err == nil && fmt.Sprint(rows[0][0]) != "0" {
			err = fmt.Errorf("%v rows are wrong", rows[0][0])
		}
		return err
	}})
	same(f, "outcome", report.Outcome, storage.OutcomeActivated)
	same(f, "rest", report.Rest, 2)
	same(f, "looked", looked, true)
	if report.Held <= 0 {
		f.Errorf("locks were held for %s", report.Held)
	}
	f.derivedIn("a")
	row := f.checkpoint("a", "title-norm")
	same(f, "state", row.State, storage.Activated)
	same(f, "watermark", row.Watermark, 2)
	same(f, "leftovers", f.number("SELECT count(*) FROM sync_backfill_leftovers"), 0)
	same(f, "proofs", f.number("SELECT count(*) FROM sync_backfill_progress WHERE kind = 'proof'"), 0)
	f.wantGate(2, storage.GateOpen)
}

func finishIncomplete(f *fixture) {
	f.filling(20, "a")
	claim := f.claimAll("title-norm")
	_, err := f.store.Activate(f.ctx, claim, storage.Activation{Partition: "a"})
	f.wantCode(err, storage.CodeScanIncomplete)
	_, err = f.store.ScanBatch(f.ctx, claim, f.take(claim, 0, 1)[0])
	f.must(err, "scan a batch")
	_, err = f.store.Activate(f.ctx, claim, storage.Activation{Partition: "a"})
	f.wantCode(err, storage.CodeScanIncomplete)
	same(f, "state", f.checkpoint("a", "title-norm").State, storage.Backfilling)
}

func finishTooMuch(f *fixture) {
	f.filling(20, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	for id := range int64(5) {
		f.write("a", 2, id+1, "CHANGED")
	}
	wrong := f.number(wrongTitles + " AND tenant = 'a'")
	report := f.attempt(claim, storage.Activation{Partition: "a", MaxRest: 4})
	same(f, "outcome", report.Outcome, storage.OutcomeChanged)
	same(f, "wrong rows after it", f.number(wrongTitles+" AND tenant = 'a'"), wrong)
	same(f, "state", f.checkpoint("a", "title-norm").State, storage.Backfilling)
	report = f.attempt(claim, storage.Activation{Partition: "a", MaxRest: 5})
	same(f, "outcome with a limit that is enough", report.Outcome, storage.OutcomeActivated)
	f.derivedIn("a")
}

func finishVerifies(f *fixture) {
	f.apply(version1())
	f.fill("a", 1, 5)
	checkpoint := titleNorm(2, "a")
	checkpoint.Verify = []storage.Verify{{Name: "no-bad-title", Query: "SELECT id FROM todos WHERE title_norm = 'bad'"}}
	f.apply(version2(checkpoint))
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.tail(claim, "a")
	f.write("a", 2, 3, "BAD")
	_, err := f.store.Activate(f.ctx, claim, storage.Activation{Partition: "a"})
	f.wantCode(err, storage.CodeVerificationFailed)
	f.wantMessage(err, "no-bad-title", "3")
	same(f, "state", f.checkpoint("a", "title-norm").State, storage.Backfilling)
	f.write("a", 2, 3, "GOOD")
	same(f, "outcome once it is right", f.attempt(claim, storage.Activation{Partition: "a"}).Outcome, storage.OutcomeActivated)
}

func finishHook(f *fixture) {
	f.filling(5, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.write("a", 2, 1, "CHANGED")
	broken := errors.New("somebody looked and was not content")
	_, err := f.store.Activate(f.ctx, claim, storage.Activation{Partition: "a", BeforeCommit: func(context.Context, storage.Querier) error { return broken }})
	if !errors.Is(err, broken) {
		f.Errorf("got %v, want the error of the caller", err)
	}
	same(f, "state", f.checkpoint("a", "title-norm").State, storage.Backfilling)
	same(f, "wrong rows", f.number(wrongTitles+" AND tenant = 'a'"), 1)
}

func finishFenceMissing(f *fixture) {
	f.filling(5, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.vandalise("sync_writer_fence", "UPDATE sync_writer_fence SET required_writer_version = 1")
	_, err := f.store.Activate(f.ctx, claim, storage.Activation{Partition: "a"})
	f.wantCode(err, storage.CodeCheckpointFenceMissing)
	same(f, "state", f.checkpoint("a", "title-norm").State, storage.Backfilling)
}

func finishTables(f *fixture) {
	f.filling(5)
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.write("a", 2, 1, "CHANGED")
	f.write("new", 2, 77, "NEW")
	report := f.attempt(claim, storage.Activation{Partition: "*", Tables: true, BeforeCommit: wrongInside})
	same(f, "outcome", report.Outcome, storage.OutcomeActivated)
	same(f, "rest", report.Rest, 2)
	f.derived()
}

func finishLeftover(f *fixture) {
	f.filling(5, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.exec("UPDATE todos SET title_norm = NULL WHERE id = 2")
	f.exec("INSERT INTO sync_backfill_leftovers (checkpoint, partition, row_key) VALUES ('title-norm', 'a', '2')")
	same(f, "outcome", f.attempt(claim, storage.Activation{Partition: "a"}).Outcome, storage.OutcomeActivated)
	f.derivedIn("a")
	same(f, "leftovers", f.number("SELECT count(*) FROM sync_backfill_leftovers"), 0)
}

func finishEach(f *fixture) {
	f.filling(5, "a", "b")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	same(f, "outcome of a", f.finish(claim, "a").Outcome, storage.OutcomeActivated)
	f.wantGate(2, storage.GateBackfilling)
	f.write("a", 2, 1, "AFTER THE ACTIVATION")
	same(f, "outcome of b", f.finish(claim, "b").Outcome, storage.OutcomeActivated)
	f.wantGate(2, storage.GateOpen)
	same(f, "watermark of what is activated", f.checkpoint("a", "title-norm").Watermark, 0)
}

func finishLag(f *fixture) {
	f.apply(version1())
	lag, err := f.store.ReplicationLag(f.ctx)
	f.must(err, "read the replication lag")
	same(f, "lag", lag, 0)
}
