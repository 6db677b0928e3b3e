package postgres

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

const coverageIndexes = `
	SELECT coalesce(string_agg(i.indrelid::regclass || ' ' || i.indisvalid, ', ' ORDER BY i.indrelid::regclass::text), '')
	  FROM pg_index i
	  JOIN pg_class c ON c.oid = i.indexrelid
	 WHERE pg_get_indexdef(i.indexrelid) LIKE '%(partition, tbl, commit_seq)'`

func ensureCoverage(t *testing.T, store *Store) string {
	t.Helper()
	note, err := store.ensureCoverageIndex(testContext(t), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return note
}

func TestTheCoverageIndexIsBuiltOnALogThatExists(t *testing.T) {
	dsn := testdb.Postgres(t)
	program := connect(t, dsn)
	startProgram(program)
	store := openStore(t, Config{URL: dsn})
	// A writer that is in the middle of its transaction is not waited for by anybody but the build itself, and keeps on writing.
	if note := ensureCoverage(t, store); note != "" {
		t.Errorf("note %q", note)
	}
	if got := value[string](program, coverageIndexes); got != "sync_changes true" {
		t.Errorf("indexes: %s", got)
	}
	before := value[string](program, "SELECT string_agg(oid::text, ',') FROM pg_class WHERE relkind = 'i'")
	ensureCoverage(t, store)
	installCatalog(t, store)
	ensureCoverage(t, store)
	if got := value[string](program, coverageIndexes); got != "sync_changes true" {
		t.Errorf("indexes after more calls: %s", got)
	}
	if !strings.HasPrefix(value[string](program, "SELECT string_agg(oid::text, ',') FROM pg_class WHERE relkind = 'i'"), strings.Split(before, ",")[0]) {
		t.Error("indexes were built again")
	}
}

func TestBuildingTheCoverageIndexKeepsNobodyFromWriting(t *testing.T) {
	dsn := testdb.Postgres(t)
	watcher, program := connect(t, dsn), connect(t, dsn)
	startProgram(program)
	store := openStore(t, Config{URL: dsn})
	program.run("BEGIN")
	program.run("INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes) VALUES ('p', 1, 0, 't', '1', 1, '{}')")
	done := make(chan error, 1)
	go func() {
		_, err := store.ensureCoverageIndex(testContext(t), time.Minute)
		done <- err
	}()
	waitAnyBlocked(t, watcher, "CREATE INDEX CONCURRENTLY")
	other := connect(t, dsn)
	other.run("SET lock_timeout = '1s'")
	other.run("INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes) VALUES ('p', 2, 0, 't', '1', 1, '{}')")
	// A second starter does not wait for the build.
	if note := ensureCoverage(t, openStore(t, Config{URL: dsn})); !strings.Contains(note, "somebody else") {
		t.Errorf("note %q", note)
	}
	program.run("COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := value[string](watcher, coverageIndexes); got != "sync_changes true" {
		t.Errorf("indexes: %s", got)
	}
}

func TestAnOlderSnapshotDoesNotHoldTheCoverageIndexUpForLong(t *testing.T) {
	dsn := testdb.Postgres(t)
	report, program := connect(t, dsn), connect(t, dsn)
	startProgram(program)
	store := openStore(t, Config{URL: dsn})
	report.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
	report.run("SELECT count(*) FROM sync_commits")
	note, err := store.ensureCoverageIndex(testContext(t), 200*time.Millisecond)
	if err != nil || !strings.Contains(note, "not built yet") {
		t.Fatalf("note %q, error %v", note, err)
	}
	// Nothing of the build is left that a starting program would wait for.
	program.run("SET lock_timeout = '1s'")
	program.run("CREATE INDEX IF NOT EXISTS sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx)")
	report.run("COMMIT")
	if note := ensureCoverage(t, store); note != "" {
		t.Errorf("note %q", note)
	}
	if got := value[string](program, coverageIndexes); got != "sync_changes true" {
		t.Errorf("indexes: %s", got)
	}
}

func TestAnInvalidLeftoverIsBuiltAgain(t *testing.T) {
	dsn := testdb.Postgres(t)
	program := connect(t, dsn)
	startProgram(program)
	program.run("CREATE INDEX syncbarrier_changes_by_table ON sync_changes(partition, tbl, commit_seq)")
	program.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'syncbarrier_changes_by_table'::regclass")
	ensureCoverage(t, openStore(t, Config{URL: dsn}))
	if got := value[string](program, coverageIndexes); got != "sync_changes true" {
		t.Errorf("indexes: %s", got)
	}
}

func TestAnotherIndexOverTheSameColumnsWillDo(t *testing.T) {
	dsn := testdb.Postgres(t)
	program := connect(t, dsn)
	startProgram(program)
	program.run("CREATE INDEX theirs ON sync_changes(partition, tbl, commit_seq)")
	ensureCoverage(t, openStore(t, Config{URL: dsn}))
	if value[bool](program, "SELECT to_regclass('syncbarrier_changes_by_table') IS NOT NULL") {
		t.Error("a second one was built")
	}
}

func TestTheCoverageIndexOfAPartitionedLog(t *testing.T) {
	dsn := testdb.Postgres(t)
	program := connect(t, dsn)
	program.run(`
		CREATE TABLE sync_changes(partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL,
		  op SMALLINT NOT NULL, row_version BIGINT, scopes JSONB NOT NULL, payload BYTEA, PRIMARY KEY(partition, commit_seq, idx)) PARTITION BY LIST (partition);
		CREATE TABLE ch_a PARTITION OF sync_changes FOR VALUES IN ('a');
		CREATE TABLE ch_b PARTITION OF sync_changes FOR VALUES IN ('b') PARTITION BY RANGE (commit_seq);
		CREATE TABLE ch_b_1 PARTITION OF ch_b FOR VALUES FROM (0) TO (100);
		CREATE INDEX ON ch_a(partition, tbl, commit_seq)`)
	store := openStore(t, Config{URL: dsn})
	if note := ensureCoverage(t, store); !strings.Contains(note, "partitioned") {
		t.Errorf("note %q", note)
	}
	installCatalog(t, store)
	if got := value[string](program, coverageIndexes); got != "ch_a true, ch_b true, ch_b_1 true, sync_changes true" {
		t.Errorf("indexes: %s", got)
	}
	if note := ensureCoverage(t, store); note != "" {
		t.Errorf("a second call notes %q", note)
	}
}

func TestWithoutALogThereIsNothingToIndex(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	if note := ensureCoverage(t, store); note != "" {
		t.Errorf("note %q", note)
	}
}

func TestManyStartersBuildOneIndex(t *testing.T) {
	dsn := testdb.Postgres(t)
	program := connect(t, dsn)
	startProgram(program)
	var starters sync.WaitGroup
	for range 4 {
		store := openStore(t, Config{URL: dsn})
		starters.Go(func() {
			if _, err := store.ensureCoverageIndex(testContext(t), time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	starters.Wait()
	if got := value[string](program, coverageIndexes); got != "sync_changes true" {
		t.Errorf("indexes: %s", got)
	}
}

func TestBehindAPoolerTheCoverageIndexIsBuiltTooAndNoSettingIsLeft(t *testing.T) {
	dsn := testdb.Postgres(t)
	startProgram(connect(t, dsn))
	pooled := testdb.PgBouncer(t, dsn)
	store := openStore(t, Config{URL: pooled, Pooler: PoolerTransaction})
	ensureCoverage(t, store)
	installCatalog(t, store)
	raise(t, store, forAll(6))
	program := connect(t, dsn)
	if got := value[string](program, coverageIndexes); got != "sync_changes true" {
		t.Errorf("indexes: %s", got)
	}
	expectFenced(t, program.append("p", 5))
	if locks := value[int64](program, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"); locks != 0 {
		t.Errorf("%d advisory locks are left", locks)
	}
}
