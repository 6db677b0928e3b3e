package sqlite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestUserSQLRunsAsItWasWritten(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a trigger with semicolons in its body": `CREATE TRIGGER t6 AFTER INSERT ON todos BEGIN
			INSERT INTO log VALUES ('one;'); INSERT INTO log VALUES ('two'); END; CREATE TABLE log(t TEXT); INSERT INTO log VALUES ('done');`,
		"semicolons in strings and comments": "CREATE TABLE log(t TEXT); -- ; COMMIT;\n/* ; ROLLBACK; */ INSERT INTO log VALUES ('; COMMIT; '); INSERT INTO log VALUES ('done')",
		"a byte order mark":                  "\ufeffCREATE TABLE log(t TEXT); INSERT INTO log VALUES ('done')",
		"carriage returns":                   "CREATE TABLE log(t TEXT);\r\n\r\nINSERT INTO log\r\nVALUES ('done');\r\n",
		"words that mean something elsewhere": `CREATE TABLE log(t TEXT, "commit" TEXT, "begin" TEXT);
			INSERT INTO log(t, "commit") VALUES ('done', 'SAVEPOINT s; RELEASE s');`,
		"no semicolon at the end, a comment instead": "CREATE TABLE log(t TEXT); INSERT INTO log VALUES ('done') -- the end",
		"rows that are returned":                     "CREATE TABLE log(t TEXT); INSERT INTO log VALUES ('x'), ('done') RETURNING t; SELECT * FROM log",
		"a column with a check on a table with rows": `CREATE TABLE log(t TEXT); INSERT INTO log VALUES ('done'); ALTER TABLE log ADD COLUMN n INTEGER DEFAULT 1 CHECK (n > 0)`,
		"a reading PRAGMA as a table":                `CREATE TABLE log(t TEXT); INSERT INTO log SELECT 'done' FROM pragma_table_info('todos') WHERE name = 'id'`,
		"a number of the program's in the header":    `PRAGMA user_version = 9; CREATE TABLE log(t TEXT); INSERT INTO log SELECT 'done' FROM pragma_user_version WHERE user_version = 9`,
		"a full text index":                          `CREATE TABLE log(t TEXT); INSERT INTO log VALUES ('done'); CREATE VIRTUAL TABLE search USING fts5(t); INSERT INTO search VALUES ('word')`,
		"a text that begins with a comment":          "/* the change of version 7 */\n\n-- and one more\nCREATE TABLE log(t TEXT); INSERT INTO log VALUES ('done')",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			apply(t, store, version6())
			apply(t, store, withSQL(version7(), text))
			same(t, "last row", openProgram(t, path).text("SELECT t FROM log WHERE t = 'done'"), "done")
			wantIntact(t, store)
		})
	}
}

func TestSQLThatWouldEndOrLeaveTheTransactionIsRefusedWhole(t *testing.T) {
	t.Parallel()
	elsewhere := newFile(t)
	openProgram(t, elsewhere).exec("CREATE TABLE there(i INTEGER)")
	for statement, want := range map[string]struct {
		code storage.Code
		text string
	}{
		"BEGIN":                               {storage.CodeNotTransactional, "BEGIN"},
		"BEGIN IMMEDIATE":                     {storage.CodeNotTransactional, "BEGIN"},
		"COMMIT":                              {storage.CodeNotTransactional, "COMMIT"},
		"END":                                 {storage.CodeNotTransactional, "COMMIT"},
		"ROLLBACK":                            {storage.CodeNotTransactional, "ROLLBACK"},
		"ROLLBACK TO s":                       {storage.CodeNotTransactional, "SAVEPOINT"},
		"SAVEPOINT s":                         {storage.CodeNotTransactional, "SAVEPOINT"},
		"RELEASE s":                           {storage.CodeNotTransactional, "RELEASE"},
		"ATTACH '" + elsewhere + "' AS other": {storage.CodeNotTransactional, "ATTACH"},
		"DETACH other":                        {storage.CodeNotTransactional, "DETACH"},
		"VACUUM":                              {storage.CodeNotTransactional, "VACUUM"},
		"VACUUM INTO '" + elsewhere + ".2'":   {storage.CodeNotTransactional, "VACUUM"},
		"PRAGMA foreign_keys = OFF":           {storage.CodeInvalidSpec, "no effect inside a transaction"},
		"PRAGMA foreign_keys(0)":              {storage.CodeInvalidSpec, "foreign_keys"},
		"PRAGMA journal_mode = DELETE":        {storage.CodeInvalidSpec, "journal_mode"},
		"PRAGMA writable_schema = ON":         {storage.CodeInvalidSpec, "writable_schema"},
		"PRAGMA main.synchronous = OFF":       {storage.CodeInvalidSpec, "synchronous"},
		"PRAGMA wal_checkpoint":               {storage.CodeNotTransactional, "wal_checkpoint"},
		"INSERT OR ROLLBACK INTO todos(id, tenant, title) VALUES (1, 'a', 'x'), (1, 'a', 'x')":            {storage.CodeInvalidSQL, "UNIQUE"},
		"UPDATE sync_schema_meta SET schema_version = 99; UPDATE sync_schema_meta SET schema_version = 1": {storage.CodeInvalidSQL, markerGuard},
		"UPDATE sync_schema_meta SET schema_version = 99":                                                 {storage.CodeInvalidSQL, markerGuard},
		"DELETE FROM sync_writer_fence":                                                                   {storage.CodeInvalidSQL, fenceGuard},
		"SELECT 1; SELECT no_column":                                                                      {storage.CodeInvalidSQL, "no such column: no_column"},
		"SELEC 1":                                                                                         {storage.CodeInvalidSQL, "syntax error"},
		"SELECT 'no end":                                                                                  {storage.CodeInvalidSQL, "unrecognized token"},
		"UPDATE todos SET title = ?":                                                                      {storage.CodeInvalidSQL, "missing argument"},
		"SELECT 1\x00; DROP TABLE todos":                                                                  {storage.CodeInvalidSQL, "NUL"},
		"SELECT load_extension('/tmp/x')":                                                                 {storage.CodeInvalidSQL, "not authorized"},
	} {
		t.Run(strings.Fields(statement)[0]+" "+fmt.Sprint(len(statement)), func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			apply(t, store, version6())
			p := openProgram(t, path)
			before := p.dump()
			for _, text := range []string{statement, "CREATE TABLE once(i INTEGER);\n" + statement, "CREATE TABLE once(i INTEGER);" + statement + "; CREATE TABLE twice(i INTEGER)"} {
				err := refusal(t, store, withSQL(version7(), text), want.code)
				wantText(t, err, want.text, "version 7")
				same(t, "times that the code is said", strings.Count(err.Error(), string(want.code)), 1)
				same(t, "the file is as it was", p.dump(), before)
			}
			if exists(t, elsewhere+".2") {
				t.Error("VACUUM INTO wrote a file")
			}
		})
	}
}

func TestANotNullColumnIsAddedToAnEmptyTableOnly(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a column that may not be NULL":         "ALTER TABLE todos ADD COLUMN n INT NOT NULL",
		"a default that is no constant":         "ALTER TABLE todos ADD COLUMN ts TEXT DEFAULT CURRENT_TIMESTAMP",
		"as the second of two statements":       "CREATE TABLE once(i INTEGER); ALTER TABLE todos ADD COLUMN n INT NOT NULL",
		"a generated column that may not be so": "ALTER TABLE todos ADD COLUMN n INT NOT NULL AS (NULL)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			apply(t, store, version6())
			p := openProgram(t, path)
			p.exec("INSERT INTO todos(id, tenant, title) VALUES (1, 'a', 'x')")
			before := p.dump()
			err := refusal(t, store, withSQL(version7(), text), storage.CodeInvalidSQL)
			wantText(t, err, "SQL logic error")
			same(t, "the file is as it was", p.dump(), before)
			p.exec("DELETE FROM todos")
			apply(t, store, withSQL(version7(), text))
		})
	}
}

func TestWhatUserSQLLeavesInTheSessionDoesNotReachOurStatements(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	apply(t, store, withSQL(version7(), `
		CREATE TEMP TABLE sync_schema_meta(id INTEGER PRIMARY KEY, schema_version INTEGER, layouts TEXT);
		INSERT INTO temp.sync_schema_meta VALUES (1, 6, '{}');
		CREATE TEMP TABLE sync_writer_fence(partition TEXT, required_writer_version INTEGER);
		CREATE TEMP TABLE todos(i INTEGER);
		CREATE TEMP VIEW sync_barrier_history AS SELECT 1 AS version;
		CREATE TEMP TRIGGER swallow BEFORE UPDATE ON main.sync_schema_meta BEGIN SELECT RAISE(IGNORE); END;
		CREATE TEMP TABLE keeps(i INTEGER PRIMARY KEY AUTOINCREMENT);`))
	p := openProgram(t, path)
	same(t, "marker", p.number("SELECT schema_version FROM sync_schema_meta"), 7)
	same(t, "fence", p.number("SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'"), 7)
	same(t, "history", p.number("SELECT max(version) FROM sync_barrier_history"), 7)
	next := version7()
	next.Version = 8
	next.Tables = append(next.Tables, storage.Table{
		Name: "more", Layout: storage.Plain, PrimaryKey: []string{"id"}, Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}},
	})
	apply(t, store, next) // on the same pool
}

// familyFile has parents, children that refer to them ON DELETE CASCADE, and one child whose parent was missing all along.
func familyFile(t testing.TB) (*Store, program) {
	t.Helper()
	path := newFile(t)
	p := openProgram(t, path)
	p.exec(`CREATE TABLE parents(id INTEGER PRIMARY KEY, name TEXT);
		CREATE TABLE children(id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents(id) ON DELETE CASCADE);
		CREATE TABLE strangers(id INTEGER PRIMARY KEY, parent INTEGER REFERENCES nowhere(id));
		INSERT INTO parents VALUES (1, 'a'), (2, 'b');
		INSERT INTO children VALUES (1, 1), (2, 2), (3, 99);
		INSERT INTO strangers VALUES (1, 1)`)
	store := openStore(t, path)
	apply(t, store, version6())
	return store, p
}

func TestATableThatOthersReferToCanBeRebuilt(t *testing.T) {
	t.Parallel()
	store, p := familyFile(t)
	// With foreign keys enforced, DROP TABLE would first delete the rows, and with them the children.
	apply(t, store, withSQL(version7(), `
		CREATE TABLE parents_new(id INTEGER PRIMARY KEY, name TEXT NOT NULL, age INTEGER);
		INSERT INTO parents_new SELECT id, name, 0 FROM parents;
		DROP TABLE parents;
		ALTER TABLE parents_new RENAME TO parents;`))
	same(t, "children", p.number("SELECT count(*) FROM children"), 3)
	same(t, "parents", p.number("SELECT count(*) FROM parents WHERE age = 0"), 2)
}

func TestReferencesThatUserSQLBreaksAreRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"deleted parents":       "DELETE FROM parents WHERE id = 2",
		"a dropped parent":      "DROP TABLE parents",
		"children of nobody":    "INSERT INTO children VALUES (4, 44)",
		"a new key of a parent": "UPDATE parents SET id = 3 WHERE id = 2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, p := familyFile(t)
			before := p.dump()
			err := refusal(t, store, withSQL(version7(), text), storage.CodeInvalidSQL)
			wantText(t, err, "children", "refer to rows which do not exist", "version 7")
			same(t, "the file is as it was", p.dump(), before)
		})
	}
	t.Run("what was broken before is nobody's fault now", func(t *testing.T) {
		t.Parallel()
		store, p := familyFile(t)
		apply(t, store, withSQL(version7(), "DELETE FROM children WHERE parent = 2; DELETE FROM parents WHERE id = 2; UPDATE strangers SET id = 7"))
		same(t, "children", p.number("SELECT count(*) FROM children"), 2)
	})
}

func TestARetiredTableThatOthersReferToStays(t *testing.T) {
	t.Parallel()
	store, p := familyFile(t)
	target := version7()
	target.RetiredTables = []string{"parents"}
	before := p.dump()
	refuse(t, store, target, storage.CodeInvalidSpec, "parents", "children")
	same(t, "the file is as it was", p.dump(), before)
	target.RetiredTables = []string{"parents", "children"}
	apply(t, store, target)
	same(t, "tables left", p.number("SELECT count(*) FROM sqlite_master WHERE name IN ('parents', 'children')"), 0)
}

func TestForeignKeysThatMeantNothingBeforeDoNotStopABarrier(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	p.exec(`CREATE TABLE parents(name TEXT);
		CREATE TABLE children(id INTEGER PRIMARY KEY, parent TEXT REFERENCES parents(name));
		INSERT INTO children VALUES (1, 'nobody')`)
	store := openStore(t, path)
	apply(t, store, version6())
	apply(t, store, withSQL(version7(), "INSERT INTO children VALUES (2, 'nobody')"))
	same(t, "children", p.number("SELECT count(*) FROM children"), 2)
}

func TestSQLThatTakesTheKeyAwayFromAReferenceIsRefused(t *testing.T) {
	t.Parallel()
	store, p := familyFile(t)
	p.exec("DELETE FROM children WHERE id = 3")
	before := p.dump()
	refuse(t, store, withSQL(version7(), "CREATE TABLE p2 AS SELECT * FROM parents; DROP TABLE parents; ALTER TABLE p2 RENAME TO parents"),
		storage.CodeInvalidSQL, "foreign key mismatch", "children", "version 7")
	same(t, "the file is as it was", p.dump(), before)
}

func TestAViewThatNeedsARetiredTableKeepsItWhereItIs(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	p.exec("CREATE TABLE old(i INTEGER); CREATE VIEW seen AS SELECT i FROM old; CREATE VIEW blind AS SELECT i FROM nowhere")
	store := openStore(t, path)
	apply(t, store, version6())
	target := version7()
	target.RetiredTables = []string{"old"}
	before := p.dump()
	refuse(t, store, target, storage.CodeInvalidSpec, "seen", "no such table: main.old")
	same(t, "the file is as it was", p.dump(), before)
	apply(t, store, withSQL(target, "DROP VIEW seen"))
	same(t, "views", p.text("SELECT group_concat(name) FROM sqlite_master WHERE type = 'view'"), "blind")
}
