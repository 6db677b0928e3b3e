package postgres

import (
	"errors"
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

// A table that somebody holds is named as it is called, and found again by that name: for who holds it, and to be waited for first.
func TestAHeldTableOfAnyNameIsNamedAndWaitedFor(t *testing.T) {
	db := newBarrierDB(t, Config{Schema: `of."others"`})
	for _, name := range []string{`it's "a" dot.ted; --`, "public.t", `of."others".t`} {
		table := storage.Table{Name: name, Layout: storage.Plain, Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}}, PrimaryKey: []string{"id"}}
		version, err := db.store.Status(db.ctx)
		if err != nil {
			t.Fatal(err)
		}
		db.mustApply(target(version.StoredVersion+1, table))
		table.Columns = append(table.Columns, storage.Column{Name: "late", Type: storage.TypeString, Nullable: true})
		holder := db.connect()
		db.execOn(holder, "BEGIN")
		db.execOn(holder, `LOCK TABLE "of.""others""".`+quoteIdentifier(name)+" IN ACCESS SHARE MODE")
		for _, attempt := range []storage.Attempt{{Number: 1}, {Number: 2, First: name}} {
			wanted := target(version.StoredVersion+2, table)
			wanted.Lock.TimeoutMilliseconds = 100
			_, err = db.store.EnsureSchema(db.ctx, wanted, attempt)
			wantRefusal(t, err, storage.CodeLockTimeout, name)
			var refused *storage.Error
			if !errors.As(err, &refused) || refused.Table != name || len(refused.Blocked) != 1 || refused.Blocked[0].PID != int(holder.PgConn().PID()) {
				t.Errorf("refused for table %q by %+v", refused.Table, refused.Blocked)
			}
		}
		db.execOn(holder, "ROLLBACK")
		db.mustApply(target(version.StoredVersion+2, table))
	}
}
