package sqlite

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// atVersion is a schema of Plain tables at a version.
func atVersion(version int64, tables ...storage.Table) storage.Target {
	return storage.Target{Version: version, Tables: tables, Owner: clinicOwner}
}

func TestCreatedTablesAreAsDeclared(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	all := storage.Table{
		Name: "all", Layout: storage.Plain, PrimaryKey: []string{"b", "a"},
		Columns: []storage.Column{
			{Name: "a", Type: storage.TypeString, Nullable: true}, {Name: "b", Type: storage.TypeInteger}, {Name: "c", Type: storage.TypeFloat, Nullable: true},
			{Name: "d", Type: storage.TypeBoolean}, {Name: "e", Type: storage.TypeJSON}, {Name: "f", Type: storage.TypeBytes},
			{Name: "g", Type: storage.TypeBlobRef}, {Name: "h", Type: storage.TypeCRDT}, {Name: "i", SQLType: "numeric( 12, 2 )"},
		},
	}
	apply(t, store, atVersion(6, all, todosTable(), notesTable(nullableColumn("body", storage.TypeString))))
	p := openProgram(t, path)
	columns := func(table string) string {
		return p.text("SELECT group_concat(name || ' ' || type || ' ' || \"notnull\" || ' ' || pk, ', ') FROM pragma_table_info(?)", table)
	}
	same(t, "all", columns("all"),
		"a TEXT 1 2, b INTEGER 1 1, c REAL 0 0, d INTEGER 1 0, e TEXT 1 0, f BLOB 1 0, g TEXT 1 0, h BLOB 1 0, i numeric( 12, 2 ) 1 0")
	same(t, "todos", columns("todos"), "id INTEGER 1 1, tenant TEXT 1 0, title TEXT 1 0")
	same(t, "notes", columns("notes"), "_sync_partition TEXT 1 1, _sync_row_id TEXT 1 2, title TEXT 1 0, body TEXT 0 0, "+
		"_sync_server_version INTEGER 1 0, _sync_scopes TEXT 1 0, _sync_payload BLOB 1 0")
	p.exec("INSERT INTO todos(id, tenant, title) VALUES (7, 'a', 'x')")
	same(t, "an integer key is the row's number", p.number("SELECT rowid FROM todos"), 7)
	same(t, "outcome", apply(t, store, atVersion(6, all, todosTable(), notesTable(nullableColumn("body", storage.TypeString)))).Outcome, storage.Agreed)
}

func TestAColumnThatMayNotBeNullIsAddedToAnEmptyTableOnly(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, atVersion(6, todosTable()))
	p := openProgram(t, path)
	p.exec("INSERT INTO todos(id, tenant, title) VALUES (1, 'a', 'x')")
	grown := atVersion(7, todosTable(storage.Column{Name: "done", Type: storage.TypeBoolean}))
	refuse(t, store, grown, storage.CodeInvalidSpec, "todos", "done")
	p.exec("DELETE FROM todos")
	apply(t, store, grown)
	p.refused("NOT NULL", "INSERT INTO todos(id, tenant, title) VALUES (1, 'a', 'x')")
}

func TestATableThatStandsInForAFunctionOfSQLitesIsNamed(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	p.exec("CREATE TABLE Json_Each(value TEXT)")
	store := openStore(t, path)
	refuse(t, store, atVersion(6, todosTable()), storage.CodeInvalidSpec, "Json_Each")
	p.exec("ALTER TABLE Json_Each RENAME TO json_documents")
	apply(t, store, atVersion(6, todosTable()))
}

func TestATypeThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	for _, sqlType := range []string{"TEXT DEFAULT 'x'", "TEXT); DROP TABLE x; --", "TEXT NOT NULL"} {
		table := todosTable(storage.Column{Name: "extra", SQLType: sqlType, Nullable: true})
		refuse(t, store, atVersion(6, table), storage.CodeInvalidSpec, "knows no type")
	}
}

func indexedTodos(indexes ...storage.Index) storage.Table {
	t := todosTable()
	t.Indexes = indexes
	return t
}

