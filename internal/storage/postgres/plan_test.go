package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// planned is a version with something of everything.
func planned() storage.Target {
	grown := syncularNotes(9)
	grown.Indexes = []storage.Index{{Name: "by_title", Columns: []string{"title"}}}
	wanted := target(7, plainTodos(titleNorm), grown)
	wanted.RetiredTables = []string{"gone"}
	wanted.Migrations = []storage.Migration{{Version: 7, SQL: "UPDATE todos SET title = 'x'"}}
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 7)}
	return wanted
}

func (db *barrierDB) prepareForPlan() {
	db.t.Helper()
	before := target(6, plainTodos(), syncularNotes(3), storage.Table{
		Name: "gone", Layout: storage.Plain, Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}}, PrimaryKey: []string{"id"}})
	db.mustApply(before)
	db.exec("INSERT INTO todos SELECT n, 'a', 't' FROM generate_series(1, 500) n")
	db.exec("ANALYZE todos")
}

func TestAPlanSaysWhatABarrierWouldDoAndChangesNothing(t *testing.T) {
	db := newBarrierDB(t)
	db.prepareForPlan()
	before := db.text(wholeDatabase)
	plan, err := db.store.Plan(db.ctx, planned())
	if err != nil {
		t.Fatal(err)
	}
	db.wantText(before, wholeDatabase)

	if plan.Decision.Outcome != storage.Migrate || plan.Decision.Stored != 6 || plan.Decision.MinWriter != 7 || plan.Decision.MinReader != 7 {
		t.Errorf("decision %+v", plan.Decision)
	}
	want := []string{
		`DROP TABLE IF EXISTS "public"."gone"`,
		`ALTER TABLE "public"."todos" ADD COLUMN "title_norm" text`,
	}
	for _, name := range []string{"extrad", "extrae", "extraf", "extrag", "extrah", "extrai"} {
		want = append(want, `ALTER TABLE "public"."notes" ADD COLUMN "`+name+`" text`)
	}
	want = append(want,
		`UPDATE "public"."notes" SET "_sync_payload" = set_byte(substr("_sync_payload", 1, 1), 0, get_byte("_sync_payload", 0) | 248) || '\x01'::bytea || substr("_sync_payload", 2)`,
		"UPDATE todos SET title = 'x'",
		`CREATE INDEX "sync_ix_by_title" ON "public"."notes" ("title")`,
		`UPDATE "public"."sync_schema_meta" SET schema_version = 7, layouts = `+quoteLiteral(plan.Decision.Layouts)+` WHERE id = 1`,
		`-- declare checkpoint "norm" of version 7 in all partitions`,
		"-- raise the fence of all partitions to writer version 7",
	)
	if !slices.Equal(plan.Statements, want) {
		t.Errorf("statements:\n%s\nwant:\n%s", strings.Join(plan.Statements, "\n"), strings.Join(want, "\n"))
	}
	locks := []storage.LockNote{
		{Table: "sync_partitions", Mode: "EXCLUSIVE"}, {Table: "gone", Mode: "ACCESS EXCLUSIVE"}, {Table: "notes", Mode: "ACCESS EXCLUSIVE"},
		{Table: "todos", Mode: "ACCESS EXCLUSIVE"}, {Table: "sync_commits", Mode: "SHARE ROW EXCLUSIVE"}, {Table: "sync_schema_meta", Mode: "EXCLUSIVE"},
	}
	if !slices.Equal(plan.Locks, locks) {
		t.Errorf("locks %v, want %v", plan.Locks, locks)
	}
	if plan.Rows["todos"] != 500 || plan.ExpectedHold <= 0 || plan.ExpectedPause <= plan.ExpectedHold || len(plan.Hash) != 12 {
		t.Errorf("rows %v, hold %s, pause %s, hash %q", plan.Rows, plan.ExpectedHold, plan.ExpectedPause, plan.Hash)
	}

	t.Run("and the barrier does that", func(t *testing.T) {
		result := db.mustApply(planned())
		if result.Statements != 11 || !slices.Equal(result.Declared, []string{"norm"}) {
			t.Errorf("%+v", result)
		}
		done, err := db.store.Plan(db.ctx, planned())
		if err != nil || done.Decision.Outcome != storage.Agreed || len(done.Statements) != 0 || len(done.Locks) != 0 || len(done.Rows) != 0 || done.ExpectedPause != 0 {
			t.Errorf("afterwards: %+v, %v", done, err)
		}
	})
}

func TestThePlanHashFollowsWhatWouldRunAndNothingElse(t *testing.T) {
	db := newBarrierDB(t)
	db.prepareForPlan()
	hash := func(change func(*storage.Target)) string {
		t.Helper()
		wanted := planned()
		if change != nil {
			change(&wanted)
		}
		plan, err := db.store.Plan(db.ctx, wanted)
		if err != nil {
			t.Fatal(err)
		}
		return plan.Hash
	}
	first := hash(nil)
	db.exec("INSERT INTO todos SELECT n, 'a', 't' FROM generate_series(501, 9000) n")
	db.exec("ANALYZE todos")
	if again := hash(nil); again != first {
		t.Errorf("more rows made %s of %s", again, first)
	}
	if same := hash(func(w *storage.Target) { w.Lock.TimeoutMilliseconds = 77; w.Checkpoints[0].Settings.BatchRows = 5 }); same != first {
		t.Error("live settings changed the hash")
	}
	if other := hash(func(w *storage.Target) { w.Migrations[0].SQL = "UPDATE todos SET title = 'y'" }); other == first {
		t.Error("other SQL has the same hash")
	}
	db.exec("DROP TABLE gone")
	if other := hash(nil); other == first {
		t.Error("a plan with fewer statements has the same hash")
	}
}

