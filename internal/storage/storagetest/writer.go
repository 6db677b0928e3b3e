package storagetest

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runWriter(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"commits of a partition are numbered from 1 without a hole", writerNumbers},
		{"partitions count apart", writerPartitions},
		{"a commit carries its changes in order with the writer version", writerCommit},
		{"a rolled back commit gives its number back", writerRollback},
		{"rows of every type are read back as they were written, NULL too", writerTypes},
		{"a row is written over, deleted, and deleted again without an error", writerOver},
		{"reads see what the transaction staged and others do not", writerStaged},
		{"a rejected push goes back to the savepoint and keeps what came before", writerSavepoint},
		{"an error after the savepoint is undone with it", writerSavepointError},
		{"an error leaves a transaction that can only be rolled back", writerFailed},
		{"an ended transaction takes nothing more", writerEnded},
		{"what cannot be stored is refused before anything is written", writerInvalid},
		{"a checkpoint advances with the commit or not at all", writerAdvance},
		{"the gate is read in the transaction, with the partition's log epoch", writerGate},
		{"a registered query in a transaction sees staged rows and writes nothing", writerQuery},
	})
}

func (f *fixture) begin(partition string, version int64) storage.Tx {
	f.Helper()
	tx, err := f.store.Begin(f.ctx, partition, version)
	f.must(err, "begin")
	f.Cleanup(func() { _ = tx.Rollback(f.ctx) })
	return tx
}

func writerNumbers(f *fixture) {
	f.apply(version1())
	for want := int64(1); want <= 5; want++ {
		same(f, "number", f.write("a", 1, want, "title"), want)
	}
	last, err := f.store.MaxCommitSeq(f.ctx, "a")
	f.must(err, "read the position")
	same(f, "position", last, 5)
	same(f, "commits", f.number("SELECT count(*) FROM sync_commits WHERE partition = 'a'"), 5)
}

func writerPartitions(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "x")
	f.write("a", 1, 2, "x")
	same(f, "first number of another partition", f.write("b", 1, 3, "x"), 1)
	last, err := f.store.MaxCommitSeq(f.ctx, "never seen")
	f.must(err, "read the position")
	same(f, "position of a partition without a log", last, 0)
}

func writerCommit(f *fixture) {
	f.apply(version1())
	tx := f.begin("a", 1)
	rowVersion := int64(7)
	_, err := tx.AppendCommit(f.ctx, storage.Commit{
		ClientID: "c1", ClientCommitID: "k1", ActorID: "me",
		Changes: []storage.Change{
			{Table: "notes", RowID: "n2", Op: storage.OpUpsert, RowVersion: &rowVersion, Scopes: `{"team":["x"]}`, Payload: []byte{0, 1, 255}},
			{Table: "todos", RowID: `o'"; --`, Op: storage.OpDelete},
		},
	})
	f.must(err, "append a commit")
	f.must(tx.Commit(f.ctx), "commit")

	rows, err := f.program.Query(f.ctx, `SELECT client_id, client_commit_id, actor_id, writer_version FROM sync_commits WHERE partition = 'a' AND commit_seq = 1`)
	f.must(err, "read the commit")
	if want := [][]any{{"c1", "k1", "me", int64(1)}}; !reflect.DeepEqual(rows, want) {
		f.Errorf("the commit is %v, want %v", rows, want)
	}
	same(f, "first operation", f.number(`SELECT op FROM sync_changes WHERE partition = 'a' AND commit_seq = 1 AND idx = 0 AND tbl = 'notes'`), 1)
	same(f, "second operation", f.number(`SELECT op FROM sync_changes WHERE partition = 'a' AND commit_seq = 1 AND idx = 1 AND tbl = 'todos'`), 2)
	same(f, "row id", f.text(`SELECT row_id FROM sync_changes WHERE partition = 'a' AND commit_seq = 1 AND idx = 1`), `o'"; --`)
	same(f, "row version", f.number(`SELECT row_version FROM sync_changes WHERE partition = 'a' AND idx = 0`), 7)
	same(f, "changes without a row version", f.number(`SELECT count(*) FROM sync_changes WHERE idx = 1 AND row_version IS NULL AND payload IS NULL`), 1)
	rows, err = f.program.Query(f.ctx, `SELECT payload FROM sync_changes WHERE idx = 0`)
	f.must(err, "read the payload")
	if content, ok := rows[0][0].([]byte); !ok || !bytes.Equal(content, []byte{0, 1, 255}) {
		f.Errorf("the payload is %v", rows[0][0])
	}
}

