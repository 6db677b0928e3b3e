package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// sourceState reads what the database has of a source's triggers.
func sourceState(t testing.TB, store *Store, table string) *foundSource {
	t.Helper()
	var source *foundSource
	inStore(t, store, func(ctx context.Context, tx pgx.Tx) error {
		sources, err := store.readSources(ctx, tx, []string{table})
		source = sources[table]
		return err
	})
	if source == nil {
		t.Fatalf("there is no source %q", table)
	}
	return source
}

func TestInstallingCaptureTwiceChangesNothing(t *testing.T) {
	for _, sql := range []string{sourceSQL, partedSQL} {
		store, program := newSource(t, sql)
		spec := captureSpec{table: "todos", key: []string{"id"}, partition: byTenant, minimum: 3}
		if sql == partedSQL {
			spec.key = []string{"tenant", "id"}
		}
		capture(t, store, spec)
		const state = `
			SELECT coalesce(array_agg(xmin::text || ' ' || oid ORDER BY oid), '{}') FROM pg_trigger WHERE tgname LIKE 'syncbarrier\_%'
			 UNION ALL
			SELECT array_agg(xmin::text || ' ' || oid ORDER BY oid) FROM pg_proc WHERE proname LIKE 'syncbarrier\_capture%'`
		read := func() string {
			rows, err := program.conn.Query(testContext(t), state)
			if err != nil {
				t.Fatal(err)
			}
			all, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(all)
		}
		before := read()
		capture(t, store, spec)
		spec.minimum = 1 // a minimum that is higher already stays
		capture(t, store, spec)
		if after := read(); after != before {
			t.Errorf("triggers and functions were written again:\n%s\n%s", before, after)
		}
		if minimum := sourceState(t, store, "todos").enforced(); minimum != 3 {
			t.Errorf("the fence enforces version %d, want 3", minimum)
		}
	}
}

