package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// declare writes a checkpoint with its definition and one row, as a barrier does.
func declare(t testing.TB, store *Store, program *session, d storage.Definition) {
	t.Helper()
	text, err := storage.EncodeDefinition(d)
	if err != nil {
		t.Fatal(err)
	}
	program.run(`INSERT INTO sync_backfill_definitions(name, version, hash, definition, settings) VALUES ($1, $2, 'h', $3, '{}')`, d.Name, d.Version, text)
	program.run(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms) VALUES ('*', $1, $2, 'declared', 0)`, d.Name, d.Version)
}

// activate makes a checkpoint activated, with a proof as an activation has it.
func activate(program *session, name string) {
	program.t.Helper()
	program.run(`INSERT INTO sync_backfill_progress(checkpoint, kind, partition, updated_at_ms) VALUES ($1, 'proof', '*', 0)`, name)
	program.run(`UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE name = $1`, name)
	program.run(`DELETE FROM sync_backfill_progress WHERE kind = 'proof'`)
}

func captureDefinition(name string, version int64, spec captureSpec, changes storage.Changes) storage.Definition {
	source := spec.source()
	source.Changes = changes
	table := spec.declared()
	d := storage.Definition{Name: name, Version: version, SourceTables: []storage.Table{table}, Table: table}
	d.Checkpoint = storage.Checkpoint{Name: name, Version: version, Sources: []storage.Source{source}}
	if len(spec.targets) > 0 {
		set := map[string]string{}
		for _, target := range spec.targets {
			set[target] = "''"
		}
		d.Checkpoint.Backfill.Update = &storage.Update{Table: spec.table, Set: set}
	}
	return d
}

func ensureSources(t testing.TB, store *Store, minimum int64) []string {
	t.Helper()
	var tables []string
	inStore(t, store, func(ctx context.Context, tx pgx.Tx) (err error) {
		tables, err = store.ensureCapture(ctx, tx, minimum)
		return err
	})
	return tables
}

// captureFindings gives the findings as lines.
func captureFindings(t testing.TB, store *Store, required int64) []string {
	t.Helper()
	var lines []string
	inStore(t, store, func(ctx context.Context, tx pgx.Tx) error {
		_, owner, err := store.rolesOf(ctx, tx)
		if err != nil {
			return err
		}
		findings, err := store.checkCapture(ctx, tx, required, owner)
		for _, f := range findings {
			lines = append(lines, f.Object+" "+f.Problem)
		}
		return err
	})
	return lines
}

func TestSourcesGetWhatTheirCheckpointsNeedAndLoseItWithTheLast(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	program.run(`CREATE TABLE logs (id bigint PRIMARY KEY, title text)`)
	spec := todosBy(byTenant)
	spec.columns = nil
	declare(t, store, program, captureDefinition("norm", 6, spec, storage.Capture))
	declare(t, store, program, captureDefinition("by log", 6, captureSpec{table: "logs", key: []string{"id"}}, storage.CommitLog))
	if tables := ensureSources(t, store, 6); !slices.Equal(tables, []string{"todos"}) {
		t.Errorf("captured are %q", tables)
	}
	if findings := captureFindings(t, store, 6); len(findings) != 0 {
		t.Errorf("findings right after the installation: %q", findings)
	}
	if state := sourceState(t, store, "logs"); state.fenced() || !state.capturing() {
		t.Error("a source that its program logs gets more than its TRUNCATE trigger, or not even that")
	}
	program.run(`SET syncbarrier.writer_version = 6`)
	program.run(`INSERT INTO todos VALUES (1, 'a', 't', 'n')`)
	program.run(`UPDATE todos SET title_norm = 'own'`) // a target, so no source column
	program.run(`UPDATE todos SET note = 'm'`)
	program.run(`INSERT INTO logs VALUES (1)`)
	program.run(`TRUNCATE logs`)
	program.expectLog("* 2 ", "capture:todos/=a 1 1")

	second := todosBy(byTenant)
	second.columns, second.targets = []string{"title_norm"}, nil
	declare(t, store, program, captureDefinition("second", 7, second, storage.Capture))
	activate(program, "norm")
	ensureSources(t, store, 7)
	program.run(`SET syncbarrier.writer_version = 7`)
	program.run(`UPDATE todos SET title_norm = 'source now'`)
	program.expectLog("capture:todos/=a 1 1")
	program.run(`UPDATE todos SET note = 'k'`)
	program.expectLog()
	if findings := captureFindings(t, store, 7); len(findings) != 0 {
		t.Errorf("findings: %q", findings)
	}

	activate(program, "second")
	activate(program, "by log")
	ensureSources(t, store, 7)
	program.run(`UPDATE todos SET title_norm = 'unwatched'`)
	program.run(`TRUNCATE logs`)
	program.expectLog()
	if findings := captureFindings(t, store, 7); len(findings) != 0 {
		t.Errorf("findings without an open checkpoint: %q", findings)
	}
	if findings := captureFindings(t, store, 8); len(findings) != 2 {
		t.Errorf("a fence that is too low on a table that is captured no more: %q", findings)
	}
}

func TestSourceNeedsJoinWhatOpenCheckpointsRead(t *testing.T) {
	table := func(partition storage.Partition) captureSpec {
		return captureSpec{table: "todos", key: []string{"id"}, partition: partition}
	}
	naming := func(columns ...string) captureSpec {
		spec := table(byTenant)
		spec.columns = columns
		return spec
	}
	for _, c := range []struct {
		name        string
		definitions []storage.Definition
		open        map[string]bool
		columns     []string
		capture     bool
		unused      bool
		fenced      bool
		refused     bool
	}{
		{name: "columns are joined", definitions: []storage.Definition{captureDefinition("a", 1, naming("x", "y"), storage.Capture), captureDefinition("b", 2, naming("y", "z"), storage.Capture)},
			open: map[string]bool{"a": true, "b": true}, columns: []string{"x", "y", "z"}, capture: true, fenced: true},
		{name: "all columns win over some", definitions: []storage.Definition{captureDefinition("a", 1, naming("x"), storage.Capture), captureDefinition("b", 2, naming(), storage.Capture)},
			open: map[string]bool{"a": true, "b": true}, capture: true, fenced: true},
		{name: "all columns stay when some follow", definitions: []storage.Definition{captureDefinition("a", 1, naming(), storage.Capture), captureDefinition("b", 2, naming("x"), storage.Capture)},
			open: map[string]bool{"a": true, "b": true}, capture: true, fenced: true},
		{name: "a finished checkpoint does not count", definitions: []storage.Definition{captureDefinition("a", 1, naming(), storage.Capture), captureDefinition("b", 2, naming("x"), storage.Capture)},
			open: map[string]bool{"b": true}, columns: []string{"x"}, capture: true, fenced: true},
		{name: "with none open only the fence is left", definitions: []storage.Definition{captureDefinition("a", 1, naming("x"), storage.Capture)}, unused: true, fenced: true},
		{name: "a source that its program logs", definitions: []storage.Definition{captureDefinition("a", 1, naming(), storage.CommitLog)}, open: map[string]bool{"a": true}},
		{name: "one logs it, one captures it", definitions: []storage.Definition{captureDefinition("a", 1, naming(), storage.CommitLog), captureDefinition("b", 2, naming("x"), storage.Capture)},
			open: map[string]bool{"a": true, "b": true}, columns: []string{"x"}, capture: true, fenced: true},
		{name: "two partitions of open checkpoints", definitions: []storage.Definition{captureDefinition("a", 1, table(byTenant), storage.Capture), captureDefinition("b", 2, table(storage.Partition{Hash: 2}), storage.Capture)},
			open: map[string]bool{"a": true, "b": true}, refused: true},
		{name: "another partition than a finished one had", definitions: []storage.Definition{captureDefinition("b", 1, table(storage.Partition{Hash: 2}), storage.Capture), captureDefinition("a", 2, table(byTenant), storage.Capture)},
			open: map[string]bool{"a": true}, capture: true, fenced: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			needs, err := sourceNeeds(c.definitions, c.open)
			if c.refused {
				expectCode(t, err, storage.CodeInvalidSpec)
				return
			}
			if err != nil || len(needs) != 1 {
				t.Fatalf("got %d needs, %v", len(needs), err)
			}
			n := needs[0]
			if !slices.Equal(n.source.Columns, c.columns) || n.capture != c.capture || n.unused != c.unused || n.fenced != c.fenced {
				t.Errorf("columns %q, capture %t, unused %t, fenced %t", n.source.Columns, n.capture, n.unused, n.fenced)
			}
			if c.capture && n.table.Partition != byTenant {
				t.Errorf("partition %+v is not that of the open checkpoint", n.table.Partition)
			}
		})
	}
}

func TestCheckFindsEachWayToWeakenCapture(t *testing.T) {
	for _, c := range []struct{ name, sql, want string }{
		{"a trigger is off", `ALTER TABLE todos DISABLE TRIGGER syncbarrier_capture_update`, "trigger syncbarrier_capture_update on public.todos is disabled"},
		{"all triggers were off", `ALTER TABLE todos DISABLE TRIGGER USER; ALTER TABLE todos ENABLE TRIGGER USER`, "trigger syncbarrier_capture_insert on public.todos does not fire for sessions with session_replication_role = replica"},
		{"a trigger for replicas fires never", `ALTER TABLE todos ENABLE TRIGGER syncbarrier_capture_row`, "trigger syncbarrier_capture_row on public.todos does not fire for sessions"},
		{"a trigger is gone", `DROP TRIGGER syncbarrier_capture_delete ON todos`, "trigger syncbarrier_capture_delete on public.todos is missing"},
		{"the fence is gone", `DROP TRIGGER syncbarrier_fence_source ON todos`, "trigger syncbarrier_fence_source on public.todos is missing"},
		{"the fence is lower", `CREATE OR REPLACE TRIGGER syncbarrier_fence_source BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON todos EXECUTE FUNCTION syncbarrier_fence_source('5'); ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_fence_source`,
			"trigger syncbarrier_fence_source on public.todos enforces version 5, required is 6"},
		{"the fence has no minimum", `CREATE OR REPLACE TRIGGER syncbarrier_fence_source BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON todos EXECUTE FUNCTION syncbarrier_fence_source(); ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_fence_source`,
			"trigger syncbarrier_fence_source on public.todos has no minimum version"},
		{"a condition", `CREATE OR REPLACE TRIGGER syncbarrier_capture_row AFTER INSERT OR UPDATE OR DELETE ON todos FOR EACH ROW WHEN (pg_trigger_depth() > 9) EXECUTE FUNCTION syncbarrier_capture_todos(); ALTER TABLE todos ENABLE REPLICA TRIGGER syncbarrier_capture_row`,
			"trigger syncbarrier_capture_row on public.todos has another condition"},
		{"other events", `CREATE OR REPLACE TRIGGER syncbarrier_capture_truncate AFTER INSERT ON todos EXECUTE FUNCTION syncbarrier_log_truncate('todos'); ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_truncate`,
			"trigger syncbarrier_capture_truncate on public.todos fires on other events"},
		{"another table's name", `CREATE OR REPLACE TRIGGER syncbarrier_capture_truncate AFTER TRUNCATE ON todos EXECUTE FUNCTION syncbarrier_log_truncate('other'); ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_truncate`,
			"trigger syncbarrier_capture_truncate on public.todos has the arguments [other]"},
		{"another function", `CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE OR REPLACE TRIGGER syncbarrier_capture_insert AFTER INSERT ON todos REFERENCING NEW TABLE AS _sb_new EXECUTE FUNCTION nothing(); ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_insert`,
			"trigger syncbarrier_capture_insert on public.todos calls the function nothing"},
		{"transition tables", `CREATE OR REPLACE TRIGGER syncbarrier_capture_insert AFTER INSERT ON todos EXECUTE FUNCTION syncbarrier_capture_todos(); ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_insert`,
			"trigger syncbarrier_capture_insert on public.todos has other transition tables"},
		{"a body", `CREATE OR REPLACE FUNCTION syncbarrier_capture_todos() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS 'BEGIN RETURN NULL; END'`,
			"function public.syncbarrier_capture_todos has another body"},
		{"a comment", `COMMENT ON FUNCTION syncbarrier_capture_todos() IS NULL`, "function public.syncbarrier_capture_todos has no comment"},
		{"rights of the writer", `ALTER FUNCTION syncbarrier_capture_todos() SECURITY INVOKER`, "is not SECURITY DEFINER"},
		{"an old snapshot", `ALTER FUNCTION syncbarrier_capture_todos() STABLE`, "is not VOLATILE"},
		{"a path", `ALTER FUNCTION syncbarrier_capture_todos() SET search_path = public`, "has other settings"},
		{"a setting less", `ALTER FUNCTION syncbarrier_capture_todos() RESET row_security`, "has other settings"},
		{"an owner", `ALTER FUNCTION syncbarrier_capture_todos() OWNER TO pg_monitor`, "belongs to the role pg_monitor"},
		{"a right", `GRANT EXECUTE ON FUNCTION syncbarrier_capture_todos() TO PUBLIC`, "may be executed by PUBLIC"},
		{"a function less", `DROP FUNCTION syncbarrier_capture_todos() CASCADE`, "function public.syncbarrier_capture_todos is missing"},
		{"a column that no checkpoint names is gone", `ALTER TABLE todos DROP COLUMN title`, ""},
		{"the key is gone", `ALTER TABLE todos DROP CONSTRAINT todos_pkey`, "is neither its primary key nor unique"},
		{"a table inherits from it", `CREATE TABLE heir () INHERITS (todos)`, "public.heir inherits from it"},
		{"the table is gone", `DROP TABLE todos`, "table public.todos is gone"},
		{"a column more is fine", `ALTER TABLE todos ADD COLUMN more text`, ""},
		{"a higher fence is fine", `CREATE OR REPLACE TRIGGER syncbarrier_fence_row AFTER INSERT OR UPDATE OR DELETE ON todos FOR EACH ROW EXECUTE FUNCTION syncbarrier_fence_source('9'); ALTER TABLE todos ENABLE REPLICA TRIGGER syncbarrier_fence_row`, ""},
		{"a type change is fine", `ALTER TABLE todos ALTER COLUMN title TYPE varchar(20), ALTER COLUMN id TYPE numeric`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store, program := newSource(t, sourceSQL)
			spec := todosBy(byTenant)
			spec.columns = nil
			declare(t, store, program, captureDefinition("norm", 6, spec, storage.Capture))
			ensureSources(t, store, 6)
			program.run(c.sql)
			findings := captureFindings(t, store, 6)
			if c.want == "" {
				if len(findings) != 0 {
					t.Errorf("findings: %q", findings)
				}
				return
			}
			if !slices.ContainsFunc(findings, func(line string) bool { return strings.Contains(line, c.want) }) {
				t.Errorf("findings %q, want one with %q", findings, c.want)
			}
		})
	}
}

func TestCheckFindsThatANamedSourceColumnIsGone(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	spec := todosBy(byTenant)
	spec.columns = []string{"title"}
	declare(t, store, program, captureDefinition("norm", 6, spec, storage.Capture))
	ensureSources(t, store, 6)
	program.run(`ALTER TABLE todos DROP COLUMN title`)
	findings := captureFindings(t, store, 6)
	if !slices.ContainsFunc(findings, func(line string) bool { return strings.Contains(line, `it has no column "title"`) }) {
		t.Errorf("findings %q, want one of the column", findings)
	}
}

func TestCheckLooksAtEveryPartitionOfASource(t *testing.T) {
	store, program := newSource(t, partedSQL)
	declare(t, store, program, captureDefinition("norm", 6, parted(), storage.Capture))
	ensureSources(t, store, 6)
	program.run(`CREATE TABLE todos_new PARTITION OF todos DEFAULT`)
	if findings := captureFindings(t, store, 6); len(findings) != 0 {
		t.Errorf("a partition that has come since: %q", findings)
	}
	for _, relation := range []string{"todos_b", "todos_b2", "todos_new"} {
		for _, trigger := range []string{captureRowTrigger, captureRowUpdateTrigger, fenceRowTrigger} {
			program.run(fmt.Sprintf(`ALTER TABLE ONLY %s DISABLE TRIGGER %s`, relation, trigger))
			want := []string{fmt.Sprintf("trigger %s on public.%s is disabled", trigger, relation)}
			if findings := captureFindings(t, store, 6); !slices.Equal(findings, want) {
				t.Errorf("findings %q, want %q", findings, want)
			}
			ensureSources(t, store, 6)
			if findings := captureFindings(t, store, 6); len(findings) != 0 {
				t.Errorf("still after it was mended: %q", findings)
			}
		}
	}
	program.run(`DROP TRIGGER syncbarrier_fence_source ON todos_a`)
	if findings := captureFindings(t, store, 6); len(findings) != 1 {
		t.Errorf("a partition lost its fence against TRUNCATE: %q", findings)
	}
}

func TestCaptureRefusesSourcesItCannotSeeInFull(t *testing.T) {
	for _, c := range []struct{ name, sql, table, want string }{
		{"no table", ``, "src", "there is no table"},
		{"no key", `CREATE TABLE src (id bigint)`, "src", "neither its primary key"},
		{"another key", `CREATE TABLE src (id bigint NOT NULL, a int PRIMARY KEY)`, "src", "neither its primary key"},
		{"a key with NULLs", `CREATE TABLE src (id bigint UNIQUE)`, "src", "neither its primary key"},
		{"a view", `CREATE VIEW src AS SELECT 1 AS id`, "src", "is a view"},
		{"a materialized view", `CREATE MATERIALIZED VIEW src AS SELECT 1 AS id`, "src", "is a materialized view"},
		{"a foreign table", `CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE src (id bigint) SERVER s`, "src", "is a foreign table"},
		{"a sequence", `CREATE SEQUENCE src`, "src", "is a sequence"},
		{"unlogged", `CREATE UNLOGGED TABLE src (id bigint PRIMARY KEY)`, "src", "unlogged"},
		{"a parent by inheritance", `CREATE TABLE src (id bigint PRIMARY KEY); CREATE TABLE heir (x int) INHERITS (src)`, "src", "public.heir inherits from it"},
		{"an heir by inheritance", `CREATE TABLE parent (id bigint); CREATE TABLE src (PRIMARY KEY (id)) INHERITS (parent)`, "src", "it inherits from parent"},
		{"a partition", `CREATE TABLE whole (id bigint PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE src PARTITION OF whole DEFAULT`, "src", "it is a partition of whole"},
		{"an unlogged partition", `CREATE TABLE src (id bigint PRIMARY KEY) PARTITION BY RANGE (id); CREATE UNLOGGED TABLE part PARTITION OF src DEFAULT`, "src", "its partition public.part is unlogged"},
		{"a foreign partition", `CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE TABLE src (id bigint, x int) PARTITION BY RANGE (x);
			CREATE FOREIGN TABLE part PARTITION OF src DEFAULT SERVER s`, "src", "its partition public.part is a foreign table"},
		{"a name for a key", `CREATE TABLE src (id regclass PRIMARY KEY)`, "src", "depends on the search_path"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store, _ := newSource(t, c.sql)
			spec := captureSpec{table: c.table, key: []string{"id"}}
			err := store.inTx(testContext(t), "test", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := store.readCaptured(ctx, tx, spec.declared(), spec.source(), nil)
				return err
			})
			expectCode(t, err, storage.CodeInvalidSpec)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"src"`) {
				t.Errorf("got %v, want it to name the table and say %q", err, c.want)
			}
		})
	}
}

