package sqlite

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func mustPlan(t testing.TB, store *Store, target storage.Target) storage.Plan {
	t.Helper()
	plan, err := store.Plan(testContext(t), target)
	if err != nil {
		t.Fatalf("plan version %d: %v", target.Version, err)
	}
	return plan
}

// grownTarget has a step of every kind but retirement.
func grownTarget() storage.Target {
	target := withSQL(version7(), "CREATE TABLE extra(i INTEGER);\nINSERT INTO extra VALUES (1)")
	target.Tables[0].Indexes = []storage.Index{{Name: "todos_norm", Columns: []string{"title_norm"}}}
	target.Tables[1] = notesTable(nullableColumn("body", storage.TypeString))
	target.Tables = append(target.Tables, storage.Table{
		Name: "words", Layout: storage.Plain, PrimaryKey: []string{"id"}, Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}},
	})
	return target
}

func TestAPlansStatementsMakeTheSchemaThatTheBarrierMakes(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"an empty file": false, "a file at version 6": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planned, applied := newFile(t), newFile(t)
			for _, path := range []string{planned, applied} {
				if before {
					apply(t, openStore(t, path), version6())
				}
			}
			store := openStore(t, planned)
			p := openProgram(t, planned)
			for _, statement := range mustPlan(t, store, grownTarget()).Statements {
				if strings.Contains(statement, rewriteFunction) {
					continue // the function is ours; there are no rows
				}
				p.exec(statement)
			}
			apply(t, openStore(t, applied), grownTarget())
			schema := "SELECT name, sql FROM sqlite_master ORDER BY name"
			same(t, "schema", fmt.Sprint(p.rows(schema)), fmt.Sprint(openProgram(t, applied).rows(schema)))
			same(t, "marker", p.number("SELECT schema_version FROM sync_schema_meta"), 7)
		})
	}
}

func TestAPlanShowsWhatItCosts(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	p.exec(`WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1000)
		INSERT INTO todos(id, tenant, title) SELECT n, 'a', 'x' FROM c`)
	p.exec("INSERT INTO notes VALUES ('p', '1', 'x', 1, '{}', x'00')")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	plan := mustPlan(t, store, grownTarget())
	same(t, "rows", fmt.Sprint(plan.Rows), "map[notes:1 todos:1000]")
	if plan.ExpectedHold < baseHold || plan.ExpectedPause <= plan.ExpectedHold || plan.ExpectedPause > time.Minute {
		t.Errorf("hold %s, pause %s", plan.ExpectedHold, plan.ExpectedPause)
	}
	if len(plan.Locks) != 1 || len(plan.Hash) != 12 || len(plan.Unversioned) != 0 {
		t.Errorf("locks %v, hash %q, unversioned %v", plan.Locks, plan.Hash, plan.Unversioned)
	}
	all := strings.Join(plan.Statements, "\n")
	for _, part := range []string{`ADD COLUMN "title_norm" TEXT`, `CREATE INDEX "sync_ix_todos_norm"`, "SET schema_version = 7", "INSERT INTO extra", "declare checkpoint", "raise the fence of all partitions to writer version 7"} {
		if !strings.Contains(all, part) {
			t.Errorf("the plan lacks %q:\n%s", part, all)
		}
	}
	p.exec("DELETE FROM todos WHERE id < 500")
	same(t, "hash with other counts", mustPlan(t, store, grownTarget()).Hash, plan.Hash)
	other := grownTarget()
	other.Migrations[0].SQL += ";SELECT 1"
	if mustPlan(t, store, other).Hash == plan.Hash {
		t.Error("another content has the same hash")
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) || p.number("SELECT count(*) FROM sqlite_master WHERE name = 'extra'") != 0 {
		t.Error("planning changed the file")
	}
}

func TestAPlanOfNothingIsEmpty(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	apply(t, store, version6())
	plan := mustPlan(t, store, version6())
	same(t, "outcome", plan.Decision.Outcome, storage.Agreed)
	same(t, "statements", len(plan.Statements), 0)
	same(t, "locks", len(plan.Locks), 0)
}

func TestRemoveListsFirstAndLeavesEverythingThatIsNotOurs(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	startProgram(p)
	theirs := p.dump()
	store := openStore(t, path)
	apply(t, store, version6())
	apply(t, store, version7())
	if err := p.append("p", 7); err != nil {
		t.Fatal(err)
	}
	before := p.dump()
	listed, err := store.Remove(testContext(t), false)
	if err != nil || len(listed) == 0 {
		t.Fatalf("list: %v %v", listed, err)
	}
	same(t, "listing changes nothing", p.dump(), before)
	removed, err := store.Remove(testContext(t), true)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "what was run is what was listed", fmt.Sprint(removed), fmt.Sprint(listed))
	same(t, "what is left of ours", p.number("SELECT count(*) FROM sqlite_master WHERE name LIKE 'syncbarrier%' OR name LIKE 'sync_barrier%' OR tbl_name LIKE 'sync_barrier%' OR name LIKE 'sync_backfill_d%'"), 0)
	for _, table := range []string{"sync_partitions", "sync_commits", "sync_changes", "sync_schema_meta", "sync_backfill_checkpoints", "sync_writer_fence", "todos", "notes"} {
		same(t, "table "+table, p.number("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", table), 1)
	}
	same(t, "the column stays", p.number("SELECT count(*) FROM pragma_table_info('todos') WHERE name = 'title_norm'"), 1)
	same(t, "the log stays", p.number("SELECT count(*) FROM sync_commits"), 1)
	if !strings.Contains(theirs, "sync_commits_writer_fence") || p.number("SELECT count(*) FROM sqlite_master WHERE name = 'sync_commits_writer_fence'") != 1 {
		t.Error("the protocol's own trigger is gone")
	}
	again, err := store.Remove(testContext(t), true)
	if err != nil || len(again) != 0 {
		t.Errorf("a second time: %v %v, want nothing", again, err)
	}
	status, err := store.Status(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "protocol", status.Protocol, 0)
	same(t, "version", status.StoredVersion, 7)
}

func TestAnEmptyFileHasAStatusAndAnIdentity(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	status, err := store.Status(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "protocol", status.Protocol, 0)
	same(t, "file", status.Database.Database, store.file)
	same(t, "schema", status.Database.Schema, "main")
	same(t, "system", status.Database.System, "")
	listed, err := store.Remove(testContext(t), true)
	if err != nil || len(listed) != 0 {
		t.Errorf("remove: %v %v, want nothing", listed, err)
	}
}
