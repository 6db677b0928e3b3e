package storage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestTheStepsOfABarrierInTheirOrder(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Target, *Facts)
		steps  []string
	}{
		"nothing that differs is no step": {nil, nil},
		"a column of a Plain table": {
			func(t *Target, _ *Facts) { t.Tables[0] = todosAt(norm) }, []string{"add column todos.title_norm"}},
		"a column that is there already with a type of its family": {
			func(t *Target, f *Facts) {
				t.Tables[0] = todosAt(norm)
				f.Tables["todos"] = physicalTodos(PhysicalColumn{Name: "title_norm", Type: "character varying(20)", Fits: []ColumnType{TypeString}, NotNull: true})
			}, nil},
		"a NOT NULL column of an empty table": {
			func(t *Target, _ *Facts) { t.Tables[0] = todosAt(Column{Name: "must", Type: TypeInteger}) }, []string{"add column todos.must"}},
		"a new Plain table": {
			func(t *Target, _ *Facts) {
				t.Tables = append(t.Tables, Table{Name: "new", Layout: Plain, Columns: []Column{{Name: "id", Type: TypeInteger}}, PrimaryKey: []string{"id"}})
			}, []string{"create table new"}},
		"a new Syncular table": {
			func(t *Target, _ *Facts) {
				t.Tables = append(t.Tables, Table{Name: "new", Layout: Syncular, Columns: []Column{{Name: "x", Type: TypeJSON}}})
			}, []string{"create table new"}},
		"a column of a Syncular table rewrites its payloads": {
			func(t *Target, _ *Facts) {
				t.Tables[1] = notesAt(Column{Name: "more", Type: TypeString, Nullable: true})
			},
			[]string{"add column notes.more", "rewrite payload notes"}},
		"a column of a Syncular table that is not materialized is only in the payload": {
			func(t *Target, f *Facts) {
				t.Tables[1] = notesAt(Column{Name: "more", Type: TypeString, Nullable: true})
				t.Tables[1].Materialize = false
				bare := notesAt()
				bare.Materialize = false
				f.Tables["notes"] = PhysicalTable{Columns: PostgreSQL.SyncularColumns(bare), Key: []string{ColumnPartition, ColumnRowID}}
			}, []string{"rewrite payload notes"}},
		"a column of a Syncular table that another program added already": {
			func(t *Target, f *Facts) {
				t.Tables[1] = notesAt(Column{Name: "more", Type: TypeString, Nullable: true})
				f.Tables["notes"] = physicalNotes(PhysicalColumn{Name: "more", Type: "text"})
			}, []string{"rewrite payload notes"}},
		"a retired table": {
			func(t *Target, _ *Facts) { t.Tables, t.RetiredTables = t.Tables[:1], []string{"notes"} }, []string{"drop table notes"}},
		"a retired Syncular table that is gone already leaves rows behind": {
			func(t *Target, f *Facts) {
				t.Tables, t.RetiredTables = t.Tables[:1], []string{"notes"}
				delete(f.Tables, "notes")
			}, []string{"drop table notes"}},
		"a retired Plain table that is gone already": {
			func(t *Target, f *Facts) {
				t.Tables, t.RetiredTables = t.Tables[1:], []string{"todos"}
				delete(f.Tables, "todos")
			}, nil},
		"SQL of each version passed, in order of the versions": {
			func(t *Target, _ *Facts) {
				t.Version = 9
				t.Migrations = []Migration{{Version: 9, SQL: "nine"}, {Version: 7, SQL: "seven"}, {Version: 8, SQL: " \n"}, {Version: 10, SQL: "ten"}}
			}, []string{"run SQL seven", "run SQL nine"}},
		"all at once: drops, tables and columns, SQL, indexes": {
			func(t *Target, f *Facts) {
				t.Tables[0] = todosAt(norm)
				t.Tables[0].Indexes = []Index{{Name: "n", Columns: []string{"title_norm"}}}
				t.Tables = append(t.Tables, Table{Name: "new", Layout: Plain, Columns: []Column{{Name: "id", Type: TypeInteger}}, PrimaryKey: []string{"id"}})
				t.RetiredTables = []string{"old"}
				t.Migrations = []Migration{{Version: 7, SQL: "seven"}}
				todos := physicalTodos()
				todos.Indexes = []PhysicalIndex{{Name: "sync_ix_n", Columns: []string{"title"}, Plain: true, Valid: true}}
				f.Tables["todos"], f.Tables["old"] = todos, PhysicalTable{}
			}, []string{"drop table old", "drop index todos.sync_ix_n", "add column todos.title_norm", "create table new", "run SQL seven", "create index todos.sync_ix_n"}},
	} {
		t.Run(name, func(t *testing.T) {
			wantSteps(t, mustDecide(t, test.change), test.steps...)
		})
	}
}

