package postgres

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestRemovingShowsAndThenDropsAllThatIsOurs(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, map[string]int64{"p": 7, storage.AllPartitions: 6})
	program := connect(t, dsn)
	if err := program.append("p", 7); err != nil {
		t.Fatal(err)
	}
	program.run("INSERT INTO " + checkpointInto + " VALUES ('*', 'c', 6, 'declared', 0, 0, 0), ('p', 'd', 6, 'declared', 0, 0, 0)")
	before := value[string](program, catalogState)
	shown, err := store.Remove(testContext(t), false)
	if err != nil {
		t.Fatal(err)
	}
	if after := value[string](program, catalogState); after != before {
		t.Error("showing changed something")
	}
	done, err := store.Remove(testContext(t), true)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(done, ";") != strings.Join(shown, ";") || len(done) == 0 {
		t.Errorf("shown was %v, done %v", shown, done)
	}
	ours := value[int64](program, `
		SELECT count(*) FROM (
			SELECT relname FROM pg_class WHERE relname LIKE 'syncbarrier%' OR relname IN ('sync_barrier_history', 'sync_barrier_owner') OR relname LIKE 'sync_backfill_p%'
			UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE 'syncbarrier%'
			UNION ALL SELECT tgname FROM pg_trigger WHERE tgname LIKE 'syncbarrier%') AS left_over`)
	if ours != 0 {
		t.Errorf("%d objects of ours are left", ours)
	}
	kept := value[string](program, `
		SELECT (SELECT count(*) FROM sync_commits) || ' ' || (SELECT string_agg(partition, ',') FROM sync_writer_fence) || ' ' ||
		       (SELECT string_agg(name, ',') FROM sync_backfill_checkpoints)`)
	if kept != "1 p d" {
		t.Errorf("kept is %q, want the commit, the fence of p and the checkpoint d", kept)
	}
	if err := program.append("p", 1); err != nil {
		t.Errorf("an old writer after the removal: %v", err)
	}
	again, err := store.Remove(testContext(t), true)
	if err != nil || len(again) != 0 {
		t.Errorf("a second removal: %v, %v", again, err)
	}
	installCatalog(t, store) // and back
	if report, err := store.CheckFence(testContext(t)); err != nil || !report.Intact() {
		t.Errorf("installed again: %+v, %v", report, err)
	}
}

func TestRemovingWaitsForWritersWithinItsBound(t *testing.T) {
	store, dsn := newCatalog(t)
	writer := connect(t, dsn)
	writer.run("BEGIN")
	if err := writer.append("p", 1); err != nil {
		t.Fatal(err)
	}
	_, err := store.Remove(testContext(t), true)
	expectCode(t, err, storage.CodeLockTimeout)
	writer.run("COMMIT")
	if report, err := store.CheckFence(testContext(t)); err != nil || !report.Intact() {
		t.Errorf("after a removal that gave up: %+v, %v", report, err)
	}
}

func TestWithoutACatalogThereIsNothingToRemove(t *testing.T) {
	dsn := testdb.Postgres(t)
	startProgram(connect(t, dsn))
	statements, err := openStore(t, Config{URL: dsn}).Remove(testContext(t), true)
	if err != nil || len(statements) != 0 {
		t.Errorf("%v, %v", statements, err)
	}
}
