package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// newPartitionedLog gives a database whose log is partitioned by partition key, with the child cl_p1, and a fence at 6.
func newPartitionedLog(t *testing.T) (*Store, *session, string) {
	t.Helper()
	dsn := testdb.Postgres(t)
	program := connect(t, dsn)
	program.run(`
		CREATE TABLE sync_commits(partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
		  actor_id TEXT NOT NULL, created_at_ms BIGINT NOT NULL, writer_version BIGINT, PRIMARY KEY(partition, commit_seq)) PARTITION BY LIST (partition);
		CREATE TABLE cl_p1 PARTITION OF sync_commits FOR VALUES IN ('p1');
		CREATE TABLE cl_deep PARTITION OF sync_commits FOR VALUES IN ('deep') PARTITION BY RANGE (commit_seq);
		CREATE TABLE cl_deep_1 PARTITION OF cl_deep FOR VALUES FROM (0) TO (1000)`)
	store := openStore(t, Config{URL: dsn})
	installCatalog(t, store)
	record(t, store, program, 6, 6, forAll(6))
	return store, program, dsn
}

const insertInto = "INSERT INTO %s(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version) VALUES ('%s', %d, 'c', 'c', 'a', 0, %d)"

func TestEachChildOfAPartitionedLogIsFenced(t *testing.T) {
	store, program, _ := newPartitionedLog(t)
	program.run("CREATE TABLE cl_p2 PARTITION OF sync_commits FOR VALUES IN ('p2')")
	program.run("CREATE TABLE cl_p3(LIKE sync_commits INCLUDING ALL)")
	program.run("ALTER TABLE sync_commits ATTACH PARTITION cl_p3 FOR VALUES IN ('p3')")
	program.run("CREATE TABLE cl_deep_2 PARTITION OF cl_deep FOR VALUES FROM (1000) TO (2000)")
	program.run("CREATE TABLE cl_rest PARTITION OF sync_commits DEFAULT")
	for _, way := range []struct{ table, partition string }{
		{"sync_commits", "p1"}, {"cl_p1", "p1"}, {"sync_commits", "p2"}, {"cl_p2", "p2"}, {"sync_commits", "p3"}, {"cl_p3", "p3"},
		{"sync_commits", "deep"}, {"cl_deep", "deep"}, {"cl_deep_1", "deep"}, {"cl_rest", "other"},
	} {
		for _, mode := range []string{"origin", "replica"} {
			program.run("SET session_replication_role = " + mode)
			expectFenced(t, program.try(fmt.Sprintf(insertInto, way.table, way.partition, 1, 5)))
		}
		if err := program.try(fmt.Sprintf(insertInto, way.table, way.partition, len(way.table)*10, 6)); err != nil {
			t.Errorf("a right version into %s: %v", way.table, err)
		}
	}
	expectFenced(t, program.try(fmt.Sprintf(insertInto, "cl_deep_2", "deep", 1001, 5)))
	// A row that moves from one child to another is written anew.
	program.run("SET session_replication_role = origin")
	expectFenced(t, program.try("UPDATE sync_commits SET partition = 'p2', commit_seq = 999, writer_version = 5 WHERE partition = 'p1' AND commit_seq = 120"))
	report, err := store.CheckFence(testContext(t))
	if err != nil || !report.Intact() {
		t.Errorf("report %+v, error %v", report, err)
	}
	raise(t, store, forAll(7))
	expectFenced(t, program.try(fmt.Sprintf(insertInto, "cl_p3", "p3", 2, 6)))
	if report, err = store.CheckFence(testContext(t)); err != nil || !report.Intact() || report.MinWriterVersion != 7 {
		t.Errorf("after a raise: report %+v, error %v", report, err)
	}
}

