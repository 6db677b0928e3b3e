package sqlite

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// A program logs under the name that it knows its table by; the file may write that name in other case, and so may the table's own text.

func TestChangesLoggedInOtherCaseAreSourceChanges(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	table := keyed("Todos", key("id", "INTEGER"))
	b := newBackfill(t, []string{"CREATE TABLE todos(id INTEGER PRIMARY KEY, filled INTEGER)", "INSERT INTO todos(id) VALUES (1), (2), (3)"},
		[]storage.Table{table}, counting("Todos"))
	b.begin()
	b.scan()
	for _, logged := range []string{"todos", "TODOS"} {
		b.write("p", logged, []string{"1"}, "UPDATE todos SET filled = NULL WHERE id = 1")
	}
	b.write("p", "other", []string{"2"}, "UPDATE todos SET filled = 7 WHERE id = 2")

	tables := []string{"Todos"}
	coverage, err := b.store.HasSourceChangesAbove(ctx, "p", tables, 0)
	same(t, "error", err, nil)
	same(t, "verdict", coverage.Verdict, storage.Changed)
	seq, err := b.store.SourceCoverageSeq(ctx, "p", tables)
	same(t, "error", err, nil)
	same(t, "the newest change", seq, 2)
	same(t, "rows of the log that are applied", b.tail(storage.AllPartitions), 1)
	b.write("p", "tOdOs", []string{"3"}, "UPDATE todos SET filled = NULL WHERE id = 3")
	report := b.activate(storage.AllPartitions)
	same(t, "outcome", report.Outcome, storage.OutcomeActivated)
	same(t, "rows applied under the lock", report.Rest, 1)
	same(t, "rows that are not filled", b.program.number("SELECT count(*) FROM todos WHERE filled IS NULL"), 0)
}

func TestARowFilledByAProgramIsNotActivatedPastAChangeLoggedInOtherCase(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	checkpoint := counting("Todos")
	checkpoint.Backfill, checkpoint.Verify = storage.Backfill{Job: true}, nil
	b := newBackfill(t, []string{"CREATE TABLE todos(id INTEGER PRIMARY KEY, filled INTEGER)"},
		[]storage.Table{keyed("Todos", key("id", "INTEGER"))}, checkpoint)
	b.begin()
	b.write("p", "todos", []string{"1"}, "INSERT INTO todos(id) VALUES (1)")
	outcome, err := b.store.ActivateCheckpoint(ctx, storage.Ownership{
		Name: "fill", Partition: storage.AllPartitions, OwnerEpoch: b.claim.Rows[0].OwnerEpoch, Token: b.claim.Token,
	}, 0)
	same(t, "error", err, nil)
	same(t, "outcome", outcome, storage.OutcomeChanged)
}

func TestATableRecordedInOtherCaseIsTheSameTable(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	apply(t, store, version6())
	apply(t, store, version7())

	needed := version7()
	needed.Version, needed.Tables, needed.RetiredTables = 8, needed.Tables[1:], []string{"Todos"}
	refuse(t, store, needed, storage.CodeCheckpointIncomplete, "Todos", "title-norm")

	both := version7()
	both.Version, both.RetiredTables = 8, []string{"NOTES"}
	refuse(t, store, both, storage.CodeInvalidSpec, "NOTES", "does not tell case apart")

	shorter := version7()
	shorter.Version = 8
	shorter.Tables[1].Name, shorter.Tables[1].Columns = "Notes", []storage.Column{{Name: "body", Type: storage.TypeString}}
	refuse(t, store, shorter, storage.CodeLayoutMismatch, "Notes", `"title" was removed`)

	longer := version7()
	longer.Version = 8
	longer.Tables[1] = notesTable(nullableColumn("body", storage.TypeString))
	longer.Tables[1].Name = "Notes"
	apply(t, store, longer)
	p := openProgram(t, store.path)
	same(t, "columns", p.number("SELECT count(*) FROM pragma_table_info('notes') WHERE name IN ('title', 'body')"), 2)
	same(t, "layouts", p.text("SELECT group_concat(key) FROM sync_schema_meta, json_each(layouts)"), "Notes")
}

// A file in a rollback journal is locked for readers too while a program writes. What cannot be right in any file is told all the same.
func TestNamesThatCannotBeAreRefusedWhileNobodyMayReadTheFile(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	p.exec("PRAGMA journal_mode = DELETE")
	p.exec("CREATE TABLE mine(i INTEGER)")
	store := openWith(t, Config{Path: path})
	apply(t, store, version6())
	holder, err := p.db.Conn(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer release(holder, true)
	if _, err := holder.ExecContext(testContext(t), "BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	twins := version7()
	twins.Tables = append(twins.Tables, twins.Tables[0])
	twins.Tables[len(twins.Tables)-1].Name = "TODOS"
	refuse(t, store, twins, storage.CodeInvalidSpec, "TODOS", "does not tell case apart")
	_, err = store.Plan(testContext(t), twins)
	wantCode(t, err, storage.CodeInvalidSpec)
}
