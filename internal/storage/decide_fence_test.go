package storage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestWhatTheFenceIsRaisedTo(t *testing.T) {
	for name, test := range map[string]struct {
		change    func(*Target, *Facts)
		raise     map[string]int64
		minWriter int64
	}{
		"an additive version shuts nobody out": {func(*Target, *Facts) {}, map[string]int64{}, 0},
		"and leaves a fence where it is":       {func(_ *Target, f *Facts) { f.Fence = 5 }, map[string]int64{}, 5},
		"a checkpoint of all partitions": {
			func(t *Target, _ *Facts) { t.Checkpoints = []Checkpoint{fillNorm("n", 7)} }, map[string]int64{"*": 7}, 7},
		"a jump: the highest version of the checkpoints": {
			func(t *Target, _ *Facts) {
				t.Version = 9
				other := fillNorm("o", 8)
				other.Backfill = Backfill{Job: true}
				t.Checkpoints = []Checkpoint{other, fillNorm("n", 7)}
			}, map[string]int64{"*": 8}, 8},
		"listed partitions raise their own": {
			func(t *Target, f *Facts) { t.Checkpoints = []Checkpoint{fillNorm("n", 7, "a", "b")}; f.Fence = 3 }, map[string]int64{"a": 7, "b": 7}, 3},
		"listed partitions below the fence for all say nothing": {
			func(t *Target, f *Facts) {
				t.Version, f.Fence = 8, 0
				other := fillNorm("o", 8)
				other.Backfill = Backfill{Job: true}
				t.Checkpoints = []Checkpoint{fillNorm("n", 7, "a"), other}
			}, map[string]int64{"*": 8}, 8},
		"an explicit one": {
			func(t *Target, f *Facts) { t.MinWriterVersion, f.Fence = pointer(6), 3 }, map[string]int64{"*": 6}, 6},
		"an explicit one that is there already": {
			func(t *Target, f *Facts) { t.MinWriterVersion, f.Fence = pointer(6), 6 }, map[string]int64{}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			decision := mustDecide(t, withNorm(test.change))
			if !maps.Equal(decision.Raise, test.raise) || decision.MinWriter != test.minWriter {
				t.Errorf("raises %v with %d for all, want %v with %d", decision.Raise, decision.MinWriter, test.raise, test.minWriter)
			}
		})
	}
	for name, test := range map[string]decideCase{
		"an explicit one below the fence": {func(t *Target, f *Facts) {
			t.MinWriterVersion, f.Fence = pointer(4), 5
		}, CodeInvalidSpec, []string{"minWriterVersion: 4", "never goes down"}},
		"an explicit one below a checkpoint, which could never be activated": {func(t *Target, _ *Facts) {
			t.MinWriterVersion = pointer(6)
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}, CodeInvalidSpec, []string{"minWriterVersion: 6", `"n"`}},
	} {
		test.change = withNorm(test.change)
		t.Run(name, test.run)
	}
}

func TestACapturedSourceIsRefusedWhereNoSessionCanSayItsVersion(t *testing.T) {
	captured := fillNorm("n", 7)
	captured.Sources[0].Changes = Capture
	for dialect, want := range map[Dialect]Code{PostgreSQL: "", SQLite: CodeInvalidSpec} {
		err := (&decider{facts: Facts{Dialect: dialect}}).checkCaptured(captured)
		if CodeOf(err) != want {
			t.Errorf("%s: %v, want code %q", dialect, err, want)
		}
	}
}

// A captured source shuts its writers out in all partitions, since they know none.
func TestACapturedSourceRaisesTheFenceForAll(t *testing.T) {
	captured := fillNorm("n", 7, "a")
	captured.Sources[0].Changes = Capture
	target := targetAt(7)
	target.Tables[0].Columns = append(target.Tables[0].Columns, Column{Name: "title_norm", Type: TypeString, Nullable: true})
	target.Checkpoints = []Checkpoint{captured}
	decision, err := Decide(target, factsAt6())
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(decision.Raise, map[string]int64{"*": 7}) || decision.MinWriter != 7 {
		t.Errorf("raises %v, minimum %d", decision.Raise, decision.MinWriter)
	}
}

