package property

import (
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The clinic of these tests: todos of three partitions, each version with one more column, most versions with a checkpoint.

const lastVersion = 6

var keys = []string{"a", "b", "c"}

// checkpointOf is what a version declares: SQL over all, SQL over two partitions, a program's own over one, in turn; the first has none.
func checkpointOf(version int64) (storage.Checkpoint, bool) {
	c := storage.Checkpoint{Name: fmt.Sprintf("fill-%d", version), Version: version}
	switch {
	case version == 1:
		return storage.Checkpoint{}, false
	case version%3 == 0:
		return filledBySQL(c, column(version), "a", "b"), true
	case version%3 == 1:
		return external(c, "a"), true
	}
	return filledBySQL(c, column(version)), true
}

// extra are the checkpoints that stand beside the schema.
func extra(name string, version int64) storage.Checkpoint {
	c := storage.Checkpoint{Name: name, Version: version, Standalone: true}
	if name == "extra-b" {
		return external(c, "b")
	}
	return filledBySQL(c, "more")
}

func column(version int64) string { return fmt.Sprintf("title_%d", version) }

func filledBySQL(c storage.Checkpoint, column string, partitions ...string) storage.Checkpoint {
	c.Partitions = partitions
	c.Sources = []storage.Source{{Table: "todos", Changes: storage.CommitLog}}
	c.Backfill.Update = &storage.Update{Table: "todos", Set: map[string]string{column: "lower(title)"}}
	c.Verify = []storage.Verify{{Name: "none-wrong", Query: fmt.Sprintf("SELECT id FROM todos WHERE %[1]s IS NULL OR %[1]s <> lower(title)", column)}}
	c.Settings.BatchRows = batchRows
	return c
}

func external(c storage.Checkpoint, partitions ...string) storage.Checkpoint {
	c.Partitions = partitions
	c.Sources = []storage.Source{{Table: "todos", Changes: storage.CommitLog}}
	c.Backfill.Job = true
	return c
}

func todosAt(version int64) storage.Table {
	t := storage.Table{
		Name: "todos", Layout: storage.Plain, PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "tenant"},
		Columns: []storage.Column{
			{Name: "id", Type: storage.TypeInteger}, {Name: "tenant", Type: storage.TypeString}, {Name: "title", Type: storage.TypeString},
			{Name: "more", Type: storage.TypeString, Nullable: true},
		},
	}
	for v := int64(2); v <= version; v++ {
		t.Columns = append(t.Columns, storage.Column{Name: column(v), Type: storage.TypeString, Nullable: true})
	}
	return t
}

// targetAt is the schema of a version. With the index it is another content of the same version.
func targetAt(version int64, owner string, indexed bool) storage.Target {
	target := storage.Target{Version: version, Tables: []storage.Table{todosAt(version)}, Owner: storage.Owner{Namespace: "default", Name: owner}}
	for v := int64(1); v <= version; v++ {
		if c, ok := checkpointOf(v); ok {
			target.Checkpoints = append(target.Checkpoints, c)
		}
	}
	if indexed {
		target.Tables[0].Indexes = []storage.Index{{Name: "by_title", Columns: []string{"title"}}}
	}
	return target
}

// columnOf is the column that a checkpoint fills.
func columnOf(name string) string {
	var version int64
	if _, err := fmt.Sscanf(name, "fill-%d", &version); err == nil {
		return column(version)
	}
	return "more"
}

var titles = storage.RegisteredQuery{Name: "titles", SQL: "SELECT title FROM todos WHERE tenant = $1 ORDER BY id"}
