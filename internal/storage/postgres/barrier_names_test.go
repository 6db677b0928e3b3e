package postgres

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Names that need quoting, reach the limit, or try to be SQL.
func TestNamesThatNeedQuotingWorkEndToEnd(t *testing.T) {
	long := strings.Repeat("n", 63)
	names := map[string]string{
		"a reserved word":        "select",
		"a quotation mark":       `say "hi"; DROP TABLE sync_commits; --`,
		"a name with 63 bytes":   long,
		"more than one byte":     strings.Repeat("ü", 31),
		"a single quote":         "it's",
		"a backslash":            `back\slash`,
		"a percent and a dollar": "100%s $1 $$",
		"upper case":             "CommitLog",
		"a line end":             "two\nlines",
	}
	for what, name := range names {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t, Config{Schema: "Order Data"})
			column := storage.Column{Name: "user", Type: storage.TypeString}
			plain := storage.Table{
				Name: name, Layout: storage.Plain, Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}, column}, PrimaryKey: []string{"id"},
			}
			db.mustApply(target(6, plain))
			db.exec(`INSERT INTO "Order Data".` + quoteIdentifier(name) + ` VALUES (1, 'Ann')`)

			grown := plain
			odd := storage.Column{Name: name, Type: storage.TypeString, Nullable: true}
			grown.Columns = append(grown.Columns[:2:2], odd)
			grown.Indexes = []storage.Index{{Name: "ix " + beginning(name), Columns: []string{"user", name}, Unique: true}}
			syncular := storage.Table{Name: "s " + beginning(name), Layout: storage.Syncular, Materialize: true, Columns: []storage.Column{odd}}
			wanted := target(7, grown, syncular)
			wanted.Checkpoints = []storage.Checkpoint{{
				Name: "fill " + name, Version: 7,
				Sources:  []storage.Source{{Table: name, Changes: storage.CommitLog, Columns: []string{"user"}}},
				Backfill: storage.Backfill{Update: &storage.Update{Table: name, Set: map[string]string{name: `lower("user")`}}},
			}}
			wanted.Migrations = []storage.Migration{{Version: 7, SQL: "UPDATE " + quoteIdentifier(name) + ` SET "user" = upper("user")`}}
			db.mustApply(wanted)
			db.wantText("ANN", `SELECT "user" FROM "Order Data".`+quoteIdentifier(name))
			db.wantText("7", `SELECT required_writer_version FROM "Order Data".sync_writer_fence WHERE partition = '*'`)
			db.wantText("3", `SELECT count(*) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0`, `"Order Data".`+quoteIdentifier(name))
			if result, err := db.once(wanted); err != nil || result.Outcome != storage.Agreed {
				t.Errorf("its own tables, indexes and triggers are not found again: %+v, %v", result, err)
			}
			retiring := target(8, syncular)
			retiring.RetiredTables = []string{name}
			retiring.Checkpoints = wanted.Checkpoints
			db.refuses(retiring, storage.CodeCheckpointIncomplete)
			db.wantText("sync_commits", `SELECT relname FROM pg_class WHERE relname = 'sync_commits'`)
			db.wantText("0", `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public'`)
		})
	}
}

// beginning gives the first 20 characters of a name.
func beginning(name string) string {
	runes := []rune(name)
	return string(runes[:min(len(runes), 20)])
}

func TestANameThatTheDatabaseWouldCutIsRefusedBeforeAnyLock(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(5))
	long := strings.Repeat("n", 64)
	table := func(name string, columns ...storage.Column) storage.Table {
		return storage.Table{Name: name, Layout: storage.Plain, Columns: append([]storage.Column{{Name: "id", Type: storage.TypeInteger}}, columns...), PrimaryKey: []string{"id"}}
	}
	indexed := table("t")
	indexed.Indexes = []storage.Index{{Name: long, Columns: []string{"id"}}}
	// With this held, any attempt to lock would be refused as such.
	tx, err := db.connect().Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, "LOCK TABLE sync_schema_meta, sync_commits IN ACCESS SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	db.refuses(target(6, table(long)), storage.CodeInvalidSpec, long, "63 bytes")
	db.refuses(target(6, table(strings.Repeat("ü", 32))), storage.CodeInvalidSpec, "63 bytes")
	db.refuses(target(6, table("t", storage.Column{Name: long, Type: storage.TypeString, Nullable: true})), storage.CodeInvalidSpec, long, "63 bytes")
	db.refuses(target(6, indexed), storage.CodeInvalidSpec, long, "63 bytes")
	if err := tx.Rollback(db.ctx); err != nil {
		t.Fatal(err)
	}
}

func TestIndexNamesThatWouldBeCutToTheSameStayApart(t *testing.T) {
	db := newBarrierDB(t)
	same := strings.Repeat("i", 60)
	one, two := storage.Index{Name: same + "one", Columns: []string{"title"}}, storage.Index{Name: same + "two", Columns: []string{"tenant"}}
	table := plainTodos()
	table.Indexes = []storage.Index{one, two}
	db.mustApply(target(6, table))
	db.wantText("title, tenant", `SELECT string_agg(a.attname, ', ' ORDER BY a.attnum DESC) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
		JOIN pg_class x ON x.oid = i.indexrelid WHERE x.relname IN ($1, $2)`, storage.IndexName(one.Name), storage.IndexName(two.Name))
	if result := db.mustApply(target(7, table)); result.Statements != 0 {
		t.Errorf("%d statements for indexes that are as they should be", result.Statements)
	}
}

func TestHostilePartitionKeysAreOnlyEverValues(t *testing.T) {
	db := newBarrierDB(t)
	keys := []string{"p'); DROP TABLE sync_commits;--", "%s", "$1", "two\nlines", `"`, strings.Repeat("k", 2000), "ключ"}
	wanted := target(7, plainTodos(titleNorm))
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 7, keys...)}
	db.mustApply(wanted)
	for _, key := range keys {
		db.wantText("7", "SELECT required_writer_version FROM sync_writer_fence WHERE partition = $1", key)
		db.wantText("declared", "SELECT state FROM sync_backfill_checkpoints WHERE partition = $1", key)
		db.exec(insertCommit, key, 7)
		if _, err := db.conn.Exec(db.ctx, insertCommit, key, 6); err == nil {
			t.Errorf("partition %q: an old writer was let in", key)
		}
	}
	for _, key := range []string{"", "*", "capture:todos/", strings.Repeat("k", 2001), "no\x00null", "\xff"} {
		wanted := target(8, plainTodos(titleNorm))
		wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 7, keys...), normCheckpoint("other", 8, key)}
		db.refuses(wanted, storage.CodeInvalidSpec)
	}
}