func TestOnlyIndexesThatDifferAreTouched(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	p.exec(renderCreate(todosTable()))
	p.exec("CREATE INDEX bare ON todos(title); CREATE INDEX theirs ON todos(tenant); CREATE UNIQUE INDEX changes ON todos(title)")
	store := openStore(t, path)
	long := strings.Repeat("long_", 12)
	wanted := []storage.Index{
		{Name: "bare", Columns: []string{"title"}}, {Name: "changes", Columns: []string{"title", "tenant"}},
		{Name: "new", Columns: []string{"tenant", "title"}, Unique: true}, {Name: long, Columns: []string{"title"}},
	}
	result := apply(t, store, atVersion(6, indexedTodos(wanted...)))
	same(t, "outcome", result.Outcome, storage.Migrate)
	indexes := func() string {
		return strings.Join(slices.Sorted(slices.Values(strings.Split(
			p.text("SELECT group_concat(name, ' ') FROM sqlite_master WHERE type = 'index' AND tbl_name = 'todos'"), " "))), " ")
	}
	same(t, "indexes", indexes(), "bare "+storage.IndexName(long)+" sync_ix_changes sync_ix_new theirs")
	before := p.rows("SELECT name, rootpage FROM sqlite_master WHERE tbl_name = 'todos' ORDER BY name")
	apply(t, store, atVersion(7, indexedTodos(wanted...)))
	same(t, "nothing was built again", fmt.Sprint(p.rows("SELECT name, rootpage FROM sqlite_master WHERE tbl_name = 'todos' ORDER BY name")), fmt.Sprint(before))

	wanted[2].Unique = false
	apply(t, store, atVersion(8, indexedTodos(wanted[:3]...)))
	same(t, "indexes of version 8", indexes(), "bare sync_ix_changes sync_ix_new theirs")
	same(t, "unique", p.number(`SELECT "unique" FROM pragma_index_list('todos') WHERE name = 'sync_ix_new'`), 0)
}

func TestARetiredTableGoesWithItsRowsInTheProtocolsTables(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	startProgram(p)
	store := openStore(t, path)
	apply(t, store, version6())
	for _, table := range []string{"notes", "NOTES", "todos"} {
		p.exec("INSERT INTO sync_row_scopes VALUES ('p', ?, '1', 's'); INSERT INTO sync_blob_refs VALUES ('p', ?, '1', 'b')", table, table)
	}
	forgotten := version6()
	forgotten.Version, forgotten.Tables = 7, forgotten.Tables[:1]
	refuse(t, store, forgotten, storage.CodeLayoutMismatch, "notes", "neither declared nor retired")
	same(t, "the table stays", p.number("SELECT count(*) FROM sqlite_master WHERE name = 'notes'"), 1)
	forgotten.RetiredTables = []string{"notes", "never_there"}
	apply(t, store, forgotten)
	same(t, "tables", p.number("SELECT count(*) FROM sqlite_master WHERE name = 'notes'"), 0)
	same(t, "scopes", p.text("SELECT group_concat(tbl) FROM sync_row_scopes"), "todos")
	same(t, "blob references", p.text("SELECT group_concat(tbl) FROM sync_blob_refs"), "todos")
	same(t, "layouts", p.text("SELECT layouts FROM sync_schema_meta"), "{}")
	same(t, "outcome", apply(t, store, forgotten).Outcome, storage.Agreed)
}

func TestATableThatAnOpenCheckpointNeedsIsNotRetired(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	apply(t, store, version7())
	next := version7()
	next.Version, next.Tables, next.RetiredTables = 8, next.Tables[1:], []string{"todos"}
	refuse(t, store, next, storage.CodeCheckpointIncomplete, "todos", "title-norm")
}

// hostileNames are legal and need quoting.
var hostileNames = []string{
	"select", "Order Data", `quo"ted`, "it's", "semi;colon", "-- comment", "[bracket]", "back`tick", "ünïcödé", "%s $1 ?1", strings.Repeat("n", 63), "new\nline",
}

