package sqlite

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Tables of the file that have the names of our relations do not get in the way, and are not touched.
func TestTablesNamedLikeOurRelationsAreNotMistakenForThem(t *testing.T) {
	checkpoint := counting("batch")
	checkpoint.Sources = append(checkpoint.Sources, storage.Source{
		Table: "changed", Changes: storage.CommitLog, Keys: "SELECT main.changed.batch AS id FROM main.changed JOIN changed USING (id)",
	})
	checkpoint.Backfill = storage.Backfill{Statement: &storage.Statement{
		Table:  "batch",
		Apply:  "UPDATE main.batch SET filled = coalesce(filled, 0) + 1 WHERE id IN (SELECT id FROM batch)",
		Remove: "INSERT INTO gone SELECT id FROM batch",
	}}
	checkpoint.Verify = []storage.Verify{{Name: "filled", Query: "SELECT id FROM main.batch WHERE filled IS NULL"}}
	changed := keyed("changed", key("id", "TEXT"))
	changed.Columns[1].Name = "batch"
	b := newBackfill(t, []string{
		"CREATE TABLE batch(id INTEGER PRIMARY KEY, filled INTEGER)", "CREATE TABLE gone(id)",
		"CREATE TABLE changed(id TEXT NOT NULL PRIMARY KEY, batch INTEGER)", "CREATE TABLE syncbarrier_keys(id)",
		"INSERT INTO batch(id) VALUES (1), (2), (3)", "INSERT INTO changed VALUES ('x', 3), ('y', 99), ('z', 1)",
	}, []storage.Table{keyed("batch", key("id", "INTEGER")), changed}, checkpoint)
	b.begin()
	_, rows := b.scan()
	same(t, "rows", rows, 3)
	b.write("p", "changed", []string{"x", "y", "nothing"}, "")
	b.write("p", "batch", []string{"2"}, "DELETE FROM batch WHERE id = 2")
	same(t, "rows of the tail", b.tail(storage.AllPartitions), 3)
	same(t, "filled", b.program.text("SELECT group_concat(id || ':' || filled) FROM batch"), "1:1,3:2")
	same(t, "gone", b.program.text("SELECT group_concat(id) FROM (SELECT id FROM gone ORDER BY id)"), "2,99")
	same(t, "outcome", b.activate(storage.AllPartitions).Outcome, storage.OutcomeActivated)
	same(t, "rows in a table of the file", b.program.number("SELECT (SELECT count(*) FROM syncbarrier_keys) + (SELECT count(*) FROM changed)"), 3)
}

// SQL of the user's that fails, or tries what it must not, leaves nothing of its batch.
func TestBackfillSQLStaysInsideItsBatch(t *testing.T) {
	for name, tt := range map[string]struct {
		apply string
		code  storage.Code
	}{
		"a second statement that commits": {"UPDATE todos SET filled = 1 WHERE id IN (SELECT id FROM batch); COMMIT", storage.CodeNotTransactional},
		"a second statement that fails":   {"UPDATE todos SET filled = 1 WHERE id IN (SELECT id FROM batch); SELECT json('no json') FROM batch", storage.CodeInvalidSQL},
		"a constraint":                    {"UPDATE todos SET tenant = NULL WHERE id IN (SELECT id FROM batch)", storage.CodeInvalidSQL},
		"a conflict that rolls back":      {"INSERT OR ROLLBACK INTO todos(id, tenant, title) SELECT id, 'a', 'x' FROM batch", storage.CodeInvalidSQL},
		"an error of its own":             {"UPDATE todos SET filled = json('no json') WHERE id IN (SELECT id FROM batch)", storage.CodeInvalidSQL},
	} {
		t.Run(name, func(t *testing.T) {
			checkpoint := counting("todos")
			checkpoint.Backfill = storage.Backfill{Statement: &storage.Statement{Table: "todos", Apply: "SELECT 'the apply'"}}
			b := newBackfill(t, []string{
				"CREATE TABLE todos(id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, title TEXT NOT NULL)",
				"INSERT INTO todos VALUES (1, 'a', 'x'), (2, 'a', 'x')",
			}, []storage.Table{todosTable(nullableColumn("filled", storage.TypeInteger))}, checkpoint)
			// Some of it would have been refused where it is declared, so it gets in by another way.
			b.program.exec("DROP TRIGGER syncbarrier_guard_definition_update")
			b.program.exec("UPDATE sync_backfill_definitions SET definition = replace(definition, ?1, ?2)", "SELECT 'the apply'", tt.apply)
			b.begin()
			lease := b.take(0, 1)[0]
			before := b.program.dump()
			for _, limit := range []int{lease.Limit, lease.Limit, 1} {
				lease.Limit = limit
				_, err := b.store.ScanBatch(testContext(t), b.claim, lease)
				wantCode(t, err, tt.code)
				wantText(t, err, `"fill"`)
				same(t, "times that the code is said", strings.Count(err.Error(), string(tt.code)), 1)
			}
			if b.program.dump() != before {
				t.Error("something of the failed batch is left")
			}
		})
	}
}

