package storage

import (
	"strings"
	"testing"
)

func TestWhatCannotBeRightIsRefusedBeforeAnythingElse(t *testing.T) {
	long := strings.Repeat("n", 64)
	for name, change := range map[string]struct {
		of   func(*Target)
		says string
	}{
		"no version":                                    {func(t *Target) { t.Version = 0 }, "version: 0"},
		"a version beyond 32 bits":                      {func(t *Target) { t.Version = 1 << 31 }, "version: 2147483648"},
		"a fence above the version":                     {func(t *Target) { t.MinWriterVersion = pointer(8) }, "minWriterVersion: 8"},
		"a fence below zero":                            {func(t *Target) { t.MinWriterVersion = pointer(-1) }, "minWriterVersion: -1"},
		"readers above the version":                     {func(t *Target) { t.MinReaderVersion = pointer(8) }, "minReaderVersion: 8"},
		"readers below zero":                            {func(t *Target) { t.MinReaderVersion = pointer(-1) }, "minReaderVersion: -1"},
		"a table without a name":                        {func(t *Target) { t.Tables[0].Name = "" }, "empty"},
		"a table name that would be cut":                {func(t *Target) { t.Tables[0].Name = long }, "63 bytes"},
		"a table name of few characters and many bytes": {func(t *Target) { t.Tables[0].Name = strings.Repeat("ü", 32) }, "63 bytes"},
		"a table name with NUL":                         {func(t *Target) { t.Tables[0].Name = "a\x00b" }, "NUL"},
		"a table name that is not UTF-8":                {func(t *Target) { t.Tables[0].Name = "a\xff" }, "UTF-8"},
		"a table of the sync protocol":                  {func(t *Target) { t.Tables[0].Name = "sync_commits" }, "sync_"},
		"a table of ours, in capitals":                  {func(t *Target) { t.Tables[0].Name = "SYNCBARRIER_X" }, "syncbarrier_"},
		"a table declared twice":                        {func(t *Target) { t.Tables = append(t.Tables, todosAt()) }, "twice"},
		"a column declared twice":                       {func(t *Target) { t.Tables[0] = todosAt(norm, norm) }, `"title_norm" is declared twice`},
		"a column name that would be cut":               {func(t *Target) { t.Tables[0] = todosAt(Column{Name: long, Type: TypeString}) }, "63 bytes"},
		"a column without a type":                       {func(t *Target) { t.Tables[0] = todosAt(Column{Name: "x"}) }, "exactly one"},
		"a column with two types":                       {func(t *Target) { t.Tables[0] = todosAt(Column{Name: "x", Type: TypeJSON, SQLType: "json"}) }, "exactly one"},
		"a column of an unknown type":                   {func(t *Target) { t.Tables[0] = todosAt(Column{Name: "x", Type: "money"}) }, `no type "money"`},
		"a Syncular column with a type of the database": {func(t *Target) { t.Tables[1] = notesAt(Column{Name: "x", SQLType: "inet", Nullable: true}) }, "packs its columns"},
		"a Syncular column with a name of the layout":   {func(t *Target) { t.Tables[1] = notesAt(Column{Name: "_SYNC_x", Type: TypeString, Nullable: true}) }, "_sync_"},
		"a key column that is not declared":             {func(t *Target) { t.Tables[0].PrimaryKey = []string{"nowhere"} }, `"nowhere"`},
		"an index name that would be cut":               {func(t *Target) { t.Tables[0].Indexes = []Index{{Name: long, Columns: []string{"id"}}} }, "63 bytes"},
		"an index over a column that is not declared":   {func(t *Target) { t.Tables[0].Indexes = []Index{{Name: "i", Columns: []string{"nowhere"}}} }, `"nowhere"`},
		"an index name that two tables have": {func(t *Target) {
			t.Tables[0].Indexes = []Index{{Name: "i", Columns: []string{"id"}}}
			t.Tables[1].Indexes = []Index{{Name: "i", Columns: []string{"body"}}}
		}, `table "todos" has an index of that name`},
		"a retired table of the sync protocol": {func(t *Target) { t.RetiredTables = []string{"sync_changes"} }, "retiredTables"},
		"two migrations of one version":        {func(t *Target) { t.Migrations = []Migration{{Version: 7, SQL: "a"}, {Version: 7, SQL: "b"}} }, "version 7 is there twice"},
		"two checkpoints of one name": {func(t *Target) {
			t.Checkpoints = []Checkpoint{fillNorm("n", 7), fillNorm("n", 8)}
		}, `"n" is declared twice`},
	} {
		t.Run(name, func(t *testing.T) {
			decideCase{change: func(t *Target, _ *Facts) { change.of(t) }, code: CodeInvalidSpec, says: []string{change.says}}.run(t)
		})
	}
}

