package postgres

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// capturedTodos is version 2 of todos, whose changes triggers write.
func capturedTodos(partitions ...string) storage.Target {
	wanted := target(2, plainTodos(titleNorm))
	c := normCheckpoint("norm", 2, partitions...)
	c.Sources[0].Changes = storage.Capture
	wanted.Checkpoints = []storage.Checkpoint{c}
	return wanted
}

// newCapturedDB is a database with three todos, at version 2 and captured, with a program of version 2.
func newCapturedDB(t testing.TB) (*barrierDB, *session) {
	db := newBarrierDB(t)
	db.mustApply(target(1, plainTodos()))
	db.exec(`INSERT INTO todos SELECT n, 'a', 'Title ' || n FROM generate_series(1, 3) AS n`)
	db.mustApply(capturedTodos())
	program := connect(t, db.url)
	program.run(`SET syncbarrier.writer_version = 2`)
	return db, program
}

// capturedLog lists the log of captured partitions as "partition version op key".
const capturedLogSQL = `
	SELECT string_agg(c.partition || ' ' || coalesce(k.writer_version::text, '-') || ' ' || c.op || ' ' || c.row_id, ', ' ORDER BY c.idx)
	  FROM sync_changes c
	  JOIN sync_commits k USING (partition, commit_seq)
	 WHERE c.op <> 4 AND starts_with(c.partition, 'capture:') OR c.partition = '*'`

func TestFromTheBarrierOnACapturedTableRefusesOldProgramsAndLogsNewOnes(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(1, plainTodos()))
	old := connect(t, db.url)
	old.run(`INSERT INTO todos VALUES (1, 'a', 'One'), (2, 'b', 'Two')`)
	db.mustApply(capturedTodos())
	db.wantText("2", `SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'`)
	for _, sql := range []string{
		`INSERT INTO todos VALUES (3, 'a', 'Three')`, `UPDATE todos SET title = 'x'`, `DELETE FROM todos`, `TRUNCATE todos`,
	} {
		expectFenced(t, old.try(sql))
	}
	_, err := old.conn.PgConn().CopyFrom(db.ctx, strings.NewReader("4\ta\tFour\t\\N\n"), `COPY todos FROM STDIN`)
	expectFenced(t, err)
	db.wantText("1 One, 2 Two", `SELECT string_agg(id || ' ' || title, ', ' ORDER BY id) FROM todos`)
	db.wantText("", capturedLogSQL)

	program := connect(t, db.url)
	program.run(`SET syncbarrier.writer_version = 2`)
	program.run(`INSERT INTO todos VALUES (3, 'a', 'Three')`)
	program.run(`UPDATE todos SET title = 'Zwei', tenant = 'c' WHERE id = 2`)
	program.run(`DELETE FROM todos WHERE id = 1`)
	program.run(`UPDATE todos SET title_norm = 'nobody has to know'`)
	db.wantText("capture:todos/=a 2 1 3, capture:todos/=c 2 1 2, capture:todos/=b 2 2 2, capture:todos/=a 2 2 1", capturedLogSQL)
	if refused := db.text(`SELECT last_value FROM syncbarrier_refused`); refused != "5" {
		t.Errorf("%s refusals were counted, want 5", refused)
	}
}

func TestALaterBarrierRaisesWhatWasEverCapturedAndSwitchesOffWhatNobodyNeeds(t *testing.T) {
	db, program := newCapturedDB(t)
	activate(program, "norm")
	next := target(3, plainTodos(titleNorm))
	three := int64(3)
	next.MinWriterVersion = &three
	db.mustApply(next)
	expectFenced(t, program.try(`UPDATE todos SET title = 'x'`))
	program.run(`SET syncbarrier.writer_version = 3`)
	program.run(`UPDATE todos SET title = 'x'`)
	db.wantText("", capturedLogSQL) // nobody reads it any more
	report, err := db.store.CheckFence(db.ctx)
	if err != nil || !report.Intact() || report.GotIn != 0 {
		t.Errorf("the fence: %+v, %v", report, err)
	}
	status, err := db.store.Status(db.ctx)
	want := []storage.SourceStatus{{Table: "todos", MinWriterVersion: 3}}
	if err != nil || !slices.Equal(status.Sources, want) {
		t.Errorf("sources %+v, want %+v (%v)", status.Sources, want, err)
	}
}

func TestStatusShowsCaptureByTable(t *testing.T) {
	db, program := newCapturedDB(t)
	program.run(`UPDATE todos SET title = title || '!'`)
	program.run(`UPDATE todos SET tenant = 'b' WHERE id = 1`)
	status, err := db.store.Status(db.ctx)
	want := []storage.SourceStatus{{Table: "todos", Capturing: true, MinWriterVersion: 2, LogRows: 5, Partitions: 2}}
	if err != nil || !slices.Equal(status.Sources, want) || status.LogBytes < 8192 || status.LogGrowing() != "" {
		t.Errorf("sources %+v, %d bytes, want %+v (%v)", status.Sources, status.LogBytes, want, err)
	}
	status.Sources[0].LogRows = storage.MaxCountedLogRows
	if !strings.Contains(status.LogGrowing(), `"todos"`) {
		t.Errorf("a log of a million changes: %q", status.LogGrowing())
	}
}