func writerRollback(f *fixture) {
	f.apply(version1())
	tx := f.begin("a", 1)
	seq, err := tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.must(err, "append a commit")
	same(f, "number", seq, 1)
	f.must(tx.Rollback(f.ctx), "roll back")
	same(f, "the next number", f.write("a", 1, 1, "x"), 1)
}

// everyType is a Syncular table with a column of each type, each twice.
func everyType() storage.Table {
	table := storage.Table{Name: "samples", Layout: storage.Syncular, Materialize: true}
	for _, t := range []storage.ColumnType{
		storage.TypeString, storage.TypeInteger, storage.TypeFloat, storage.TypeBoolean,
		storage.TypeJSON, storage.TypeBytes, storage.TypeBlobRef, storage.TypeCRDT,
	} {
		table.Columns = append(table.Columns, storage.Column{Name: string(t), Type: t}, nullable(string(t)+" or not", t))
	}
	return table
}

func writerTypes(f *fixture) {
	table := everyType()
	f.apply(storage.Target{Version: 1, Tables: []storage.Table{table}, Owner: owner})
	values := map[string]any{
		"string": "o'\"\n;--é", "integer": int64(-1 << 63), "float": -1.5e-300, "boolean": true,
		"json": `{"a": [1, null, "x"]}`, "bytes": []byte{0, 255, 92}, "blob_ref": "sha256:x", "crdt": []byte{},
	}
	for _, full := range []bool{false, true} {
		if full {
			for _, column := range table.Columns {
				if column.Nullable {
					values[column.Name] = values[strings.TrimSuffix(column.Name, " or not")]
				}
			}
		}
		tx := f.begin("a", 1)
		written := storage.Row{RowID: "r", Version: 1<<62 + 1, Scopes: `{"x": 1}`, Payload: []byte{1, 0}, Values: values}
		f.must(tx.UpsertRow(f.ctx, table, written), "write a row")
		f.must(tx.Commit(f.ctx), "commit")
		row := f.note("a", "r", table)
		same(f, "version", row.Version, written.Version)
		wantJSON(f, "scopes", row.Scopes, written.Scopes)
		if !bytes.Equal(row.Payload, written.Payload) {
			f.Errorf("the payload is %x", row.Payload)
		}
		for _, column := range table.Columns {
			got, want := row.Values[column.Name], values[column.Name]
			if column.Type == storage.TypeJSON && want != nil {
				text, _ := got.(string)
				wantJSON(f, column.Name, text, want.(string))
			} else if !reflect.DeepEqual(got, want) {
				f.Errorf("column %q is read as %#v, want %#v", column.Name, got, want)
			}
		}
	}
}

func wantJSON(f *fixture, what, got, want string) {
	f.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(got), &a); err != nil {
		f.Errorf("%s: %q is no JSON", what, got)
		return
	}
	f.must(json.Unmarshal([]byte(want), &b), "read the wanted JSON")
	if !reflect.DeepEqual(a, b) {
		f.Errorf("%s: got %s, want %s", what, got, want)
	}
}

