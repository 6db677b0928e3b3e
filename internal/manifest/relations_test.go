package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// clinicSpec is the spec of the small valid file, with a second table and a second checkpoint.
func clinicSpec(t *testing.T) *v1alpha1.SyncSchemaSpec {
	t.Helper()
	spec := mustParse(t, clinic).Schema.Spec
	spec.Tables = append(spec.Tables, v1alpha1.Table{
		Name: "notes", Layout: v1alpha1.LayoutSyncular,
		Columns: []v1alpha1.Column{{Name: "body", Type: "string"}, {Name: "size", Type: "integer", Nullable: true}},
	})
	spec.Checkpoints = append(spec.Checkpoints, v1alpha1.Checkpoint{
		Name: "note-size", Version: 6,
		CheckpointDefinition: v1alpha1.CheckpointDefinition{
			Sources:  []v1alpha1.Source{{Table: "notes", Changes: v1alpha1.ChangesCommitLog}},
			Backfill: v1alpha1.Backfill{Statement: &v1alpha1.Statement{Table: "notes", Apply: "SELECT 1"}},
		},
	})
	return &spec
}

func pointer[T any](value T) *T { return &value }

func TestRelationsRefuse(t *testing.T) {
	type spec = v1alpha1.SyncSchemaSpec
	long := strings.Repeat("ä", 32) // 32 characters, 64 bytes
	for name, test := range map[string]struct {
		change func(*spec)
		path   string
		detail string
	}{
		"a database schema of 64 bytes": {
			func(s *spec) { s.Database.Postgres = &v1alpha1.PostgresDatabase{Schema: long} },
			"spec.database.postgres.schema", "at most 63 bytes, this one has 64",
		},
		"a database schema of PostgreSQL's own": {
			func(s *spec) { s.Database.Postgres = &v1alpha1.PostgresDatabase{Schema: "pg_catalog"} },
			"spec.database.postgres.schema", "one of PostgreSQL's own",
		},
		"the information schema": {
			func(s *spec) { s.Database.Postgres = &v1alpha1.PostgresDatabase{Schema: "information_schema"} },
			"spec.database.postgres.schema", "one of PostgreSQL's own",
		},
		"a fence above the version": {
			func(s *spec) { s.MinWriterVersion = pointer(int32(8)) }, "spec.minWriterVersion", "higher than spec.version, 7",
		},
		"a reader minimum above the version": {
			func(s *spec) { s.MinReaderVersion = pointer(int32(8)) }, "spec.minReaderVersion", "higher than spec.version, 7",
		},
		"strategy Online": {
			func(s *spec) { s.Strategy = &v1alpha1.Strategy{Type: v1alpha1.StrategyOnline} },
			"spec.strategy.type", "strategy Online is not available in this version of Syncbarrier",
		},

		"an empty table name": {func(s *spec) {
			s.Tables[1].Name = ""
			s.Checkpoints = s.Checkpoints[:1]
		}, "spec.tables[1].name", "must not be empty"},
		"a table name of 64 bytes": {func(s *spec) {
			s.Tables[1].Name = long
			s.Checkpoints = s.Checkpoints[:1]
		}, "spec.tables[1].name", "at most 63 bytes, this one has 64"},
		"a table name with NUL": {func(s *spec) {
			s.Tables[1].Name = "a\x00b"
			s.Checkpoints = s.Checkpoints[:1]
		}, "spec.tables[1].name", "NUL"},
		"a table name that is no UTF-8": {func(s *spec) {
			s.Tables[1].Name = "a\xffb"
			s.Checkpoints = s.Checkpoints[:1]
		}, "spec.tables[1].name", "UTF-8"},
		"a table of the sync protocol": {func(s *spec) {
			s.Tables[1].Name = "sync_commits"
			s.Checkpoints = s.Checkpoints[:1]
		}, "spec.tables[1].name", "reserved"},
		"a table of ours, in capitals": {func(s *spec) {
			s.Tables[1].Name = "SyncBarrier_x"
			s.Checkpoints = s.Checkpoints[:1]
		}, "spec.tables[1].name", "reserved"},
		"one table twice": {func(s *spec) {
			s.Tables = append(s.Tables, s.Tables[1])
		}, "spec.tables[2].name", ""},

		"an empty column name":           {func(s *spec) { s.Tables[0].Columns[2].Name = "" }, "spec.tables[0].columns[2].name", "must not be empty"},
		"a column name of 64 bytes":      {func(s *spec) { s.Tables[0].Columns[2].Name = long }, "spec.tables[0].columns[2].name", "at most 63 bytes"},
		"one column twice":               {func(s *spec) { s.Tables[0].Columns[2].Name = "tenant" }, "spec.tables[0].columns[2].name", ""},
		"a reserved Syncular column":     {func(s *spec) { s.Tables[1].Columns[0].Name = "_sync_payload" }, "spec.tables[1].columns[0].name", "reserved"},
		"a sqlType in a Syncular table":  {func(s *spec) { s.Tables[1].Columns[0] = v1alpha1.Column{Name: "body", SQLType: "text"} }, "spec.tables[1].columns[0].sqlType", "layout Plain"},
		"a primaryKey of a Syncular one": {func(s *spec) { s.Tables[1].PrimaryKey = []string{"body"} }, "spec.tables[1].primaryKey", "(_sync_partition, _sync_row_id)"},
		"a partition of a Syncular one":  {func(s *spec) { s.Tables[1].Partition = &v1alpha1.TablePartition{Column: "body"} }, "spec.tables[1].partition", "_sync_partition"},
		"indexes without columns": {func(s *spec) {
			s.Tables[1].Materialize = pointer(false)
			s.Tables[1].Indexes = []v1alpha1.Index{{Name: "by_body", Columns: []string{"body"}}}
		}, "spec.tables[1].indexes", "materialize: false"},
		"a key column that is not declared": {func(s *spec) { s.Tables[0].PrimaryKey = []string{"id", "number"} }, "spec.tables[0].primaryKey[1]", `table "todos" declares no such column`},
		"a key column that is nullable":     {func(s *spec) { s.Tables[0].Columns[0].Nullable = true }, "spec.tables[0].primaryKey[0]", "cannot be nullable"},
		"a key column twice":                {func(s *spec) { s.Tables[0].PrimaryKey = []string{"id", "id"} }, "spec.tables[0].primaryKey[1]", ""},
		"a partition column that is not declared": {
			func(s *spec) { s.Tables[0].Partition.Column = "region" },
			"spec.tables[0].partition.column", `table "todos" declares no such column`,
		},
		"an index name of 64 bytes": {
			func(s *spec) { s.Tables[0].Indexes = []v1alpha1.Index{{Name: long, Columns: []string{"title"}}} },
			"spec.tables[0].indexes[0].name", "at most 63 bytes",
		},
		"an index of ours": {
			func(s *spec) {
				s.Tables[0].Indexes = []v1alpha1.Index{{Name: "sync_changes_by_table", Columns: []string{"title"}}}
			},
			"spec.tables[0].indexes[0].name", "reserved",
		},
		"one index name in two tables": {
			func(s *spec) {
				s.Tables[0].Indexes = []v1alpha1.Index{{Name: "a", Columns: []string{"title"}}}
				s.Tables[1].Indexes = []v1alpha1.Index{{Name: "a", Columns: []string{"body"}}}
			},
			"spec.tables[1].indexes[0].name", "",
		},
		"an index called like a table": {
			func(s *spec) {
				s.Tables[0].Indexes = []v1alpha1.Index{{Name: "notes", Columns: []string{"title"}}}
			},
			"spec.tables[0].indexes[0].name", "a table has this name",
		},
		"an index column that is not declared": {
			func(s *spec) {
				s.Tables[0].Indexes = []v1alpha1.Index{{Name: "a", Columns: []string{"colour"}}}
			},
			"spec.tables[0].indexes[0].columns[0]", `table "todos" declares no such column`,
		},
		"an index column twice": {
			func(s *spec) {
				s.Tables[0].Indexes = []v1alpha1.Index{{Name: "a", Columns: []string{"title", "title"}}}
			},
			"spec.tables[0].indexes[0].columns[1]", "",
		},

		"a retired table that is declared": {func(s *spec) { s.RetiredTables = []string{"todos"} }, "spec.retiredTables[0]", "cannot be retired and declared"},
		"a retired table of ours":          {func(s *spec) { s.RetiredTables = []string{"sync_changes"} }, "spec.retiredTables[0]", "reserved"},
		"a retired table without a name":   {func(s *spec) { s.RetiredTables = []string{""} }, "spec.retiredTables[0]", "must not be empty"},
		"one table retired twice":          {func(s *spec) { s.RetiredTables = []string{"old", "old"} }, "spec.retiredTables[1]", ""},
		"a retired table that is a source": {func(s *spec) {
			s.RetiredTables = []string{"owners"}
			s.Checkpoints[0].Sources = append(s.Checkpoints[0].Sources, v1alpha1.Source{Table: "owners", Changes: "CommitLog", Keys: "SELECT 1"})
		}, "spec.checkpoints[0].sources[1].table", "it is dropped"},

		"a migration above the version": {func(s *spec) { s.Migrations = []v1alpha1.Migration{{Version: 8, SQL: "SELECT 1"}} }, "spec.migrations[0].version", "higher than spec.version, 7"},
		"two migrations of one version": {func(s *spec) {
			s.Migrations = []v1alpha1.Migration{{Version: 7, SQL: "SELECT 1"}, {Version: 7, SQL: "SELECT 1"}}
		}, "spec.migrations[1].version", ""},
		"a phase under strategy Barrier": {func(s *spec) { s.Migrations = []v1alpha1.Migration{{Version: 7, SQL: "SELECT 1", Phase: "Prepare"}} }, "spec.migrations[0].phase", "strategy Online only"},
		"SQL of white space":             {func(s *spec) { s.Migrations = []v1alpha1.Migration{{Version: 7, SQL: " \n"}} }, "spec.migrations[0].sql", "must not be empty"},
		"SQL with NUL":                   {func(s *spec) { s.Migrations = []v1alpha1.Migration{{Version: 7, SQL: "SELECT '\x00'"}} }, "spec.migrations[0].sql", "NUL"},
		"a checkpoint above the version": {func(s *spec) { s.Checkpoints[0].Version = 8 }, "spec.checkpoints[0].version", "higher than spec.version, 7"},
		"one checkpoint name twice":      {func(s *spec) { s.Checkpoints[1].Name = "title-norm" }, "spec.checkpoints[1].name", ""},
		"a source that is not declared": {func(s *spec) {
			s.Checkpoints[1].Sources[0].Table, s.Checkpoints[1].Sources[0].Keys = "owners", "SELECT 1"
		}, "spec.checkpoints[1].sources[0].table", "spec.tables declares no such table"},
		"one source twice": {func(s *spec) {
			s.Checkpoints[1].Sources = append(s.Checkpoints[1].Sources, s.Checkpoints[1].Sources[0])
		}, "spec.checkpoints[1].sources[1].table", ""},
		"a source column not declared": {func(s *spec) { s.Checkpoints[0].Sources[0].Columns = []string{"title", "colour"} }, "spec.checkpoints[0].sources[0].columns[1]", `table "todos" declares no such column`},
		"another source without keys":  {func(s *spec) { s.Checkpoints[0].Sources[0].Table = "notes" }, "spec.checkpoints[0].sources[0].keys", "the backfill goes over todos"},
		"keys of white space":          {func(s *spec) { s.Checkpoints[0].Sources[0].Keys = " " }, "spec.checkpoints[0].sources[0].keys", "must not be empty"},
		"a commit log over hashes":     {func(s *spec) { s.Tables[0].Partition = &v1alpha1.TablePartition{Hash: pointer(int32(16))} }, "spec.checkpoints[0].sources[0].changes", "partitioned by hash"},
		"an update of no declared table": {func(s *spec) {
			s.Checkpoints[0].Backfill.Update.Table, s.Checkpoints[0].Sources[0].Keys = "owners", "SELECT 1"
		}, "spec.checkpoints[0].backfill.update.table", "spec.tables declares no such table"},
		"an update of a Syncular table": {func(s *spec) {
			s.Checkpoints[0].Backfill.Update.Table, s.Checkpoints[0].Sources[0].Keys = "notes", "SELECT 1"
		}, "spec.checkpoints[0].backfill.update.table", "update is for Plain tables"},
		"an update of a missing column": {func(s *spec) { s.Checkpoints[0].Backfill.Update.Set["colour"] = "'red'" }, "spec.checkpoints[0].backfill.update.set[colour]", `table "todos" declares no such column`},
		"an update of a key column":     {func(s *spec) { s.Checkpoints[0].Backfill.Update.Set["id"] = "id + 1" }, "spec.checkpoints[0].backfill.update.set[id]", "it is a key column"},
		"an update of the partition":    {func(s *spec) { s.Checkpoints[0].Backfill.Update.Set["tenant"] = "'a'" }, "spec.checkpoints[0].backfill.update.set[tenant]", "it is the partition column"},
		"an update of white space":      {func(s *spec) { s.Checkpoints[0].Backfill.Update.Set["title_norm"] = " " }, "spec.checkpoints[0].backfill.update.set[title_norm]", "must not be empty"},
		"a statement over no such table": {func(s *spec) {
			s.Checkpoints[1].Backfill.Statement.Table, s.Checkpoints[1].Sources[0].Keys = "owners", "SELECT 1"
		}, "spec.checkpoints[1].backfill.statement.table", "spec.tables declares no such table"},
		"a statement that applies spaces": {func(s *spec) { s.Checkpoints[1].Backfill.Statement.Apply = " " }, "spec.checkpoints[1].backfill.statement.apply", "must not be empty"},
		"a statement that removes spaces": {func(s *spec) { s.Checkpoints[1].Backfill.Statement.Remove = " " }, "spec.checkpoints[1].backfill.statement.remove", "must not be empty"},
		"a verify of white space":         {func(s *spec) { s.Checkpoints[0].Verify = []v1alpha1.Verify{{Name: "a", Query: "\t"}} }, "spec.checkpoints[0].verify[0].query", "must not be empty"},
		"one verify twice": {func(s *spec) {
			s.Checkpoints[0].Verify = []v1alpha1.Verify{{Name: "a", Query: "SELECT 1"}, {Name: "a", Query: "SELECT 1"}}
		}, "spec.checkpoints[0].verify[1].name", ""},
		"a source column set by itself": {func(s *spec) { s.Checkpoints[0].Sources[0].Columns = []string{"title", "title_norm"} }, "spec.checkpoints[0].sources[0].columns[1]", `checkpoint "title-norm" sets this column`},

		"the partition of all":     {func(s *spec) { s.Checkpoints[0].Partitions = []string{"*"} }, "spec.checkpoints[0].partitions[0]", `the key "*" is reserved`},
		"a captured partition":     {func(s *spec) { s.Checkpoints[0].Partitions = []string{"a", "capture:todos/=a"} }, "spec.checkpoints[0].partitions[1]", "write the bare value"},
		"an empty partition":       {func(s *spec) { s.Checkpoints[0].Partitions = []string{""} }, "spec.checkpoints[0].partitions[0]", "must not be empty"},
		"a partition of 257 bytes": {func(s *spec) { s.Checkpoints[0].Partitions = []string{strings.Repeat("ä", 128) + "x"} }, "spec.checkpoints[0].partitions[0]", "at most 256 bytes, this one has 257"},
		"a verify name with NUL":   {func(s *spec) { s.Checkpoints[0].Verify = []v1alpha1.Verify{{Name: "a\x00", Query: "SELECT 1"}} }, "spec.checkpoints[0].verify[0].name", "NUL"},
		"a type with NUL": {func(s *spec) {
			s.Tables[0].Columns[1].Type, s.Tables[0].Columns[1].SQLType = "", "text\x00"
		}, "spec.tables[0].columns[1].sqlType", "NUL"},
		"a partition with NUL":         {func(s *spec) { s.Checkpoints[0].Partitions = []string{"a\x00"} }, "spec.checkpoints[0].partitions[0]", "NUL"},
		"a partition that is no UTF-8": {func(s *spec) { s.Checkpoints[0].Partitions = []string{"a\xff"} }, "spec.checkpoints[0].partitions[0]", "UTF-8"},
		"one partition twice":          {func(s *spec) { s.Checkpoints[0].Partitions = []string{"a", "a"} }, "spec.checkpoints[0].partitions[1]", ""},
		"partitions of an uncut table": {func(s *spec) { s.Tables[0].Partition, s.Checkpoints[0].Partitions = nil, []string{"default", "a"} }, "spec.checkpoints[0].partitions", `table "todos" declares no partition.column`},
	} {
		t.Run(name, func(t *testing.T) {
			s := clinicSpec(t)
			test.change(s)
			errs := Relations(s)
			if len(errs) != 1 || errs[0].Field != test.path || !strings.Contains(errs[0].Detail, test.detail) {
				t.Errorf("the errors are %v, want one for %s with %q", errs, test.path, test.detail)
			}
		})
	}
}

