package storagetest

import (
	"sync"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runPrune(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"the log goes at and below the horizon, and nothing above", pruneMoves},
		{"the horizon never goes back and never beyond the log", pruneBounds},
		{"what an open checkpoint still needs is not pruned unless forced", pruneOpen},
		{"a checkpoint of all partitions holds back each of them", pruneOpenAll},
		{"a checkpoint of another partition, or one that is done or not begun, holds nothing back", pruneFree},
		{"a partition without a log has nothing to prune", pruneNothing},
		{"what cannot be right is refused", pruneInvalid},
		{"two pruners leave the higher horizon and all above it", pruneTwo},
		{"numbers go on after a prune of the whole log", pruneWhole},
		{"a rotated log epoch is a new one", rotateEpoch},
	})
}

func (f *fixture) prune(partition string, seq int64, force bool) int64 {
	f.Helper()
	horizon, err := f.store.Prune(f.ctx, partition, seq, force)
	f.must(err, "prune")
	return horizon
}

func (f *fixture) commitsOf(partition string) [2]int64 {
	f.Helper()
	return [2]int64{
		f.number("SELECT count(*) FROM sync_commits WHERE partition = $1", partition),
		f.number("SELECT count(*) FROM sync_changes WHERE partition = $1", partition),
	}
}

func pruneMoves(f *fixture) {
	f.logged()
	f.log("b", 1, "todos")
	same(f, "horizon", f.prune("a", 3, false), 3)
	same(f, "commits and changes left", f.commitsOf("a"), [2]int64{2, 2})
	same(f, "lowest commit left", f.number("SELECT min(commit_seq) FROM sync_commits WHERE partition = 'a'"), 4)
	same(f, "of another partition", f.commitsOf("b"), [2]int64{1, 1})
	same(f, "position", f.position("a"), 5)
	same(f, "stored horizon", f.number("SELECT horizon_seq FROM sync_partitions WHERE partition = 'a'"), 3)
}

func pruneBounds(f *fixture) {
	f.logged()
	f.prune("a", 3, false)
	same(f, "horizon asked to go back", f.prune("a", 1, true), 3)
	same(f, "horizon asked to go beyond the log", f.prune("a", 100, true), 5)
	same(f, "commits left", f.commitsOf("a"), [2]int64{0, 0})
	same(f, "the next number", f.log("a", 1, "todos"), 6)
}

func pruneOpen(f *fixture) {
	f.external2(5)
	claim := f.claimOf("a", "letters")
	f.write("a", 2, 6, "x")
	f.write("a", 2, 7, "x")
	_, err := f.store.Prune(f.ctx, "a", 6, false)
	f.wantCode(err, storage.CodePruneRefused)
	f.wantMessage(err, "letters", "2", "5")
	same(f, "commits left", f.commitsOf("a"), [2]int64{7, 7})
	same(f, "horizon up to its watermark", f.prune("a", 5, false), 5)
	same(f, "advanced", f.advance(ownership(claim, "a"), 6, 1), true)
	same(f, "horizon once it has moved", f.prune("a", 6, false), 6)
	same(f, "forced horizon", f.prune("a", 7, true), 7)
	same(f, "outcome after the forced prune", f.activate(ownership(claim, "a"), 6), storage.OutcomeUnverifiable)
}

func pruneOpenAll(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "x")
	f.write("a", 1, 2, "x")
	f.write("b", 1, 3, "x")
	f.apply(version2(external("letters", 2)))
	f.claimOf("*", "letters")
	f.write("a", 2, 4, "x")
	f.write("c", 2, 5, "x")
	same(f, "horizon of a up to the claim", f.prune("a", 2, false), 2)
	_, err := f.store.Prune(f.ctx, "a", 3, false)
	f.wantCode(err, storage.CodePruneRefused)
	f.wantMessage(err, "letters")
	_, err = f.store.Prune(f.ctx, "c", 1, false)
	f.wantCode(err, storage.CodePruneRefused)
	same(f, "horizon of b", f.prune("b", 1, false), 1)
}

func pruneFree(f *fixture) {
	f.external2(3)
	same(f, "horizon of a log that a declared checkpoint will read", f.prune("a", 2, false), 2)
	f.write("b", 2, 9, "x")
	f.claimOf("a", "letters")
	same(f, "horizon of another partition", f.prune("b", 1, false), 1)
	f.finishExternal("a", "letters")
	f.write("a", 2, 10, "x")
	same(f, "horizon once it is activated", f.prune("a", 4, false), 4)
}

func pruneNothing(f *fixture) {
	f.apply(version1())
	same(f, "horizon", f.prune("never seen", 10, false), 0)
	same(f, "partitions", f.number("SELECT count(*) FROM sync_partitions"), 0)
}

func pruneInvalid(f *fixture) {
	f.apply(version1())
	for _, partition := range []string{"", "*", "capture:x"} {
		_, err := f.store.Prune(f.ctx, partition, 1, true)
		f.wantCode(err, storage.CodeInvalidSpec)
	}
	_, err := f.store.Prune(f.ctx, "a", -1, true)
	f.wantCode(err, storage.CodeInvalidSpec)
}

func pruneTwo(f *fixture) {
	f.apply(version1())
	const commits = 60
	for range commits {
		f.log("a", 1, "todos")
	}
	var group sync.WaitGroup
	failures := make([]error, 2)
	for i, highest := range []int64{40, 50} {
		store := f.db.OpenStore(f.T)
		group.Go(func() {
			for seq := int64(1); seq <= highest && failures[i] == nil; seq += 3 {
				failures[i] = retry(f.ctx, func() error { _, err := store.Prune(f.ctx, "a", seq, false); return err })
			}
			if failures[i] == nil {
				failures[i] = retry(f.ctx, func() error { _, err := store.Prune(f.ctx, "a", highest, false); return err })
			}
		})
	}
	group.Wait()
	f.must(failures[0], "first pruner")
	f.must(failures[1], "second pruner")
	same(f, "horizon", f.number("SELECT horizon_seq FROM sync_partitions WHERE partition = 'a'"), 50)
	same(f, "left", f.commitsOf("a"), [2]int64{commits - 50, commits - 50})
	same(f, "verdict above the horizon", f.coverage("a", 50, "todos").Verdict, storage.Changed)
	same(f, "verdict below it", f.coverage("a", 49, "todos").Verdict, storage.Unverifiable)
}

func pruneWhole(f *fixture) {
	f.logged()
	f.prune("a", 5, false)
	same(f, "the next number", f.log("a", 1, "todos"), 6)
	same(f, "verdict", f.coverage("a", 5, "todos").Verdict, storage.Changed)
}

func rotateEpoch(f *fixture) {
	f.logged()
	f.log("b", 1, "todos")
	epoch := func(partition string) string {
		return f.text("SELECT log_epoch FROM sync_partition_registry WHERE partition = $1", partition)
	}
	f.must(f.store.RotateLogEpoch(f.ctx, "a"), "rotate a")
	first := epoch("a")
	f.must(f.store.RotateLogEpoch(f.ctx, "a"), "rotate a again")
	if second := epoch("a"); second == first || len(second) < 16 {
		f.Errorf("the epochs are %q and %q", first, second)
	}
	second := epoch("a")
	f.must(f.store.RotateLogEpoch(f.ctx, "*"), "rotate all")
	if epoch("a") == second || epoch("a") == epoch("b") || len(epoch("b")) < 16 {
		f.Errorf("the epochs are %q and %q after all were rotated", epoch("a"), epoch("b"))
	}
	f.wantCode(f.store.RotateLogEpoch(f.ctx, ""), storage.CodeInvalidSpec)
}
