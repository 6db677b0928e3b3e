package storage

import (
	"slices"
	"testing"
)

// hashed is a target in which every field that is hashed is set.
func hashed() Target {
	return Target{
		Version: 7, MinWriterVersion: pointer(7), MinReaderVersion: pointer(6),
		Tables: []Table{
			{Name: "notes", Layout: Syncular, Materialize: true, Columns: []Column{{Name: "body", Type: TypeString}}},
			{
				Name: "todos", Layout: Plain, PrimaryKey: []string{"id", "tenant"}, Partition: Partition{Column: "tenant"},
				Columns: []Column{{Name: "id", Type: TypeInteger}, {Name: "tenant", SQLType: "citext", Nullable: true}},
				Indexes: []Index{{Name: "one", Columns: []string{"id"}, Unique: true}, {Name: "two", Columns: []string{"id", "tenant"}}},
			},
		},
		RetiredTables: []string{"gone", "old"},
		Migrations:    []Migration{{Version: 6, SQL: "six"}, {Version: 7, SQL: "seven\nmore"}},
		Checkpoints: []Checkpoint{
			{
				Name: "a", Version: 7, Partitions: []string{"p", "q"},
				Sources:  []Source{{Table: "notes", Changes: CommitLog, Keys: "SELECT 1"}, {Table: "todos", Changes: CommitLog, Columns: []string{"id", "tenant"}}},
				Backfill: Backfill{Update: &Update{Table: "todos", Set: map[string]string{"x": "1", "y": "2"}}},
				Verify:   []Verify{{Name: "v", Query: "q"}, {Name: "w", Query: "r"}},
			},
			{Name: "b", Version: 7, Sources: []Source{{Table: "todos", Changes: CommitLog}}, Backfill: Backfill{Statement: &Statement{Table: "todos", Apply: "a", Remove: "r"}}},
			{Name: "c", Version: 6, Sources: []Source{{Table: "todos", Changes: CommitLog}}, Backfill: Backfill{Job: true}},
			{Name: "d", Version: 7, Standalone: true, Sources: []Source{{Table: "todos", Changes: CommitLog}}, Backfill: Backfill{Job: true}},
		},
	}
}