func writerOver(f *fixture) {
	f.apply(version1())
	f.putNote(1, "a", "1", "first", payload(1), notes())
	f.putNote(1, "a", "1", "second", payload(1), notes())
	f.putNote(1, "b", "1", "of another partition", payload(1), notes())
	same(f, "title", f.note("a", "1", notes()).Values["title"], any("second"))
	tx := f.begin("a", 1)
	f.must(tx.DeleteRow(f.ctx, notes(), "1"), "delete")
	f.must(tx.DeleteRow(f.ctx, notes(), "1"), "delete again")
	_, ok, err := tx.GetRow(f.ctx, notes(), "1")
	f.must(err, "read")
	same(f, "found after the delete", ok, false)
	f.must(tx.Commit(f.ctx), "commit")
	same(f, "rows left", f.number("SELECT count(*) FROM notes"), 1)
}

func writerStaged(f *fixture) {
	f.apply(version1())
	tx := f.begin("a", 1)
	f.must(tx.LockPartition(f.ctx), "lock the partition")
	f.must(tx.UpsertRow(f.ctx, notes(), storage.Row{RowID: "1", Payload: payload(1), Values: map[string]any{"title": "staged"}}), "write")
	row, ok, err := tx.GetRow(f.ctx, notes(), "1")
	f.must(err, "read")
	if !ok || row.Values["title"] != "staged" {
		f.Errorf("the transaction reads %v, %t", row, ok)
	}
	same(f, "rows that others see", f.number("SELECT count(*) FROM notes"), 0)
	f.must(tx.Commit(f.ctx), "commit")
	same(f, "rows that others see after the commit", f.number("SELECT count(*) FROM notes"), 1)
}

func writerSavepoint(f *fixture) {
	f.apply(version1())
	tx := f.begin("a", 1)
	f.must(tx.LockPartition(f.ctx), "lock the partition")
	_, err := tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES (1, 'a', 'before')")
	f.must(err, "write before the savepoint")
	f.must(tx.Savepoint(f.ctx), "savepoint")
	for range 2 {
		_, err = tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES (2, 'a', 'rejected')")
		f.must(err, "write after the savepoint")
		_, err = tx.AppendCommit(f.ctx, commitOf("todos", "2", storage.OpUpsert))
		f.must(err, "append a commit")
		f.must(tx.RollbackToSavepoint(f.ctx), "roll back to the savepoint")
	}
	_, err = tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES (3, 'a', 'between')")
	f.must(err, "write after the rejection")
	f.must(tx.Savepoint(f.ctx), "move the savepoint")
	_, err = tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES (4, 'a', 'rejected')")
	f.must(err, "write after the second savepoint")
	f.must(tx.RollbackToSavepoint(f.ctx), "roll back to the moved savepoint")
	f.must(tx.Commit(f.ctx), "commit")
	same(f, "sum of the ids kept", f.number("SELECT CAST(sum(id) AS bigint) FROM todos"), 4)
	same(f, "commits", f.number("SELECT count(*) FROM sync_commits"), 0)
	same(f, "the next number", f.write("a", 1, 9, "x"), 1)
}

func writerSavepointError(f *fixture) {
	f.apply(version1())
	tx := f.begin("a", 1)
	f.wantCode(tx.RollbackToSavepoint(f.ctx), storage.CodeInvalidSpec)
	_, err := tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES (1, 'a', 'kept')")
	f.must(err, "write")
	f.must(tx.Savepoint(f.ctx), "savepoint")
	_, err = tx.Exec(f.ctx, "INSERT INTO no_such_table VALUES (1)")
	f.wantCode(err, storage.CodeInvalidSQL)
	_, err = tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.wantCode(err, storage.CodeInvalidSQL)
	f.must(tx.RollbackToSavepoint(f.ctx), "roll back to the savepoint")
	_, err = tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.must(err, "append a commit after the savepoint was gone back to")
	f.must(tx.Commit(f.ctx), "commit")
	same(f, "rows", f.number("SELECT count(*) FROM todos"), 1)
}

