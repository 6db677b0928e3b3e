package storage

import (
	"slices"
	"strings"
	"testing"
)

// The database of the tests below is at version 6, which we brought it to: a Plain table todos, a Syncular table notes.

func todosAt(columns ...Column) Table {
	return Table{
		Name: "todos", Layout: Plain, PrimaryKey: []string{"id"}, Partition: Partition{Column: "tenant"},
		Columns: append([]Column{{Name: "id", Type: TypeInteger}, {Name: "tenant", Type: TypeString}, {Name: "title", Type: TypeString}}, columns...),
	}
}

func notesAt(columns ...Column) Table {
	return Table{
		Name: "notes", Layout: Syncular, Materialize: true,
		Columns: append([]Column{{Name: "body", Type: TypeString}, {Name: "size", Type: TypeInteger, Nullable: true}}, columns...),
	}
}

var norm = Column{Name: "title_norm", Type: TypeString, Nullable: true}

// fillNorm is a checkpoint over todos.
func fillNorm(name string, version int64, partitions ...string) Checkpoint {
	return Checkpoint{
		Name: name, Version: version, Partitions: partitions,
		Sources:  []Source{{Table: "todos", Changes: CommitLog, Columns: []string{"title"}}},
		Backfill: Backfill{Update: &Update{Table: "todos", Set: map[string]string{"title_norm": "lower(title)"}}},
	}
}

func targetAt(version int64) Target {
	return Target{Version: version, Tables: []Table{todosAt(), notesAt()}, Owner: Owner{Namespace: "default", Name: "clinic"}}
}

func physicalTodos(more ...PhysicalColumn) PhysicalTable {
	return PhysicalTable{
		Columns: append([]PhysicalColumn{
			{Name: "id", Type: "bigint", Fits: []ColumnType{TypeInteger}, NotNull: true},
			{Name: "tenant", Type: "text", Fits: []ColumnType{TypeString}, NotNull: true},
			{Name: "title", Type: "text", Fits: []ColumnType{TypeString}, NotNull: true},
		}, more...),
		Key: []string{"id"},
	}
}

func physicalNotes(more ...PhysicalColumn) PhysicalTable {
	columns := PostgreSQL.SyncularColumns(notesAt())
	return PhysicalTable{Columns: append(columns, more...), Key: []string{ColumnPartition, ColumnRowID}}
}

func factsAt6() Facts {
	applied := targetAt(6)
	return Facts{
		Dialect: PostgreSQL, Protocol: CatalogProtocol,
		Marker: &Marker{Version: 6, Layouts: map[string][]LayoutColumn{"notes": layoutOf(notesAt())}},
		History: []HistoryRow{{
			Version: 6, ContentHash: applied.ContentHash(6), State: HistoryApplied,
			PlainLayouts: map[string][]LayoutColumn{"todos": createdLayout(todosAt())},
		}},
		Owner:  &Owner{Namespace: "default", Name: "clinic"},
		Known:  map[string]KnownCheckpoint{},
		Tables: map[string]PhysicalTable{"todos": physicalTodos(), "notes": physicalNotes()},
	}
}

// createdLayout is the layout of a table whose columns we made.
func createdLayout(t Table) []LayoutColumn {
	columns := layoutOf(t)
	for i := range columns {
		columns[i].Created = true
	}
	return columns
}

// decideCase changes the target of version 7 and the facts of version 6.
type decideCase struct {
	change func(*Target, *Facts)
	code   Code
	says   []string
}

func (c decideCase) run(t *testing.T) {
	t.Helper()
	target, facts := targetAt(7), factsAt6()
	c.change(&target, &facts)
	decision, err := Decide(target, facts)
	if CodeOf(err) != c.code {
		t.Fatalf("got %v and outcome %q, want %s", err, decision.Outcome, c.code)
	}
	for _, word := range c.says {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func mustDecide(t *testing.T, change func(*Target, *Facts)) Decision {
	t.Helper()
	target, facts := targetAt(7), factsAt6()
	if change != nil {
		change(&target, &facts)
	}
	decision, err := Decide(target, facts)
	if err != nil {
		t.Fatal(err)
	}
	return decision
}

// stepNames writes steps for comparison.
func stepNames(decision Decision) []string {
	names := []string{}
	for _, s := range decision.Steps {
		name := string(s.Kind) + " " + s.Table
		switch s.Kind {
		case StepAddColumn:
			name += "." + s.Column.Name
		case StepDropIndex, StepCreateIndex:
			name += "." + s.Index.Name
		case StepRunSQL:
			name = string(s.Kind) + " " + s.SQL
		}
		names = append(names, name)
	}
	return names
}

func wantSteps(t *testing.T, decision Decision, want ...string) {
	t.Helper()
	if got := stepNames(decision); !slices.Equal(got, append([]string{}, want...)) {
		t.Errorf("steps %q, want %q", got, want)
	}
}

func pointer(n int64) *int64 { return &n }