func TestSQLThatCannotRunIsRefusedWhereItIsDeclared(t *testing.T) {
	statement := func(apply, remove string) func(c *storage.Checkpoint) {
		return func(c *storage.Checkpoint) {
			c.Backfill = storage.Backfill{Statement: &storage.Statement{Table: "todos", Apply: apply, Remove: remove}}
		}
	}
	verify := func(query string) func(c *storage.Checkpoint) {
		return func(c *storage.Checkpoint) { c.Verify = []storage.Verify{{Name: "check", Query: query}} }
	}
	for name, tt := range map[string]struct {
		edit func(c *storage.Checkpoint)
		code storage.Code
		text string
	}{
		"an update of an unknown function": {func(c *storage.Checkpoint) { c.Backfill.Update.Set["filled"] = "nothing(title)" }, storage.CodeInvalidSQL, "backfill"},
		"an update that ends too early":    {func(c *storage.Checkpoint) { c.Backfill.Update.Set["filled"] = "1) WHERE (1" }, storage.CodeInvalidSQL, "backfill"},
		"an update that sets more":         {func(c *storage.Checkpoint) { c.Backfill.Update.Set["filled"] = "1), title = ('x'" }, storage.CodeInvalidSQL, "filled"},
		"a second statement that is wrong": {statement("SELECT 1; SELECT nothing", ""), storage.CodeInvalidSQL, "apply"},
		"an apply without its table":       {statement("INSERT INTO nowhere SELECT id FROM batch", ""), storage.CodeInvalidSQL, "backfill"},
		"an apply that commits":            {statement("COMMIT", ""), storage.CodeNotTransactional, "backfill"},
		"an apply with NUL":                {statement("SELECT 1 \x00 FROM batch", ""), storage.CodeInvalidSQL, "NUL"},
		"a remove that is no SQL":          {statement("SELECT 1 FROM batch", "REMOVE THEM"), storage.CodeInvalidSQL, "remove"},
		"a verify of an unknown column":    {verify("SELECT id FROM todos WHERE nothing = 1"), storage.CodeInvalidSQL, `"check"`},
		"a verify without the key":         {verify("SELECT title FROM todos"), storage.CodeInvalidSpec, `"check"`},
		"a verify that writes":             {verify("DELETE FROM todos RETURNING id"), storage.CodeInvalidSQL, `"check"`},
		"keys of an unknown column": {func(c *storage.Checkpoint) {
			c.Sources = append(c.Sources, storage.Source{Table: "notes", Changes: storage.CommitLog, Keys: "SELECT nothing FROM changed"})
		}, storage.CodeInvalidSQL, `"notes"`},
		"keys without the key": {func(c *storage.Checkpoint) {
			c.Sources = append(c.Sources, storage.Source{Table: "notes", Changes: storage.CommitLog, Keys: "SELECT 1, 2 FROM changed"})
		}, storage.CodeInvalidSpec, `"notes"`},
	} {
		t.Run(name, func(t *testing.T) {
			checkpoint := counting("todos")
			checkpoint.Version = 7
			tt.edit(&checkpoint)
			path := newFile(t)
			store, program := openStore(t, path), openProgram(t, path)
			apply(t, store, version6())
			before := program.dump()
			target := storage.Target{
				Version: 7, Tables: []storage.Table{todosTable(nullableColumn("filled", storage.TypeInteger)), notesTable()},
				Checkpoints: []storage.Checkpoint{checkpoint}, Owner: clinicOwner,
			}
			refuse(t, store, target, tt.code, `"fill"`, tt.text)
			if program.dump() != before {
				t.Error("the refused barrier left something behind")
			}
		})
	}
}