func writerFailed(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	tx := f.begin("a", 1)
	_, err := tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES (1, 'a', 'old')")
	f.must(err, "write")
	_, err = tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.wantCode(err, storage.CodeWriterFenceRejected)
	_, err = tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES (2, 'a', 'old')")
	f.wantCode(err, storage.CodeWriterFenceRejected)
	f.wantCode(tx.Commit(f.ctx), storage.CodeWriterFenceRejected)
	same(f, "rows", f.number("SELECT count(*) FROM todos"), 0)
	f.must(tx.Rollback(f.ctx), "roll back what has ended")
}

func writerEnded(f *fixture) {
	f.apply(version1())
	for name, end := range map[string]func(storage.Tx) error{
		"commit":   func(tx storage.Tx) error { return tx.Commit(f.ctx) },
		"rollback": func(tx storage.Tx) error { return tx.Rollback(f.ctx) },
	} {
		tx := f.begin("a", 1)
		f.must(end(tx), name)
		_, appended := tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
		_, executed := tx.Exec(f.ctx, "DELETE FROM todos")
		_, _, read := tx.GetRow(f.ctx, notes(), "1")
		_, gated := tx.ReadServeGate(f.ctx, 1)
		_, advanced := tx.AdvanceCheckpoint(f.ctx, storage.Advance{})
		for _, err := range []error{
			appended, executed, read, gated, advanced, tx.LockPartition(f.ctx), tx.Savepoint(f.ctx), tx.RollbackToSavepoint(f.ctx),
			tx.Commit(f.ctx), tx.DeleteRow(f.ctx, notes(), "1"),
			tx.UpsertRow(f.ctx, notes(), storage.Row{RowID: "1", Values: map[string]any{"title": "x"}}),
		} {
			f.wantCode(err, storage.CodeInvalidSpec)
		}
		f.must(tx.Rollback(f.ctx), "roll back an ended transaction")
	}
}

func writerInvalid(f *fixture) {
	f.apply(version1())
	for _, partition := range []string{"", "*", "capture:x", strings.Repeat("k", 10_000), "a\x00b", "\xff"} {
		_, err := f.store.Begin(f.ctx, partition, 1)
		if code := storage.CodeOf(err); code != storage.CodeInvalidSpec {
			f.Errorf("partition %.20q: got code %q, want %q", partition, code, storage.CodeInvalidSpec)
		}
	}
	_, err := f.store.Begin(f.ctx, "a", -1)
	f.wantCode(err, storage.CodeInvalidSpec)

	tx := f.begin("a", 1)
	for _, change := range []storage.Change{
		{Table: "", RowID: "1", Op: storage.OpUpsert},
		{Table: "todos", RowID: "1", Op: storage.OpRange},
		{Table: "todos", RowID: "1", Op: 0},
		{Table: "todos", RowID: "1", Op: storage.OpUpsert, Scopes: "{"},
		{Table: "todos", RowID: "1\x00", Op: storage.OpUpsert},
	} {
		_, err := tx.AppendCommit(f.ctx, storage.Commit{Changes: []storage.Change{change}})
		f.wantCode(err, storage.CodeInvalidSpec)
	}
	for _, row := range []storage.Row{
		{RowID: "", Values: map[string]any{"title": "x"}},
		{RowID: "1", Values: map[string]any{"title": "x", "no such": 1}},
		{RowID: "1", Values: map[string]any{"title": nil}},
		{RowID: "1"},
		{RowID: "1", Values: map[string]any{"title": 5}},
		{RowID: "1", Values: map[string]any{"title": "x"}, Scopes: "no json"},
	} {
		f.wantCode(tx.UpsertRow(f.ctx, notes(), row), storage.CodeInvalidSpec)
	}
	f.wantCode(tx.UpsertRow(f.ctx, todos(), storage.Row{RowID: "1"}), storage.CodeInvalidSpec)
	_, _, err = tx.GetRow(f.ctx, todos(), "1")
	f.wantCode(err, storage.CodeInvalidSpec)
	f.wantCode(tx.DeleteRow(f.ctx, todos(), "1"), storage.CodeInvalidSpec)
	_, err = tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.must(err, "append a commit after refusals, which wrote nothing")
	f.must(tx.Commit(f.ctx), "commit")
}

