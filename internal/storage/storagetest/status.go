package storagetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runStatus(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"a database without our catalog has an empty status and no error", statusNoCatalog},
		{"without our catalog every verb that needs it says Conflict", statusNoCatalogVerbs},
		{"every store of a database sees the same identity, and another database another", statusIdentity},
		{"status shows versions, partitions, checkpoints and history of one snapshot", statusWhole},
		{"remove lists what is ours, drops it when asked, and keeps what is not", statusRemove},
		{"progress counts rows, ranges and states, and names who is behind", statusProgress},
		{"the last error of a claim is kept, and one of an older claim is not", statusError},
		{"the newest claim is the one that holds what is open, whatever the clocks said", statusClock},
		{"closing twice is no error", statusClose},
	})
}

// statusClock: a clock that was put back must not make the claim of rows that are done look like the newest.
func statusClock(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a", "b")))
	first := f.claimAll("letters")
	f.finishExternal("a", "letters")
	f.must(f.store.RecordError(f.ctx, first, "of a row that is not done"), "record an error")
	f.exec("UPDATE sync_backfill_progress SET updated_at_ms = 9000000000000, last_error = 'long ago' WHERE kind = 'claim' AND partition = 'a'")
	claim := f.claimAll("letters")
	progress, err := f.store.ReadProgress(f.ctx, "letters")
	f.must(err, "read the progress")
	same(f, "claim", progress.ClaimToken, claim.Token)
	if strings.Contains(progress.LastError, "long ago") {
		f.Errorf("the last error is %q, which is of a row that is activated", progress.LastError)
	}
}

func statusNoCatalog(f *fixture) {
	status, err := f.store.Status(f.ctx)
	f.must(err, "read the status")
	same(f, "protocol", status.Protocol, 0)
	same(f, "version", status.StoredVersion, 0)
	statements, err := f.store.Remove(f.ctx, false)
	f.must(err, "list what to remove")
	same(f, "statements", len(statements), 0)
}

func statusNoCatalogVerbs(f *fixture) {
	for name, ask := range map[string]func() error{
		"claim":        func() error { _, err := f.store.ClaimAll(f.ctx, "c", false); return err },
		"claim a row":  func() error { _, err := f.store.ClaimCheckpoint(f.ctx, "p", "c"); return err },
		"read a claim": func() error { _, err := f.store.ReadClaim(f.ctx, "c", "token"); return err },
		"progress":     func() error { _, err := f.store.ReadProgress(f.ctx, "c"); return err },
		"abandon":      func() error { _, err := f.store.AbandonCheckpoint(f.ctx, "c", 7, "somebody", "because"); return err },
		"prune":        func() error { _, err := f.store.Prune(f.ctx, "p", 5, false); return err },
		"activate": func() error {
			_, err := f.store.ActivateCheckpoint(f.ctx, storage.Ownership{Partition: "p", Name: "c", OwnerEpoch: 1, Token: "t"}, 0)
			return err
		},
	} {
		if err := ask(); storage.ClassOf(err) != storage.ClassConflict {
			f.Errorf("%s: got %v, want class %s", name, err, storage.ClassConflict)
		}
	}
}

func statusIdentity(f *fixture) {
	f.apply(version1())
	first, err := f.store.Identity(f.ctx)
	f.must(err, "read the identity")
	second, err := f.db.OpenStore(f.T).Identity(f.ctx)
	f.must(err, "read the identity by another store")
	same(f, "identity", second, first)
	if first.System == "" || first.Server == "" {
		f.Errorf("the identity is %+v", first)
	}
	other := f.another(f.T)
	other.apply(version1())
	elsewhere, err := other.store.Identity(f.ctx)
	f.must(err, "read the identity of another database")
	if elsewhere == first {
		f.Errorf("two databases have the identity %+v", first)
	}
}

func statusWhole(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "x")
	f.write("b", 1, 2, "x")
	f.apply(version2(titleNorm(2), external("letters", 2, "a")))
	f.finishExternal("a", "letters")
	status, err := f.store.Status(f.ctx)
	f.must(err, "read the status")
	same(f, "version", status.StoredVersion, 2)
	same(f, "minimum writer", status.MinWriterVersion, 2)
	same(f, "partitions", status.Partitions, 2)
	same(f, "history rows", len(status.History), 2)
	same(f, "checkpoints", len(status.Checkpoints), 2)
	for _, progress := range status.Checkpoints {
		same(f, "rows of "+progress.Definition.Name, progress.Total, 1)
		if progress.Definition.Name == "letters" {
			same(f, "activated", progress.Activated, 1)
		} else {
			same(f, "declared", progress.Declared, 1)
		}
	}
	identity, err := f.store.Identity(f.ctx)
	f.must(err, "read the identity")
	same(f, "database", status.Database, identity)
}

