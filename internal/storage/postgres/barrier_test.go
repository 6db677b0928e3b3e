package postgres

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestAnEmptyDatabaseIsBroughtToItsFirstVersion(t *testing.T) {
	db := newBarrierDB(t)
	wanted := target(7, plainTodos(titleNorm), syncularNotes(3))
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("title-norm", 7)}

	result := db.mustApply(wanted)
	if result.Outcome != storage.Migrate || result.Stored != 0 || result.Version != 7 || result.Statements != 2 ||
		!slices.Equal(result.Declared, []string{"title-norm"}) || result.LockHold <= 0 {
		t.Errorf("got %+v", result)
	}
	db.wantText("7", "SELECT schema_version FROM sync_schema_meta")
	db.wantText(`{"notes":[{"name":"title","type":"string","nullable":false},{"name":"size","type":"integer","nullable":false},{"name":"done","type":"boolean","nullable":true}]}`,
		"SELECT layouts FROM sync_schema_meta")
	db.wantText("7", "SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'")
	db.wantText("declared 7", "SELECT state || ' ' || schema_version FROM sync_backfill_checkpoints WHERE partition = '*' AND name = 'title-norm'")
	db.wantText("id bigint NOT NULL, tenant text NOT NULL, title text NOT NULL, title_norm text", columnsOf, "todos")
	db.wantText("_sync_partition text NOT NULL, _sync_row_id text NOT NULL, title text NOT NULL, size bigint NOT NULL, done boolean, "+
		"_sync_server_version bigint NOT NULL, _sync_scopes jsonb NOT NULL, _sync_payload bytea NOT NULL", columnsOf, "notes")
	db.wantText("clinic", "SELECT name FROM sync_barrier_owner")
	db.wantText("7 applied 1 7", "SELECT version || ' ' || state || ' ' || attempts || ' ' || min_writer_version FROM sync_barrier_history")

	again, err := db.once(wanted)
	if err != nil || again.Outcome != storage.Agreed {
		t.Errorf("asked again: %+v, %v", again, err)
	}
}

// columnsOf lists the columns of a table with their types.
const columnsOf = `
	SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END, ', ' ORDER BY a.attnum)
	  FROM pg_attribute a
	 WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped`

func TestColumnsAreAddedToAPlainTableThatWasThereBefore(t *testing.T) {
	db := newBarrierDB(t)
	db.exec(`CREATE TABLE todos(id integer PRIMARY KEY, tenant varchar(20), title varchar(200) NOT NULL, secret inet)`)
	db.exec(`INSERT INTO todos VALUES (1, 'a', 'One', NULL)`)
	price := storage.Column{Name: "price", SQLType: "NUMERIC ( 12,2 )", Nullable: true}

	db.mustApply(target(6, plainTodos(titleNorm, price)))
	db.wantText("id integer NOT NULL, tenant character varying(20), title character varying(200) NOT NULL, secret inet, title_norm text, price numeric(12,2)", columnsOf, "todos")
	db.wantText("One", "SELECT title FROM todos WHERE id = 1")

	t.Run("a NOT NULL column needs an empty table", func(t *testing.T) {
		needed := storage.Column{Name: "needed", Type: storage.TypeInteger}
		db.refuses(target(7, plainTodos(titleNorm, price, needed)), storage.CodeInvalidSpec, `"needed"`, "NOT NULL", "has rows")
		db.exec("DELETE FROM todos")
		db.mustApply(target(7, plainTodos(titleNorm, price, needed)))
		db.wantText("true", "SELECT attnotnull FROM pg_attribute WHERE attrelid = 'todos'::regclass AND attname = 'needed'")
	})
}

func TestTypesThatTheDatabaseDoesNotKnowAreRefused(t *testing.T) {
	db := newBarrierDB(t)
	for _, sqlType := range []string{"no_such_type", "numeric(1,2", "int); DROP TABLE x; --", "serial", "numeric(-1)", "int, pg_sleep(10)"} {
		t.Run(sqlType, func(t *testing.T) {
			db.refuses(target(1, plainTodos(storage.Column{Name: "odd", SQLType: sqlType, Nullable: true})), storage.CodeInvalidSpec, `"odd"`, "knows no type")
		})
	}
	db.wantText("", "SELECT to_regclass('sync_barrier_owner')") // nothing was installed for a target that is refused
}

