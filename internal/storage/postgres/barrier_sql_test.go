package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// withSQL is a version that is nothing but SQL.
func withSQL(version int64, sql string) storage.Target {
	wanted := target(version)
	wanted.Migrations = []storage.Migration{{Version: version, SQL: sql}}
	return wanted
}

func TestSettingsOfUserSQLEndWithIt(t *testing.T) {
	for name, sql := range map[string]string{
		"an empty search_path, as in a dump": "SELECT pg_catalog.set_config('search_path', '', false);",
		"another role":                       "SET ROLE {app};",
		"another role, locally":              "SET LOCAL ROLE {app};",
		"another session authorization":      "SET SESSION AUTHORIZATION {app};",
		"a statement timeout":                "SET statement_timeout = '1ms'; SELECT count(*) FROM generate_series(1, 100);",
		"no lock timeout":                    "SET lock_timeout = 0;",
		"triggers off":                       "SET session_replication_role = replica;",
		"row security on":                    "SET row_security = on;",
		"a foreign date style":               "SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Tokyo';",
		"a read only default":                "SET default_transaction_read_only = on;",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t)
			app := quoteIdentifier(testdb.RoleName(t, testdb.Role(t, db.url, "app")))
			db.exec("GRANT CREATE ON SCHEMA public TO " + app)
			declared := withSQL(6, strings.ReplaceAll(sql, "{app}", app)+"\nCREATE TABLE public.t6(i int);")
			declared.Tables = []storage.Table{plainTodos(titleNorm)}
			declared.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6)}
			result := db.mustApply(declared)
			if !result.CloseConnection {
				t.Error("the connection is not said to be closed")
			}
			db.wantText("t6", "SELECT to_regclass('t6')")
			db.wantText("6 6 6", `SELECT m.schema_version || ' ' || f.required_writer_version || ' ' || c.schema_version
				FROM sync_schema_meta m, sync_writer_fence f, sync_backfill_checkpoints c WHERE f.partition = '*'`)

			// The next one, on the same pool, uses bare names and knows nothing of it.
			next := withSQL(7, "CREATE TABLE t7 AS SELECT current_user::text AS who, current_setting('search_path') AS path FROM t6 RIGHT JOIN (SELECT) one ON true;")
			next.Tables, next.Checkpoints = declared.Tables, declared.Checkpoints
			db.mustApply(next)
			db.wantText("postgres", "SELECT who FROM t7")
			db.wantText("public, pg_temp", "SELECT path FROM t7")
		})
	}
}