func statusRemove(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "kept")
	f.apply(version2(titleNorm(2)))
	listed, err := f.store.Remove(f.ctx, false)
	f.must(err, "list what to remove")
	if len(listed) == 0 || !slices.ContainsFunc(listed, func(s string) bool { return strings.Contains(s, "sync_barrier_history") }) {
		f.Errorf("the list is %v", listed)
	}
	same(f, "marker after listing", f.wantGate(2, storage.GateBackfilling).StoredVersion, 2)
	dropped, err := f.store.Remove(f.ctx, true)
	f.must(err, "remove")
	same(f, "statements", strings.Join(dropped, ";"), strings.Join(listed, ";"))
	f.wantGate(2, storage.GateSchemaNotFound)
	for _, table := range []string{"sync_barrier_history", "sync_barrier_owner", "sync_backfill_definitions", "sync_backfill_progress", "sync_backfill_leftovers"} {
		if _, err := f.program.Query(f.ctx, "SELECT 1 FROM "+table); err == nil {
			f.Errorf("%s is still there", table)
		}
	}
	same(f, "rows of the application", f.number("SELECT count(*) FROM todos WHERE title_norm IS NULL"), 1)
	same(f, "commits", f.number("SELECT count(*) FROM sync_commits"), 1)
	f.exec(rawCommit, "a", 2) // nothing refuses it any more
	again, err := f.store.Remove(f.ctx, true)
	f.must(err, "remove again")
	same(f, "statements when there is nothing", len(again), 0)
	// And back. With the record went what showed that a backfill was done: the gate of no version opens on a file that speaks of one.
	f.wantMessage(f.refuse(version2(titleNorm(2)), storage.CodeContentDrift), "title-norm", "nothing shows that its backfill was done")
	f.wantMessage(f.refuse(next(version2(titleNorm(2))), storage.CodeContentDrift), "title-norm", "nothing shows that its backfill was done")
	f.apply(version2()) // nothing else that stayed is in its way
	report, err := f.store.CheckFence(f.ctx)
	f.must(err, "check the fence that was put back")
	same(f, "findings", len(report.Findings), 0)
}

func statusProgress(f *fixture) {
	f.apply(version1())
	for i := range int64(30) {
		f.write("a", 1, i, "Title")
	}
	f.apply(version2(titleNorm(2, "a", "b")))
	f.must(f.store.WriteSettings(f.ctx, "title-norm", storage.Settings{BatchRows: 10}), "change the settings")
	progress, err := f.store.ReadProgress(f.ctx, "title-norm")
	f.must(err, "read the progress")
	same(f, "declared", progress.Declared, 2)
	same(f, "total", progress.Total, 2)
	same(f, "token", progress.ClaimToken, "")
	same(f, "batch size", progress.Settings.BatchRows, 10)
	claim := f.claimAll("title-norm")
	leases := f.take(claim, 0, 1)
	_, err = f.store.ScanBatch(f.ctx, claim, leases[0])
	f.must(err, "scan a batch")
	progress, err = f.store.ReadProgress(f.ctx, "title-norm")
	f.must(err, "read the progress")
	same(f, "backfilling", progress.Backfilling, 2)
	same(f, "rows done", progress.RowsDone, 10)
	same(f, "ranges", progress.RangesTotal, len(leases))
	same(f, "token", progress.ClaimToken, claim.Token)
	f.scan(claim)
	f.write("a", 2, 99, "behind")
	progress, err = f.store.ReadProgress(f.ctx, "title-norm")
	f.must(err, "read the progress")
	same(f, "ranges done", progress.RangesDone, progress.RangesTotal)
	if len(progress.Behind) != 2 || progress.Behind[0].Partition != "a" || progress.Behind[0].Verdict != storage.Changed {
		f.Errorf("behind are %+v, want a first, changed", progress.Behind)
	}
	same(f, "outcome", f.finish(claim, "a").Outcome, storage.OutcomeActivated)
	same(f, "outcome", f.finish(claim, "b").Outcome, storage.OutcomeActivated)
	progress, err = f.store.ReadProgress(f.ctx, "title-norm")
	f.must(err, "read the progress")
	same(f, "activated", progress.Activated, 2)
	same(f, "behind", len(progress.Behind), 0)
	_, err = f.store.ReadProgress(f.ctx, "nothing")
	f.wantCode(err, storage.CodeCheckpointNotDeclared)
}

func statusError(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2, "a")))
	older := f.claimAll("title-norm")
	claim := f.claimAll("title-norm")
	f.take(claim, 0, 1)
	f.exec("UPDATE sync_backfill_progress SET updated_at_ms = 3000")
	f.exec("UPDATE sync_backfill_checkpoints SET updated_at_ms = 4000")
	f.must(f.store.RecordError(f.ctx, claim, "it failed"), "record an error")
	f.must(f.store.RecordError(f.ctx, older, "somebody else failed"), "record an error of a claim that lost")
	progress, err := f.store.ReadProgress(f.ctx, "title-norm")
	f.must(err, "read the progress")
	same(f, "last error", progress.LastError, "it failed")
	same(f, "last commit: an error is none", progress.LatestUpdateAt.UnixMilli(), 4000)
	f.exec("UPDATE sync_backfill_progress SET updated_at_ms = 5000 WHERE kind = 'range'")
	progress, err = f.store.ReadProgress(f.ctx, "title-norm")
	f.must(err, "read the progress")
	same(f, "last commit, a batch", progress.LatestUpdateAt.UnixMilli(), 5000)
}

func statusClose(f *fixture) {
	store := f.db.OpenStore(f.T)
	store.Close()
	store.Close()
	_, err := store.MaxCommitSeq(f.ctx, "a")
	if err == nil {
		f.Error("a closed store answers")
	}
}
