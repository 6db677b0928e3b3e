package storagetest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runLayouts(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"a Syncular table grows by NULL columns in every payload", layoutsGrow},
		{"a Syncular table without typed columns grows as well", layoutsGrowUntyped},
		{"columns of a Syncular table are not taken away or turned", layoutsAppendOnly},
		{"a Syncular table goes only when it is retired", layoutsRetire},
		{"a Plain table that is no longer listed stays", layoutsUnlisted},
		{"a column that somebody changed is a mismatch", layoutsPhysical},
		{"indexes are touched only where they differ", layoutsIndexes},
	})
}

// payload is one of a Syncular row: so many columns of which the first is a value and the others are NULL.
func payload(columns int) []byte {
	bitmap := make([]byte, storage.PayloadBitmapBytes(columns))
	for i := 1; i < columns; i++ {
		bitmap[i/8] |= 1 << (i % 8)
	}
	return append(bitmap, "value"...)
}

func (f *fixture) putNote(version int64, partition, id, title string, content []byte, table storage.Table) {
	f.Helper()
	tx, err := f.store.Begin(f.ctx, partition, version)
	f.must(err, "begin")
	defer func() { f.must(tx.Rollback(f.ctx), "roll back") }()
	f.must(tx.LockPartition(f.ctx), "lock the partition")
	row := storage.Row{RowID: id, Version: 1, Payload: content}
	if table.Materialize {
		row.Values = map[string]any{"title": title}
	}
	f.must(tx.UpsertRow(f.ctx, table, row), "write a note")
	_, err = tx.AppendCommit(f.ctx, commitOf(table.Name, id, storage.OpUpsert))
	f.must(err, "append a commit")
	f.must(tx.Commit(f.ctx), "commit")
}

func (f *fixture) note(partition, id string, table storage.Table) storage.Row {
	f.Helper()
	tx, err := f.store.Begin(f.ctx, partition, 99)
	f.must(err, "begin")
	defer func() { f.must(tx.Rollback(f.ctx), "roll back") }()
	row, ok, err := tx.GetRow(f.ctx, table, id)
	f.must(err, "read a note")
	if !ok {
		f.Fatalf("there is no note %q in partition %q", id, partition)
	}
	return row
}

func layoutsGrow(f *fixture) {
	f.apply(version1())
	for i := range 20 {
		f.putNote(1, "a", fmt.Sprint(i), "title", payload(1), notes())
	}
	grown := notes()
	for i := range 9 {
		grown.Columns = append(grown.Columns, nullable(fmt.Sprintf("extra%d", i), storage.TypeInteger))
		target := storage.Target{Version: int64(i + 2), Tables: []storage.Table{todos(), grown}, Owner: owner}
		f.apply(target)
		row := f.note("a", "7", grown)
		if want := payload(len(grown.Columns)); !bytes.Equal(row.Payload, want) {
			f.Fatalf("with %d columns the payload is %x, want %x", len(grown.Columns), row.Payload, want)
		}
		same(f, "title", row.Values["title"], any("title"))
		if value, present := row.Values[fmt.Sprintf("extra%d", i)]; !present || value != nil {
			f.Errorf("the new column is %v, want NULL", value)
		}
	}
	same(f, "minimum reader after a rewrite", f.number("SELECT max(min_reader_version) FROM sync_barrier_history"), 10)
}

func layoutsGrowUntyped(f *fixture) {
	packed := notes()
	packed.Materialize = false
	f.apply(storage.Target{Version: 1, Tables: []storage.Table{packed}, Owner: owner})
	f.putNote(1, "a", "1", "", payload(1), packed)
	packed.Columns = append(packed.Columns, nullable("more", storage.TypeJSON))
	f.apply(storage.Target{Version: 2, Tables: []storage.Table{packed}, Owner: owner})
	row := f.note("a", "1", packed)
	if want := payload(2); !bytes.Equal(row.Payload, want) {
		f.Errorf("the payload is %x, want %x", row.Payload, want)
	}
	same(f, "typed columns", len(row.Values), 0)
}

func layoutsAppendOnly(f *fixture) {
	f.apply(storage.Target{Version: 1, Tables: []storage.Table{notes(nullable("body", storage.TypeString))}, Owner: owner})
	retyped := notes(nullable("body", storage.TypeInteger))
	turned := notes(nullable("first", storage.TypeString), nullable("body", storage.TypeString))
	for name, table := range map[string]storage.Table{"removed": notes(), "retyped": retyped, "turned": turned} {
		_, err := f.store.EnsureSchema(f.ctx, storage.Target{Version: 2, Tables: []storage.Table{table}, Owner: owner}, storage.Attempt{Number: 1})
		if code := storage.CodeOf(err); code != storage.CodeLayoutMismatch {
			f.Errorf("%s: got code %q (%v), want %q", name, code, err, storage.CodeLayoutMismatch)
		}
	}
	required := notes(nullable("body", storage.TypeString), storage.Column{Name: "must", Type: storage.TypeString})
	_ = f.refuse(storage.Target{Version: 2, Tables: []storage.Table{required}, Owner: owner}, storage.CodeInvalidSpec)
}

func layoutsRetire(f *fixture) {
	f.apply(version1())
	without := storage.Target{Version: 2, Tables: []storage.Table{todos()}, Owner: owner}
	err := f.refuse(without, storage.CodeLayoutMismatch)
	f.wantMessage(err, "notes")
	without.RetiredTables = []string{"notes"}
	f.apply(without)
	if _, err := f.program.Query(f.ctx, "SELECT 1 FROM notes"); err == nil {
		f.Error("the retired table is still there")
	}
}

func layoutsUnlisted(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "kept")
	f.apply(storage.Target{Version: 2, Tables: []storage.Table{notes()}, Owner: owner})
	same(f, "rows of the table that is not listed", f.number("SELECT count(*) FROM todos"), 1)
}

func layoutsPhysical(f *fixture) {
	f.apply(version1())
	f.exec("ALTER TABLE todos RENAME COLUMN title TO heading")
	err := f.refuse(version1(), storage.CodeLayoutMismatch)
	f.wantMessage(err, "todos", "title")
}

func layoutsIndexes(f *fixture) {
	indexed := func(version int64, indexes ...storage.Index) storage.Target {
		table := todos()
		table.Indexes = indexes
		return storage.Target{Version: version, Tables: []storage.Table{table}, Owner: owner}
	}
	byTitle := storage.Index{Name: "by_title", Columns: []string{"title"}}
	byTenant := storage.Index{Name: "by_tenant", Columns: []string{"tenant", "title"}}
	f.apply(indexed(1, byTitle))
	plan, err := f.store.Plan(f.ctx, indexed(2, byTitle, byTenant))
	f.must(err, "plan")
	var touched []string
	for _, step := range plan.Decision.Steps {
		touched = append(touched, fmt.Sprintf("%s %s", step.Kind, step.Index.Name))
	}
	if len(touched) != 1 || touched[0] != "create index sync_ix_by_tenant" {
		f.Errorf("the steps are %v, want the new index only", touched)
	}
	f.apply(indexed(2, byTitle, byTenant))
	f.apply(indexed(3, byTenant))
	same(f, "outcome", f.apply(indexed(3, byTenant)).Outcome, storage.Agreed)
}