func TestRelationsRefuseWhatBreaksTwoRules(t *testing.T) {
	type spec = v1alpha1.SyncSchemaSpec
	for name, test := range map[string]struct {
		change func(*spec)
		paths  []string
	}{
		"a table without a key that is read and filled": {
			func(s *spec) { s.Tables[0].PrimaryKey = nil },
			[]string{"spec.checkpoints[0].sources[0].table", "spec.checkpoints[0].backfill.update.table"},
		},
		"a table called batch that is read and filled": {
			func(s *spec) {
				s.Tables[0].Name, s.Checkpoints[0].Sources[0].Table, s.Checkpoints[0].Backfill.Update.Table = "batch", "batch", "batch"
			},
			[]string{"spec.checkpoints[0].sources[0].table", "spec.checkpoints[0].backfill.update.table"},
		},
		"a job under strategy Online": {
			func(s *spec) {
				s.Strategy = &v1alpha1.Strategy{Type: v1alpha1.StrategyOnline}
				s.Checkpoints[0].Backfill = v1alpha1.Backfill{Job: &v1alpha1.JobBackfill{}}
			},
			[]string{"spec.strategy.type", "spec.checkpoints[0].backfill.job"},
		},
		"listed partitions of hashes under a commit log": {
			func(s *spec) {
				s.Tables[0].Partition = &v1alpha1.TablePartition{Hash: pointer(int32(4))}
				s.Checkpoints[0].Partitions = []string{"1"}
			},
			[]string{"spec.checkpoints[0].sources[0].changes", "spec.checkpoints[0].partitions"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := clinicSpec(t)
			test.change(s)
			var paths []string
			for _, err := range Relations(s) {
				paths = append(paths, err.Field)
			}
			if !slices.Equal(paths, test.paths) {
				t.Errorf("the errors are for %v, want %v", paths, test.paths)
			}
		})
	}
}