func TestWhatUserSQLLeavesInTheSessionIsGoneBeforeTheCommit(t *testing.T) {
	db := newBarrierDB(t)
	// What the session is left with is looked at from inside, by a trigger on the last table that the barrier writes.
	db.mustApply(target(5))
	db.exec(`CREATE TABLE left_behind(what text)`)
	db.exec(`CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
	  INSERT INTO public.left_behind
	  SELECT 'advisory lock' FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
	  UNION ALL SELECT 'prepared ' || name FROM pg_prepared_statements WHERE from_sql
	  UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable
	  UNION ALL SELECT 'listen ' || c FROM pg_listening_channels() c
	  UNION ALL SELECT 'temporary ' || relname FROM pg_class WHERE relnamespace = pg_my_temp_schema()
	  UNION ALL SELECT 'role ' || current_setting('role') WHERE current_setting('role') <> 'none'
	  UNION ALL SELECT 'lock_timeout' WHERE current_setting('lock_timeout') <> '100ms'
	  UNION ALL SELECT 'statement_timeout ' || current_setting('statement_timeout') WHERE current_setting('statement_timeout') <> '7s';
	  RETURN NEW;
	END $$`)
	db.exec(`CREATE TRIGGER look AFTER INSERT ON sync_barrier_history FOR EACH ROW EXECUTE FUNCTION look()`)
	declared := withSQL(6, `
		SELECT pg_advisory_lock(4711);
		PREPARE mine AS SELECT 1;
		DECLARE c CURSOR WITH HOLD FOR SELECT 1;
		LISTEN somebody;
		CREATE TEMP TABLE sync_schema_meta(id int);
		SET lock_timeout = '9s';
		SET LOCAL statement_timeout = '9s';`)
	declared.Lock.StatementTimeoutSeconds = 7
	db.mustApply(declared)
	db.wantText("", "SELECT string_agg(what, ', ') FROM left_behind")
	db.wantText("6", "SELECT schema_version FROM public.sync_schema_meta")
	db.wantText("0", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
}

func TestAConnectionThatRanUserSQLIsNotUsedAgain(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(withSQL(6, "CREATE TABLE ran AS SELECT pg_backend_pid() AS pid"))
	db.eventually("the session that ran the SQL ends", func() bool {
		return db.text("SELECT count(*) FROM pg_stat_activity a JOIN ran USING (pid)") == "0"
	})
	db.refuses(withSQL(7, "DO $$ BEGIN RAISE EXCEPTION 'pid %', pg_backend_pid(); END $$"), storage.CodeInvalidSQL)
}

func TestASequenceKeepsItsCeilingWhenItsColumnIsWidened(t *testing.T) {
	db := newBarrierDB(t)
	db.exec("CREATE TABLE src(id serial PRIMARY KEY, v text)")
	db.exec("SELECT setval('src_id_seq', 2147483600)")
	db.mustApply(withSQL(6, "ALTER TABLE src ALTER COLUMN id TYPE bigint"))
	db.wantText("bigint", "SELECT data_type FROM information_schema.columns WHERE table_name = 'src' AND column_name = 'id'")
	_, err := db.conn.Exec(db.ctx, "INSERT INTO src(v) SELECT 'x' FROM generate_series(1, 100)")
	if sqlState(err) != "2200H" {
		t.Errorf("got %v, want the sequence's own limit", err)
	}
	// Ours are wide enough: no column of a number or epoch, and no sequence, ends at 2^31.
	db.wantText("", `SELECT string_agg(table_name || '.' || column_name, ', ') FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name LIKE 'sync\_%' AND data_type = 'integer'
		  AND column_name ~ '(seq|epoch|watermark|position|rows|_ms)$'`)
	db.wantText("9223372036854775807", "SELECT max_value FROM pg_sequences WHERE sequencename = 'syncbarrier_refused'")
}

func TestSQLThatCannotRunInsideTheTransactionIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		sql   string
		state string
	}{
		"a new enum value that is used":    {"ALTER TYPE st ADD VALUE 'b'; UPDATE t SET s = 'b'", "55P04"},
		"an index made concurrently":       {"CREATE INDEX CONCURRENTLY i ON t(s)", "25001"},
		"a vacuum":                         {"VACUUM t", "25001"},
		"a commit":                         {"INSERT INTO t VALUES ('a'); COMMIT; INSERT INTO t VALUES ('a')", "0A000"},
		"a commit that goes on":            {"COMMIT AND CHAIN", "0A000"},
		"a rollback":                       {"ROLLBACK", "0A000"},
		"a begin":                          {"BEGIN; CREATE TABLE u(i int); COMMIT;", "0A000"},
		"a savepoint":                      {"SAVEPOINT s; ROLLBACK TO s", "0A000"},
		"two phases":                       {"PREPARE TRANSACTION 'barrier-two-phases'", "0A000"},
		"a commit in a block":              {"DO $$ BEGIN COMMIT; END $$", "2D000"},
		"a commit in a procedure":          {"CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN ROLLBACK; END $$; CALL p()", "2D000"},
		"a new database":                   {"CREATE DATABASE barrier_never", "25001"},
		"a setting of the server":          {"ALTER SYSTEM SET work_mem = '5MB'", "25001"},
		"another isolation level":          {"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "25001"},
		"a transaction made read only":     {"SET TRANSACTION READ ONLY", "read only"},
		"rows from a client that has none": {"COPY t FROM STDIN", "0A000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t)
			db.exec("CREATE TYPE st AS ENUM ('a')")
			db.exec("CREATE TABLE t(s st)")
			db.exec("INSERT INTO t VALUES ('a')")
			db.mustApply(target(5))
			db.refuses(withSQL(6, test.sql), storage.CodeNotTransactional, "version 6", test.state)
			db.wantText("5", "SELECT schema_version FROM sync_schema_meta")
			db.wantText("a", "SELECT string_agg(enumlabel, ' ' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = 'st'::regtype")
			db.wantText("1", "SELECT count(*) FROM t")
			db.wantText("", "SELECT to_regclass('i')")
			db.wantText("0", "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
			db.wantText("5", "SELECT max(version) FROM sync_barrier_history")
		})
	}
}