func TestTheContentHashIsTheSameOnEveryMachineAndRelease(t *testing.T) {
	// Stored in databases of users: if this changes, every one of them reports ContentDrift.
	const want = "6ff9fbf0b47d772f83ccbbe0ebd2185ea1bf0024d1e85ea014c7b60ef0c82e01"
	if got := hashed().ContentHash(7); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheContentHashCoversWhatCannotChange(t *testing.T) {
	changes := map[string]func(*Target){
		"a table more":            func(t *Target) { t.Tables = append(t.Tables, Table{Name: "x", Layout: Plain}) },
		"a table's name":          func(t *Target) { t.Tables[0].Name = "x" },
		"a table's layout":        func(t *Target) { t.Tables[0].Layout = Plain },
		"materialize":             func(t *Target) { t.Tables[0].Materialize = false },
		"a column's name":         func(t *Target) { t.Tables[0].Columns[0].Name = "x" },
		"a column's type":         func(t *Target) { t.Tables[0].Columns[0].Type = TypeJSON },
		"a column's SQL type":     func(t *Target) { t.Tables[1].Columns[1].SQLType = "text" },
		"a column's nullable":     func(t *Target) { t.Tables[1].Columns[1].Nullable = false },
		"the order of columns":    func(t *Target) { slices.Reverse(t.Tables[1].Columns) },
		"the order of the key":    func(t *Target) { slices.Reverse(t.Tables[1].PrimaryKey) },
		"the partition's column":  func(t *Target) { t.Tables[1].Partition.Column = "id" },
		"the partition's hash":    func(t *Target) { t.Tables[1].Partition = Partition{Hash: 16} },
		"an index's name":         func(t *Target) { t.Tables[1].Indexes[0].Name = "x" },
		"an index's columns":      func(t *Target) { slices.Reverse(t.Tables[1].Indexes[1].Columns) },
		"an index's uniqueness":   func(t *Target) { t.Tables[1].Indexes[0].Unique = false },
		"retired tables":          func(t *Target) { t.RetiredTables = t.RetiredTables[:1] },
		"minWriterVersion":        func(t *Target) { t.MinWriterVersion = pointer(6) },
		"no minWriterVersion":     func(t *Target) { t.MinWriterVersion = nil },
		"minReaderVersion":        func(t *Target) { t.MinReaderVersion = nil },
		"the SQL":                 func(t *Target) { t.Migrations[1].SQL = "seven\n more" },
		"no SQL":                  func(t *Target) { t.Migrations = t.Migrations[:1] },
		"a checkpoint less":       func(t *Target) { t.Checkpoints = t.Checkpoints[1:] },
		"a checkpoint's name":     func(t *Target) { t.Checkpoints[0].Name = "x" },
		"its partitions":          func(t *Target) { t.Checkpoints[0].Partitions = nil },
		"its source's table":      func(t *Target) { t.Checkpoints[0].Sources[0].Table = "x" },
		"its source's changes":    func(t *Target) { t.Checkpoints[0].Sources[0].Changes = Capture },
		"its source's columns":    func(t *Target) { t.Checkpoints[0].Sources[1].Columns = nil },
		"its source's keys":       func(t *Target) { t.Checkpoints[0].Sources[0].Keys = "SELECT 2" },
		"its update's table":      func(t *Target) { t.Checkpoints[0].Backfill.Update.Table = "x" },
		"its update's expression": func(t *Target) { t.Checkpoints[0].Backfill.Update.Set["x"] = "3" },
		"its statement's apply":   func(t *Target) { t.Checkpoints[1].Backfill.Statement.Apply = "x" },
		"its statement's remove":  func(t *Target) { t.Checkpoints[1].Backfill.Statement.Remove = "" },
		"its statement's table":   func(t *Target) { t.Checkpoints[1].Backfill.Statement.Table = "x" },
		"a job's template": func(t *Target) {
			t.Checkpoints[1].Backfill = Backfill{Job: true, JobTemplate: "{}"}
		},
		"a job instead":      func(t *Target) { t.Checkpoints[1].Backfill = Backfill{Job: true} },
		"its verify's name":  func(t *Target) { t.Checkpoints[0].Verify[0].Name = "x" },
		"its verify's query": func(t *Target) { t.Checkpoints[0].Verify[0].Query = "x" },
	}
	first := hashed().ContentHash(7)
	seen := map[string]string{first: "nothing"}
	for name, change := range changes {
		target := hashed()
		change(&target)
		hash := target.ContentHash(7)
		if other, taken := seen[hash]; taken {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[hash] = name
	}
}

func TestTheContentHashLeavesOutWhatMayChange(t *testing.T) {
	first := hashed().ContentHash(7)
	for name, change := range map[string]func(*Target){
		"the owner":                    func(t *Target) { t.Owner.Name, t.TakeOver = "x", "y" },
		"lock limits":                  func(t *Target) { t.Lock.TimeoutMilliseconds = 5 },
		"live settings":                func(t *Target) { t.Checkpoints[0].Settings = Settings{BatchRows: 5, Paused: true} },
		"SQL of another version":       func(t *Target) { t.Migrations[0].SQL = "x" },
		"a checkpoint of another":      func(t *Target) { t.Checkpoints = slices.Delete(t.Checkpoints, 2, 3) },
		"a standalone checkpoint":      func(t *Target) { t.Checkpoints = t.Checkpoints[:3] },
		"line ends and trailing space": func(t *Target) { t.Migrations[1].SQL = "\ufeffseven \t\r\nmore\r\n\r\n" },
		"the order of tables":          func(t *Target) { slices.Reverse(t.Tables) },
		"the order of retired tables":  func(t *Target) { slices.Reverse(t.RetiredTables) },
		"the order of indexes":         func(t *Target) { slices.Reverse(t.Tables[1].Indexes) },
		"the order of checkpoints":     func(t *Target) { slices.Reverse(t.Checkpoints) },
		"the order of sources":         func(t *Target) { slices.Reverse(t.Checkpoints[0].Sources) },
		"the order of source columns":  func(t *Target) { slices.Reverse(t.Checkpoints[0].Sources[1].Columns) },
		"the order of partitions":      func(t *Target) { slices.Reverse(t.Checkpoints[0].Partitions) },
		"the order of verify queries":  func(t *Target) { slices.Reverse(t.Checkpoints[0].Verify) },
		"materialize of a Plain table": func(t *Target) { t.Tables[1].Materialize = true },
	} {
		target := hashed()
		change(&target)
		if target.ContentHash(7) != first {
			t.Errorf("%s changed the hash", name)
		}
	}
	t.Run("and hashing changes nothing", func(t *testing.T) {
		target := hashed()
		slices.Reverse(target.Tables)
		_ = target.ContentHash(7)
		if target.Tables[0].Name != "todos" {
			t.Error("the target's tables were sorted")
		}
	})
}

func TestSQLIsNormalisedWithoutChangingIt(t *testing.T) {
	for sql, want := range map[string]string{
		"":                       "",
		"a\r\nb\rc\n":            "a\nb\nc",
		"\ufeffa":                "a",
		"a \t\v\f\n b  ":         "a\n b",
		"  a":                    "  a",
		"a\n\n\n":                "a",
		"a\n\nb":                 "a\n\nb",
		"'kept  spaces'  inside": "'kept  spaces'  inside",
		"a\ufeffb":               "a\ufeffb",
	} {
		if got := NormaliseSQL(sql); got != want {
			t.Errorf("%q became %q, want %q", sql, got, want)
		}
		if again := NormaliseSQL(NormaliseSQL(sql)); again != NormaliseSQL(sql) {
			t.Errorf("%q is not normal after one pass", sql)
		}
	}
}

func TestThePlanHashIsTwelveDigitsOverWhatWouldRun(t *testing.T) {
	locks := []LockNote{{Table: "a", Mode: "EXCLUSIVE"}, {Table: "b", Mode: "EXCLUSIVE"}}
	statements := []string{"one", "two"}
	first := PlanHash("content", 6, "Barrier", locks, statements)
	if len(first) != 12 || PlanHash("content", 6, "Barrier", slices.Clone(locks), slices.Clone(statements)) != first {
		t.Errorf("got %q", first)
	}
	for name, other := range map[string]string{
		"content":             PlanHash("other", 6, "Barrier", locks, statements),
		"stored version":      PlanHash("content", 5, "Barrier", locks, statements),
		"strategy":            PlanHash("content", 6, "Online", locks, statements),
		"order of locks":      PlanHash("content", 6, "Barrier", []LockNote{locks[1], locks[0]}, statements),
		"order of statements": PlanHash("content", 6, "Barrier", locks, []string{"two", "one"}),
	} {
		if other == first {
			t.Errorf("another %s has the same hash", name)
		}
	}
}