func TestRelationsAccept(t *testing.T) {
	type spec = v1alpha1.SyncSchemaSpec
	for name, change := range map[string]func(*spec){
		"the clinic as it is":             func(*spec) {},
		"names that need quoting":         func(s *spec) { rename(s, `Order "Data"; select`) },
		"names of 63 bytes":               func(s *spec) { rename(s, strings.Repeat("ä", 31)+"x") },
		"reserved words":                  func(s *spec) { rename(s, "select") },
		"a name that only contains sync_": func(s *spec) { rename(s, "my_sync_todos") },
		"a Plain column called _sync_x":   func(s *spec) { s.Tables[0].Columns[2].Name = "_sync_x" },
		"hostile partition keys": func(s *spec) {
			s.Checkpoints[0].Partitions = []string{"p'); DROP TABLE sync_commits;--", "%s", "$1", "a\nb", " ", "**"}
		},
		"a partition of 256 bytes":       func(s *spec) { s.Checkpoints[0].Partitions = []string{strings.Repeat("ä", 128)} },
		"partitions of a Syncular table": func(s *spec) { s.Checkpoints[1].Partitions = []string{"a", "b"} },
		"the default partition, uncut":   func(s *spec) { s.Tables[0].Partition, s.Checkpoints[0].Partitions = nil, []string{"default"} },
		"all partitions, uncut":          func(s *spec) { s.Tables[0].Partition = nil },
		"an unused table without a key":  func(s *spec) { s.Tables = append(s.Tables, v1alpha1.Table{Name: "x", Columns: s.Tables[0].Columns}) },
		"an unused table called batch": func(s *spec) {
			s.Tables = append(s.Tables, v1alpha1.Table{Name: "batch", Columns: s.Tables[0].Columns})
		},
		"minimums up to the version": func(s *spec) { s.MinReaderVersion, s.MinWriterVersion = pointer(int32(7)), pointer(int32(7)) },
		"migrations up to the version": func(s *spec) {
			s.Migrations = []v1alpha1.Migration{{Version: 6, SQL: "SELECT 1"}, {Version: 7, SQL: "SELECT 1"}}
		},
		"SQL from a ConfigMap": func(s *spec) {
			s.Migrations = []v1alpha1.Migration{{Version: 7, SQLFrom: make([]v1alpha1.ConfigMapValue, 1)}}
		},
		"a retired table":                  func(s *spec) { s.RetiredTables = []string{"old"} },
		"a job with two sources":           func(s *spec) { withJob(s) },
		"keys for another source":          func(s *spec) { s.Checkpoints[0].Sources = append(s.Checkpoints[0].Sources, withKeys("notes")) },
		"keys for the table itself":        func(s *spec) { s.Checkpoints[0].Sources[0].Keys = "SELECT id FROM changed" },
		"a source column that nobody sets": func(s *spec) { s.Checkpoints[0].Sources[0].Columns = []string{"title"} },
		"a column set at a lower version":  func(s *spec) { s.Checkpoints[0].Version = 6; readTitleNormAt(s, 7) },
	} {
		t.Run(name, func(t *testing.T) {
			s := clinicSpec(t)
			change(s)
			if errs := Relations(s); errs != nil {
				t.Error(errs)
			}
		})
	}
}