func TestNamesThatNeedQuotingWorkFromEndToEnd(t *testing.T) {
	t.Parallel()
	for i, name := range hostileNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			other := hostileNames[(i+1)%len(hostileNames)]
			table := func(more ...storage.Column) storage.Table {
				return storage.Table{
					Name: name, Layout: storage.Plain, PrimaryKey: []string{name, "user"},
					Columns: append([]storage.Column{{Name: name, Type: storage.TypeString}, {Name: "user", Type: storage.TypeInteger}}, more...),
					Indexes: []storage.Index{{Name: name[:min(len(name), 40)], Columns: []string{"user", name}}},
				}
			}
			apply(t, store, atVersion(6, table()))
			p := openProgram(t, path)
			p.exec("INSERT INTO " + quoteIdentifier(name) + " VALUES ('k', 1)")
			grown := atVersion(7, table(nullableColumn("2"+other[:min(len(other), 60)], storage.TypeString)))
			apply(t, store, grown)
			same(t, "outcome", apply(t, store, grown).Outcome, storage.Agreed)
			wantIntact(t, store)
			gone := atVersion(8)
			gone.RetiredTables = []string{name}
			apply(t, store, gone)
			same(t, "tables", p.number("SELECT count(*) FROM sqlite_master WHERE name = ?", name), 0)
		})
	}
}

func TestANameInOtherCaseIsTheSameTable(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	p.exec("CREATE TABLE TODOS(ID INTEGER PRIMARY KEY, Tenant TEXT, title TEXT); INSERT INTO TODOS VALUES (1, 'a', 'x')")
	store := openStore(t, path)
	target := atVersion(6, todosTable(nullableColumn("title_norm", storage.TypeString)))
	apply(t, store, target)
	same(t, "columns", p.text("SELECT group_concat(name) FROM pragma_table_info('todos')"), "ID,Tenant,title,title_norm")
	same(t, "outcome", apply(t, store, target).Outcome, storage.Agreed)
	twice := atVersion(7, todosTable(), storage.Table{Name: "Todos", Layout: storage.Plain, PrimaryKey: []string{"id"}, Columns: todosTable().Columns})
	refuse(t, store, twice, storage.CodeInvalidSpec, "Todos", "does not tell case apart")
}

func TestARowWithoutAKeyIsRefusedBeforeItWouldBeSkipped(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	p.exec("CREATE TABLE todos(id TEXT PRIMARY KEY, tenant TEXT, title TEXT); INSERT INTO todos VALUES ('1', 'a', 'x'), (NULL, 'a', 'y')")
	store := openStore(t, path)
	target := version7()
	target.Tables = []storage.Table{todosTable(nullableColumn("title_norm", storage.TypeString))}
	target.Tables[0].Columns[0].Type = storage.TypeString
	refuse(t, store, target, storage.CodeInvalidSpec, "todos", "NULL")
	p.exec("UPDATE todos SET id = '2' WHERE id IS NULL")
	apply(t, store, target)
}

func TestPhysicalChangesBehindOurBackAreFound(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"a column that is gone":               "ALTER TABLE todos DROP COLUMN title",
		"a column of another name":            "ALTER TABLE todos RENAME COLUMN title TO heading",
		"a column of another type":            "ALTER TABLE todos DROP COLUMN title; ALTER TABLE todos ADD COLUMN title BLOB NOT NULL",
		"a column that may be NULL now":       "ALTER TABLE todos DROP COLUMN title; ALTER TABLE todos ADD COLUMN title TEXT",
		"a table that is gone":                "DROP TABLE todos",
		"a Syncular table with other key":     "DROP TABLE notes; CREATE TABLE notes(_sync_partition TEXT NOT NULL, _sync_row_id TEXT NOT NULL PRIMARY KEY, title TEXT NOT NULL, _sync_server_version INTEGER NOT NULL, _sync_scopes TEXT NOT NULL, _sync_payload BLOB NOT NULL)",
		"a Syncular table without its scopes": "ALTER TABLE notes DROP COLUMN _sync_scopes",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			apply(t, store, version6())
			openProgram(t, path).exec(statement)
			refuse(t, store, version6(), storage.CodeLayoutMismatch)
			refuse(t, store, version7(), storage.CodeLayoutMismatch)
		})
	}
}