func TestCaptureRefusesColumnsItCannotCompare(t *testing.T) {
	store, program := newSource(t, `CREATE TABLE src (id bigint PRIMARY KEY, a text, low text GENERATED ALWAYS AS (lower(a)) STORED, re regclass)`)
	read := func(spec captureSpec) (captured, error) {
		var c captured
		err := store.inTx(testContext(t), "test", txOptions{}, func(ctx context.Context, tx pgx.Tx) (err error) {
			c, err = store.readCaptured(ctx, tx, spec.declared(), spec.source(), spec.targets)
			return err
		})
		return c, err
	}
	src := func(change func(*captureSpec)) captureSpec {
		spec := captureSpec{table: "src", key: []string{"id"}}
		change(&spec)
		return spec
	}
	_, err := read(src(func(s *captureSpec) { s.columns = []string{"missing"} }))
	expectCode(t, err, storage.CodeInvalidSpec)
	_, err = read(src(func(s *captureSpec) { s.partition.Column = "missing" }))
	expectCode(t, err, storage.CodeInvalidSpec)
	_, err = read(src(func(s *captureSpec) { s.partition.Column = "re" }))
	expectCode(t, err, storage.CodeInvalidSpec)
	_, err = read(src(func(s *captureSpec) { s.key = nil }))
	expectCode(t, err, storage.CodeInvalidSpec)

	for _, c := range []struct {
		spec captureSpec
		want string
	}{
		{src(func(*captureSpec) {}), "id a re"},
		{src(func(s *captureSpec) { s.targets = []string{"a"} }), "id re"},
		{src(func(s *captureSpec) { s.targets, s.partition.Column = []string{"a", "re"}, "a" }), "id a"},
		{src(func(s *captureSpec) { s.columns = []string{"low"} }), "id low"},
	} {
		got, err := read(c.spec)
		if err != nil || strings.Join(namesOf(got.counting), " ") != c.want {
			t.Errorf("source columns are %q (%v), want %q", namesOf(got.counting), err, c.want)
		}
	}
	if value[int](program, `SELECT current_setting('server_version_num')::integer`) < 180000 {
		return // generated columns that are not stored came with 18
	}
	program.run(`ALTER TABLE src ADD COLUMN up text GENERATED ALWAYS AS (upper(a)) VIRTUAL`)
	_, err = read(src(func(s *captureSpec) { s.columns = []string{"up"} }))
	expectCode(t, err, storage.CodeInvalidSpec)
	if got, err := read(src(func(*captureSpec) {})); err != nil || slices.Contains(namesOf(got.counting), "up") {
		t.Errorf("source columns are %q (%v)", namesOf(got.counting), err)
	}
}

