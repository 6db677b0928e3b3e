package postgres

import (
	"context"
	"math"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The changes of a partition without a row are found by its announcement in the log of the row that its writers share.
func TestAPruneOfTheSharedRowLosesNoAnnouncedPartition(t *testing.T) {
	db, program := newTailedDB(t, 20, byTenant, "q")
	program.run(`INSERT INTO todos VALUES (500, 'q', 'Before')`)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	program.run(`UPDATE todos SET title = 'AFTER' WHERE id = 500`)
	if _, err := db.store.Prune(db.ctx, "capture:todos/", math.MaxInt64, true); err != nil {
		t.Fatal(err)
	}
	db.catchUp(claim, "q")
	db.mustActivate(claim, "q")
	db.wantText("0", wrong+" AND tenant = 'q'")
}

func TestALaterBackfillMayNotSetAColumnThatAnOpenOneReadsWithoutNamingIt(t *testing.T) {
	first := storage.Checkpoint{
		Name: "first", Version: 2, Sources: []storage.Source{{Table: "todos", Changes: storage.Capture}},
		Backfill: storage.Backfill{Statement: &storage.Statement{Table: "todos",
			Apply: "INSERT INTO words SELECT t.id, t.extra FROM todos t JOIN batch USING (id) ON CONFLICT (id) DO UPDATE SET w = EXCLUDED.w"}},
	}
	table := plainTodos(titleNorm, storage.Column{Name: "extra", Type: storage.TypeString, Nullable: true})
	db := newBackfillDB(t, todosSQL(10)+"; ALTER TABLE todos ADD extra text; CREATE TABLE words(id bigint PRIMARY KEY, w text)", first, table)
	second := storage.Checkpoint{
		Name: "second", Version: 3, Sources: []storage.Source{{Table: "todos", Changes: storage.Capture, Columns: []string{"title"}}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{"extra": "lower(title)"}}},
	}
	wanted := target(3, table)
	wanted.Checkpoints = []storage.Checkpoint{first, second}
	db.refuses(wanted, storage.CodeInvalidSpec, `column "extra"`, `"todos"`)
	db.wantText("2", `SELECT schema_version FROM sync_schema_meta`)

	claim := db.mustClaim(false)
	db.complete(claim)
	db.mustApply(wanted) // nobody reads it any more
}

func TestAbandoningTheLastReaderEndsTheCaptureOfItsSource(t *testing.T) {
	db, program := newTailedDB(t, 20, inOne)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	program.run(`UPDATE todos SET title = title || 'x'`)
	db.eventually("no transaction of the server is older", func() bool { // one would keep the log, until the next time
		return db.text(`SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > max(commit_seq) FROM sync_changes`) == "true"
	})
	if _, err := db.store.AbandonCheckpoint(db.ctx, "norm", 2, "me", "no longer wanted"); err != nil {
		t.Fatal(err)
	}
	program.run(`UPDATE todos SET title = title || 'y'`)
	db.wantText("0", `SELECT count(*) FROM sync_changes`)
	db.wantText("2 0", `
		SELECT count(*) FILTER (WHERE tgname LIKE 'syncbarrier_fence%') || ' ' || count(*) FILTER (WHERE tgname LIKE 'syncbarrier_capture%')
		  FROM pg_trigger
		 WHERE tgrelid = 'todos'::regclass`)
	if report, err := db.store.CheckFence(db.ctx); err != nil || !report.Intact() {
		t.Errorf("the fence: %+v, %v", report, err)
	}
}

// A program that writes the log itself gives its version there, not in its session: it may TRUNCATE, but not under an activation.
func TestATruncateOfALoggedSourceIsNotFencedAndWaitsForAnActivation(t *testing.T) {
	db := todosDB(t, 20, "a")
	program := connect(t, db.url)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	db.catchUp(claim, "a")
	program.run(`SET lock_timeout = '300ms'`)
	var during error
	report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a", BeforeCommit: func(context.Context, storage.Querier) error {
		during = program.try(`TRUNCATE todos`)
		return nil
	}})
	if err != nil || report.Outcome != storage.OutcomeActivated {
		t.Fatalf("%+v, %v", report, err)
	}
	if sqlState(during) != stateLockTimeout {
		t.Errorf("a TRUNCATE before the activation's COMMIT: %v, want it to wait", during)
	}
	program.run(`TRUNCATE todos`)
}

// A table without partitions has one row, "default", for all partitions of a source that has some: those that come while it is
// activated too.
func TestARowThatStandsForAllPartitionsOfASourceKeepsNewOnesOut(t *testing.T) {
	todos := plainTodos(titleNorm)
	todos.Partition = storage.Partition{}
	orders := storage.Table{
		Name: "orders", Layout: storage.Plain, PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "tenant"},
		Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}, {Name: "tenant", Type: storage.TypeString}, {Name: "todo", Type: storage.TypeInteger}},
	}
	c := storage.Checkpoint{
		Name: "norm", Version: 2, Partitions: []string{storage.DefaultPartition},
		Sources: []storage.Source{{Table: "orders", Changes: storage.Capture, Keys: "SELECT o.todo AS id FROM orders o JOIN changed ON changed.id = o.id"}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos",
			Set: map[string]string{"title_norm": "(SELECT count(*)::text FROM orders o WHERE o.todo = todos.id)"}}},
	}
	db := newBackfillDB(t, todosSQL(10)+"; CREATE TABLE orders(id bigint PRIMARY KEY, tenant text NOT NULL, todo bigint NOT NULL)", c, todos, orders)
	program := connect(t, db.url)
	program.run(`SET syncbarrier.writer_version = 2; SET lock_timeout = '300ms'`)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	program.run(`INSERT INTO orders VALUES (1, 'q', 3)`)
	var during error
	report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: storage.DefaultPartition, BeforeCommit: func(context.Context, storage.Querier) error {
		during = program.try(`INSERT INTO orders VALUES (2, 'new', 4)`)
		return nil
	}})
	if err != nil || report.Outcome != storage.OutcomeActivated {
		t.Fatalf("%+v, %v", report, err)
	}
	if sqlState(during) != stateLockTimeout {
		t.Errorf("a change in a new partition before COMMIT: %v, want it to wait", during)
	}
	db.wantText("0", `SELECT count(*) FROM todos WHERE title_norm IS DISTINCT FROM (SELECT count(*)::text FROM orders o WHERE o.todo = todos.id)`)
}