func TestSQLThatOnlyLooksLikeItRuns(t *testing.T) {
	for name, sql := range map[string]string{
		"a new enum value alone":             "ALTER TYPE st ADD VALUE 'c'",
		"a new type that takes over":         "CREATE TYPE st2 AS ENUM ('a', 'b'); ALTER TABLE t ALTER COLUMN s TYPE st2 USING s::text::st2; UPDATE t SET s = 'b'",
		"words in comments and strings":      "-- COMMIT;\n/* ROLLBACK; */ SELECT 'COMMIT; SAVEPOINT s;', $$ COMMIT; $$, $q$ ; $q$, E'\\';'",
		"words in a body":                    "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT 'VACUUM; COMMIT' $$",
		"a name that is a word":              `CREATE TABLE "commit"(savepoint int)`,
		"prepared statements that it drops":  "DEALLOCATE ALL; CREATE TABLE deallocated(i int)",
		"nothing but a comment":              "-- nothing\n",
		"a byte order mark and Windows ends": "CREATE TABLE w(\r\n i int\r\n);\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t)
			db.exec("CREATE TYPE st AS ENUM ('a')")
			db.exec("CREATE TABLE t(s st)")
			db.mustApply(withSQL(6, sql))
			db.wantText("6", "SELECT schema_version FROM sync_schema_meta")
		})
	}
}

func TestWrongSQLIsQuotedByVersionAndLineAndWithoutRows(t *testing.T) {
	for name, test := range map[string]struct {
		sql  string
		says []string
	}{
		"a misspelt word":       {"SELECT 1;\n\nSELEKT 2;", []string{"version 6", "line 3", `syntax error at or near "SELEKT"`, "42601"}},
		"a missing table":       {"INSERT INTO nowhere VALUES (1)", []string{"version 6", `"nowhere"`, "42P01"}},
		"an equal key":          {"INSERT INTO people VALUES ('SECRET-KEY')", []string{"people_pkey", "23505"}},
		"a value of a row":      {"ALTER TABLE people ALTER COLUMN name TYPE int USING name::int", []string{"invalid input syntax for type integer", "22P02"}},
		"a value with a quote":  {`SELECT 'SECRET-"KEY'::int`, []string{"invalid input syntax for type integer", "22P02"}},
		"a check":               {"ALTER TABLE people ADD CHECK (length(name) < 3)", []string{"people", "23514"}},
		"a deferred constraint": {"CREATE TABLE child(p text REFERENCES people DEFERRABLE INITIALLY DEFERRED); INSERT INTO child VALUES ('SECRET-GONE')", []string{"version 6", "child_p_fkey", "23503"}},
		"an error of its own":   {"DO $$ BEGIN RAISE EXCEPTION 'mine'; END $$", []string{"mine"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t)
			db.exec("CREATE TABLE people(name text PRIMARY KEY)")
			db.exec("INSERT INTO people VALUES ('SECRET-KEY')")
			_, err := db.once(withSQL(6, test.sql))
			wantRefusal(t, err, storage.CodeInvalidSQL, test.says...)
			if strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "KEY") {
				t.Errorf("the error repeats row data: %v", err)
			}
			db.wantText("", "SELECT max(schema_version) FROM sync_schema_meta")
		})
	}
}

func TestSQLThatTouchesWhatIsOursIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		sql  string
		code storage.Code
	}{
		"the marker":         {"UPDATE sync_schema_meta SET schema_version = 9", storage.CodeInvalidSQL},
		"the marker, down":   {"UPDATE sync_schema_meta SET schema_version = 1", storage.CodeInvalidSQL},
		"the history":        {"DELETE FROM sync_barrier_history", storage.CodeInvalidSQL},
		"the owner":          {"UPDATE sync_barrier_owner SET name = 'mine'", storage.CodeInvalidSQL},
		"the fence":          {"UPDATE sync_writer_fence SET required_writer_version = 5 WHERE partition = '*'", storage.CodeInvalidSQL},
		"the fence, down":    {"DELETE FROM sync_writer_fence", storage.CodeInvalidSQL},
		"the fence's firing": {"ALTER TABLE sync_commits DISABLE TRIGGER syncbarrier_fence", storage.CodeFenceBroken},
		"the fence itself":   {"DROP TRIGGER syncbarrier_fence ON sync_commits", storage.CodeFenceBroken},
		"the fence's body":   {"CREATE OR REPLACE FUNCTION syncbarrier_fence() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'", storage.CodeFenceBroken},
		"a guard":            {"DROP FUNCTION syncbarrier_guard_marker() CASCADE", storage.CodeFenceBroken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t)
			db.mustApply(target(5))
			db.refuses(withSQL(6, test.sql), test.code)
			if report, err := db.store.CheckFence(db.ctx); err != nil || !report.Intact() {
				t.Errorf("fence: %+v, %v", report, err)
			}
			db.wantText("5 5", "SELECT m.schema_version || ' ' || h.version FROM sync_schema_meta m, sync_barrier_history h")
		})
	}
}

func TestSQLThatAGuardRefusesIsQuotedWithTheRefusal(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(5))
	db.refuses(withSQL(6, "DELETE FROM sync_writer_fence"), storage.CodeInvalidSQL, "version 6", "a fence is not deleted")
	db.refuses(withSQL(6, "TRUNCATE sync_backfill_definitions"), storage.CodeInvalidSQL, "version 6", "definitions are not deleted")
}

func TestSQLThatTakesTooLongIsStopped(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(5))
	long := withSQL(6, "CREATE TABLE gone(i int); SELECT pg_sleep(60)")
	long.Lock.StatementTimeoutSeconds = 1
	result, err := db.once(long)
	wantRefusal(t, err, storage.CodeCancelled, "version 6", "statement timeout", "raise lock.statementTimeoutSeconds")
	if result.LockHold < time.Second {
		t.Errorf("its locks were held for %s, and it says %s", time.Second, result.LockHold)
	}
	db.wantText("5", "SELECT schema_version FROM sync_schema_meta")
	db.wantText("", "SELECT to_regclass('gone')")
}

func TestARefusalSaysWhetherItHeldLocks(t *testing.T) {
	db := newBarrierDB(t)
	db.exec("CREATE TABLE todos (id bigint PRIMARY KEY, tenant text NOT NULL, title text NOT NULL)")
	db.exec("INSERT INTO todos VALUES (1, 'a', 'same'), (2, 'a', 'same')")
	unique := target(6)
	unique.Tables = []storage.Table{plainTodos()}
	unique.Tables[0].Indexes = []storage.Index{{Name: "todos_title", Columns: []string{"title"}, Unique: true}}
	result, err := db.once(unique)
	wantRefusal(t, err, storage.CodeInvalidSpec, "todos_title")
	if result.LockHold <= 0 {
		t.Error("what showed under the locks is said to have held none")
	}
	other := target(6)
	other.Tables = []storage.Table{plainTodos()}
	for i := range other.Tables[0].Columns {
		other.Tables[0].Columns[i].Type, other.Tables[0].Columns[i].SQLType = "", "uuid"
	}
	result, err = db.once(other)
	wantRefusal(t, err, storage.CodeLayoutMismatch, "declared uuid")
	if result.LockHold != 0 {
		t.Errorf("what a snapshot showed is said to have held locks for %s", result.LockHold)
	}
}

func TestDeclaredColumnsAreCheckedAgainAfterTheSQL(t *testing.T) {
	db := newBarrierDB(t)
	wanted := withSQL(6, "ALTER TABLE todos DROP COLUMN title_norm")
	wanted.Tables = []storage.Table{plainTodos(titleNorm)}
	db.refuses(wanted, storage.CodeLayoutMismatch, `"title_norm"`)
	db.wantText("", "SELECT to_regclass('todos')")
}