func TestCaptureFunctionNamesAreShortAndTheirOwn(t *testing.T) {
	tables := []string{"todos", strings.Repeat("n", 43), strings.Repeat("n", 44), strings.Repeat("n", 63), strings.Repeat("ü", 31), strings.Repeat("ü", 30) + "abc", "Todos"}
	names := map[string]bool{}
	for _, table := range tables {
		name := captureFunction(table)
		names[name] = true
		if len(name) > storage.MaxIdentifierBytes || !strings.HasPrefix(name, "syncbarrier_capture_") || strings.ToValidUTF8(name, "?") != name {
			t.Errorf("the function of table %q is called %q", table, name)
		}
	}
	if len(names) != len(tables) {
		t.Errorf("%d tables have %d names", len(tables), len(names))
	}

	long := strings.Repeat("n", 63)
	taken := strings.TrimPrefix(captureFunction(long), "syncbarrier_capture_")
	url := testdb.Postgres(t)
	store := openStore(t, Config{URL: url})
	installCatalog(t, store)
	program := connect(t, url)
	for _, table := range []string{long, taken} {
		program.run(fmt.Sprintf(`CREATE TABLE %s (id bigint PRIMARY KEY)`, table))
	}
	capture(t, store, captureSpec{table: long, key: []string{"id"}})
	capture(t, store, captureSpec{table: taken, key: []string{"id"}})
	if n := value[int](program, `SELECT count(*) FROM pg_proc WHERE proname LIKE 'syncbarrier\_capture\_%'`); n != 2 {
		t.Errorf("two tables have %d functions", n)
	}
}
