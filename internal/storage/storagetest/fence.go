package storagetest

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runFence(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"before the first fence every writer passes, one without a version too", fenceNone},
		{"from the barrier on older writers are refused with what a person needs", fenceOld},
		{"a partition that did not exist at the barrier is fenced as well", fenceNewPartition},
		{"a commit without a version is refused by the database itself", fenceMissing},
		{"a stored version is not lowered afterwards", fenceUpdate},
		{"listed partitions are fenced alone", fenceListed},
		{"an additive version shuts nobody out", fenceAdditive},
		{"an explicit minimum is taken, and never one lower than the stored", fenceExplicit},
		{"refusals are counted", fenceCounted},
		{"an intact fence has no findings, and repair changes nothing", fenceIntact},
		{"without a catalog the fence is broken", fenceNoCatalog},
		{"a fence that was taken away is found, put back, and what got in is counted", fenceRepair},
	})
}

// oldWriter appends a commit of a version and gives the error.
func (f *fixture) oldWriter(partition string, version int64) error {
	f.Helper()
	tx := f.begin(partition, version)
	defer func() { f.must(tx.Rollback(f.ctx), "roll back") }()
	if _, err := tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert)); err != nil {
		return err
	}
	return tx.Commit(f.ctx)
}

const rawCommit = `INSERT INTO sync_commits (partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms) VALUES ($1, $2, 'c', 'k', 'a', 0)`

func fenceNone(f *fixture) {
	f.apply(version1())
	f.must(f.oldWriter("a", 0), "write as version 0")
	f.exec(rawCommit, "a", 1000)
	same(f, "commits", f.number("SELECT count(*) FROM sync_commits"), 2)
}

func fenceOld(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "before")
	f.apply(version2(titleNorm(2)))
	err := f.oldWriter("a", 1)
	f.wantCode(err, storage.CodeWriterFenceRejected)
	f.wantMessage(err, "sync_commits", "partition", "1", "2")
	same(f, "commits", f.number("SELECT count(*) FROM sync_commits"), 1)
	f.must(f.oldWriter("a", 2), "write as version 2")
	f.must(f.oldWriter("a", 3), "write as version 3")
}

func fenceNewPartition(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	f.wantCode(f.oldWriter("new", 1), storage.CodeWriterFenceRejected)
	f.must(f.oldWriter("new", 2), "write as version 2")
}

func fenceMissing(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	for _, partition := range []string{"a", "new"} {
		_, err := f.program.Exec(f.ctx, rawCommit, partition, 1)
		f.wantRaised(err, storage.CodeWriterFenceRejected)
	}
	same(f, "commits", f.number("SELECT count(*) FROM sync_commits"), 0)
}

// wantRaised checks that the database's own error carries the bare code, as programs of the sync protocol compare it.
func (f *fixture) wantRaised(err error, code storage.Code) {
	f.Helper()
	if err == nil || !strings.Contains(err.Error(), string(code)) {
		f.Fatalf("the database answered %v, want an error with %q", err, code)
	}
}

func fenceUpdate(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	f.write("a", 2, 1, "new")
	for _, version := range []any{int64(1), nil} {
		_, err := f.program.Exec(f.ctx, "UPDATE sync_commits SET writer_version = $1", version)
		f.wantRaised(err, storage.CodeWriterFenceRejected)
	}
	same(f, "stored version", f.number("SELECT writer_version FROM sync_commits"), 2)
}

func fenceListed(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2, "a", "b")))
	f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
	f.wantCode(f.oldWriter("b", 1), storage.CodeWriterFenceRejected)
	f.must(f.oldWriter("c", 1), "write to a partition that is not listed")
	f.must(f.oldWriter("a", 2), "write as version 2")
	same(f, "fence for all", f.number("SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'"), 0)
	same(f, "fence of a", f.number("SELECT required_writer_version FROM sync_writer_fence WHERE partition = 'a'"), 2)
}

func fenceAdditive(f *fixture) {
	f.apply(version1())
	f.apply(version2())
	f.must(f.oldWriter("a", 1), "write as version 1")
}

func fenceExplicit(f *fixture) {
	target := version1()
	target.MinWriterVersion = minimum(1)
	f.apply(target)
	f.wantCode(f.oldWriter("a", 0), storage.CodeWriterFenceRejected)
	lower := version2()
	lower.MinWriterVersion = minimum(0)
	err := f.refuse(lower, storage.CodeInvalidSpec)
	f.wantMessage(err, "minWriterVersion")
	below := version2(titleNorm(2))
	below.MinWriterVersion = minimum(1)
	_ = f.refuse(below, storage.CodeInvalidSpec)
	exact := version2()
	exact.MinWriterVersion = minimum(2)
	f.apply(exact)
	f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
}

func fenceCounted(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	for range 3 {
		f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
	}
	status, err := f.store.Status(f.ctx)
	f.must(err, "read the status")
	if f.db.Dialect == storage.PostgreSQL {
		same(f, "refused", status.Refused, 3)
	} else {
		// Nothing survives the rollback of a refused transaction in SQLite, so nothing is counted there.
		same(f, "refused", status.Refused, 0)
	}
}

func fenceIntact(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	report, err := f.store.CheckFence(f.ctx)
	f.must(err, "check the fence")
	same(f, "minimum", report.MinWriterVersion, 2)
	if !report.Intact() {
		f.Errorf("findings of an intact fence: %+v", report.Findings)
	}
	report, err = f.store.RepairFence(f.ctx)
	f.must(err, "repair the fence")
	if len(report.Repaired) != 0 || report.GotIn != 0 {
		f.Errorf("repaired %v, got in %d, of an intact fence", report.Repaired, report.GotIn)
	}
}

func fenceNoCatalog(f *fixture) {
	_, err := f.store.CheckFence(f.ctx)
	f.wantCode(err, storage.CodeFenceBroken)
}

func fenceRepair(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "before the fence")
	f.apply(version2(titleNorm(2)))
	f.vandalise("sync_commits", rawCommit, "a", 50)
	f.exec("UPDATE sync_partitions SET max_commit_seq = 50 WHERE partition = 'a'")
	report, err := f.store.CheckFence(f.ctx)
	f.must(err, "check the fence")
	if report.Intact() {
		f.Fatal("a fence that is gone has no findings")
	}
	_ = f.refuse(next(version2(titleNorm(2))), storage.CodeFenceBroken)

	report, err = f.store.RepairFence(f.ctx)
	f.must(err, "repair the fence")
	same(f, "got in", report.GotIn, 1)
	if len(report.Repaired) == 0 {
		f.Error("nothing was put back")
	}
	report, err = f.store.CheckFence(f.ctx)
	f.must(err, "check the fence again")
	for _, finding := range report.Findings {
		if finding.Repairable {
			f.Errorf("left after the repair: %+v", finding)
		}
	}
	f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
}
