package storagetest

import (
	"strings"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// holdingEverything runs f while another program holds all that a barrier locks, and what it reads too where the product has such a lock. What
// is judged before any lock does not notice.
func (f *fixture) holdingEverything(do func()) {
	f.Helper()
	holder := f.db.Connect(f.T)
	statements := []string{"BEGIN", "LOCK TABLE sync_schema_meta, sync_commits, sync_partitions, sync_barrier_owner, todos IN ACCESS EXCLUSIVE MODE"}
	if f.db.Dialect == storage.SQLite {
		statements = []string{"BEGIN IMMEDIATE"}
	}
	for _, statement := range append(statements, "") {
		if statement == "" {
			do()
			statement = "ROLLBACK"
		}
		_, err := holder.Exec(f.ctx, statement)
		f.must(err, statement)
	}
}

// refusedAtOnce checks that a target is refused as InvalidSpec naming the field, by barrier and plan, and that nothing was waited for.
func (f *fixture) refusedAtOnce(target storage.Target, words ...string) {
	f.Helper()
	target.Lock.TimeoutMilliseconds = int(time.Hour / time.Millisecond)
	f.wantMessage(f.refuse(target, storage.CodeInvalidSpec), words...)
	_, err := f.store.Plan(f.ctx, target)
	f.wantCode(err, storage.CodeInvalidSpec)
}

// unfitNames are names that no product takes, with what is said of them.
var unfitNames = map[string]string{
	"":                            "empty",
	strings.Repeat("n", 64):       "63 bytes",
	"a" + strings.Repeat("日", 21): "63 bytes", // the 63rd byte is inside a letter
	strings.Repeat("ü", 32):       "63 bytes",
	"nul\x00l":                    "NUL",
	"\xff\xfe":                    "UTF-8",
}

func hostileRefused(f *fixture) {
	f.apply(version1())
	own := []string{"sync_commits", "SYNC_x", "syncbarrier_x", "SyncBarrier_fence"}
	columns := map[storage.Dialect][]string{storage.PostgreSQL: {"xmin", "ctid", "tableoid", "cmax"}, storage.SQLite: nil}[f.db.Dialect]
	if f.db.Dialect == storage.SQLite {
		own = append(own, "sqlite_x", "SQLite_y", "json_each", "pragma_table_info")
	}
	f.holdingEverything(func() {
		for name, problem := range unfitNames {
			f.refusedAtOnce(withTable(name), "tables:", problem)
			f.refusedAtOnce(withColumn(name), "tables:", "column", problem)
			f.refusedAtOnce(withIndex(name, "more"), "tables:", "index", problem)
			retiring := version2()
			retiring.RetiredTables = []string{name}
			f.refusedAtOnce(retiring, "retiredTables:", problem)
		}
		for _, name := range own {
			f.refusedAtOnce(withTable(name), "tables:", name, "own")
		}
		for _, name := range columns {
			f.refusedAtOnce(withColumn(name), "tables:", name, "system column")
		}
		for name, word := range map[string]string{"": "no name", "a\x00b": "NUL", "\xff": "UTF-8", strings.Repeat("c", 254): "253 bytes"} {
			f.refusedAtOnce(version2(external(name, 2)), "checkpoint", word)
		}
	})
	if f.db.Dialect == storage.SQLite {
		f.wantMessage(f.refuse(withColumn("RowID"), storage.CodeInvalidSpec), "RowID", "row's number")
	}
	same(f, "marker", f.number("SELECT schema_version FROM sync_schema_meta"), 1)
}

func withTable(name string) storage.Target {
	target := version2()
	named := words()
	named.Name = name
	target.Tables = append(target.Tables, named)
	return target
}

func withColumn(names ...string) storage.Target {
	target := version2()
	for _, name := range names {
		target.Tables[0].Columns = append(target.Tables[0].Columns, nullable(name, storage.TypeString))
	}
	return target
}

func withIndex(names ...string) storage.Target {
	target := version2()
	for _, name := range names {
		target.Tables[0].Indexes = append(target.Tables[0].Indexes, storage.Index{Name: name, Columns: []string{"title"}})
	}
	return target
}

func hostileCase(f *fixture) {
	f.apply(version1())
	targets := map[string]storage.Target{"table": withTable("Todos"), "column": withColumn("Title_Norm", "TITLE"), "index": withIndex("by title", "By Title")}
	if f.db.Dialect == storage.SQLite {
		f.holdingEverything(func() {
			for what, target := range targets {
				err := f.refuse(target, storage.CodeInvalidSpec)
				f.wantMessage(err, "tables:", what[1:])
			}
		})
		return
	}
	all := targets["table"]
	all.Tables[0].Columns, all.Tables[0].Indexes = targets["column"].Tables[0].Columns, targets["index"].Tables[0].Indexes
	f.apply(all)
	f.settled(all)
	same(f, "tables", f.number(`SELECT count(*) FROM "Todos"`), 0)
	same(f, "columns", f.number(`SELECT count(*) FROM todos WHERE "Title_Norm" IS NULL AND "TITLE" IS NULL`), 0)
}

func hostileIndexes(f *fixture) {
	long := strings.Repeat("i", 60)
	names := []string{long + "one", long + "two", "x", "sync_ix_x", "sync_ix_sync_ix_x", strings.TrimPrefix(storage.IndexName(long+"one"), "sync_ix_") + "z"}
	target := withIndex(names...)
	for i := range names {
		target.Tables[0].Indexes[i].Columns = [][]string{{"title"}, {"tenant"}, {"title", "tenant"}, {"tenant", "title"}, {"id", "title"}, {"id", "tenant"}}[i]
	}
	f.apply(target)
	f.settled(target)
	before := f.catalogue()
	target.Version = 3
	f.apply(target)
	same(f, "the catalogue with indexes that are as they should be", f.catalogue(), before)
	target.Version, target.Tables[0].Indexes = 4, target.Tables[0].Indexes[2:4]
	f.apply(target)
	f.settled(target)
	twins := withIndex("same", "same")
	twins.Version = 5
	f.wantMessage(f.refuse(twins, storage.CodeInvalidSpec), "same")
}

func hostileKeysRefused(f *fixture) {
	f.apply(version1())
	keys := map[string]string{
		"": "empty", "*": "reserved", "capture:": "reserved", "capture:todos/": "reserved", "a\x00b": "NUL", "\xff": "UTF-8",
		strings.Repeat("k", 10<<10): "2000", strings.Repeat("k", storage.MaxPartitionBytes+1): "2000",
	}
	f.holdingEverything(func() {
		for key, word := range keys {
			f.refusedAtOnce(version2(external("letters", 2, "a", key)), "letters", "partition", word)
			_, err := f.store.Begin(f.ctx, key, 2)
			f.wantCode(err, storage.CodeInvalidSpec)
			f.wantMessage(err, "partition", word)
		}
	})
	same(f, "checkpoints", f.number("SELECT count(*) FROM sync_backfill_checkpoints"), 0)
}