func TestADatabaseThatIsNotOursToTouchIsRefused(t *testing.T) {
	for name, test := range map[string]decideCase{
		"its catalog is newer": {
			func(_ *Target, f *Facts) { f.Protocol = CatalogProtocol + 1 }, CodeNewerCatalog, []string{"protocol"}},
		"it uses partition keys that are ours": {
			func(_ *Target, f *Facts) { f.Protocol, f.Reserved = 0, []string{"capture:x"} }, CodeInvalidSpec, []string{"capture:x"}},
		"another name owns it": {
			func(t *Target, _ *Facts) { t.Owner.Name = "billing" }, CodeConflict, []string{"/default/clinic", "take it over"}},
		"another namespace owns it": {
			func(t *Target, _ *Facts) { t.Owner.Namespace = "shop" }, CodeConflict, nil},
		"a cluster owns it, and the command line wants it": {
			func(_ *Target, f *Facts) { f.Owner.Cluster = "c1" }, CodeConflict, []string{"c1/default/clinic"}},
		"another cluster owns it": {
			func(t *Target, f *Facts) { t.Owner.Cluster, f.Owner.Cluster = "c2", "c1" }, CodeConflict, nil},
		"the owner that is named to take over from is not the owner": {
			func(t *Target, f *Facts) { f.Owner.Cluster, t.TakeOver = "c1", "c2/default/clinic" }, CodeConflict, nil},
		"it is at a higher version": {
			func(t *Target, _ *Facts) { *t = targetAt(5) }, CodeVersionRegression, []string{"version 6", "version 5"}},
	} {
		t.Run(name, test.run)
	}
}

func TestWhoMayFollowAnOwner(t *testing.T) {
	for name, change := range map[string]func(*Target, *Facts){
		"the first one":                             func(_ *Target, f *Facts) { f.Owner = nil },
		"the same one with another UID":             func(t *Target, f *Facts) { f.Owner.UID, t.Owner.UID = "a", "b" },
		"a cluster after the command line":          func(t *Target, _ *Facts) { t.Owner.Cluster = "c1" },
		"whoever names the owner by its words":      func(t *Target, f *Facts) { f.Owner.Cluster, t.TakeOver = "c1", "c1/default/clinic" },
		"reserved keys in our own catalog are ours": func(_ *Target, f *Facts) { f.Reserved = []string{"capture:x"} },
	} {
		t.Run(name, func(t *testing.T) { mustDecide(t, change) })
	}
}

// known records a checkpoint of version 6 in the history.
func known(f *Facts, c Checkpoint) {
	if f.History[0].Entries.Checkpoints == nil {
		f.History[0].Entries.Checkpoints = map[string]HistoryCheckpoint{}
	}
	f.History[0].Entries.Checkpoints[c.Name] = HistoryCheckpoint{Hash: c.Hash(), Rows: len(c.Rows())}
	f.Known[c.Name] = KnownCheckpoint{Version: c.Version, Hash: c.Hash(), Tables: []string{"todos"}}
}

// byProgram is a checkpoint that a program of the sync protocol declared, and activated: it records no content.
func byProgram(f *Facts, name string, version int64) {
	f.Known[name] = KnownCheckpoint{Version: version, Tables: []string{"todos"}}
}

func open(f *Facts, c Checkpoint) {
	known(f, c)
	entry := f.Known[c.Name]
	entry.Open = true
	f.Known[c.Name] = entry
	f.Open = append(f.Open, OpenCheckpoint{Name: c.Name, Version: c.Version, Partitions: c.Rows()})
}