func TestWhoMayStillReadAfterwards(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Target, *Facts)
		want   int64
	}{
		"as before":                      {func(_ *Target, f *Facts) { f.History[0].MinReaderVersion = 4 }, 4},
		"after SQL nobody older":         {func(t *Target, _ *Facts) { t.Migrations = []Migration{{Version: 7, SQL: "x"}} }, 7},
		"after SQL of a version between": {func(t *Target, _ *Facts) { t.Version = 8; t.Migrations = []Migration{{Version: 7, SQL: "x"}} }, 7},
		"after a rewrite nobody older": {
			func(t *Target, _ *Facts) { t.Tables[1] = notesAt(Column{Name: "x", Type: TypeString, Nullable: true}) }, 7},
		"unless the spec says so": {func(t *Target, f *Facts) {
			f.History[0].MinReaderVersion = 4
			t.Migrations, t.MinReaderVersion = []Migration{{Version: 7, SQL: "x"}}, pointer(5)
		}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mustDecide(t, test.change).MinReader; got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
	t.Run("what is needed already does not go down", decideCase{func(t *Target, f *Facts) {
		f.History[0].MinReaderVersion, t.MinReaderVersion = 4, pointer(3)
	}, CodeInvalidSpec, []string{"minReaderVersion: 3"}}.run)
}

func TestABarrierDeclaresEveryCheckpointAboveTheMarker(t *testing.T) {
	decision := mustDecide(t, withNorm(func(t *Target, f *Facts) {
		known(f, fillNorm("six", 6))
		t.Version = 8
		eight, nine := fillNorm("eight", 8), fillNorm("nine", 9)
		eight.Backfill, nine.Backfill = Backfill{Job: true}, Backfill{Job: true}
		t.Checkpoints = []Checkpoint{nine, eight, fillNorm("seven", 7), fillNorm("six", 6)}
	}))
	var names []string
	for _, c := range decision.Declare {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, []string{"seven", "eight"}) || len(decision.Warnings) != 0 {
		t.Errorf("declares %v, warnings %v", names, decision.Warnings)
	}
	t.Run("and warns of very many partitions", func(t *testing.T) {
		decision := mustDecide(t, withNorm(func(t *Target, _ *Facts) {
			var many []string
			for i := range 10001 {
				many = append(many, fmt.Sprint("p", i))
			}
			t.Checkpoints = []Checkpoint{fillNorm("n", 7, many...)}
		}))
		if len(decision.Warnings) != 1 || !strings.Contains(decision.Warnings[0], "10001 partitions") {
			t.Errorf("warnings %v", decision.Warnings)
		}
	})
}

func TestWhenWritersOfTheProtocolAreKeptOut(t *testing.T) {
	bare := func(t *Target, f *Facts) {
		t.Tables, f.Marker.Layouts = t.Tables[:1], map[string][]LayoutColumn{}
		t.Tables[0] = todosAt(norm)
	}
	for name, test := range map[string]struct {
		change func(*Target, *Facts)
		want   bool
	}{
		"Plain tables alone": {bare, false},
		"a source whose changes are commits": {func(t *Target, f *Facts) {
			bare(t, f)
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}, true},
		"a Syncular table that is new": {func(t *Target, f *Facts) {
			bare(t, f)
			t.Tables = append(t.Tables, Table{Name: "new", Layout: Syncular, Columns: []Column{{Name: "x", Type: TypeString}}})
		}, true},
		"a Syncular table that is retired": {func(t *Target, _ *Facts) {
			t.Tables, t.RetiredTables = t.Tables[:1], []string{"notes"}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mustDecide(t, test.change).LockPartitions; got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestTheHistoryHasEachVersionPassed(t *testing.T) {
	versions := func(d Decision) string {
		var all []string
		for _, row := range d.Passed {
			all = append(all, fmt.Sprint(row.Version))
		}
		return strings.Join(all, " ")
	}
	for name, test := range map[string]struct {
		change func(*Target, *Facts)
		want   string
	}{
		"the next one": {nil, "7"},
		"a jump":       {func(t *Target, _ *Facts) { t.Version = 10 }, "7 8 9 10"},
		"a jump too wide to list has those that brought something": {withNorm(func(t *Target, _ *Facts) {
			t.Version = 5000
			t.Migrations = []Migration{{Version: 80, SQL: "x"}, {Version: 6000, SQL: "x"}}
			t.Checkpoints = []Checkpoint{fillNorm("n", 90)}
		}), "80 90 5000"},
		"the first one of all": {func(t *Target, f *Facts) {
			*f = Facts{Dialect: PostgreSQL, Known: map[string]KnownCheckpoint{}}
			t.Migrations = []Migration{{Version: 3, SQL: "x"}}
		}, "3 7"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := versions(mustDecide(t, test.change)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	t.Run("with what it brought", func(t *testing.T) {
		decision := mustDecide(t, withNorm(func(t *Target, f *Facts) {
			t.Version, f.Fence = 8, 2
			t.Migrations = []Migration{{Version: 7, SQL: "x"}}
			t.Checkpoints = []Checkpoint{fillNorm("n", 8, "a", "b")}
		}))
		seven, eight := decision.Passed[0], decision.Passed[1]
		if seven.Entries.Migration != (Migration{SQL: "x"}).Hash() || len(seven.Entries.Checkpoints) != 0 || seven.Entries.Fresh {
			t.Errorf("7: %+v", seven.Entries)
		}
		if eight.Entries.Migration != "" || eight.Entries.Checkpoints["n"] != (HistoryCheckpoint{Hash: fillNorm("n", 8, "a", "b").Hash(), Rows: 2}) {
			t.Errorf("8: %+v", eight.Entries)
		}
		target := targetAt(8)
		target.Tables[0] = todosAt(norm)
		target.Checkpoints = []Checkpoint{fillNorm("n", 8, "a", "b")}
		if eight.ContentHash != target.ContentHash(8) || eight.State != HistoryApplied || eight.MinWriterVersion != 2 || eight.MinReaderVersion != 7 {
			t.Errorf("8: %+v", eight)
		}
		created := eight.PlainLayouts["todos"]
		if len(created) != 4 || !created[0].Created || !created[3].Created {
			t.Errorf("layouts %+v", eight.PlainLayouts)
		}
		if decision.Layouts != `{"notes":[{"name":"body","type":"string","nullable":false},{"name":"size","type":"integer","nullable":true}]}` {
			t.Errorf("layouts %s", decision.Layouts)
		}
	})
	t.Run("and remembers what it did not make", func(t *testing.T) {
		decision := mustDecide(t, func(t *Target, f *Facts) {
			f.History[0].PlainLayouts = nil
			t.Tables[0] = todosAt(norm)
		})
		created := decision.PlainLayouts["todos"]
		if created[0].Created || !created[3].Created || !decision.CreatedColumns()["todos"]["title_norm"] || decision.CreatedColumns()["todos"]["id"] {
			t.Errorf("%+v", created)
		}
	})
	t.Run("and that a database began with it", func(t *testing.T) {
		decision := mustDecide(t, func(_ *Target, f *Facts) { *f = Facts{Dialect: SQLite, Known: map[string]KnownCheckpoint{}} })
		if !decision.Passed[0].Entries.Fresh || decision.Stored != 0 {
			t.Errorf("%+v", decision.Passed[0])
		}
	})
}

func TestADatabaseThatAnotherProgramBroughtThereIsAdopted(t *testing.T) {
	adopt := func(change func(*Target, *Facts)) func(*Target, *Facts) {
		return func(t *Target, f *Facts) {
			*t = targetAt(6)
			f.History = nil
			if change != nil {
				change(t, f)
			}
		}
	}
	t.Run("with its columns as they are", func(t *testing.T) {
		decision := mustDecide(t, adopt(func(t *Target, _ *Facts) {
			t.Migrations = []Migration{{Version: 5, SQL: "w"}, {Version: 6, SQL: "x"}}
		}))
		if decision.Outcome != Adopt || len(decision.Steps) != 0 || len(decision.Declare) != 0 || len(decision.Raise) != 0 {
			t.Errorf("%+v", decision)
		}
		if len(decision.Passed) != 1 || decision.Passed[0].Version != 6 || decision.Passed[0].Entries.Fresh || decision.Passed[0].PlainLayouts["todos"][0].Created {
			t.Errorf("history %+v", decision.Passed)
		}
		if len(decision.Warnings) != 1 || !strings.Contains(decision.Warnings[0], "taken as already run") {
			t.Errorf("warnings %v", decision.Warnings)
		}
	})
	t.Run("with its own checkpoints", func(t *testing.T) {
		mustDecide(t, adopt(func(t *Target, f *Facts) {
			t.Checkpoints = []Checkpoint{fillNorm("n", 6)}
			f.Known["n"] = KnownCheckpoint{Version: 6}
		}))
	})
	for name, test := range map[string]decideCase{
		"not without a checkpoint of its version": {adopt(func(t *Target, _ *Facts) {
			t.Checkpoints = []Checkpoint{fillNorm("n", 6)}
		}), CodeContentDrift, []string{`"n"`, "without"}},
		"not with that checkpoint of another version": {adopt(func(t *Target, f *Facts) {
			t.Checkpoints = []Checkpoint{fillNorm("n", 6)}
			f.Known["n"] = KnownCheckpoint{Version: 5}
		}), CodeContentDrift, []string{`"n"`}},
		"not with other columns": {adopt(func(_ *Target, f *Facts) {
			delete(f.Tables, "todos")
		}), CodeLayoutMismatch, []string{`"todos"`}},
	} {
		t.Run(name, test.run)
	}
	t.Run("a standalone checkpoint may come later", func(t *testing.T) {
		mustDecide(t, adopt(func(t *Target, _ *Facts) {
			c := fillNorm("n", 6)
			c.Standalone = true
			t.Checkpoints = []Checkpoint{c}
		}))
	})
}