// What happens to a table that no log shows makes the pass unverifiable; a new column at its end does not.
func TestChangeOfATableThatNoLogShowsIsUnverifiable(t *testing.T) {
	for name, tt := range map[string]struct {
		change []string
		reason string // "": none
	}{
		"a table put in its place": {[]string{
			"CREATE TABLE other(id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, title TEXT NOT NULL, filled INTEGER)",
			"INSERT INTO other SELECT * FROM todos", "DROP TABLE todos", "ALTER TABLE other RENAME TO todos",
		}, `"todos"`},
		"a column that was renamed away":   {[]string{"ALTER TABLE todos RENAME COLUMN title TO heading"}, `"title"`},
		"another file with the same rows":  {[]string{"UPDATE sync_barrier_owner SET system_identifier = 'another'"}, "another database"},
		"a column at its end":              {[]string{"ALTER TABLE todos ADD COLUMN more TEXT"}, ""},
		"an index":                         {[]string{"CREATE INDEX more ON todos(title)"}, ""},
		"an update of the filled column":   {[]string{"UPDATE todos SET filled = 1"}, ""},
		"a table that is not part of this": {[]string{"CREATE TABLE more(x)", "DROP TABLE more"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := todosBackfill(t, 20)
			b.begin()
			b.scan()
			for _, statement := range tt.change {
				b.program.exec(statement)
			}
			batch, err := b.store.TailBatch(testContext(t), b.claim, storage.AllPartitions, 10)
			if err != nil {
				t.Fatal(err)
			}
			row, _ := b.claim.Row(storage.AllPartitions)
			owner := storage.Ownership{Partition: row.Partition, Name: "fill", OwnerEpoch: row.OwnerEpoch, Token: b.claim.Token}
			asked, err := b.store.ActivateCheckpoint(testContext(t), owner, 0)
			if err != nil {
				t.Fatal(err)
			}
			report := b.activate(storage.AllPartitions)
			same(t, "outcome for a program that asks", asked, report.Outcome)
			if tt.reason == "" {
				same(t, "reason of the tail", batch.Unverifiable, "")
				same(t, "outcome", report.Outcome, storage.OutcomeActivated)
				return
			}
			for _, reason := range []string{batch.Unverifiable, report.Reason} {
				wantText(t, storage.Refuse(storage.CodeUnverifiable, "%s", reason), tt.reason)
			}
			same(t, "outcome", report.Outcome, storage.OutcomeUnverifiable)
			again, err := b.store.ClaimAll(testContext(t), "fill", false)
			if err != nil {
				t.Fatal(err)
			}
			b.claim = again
			same(t, "outcome under a claim that goes on", b.activate(storage.AllPartitions).Outcome, storage.OutcomeUnverifiable)
		})
	}
}

// What the user's SQL leaves in the session does not reach the next transaction.
func TestTemporaryTablesOfABackfillGoWithItsConnection(t *testing.T) {
	checkpoint := counting("todos")
	checkpoint.Backfill = storage.Backfill{Statement: &storage.Statement{
		Table: "todos",
		Apply: `CREATE TEMPORARY TABLE sync_backfill_checkpoints AS SELECT id FROM batch;
			UPDATE todos SET filled = 1 WHERE id IN (SELECT id FROM temp.sync_backfill_checkpoints)`,
	}}
	b := newBackfill(t, []string{
		"CREATE TABLE todos(id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, title TEXT NOT NULL)",
		manyRows("todos", "id, tenant, title", "n, 'a', 'x'", 25),
	}, []storage.Table{todosTable(nullableColumn("filled", storage.TypeInteger))}, checkpoint)
	b.setBatch(10)
	b.begin()
	_, rows := b.finish(storage.AllPartitions)
	same(t, "rows", rows, 25)
	same(t, "filled", b.program.number("SELECT count(*) FROM todos WHERE filled = 1"), 25)
}

// A pause is a setting that workers see with their next batch, whichever that is.
func TestPausedCheckpointDoesNothing(t *testing.T) {
	b := todosBackfill(t, 20)
	b.begin()
	lease := b.take(0, 1)[0]
	b.write("a", "todos", []string{"2"}, "UPDATE todos SET title = 'changed' WHERE id = 2")
	settings := storage.Settings{Paused: true, BatchRows: 5}
	if err := b.store.WriteSettings(testContext(t), "fill", settings); err != nil {
		t.Fatal(err)
	}
	before := b.program.dump()
	for range 2 {
		scanned, err := b.store.ScanBatch(testContext(t), b.claim, lease)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "batch of the scan", scanned, storage.Batch{Settings: settings})
		tailed, err := b.store.TailBatch(testContext(t), b.claim, storage.AllPartitions, 10)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "batch of the tail", tailed, storage.Batch{Settings: settings})
	}
	if b.program.dump() != before {
		t.Error("a paused backfill changed something")
	}
	b.setBatch(5)
	b.finish(storage.AllPartitions)
	same(t, "rows not filled", b.program.number("SELECT count(*) FROM todos WHERE filled IS NULL"), 0)
}