func writerAdvance(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	claim, err := f.store.ClaimCheckpoint(f.ctx, "a", "letters")
	f.must(err, "claim")
	advance := storage.Advance{Ownership: ownership(claim, "a"), Watermark: 1, ObservedRows: 5}
	for _, commit := range []bool{false, true} {
		tx := f.begin("a", 2)
		_, err := tx.AppendCommit(f.ctx, commitOf("other", "1", storage.OpUpsert))
		f.must(err, "append a commit")
		moved, err := tx.AdvanceCheckpoint(f.ctx, advance)
		f.must(err, "advance")
		same(f, "moved", moved, true)
		if commit {
			f.must(tx.Commit(f.ctx), "commit")
		} else {
			f.must(tx.Rollback(f.ctx), "roll back")
		}
		want := int64(0)
		if commit {
			want = 1
		}
		same(f, "watermark", f.checkpoint("a", "letters").Watermark, want)
	}
	stale := advance
	stale.Token = "another"
	tx := f.begin("a", 2)
	moved, err := tx.AdvanceCheckpoint(f.ctx, stale)
	f.must(err, "advance with another token")
	same(f, "moved with another token", moved, false)
	f.must(tx.Commit(f.ctx), "commit, since not being the owner is no error")
}

func writerGate(f *fixture) {
	f.apply(version1())
	f.must(f.store.RotateLogEpoch(f.ctx, "a"), "give the partition an epoch")
	tx := f.begin("a", 1)
	gate, err := tx.ReadServeGate(f.ctx, 1)
	f.must(err, "read the gate")
	if verdict := gate.Verdict(); !verdict.Open || !verdict.Writable {
		f.Errorf("the gate of version 1 is %+v", verdict)
	}
	same(f, "log epoch", gate.LogEpoch, f.text("SELECT log_epoch FROM sync_partition_registry WHERE partition = 'a'"))
	gate, err = tx.ReadServeGate(f.ctx, 2)
	f.must(err, "read the gate of version 2")
	same(f, "reason", gate.Verdict().Reason, storage.GateMigrationPending)
	f.must(tx.Commit(f.ctx), "commit")
}

func writerQuery(f *fixture) {
	f.apply(version1())
	store := f.db.OpenStore(f.T,
		storage.RegisteredQuery{Name: "titles", SQL: "SELECT title FROM todos WHERE tenant = $1 ORDER BY id"},
		storage.RegisteredQuery{Name: "broken", SQL: "SELECT nothing FROM todos WHERE tenant = $1"},
		storage.RegisteredQuery{Name: "writes", SQL: "DELETE FROM todos WHERE tenant = $1 RETURNING id"},
	)
	tx, err := store.Begin(f.ctx, "a", 1)
	f.must(err, "begin")
	defer func() { f.must(tx.Rollback(f.ctx), "roll back") }()
	f.must(tx.LockPartition(f.ctx), "lock the partition")
	_, err = tx.Exec(f.ctx, "INSERT INTO todos (id, tenant, title) VALUES ($1, $2, $3)", int64(1), "a", "staged")
	f.must(err, "write")
	seq, err := tx.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.must(err, "append a commit")
	for _, name := range []string{"broken", "writes"} {
		_, err = tx.Query(f.ctx, name)
		f.wantCode(err, storage.CodeInvalidSQL)
		f.wantMessage(err, name)
	}
	_, err = tx.Query(f.ctx, "unknown")
	f.wantCode(err, storage.CodeInvalidSpec)
	result, err := tx.Query(f.ctx, "titles")
	f.must(err, "query")
	same(f, "position", result.MaxCommitSeq, seq)
	if want := [][]any{{"staged"}}; !reflect.DeepEqual(result.Rows, want) {
		f.Errorf("the rows are %v, want %v", result.Rows, want)
	}
	f.must(tx.Commit(f.ctx), "commit after queries that failed")
}