func TestOnlyIndexesThatDifferAreTouched(t *testing.T) {
	db := newBarrierDB(t)
	byTitle := storage.Index{Name: "by_title", Columns: []string{"title"}}
	byTenant := storage.Index{Name: "by_tenant", Columns: []string{"tenant", "title"}}
	first := plainTodos()
	first.Indexes = []storage.Index{byTitle, byTenant}
	db.mustApply(target(6, first))
	db.exec("CREATE INDEX mine ON todos(title, id)")
	db.exec("ALTER TABLE todos ADD CONSTRAINT sync_ix_owned UNIQUE (tenant, id)")
	const fileOf = "SELECT relfilenode FROM pg_class WHERE relname = $1"
	kept, changed := db.text(fileOf, "sync_ix_by_title"), db.text(fileOf, "sync_ix_by_tenant")

	second := plainTodos()
	second.Indexes = []storage.Index{byTitle, {Name: "by_tenant", Columns: []string{"tenant"}}, {Name: strings.Repeat("long", 15), Columns: []string{"id"}, Unique: true}}
	result := db.mustApply(target(7, second))
	if result.Statements != 3 {
		t.Errorf("%d statements, want drop, create, create", result.Statements)
	}
	db.wantText(kept, fileOf, "sync_ix_by_title")
	if db.text(fileOf, "sync_ix_by_tenant") == changed {
		t.Error("an index over other columns was kept")
	}
	db.wantText("1", "SELECT count(*) FROM pg_indexes WHERE indexname = $1 AND indexdef LIKE '%UNIQUE%'", storage.IndexName(strings.Repeat("long", 15)))
	db.wantText("2", "SELECT count(*) FROM pg_indexes WHERE indexname IN ('mine', 'sync_ix_owned')")
}

func TestAUniqueIndexOverEqualValuesIsRefusedWithoutThem(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(6, plainTodos()))
	db.exec("INSERT INTO todos VALUES (1, 'a', 'SECRET'), (2, 'a', 'SECRET')")
	unique := plainTodos()
	unique.Indexes = []storage.Index{{Name: "by_title", Columns: []string{"title"}, Unique: true}}
	_, err := db.once(target(7, unique))
	wantRefusal(t, err, storage.CodeInvalidSpec, "sync_ix_by_title", "todos")
	if strings.Contains(err.Error(), "SECRET") {
		t.Errorf("the error repeats row data: %v", err)
	}
	db.wantText("6", "SELECT schema_version FROM sync_schema_meta")
}

func TestAppendedColumnsRewriteEveryPayloadOnce(t *testing.T) {
	for _, test := range []struct {
		old, now  int
		stored    string
		rewritten string
	}{
		{old: 3, now: 5, stored: "03aabb", rewritten: "1baabb"},
		{old: 3, now: 8, stored: "03aabb", rewritten: "fbaabb"},
		{old: 3, now: 9, stored: "03aabb", rewritten: "fb01aabb"},
		{old: 8, now: 9, stored: "00cc", rewritten: "0001cc"},
		{old: 9, now: 26, stored: "0001dd", rewritten: "00ffff03dd"},
	} {
		t.Run(fmt.Sprintf("from %d to %d columns", test.old, test.now), func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t)
			db.mustApply(target(6, syncularNotes(test.old)))
			db.exec(`INSERT INTO notes(_sync_partition, _sync_row_id, title, size, _sync_server_version, _sync_scopes, _sync_payload)
				SELECT 'p', n, 't', n, 1, '{}', decode($1, 'hex') FROM generate_series(1, 20) n`, test.stored)
			result := db.mustApply(target(7, syncularNotes(test.now)))
			if result.Outcome != storage.Migrate {
				t.Fatalf("got %+v", result)
			}
			db.wantText("20 "+test.rewritten, "SELECT count(*) || ' ' || min(encode(_sync_payload, 'hex')) FROM notes WHERE _sync_payload = decode($1, 'hex')", test.rewritten)
			want, ok := storage.RewritePayload(mustHex(t, test.stored), test.old, test.now)
			if !ok || hex.EncodeToString(want) != test.rewritten {
				t.Errorf("RewritePayload gives %x", want)
			}
			db.mustApply(target(7, syncularNotes(test.now)))
			db.wantText("20", "SELECT count(*) FROM notes WHERE _sync_payload = decode($1, 'hex')", test.rewritten)
		})
	}
}