func TestInstallingCaptureMendsWhatIsNotAsItShouldBe(t *testing.T) {
	for _, table := range []string{sourceSQL, partedSQL} {
		store, program := newSource(t, table)
		spec := captureSpec{table: "todos", key: []string{"id"}, partition: byTenant, minimum: 3}
		if table == partedSQL {
			spec.key = []string{"tenant", "id"}
		}
		c := capture(t, store, spec)
		for _, relation := range sourceState(t, store, "todos").relations {
			for name := range relation.triggers {
				program.run(fmt.Sprintf(`ALTER TABLE ONLY %s DISABLE TRIGGER %s`, relation.name, name))
			}
		}
		program.run(`DROP TRIGGER syncbarrier_capture_row ON todos`)
		if table == sourceSQL {
			program.run(`DROP TRIGGER syncbarrier_capture_truncate ON todos`)
			program.run(`CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
			program.run(`CREATE CONSTRAINT TRIGGER syncbarrier_capture_truncate AFTER INSERT ON todos DEFERRABLE FOR EACH ROW EXECUTE FUNCTION nothing()`)
		}
		program.run(`CREATE OR REPLACE FUNCTION syncbarrier_capture_todos() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
		program.run(`GRANT EXECUTE ON FUNCTION syncbarrier_capture_todos() TO PUBLIC`)
		capture(t, store, spec)

		state := sourceState(t, store, "todos")
		if problems := store.captureFunctionProblems(state.function, c, state.function.owner); len(problems) != 0 {
			t.Errorf("the function %q", problems)
		}
		if findings := store.triggerFindings(state, c.sourceTriggers(3)); len(findings) != 0 {
			t.Errorf("triggers: %v", findings)
		}
		program.run(`SET syncbarrier.writer_version = 3`)
		program.run(`INSERT INTO todos VALUES (1, 'a', 't')`)
		if got := program.logged(); len(got) != 1 {
			t.Errorf("the log holds %q", got)
		}
	}
}

// From the installation on nothing is missing, whoever began before, and a reader is not in its way.
func TestInstallingCaptureWaitsForWritersAndLetsReadersPass(t *testing.T) {
	store, url := newCatalog(t)
	setup, writer, reader, old := connect(t, url), connect(t, url), connect(t, url), connect(t, url)
	setup.run(sourceSQL)
	setup.run(`INSERT INTO todos VALUES (1, 'a', 't')`)
	old.run(`PREPARE change AS UPDATE todos SET title = 'old' WHERE id = $1`)
	old.run(`BEGIN ISOLATION LEVEL REPEATABLE READ`)
	old.run(`SELECT FROM todos`)
	writer.run(`BEGIN`)
	writer.run(`UPDATE todos SET title = 'u'`)

	done := make(chan error, 1)
	go func() {
		done <- store.inTx(testContext(t), "capture", txOptions{lockTimeout: time.Minute}, func(ctx context.Context, tx pgx.Tx) error {
			spec := todosBy(byTenant)
			c, err := store.readCaptured(ctx, tx, spec.declared(), spec.source(), spec.targets)
			if err != nil {
				return err
			}
			return store.installCapture(ctx, tx, c, 0)
		})
	}()
	waitAnyBlocked(t, setup, "LOCK TABLE")
	reader.run(`SET statement_timeout = 10000`)
	reader.run(`SELECT FROM todos`)
	writer.run(`COMMIT`)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	setup.expectLog()
	// Its snapshot is older than the triggers, and its statement was prepared before them.
	if state := stateOf(old.try(`EXECUTE change(1)`)); state != "40001" {
		t.Errorf("SQLSTATE %q, want the snapshot's own failure: the row was changed since", state)
	}
	old.run(`ROLLBACK`)
	old.run(`BEGIN ISOLATION LEVEL REPEATABLE READ`)
	old.run(`SELECT FROM todos`)
	old.run(`EXECUTE change(1)`)
	old.run(`COMMIT`)
	setup.expectLog("capture:todos/=a 1 1")
}

// A row of sync_partitions that was made after the writer's snapshot was taken costs it one serialization failure, like any row that somebody
// else made first. It never costs a change.
func TestASnapshotOlderThanTheInstallationWritesNothingUnlogged(t *testing.T) {
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		for _, partition := range []storage.Partition{{}, byTenant} {
			store, url := newCatalog(t)
			setup, old := connect(t, url), connect(t, url)
			setup.run(sourceSQL)
			old.run(`BEGIN ISOLATION LEVEL ` + level)
			old.run(`SELECT FROM sync_partitions`)
			capture(t, store, captureSpec{table: "todos", key: []string{"id"}, partition: partition})
			err := old.try(`INSERT INTO todos VALUES (1, 'a', 't')`)
			if err == nil {
				err = old.try(`COMMIT`)
			}
			made := level != "READ COMMITTED"
			if err != nil && (!made || stateOf(err) != "40001") {
				t.Errorf("%s, partition %+v: %v", level, partition, err)
			}
			if rows := value[int](setup, `SELECT count(*) FROM todos`); rows != len(setup.logged()) {
				t.Errorf("%s, partition %+v: %d rows are stored and not as many logged", level, partition, rows)
			}
		}
	}
}

func TestCaptureIsSwitchedOffAtOnceAndDroppedLaterAndItsFenceStays(t *testing.T) {
	for _, table := range []string{sourceSQL, partedSQL} {
		store, program := newSource(t, table)
		spec := captureSpec{table: "todos", key: []string{"id"}, partition: byTenant, minimum: 2}
		if table == partedSQL {
			spec.key = []string{"tenant", "id"}
		}
		capture(t, store, spec)
		drop := func() (dropped bool) {
			inStore(t, store, func(ctx context.Context, tx pgx.Tx) (err error) {
				dropped, err = store.dropCapture(ctx, tx, "todos")
				return err
			})
			return dropped
		}
		disable := func() {
			inStore(t, store, func(ctx context.Context, tx pgx.Tx) error { return store.disableCapture(ctx, tx, "todos") })
		}
		idle := func() (tables []string) {
			inStore(t, store, func(ctx context.Context, tx pgx.Tx) (err error) {
				tables, err = store.idleCaptures(ctx, tx)
				return err
			})
			return tables
		}
		if drop() || len(idle()) != 0 {
			t.Error("capture that is on was dropped, or is said to be idle")
		}
		disable()
		disable()
		program.run(`SET syncbarrier.writer_version = 2`)
		program.run(`INSERT INTO todos VALUES (1, 'a', 't')`)
		program.run(`TRUNCATE todos`)
		program.expectLog()
		if tables := idle(); !slices.Equal(tables, []string{"todos"}) {
			t.Errorf("idle is %q", tables)
		}

		capture(t, store, spec) // another checkpoint needs it meanwhile
		if drop() {
			t.Error("capture that is on again was dropped")
		}
		program.run(`INSERT INTO todos VALUES (1, 'a', 't')`)
		if got := program.logged(); len(got) != 1 {
			t.Errorf("switched on again, the log holds %q", got)
		}
		disable()
		if !drop() || len(idle()) != 0 {
			t.Error("capture that is off was not dropped")
		}
		left := value[[]string](program, `SELECT array_agg(DISTINCT tgname::text ORDER BY tgname::text) FROM pg_trigger WHERE tgname LIKE 'syncbarrier\_%' AND tgrelid = 'todos'::regclass`)
		if !slices.Equal(left, []string{fenceRowTrigger, fenceSourceTrigger}) {
			t.Errorf("triggers that are left: %q", left)
		}
		if functions := value[int](program, `SELECT count(*) FROM pg_proc WHERE proname = 'syncbarrier_capture_todos'`); functions != 0 {
			t.Error("the function is left")
		}
		program.run(`SET syncbarrier.writer_version = 1`)
		expectFenced(t, program.try(`DELETE FROM todos`))
	}
}

func TestSwitchingCaptureOffLetsReadersPass(t *testing.T) {
	store, url := newCatalog(t)
	setup, reader := connect(t, url), connect(t, url)
	setup.run(sourceSQL)
	capture(t, store, todosBy(byTenant))
	reader.run(`BEGIN`)
	reader.run(`SELECT FROM todos`) // a long report
	inStore(t, store, func(ctx context.Context, tx pgx.Tx) error { return store.disableCapture(ctx, tx, "todos") })
	err := store.inTx(testContext(t), "drop", txOptions{lockTimeout: 100 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := store.dropCapture(ctx, tx, "todos")
		return err
	})
	expectCode(t, err, storage.CodeLockTimeout)
}

func TestRaisingTheFenceRaisesEverySourceThatHasOne(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	program.run(strings.ReplaceAll(partedSQL, "todos", "parted"))
	program.run(`CREATE TABLE gone (id bigint PRIMARY KEY)`)
	program.run(`CREATE TABLE free (id bigint PRIMARY KEY)`)
	capture(t, store, todosBy(byTenant))
	capture(t, store, captureSpec{table: "parted", key: []string{"tenant", "id"}})
	capture(t, store, captureSpec{table: "gone", key: []string{"id"}, minimum: 9})
	program.run(`ALTER TABLE parted DETACH PARTITION parted_a`)
	inStore(t, store, func(ctx context.Context, tx pgx.Tx) error {
		if err := store.disableCapture(ctx, tx, "gone"); err != nil {
			return err
		}
		_, err := store.dropCapture(ctx, tx, "gone")
		return err
	})
	var locks lockSet
	inStore(t, store, func(ctx context.Context, tx pgx.Tx) (err error) {
		if locks, err = store.sourceLocks(ctx, tx); err != nil {
			return err
		}
		return store.raiseSourceFences(ctx, tx, 5)
	})
	want := []string{"gone", "parted", "parted_a", "todos"}
	var locked []string
	for _, lock := range locks {
		locked = append(locked, lock.table)
	}
	if !slices.Equal(locked, want) {
		t.Errorf("locks on %q, want %q", locked, want)
	}
	writes := map[string]string{
		"todos": `INSERT INTO todos VALUES (1, 'a', 't')`, "parted": `INSERT INTO parted VALUES (1, 'b', 't')`,
		"parted_b2": `INSERT INTO parted_b2 VALUES (101, 'b', 't')`, "parted_a": `INSERT INTO parted_a VALUES (1, 'a', 't')`,
	}
	for table, write := range writes {
		program.run(`SET syncbarrier.writer_version = 4`)
		expectFenced(t, program.try(write))
		if detail := detailOf(program.try(write)); !strings.Contains(detail, table) || !strings.Contains(detail, "version 4, required 5") {
			t.Errorf("the refusal on %s says %q", table, detail)
		}
		program.run(`SET syncbarrier.writer_version = 5`)
		program.run(write)
	}
	expectFenced(t, program.try(`INSERT INTO gone VALUES (1)`)) // it was at 9 and does not go down
	program.run(`SET syncbarrier.writer_version = 9`)
	program.run(`INSERT INTO gone VALUES (1)`)
	program.run(`RESET syncbarrier.writer_version`)
	program.run(`INSERT INTO free VALUES (1)`)
}

func TestTheFenceOfASourceRefusesEveryWayToWrite(t *testing.T) {
	store, url := newCatalog(t)
	setup, program := connect(t, url), connect(t, url)
	setup.run(partedSQL)
	setup.run(strings.ReplaceAll(sourceSQL, "todos", "plain"))
	setup.run(`INSERT INTO plain VALUES (1, 'a'); INSERT INTO todos VALUES (1, 'a'); CREATE TABLE todos_c PARTITION OF todos DEFAULT`)
	capture(t, store, captureSpec{table: "plain", key: []string{"id"}, minimum: 2})
	spec := parted()
	spec.minimum = 2
	capture(t, store, spec)
	setup.run(`CREATE TABLE todos_d (LIKE todos INCLUDING ALL)`)
	setup.run(`ALTER TABLE todos ATTACH PARTITION todos_d FOR VALUES IN ('d')`) // has copies of the row triggers only
	before := value[int64](setup, `SELECT last_value FROM syncbarrier_refused`)
	statements := []string{
		`INSERT INTO plain VALUES (2, 'a')`, `UPDATE plain SET note = 'x'`, `DELETE FROM plain`, `TRUNCATE plain`, `COPY plain FROM STDIN`,
		`INSERT INTO plain VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET note = 'x'`,
		`WITH gone AS (DELETE FROM plain RETURNING id) SELECT FROM gone`,
		`INSERT INTO todos VALUES (2, 'a')`, `UPDATE todos SET title_norm = 'x'`, `DELETE FROM todos`, `TRUNCATE todos`,
		`INSERT INTO todos_a VALUES (2, 'a')`, `TRUNCATE todos_a`, `INSERT INTO todos_d VALUES (2, 'd')`,
	}
	for _, role := range []string{"origin", "replica"} {
		program.run(`SET session_replication_role = ` + role)
		for _, statement := range statements {
			err := program.try(statement)
			if strings.HasPrefix(statement, "COPY") {
				_, err = program.conn.PgConn().CopyFrom(testContext(t), strings.NewReader("2\ta\tt\tn\tm\n"), statement)
			}
			if messageOf(err) != string(storage.CodeWriterFenceRejected) {
				t.Errorf("%s, role %s: got %v, want a refusal by the fence", statement, role, err)
			}
		}
	}
	if refused := value[int64](setup, `SELECT last_value FROM syncbarrier_refused`) - before; refused < int64(2*len(statements)-1) {
		t.Errorf("%d refusals are counted of %d", refused, 2*len(statements))
	}
	program.run(`SELECT FROM plain FOR UPDATE`) // reading and locking are no writes
	setup.expectLog()
}

func TestATruncateTriggerAloneLogsTheTruncateOfASourceThatItsProgramLogs(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	inStore(t, store, func(ctx context.Context, tx pgx.Tx) error {
		spec := todosBy(byTenant)
		c, err := store.readCaptured(ctx, tx, spec.declared(), spec.source(), nil)
		if err != nil {
			return err
		}
		return store.installTruncate(ctx, tx, c)
	})
	program.run(`INSERT INTO todos VALUES (1, 'a', 't')`)
	program.expectLog()
	program.run(`TRUNCATE todos`)
	program.expectLog("* 2 ")
	state := sourceState(t, store, "todos")
	if !state.capturing() || state.fenced() {
		t.Errorf("capturing %t, fenced %t", state.capturing(), state.fenced())
	}
}

func TestSwitchingATriggerOffAndOnAgainShowsInTheFingerprint(t *testing.T) {
	for _, table := range []string{sourceSQL, partedSQL} {
		store, program := newSource(t, table)
		spec := captureSpec{table: "todos", key: []string{"id"}, partition: byTenant}
		relation := "todos"
		if table == partedSQL {
			spec.key, relation = []string{"tenant", "id"}, "todos_b1"
		}
		capture(t, store, spec)
		before := changesOf(t, store, "todos")
		inStore(t, store, func(ctx context.Context, tx pgx.Tx) error { return store.raiseSourceFences(ctx, tx, 7) })
		capture(t, store, spec)
		program.run(`VACUUM FULL pg_trigger`)
		if after := changesOf(t, store, "todos"); !slices.Equal(before, after) {
			t.Errorf("the raise of the fence changed the fingerprint:\n%q\n%q", before, after)
		}
		program.run(fmt.Sprintf(`ALTER TABLE ONLY %s DISABLE TRIGGER syncbarrier_capture_row`, relation))
		mode := map[string]string{sourceSQL: "REPLICA", partedSQL: "ALWAYS"}[table]
		program.run(fmt.Sprintf(`ALTER TABLE ONLY %s ENABLE %s TRIGGER syncbarrier_capture_row`, relation, mode))
		if after := changesOf(t, store, "todos"); slices.Equal(before, after) {
			t.Error("the fingerprint does not show that a trigger was off for a while")
		}
	}
}