func TestTheRewriteCountsColumnsByTheStoredLayout(t *testing.T) {
	decision := mustDecide(t, func(t *Target, _ *Facts) {
		t.Tables[1] = notesAt(Column{Name: "a", Type: TypeString, Nullable: true}, Column{Name: "b", Type: TypeString, Nullable: true})
	})
	last := decision.Steps[len(decision.Steps)-1]
	if last.Kind != StepRewritePayload || last.OldColumns != 2 || last.NewColumns != 4 {
		t.Errorf("%+v", last)
	}
}

func TestTablesOnlyEverGrowAtTheirEnd(t *testing.T) {
	for name, test := range map[string]decideCase{
		"a removed column": {func(t *Target, _ *Facts) {
			t.Tables[0].Columns = t.Tables[0].Columns[:2]
		}, CodeLayoutMismatch, []string{`"todos"`, `"title" was removed`}},
		"a renamed column": {func(t *Target, _ *Facts) {
			t.Tables[0].Columns[2].Name = "caption"
		}, CodeLayoutMismatch, []string{`renamed to "caption"`}},
		"columns in another order": {func(t *Target, _ *Facts) {
			c := t.Tables[0].Columns
			c[1], c[2] = c[2], c[1]
		}, CodeLayoutMismatch, []string{"order"}},
		"a column put before others": {func(t *Target, _ *Facts) {
			t.Tables[0].Columns = slices.Insert(t.Tables[0].Columns, 1, norm)
		}, CodeLayoutMismatch, []string{`"tenant"`}},
		"a column of another type": {func(t *Target, _ *Facts) {
			t.Tables[0].Columns[2].Type = TypeJSON
		}, CodeLayoutMismatch, []string{"from string to json"}},
		"a column of another type of the database": {func(t *Target, _ *Facts) {
			t.Tables[0].Columns[2] = Column{Name: "title", SQLType: "varchar(5)"}
		}, CodeLayoutMismatch, []string{"from string to varchar(5)"}},
		"a column that may be NULL by now": {func(t *Target, _ *Facts) {
			t.Tables[0].Columns[2].Nullable = true
		}, CodeLayoutMismatch, []string{"nullable from false to true"}},
		"a removed column of a Syncular table": {func(t *Target, _ *Facts) {
			t.Tables[1].Columns = t.Tables[1].Columns[:1]
		}, CodeLayoutMismatch, []string{`"notes"`, `"size"`}},
		"an appended Syncular column that may not be NULL": {func(t *Target, _ *Facts) {
			t.Tables[1] = notesAt(Column{Name: "must", Type: TypeString})
		}, CodeInvalidSpec, []string{`"must"`, "nullable"}},
		"a Syncular table that is Plain by now": {func(t *Target, _ *Facts) {
			t.Tables[1] = Table{Name: "notes", Layout: Plain, Columns: notesAt().Columns}
		}, CodeLayoutMismatch, []string{"is a Syncular table"}},
		"a Plain table that is Syncular by now": {func(t *Target, _ *Facts) {
			t.Tables[0] = Table{Name: "todos", Layout: Syncular, Columns: todosAt().Columns}
		}, CodeLayoutMismatch, []string{"is a Plain table"}},
		"a Syncular table that is left out": {func(t *Target, _ *Facts) {
			t.Tables = t.Tables[:1]
		}, CodeLayoutMismatch, []string{`"notes"`, "neither declared nor retired"}},
		"more columns at the same version": {func(t *Target, _ *Facts) {
			*t = targetAt(6)
			t.Tables[0] = todosAt(norm)
		}, CodeLayoutMismatch, []string{"1 columns more"}},
		"a Syncular table more at the same version": {func(t *Target, _ *Facts) {
			*t = targetAt(6)
			t.Tables = append(t.Tables, Table{Name: "more", Layout: Syncular, Columns: []Column{{Name: "x", Type: TypeString}}})
		}, CodeLayoutMismatch, []string{`"more"`}},
	} {
		t.Run(name, test.run)
	}
	t.Run("a Plain table that is left out is kept in mind", func(t *testing.T) {
		decision := mustDecide(t, func(t *Target, _ *Facts) { t.Tables = t.Tables[1:] })
		if len(decision.PlainLayouts["todos"]) != 3 {
			t.Errorf("layouts %v", decision.PlainLayouts)
		}
	})
	t.Run("and one that is retired is not", func(t *testing.T) {
		decision := mustDecide(t, func(t *Target, _ *Facts) { t.Tables, t.RetiredTables = t.Tables[1:], []string{"todos"} })
		if _, kept := decision.PlainLayouts["todos"]; kept {
			t.Errorf("layouts %v", decision.PlainLayouts)
		}
	})
}

