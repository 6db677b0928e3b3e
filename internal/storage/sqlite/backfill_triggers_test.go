package sqlite

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// What a program's own triggers and constraints do to a backfill that updates its rows.

// todosWith makes three todos, and whatever else a test needs.
func todosWith(more ...string) []string {
	return append([]string{
		"CREATE TABLE todos(id INTEGER PRIMARY KEY, title TEXT, filled TEXT)",
		"INSERT INTO todos(id, title) VALUES (1, 'A'), (2, 'B'), (3, 'C')",
	}, more...)
}

func titlesTable() storage.Table {
	return storage.Table{Name: "todos", Layout: storage.Plain, PrimaryKey: []string{"id"}, Columns: []storage.Column{
		{Name: "id", Type: storage.TypeInteger}, nullableColumn("filled", storage.TypeString),
	}}
}

// lowering is counting with a value that stays the same when it is filled again.
func lowering() storage.Checkpoint {
	checkpoint := counting("todos")
	checkpoint.Backfill.Update.Set = map[string]string{"filled": "lower(title)"}
	checkpoint.Settings.BatchRows = 10
	return checkpoint
}

// logsUpdates is a trigger by which a program logs each update, with a writer version.
func logsUpdates(version string) string {
	return `CREATE TRIGGER todos_log AFTER UPDATE ON todos
		BEGIN
		  INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ('p', 1)
		    ON CONFLICT (partition) DO UPDATE SET max_commit_seq = max_commit_seq + 1;
		  INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		    SELECT 'p', max_commit_seq, 'trigger', max_commit_seq, 'a', 0, ` + version + ` FROM sync_partitions WHERE partition = 'p';
		  INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
		    SELECT 'p', max_commit_seq, 0, 'todos', NEW.id, 1, '{}' FROM sync_partitions WHERE partition = 'p';
		END`
}

func TestATriggerThatLogsEachUpdateDoesNotKeepABackfillBusyForEver(t *testing.T) {
	t.Parallel()
	b := newBackfill(t, todosWith(), []storage.Table{titlesTable()}, lowering())
	b.program.exec(logsUpdates("1"))
	b.begin()
	b.scan()
	const logged = "SELECT max_commit_seq FROM sync_partitions WHERE partition = 'p'"
	same(t, "commits that the trigger made of the scan", b.program.number(logged), 3)
	b.program.exec("UPDATE todos SET title = 'D' WHERE id = 3")
	same(t, "rows of the log", b.tail(storage.AllPartitions), 3)
	same(t, "commits after the tail, which wrote one row", b.program.number(logged), 5)
	same(t, "rows of the log that the tail made", b.tail(storage.AllPartitions), 1)
	same(t, "commits when all rows have their values", b.program.number(logged), 5)
	same(t, "outcome", b.activate(storage.AllPartitions).Outcome, storage.OutcomeActivated)
	same(t, "values", b.program.text("SELECT group_concat(filled, '' ORDER BY id) FROM todos"), "abd")
}

func TestARowThatHasItsValueIsToldByteByByte(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ column, have, expression, want string }{
		"case in a column without":         {"TEXT COLLATE NOCASE", "'A'", "lower(title)", "'a'"},
		"a zero before a number":           {"TEXT", "'05'", "5", "'5'"},
		"a number of a typed column":       {"TEXT", "'05'", "id", "'2'"},
		"text that a number column keeps":  {"INTEGER", "'2x'", "id", "2"},
		"a whole number beside a fraction": {"", "2.0", "2", "2"},
		"bytes beside text":                {"", "x'61'", "'a'", "'a'"},
		"nothing beside something":         {"TEXT", "'a'", "NULL", "NULL"},
		"something beside nothing":         {"TEXT", "NULL", "title", "'A'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkpoint := lowering()
			checkpoint.Backfill.Update.Set["filled"], checkpoint.Verify = test.expression, nil
			table := titlesTable()
			table.Columns[1] = storage.Column{Name: "filled", Nullable: true, SQLType: test.column}
			if test.column == "" || test.column == "TEXT COLLATE NOCASE" {
				table.Columns[1] = nullableColumn("filled", storage.TypeString)
			}
			b := newBackfill(t, []string{"CREATE TABLE todos(id INTEGER PRIMARY KEY, title TEXT, filled " + test.column + ")"}, []storage.Table{table}, checkpoint)
			b.begin()
			b.scan()
			b.write("p", "todos", []string{"2"}, "INSERT INTO todos(id, title, filled) VALUES (2, 'A', "+test.have+")")
			b.tail(storage.AllPartitions)
			same(t, "the value is right", b.program.number("SELECT quote(filled) = quote("+test.want+") FROM todos"), 1)
		})
	}
}

