package storagetest

import (
	"slices"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The clinic of these tests: todos are laid out Plain and belong to the tenant's partition, notes are Syncular, words are
// derived from todos.

func todos(more ...storage.Column) storage.Table {
	columns := []storage.Column{
		{Name: "id", Type: storage.TypeInteger},
		{Name: "tenant", Type: storage.TypeString},
		{Name: "title", Type: storage.TypeString},
	}
	return storage.Table{
		Name: "todos", Layout: storage.Plain, Columns: append(columns, more...), PrimaryKey: []string{"id"},
		Partition: storage.Partition{Column: "tenant"},
	}
}

func words() storage.Table {
	return storage.Table{
		Name: "words", Layout: storage.Plain, PrimaryKey: []string{"id"},
		Columns: []storage.Column{
			{Name: "id", Type: storage.TypeInteger},
			{Name: "word", Type: storage.TypeString},
		},
	}
}

func notes(more ...storage.Column) storage.Table {
	return storage.Table{
		Name: "notes", Layout: storage.Syncular, Materialize: true,
		Columns: append([]storage.Column{{Name: "title", Type: storage.TypeString}}, more...),
	}
}

func nullable(name string, t storage.ColumnType) storage.Column {
	return storage.Column{Name: name, Type: t, Nullable: true}
}

var owner = storage.Owner{Namespace: "default", Name: "clinic"}

// version1 is where a database of these tests begins.
func version1() storage.Target {
	return storage.Target{Version: 1, Tables: []storage.Table{todos(), notes()}, Owner: owner}
}

// version2 adds a column to todos and the checkpoints given.
func version2(checkpoints ...storage.Checkpoint) storage.Target {
	return storage.Target{
		Version: 2, Tables: []storage.Table{todos(nullable("title_norm", storage.TypeString)), notes()},
		Checkpoints: checkpoints, Owner: owner,
	}
}

// next is the same schema one version on, with more checkpoints.
func next(t storage.Target, checkpoints ...storage.Checkpoint) storage.Target {
	t.Version++
	t.Checkpoints = append(slices.Clone(t.Checkpoints), checkpoints...)
	return t
}

// titleNorm fills todos.title_norm.
func titleNorm(version int64, partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "title-norm", Version: version, Partitions: partitions,
		Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{"title_norm": "lower(title)"}}},
		Verify: []storage.Verify{{
			Name: "none-wrong", Query: "SELECT id FROM todos WHERE title_norm IS NULL OR title_norm <> lower(title)",
		}},
	}
}

// todoWords derives the table words from todos by statements of its own.
func todoWords(version int64, partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "todo-words", Version: version, Partitions: partitions,
		Sources: []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Statement: &storage.Statement{
			Table: "todos",
			Apply: `INSERT INTO words (id, word)
				SELECT todos.id, lower(todos.title) FROM todos JOIN batch ON todos.id = batch.id WHERE true
				ON CONFLICT (id) DO UPDATE SET word = excluded.word`,
			Remove: `DELETE FROM words WHERE id IN (SELECT id FROM batch)`,
		}},
		Verify: []storage.Verify{{
			Name:  "all-there",
			Query: "SELECT todos.id FROM todos LEFT JOIN words ON words.id = todos.id WHERE words.word IS NULL OR words.word <> lower(todos.title)",
		}},
	}
}

// external is a checkpoint that a program of the user's own fills.
func external(name string, version int64, partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: name, Version: version, Partitions: partitions,
		Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Job: true},
	}
}

func minimum(v int64) *int64 { return &v }
