package storagetest

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runCoverage(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"a log without a change of the tables above the number is clean", coverageClean},
		{"a change of one of the tables is found, of no other", coverageChanged},
		{"a horizon above the number is unverifiable", coverageHorizon},
		{"a hole in the log is unverifiable, whatever else it shows", coverageHole},
		{"an emptied log is unverifiable", coverageEmptied},
		{"a number above the end of the log is unverifiable", coverageBeyond},
		{"a question that proves nothing is refused", coverageInvalid},
		{"the newest source change is found", coverageNewest},
		{"a prune that comes between is never taken for clean", coverageRace},
	})
}

func (f *fixture) coverage(partition string, seq int64, tables ...string) storage.Coverage {
	f.Helper()
	coverage, err := f.store.HasSourceChangesAbove(f.ctx, partition, tables, seq)
	f.must(err, "ask for coverage")
	if (coverage.Reason != "") != (coverage.Verdict == storage.Unverifiable) {
		f.Errorf("the verdict %q has the reason %q", coverage.Verdict, coverage.Reason)
	}
	return coverage
}

// logged has commits 1 todos, 2 notes, 3 todos, 4 notes, 5 notes in partition a.
func (f *fixture) logged() {
	f.Helper()
	f.apply(version1())
	for _, table := range []string{"todos", "notes", "todos", "notes", "notes"} {
		f.log("a", 1, table)
	}
}

func coverageClean(f *fixture) {
	f.logged()
	same(f, "above 3", f.coverage("a", 3, "todos").Verdict, storage.Clean)
	same(f, "above 5", f.coverage("a", 5, "todos", "notes").Verdict, storage.Clean)
	same(f, "of a partition without a log", f.coverage("never seen", 0, "todos").Verdict, storage.Clean)
	same(f, "of a table that nobody changed", f.coverage("a", 0, "others").Verdict, storage.Clean)
}

func coverageChanged(f *fixture) {
	f.logged()
	same(f, "above 2", f.coverage("a", 2, "todos").Verdict, storage.Changed)
	same(f, "above 3, of two tables", f.coverage("a", 3, "todos", "notes").Verdict, storage.Changed)
	same(f, "above 0, of many", f.coverage("a", 0, "x", "y", "z", "todos").Verdict, storage.Changed)
	same(f, "of another partition", f.coverage("b", 0, "todos").Verdict, storage.Clean)
}

func coverageHorizon(f *fixture) {
	f.logged()
	horizon, err := f.store.Prune(f.ctx, "a", 3, false)
	f.must(err, "prune")
	same(f, "horizon", horizon, 3)
	coverage := f.coverage("a", 2, "todos")
	same(f, "above 2", coverage.Verdict, storage.Unverifiable)
	if !containsText(coverage.Reason, "3") {
		f.Errorf("the reason does not name the horizon: %q", coverage.Reason)
	}
	same(f, "above 2, with a change that is there", f.coverage("a", 2, "notes").Verdict, storage.Unverifiable)
	same(f, "above 3", f.coverage("a", 3, "todos").Verdict, storage.Clean)
}

func coverageHole(f *fixture) {
	f.logged()
	f.exec("DELETE FROM sync_changes WHERE partition = 'a' AND commit_seq = 3")
	f.exec("DELETE FROM sync_commits WHERE partition = 'a' AND commit_seq = 3")
	same(f, "above 2", f.coverage("a", 2, "todos").Verdict, storage.Unverifiable)
	same(f, "above 2, with a change that is there", f.coverage("a", 2, "notes").Verdict, storage.Unverifiable)
	same(f, "above the hole", f.coverage("a", 3, "todos").Verdict, storage.Clean)
}

func coverageEmptied(f *fixture) {
	f.logged()
	f.exec("DELETE FROM sync_changes")
	f.exec("DELETE FROM sync_commits")
	for seq := range int64(5) {
		same(f, "verdict", f.coverage("a", seq, "todos").Verdict, storage.Unverifiable)
	}
	same(f, "above its last number", f.coverage("a", 5, "todos").Verdict, storage.Clean)
}

func coverageBeyond(f *fixture) {
	f.logged()
	same(f, "above 6", f.coverage("a", 6, "todos").Verdict, storage.Unverifiable)
	same(f, "above 1 of a partition without a log", f.coverage("never seen", 1, "todos").Verdict, storage.Unverifiable)
}

func coverageInvalid(f *fixture) {
	f.logged()
	_, err := f.store.HasSourceChangesAbove(f.ctx, "a", nil, 0)
	f.wantCode(err, storage.CodeInvalidSpec)
	_, err = f.store.HasSourceChangesAbove(f.ctx, "a", []string{"todos"}, -1)
	f.wantCode(err, storage.CodeInvalidSpec)
	_, err = f.store.HasSourceChangesAbove(f.ctx, "", []string{"todos"}, 0)
	f.wantCode(err, storage.CodeInvalidSpec)
	_, err = f.store.SourceCoverageSeq(f.ctx, "a", nil)
	f.wantCode(err, storage.CodeInvalidSpec)
}

func coverageNewest(f *fixture) {
	f.logged()
	for _, tt := range []struct {
		tables []string
		want   int64
	}{
		{[]string{"todos"}, 3}, {[]string{"notes"}, 5}, {[]string{"todos", "notes"}, 5}, {[]string{"others"}, 0},
	} {
		got, err := f.store.SourceCoverageSeq(f.ctx, "a", tt.tables)
		f.must(err, "ask for the newest change")
		same(f, "newest", got, tt.want)
	}
}

func coverageRace(f *fixture) {
	f.apply(version1())
	const commits = 60
	for range commits {
		f.log("a", 1, "todos")
	}
	pruner := f.db.OpenStore(f.T)
	pruned := make(chan error, 1)
	go func() {
		for seq := int64(1); seq <= commits; seq++ {
			if err := retry(f.ctx, func() error { _, err := pruner.Prune(f.ctx, "a", seq, true); return err }); err != nil {
				pruned <- err
				return
			}
		}
		pruned <- nil
	}()
	for {
		select {
		case err := <-pruned:
			f.must(err, "prune")
			same(f, "after the last prune", f.coverage("a", 0, "todos").Verdict, storage.Unverifiable)
			return
		default:
			var verdict storage.Coverage
			f.must(retry(f.ctx, func() (err error) {
				verdict, err = f.store.HasSourceChangesAbove(f.ctx, "a", []string{"todos"}, 0)
				return err
			}), "ask for coverage")
			if verdict.Verdict == storage.Clean {
				f.Fatal("a log full of changes was found clean while it was pruned")
			}
		}
	}
}