func TestWhatIsInTheDatabaseIsNotAsDeclared(t *testing.T) {
	column := func(of PhysicalTable, name string, change func(*PhysicalColumn)) PhysicalTable {
		for i := range of.Columns {
			if of.Columns[i].Name == name {
				change(&of.Columns[i])
			}
		}
		return of
	}
	without := func(of PhysicalTable, name string) PhysicalTable {
		of.Columns = slices.DeleteFunc(of.Columns, func(c PhysicalColumn) bool { return c.Name == name })
		return of
	}
	for name, test := range map[string]decideCase{
		"a recorded column is gone": {func(_ *Target, f *Facts) {
			f.Tables["todos"] = without(physicalTodos(), "title")
		}, CodeLayoutMismatch, []string{`"title"`, "any more"}},
		"a recorded Plain table is gone": {func(_ *Target, f *Facts) {
			delete(f.Tables, "todos")
		}, CodeLayoutMismatch, []string{`"todos"`, "any more"}},
		"a stored Syncular table is gone": {func(_ *Target, f *Facts) {
			delete(f.Tables, "notes")
		}, CodeLayoutMismatch, []string{`"notes"`, "any more"}},
		"a stored Syncular column is gone": {func(_ *Target, f *Facts) {
			f.Tables["notes"] = without(physicalNotes(), "size")
		}, CodeLayoutMismatch, []string{`"size"`, "any more"}},
		"a column that we made has another type": {func(_ *Target, f *Facts) {
			f.Tables["todos"] = column(physicalTodos(), "title", func(c *PhysicalColumn) { c.Type = "character varying(10)" })
		}, CodeLayoutMismatch, []string{"character varying(10)", "text"}},
		"a column that we made may be NULL": {func(_ *Target, f *Facts) {
			f.Tables["todos"] = column(physicalTodos(), "title", func(c *PhysicalColumn) { c.NotNull = false })
		}, CodeLayoutMismatch, []string{"may be NULL"}},
		"a column that was there has a type of another family": {func(t *Target, f *Facts) {
			t.Tables[0] = todosAt(norm)
			f.Tables["todos"] = physicalTodos(PhysicalColumn{Name: "title_norm", Type: "bytea", Fits: []ColumnType{TypeBytes}})
		}, CodeLayoutMismatch, []string{"bytea", "no string"}},
		"a column with a type of the database has another": {func(t *Target, f *Facts) {
			t.Tables[0] = todosAt(Column{Name: "price", SQLType: "decimal(12,2)", Nullable: true})
			f.CanonicalTypes = map[string]string{"decimal(12,2)": "numeric(12,2)"}
			f.Tables["todos"] = physicalTodos(PhysicalColumn{Name: "price", Type: "numeric(10,2)"})
		}, CodeLayoutMismatch, []string{"numeric(10,2)", "numeric(12,2)"}},
		"a type that the database does not know": {func(t *Target, _ *Facts) {
			t.Tables[0] = todosAt(Column{Name: "price", SQLType: "monney", Nullable: true})
		}, CodeInvalidSpec, []string{"monney"}},
		"a NOT NULL column where there are rows": {func(t *Target, f *Facts) {
			t.Tables[0] = todosAt(Column{Name: "must", Type: TypeInteger})
			table := physicalTodos()
			table.HasRows = true
			f.Tables["todos"] = table
		}, CodeInvalidSpec, []string{`"must"`, "NOT NULL", "has rows"}},
		"a key column that does not exist": {func(t *Target, _ *Facts) {
			t.Tables[0] = todosAt(Column{Name: "more", Type: TypeInteger})
			t.Tables[0].PrimaryKey = []string{"more"}
		}, CodeLayoutMismatch, []string{"key column", `"more"`}},
		"a new Plain table without a key": {func(t *Target, _ *Facts) {
			t.Tables = append(t.Tables, Table{Name: "keyless", Layout: Plain, Columns: []Column{{Name: "x", Type: TypeInteger}}})
		}, CodeInvalidSpec, []string{`"keyless"`, "primaryKey"}},
		"a Syncular table that the stored layouts do not know": {func(t *Target, f *Facts) {
			t.Tables = append(t.Tables, Table{Name: "strange", Layout: Syncular, Columns: []Column{{Name: "x", Type: TypeString}}})
			f.Tables["strange"] = PhysicalTable{}
		}, CodeLayoutMismatch, []string{`"strange"`}},
		"a Syncular table in a database without a marker": {func(_ *Target, f *Facts) {
			f.Marker, f.History = nil, nil
		}, CodeLayoutMismatch, []string{`"notes"`}},
		"an appended Syncular column that is there with another type": {func(t *Target, f *Facts) {
			t.Tables[1] = notesAt(Column{Name: "more", Type: TypeString, Nullable: true})
			f.Tables["notes"] = physicalNotes(PhysicalColumn{Name: "more", Type: "bigint"})
		}, CodeLayoutMismatch, []string{`"more"`, "bigint"}},
		"a Syncular table that is to be materialized by now": {func(_ *Target, f *Facts) {
			f.Tables["notes"] = without(without(physicalNotes(), "body"), "size")
		}, CodeInvalidSpec, []string{"materialize"}},
	} {
		t.Run(name, test.run)
	}
}

