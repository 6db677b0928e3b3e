package postgres

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// By the protocol's own index a question about an old position is a scan of the log above it.
func TestACoverageQuestionIsOneDescentForEachTableHoweverOldThePosition(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(1, plainTodos()))
	db.exec(`
		INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ('a', 100000);
		INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms)
		SELECT 'a', n, 'c', 'k', 'a', 0 FROM generate_series(1, 100000) AS n;
		INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
		SELECT 'a', n, 0, 'others', n, 1, '{}' FROM generate_series(1, 100000) AS n`)
	// A session that starts anywhere on the server holds back what a vacuum may call visible to all, and then no scan is index-only.
	db.eventually("the log's pages are known to be visible to all", func() bool {
		db.exec("VACUUM ANALYZE sync_changes, sync_commits, sync_partitions")
		return db.text(`
			SELECT bool_and(relallvisible = relpages)
			  FROM pg_class
			 WHERE relname IN ('sync_changes', 'sync_commits')`) == "true"
	})
	coverage, err := db.store.HasSourceChangesAbove(db.ctx, "a", []string{"todos", "notes"}, 1)
	if err != nil || coverage.Verdict != storage.Clean {
		t.Fatalf("the verdict is %+v, %v", coverage, err)
	}
	rows, err := db.conn.Query(db.ctx, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, BUFFERS) "+db.store.sql(coverageSQL),
		"a", []string{"todos", "notes"}, int64(1), int64(1))
	if err != nil {
		t.Fatalf("explain: %v", err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("explain: %v", err)
	}
	plan := strings.Join(lines, "\n")
	for _, want := range []string{"Index Only Scan using " + coverageIndex, "Index Only Scan using sync_commits_pkey"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan has no %q:\n%s", want, plan)
		}
	}
	if strings.Contains(plan, "Seq Scan on sync_c") {
		t.Errorf("the plan reads the log:\n%s", plan)
	}
}

// Horizon and log are one statement. Read apart, a prune that commits in between would leave an old horizon and an empty log.
func TestAPruneBetweenHorizonAndLogIsNotTakenForClean(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(1, plainTodos()))
	for range 5 {
		db.write("a", 1, "SELECT 1")
	}
	pruner := connect(t, db.url)
	pruner.run("BEGIN")
	pruner.run("UPDATE sync_partitions SET horizon_seq = 5 WHERE partition = 'a'")
	pruner.run("DELETE FROM sync_changes")
	pruner.run("DELETE FROM sync_commits")
	ask := func() storage.Verdict {
		coverage, err := db.store.HasSourceChangesAbove(db.ctx, "a", []string{"todos"}, 0)
		if err != nil {
			t.Fatalf("ask for coverage: %v", err)
		}
		return coverage.Verdict
	}
	if verdict := ask(); verdict != storage.Changed {
		t.Errorf("before the prune commits the verdict is %s", verdict)
	}
	pruner.run("COMMIT")
	if verdict := ask(); verdict != storage.Unverifiable {
		t.Errorf("after it the verdict is %s", verdict)
	}
}

// A prune keeps no writer waiting but for the move of the horizon, however much log there is to delete.
func TestAPruneHoldsNoPartitionWhileItDeletes(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(1, plainTodos()))
	for range 10 {
		db.write("a", 1, "SELECT 1")
	}
	holder := connect(t, db.url)
	holder.run("BEGIN")
	holder.run("LOCK TABLE sync_changes IN SHARE MODE") // the deletes wait
	pruned := inParallel(func() error { _, err := db.store.Prune(db.ctx, "a", 5, false); return err })
	db.eventually("the prune waits to delete", func() bool { return db.waiting("sync_changes") })
	writer := connect(t, db.url)
	writer.run("SET lock_timeout = '1s'")
	if err := writer.append("a", 1); err != nil {
		t.Errorf("a writer waits for the prune: %v", err)
	}
	db.wantText("5", "SELECT horizon_seq FROM sync_partitions")
	holder.run("COMMIT")
	if err := <-pruned; err != nil {
		t.Fatalf("prune: %v", err)
	}
	db.wantText("6", "SELECT count(*) FROM sync_commits")
}