func TestSourcesAreLockedBeforeTheLog(t *testing.T) {
	db, _ := newCapturedDB(t)
	db.exec(`CREATE TABLE owners (id bigint PRIMARY KEY, name text)`)
	next := target(3, plainTodos(titleNorm), storage.Table{
		Name: "owners", Layout: storage.Plain, PrimaryKey: []string{"id"},
		Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}, {Name: "name", Type: storage.TypeString}, titleNorm},
	})
	next.Checkpoints = append(capturedTodos().Checkpoints, storage.Checkpoint{
		Name: "owners", Version: 3, Sources: []storage.Source{{Table: "owners", Changes: storage.Capture}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "owners", Set: map[string]string{"title_norm": "lower(name)"}}},
	})
	plan, err := db.store.Plan(db.ctx, next)
	if err != nil {
		t.Fatal(err)
	}
	want := []storage.LockNote{
		{Table: "owners", Mode: "ACCESS EXCLUSIVE"}, {Table: "todos", Mode: "SHARE ROW EXCLUSIVE"},
		{Table: "sync_commits", Mode: "SHARE ROW EXCLUSIVE"}, {Table: "sync_schema_meta", Mode: "EXCLUSIVE"},
	}
	if !slices.Equal(plan.Locks, want) {
		t.Errorf("locks %v, want %v", plan.Locks, want)
	}
	statements := strings.Join(plan.Statements, "\n")
	for _, part := range []string{
		`CREATE OR REPLACE FUNCTION "public"."syncbarrier_capture_owners"()`, `CREATE OR REPLACE TRIGGER "syncbarrier_capture_insert"`,
		`CREATE OR REPLACE TRIGGER "syncbarrier_fence_source"`, `"public"."owners"`,
	} {
		if !strings.Contains(statements, part) {
			t.Errorf("the plan has no %s:\n%s", part, statements)
		}
	}
	result := db.mustApply(next)
	if !slices.Equal(result.Declared, []string{"owners"}) {
		t.Errorf("declared %v", result.Declared)
	}
}

func TestAPlanNamesWhoWritesToASourceWithoutAVersion(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(1, plainTodos()))
	old := connect(t, db.url+"&application_name=billing")
	old.run("BEGIN")
	old.run(`INSERT INTO todos VALUES (1, 'a', 'One')`)
	plan, err := db.store.Plan(db.ctx, capturedTodos())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(plan.Unversioned, func(w storage.UnversionedWriter) bool {
		return w.Application == "billing" && w.Table == "todos" && w.Sessions == 1
	})
	if i < 0 {
		t.Errorf("writers without a version: %+v", plan.Unversioned)
	}
	old.run("ROLLBACK")
}

// SQL of a version writes captured tables as a program of that version does, and its changes are changes.
func TestSQLOfAVersionPassesTheFenceOfACapturedTableAndIsLogged(t *testing.T) {
	db, _ := newCapturedDB(t)
	next := target(3, plainTodos(titleNorm))
	three := int64(3)
	next.MinWriterVersion = &three
	next.Checkpoints = capturedTodos().Checkpoints
	next.Migrations = []storage.Migration{{Version: 3, SQL: `UPDATE todos SET title = 'by SQL' WHERE id = 2`}}
	db.mustApply(next)
	db.wantText("capture:todos/=a 3 1 2", capturedLogSQL)
}