func TestWhatWasAppliedDoesNotChange(t *testing.T) {
	for name, test := range map[string]decideCase{
		"SQL of an applied version is edited": {func(t *Target, f *Facts) {
			f.History[0].Entries.Migration = Migration{Version: 6, SQL: "SELECT 1"}.Hash()
			t.Migrations = []Migration{{Version: 6, SQL: "SELECT 2"}}
		}, CodeContentDrift, []string{"version 6"}},
		"an applied version gets SQL": {func(t *Target, _ *Facts) {
			t.Migrations = []Migration{{Version: 6, SQL: "SELECT 2"}}
		}, CodeContentDrift, []string{"version 6"}},
		"an applied version gets a checkpoint": {func(t *Target, _ *Facts) {
			t.Checkpoints = []Checkpoint{fillNorm("late", 6)}
		}, CodeContentDrift, []string{`"late"`, "was not part of version 6"}},
		"a checkpoint of an applied version is edited": {func(t *Target, f *Facts) {
			known(f, fillNorm("n", 6))
			edited := fillNorm("n", 6)
			edited.Backfill.Update = &Update{Table: "todos", Set: map[string]string{"title_norm": "upper(title)"}}
			t.Checkpoints = []Checkpoint{edited}
		}, CodeContentDrift, []string{`"n"`}},
		"a standalone checkpoint of an applied version is edited": {func(t *Target, f *Facts) {
			c := fillNorm("n", 6)
			known(f, c)
			c.Standalone, c.Partitions = true, []string{"a"}
			t.Checkpoints = []Checkpoint{c}
		}, CodeContentDrift, []string{`"n"`}},
		"SQL below the first version that we know, in a database that we began": {func(t *Target, f *Facts) {
			f.History[0].Entries.Fresh = true
			t.Migrations = []Migration{{Version: 3, SQL: "SELECT 3"}}
		}, CodeContentDrift, []string{"version 3"}},
		"a checkpoint below the first version that we know, in a database that we began": {func(t *Target, f *Facts) {
			f.History[0].Entries.Fresh = true
			t.Checkpoints = []Checkpoint{fillNorm("early", 3)}
		}, CodeContentDrift, []string{`"early"`}},
		"a checkpoint from before we knew the database, that nobody declared there": {func(t *Target, _ *Facts) {
			t.Checkpoints = []Checkpoint{fillNorm("early", 3)}
		}, CodeContentDrift, []string{`"early"`, "nothing shows that its backfill was done"}},
		"a checkpoint of a lower version, where the record was removed": {func(t *Target, f *Facts) {
			f.History = nil
			t.Checkpoints = []Checkpoint{fillNorm("early", 3)}
		}, CodeContentDrift, []string{`"early"`, "nothing shows that its backfill was done"}},
		"the same, where the version is the one that is stored": {func(t *Target, f *Facts) {
			f.History = nil
			*t = targetAt(6)
			t.Checkpoints = []Checkpoint{fillNorm("early", 3)}
		}, CodeContentDrift, []string{`"early"`, "nothing shows that its backfill was done"}},
		"the version itself with other content": {func(t *Target, _ *Facts) {
			*t = targetAt(6)
			t.MinWriterVersion = pointer(6)
		}, CodeContentDrift, []string{"version 6", "version 7"}},
	} {
		t.Run(name, test.run)
	}
}