func TestAChildWhoseFenceIsOffIsNamed(t *testing.T) {
	for child, statements := range map[string][]string{
		"cl_p1":     {"ALTER TABLE ONLY cl_p1 DISABLE TRIGGER syncbarrier_fence", "ALTER TABLE cl_p1 ENABLE TRIGGER syncbarrier_fence", "ALTER TABLE ONLY cl_p1 DISABLE TRIGGER USER"},
		"cl_deep_1": {"ALTER TABLE ONLY cl_deep_1 DISABLE TRIGGER syncbarrier_fence"},
	} {
		for _, statement := range statements {
			t.Run(statement, func(t *testing.T) {
				t.Parallel()
				store, program, dsn := newPartitionedLog(t)
				program.run(statement)
				finding := expectFinding(t, store, "public."+child, true)
				if !strings.Contains(finding.Object, "syncbarrier_") {
					t.Errorf("%+v", finding)
				}
				expectBarrierRefuses(t, store, "public."+child)
				report, err := store.RepairFence(testContext(t))
				if err != nil || !report.Intact() {
					t.Errorf("report %+v, error %v", report, err)
				}
				replica := connect(t, dsn)
				replica.run("SET session_replication_role = replica")
				partition := strings.TrimSuffix(strings.TrimPrefix(child, "cl_"), "_1")
				expectFenced(t, replica.try(fmt.Sprintf(insertInto, "sync_commits", partition, 1, 5)))
			})
		}
	}
}

func TestRowsOfADetachedChildAreCountedWhenItIsBack(t *testing.T) {
	store, program, _ := newPartitionedLog(t)
	if err := program.append("p1", 6); err != nil {
		t.Fatal(err)
	}
	program.run("ALTER TABLE sync_commits DETACH PARTITION cl_p1")
	program.run(fmt.Sprintf(insertInto, "cl_p1", "p1", 2, 5))
	program.run(fmt.Sprintf(insertInto, "cl_p1", "p1", 3, 6))
	program.run("ALTER TABLE sync_commits ATTACH PARTITION cl_p1 FOR VALUES IN ('p1')")
	finding := expectFinding(t, store, `partition "p1"`, false)
	if finding.Rows != 1 {
		t.Errorf("%+v, want one row", finding)
	}
	report, err := store.RepairFence(testContext(t))
	if err != nil || report.GotIn != 1 {
		t.Errorf("report %+v, error %v", report, err)
	}
	expectFenced(t, program.try(fmt.Sprintf(insertInto, "cl_p1", "p1", 4, 5)))
}

func TestDefaultsAndTriggersOfAChildAreFound(t *testing.T) {
	store, program, _ := newPartitionedLog(t)
	program.run("ALTER TABLE cl_p1 ALTER COLUMN writer_version SET DEFAULT 6")
	expectFinding(t, store, "column writer_version of public.cl_p1 has a default", false)
	program.run("ALTER TABLE cl_p1 ALTER COLUMN writer_version DROP DEFAULT")
	program.run(foreignFunction + "CREATE TRIGGER stamp BEFORE INSERT ON cl_deep_1 FOR EACH ROW EXECUTE FUNCTION foreign_trigger()")
	expectFinding(t, store, "trigger stamp on public.cl_deep_1", false)
}

// TestTheGuardOnCapturedRowsReachesChildren: DELETE on a child addressed directly.
func TestTheGuardOnCapturedRowsReachesChildren(t *testing.T) {
	_, program, _ := newPartitionedLog(t)
	program.run("CREATE TABLE cl_captured PARTITION OF sync_commits FOR VALUES IN ('capture:t/')")
	program.run(fmt.Sprintf(insertInto, "cl_captured", "capture:t/", 9, 6))
	for _, table := range []string{"cl_captured", "sync_commits"} {
		expectGuarded(t, program.try("DELETE FROM "+table+" WHERE partition = 'capture:t/'"), "sync.storage.partition_guard")
	}
}

func TestAViewThatStandsForTheLogIsFound(t *testing.T) {
	store, program, _ := newPartitionedLog(t)
	program.run(`ALTER TABLE sync_commits RENAME TO commits_before`)
	program.run(`CREATE VIEW sync_commits AS SELECT * FROM commits_before`)
	expectFinding(t, store, "table public.sync_commits is a view", false)
	expectBarrierRefuses(t, store, "public.sync_commits")
}

func TestAForeignPartitionOfTheLogIsFound(t *testing.T) {
	store, program, _ := newPartitionedLog(t)
	program.run(`
		CREATE FOREIGN DATA WRAPPER elsewhere;
		CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere`)
	program.run(`ALTER TABLE sync_commits DROP CONSTRAINT sync_commits_pkey`) // no foreign table can have a key
	program.run(`CREATE FOREIGN TABLE cl_f PARTITION OF sync_commits FOR VALUES IN ('f') SERVER elsewhere`)
	expectBarrierRefuses(t, store, "table public.cl_f is a foreign table")
}