func TestAWeakenedCaptureStopsBarriersAndIsRepairedAndWhatGotInIsCounted(t *testing.T) {
	db, program := newCapturedDB(t)
	program.run(`UPDATE todos SET title = 'right' WHERE id = 1`)
	db.exec(`ALTER TABLE todos DISABLE TRIGGER USER; ALTER TABLE sync_commits DISABLE TRIGGER syncbarrier_fence; ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_update`)
	old := connect(t, db.url)
	old.run(`UPDATE todos SET title = 'old' WHERE id = 2`)
	next := target(3, plainTodos(titleNorm))
	next.Checkpoints = capturedTodos().Checkpoints
	db.refuses(next, storage.CodeFenceBroken, "syncbarrier_fence_source on public.todos")
	report, err := db.store.RepairFence(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{"trigger syncbarrier_fence_source on public.todos", "trigger syncbarrier_capture_insert on public.todos"} {
		if !slices.Contains(report.Repaired, object) {
			t.Errorf("%s is not among what was repaired: %v", object, report.Repaired)
		}
	}
	if report.GotIn != 1 {
		t.Errorf("%d commits got in, want 1: %+v", report.GotIn, report.Findings)
	}
	expectFenced(t, old.try(`UPDATE todos SET title = 'old' WHERE id = 2`))
	db.mustApply(next)
}

func TestACommitBelowALaterFenceIsNotTakenForOneThatGotIn(t *testing.T) {
	db, program := newCapturedDB(t)
	program.run(`UPDATE todos SET title = 'at 2'`)
	next := target(3, plainTodos(titleNorm))
	three := int64(3)
	next.MinWriterVersion, next.Checkpoints = &three, capturedTodos().Checkpoints
	db.mustApply(next)
	if report, err := db.store.CheckFence(db.ctx); err != nil || report.GotIn != 0 || !report.Intact() {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestRemovingTakesCaptureAwayAndWhatItWrote(t *testing.T) {
	db, program := newCapturedDB(t)
	program.run(`UPDATE todos SET title = 'x'`)
	db.exec(`CREATE TABLE left_over (id bigint PRIMARY KEY)`)
	capture(t, db.store, captureSpec{table: "left_over", key: []string{"id"}})
	db.exec(`DROP TABLE left_over`)
	if _, err := db.store.Remove(db.ctx, true); err != nil {
		t.Fatal(err)
	}
	db.wantText("0", `
		SELECT count(*)
		  FROM (SELECT proname FROM pg_proc WHERE proname LIKE 'syncbarrier%'
		        UNION ALL
		        SELECT tgname FROM pg_trigger WHERE tgname LIKE 'syncbarrier%'
		        UNION ALL
		        SELECT partition FROM sync_partitions WHERE partition LIKE 'capture:%'
		        UNION ALL
		        SELECT partition FROM sync_commits
		        UNION ALL
		        SELECT partition FROM sync_changes) AS left_over`)
	connect(t, db.url).run(`UPDATE todos SET title = 'without a version'`)
	installCatalog(t, db.store)
}

func TestACapturedCheckpointDeclaredOutsideABarrierIsCapturedAndFencedAtOnce(t *testing.T) {
	for name, partitions := range map[string][]string{"of all partitions": nil, "of one": {"a"}} {
		t.Run(name, func(t *testing.T) {
			db := newBarrierDB(t)
			db.mustApply(target(1, plainTodos()))
			first := target(2, plainTodos(titleNorm))
			first.Checkpoints = []storage.Checkpoint{{Name: "keeps-closed", Version: 2, Partitions: []string{"z"},
				Sources: []storage.Source{{Table: "todos", Changes: storage.CommitLog}}}}
			db.mustApply(first)
			c := capturedTodos(partitions...).Checkpoints[0]
			for range 2 { // declared again it stays as it is
				if _, err := db.store.DeclareCheckpoint(db.ctx, c, first.Tables); err != nil {
					t.Fatal(err)
				}
			}
			expectFenced(t, connect(t, db.url).try(`INSERT INTO todos VALUES (1, 'q', 'One')`))
			program := connect(t, db.url)
			program.run(`SET syncbarrier.writer_version = 2`)
			program.run(`INSERT INTO todos VALUES (1, 'q', 'One')`)
			db.wantText("capture:todos/=q 2 1 1", capturedLogSQL)
			if report, err := db.store.CheckFence(db.ctx); err != nil || !report.Intact() {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
}

func TestASourceThatCannotBeCapturedIsRefusedAndNothingChanges(t *testing.T) {
	for name, setup := range map[string]string{
		"is unlogged":   `ALTER TABLE todos SET UNLOGGED`,
		"inherits from": `CREATE TABLE base (id bigint); ALTER TABLE todos INHERIT base`,
	} {
		t.Run(name, func(t *testing.T) {
			db := newBarrierDB(t)
			db.mustApply(target(1, plainTodos()))
			db.exec(setup)
			if _, err := db.store.Plan(db.ctx, capturedTodos()); err != nil && storage.CodeOf(err) != storage.CodeInvalidSpec {
				t.Errorf("plan: %v", err)
			}
			before := db.text(wholeDatabase)
			db.refuses(capturedTodos(), storage.CodeInvalidSpec, `source "todos" cannot be captured`, name)
			db.wantText(before, wholeDatabase)
		})
	}
}

// A writer with an older snapshot, under every isolation level, meets the fence that the barrier put on its table.
func TestNoOlderSnapshotGetsPastTheFenceOfASource(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			db := newBarrierDB(t)
			db.mustApply(target(1, plainTodos()))
			db.exec(`INSERT INTO todos VALUES (1, 'a', 'One')`)
			old := db.connect()
			tx, err := old.BeginTx(db.ctx, pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			var seen int
			if err := tx.QueryRow(db.ctx, `SELECT count(*) FROM sync_schema_meta`).Scan(&seen); err != nil {
				t.Fatal(err)
			}
			db.mustApply(capturedTodos())
			_, err = tx.Exec(db.ctx, `INSERT INTO todos VALUES (2, 'new', 'Two')`)
			expectFenced(t, err)
			_ = tx.Rollback(context.WithoutCancel(db.ctx))
			db.wantText("1", `SELECT count(*) FROM todos`)
		})
	}
}