func TestATriggerThatKeepsARowFromItsValueIsNoSuccess(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := newBackfill(t, todosWith("CREATE TRIGGER keep BEFORE UPDATE ON todos WHEN OLD.id = 2 BEGIN SELECT RAISE(IGNORE); END"),
		[]storage.Table{titlesTable()}, lowering())
	b.begin()
	lease := b.take(0, 1)[0]
	_, err := b.store.ScanBatch(ctx, b.claim, lease)
	wantCode(t, err, storage.CodeInvalidSQL)
	wantText(t, err, "todos", "keeps it from 1 rows")
	same(t, "rows that stay of the batch", b.program.number("SELECT count(filled) FROM todos"), 0)
	lease.Limit = 1
	_, err = b.store.ScanBatch(ctx, b.claim, lease)
	same(t, "the row before it", err, nil)
	_, err = b.store.ScanBatch(ctx, b.claim, lease)
	wantCode(t, err, storage.CodeInvalidSQL)
	wantText(t, err, `table "todos", key "2"`)

	b.program.exec("DROP TRIGGER keep")
	b.scan()
	b.program.exec("CREATE TRIGGER keep BEFORE UPDATE OF filled ON todos WHEN OLD.id = 2 BEGIN SELECT RAISE(IGNORE); END")
	b.write("p", "todos", []string{"1", "2"}, "UPDATE todos SET title = 'X'")
	_, err = b.store.TailBatch(ctx, b.claim, storage.AllPartitions, 100)
	wantCode(t, err, storage.CodeInvalidSQL)
	wantText(t, err, "keeps it from 1 rows")
}

func TestATriggerThatLogsBelowTheFenceIsTheUsersToMend(t *testing.T) {
	t.Parallel()
	b := newBackfill(t, todosWith(), []storage.Table{titlesTable()}, lowering())
	b.program.exec(logsUpdates("0"))
	b.begin()
	_, err := b.store.ScanBatch(testContext(t), b.claim, b.take(0, 1)[0])
	wantCode(t, err, storage.CodeInvalidSQL)
	wantText(t, err, string(storage.CodeWriterFenceRejected), "todos")
}

func TestAForeignKeyThatIsCheckedAtTheEndNamesTheKeyToo(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := newBackfill(t, []string{
		"CREATE TABLE labels(id TEXT PRIMARY KEY)", "INSERT INTO labels VALUES ('a'), ('c')",
		"CREATE TABLE todos(id INTEGER PRIMARY KEY, title TEXT, filled TEXT REFERENCES labels(id) DEFERRABLE INITIALLY DEFERRED)",
		"INSERT INTO todos(id, title) VALUES (1, 'A'), (2, 'B'), (3, 'C')",
	}, []storage.Table{titlesTable()}, lowering())
	b.begin()
	lease := b.take(0, 1)[0]
	_, err := b.store.ScanBatch(ctx, b.claim, lease)
	wantCode(t, err, storage.CodeInvalidSQL)
	wantText(t, err, "FOREIGN KEY")
	lease.Limit = 1
	_, err = b.store.ScanBatch(ctx, b.claim, lease)
	same(t, "the row before it", err, nil)
	_, err = b.store.ScanBatch(ctx, b.claim, lease)
	wantCode(t, err, storage.CodeInvalidSQL)
	wantText(t, err, `table "todos", key "2"`, "FOREIGN KEY")
	same(t, "rows filled", b.program.text("SELECT group_concat(filled, '' ORDER BY id) FROM todos"), "a")
	b.program.exec("INSERT INTO labels VALUES ('b')")
	b.finish(storage.AllPartitions)
}