func mustHex(t *testing.T, text string) []byte {
	t.Helper()
	decoded, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}

func TestAPayloadShorterThanItsBitmapStopsTheRewriteByName(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(6, syncularNotes(9)))
	db.exec(`INSERT INTO notes(_sync_partition, _sync_row_id, title, size, _sync_server_version, _sync_scopes, _sync_payload)
		VALUES ('p', '1', 't', 1, 1, '{}', '\x00'), ('p', '2', 't', 1, 1, '{}', '\x'), ('p', '3', 't', 1, 1, '{}', '\x0000')`)
	db.refuses(target(7, syncularNotes(10)), storage.CodeLayoutMismatch, `"notes"`, "2 rows", "9 columns")
	db.wantText("0", "SELECT count(*) FROM pg_attribute WHERE attrelid = 'notes'::regclass AND attname = 'extraj'")
}

func TestASyncularTableWithoutItsColumnsGrowsInItsPayloadOnly(t *testing.T) {
	db := newBarrierDB(t)
	bare := syncularNotes(3)
	bare.Materialize = false
	db.mustApply(target(6, bare))
	db.exec(`INSERT INTO notes VALUES ('p', '1', 1, '{}', '\x03aa')`)
	grown := syncularNotes(4)
	grown.Materialize = false
	db.mustApply(target(7, grown))
	db.wantText(`\x0baa`, "SELECT _sync_payload FROM notes")
	db.wantText("5", "SELECT count(*) FROM pg_attribute WHERE attrelid = 'notes'::regclass AND attnum > 0")
}

func TestRetiredTablesGoWithTheirRowsInTheProtocolsTables(t *testing.T) {
	db := newBarrierDB(t)
	parent := storage.Table{Name: "owners", Layout: storage.Plain, Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}}, PrimaryKey: []string{"id"}}
	db.mustApply(target(6, syncularNotes(3), plainTodos(), parent))
	db.exec("ALTER TABLE todos ADD COLUMN owner bigint REFERENCES owners(id)")
	db.exec("CREATE TABLE sync_row_scopes(partition text, tbl text, row_id text)")
	db.exec("CREATE TABLE sync_tombstones(partition text, tbl text, row_id text)")
	db.exec("INSERT INTO sync_row_scopes VALUES ('p', 'notes', '1'), ('p', 'other', '1')")
	db.exec("INSERT INTO sync_tombstones VALUES ('p', 'todos', '1'), ('p', 'other', '1')")

	t.Run("one that is left out of the declaration is not dropped but refused", func(t *testing.T) {
		db.refuses(target(7, plainTodos(), parent), storage.CodeLayoutMismatch, `"notes"`, "neither declared nor retired")
	})
	t.Run("what else depends on it is named and not dropped", func(t *testing.T) {
		db.exec("CREATE VIEW titles AS SELECT title FROM notes")
		retiring := target(7, plainTodos(), parent)
		retiring.RetiredTables = []string{"notes"}
		db.refuses(retiring, storage.CodeInvalidSpec, `"notes"`, "view titles depends on table notes")
		db.wantText("notes", "SELECT to_regclass('notes')")
		db.exec("DROP VIEW titles")
	})
	t.Run("together, with their foreign keys", func(t *testing.T) {
		retiring := target(7)
		retiring.RetiredTables = []string{"owners", "notes", "todos", "never_there"}
		db.mustApply(retiring)
		db.wantText("0", "SELECT count(*) FROM pg_class WHERE relname IN ('owners', 'notes', 'todos')")
		db.wantText("other", "SELECT string_agg(tbl, ' ') FROM sync_row_scopes")
		db.wantText("other", "SELECT string_agg(tbl, ' ') FROM sync_tombstones")
		db.wantText("{}", "SELECT layouts FROM sync_schema_meta")
	})
}