func rename(s *v1alpha1.SyncSchemaSpec, name string) {
	s.Tables[0].Name, s.Checkpoints[0].Sources[0].Table, s.Checkpoints[0].Backfill.Update.Table = name, name, name
	s.Tables[0].Columns[3].Name = name
	s.Checkpoints[0].Backfill.Update.Set = map[string]v1alpha1.Expression{name: "lower(title)"}
	s.Database.Postgres = &v1alpha1.PostgresDatabase{Schema: name}
}

func withJob(s *v1alpha1.SyncSchemaSpec) {
	s.Checkpoints[0].Backfill = v1alpha1.Backfill{Job: &v1alpha1.JobBackfill{}}
	s.Checkpoints[0].Sources = append(s.Checkpoints[0].Sources, v1alpha1.Source{Table: "notes", Changes: v1alpha1.ChangesCommitLog})
}

func withKeys(table string) v1alpha1.Source {
	return v1alpha1.Source{Table: table, Changes: v1alpha1.ChangesCommitLog, Keys: "SELECT todos.id FROM todos JOIN changed ON true"}
}

// readTitleNormAt adds a checkpoint that reads what title-norm sets.
func readTitleNormAt(s *v1alpha1.SyncSchemaSpec, version int32) {
	s.Checkpoints = append(s.Checkpoints, v1alpha1.Checkpoint{
		Name: "reader", Version: version,
		CheckpointDefinition: v1alpha1.CheckpointDefinition{
			Sources:  []v1alpha1.Source{{Table: "todos", Changes: v1alpha1.ChangesCommitLog, Columns: []string{"title_norm"}}},
			Backfill: v1alpha1.Backfill{Statement: &v1alpha1.Statement{Table: "todos", Apply: "SELECT 1"}},
		},
	})
}