func TestWhatOfAppliedVersionsMayStayOrGo(t *testing.T) {
	for name, change := range map[string]func(*Target, *Facts){
		"the same SQL with other line ends": func(t *Target, f *Facts) {
			f.History[0].Entries.Migration = Migration{Version: 6, SQL: "SELECT 1\nFROM x"}.Hash()
			t.Migrations = []Migration{{Version: 6, SQL: "SELECT 1  \r\nFROM x\r\n"}}
		},
		"SQL that is left out by now": func(_ *Target, f *Facts) {
			f.History[0].Entries.Migration = Migration{Version: 6, SQL: "SELECT 1"}.Hash()
		},
		"the same checkpoint with other settings": func(t *Target, f *Facts) {
			known(f, fillNorm("n", 6))
			c := fillNorm("n", 6)
			c.Settings.BatchRows = 5
			t.Checkpoints = []Checkpoint{c}
		},
		"a standalone checkpoint that no barrier declared": func(t *Target, _ *Facts) {
			c := fillNorm("beside", 6)
			c.Standalone = true
			t.Checkpoints = []Checkpoint{c}
		},
		"entries from before we knew the database": func(t *Target, f *Facts) {
			t.Migrations = []Migration{{Version: 3, SQL: "SELECT 3"}}
			byProgram(f, "early", 3)
			t.Checkpoints = []Checkpoint{fillNorm("early", 3)}
		},
		"entries of a database without any history": func(t *Target, f *Facts) {
			f.History = nil
			t.Migrations = []Migration{{Version: 6, SQL: "SELECT 3"}}
			byProgram(f, "early", 6)
			t.Checkpoints = []Checkpoint{fillNorm("early", 6)}
		},
	} {
		t.Run(name, func(t *testing.T) { wantSteps(t, mustDecide(t, change)) })
	}
}

func TestWhatALowerVersionLeftUnfinishedIsNotForgotten(t *testing.T) {
	for name, test := range map[string]decideCase{
		"a checkpoint that is not declared": {func(_ *Target, f *Facts) {
			open(f, fillNorm("n", 6))
		}, CodeCheckpointIncomplete, []string{`"n"`, "version 6", `"*"`}},
		"a partition that is not declared": {func(t *Target, f *Facts) {
			c := fillNorm("n", 6, "a")
			known(f, c)
			f.Open = []OpenCheckpoint{{Name: "n", Version: 6, Partitions: []string{"a", "b"}}}
			t.Checkpoints = []Checkpoint{c}
		}, CodeCheckpointIncomplete, []string{`"b"`}},
		"at the same version": {func(t *Target, f *Facts) {
			*t = targetAt(6)
			open(f, fillNorm("n", 6))
		}, CodeCheckpointIncomplete, nil},
		"a retired table that it needs": {func(t *Target, f *Facts) {
			c := fillNorm("n", 6)
			open(f, c)
			t.Checkpoints, t.Tables, t.RetiredTables = []Checkpoint{c}, []Table{notesAt()}, []string{"todos"}
		}, CodeCheckpointIncomplete, []string{`"todos"`, `"n"`}},
		"a table that is declared and retired": {func(t *Target, _ *Facts) {
			t.RetiredTables = []string{"todos"}
		}, CodeInvalidSpec, []string{`"todos"`}},
	} {
		t.Run(name, test.run)
	}
	t.Run("declared again it stays open beside the new version", func(t *testing.T) {
		decision := mustDecide(t, func(t *Target, f *Facts) {
			open(f, fillNorm("n", 6))
			t.Checkpoints = []Checkpoint{fillNorm("n", 6)}
		})
		if len(decision.Declare) != 0 {
			t.Errorf("declares %v", decision.Declare)
		}
	})
	t.Run("one of a later version, which another program declared, is not asked for", func(t *testing.T) {
		mustDecide(t, func(_ *Target, f *Facts) { open(f, fillNorm("n", 9)) })
	})
	t.Run("a table that only finished checkpoints needed may be retired", func(t *testing.T) {
		mustDecide(t, func(t *Target, f *Facts) {
			c := fillNorm("n", 6)
			known(f, c)
			t.Checkpoints, t.Tables, t.RetiredTables = []Checkpoint{c}, []Table{notesAt()}, []string{"todos"}
		})
	})
	t.Run("a declaration for all partitions covers each", func(t *testing.T) {
		mustDecide(t, func(t *Target, f *Facts) {
			c := fillNorm("n", 6)
			known(f, c)
			f.Open = []OpenCheckpoint{{Name: "n", Version: 6, Partitions: []string{"a", "b"}}}
			t.Checkpoints = []Checkpoint{c}
		})
	})
}