func TestAnAgreedVersionIsComparedWithTheDatabase(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Facts)
		says   []string
	}{
		"a table is gone": {func(f *Facts) { delete(f.Tables, "todos") }, []string{`"todos"`}},
		"a column is gone": {func(f *Facts) {
			f.Tables["todos"] = PhysicalTable{Columns: physicalTodos().Columns[:2], Key: []string{"id"}}
		}, []string{`"title"`}},
		"a Syncular column may be NULL": {func(f *Facts) {
			table := physicalNotes()
			table.Columns[2].NotNull = false
			f.Tables["notes"] = table
		}, []string{`"body"`, "NOT NULL"}},
		"a Syncular column is NOT NULL": {func(f *Facts) {
			table := physicalNotes()
			table.Columns[3].NotNull = true
			f.Tables["notes"] = table
		}, []string{`"size"`, "NOT NULL"}},
		"the payload has another type": {func(f *Facts) {
			table := physicalNotes()
			table.Columns[len(table.Columns)-1].Type = "text"
			f.Tables["notes"] = table
		}, []string{ColumnPayload, "bytea"}},
		"a Syncular column is gone": {func(f *Facts) {
			table := physicalNotes()
			table.Columns = slices.Delete(table.Columns, 4, 5)
			f.Tables["notes"] = table
		}, []string{ColumnServerVersion}},
		"the key of a Syncular table is another": {func(f *Facts) {
			table := physicalNotes()
			table.Key = []string{ColumnRowID, ColumnPartition}
			f.Tables["notes"] = table
		}, []string{"primary key"}},
		"the key of a Plain table is another": {func(f *Facts) {
			table := physicalTodos()
			table.Key = []string{"title"}
			f.Tables["todos"] = table
		}, []string{"(title)", "(id)"}},
	} {
		t.Run(name, func(t *testing.T) {
			decideCase{change: func(target *Target, f *Facts) { *target = targetAt(6); test.change(f) }, code: CodeLayoutMismatch, says: test.says}.run(t)
		})
	}
	t.Run("as it should be it is agreed with", func(t *testing.T) {
		decision := mustDecide(t, func(t *Target, _ *Facts) { *t = targetAt(6) })
		if decision.Outcome != Agreed || len(decision.Passed) != 0 || decision.LockPartitions {
			t.Errorf("%+v", decision)
		}
	})
	t.Run("a column that is stricter than declared is fine", func(t *testing.T) {
		mustDecide(t, func(target *Target, f *Facts) {
			target.Version = 6
			target.Tables[0] = todosAt(norm)
			f.History[0].ContentHash = target.ContentHash(6)
			f.History[0].PlainLayouts["todos"] = createdLayout(todosAt(norm))
			f.Tables["todos"] = physicalTodos(PhysicalColumn{Name: "title_norm", Type: "text", NotNull: true})
		})
	})
}

