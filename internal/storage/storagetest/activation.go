package storagetest

import (
	"sync"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// ActivateCheckpoint is for programs that fill a checkpoint themselves.

func runActivation(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"a covered checkpoint is activated, and asked again it stays so", activateCovered},
		{"a source change above the watermark is found", activateChanged},
		{"changes of other tables and partitions do not count", activateOthers},
		{"a pruned, shortened or renamed log is unverifiable", activateUnverifiable},
		{"a hole that the watermark has passed is still unverifiable", activateHoleBelow},
		{"a writer in flight is never passed over", activateInFlight},
		{"without the fence nothing is activated", activateFenceMissing},
		{"what another program declared is that program's to activate", activateForeign},
		{"what is not declared is not activated", activateNotDeclared},
		{"a backfill of ours that is not scanned is not activated", activateScanIncomplete},
		{"a checkpoint of all partitions needs every one of them covered", activateAll},
		{"of eight activations at once each answers activated", activateContention},
		{"an activated row takes no advance and no activation away", activateDone},
	})
}

// activated brings the database to version 2 with an external checkpoint that is activated in partition a.
func (f *fixture) activated() {
	f.Helper()
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	f.finishExternal("a", "letters")
}

// finishExternal claims a row and activates it at the end of the log.
func (f *fixture) finishExternal(partition, name string) {
	f.Helper()
	claim := f.claimOf(partition, name)
	same(f, "outcome of "+name, f.activate(ownership(claim, partition), f.position(partition)), storage.OutcomeActivated)
}

func (f *fixture) position(partition string) int64 {
	f.Helper()
	if partition == storage.AllPartitions {
		return 0
	}
	last, err := f.store.MaxCommitSeq(f.ctx, partition)
	f.must(err, "read the position")
	return last
}

func (f *fixture) activate(owner storage.Ownership, watermark int64) storage.Outcome {
	f.Helper()
	outcome, err := f.store.ActivateCheckpoint(f.ctx, owner, watermark)
	f.must(err, "activate "+owner.Name)
	return outcome
}

// external2 brings the database to version 2 with an external checkpoint in partition a, after some commits of version 1.
func (f *fixture) external2(commits int64) {
	f.Helper()
	f.apply(version1())
	for i := range commits {
		f.write("a", 1, i+1, "Title")
	}
	f.apply(version2(external("letters", 2, "a")))
}

func activateCovered(f *fixture) {
	f.external2(3)
	f.wantGate(2, storage.GateBackfilling)
	owner := ownership(f.claimOf("a", "letters"), "a")
	f.write("a", 2, 9, "during the backfill")
	same(f, "outcome", f.activate(owner, 4), storage.OutcomeActivated)
	row := f.checkpoint("a", "letters")
	same(f, "state", row.State, storage.Activated)
	same(f, "watermark", row.Watermark, 4)
	f.wantGate(2, storage.GateOpen)
	f.write("a", 2, 10, "after it")
	same(f, "outcome when asked again", f.activate(owner, 4), storage.OutcomeActivated)
	same(f, "row", f.checkpoint("a", "letters"), row)
	same(f, "proofs left", f.number("SELECT count(*) FROM sync_backfill_progress WHERE kind = 'proof'"), 0)
}

func activateChanged(f *fixture) {
	f.external2(3)
	owner := ownership(f.claimOf("a", "letters"), "a")
	f.write("a", 2, 9, "missed")
	same(f, "outcome", f.activate(owner, 3), storage.OutcomeChanged)
	same(f, "state", f.checkpoint("a", "letters").State, storage.Backfilling)
	f.wantGate(2, storage.GateBackfilling)
	same(f, "outcome once it is applied", f.activate(owner, 4), storage.OutcomeActivated)
}

func activateOthers(f *fixture) {
	f.external2(2)
	owner := ownership(f.claimOf("a", "letters"), "a")
	f.log("a", 2, "notes")
	f.write("b", 2, 9, "of another partition")
	same(f, "outcome", f.activate(owner, 2), storage.OutcomeActivated)
}

func activateUnverifiable(f *fixture) {
	for name, spoil := range map[string]func(f *fixture){
		"pruned above the watermark": func(f *fixture) {
			_, err := f.store.Prune(f.ctx, "a", 4, true)
			f.must(err, "prune")
		},
		"a commit deleted without the horizon": func(f *fixture) {
			f.exec("DELETE FROM sync_changes WHERE partition = 'a' AND commit_seq = 4")
			f.exec("DELETE FROM sync_commits WHERE partition = 'a' AND commit_seq = 4")
		},
		"emptied": func(f *fixture) {
			f.exec("DELETE FROM sync_changes")
			f.exec("DELETE FROM sync_commits")
		},
		"another log epoch": func(f *fixture) {
			f.must(f.store.RotateLogEpoch(f.ctx, "a"), "rotate the epoch")
		},
	} {
		f.Run(name, func(t *testing.T) {
			f := f.another(t)
			f.external2(3)
			owner := ownership(f.claimOf("a", "letters"), "a")
			f.log("a", 2, "notes")
			spoil(f)
			same(f, "outcome", f.activate(owner, 3), storage.OutcomeUnverifiable)
			same(f, "state", f.checkpoint("a", "letters").State, storage.Backfilling)
		})
	}
	f.external2(1)
	owner := ownership(f.claimOf("a", "letters"), "a")
	same(f, "outcome with a watermark above the log", f.activate(owner, 2), storage.OutcomeUnverifiable)
}

