package postgres

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
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

// A database in an older encoding takes the names that it has letters for.
func TestNamesAreLimitedByTheEncodingOfTheDatabase(t *testing.T) {
	base := testdb.Postgres(t)
	admin := connect(t, base)
	latin := strings.TrimPrefix(value[string](admin, "SELECT current_database()::text"), "/") + "_l1"
	admin.run("CREATE DATABASE " + quoteIdentifier(latin) + " ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	t.Cleanup(func() { admin.run("DROP DATABASE " + quoteIdentifier(latin) + " WITH (FORCE)") })
	db := newBarrierDB(t, Config{URL: changed(t, base, func(u *url.URL) { u.Path = "/" + latin })})
	named := func(name string) storage.Target {
		table := plainTodos(titleNorm)
		table.Name = name
		wanted := target(2, table)
		wanted.Checkpoints = []storage.Checkpoint{{
			Name: name, Version: 2, Sources: []storage.Source{{Table: name, Changes: storage.Capture}}, Backfill: storage.Backfill{Job: true},
		}}
		return wanted
	}
	db.exec(`SET client_encoding = 'UTF8'`)
	db.exec(`CREATE TABLE "naïve"(id bigint PRIMARY KEY, tenant text, title text, title_norm text)`)
	db.refuses(named("😀"), storage.CodeInvalidSpec, "22P05", "encoding of this database")
	db.mustApply(named("naïve"))
	db.wantSettled(named("naïve"))
	db.wantText("naïve", `SELECT string_agg(relname, ', ') FROM pg_class WHERE relkind = 'r' AND relname LIKE 'na%'`)
	db.wantText("naïve", `SELECT name FROM sync_backfill_checkpoints`)
	_, err := db.store.MaxCommitSeq(db.ctx, "😀")
	wantRefusal(t, err, storage.CodeInvalidSpec, "encoding of this database")
	for name, word := range map[string]string{strings.Repeat("n", 64): "63 bytes", "a\x00b": "NUL", "\xff": "UTF-8", "none": "has no schema"} {
		_, err := Open(db.ctx, Config{URL: db.url, Schema: name})
		wantRefusal(t, err, storage.CodeInvalidSpec, "schema", word)
	}
}

// SQL of a version may be a dump's, which says in what encoding it is. What we say after it is still in ours.
func TestNamesMeanTheSameAfterSQLInAnotherEncoding(t *testing.T) {
	db := newBarrierDB(t, Config{Schema: "Größe"})
	table := plainTodos(titleNorm)
	table.Name = "naïve"
	wanted := target(2, table)
	wanted.Migrations = []storage.Migration{{Version: 2, SQL: `SET client_encoding = 'LATIN1'; CREATE TABLE of_the_dump(i integer)`}}
	wanted.Checkpoints = []storage.Checkpoint{{
		Name: "fül", Version: 2, Sources: []storage.Source{{Table: "naïve", Changes: storage.Capture}}, Backfill: storage.Backfill{Job: true},
	}}
	db.mustApply(wanted)
	db.wantSettled(wanted)
	db.wantText("fül", `SELECT name FROM "Größe".sync_backfill_checkpoints`)
	db.wantText("Größe.naïve", `SELECT DISTINCT n.nspname || '.' || c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE t.tgname = 'syncbarrier_fence_source'`)
}