func TestAJumpRunsWhatLiesBetween(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(6, plainTodos()))
	jump := target(8, plainTodos(titleNorm))
	jump.Migrations = []storage.Migration{
		{Version: 6, SQL: "CREATE TABLE never(i int)"},
		{Version: 7, SQL: "CREATE TABLE seven(i int); INSERT INTO todos VALUES (1, 'a', 'x')"},
		{Version: 8, SQL: "CREATE TABLE eight AS SELECT title FROM todos"},
	}
	jump.Checkpoints = []storage.Checkpoint{normCheckpoint("seven", 7, "a", "b")}
	jump.Checkpoints[0].Backfill = storage.Backfill{Job: true}
	jump.Checkpoints[0].Verify = nil

	t.Run("an applied version that never had SQL cannot get some", func(t *testing.T) {
		db.refuses(jump, storage.CodeContentDrift, "version 6")
	})
	jump.Migrations = jump.Migrations[1:]
	result := db.mustApply(jump)
	if !slices.Equal(result.Declared, []string{"seven"}) || !result.CloseConnection {
		t.Errorf("got %+v", result)
	}
	db.wantText("x", "SELECT title FROM eight")
	db.wantText("6 7 8", "SELECT string_agg(version::text, ' ' ORDER BY version) FROM sync_barrier_history")
	db.wantText("0 8 8", "SELECT string_agg(min_reader_version::text, ' ' ORDER BY version) FROM sync_barrier_history")
	db.wantText("a 7, b 7", "SELECT string_agg(partition || ' ' || required_writer_version, ', ' ORDER BY partition) FROM sync_writer_fence WHERE partition <> '*'")
	db.wantText("0", "SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'")
	db.wantText("a 7, b 7", "SELECT string_agg(partition || ' ' || schema_version, ', ' ORDER BY partition) FROM sync_backfill_checkpoints")
}

func TestADatabaseOfAProgramThatFollowsTheProtocolIsAdopted(t *testing.T) {
	db := newBarrierDB(t)
	makeProtocolDatabase(db)
	wanted := target(6, syncularNotes(3))
	wanted.Migrations = []storage.Migration{{Version: 6, SQL: "CREATE TABLE never(i int)"}}

	t.Run("with other columns than it has it is refused", func(t *testing.T) {
		db.refuses(target(6, syncularNotes(2)), storage.CodeLayoutMismatch, `"notes"`, `"done"`)
	})
	result := db.mustApply(wanted)
	if result.Outcome != storage.Adopt || len(result.Warnings) == 0 || !strings.Contains(result.Warnings[0], "taken as already run") {
		t.Errorf("got %+v", result)
	}
	db.wantText("", "SELECT to_regclass('never')")
	db.wantText("6", "SELECT string_agg(version::text, ' ') FROM sync_barrier_history")
	db.wantText("5", "SELECT max_commit_seq FROM sync_partitions WHERE partition = 'p'")
	if again, err := db.once(wanted); err != nil || again.Outcome != storage.Agreed {
		t.Errorf("asked again: %+v, %v", again, err)
	}

	t.Run("and goes on with the next version", func(t *testing.T) {
		next := target(7, syncularNotes(9))
		next.Migrations = wanted.Migrations
		db.mustApply(next)
		db.wantText(`\xf801aa`, "SELECT _sync_payload FROM notes")
	})
}

// makeProtocolDatabase makes what a program that follows the sync protocol has at version 6, with rows and an open log.
func makeProtocolDatabase(db *barrierDB) {
	db.exec(`CREATE TABLE sync_partitions(partition TEXT PRIMARY KEY, max_commit_seq BIGINT NOT NULL DEFAULT 0, horizon_seq BIGINT NOT NULL DEFAULT 0)`)
	db.exec(`CREATE TABLE sync_partition_registry(partition TEXT PRIMARY KEY, log_epoch TEXT NOT NULL, epoch_required BOOLEAN NOT NULL DEFAULT FALSE, last_authenticated_at_ms BIGINT NOT NULL)`)
	db.exec(`CREATE TABLE sync_commits(partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
		actor_id TEXT NOT NULL, created_at_ms BIGINT NOT NULL, PRIMARY KEY(partition, commit_seq))`)
	db.exec(`CREATE TABLE sync_changes(partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL,
		op SMALLINT NOT NULL, row_version BIGINT, scopes JSONB NOT NULL, payload BYTEA, PRIMARY KEY(partition, commit_seq, idx))`)
	db.exec(`CREATE TABLE sync_schema_meta(id INTEGER PRIMARY KEY CHECK (id = 1), schema_version BIGINT NOT NULL, layouts TEXT NOT NULL DEFAULT '{}')`)
	db.exec(`INSERT INTO sync_schema_meta VALUES (1, 6, '{"notes":[{"name":"title","type":"string","nullable":false},{"name":"size","type":"integer","nullable":false},{"name":"done","type":"boolean","nullable":true}]}')`)
	db.exec(`CREATE TABLE notes(_sync_partition TEXT NOT NULL, _sync_row_id TEXT NOT NULL, title TEXT NOT NULL, size BIGINT NOT NULL, done BOOLEAN,
		_sync_server_version BIGINT NOT NULL, _sync_scopes JSONB NOT NULL, _sync_payload BYTEA NOT NULL, PRIMARY KEY(_sync_partition, _sync_row_id))`)
	db.exec(`INSERT INTO notes VALUES ('p', '1', 't', 1, NULL, 1, '{}', '\x00aa')`)
	db.exec(`INSERT INTO sync_partitions VALUES ('p', 5, 0)`)
}

