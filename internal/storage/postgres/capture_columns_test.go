package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// A program may rename or drop a column of a captured table that no checkpoint names. Its writes go on, are logged, and the pass that
// begins after it is right.
func TestAColumnThatTheProgramRenamesOrDropsStopsNobody(t *testing.T) {
	for name, statement := range map[string]string{
		"renamed":              `ALTER TABLE todos RENAME COLUMN note TO remark`,
		"dropped":              `ALTER TABLE todos DROP COLUMN note`,
		"of another type":      `ALTER TABLE todos ALTER COLUMN note TYPE bytea USING convert_to(note, 'UTF8')`,
		"dropped and made new": `ALTER TABLE todos DROP COLUMN note, ADD COLUMN note integer`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newBackfillDB(t, todosSQL(100)+`; ALTER TABLE todos ADD COLUMN note text, ADD COLUMN more text`, tailedCheckpoint(), todosIn(storage.Partition{Column: "tenant"}))
			program := connect(t, db.url)
			program.run(`SET syncbarrier.writer_version = 2`)
			program.run(`UPDATE todos SET note = 'seen', more = 'seen' WHERE id < 10`) // whatever the session keeps of the function is there
			program.run(statement)
			program.forgetLog()

			program.run(`UPDATE todos SET title = 'One' WHERE id = 1`)
			program.run(`UPDATE todos SET title = 'Few' WHERE id IN (2, 4)`)
			program.run(`UPDATE todos SET tenant = 'a' WHERE id = 5`)
			program.run(`UPDATE todos SET id = 1006 WHERE id = 6`)
			program.run(`INSERT INTO todos(id, tenant, title) VALUES (1001, 'a', 'New')`)
			program.run(`DELETE FROM todos WHERE id = 7`)
			program.run(`SET session_replication_role = replica`)
			program.run(`UPDATE todos SET title = 'Applied' WHERE id = 8`)
			log := strings.Join(program.logged(), ", ")
			for _, change := range []string{"=b 1 1", "=a 1 2", "=a 1 4", "=a 1 5", "=b 2 5", "=a 1 1006", "=a 2 6", "=a 1 1001", "=b 2 7", "=a 1 8"} {
				if !strings.Contains(log, "capture:todos/"+change) {
					t.Errorf("the log misses %q: %s", change, log)
				}
			}
			report, err := db.store.CheckFence(db.ctx)
			if err != nil || !report.Intact() {
				t.Errorf("the fence: %+v, %v", report, err)
			}
			db.eventually("no transaction of the server is as old as what was pruned", func() bool {
				return db.text(`SELECT count(*) = 0 OR pg_snapshot_xmin(pg_current_snapshot())::text::bigint > max(commit_seq) FROM sync_changes`) == "true"
			})
			db.complete(db.mustClaim(true))
			db.wantText("0", wrong)
		})
	}
}

// A key of several fields in one column may hold a NULL, and is there all the same.
func TestCaptureTellsAKeyWithAnEmptyFieldFromNone(t *testing.T) {
	store, program := newSource(t, `
		CREATE TYPE place AS (x integer, y integer);
		CREATE TABLE spots (id place PRIMARY KEY, title text);
		INSERT INTO spots SELECT ROW(n, NULL)::place, 't' FROM generate_series(1, 4) AS n`)
	capture(t, store, captureSpec{table: "spots", key: []string{"id"}})
	program.run(`UPDATE spots SET title = 'u'`)
	program.expectLog("capture:spots/ 1 (1,)", "capture:spots/ 1 (2,)", "capture:spots/ 1 (3,)", "capture:spots/ 1 (4,)")
	program.run(`UPDATE spots SET id = ROW((id).x + 10, NULL) WHERE (id).x < 3`)
	program.expectLog("capture:spots/ 1 (11,)", "capture:spots/ 1 (12,)", "capture:spots/ 2 (1,)", "capture:spots/ 2 (2,)")
}

// A table that was captured keeps its fence. Once it inherits from another table, or is a partition of one, statements on that one fire its
// row triggers alone, so the fence has to be one of those; rows of a table that inherits from it are judged by nobody.
func TestAFencedTableThatBecomesPartOfAnotherIsFoundAndFencedForStatementsOnThat(t *testing.T) {
	db, program := newCapturedDB(t)
	activate(program, "norm")
	next := target(3, plainTodos(titleNorm))
	three := int64(3)
	next.MinWriterVersion = &three
	db.mustApply(next)
	inStore(t, db.store, func(ctx context.Context, tx pgx.Tx) error {
		_, err := db.store.dropCapture(ctx, tx, "todos")
		return err
	})
	repaired := func(write string) {
		t.Helper()
		expectFinding(t, db.store, "syncbarrier_fence_row on public.todos", true)
		if _, err := db.store.RepairFence(db.ctx); err != nil {
			t.Fatal(err)
		}
		expectFenced(t, program.try(write))
		if report, err := db.store.CheckFence(db.ctx); err != nil || !report.Intact() {
			t.Errorf("after the repair: %+v, %v", report, err)
		}
	}
	db.exec(`CREATE TABLE everything(title text); ALTER TABLE todos INHERIT everything`)
	repaired(`UPDATE everything SET title = 'by an old program'`)
	db.exec(`ALTER TABLE todos NO INHERIT everything`)
	if _, err := db.store.RepairFence(db.ctx); err != nil {
		t.Fatal(err)
	}

	db.exec(`CREATE TABLE whole(LIKE todos) PARTITION BY LIST (tenant); ALTER TABLE whole ATTACH PARTITION todos DEFAULT`)
	repaired(`UPDATE whole SET title = 'by an old program'`)
	after := target(4, plainTodos(titleNorm))
	four := int64(4)
	after.MinWriterVersion = &four
	db.mustApply(after)
	program.run(`SET syncbarrier.writer_version = 3`)
	expectFenced(t, program.try(`UPDATE whole SET title = 'by an old program'`))
	expectFenced(t, program.try(`UPDATE todos SET title = 'by an old program'`))
	program.run(`SET syncbarrier.writer_version = 4`)
	program.run(`UPDATE whole SET title = 'by a new one'`)

	db.exec(`ALTER TABLE whole DETACH PARTITION todos; CREATE TABLE later() INHERITS (todos)`)
	expectFinding(t, db.store, "table public.later inherits from public.todos", false)
}

func TestAnActivationThatWaitsForATableNamesWhoHoldsIt(t *testing.T) {
	db, program := newTailedDB(t, 20, inOne)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	db.catchUp(claim, storage.AllPartitions)
	program.run(`BEGIN`)
	program.run(`UPDATE todos SET title = 'Held' WHERE id = 3`)
	_, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: storage.AllPartitions})
	expectCode(t, err, storage.CodeLockTimeout)
	if blocked := asError(t, err).Blocked; len(blocked) != 1 || blocked[0].PID != program.pid() {
		t.Errorf("blocked by %+v, want process %d alone: %v", blocked, program.pid(), err)
	}
	program.run(`COMMIT`)
	db.complete(db.mustClaim(false))
	db.wantText("0", wrong)
}
