package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// weakening is one way to weaken fence or guards.
type weakening struct {
	name string
	sql  string
	find string // in the finding's object and problem
	// oldPasses says that a version below the fence can be stored while it is so.
	oldPasses bool
	// byHand is what a person does about it; "": RepairFence does it.
	byHand string
}

const foreignFunction = `CREATE FUNCTION foreign_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;`

var weakenings = []weakening{
	{name: "the fence is dropped", sql: "DROP TRIGGER syncbarrier_fence ON sync_commits", find: "trigger syncbarrier_fence on public.sync_commits is missing", oldPasses: true},
	{name: "the fence is disabled", sql: "ALTER TABLE sync_commits DISABLE TRIGGER syncbarrier_fence", find: "syncbarrier_fence on public.sync_commits is disabled", oldPasses: true},
	{name: "the fence fires as usual", sql: "ALTER TABLE sync_commits ENABLE TRIGGER syncbarrier_fence", find: "does not fire for sessions with session_replication_role = replica"},
	{name: "the fence fires for replicas alone", sql: "ALTER TABLE sync_commits ENABLE REPLICA TRIGGER syncbarrier_fence", find: "fires only for sessions with session_replication_role", oldPasses: true},
	{name: "all triggers are disabled", sql: "ALTER TABLE sync_commits DISABLE TRIGGER ALL", find: "syncbarrier_fence on public.sync_commits is disabled", oldPasses: true},
	{name: "the fence is for INSERT alone", sql: "CREATE OR REPLACE TRIGGER syncbarrier_fence AFTER INSERT ON sync_commits FOR EACH ROW EXECUTE FUNCTION syncbarrier_fence('6'); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "fires on other events"},
	{name: "the fence fires BEFORE", sql: "CREATE OR REPLACE TRIGGER syncbarrier_fence BEFORE INSERT OR UPDATE ON sync_commits FOR EACH ROW EXECUTE FUNCTION syncbarrier_fence('6'); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "fires on other events"},
	{name: "the fence has a condition", sql: "CREATE OR REPLACE TRIGGER syncbarrier_fence AFTER INSERT OR UPDATE ON sync_commits FOR EACH ROW WHEN (NEW.writer_version > 100) EXECUTE FUNCTION syncbarrier_fence('6'); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "has another condition", oldPasses: true},
	{name: "the fence is for some columns", sql: "CREATE OR REPLACE TRIGGER syncbarrier_fence AFTER INSERT OR UPDATE OF actor_id ON sync_commits FOR EACH ROW EXECUTE FUNCTION syncbarrier_fence('6'); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "fires only for some columns"},
	{name: "the argument is lower", sql: "CREATE OR REPLACE TRIGGER syncbarrier_fence AFTER INSERT OR UPDATE ON sync_commits FOR EACH ROW EXECUTE FUNCTION syncbarrier_fence('5'); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "enforces version 5, required is 6"},
	{name: "argument and mirror are lower than the history", sql: "ALTER TABLE sync_writer_fence DISABLE TRIGGER syncbarrier_guard_fence; UPDATE sync_writer_fence SET required_writer_version = 1; ALTER TABLE sync_writer_fence ENABLE ALWAYS TRIGGER syncbarrier_guard_fence; CREATE OR REPLACE TRIGGER syncbarrier_fence AFTER INSERT OR UPDATE ON sync_commits FOR EACH ROW EXECUTE FUNCTION syncbarrier_fence('1'); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "enforces version 1, required is 6", oldPasses: true},
	{name: "the fence has no argument", sql: "CREATE OR REPLACE TRIGGER syncbarrier_fence AFTER INSERT OR UPDATE ON sync_commits FOR EACH ROW EXECUTE FUNCTION syncbarrier_fence(); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "has no minimum version"},
	{name: "the fence calls another function", sql: foreignFunction + "CREATE OR REPLACE TRIGGER syncbarrier_fence AFTER INSERT OR UPDATE ON sync_commits FOR EACH ROW EXECUTE FUNCTION foreign_trigger('6'); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "calls the function foreign_trigger", oldPasses: true},
	{name: "the fence can be deferred", sql: "DROP TRIGGER syncbarrier_fence ON sync_commits; CREATE CONSTRAINT TRIGGER syncbarrier_fence AFTER INSERT OR UPDATE ON sync_commits DEFERRABLE FOR EACH ROW EXECUTE FUNCTION syncbarrier_fence('6'); ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence", find: "is a constraint trigger"},
	{name: "the function is another", sql: "CREATE OR REPLACE FUNCTION syncbarrier_fence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS 'BEGIN RETURN NULL; END'", find: "function public.syncbarrier_fence has another body", oldPasses: true},
	{name: "the function is STABLE", sql: "ALTER FUNCTION syncbarrier_guard_log() STABLE", find: "is not VOLATILE"},
	{name: "the function is SECURITY INVOKER", sql: "ALTER FUNCTION syncbarrier_fence() SECURITY INVOKER", find: "is not SECURITY DEFINER"},
	{name: "the function lost a setting", sql: "ALTER FUNCTION syncbarrier_fence() RESET row_security", find: "has other settings"},
	{name: "the function has another path", sql: "ALTER FUNCTION syncbarrier_guard_marker() SET search_path = public", find: "has other settings"},
	{name: "the function has a setting more", sql: "ALTER FUNCTION syncbarrier_guard_marker() SET work_mem = '64kB'", find: "has other settings"},
	{name: "everybody may execute it", sql: "GRANT EXECUTE ON FUNCTION syncbarrier_fence() TO PUBLIC", find: "may be executed by PUBLIC"},
	{name: "another role may execute it", sql: "GRANT EXECUTE ON FUNCTION syncbarrier_guard_fence() TO {role}", find: "may be executed by {role}"},
	{name: "the function has another owner", sql: "ALTER FUNCTION syncbarrier_fence() OWNER TO {role}", find: "belongs to the role {role}"},
	{name: "the function is gone with its triggers", sql: "DROP FUNCTION syncbarrier_fence() CASCADE", find: "function public.syncbarrier_fence is missing", oldPasses: true},
	{name: "the sequence is gone", sql: "DROP SEQUENCE syncbarrier_refused", find: "sequence public.syncbarrier_refused is missing"},
	{name: "the row for all is gone", sql: "ALTER TABLE sync_writer_fence DISABLE TRIGGER syncbarrier_guard_fence; DELETE FROM sync_writer_fence; ALTER TABLE sync_writer_fence ENABLE ALWAYS TRIGGER syncbarrier_guard_fence", find: `row "*" of public.sync_writer_fence is missing`},
	{name: "the row for all is lower", sql: "ALTER TABLE sync_writer_fence DISABLE TRIGGER syncbarrier_guard_fence; UPDATE sync_writer_fence SET required_writer_version = 1; ALTER TABLE sync_writer_fence ENABLE ALWAYS TRIGGER syncbarrier_guard_fence", find: "says version 1, required is 6"},
	{name: "the marker's guard is dropped", sql: "DROP TRIGGER syncbarrier_guard_marker ON sync_schema_meta", find: "syncbarrier_guard_marker on public.sync_schema_meta is missing"},
	{name: "a guard on TRUNCATE is disabled", sql: "ALTER TABLE sync_backfill_checkpoints DISABLE TRIGGER syncbarrier_guard_checkpoint_truncate", find: "syncbarrier_guard_checkpoint_truncate on public.sync_backfill_checkpoints is disabled"},
	{name: "a guard fires as usual", sql: "ALTER TABLE sync_partitions ENABLE TRIGGER syncbarrier_guard_partition", find: "syncbarrier_guard_partition on public.sync_partitions does not fire"},
	{name: "a guard's condition is weaker", sql: "CREATE OR REPLACE TRIGGER syncbarrier_guard_partition BEFORE UPDATE ON sync_partitions FOR EACH ROW WHEN (NEW.horizon_seq < OLD.horizon_seq) EXECUTE FUNCTION syncbarrier_guard_partition(); ALTER TABLE sync_partitions ENABLE ALWAYS TRIGGER syncbarrier_guard_partition", find: "has another condition"},
	{name: "the marker's guard has a target", sql: "CREATE OR REPLACE TRIGGER syncbarrier_guard_marker BEFORE INSERT OR UPDATE OR DELETE ON sync_schema_meta FOR EACH ROW EXECUTE FUNCTION syncbarrier_guard_marker('9'); ALTER TABLE sync_schema_meta ENABLE ALWAYS TRIGGER syncbarrier_guard_marker", find: "has the arguments [9] instead of [0]"},
	{name: "the guard on the log is dropped", sql: "DROP TRIGGER syncbarrier_guard_changes ON sync_changes", find: "syncbarrier_guard_changes on public.sync_changes is missing"},
	{name: "the guard on definitions is dropped", sql: "DROP TRIGGER syncbarrier_guard_definition_kept ON sync_backfill_definitions", find: "syncbarrier_guard_definition_kept on public.sync_backfill_definitions is missing"},
	{name: "the guard on emptying definitions is disabled", sql: "ALTER TABLE sync_backfill_definitions DISABLE TRIGGER syncbarrier_guard_definition_truncate", find: "syncbarrier_guard_definition_truncate on public.sync_backfill_definitions is disabled"},

	{name: "another BEFORE trigger", sql: foreignFunction + "CREATE TRIGGER stamp BEFORE INSERT ON sync_commits FOR EACH ROW EXECUTE FUNCTION foreign_trigger()", find: "trigger stamp on public.sync_commits is a BEFORE trigger that is not ours (function foreign_trigger)", byHand: "DROP TRIGGER stamp ON sync_commits"},
	{name: "another BEFORE UPDATE trigger", sql: foreignFunction + "CREATE TRIGGER stamp BEFORE UPDATE ON sync_commits FOR EACH ROW EXECUTE FUNCTION foreign_trigger()", find: "trigger stamp on public.sync_commits", byHand: "DROP TRIGGER stamp ON sync_commits"},
	{name: "another trigger under the protocol's name", sql: foreignFunction + "CREATE TRIGGER sync_commits_writer_fence BEFORE INSERT ON sync_commits FOR EACH ROW EXECUTE FUNCTION foreign_trigger()", find: "trigger sync_commits_writer_fence on public.sync_commits", byHand: "DROP TRIGGER sync_commits_writer_fence ON sync_commits"},
	{name: "a default", sql: "ALTER TABLE sync_commits ALTER COLUMN writer_version SET DEFAULT 7", find: "column writer_version of public.sync_commits has a default", byHand: "ALTER TABLE sync_commits ALTER COLUMN writer_version DROP DEFAULT"},
	{name: "a generated column", sql: "ALTER TABLE sync_commits DROP COLUMN writer_version; ALTER TABLE sync_commits ADD COLUMN writer_version bigint GENERATED ALWAYS AS (7) STORED", find: "column writer_version of public.sync_commits is generated", byHand: "ALTER TABLE sync_commits ALTER COLUMN writer_version DROP EXPRESSION"},
	{name: "an identity column", sql: "ALTER TABLE sync_commits ALTER COLUMN writer_version SET NOT NULL; ALTER TABLE sync_commits ALTER COLUMN writer_version ADD GENERATED BY DEFAULT AS IDENTITY", find: "is an identity column", byHand: "ALTER TABLE sync_commits ALTER COLUMN writer_version DROP IDENTITY"},
	{name: "a domain with a default", sql: "CREATE DOMAIN version AS bigint DEFAULT 7; ALTER TABLE sync_commits ALTER COLUMN writer_version TYPE version", find: "is of a domain", byHand: "ALTER TABLE sync_commits ALTER COLUMN writer_version TYPE bigint"},
	{name: "a child by INHERITS", sql: "CREATE TABLE child() INHERITS (sync_commits)", find: "table public.child inherits from the log", byHand: "DROP TABLE child"},
	{name: "a grandchild by INHERITS", sql: "CREATE TABLE child() INHERITS (sync_commits); CREATE TABLE grandchild() INHERITS (child)", find: "table public.grandchild inherits from the log", byHand: "DROP TABLE grandchild, child"},
	{name: "a rule", sql: "CREATE RULE twice AS ON INSERT TO sync_commits DO ALSO NOTHING", find: "rule twice on public.sync_commits", byHand: "DROP RULE twice ON sync_commits"},
	{name: "an unlogged log", sql: "ALTER TABLE sync_commits SET UNLOGGED", find: "table public.sync_commits is unlogged", byHand: "ALTER TABLE sync_commits SET LOGGED"},
}

// TestEachWeakeningIsFoundAndPutBack weakens a fence at 6 in one way after the other.
func TestEachWeakeningIsFoundAndPutBack(t *testing.T) {
	for _, w := range weakenings {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			store, dsn := newCatalog(t)
			raise(t, store, forAll(6))
			admin := connect(t, dsn)
			admin.run(`INSERT INTO sync_barrier_history VALUES (6, 'h', 'applied', '{}', '{}', 6, 0, 0, 0, 0, 1, '{"*":0}')`)
			role := testdb.RoleName(t, testdb.Role(t, dsn, "other"))
			admin.run("GRANT CREATE ON SCHEMA public TO " + quoteIdentifier(role))
			fill := strings.NewReplacer("{role}", role).Replace
			admin.run(fill(w.sql))

			expectFinding(t, store, fill(w.find), w.byHand == "")
			expectBarrierRefuses(t, store, fill(w.find))
			if err := admin.try(insertSQL, "old", 5, 1); (err == nil) != w.oldPasses {
				t.Errorf("an old version: %v; oldPasses is %v", err, w.oldPasses)
			}

			report, err := store.RepairFence(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			if w.byHand == "" && len(report.Repaired) == 0 {
				t.Error("nothing is said to have been repaired")
			}
			if w.byHand != "" {
				expectFinding(t, store, fill(w.find), false)
				admin.run(w.byHand)
			}
			expectOnlyGotIn(t, store, w.oldPasses)
			admin = connect(t, dsn)             // whose plans know nothing of what was
			if w.name != "a generated column" { // whose values are what they were generated as
				expectFenced(t, admin.try(insertSQL, "old", 5, 2))
			}
			if err := admin.try(insertSQL, "right", 6, 1); err != nil {
				t.Errorf("a right version after the repair: %v", err)
			}
			again, err := store.RepairFence(testContext(t))
			if err != nil || len(again.Repaired) != 0 {
				t.Errorf("a second repair: %+v, %v", again, err)
			}
		})
	}
}

func expectBarrierRefuses(t *testing.T, store *Store, text string) {
	t.Helper()
	err := store.inTx(testContext(t), "barrier", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		if err := store.ensureCatalog(ctx, tx); err != nil {
			return err
		}
		return store.requireFence(ctx, tx)
	})
	expectCode(t, err, storage.CodeFenceBroken)
	if err != nil && !strings.Contains(err.Error(), text) && !strings.Contains(err.Error(), "more") {
		t.Errorf("the barrier's error %v does not say %q", err, text)
	}
}

// expectOnlyGotIn fails if anything is wrong but the one commit that got in.
func expectOnlyGotIn(t *testing.T, store *Store, gotIn bool) {
	t.Helper()
	report, err := store.CheckFence(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	if gotIn {
		want = 1
	}
	if report.GotIn != int64(want) || len(report.Findings) != want || report.MinWriterVersion != 6 {
		t.Errorf("after the repair: %+v", report)
	}
}

func TestAFunctionOwnerWithoutRightsIsFound(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	owner, other := testdb.Role(t, dsn, "owner"), testdb.Role(t, dsn, "other")
	admin.run("GRANT CREATE ON SCHEMA public TO " + quoteIdentifier(testdb.RoleName(t, owner)))
	store := openStore(t, Config{URL: owner})
	installCatalog(t, store)
	admin.run("ALTER TABLE sync_partitions OWNER TO " + quoteIdentifier(testdb.RoleName(t, other)))
	superuser := openStore(t, Config{URL: dsn})
	finding := expectFinding(t, superuser, "table public.sync_partitions belongs to", false)
	if !strings.Contains(finding.Problem, testdb.RoleName(t, other)) || !strings.Contains(finding.Problem, testdb.RoleName(t, owner)) {
		t.Errorf("%+v does not name both roles", finding)
	}
}

func TestCheckingWithoutACatalogIsFenceBroken(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	_, err := store.CheckFence(testContext(t))
	expectCode(t, err, storage.CodeFenceBroken)
	_, err = store.RepairFence(testContext(t))
	expectCode(t, err, storage.CodeFenceBroken)
}

func TestCheckingTakesNoLockAndNeedsNoRightToWrite(t *testing.T) {
	store, dsn := newCatalog(t)
	writer := connect(t, dsn)
	writer.run("BEGIN")
	writer.run("LOCK TABLE sync_commits, sync_partitions, sync_writer_fence, sync_schema_meta IN EXCLUSIVE MODE")
	if report, err := store.CheckFence(testContext(t)); err != nil || !report.Intact() {
		t.Errorf("report %+v, error %v", report, err)
	}
}

// TestWhatGotInIsCounted: commits that were stored while the fence was off, against those from before the raise.
func TestWhatGotInIsCounted(t *testing.T) {
	store, dsn := newCatalog(t)
	admin := connect(t, dsn)
	for range 3 {
		for _, partition := range []string{"p", "q"} {
			if err := admin.append(partition, 5); err != nil {
				t.Fatal(err)
			}
		}
	}
	record(t, store, admin, 6, 6, forAll(6))
	record(t, store, admin, 7, 6, map[string]int64{"q": 7})
	admin.run("ALTER TABLE sync_commits DISABLE TRIGGER syncbarrier_fence")
	for _, commit := range []struct {
		partition string
		version   any
	}{{"p", 5}, {"p", nil}, {"p", 6}, {"q", 6}, {"q", 7}, {"new", 5}, {"new", 6}} {
		if err := admin.append(commit.partition, commit.version); err != nil {
			t.Fatal(err)
		}
	}
	report, err := store.RepairFence(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]int64{}
	for _, finding := range report.Findings {
		counted[finding.Object] = finding.Rows
	}
	want := map[string]int64{`partition "p" of public.sync_commits`: 2, `partition "q" of public.sync_commits`: 1, `partition "new" of public.sync_commits`: 1}
	if report.GotIn != 4 || fmt.Sprint(counted) != fmt.Sprint(want) {
		t.Errorf("got in: %d, %v; want 4, %v", report.GotIn, counted, want)
	}
	// The next raise for all begins a new count.
	record(t, store, admin, 8, 8, forAll(8))
	if report, err := store.CheckFence(testContext(t)); err != nil || !report.Intact() {
		t.Errorf("after the next raise: %+v, %v", report, err)
	}
}

// record raises the fence and writes the history as a barrier does.
func record(t *testing.T, store *Store, admin *session, version, minimum int64, target map[string]int64) {
	t.Helper()
	var raised map[string]int64
	err := store.inTx(testContext(t), "raise", txOptions{}, func(ctx context.Context, tx pgx.Tx) (err error) {
		raised, err = store.raiseFence(ctx, tx, target)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	admin.run(`INSERT INTO sync_barrier_history VALUES ($1, 'h', 'applied', '{}', '{}', $2, 0, 0, 0, 0, 1, $3)`, version, minimum, asJSON(t, raised))
}

func TestWithTooManyPartitionsForPositionsNothingIsCountedWrongly(t *testing.T) {
	store, dsn := newCatalog(t)
	admin := connect(t, dsn)
	admin.run(`
		INSERT INTO sync_partitions(partition, max_commit_seq) SELECT 'p' || n, 1 FROM generate_series(1, $1::integer) AS n`, maxRecordedPositions+1)
	admin.run(`
		INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		SELECT partition, 1, 'c', 'c', 'a', 0, 5 FROM sync_partitions`)
	record(t, store, admin, 6, 6, forAll(6))
	if report, err := store.CheckFence(testContext(t)); err != nil || report.GotIn != 0 || !report.Intact() {
		t.Errorf("report %+v, error %v", report, err)
	}
}

// TestARepairKeepsWritersOutWhileItRuns: a writer that waits for the repair meets the fence.
func TestARepairKeepsWritersOutWhileItRuns(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, forAll(6))
	admin, watcher, writer := connect(t, dsn), connect(t, dsn), connect(t, dsn)
	admin.run("ALTER TABLE sync_commits DISABLE TRIGGER syncbarrier_fence")
	writer.run("BEGIN")
	if err := writer.append("p", 5); err != nil { // got in, and holds the repair up
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := store.RepairFence(testContext(t))
		done <- err
	}()
	waitAnyBlocked(t, watcher, "LOCK TABLE")
	late := connect(t, dsn)
	lateDone := make(chan error, 1)
	go func() { lateDone <- late.append("q", 5) }()
	waitBlocked(t, watcher, late.pid())
	writer.run("COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	expectFenced(t, <-lateDone)
}