func TestRelationsRefuseAColumnThatOneCheckpointSetsAndAnotherReads(t *testing.T) {
	s := clinicSpec(t)
	readTitleNormAt(s, 7)
	errs := Relations(s)
	if len(errs) != 1 || errs[0].Field != "spec.checkpoints[2].sources[0].columns[0]" || !strings.Contains(errs[0].Detail, `checkpoint "title-norm" sets this column`) {
		t.Errorf("the errors are %v", errs)
	}
}

func TestRelationsCheckStandaloneCheckpointsAgainstTheSchema(t *testing.T) {
	type standalone = v1alpha1.BackfillCheckpoint
	for name, test := range map[string]struct {
		change func(*standalone)
		want   string
	}{
		"one that fits":                       {func(*standalone) {}, ""},
		"one above the version, which waits":  {func(c *standalone) { c.Spec.Version = 8 }, ""},
		"a name that the schema has":          {func(c *standalone) { c.Spec.Checkpoint.Name = "title-norm" }, "BackfillCheckpoint[clinic-late].spec.name: Duplicate value"},
		"a source that is not declared":       {func(c *standalone) { c.Spec.Sources[0].Table, c.Spec.Sources[0].Keys = "owners", "SELECT 1" }, "BackfillCheckpoint[clinic-late].spec.sources[0].table: Invalid value"},
		"a partition that is reserved":        {func(c *standalone) { c.Spec.Partitions = []string{"*"} }, "BackfillCheckpoint[clinic-late].spec.partitions[0]: Invalid value"},
		"a column that the schema's one sets": {func(c *standalone) { c.Spec.Sources[0].Columns = []string{"title_norm"} }, "BackfillCheckpoint[clinic-late].spec.sources[0].columns[0]: Invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			file := mustParse(t, clinic+"---\n"+late)
			test.change(&file.Checkpoints[0])
			got := ""
			for _, err := range Relations(&file.Schema.Spec, file.Checkpoints...) {
				got += err.Error()
			}
			if !strings.HasPrefix(got, test.want) || (test.want == "") != (got == "") {
				t.Errorf("the errors are %q, want %q", got, test.want)
			}
		})
	}
}

// A controller may see objects that were stored before a bound was made.
func TestRelationsPanicForNoObject(t *testing.T) {
	for i, s := range []v1alpha1.SyncSchemaSpec{
		{},
		{Tables: make([]v1alpha1.Table, 2), Migrations: make([]v1alpha1.Migration, 2), Checkpoints: make([]v1alpha1.Checkpoint, 2)},
		{Tables: []v1alpha1.Table{{Partition: &v1alpha1.TablePartition{}, Indexes: make([]v1alpha1.Index, 2), Columns: make([]v1alpha1.Column, 2)}}},
		{Checkpoints: []v1alpha1.Checkpoint{{CheckpointDefinition: v1alpha1.CheckpointDefinition{
			Sources: make([]v1alpha1.Source, 2), Verify: make([]v1alpha1.Verify, 2), Partitions: make([]string, 2),
			Backfill: v1alpha1.Backfill{Update: &v1alpha1.Update{}, Statement: &v1alpha1.Statement{}},
		}}}},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if errs := Relations(&s, make([]v1alpha1.BackfillCheckpoint, 2)...); len(errs) == 0 {
				t.Error("two checkpoints without a name are right")
			}
		})
	}
}