func TestCheckpointNamesBelongToTheirVersionForEver(t *testing.T) {
	for name, test := range map[string]decideCase{
		"used by a lower version": {func(t *Target, f *Facts) {
			known(f, fillNorm("n", 6))
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}, CodeContentDrift, []string{`"n"`, "version 6"}},
		"abandoned": {func(t *Target, f *Facts) {
			f.Known["n"] = KnownCheckpoint{Version: 7, Hash: fillNorm("n", 7).Hash(), Abandoned: true}
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}, CodeContentDrift, []string{`"n"`, "abandoned"}},
		"declared with other content": {func(t *Target, f *Facts) {
			f.Known["n"] = KnownCheckpoint{Version: 7, Hash: "other"}
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}, CodeContentDrift, []string{`"n"`}},
	} {
		test.change = withNorm(test.change)
		t.Run(name, test.run)
	}
	t.Run("one that was abandoned may stay declared for the version it had", func(t *testing.T) {
		mustDecide(t, withNorm(func(t *Target, f *Facts) {
			c := fillNorm("n", 6)
			known(f, c)
			f.Known["n"] = KnownCheckpoint{Version: 6, Hash: c.Hash(), Abandoned: true}
			t.Checkpoints = []Checkpoint{c}
		}))
	})
	t.Run("another program may have declared it for this version", func(t *testing.T) {
		decision := mustDecide(t, withNorm(func(t *Target, f *Facts) {
			f.Known["n"] = KnownCheckpoint{Version: 7, Open: true}
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}))
		if len(decision.Declare) != 1 {
			t.Errorf("declares %v", decision.Declare)
		}
	})
}

// withNorm declares the column that fillNorm sets.
func withNorm(change func(*Target, *Facts)) func(*Target, *Facts) {
	return func(t *Target, f *Facts) {
		t.Tables[0] = todosAt(norm)
		change(t, f)
	}
}

func TestCheckpointsThatCouldNotBeFilledAreRefused(t *testing.T) {
	for name, test := range map[string]decideCase{
		"over a table that is not declared": {func(t *Target, _ *Facts) {
			t.Tables = []Table{notesAt()}
			t.RetiredTables = []string{"todos"}
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}, CodeInvalidSpec, []string{`"todos"`}},
		"over a key that is no key of the table": {func(t *Target, f *Facts) {
			table := physicalTodos()
			table.Key = nil
			f.Tables["todos"] = table
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}, CodeInvalidSpec, []string{"(id)", `"n"`}},
		"over a key that is NULL in some rows": {func(t *Target, f *Facts) {
			table := physicalTodos()
			table.NullKey = true
			f.Tables["todos"] = table
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}, CodeInvalidSpec, []string{"NULL", `"n"`}},
		"of changes that become known in no known way": {func(t *Target, _ *Facts) {
			c := fillNorm("n", 7)
			c.Sources[0].Changes = "Guess"
			t.Checkpoints = []Checkpoint{c}
		}, CodeInvalidSpec, []string{`"n"`, "Guess"}},
		"a column that another one reads": {func(t *Target, _ *Facts) {
			reads := fillNorm("reads", 7)
			reads.Sources[0].Columns = []string{"title_norm"}
			reads.Backfill = Backfill{Job: true}
			t.Checkpoints = []Checkpoint{fillNorm("n", 7), reads}
		}, CodeInvalidSpec, []string{`"title_norm"`, `"reads"`}},
		"a column that an open one of a lower version sets": {func(t *Target, f *Facts) {
			six := fillNorm("n", 6)
			open(f, six)
			reads := fillNorm("reads", 7)
			reads.Sources[0].Columns = []string{"title_norm"}
			reads.Backfill = Backfill{Job: true}
			t.Checkpoints = []Checkpoint{six, reads}
		}, CodeInvalidSpec, []string{`"title_norm"`, `"reads"`}},
	} {
		test.change = withNorm(test.change)
		t.Run(name, test.run)
	}
	t.Run("a unique key that is never NULL will do", func(t *testing.T) {
		mustDecide(t, withNorm(func(t *Target, f *Facts) {
			table := physicalTodos()
			table.Key, table.Unique = nil, [][]string{{"id"}}
			f.Tables["todos"] = table
			t.Checkpoints = []Checkpoint{fillNorm("n", 7)}
		}))
	})
}