func TestAPlanWorksWithoutACatalogAndIsRefusedAsTheBarrierWouldBe(t *testing.T) {
	db := newBarrierDB(t)
	plan, err := db.store.Plan(db.ctx, target(7, plainTodos()))
	if err != nil || plan.Decision.Outcome != storage.Migrate || len(plan.Statements) != 2 || len(plan.Hash) != 12 {
		t.Errorf("%+v, %v", plan, err)
	}
	db.wantText("0", "SELECT count(*) FROM pg_class WHERE relname LIKE 'sync%'")
	db.mustApply(target(3)) // installs the catalog
	db.exec("UPDATE sync_schema_meta SET schema_version = 6")
	_, err = db.store.Plan(db.ctx, target(5, plainTodos()))
	wantRefusal(t, err, storage.CodeVersionRegression, "version 6")
}

func TestAPlanNeedsNoWritableServer(t *testing.T) {
	db := newBarrierDB(t)
	db.prepareForPlan()
	db.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$")
	store := openStore(t, Config{URL: db.url})
	if _, err := store.Plan(db.ctx, planned()); err != nil {
		t.Error(err)
	}
}

func TestAPlanNamesWhoHoldsWhatItNeedsAndWhoWritesWithoutAVersion(t *testing.T) {
	db := newBarrierDB(t)
	db.prepareForPlan()
	old := db.connectTo(testdb.Role(t, db.url, "old"))
	versioned := db.connectTo(testdb.Role(t, db.url, "versioned"))
	db.exec("GRANT ALL ON todos TO PUBLIC")
	db.exec(fmt.Sprintf("ALTER ROLE %s SET syncbarrier.writer_version = '7'", quoteIdentifier(versioned.Config().User)))
	db.execOn(old, "SET application_name = 'old program'")
	db.execOn(versioned, "SET application_name = 'new program'")
	for _, statement := range []string{"BEGIN", "INSERT INTO todos VALUES (1001, 'a', 'old')"} {
		db.execOn(old, statement)
	}
	for _, statement := range []string{"BEGIN", "INSERT INTO todos VALUES (1002, 'a', 'new')"} {
		db.execOn(versioned, statement)
	}
	began := time.Now()
	plan, err := db.store.Plan(db.ctx, planned())
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("planning took %s", took)
	}
	want := []storage.UnversionedWriter{{Application: "old program", User: old.Config().User, Sessions: 1, Table: "todos"}}
	if !slices.Equal(plan.Unversioned, want) {
		t.Errorf("unversioned %+v, want %+v", plan.Unversioned, want)
	}
	var names []string
	for _, blocker := range plan.Blockers {
		names = append(names, blocker.Name+" on "+blocker.Table)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"new program on todos", "old program on todos"}) {
		t.Errorf("blockers %v", names)
	}
	db.execOn(old, "ROLLBACK")
	db.execOn(versioned, "ROLLBACK")
}

func TestAPlanWithoutSourcesDoesNotLookAtWriters(t *testing.T) {
	db := newBarrierDB(t, Config{WriterSample: 20 * time.Second})
	ctx, cancel := context.WithTimeout(db.ctx, 30*time.Second)
	defer cancel()
	began := time.Now()
	if _, err := db.store.Plan(ctx, target(7, plainTodos())); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > db.store.writerSample {
		t.Errorf("planning took %s", took)
	}
}

func TestAPlanNamesTheRightsThatApplyWouldLack(t *testing.T) {
	db := newBarrierDB(t)
	db.exec("CREATE TABLE todos (id bigint PRIMARY KEY, tenant text NOT NULL, title text)")
	db.exec("CREATE TABLE totals (id bigint PRIMARY KEY, total bigint)")
	role := testdb.Role(t, db.url, "planner")
	name := quoteIdentifier(testdb.RoleName(t, role))
	db.exec("REVOKE ALL ON SCHEMA public FROM PUBLIC")
	db.exec("GRANT USAGE ON SCHEMA public TO " + name)
	db.exec("GRANT SELECT ON totals TO " + name)
	wanted := target(7, plainTodos(titleNorm), storage.Table{Name: "totals", Layout: storage.Plain, PrimaryKey: []string{"id"},
		Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}, {Name: "total", Type: storage.TypeInteger}}})
	sums := normCheckpoint("sums", 7)
	sums.Backfill = storage.Backfill{Update: &storage.Update{Table: "totals", Set: map[string]string{"total": "0"}}}
	sums.Sources, sums.Verify = []storage.Source{{Table: "todos", Changes: storage.CommitLog, Keys: "SELECT id FROM changed"}}, nil
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 7), sums}
	store := openStore(t, Config{URL: role})
	missing := func() (found []string) {
		t.Helper()
		plan, err := store.Plan(db.ctx, wanted)
		if err != nil {
			t.Fatal(err)
		}
		for _, warning := range plan.Decision.Warnings {
			if strings.HasPrefix(warning, "apply would be refused: ") {
				found = append(found, warning)
			}
		}
		return found
	}
	all := missing()
	for i, part := range []string{`alter table "todos"`, `fill table "totals" the role needs SELECT and UPDATE`, `CREATE on schema "public"`} {
		if len(all) != 3 || !strings.Contains(all[i], part) {
			t.Fatalf("it warns of %q, want %q in warning %d", all, part, i)
		}
	}
	db.exec("GRANT UPDATE ON totals TO " + name)
	db.exec("GRANT CREATE ON SCHEMA public TO " + name)
	db.exec("ALTER TABLE todos OWNER TO " + name)
	if all := missing(); len(all) != 0 {
		t.Errorf("it warns of %q", all)
	}
	if _, err := store.EnsureSchema(db.ctx, wanted, storage.Attempt{Number: 1}); err != nil {
		t.Errorf("apply with these rights: %v", err)
	}
}