func activateHoleBelow(f *fixture) {
	f.external2(3)
	owner := ownership(f.claimOf("a", "letters"), "a")
	f.write("a", 2, 4, "its commit vanishes")
	f.write("a", 2, 5, "the worker reads this one")
	f.exec("DELETE FROM sync_changes WHERE partition = 'a' AND commit_seq = 4")
	f.exec("DELETE FROM sync_commits WHERE partition = 'a' AND commit_seq = 4")
	same(f, "advanced", f.advance(owner, 5, 5), true)
	same(f, "outcome", f.activate(owner, 5), storage.OutcomeUnverifiable)
}

func activateInFlight(f *fixture) {
	f.external2(2)
	owner := ownership(f.claimOf("a", "letters"), "a")
	writer := f.db.OpenStore(f.T)
	tx, err := writer.Begin(f.ctx, "a", 2)
	f.must(err, "begin")
	defer func() { f.must(tx.Rollback(f.ctx), "roll back") }()
	f.must(tx.LockPartition(f.ctx), "lock the partition")
	_, err = tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.must(err, "append a commit")
	_, err = f.store.ActivateCheckpoint(f.ctx, owner, 2)
	f.wantCode(err, storage.CodeLockTimeout)
	f.must(tx.Commit(f.ctx), "commit")
	same(f, "outcome after the writer's commit", f.activate(owner, 2), storage.OutcomeChanged)
}

func activateFenceMissing(f *fixture) {
	f.external2(1)
	owner := ownership(f.claimOf("a", "letters"), "a")
	f.vandalise("sync_writer_fence", "UPDATE sync_writer_fence SET required_writer_version = 1")
	_, err := f.store.ActivateCheckpoint(f.ctx, owner, 1)
	f.wantCode(err, storage.CodeCheckpointFenceMissing)
	f.wantMessage(err, "letters", "2")
	f.exec("DELETE FROM sync_writer_fence")
	_, err = f.store.ActivateCheckpoint(f.ctx, owner, 1)
	f.wantCode(err, storage.CodeCheckpointFenceMissing)
	same(f, "state", f.checkpoint("a", "letters").State, storage.Backfilling)
}

func activateForeign(f *fixture) {
	f.apply(version1())
	f.exec(`INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, state, updated_at_ms) VALUES ('a', 'theirs', 1, 'declared', 0)`)
	_, err := f.store.ActivateCheckpoint(f.ctx, storage.Ownership{Partition: "a", Name: "theirs"}, 0)
	f.wantCode(err, storage.CodeCheckpointDefinitionMissing)
}

func activateNotDeclared(f *fixture) {
	f.external2(1)
	for _, owner := range []storage.Ownership{{Partition: "b", Name: "letters"}, {Partition: "a", Name: "nothing"}} {
		_, err := f.store.ActivateCheckpoint(f.ctx, owner, 0)
		f.wantCode(err, storage.CodeCheckpointNotDeclared)
	}
	same(f, "outcome for who never claimed it", f.activate(storage.Ownership{Partition: "a", Name: "letters"}, 1), storage.OutcomeLost)
}

func activateScanIncomplete(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "Title")
	f.apply(version2(titleNorm(2, "a")))
	claim := f.claimAll("title-norm")
	_, err := f.store.ActivateCheckpoint(f.ctx, ownership(claim, "a"), 1)
	f.wantCode(err, storage.CodeScanIncomplete)
	f.scan(claim)
	same(f, "outcome after the scan", f.activate(ownership(claim, "a"), 1), storage.OutcomeActivated)
	f.derived()
}

func activateAll(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "x")
	f.write("b", 1, 2, "x")
	f.apply(version2(external("letters", 2)))
	owner := ownership(f.claimOf("*", "letters"), "*")
	f.log("a", 2, "notes")
	f.write("c", 2, 3, "a partition that is new")
	same(f, "outcome", f.activate(owner, 0), storage.OutcomeChanged)
	claim, err := f.store.ClaimAll(f.ctx, "letters", true)
	f.must(err, "begin again")
	same(f, "outcome of a pass that began after the change", f.activate(ownership(claim, "*"), 0), storage.OutcomeActivated)
	f.wantGate(2, storage.GateOpen)
}

func activateContention(f *fixture) {
	f.external2(2)
	owner := ownership(f.claimOf("a", "letters"), "a")
	const callers = 8
	outcomes := make([]storage.Outcome, callers)
	failures := make([]error, callers)
	var group sync.WaitGroup
	for i := range callers {
		store := f.db.OpenStore(f.T)
		group.Go(func() {
			failures[i] = retry(f.ctx, func() (err error) {
				outcomes[i], err = store.ActivateCheckpoint(f.ctx, owner, 2)
				return err
			})
		})
	}
	group.Wait()
	for i := range callers {
		f.must(failures[i], "activate")
		same(f, "outcome", outcomes[i], storage.OutcomeActivated)
	}
}

func activateDone(f *fixture) {
	f.external2(2)
	claim := f.claimOf("a", "letters")
	owner := ownership(claim, "a")
	same(f, "outcome", f.activate(owner, 2), storage.OutcomeActivated)
	row := f.checkpoint("a", "letters")
	same(f, "advanced", f.advance(owner, 3, 3), false)
	same(f, "outcome of a stranger", f.activate(storage.Ownership{Partition: "a", Name: "letters"}, 0), storage.OutcomeActivated)
	same(f, "row", f.checkpoint("a", "letters"), row)
}