func TestOnlyIndexesThatDifferAreDroppedAndMade(t *testing.T) {
	ours := PhysicalIndex{Name: "sync_ix_i", Columns: []string{"title"}, Plain: true, Valid: true}
	changed := func(change func(*PhysicalIndex)) PhysicalIndex {
		index := ours
		change(&index)
		return index
	}
	remade := []string{"drop index todos.sync_ix_i", "create index todos.sync_ix_i"}
	for name, test := range map[string]struct {
		have  []PhysicalIndex
		steps []string
	}{
		"none is there":           {nil, []string{"create index todos.sync_ix_i"}},
		"it is there":             {[]PhysicalIndex{ours}, nil},
		"it is there by its name": {[]PhysicalIndex{changed(func(i *PhysicalIndex) { i.Name = "i" })}, nil},
		"other columns":           {[]PhysicalIndex{changed(func(i *PhysicalIndex) { i.Columns = []string{"title", "id"} })}, remade},
		"unique":                  {[]PhysicalIndex{changed(func(i *PhysicalIndex) { i.Unique = true })}, remade},
		"partial":                 {[]PhysicalIndex{changed(func(i *PhysicalIndex) { i.Plain = false })}, remade},
		"invalid":                 {[]PhysicalIndex{changed(func(i *PhysicalIndex) { i.Valid = false })}, remade},
		"a constraint's is not ours": {
			[]PhysicalIndex{changed(func(i *PhysicalIndex) { i.Constraint, i.Columns = true, []string{"id"} })}, []string{"create index todos.sync_ix_i"}},
		"one of ours that is not declared any more": {
			[]PhysicalIndex{ours, {Name: "sync_ix_old", Columns: []string{"id"}, Plain: true, Valid: true}}, []string{"drop index todos.sync_ix_old"}},
		"others are nobody's of ours": {
			[]PhysicalIndex{ours, {Name: "mine", Columns: []string{"id"}}, {Name: "sync_ix_c", Columns: []string{"id"}, Constraint: true}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			wantSteps(t, mustDecide(t, func(t *Target, f *Facts) {
				t.Tables[0].Indexes = []Index{{Name: "i", Columns: []string{"title"}}}
				table := physicalTodos()
				table.Indexes = test.have
				f.Tables["todos"] = table
			}), test.steps...)
		})
	}
}

func TestIndexNamesFitTheDatabase(t *testing.T) {
	if got := IndexName("by_title"); got != "sync_ix_by_title" {
		t.Errorf("got %q", got)
	}
	fits := strings.Repeat("i", 55)
	if got := IndexName(fits); got != "sync_ix_"+fits {
		t.Errorf("55 bytes: %q", got)
	}
	one, two := IndexName(strings.Repeat("i", 56)+"1"), IndexName(strings.Repeat("i", 56)+"2")
	if len(one) != len("sync_ix_")+16 || one == two || !strings.HasPrefix(one, "sync_ix_") {
		t.Errorf("%q and %q", one, two)
	}
	// The hash is FNV-1a of 64 bits, as programs of the sync protocol name their indexes.
	if got := IndexName(strings.Repeat("a", 60)); got != "sync_ix_"+fmt.Sprintf("%016x", fnv1a(strings.Repeat("a", 60))) {
		t.Errorf("got %q", got)
	}
}

// fnv1a is written down here a second time, from its definition, so that a change of the library's use is noticed.
func fnv1a(text string) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(text) {
		hash ^= uint64(text[i])
		hash *= 1099511628211
	}
	return hash
}