func TestAVersionBelowTheStoredOneIsRefused(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(7, plainTodos()))
	db.refuses(target(6, plainTodos()), storage.CodeVersionRegression, "version 7", "version 6")
	db.wantText("7", "SELECT schema_version FROM sync_schema_meta")
}

func TestAnAppliedVersionWithOtherContentIsRefused(t *testing.T) {
	db := newBarrierDB(t)
	applied := target(6, plainTodos())
	applied.Migrations = []storage.Migration{{Version: 6, SQL: "CREATE TABLE once(i int);\n"}}
	db.mustApply(applied)

	for name, test := range map[string]struct {
		change func(*storage.Target)
		code   storage.Code
	}{
		"one statement more": {code: storage.CodeContentDrift, change: func(t *storage.Target) {
			t.Migrations = []storage.Migration{{Version: 6, SQL: "CREATE TABLE once(i int); SELECT 1"}}
		}},
		"one checkpoint more": {code: storage.CodeContentDrift, change: func(t *storage.Target) {
			t.Checkpoints = []storage.Checkpoint{normCheckpoint("late", 6)}
		}},
		"one column more": {code: storage.CodeLayoutMismatch, change: func(t *storage.Target) {
			t.Tables = []storage.Table{plainTodos(titleNorm)}
		}},
		"a fence": {code: storage.CodeContentDrift, change: func(t *storage.Target) {
			six := int64(6)
			t.MinWriterVersion = &six
		}},
	} {
		t.Run(name, func(t *testing.T) {
			edited := applied
			test.change(&edited)
			db.refuses(edited, test.code)
		})
	}
	t.Run("line ends and trailing space are no content", func(t *testing.T) {
		same := applied
		same.Migrations = []storage.Migration{{Version: 6, SQL: "\ufeffCREATE TABLE once(i int);  \r\n\r\n"}}
		if result, err := db.once(same); err != nil || result.Outcome != storage.Agreed {
			t.Errorf("got %+v, %v", result, err)
		}
	})
	db.wantText("6", "SELECT schema_version FROM sync_schema_meta")
}

func TestTablesThatAreNotAsRecordedAreRefused(t *testing.T) {
	for name, test := range map[string]struct{ change, says string }{
		"a dropped column":                    {"ALTER TABLE todos DROP COLUMN title_norm", `"title_norm"`},
		"a column of another type":            {"ALTER TABLE todos ALTER COLUMN title_norm TYPE varchar(10)", "character varying(10)"},
		"a column that may be NULL by now":    {"ALTER TABLE todos ALTER COLUMN title DROP NOT NULL", "may be NULL"},
		"another key":                         {"ALTER TABLE todos DROP CONSTRAINT todos_pkey, ADD PRIMARY KEY (title)", "(title)"},
		"a Syncular table without its scopes": {"ALTER TABLE notes DROP COLUMN _sync_scopes", `"_sync_scopes"`},
		"a Syncular column without NOT NULL":  {"ALTER TABLE notes ALTER COLUMN title DROP NOT NULL", `"title"`},
		"a table that is gone":                {"DROP TABLE todos", `"todos"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t)
			db.mustApply(target(6, plainTodos(titleNorm), syncularNotes(3)))
			db.exec(test.change)
			db.refuses(target(6, plainTodos(titleNorm), syncularNotes(3)), storage.CodeLayoutMismatch, test.says)
			db.refuses(target(7, plainTodos(titleNorm), syncularNotes(4)), storage.CodeLayoutMismatch, test.says)
			db.wantText("6", "SELECT schema_version FROM sync_schema_meta")
		})
	}
}

func TestAViewInThePlaceOfATableIsRefused(t *testing.T) {
	db := newBarrierDB(t)
	db.exec("CREATE VIEW todos AS SELECT 1 AS id")
	db.refuses(target(6, plainTodos()), storage.CodeInvalidSpec, `"todos"`, "a view")
}

func TestADatabaseSchemaHasOneOwner(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(6, plainTodos()))
	ofCluster := func(cluster, name, uid string) storage.Target {
		wanted := target(6, plainTodos())
		wanted.Owner = storage.Owner{Cluster: cluster, Namespace: "default", Name: name, UID: uid}
		return wanted
	}

	t.Run("another name is a conflict that names the owner", func(t *testing.T) {
		db.refuses(ofCluster("", "billing", ""), storage.CodeConflict, "/default/clinic")
	})
	t.Run("a cluster's object takes over from the command line", func(t *testing.T) {
		if result, err := db.once(ofCluster("cluster-1", "clinic", "uid-1")); err != nil || result.Outcome != storage.Agreed {
			t.Fatalf("got %+v, %v", result, err)
		}
		db.wantText("cluster-1/default/clinic uid-1", "SELECT cluster || '/' || namespace || '/' || name || ' ' || uid FROM sync_barrier_owner")
	})
	t.Run("the UID is recorded but not compared", func(t *testing.T) {
		if _, err := db.once(ofCluster("cluster-1", "clinic", "uid-2")); err != nil {
			t.Fatal(err)
		}
		db.wantText("uid-2", "SELECT uid FROM sync_barrier_owner")
	})
	t.Run("the command line does not take it back", func(t *testing.T) {
		db.refuses(target(6, plainTodos()), storage.CodeConflict, "cluster-1/default/clinic")
	})
	t.Run("unless it names the owner", func(t *testing.T) {
		wanted := target(7, plainTodos())
		wanted.TakeOver = "cluster-2/default/clinic"
		db.refuses(wanted, storage.CodeConflict, "cluster-1/default/clinic")
		wanted.TakeOver = "cluster-1/default/clinic"
		db.mustApply(wanted)
		db.wantText("/default/clinic", "SELECT cluster || '/' || namespace || '/' || name FROM sync_barrier_owner")
	})
}

func TestACheckpointOfALowerVersionThatIsNotFinishedMustBeDeclared(t *testing.T) {
	db := newBarrierDB(t)
	six := target(6, plainTodos(titleNorm))
	six.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6)}
	db.mustApply(six)
	db.refuses(target(7, plainTodos(titleNorm)), storage.CodeCheckpointIncomplete, `"norm"`, "version 6")
	seven := target(7, plainTodos(titleNorm))
	seven.Checkpoints = six.Checkpoints
	db.mustApply(seven)
	db.wantText("6", "SELECT string_agg(schema_version::text, ' ') FROM sync_backfill_checkpoints")

	t.Run("and its table cannot be retired", func(t *testing.T) {
		retiring := target(8)
		retiring.Checkpoints = six.Checkpoints
		retiring.RetiredTables = []string{"todos"}
		db.refuses(retiring, storage.CodeCheckpointIncomplete, `"todos"`, `"norm"`)
	})
	t.Run("and its name is used for ever", func(t *testing.T) {
		again := target(8, plainTodos(titleNorm))
		again.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 8)}
		db.refuses(again, storage.CodeContentDrift, `"norm"`)
	})
}

func TestWhatABarrierFoundBrokenItDoesNotBuildOn(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(6, plainTodos()))
	db.exec("ALTER TABLE sync_commits DISABLE TRIGGER syncbarrier_fence")
	db.refuses(target(6, plainTodos()), storage.CodeFenceBroken, "sync_commits")
	db.refuses(target(7, plainTodos()), storage.CodeFenceBroken, "sync_commits")
	db.wantText("6", "SELECT schema_version FROM sync_schema_meta")
}
