package sqlite

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// physicalOf makes a table by SQL and reads it as a barrier does.
func physicalOf(t testing.TB, declared storage.Table, statements string) (storage.PhysicalTable, error) {
	t.Helper()
	path := newFile(t)
	openProgram(t, path).exec(statements)
	store := openStore(t, path)
	return readTable(testContext(t), store.db, mustObjects(t, store), declared.Name, declared)
}

func TestAPrimaryKeyIsReadAsSQLiteKeepsIt(t *testing.T) {
	t.Parallel()
	named := storage.Table{Name: "t"}
	for name, tt := range map[string]struct {
		sql     string
		key     []string
		notNull []string
	}{
		"an INTEGER PRIMARY KEY is never NULL":          {"CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT)", []string{"id"}, []string{"id"}},
		"so is one named at the end":                    {"CREATE TABLE t(id INTEGER, a TEXT, PRIMARY KEY(id))", []string{"id"}, []string{"id"}},
		"INT PRIMARY KEY is another thing and may be":   {"CREATE TABLE t(id INT PRIMARY KEY)", []string{"id"}, nil},
		"INTEGER PRIMARY KEY DESC is another thing too": {"CREATE TABLE t(id INTEGER PRIMARY KEY DESC)", []string{"id"}, nil},
		"a text key may be NULL":                        {"CREATE TABLE t(id TEXT PRIMARY KEY)", []string{"id"}, nil},
		"a key WITHOUT ROWID is never NULL":             {"CREATE TABLE t(b TEXT, a TEXT, PRIMARY KEY(a, b)) WITHOUT ROWID", []string{"a", "b"}, []string{"b", "a"}},
		"a composite key keeps its own order":           {"CREATE TABLE t(b TEXT NOT NULL, a INTEGER, PRIMARY KEY(a, b))", []string{"a", "b"}, []string{"b"}},
		"a STRICT table is like any other":              {"CREATE TABLE t(id ANY PRIMARY KEY NOT NULL) STRICT", []string{"id"}, []string{"id"}},
		"a table can have no key":                       {"CREATE TABLE t(a TEXT NOT NULL)", nil, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			physical, err := physicalOf(t, named, tt.sql)
			if err != nil {
				t.Fatal(err)
			}
			var notNull []string
			for _, c := range physical.Columns {
				if c.NotNull {
					notNull = append(notNull, c.Name)
				}
			}
			if !slices.Equal(physical.Key, tt.key) || !slices.Equal(notNull, tt.notNull) {
				t.Errorf("key %v, not null %v; want %v and %v", physical.Key, notNull, tt.key, tt.notNull)
			}
		})
	}
}

func TestIndexesAreReadAsTheyAre(t *testing.T) {
	t.Parallel()
	physical, err := physicalOf(t, storage.Table{Name: "t"}, `
		CREATE TABLE t(id TEXT PRIMARY KEY, a TEXT NOT NULL, b TEXT UNIQUE, c TEXT NOT NULL UNIQUE, d TEXT COLLATE NOCASE);
		CREATE INDEX plain ON t(a, b);
		CREATE INDEX of_collated_column ON t(d);
		CREATE INDEX falling ON t(a DESC);
		CREATE INDEX part ON t(a) WHERE b IS NOT NULL;
		CREATE INDEX expression ON t(lower(a));
		CREATE INDEX mixed ON t(a, lower(b));
		CREATE INDEX own_collation ON t(a COLLATE NOCASE);
		CREATE INDEX "no collate" ON t(a) -- COLLATE NOCASE
		;
		CREATE UNIQUE INDEX unique_pair ON t(a, c);
		CREATE UNIQUE INDEX unique_part ON t(a) WHERE b = 'x';`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, index := range physical.Indexes {
		if strings.HasPrefix(index.Name, "sqlite_autoindex") {
			same(t, index.Name+" belongs to a constraint", index.Constraint, true)
			continue
		}
		got = append(got, fmt.Sprintf("%s %v unique %t plain %t constraint %t", index.Name, index.Columns, index.Unique, index.Plain, index.Constraint))
	}
	want := []string{
		"expression [] unique false plain false constraint false",
		"falling [a] unique false plain false constraint false",
		"mixed [] unique false plain false constraint false",
		"no collate [a] unique false plain true constraint false",
		"of_collated_column [d] unique false plain true constraint false",
		"own_collation [a] unique false plain false constraint false",
		"part [a] unique false plain false constraint false",
		"plain [a b] unique false plain true constraint false",
		"unique_pair [a c] unique true plain true constraint false",
		"unique_part [a] unique true plain false constraint false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("indexes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var keys []string
	for _, key := range physical.Unique {
		keys = append(keys, strings.Join(key, " "))
	}
	slices.Sort(keys)
	same(t, "keys that tell rows apart", fmt.Sprint(keys), "[a c c]") // (a, c) and (c); id and b may be NULL
}

func TestGeneratedColumnsAndNamesInOtherCaseAreSeen(t *testing.T) {
	t.Parallel()
	declared := storage.Table{Name: "Todos", PrimaryKey: []string{"Id"}, Columns: []storage.Column{{Name: "TITLE"}}}
	physical, err := physicalOf(t, declared, "CREATE TABLE todos(id INTEGER PRIMARY KEY, title text, low TEXT AS (lower(title)), up TEXT AS (upper(title)) STORED); CREATE INDEX i ON todos(title)")
	if err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, c := range physical.Columns {
		columns = append(columns, fmt.Sprintf("%s %s %t", c.Name, c.Type, c.Generated))
	}
	same(t, "columns", fmt.Sprint(columns), "[Id INTEGER false TITLE TEXT false low TEXT true up TEXT true]")
	same(t, "key", fmt.Sprint(physical.Key), "[Id]")
	same(t, "index", fmt.Sprint(physical.Indexes[0].Columns), "[TITLE]")
}

func TestRowsWithoutAKeyAreSeen(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sql           string
		rows, nullKey bool
	}{
		"an empty table":               {"CREATE TABLE t(id TEXT PRIMARY KEY)", false, false},
		"keys without NULL":            {"CREATE TABLE t(id TEXT PRIMARY KEY); INSERT INTO t VALUES ('a')", true, false},
		"a NULL among them":            {"CREATE TABLE t(id TEXT PRIMARY KEY); INSERT INTO t VALUES ('a'), (NULL)", true, true},
		"a NULL in half of the key":    {"CREATE TABLE t(a TEXT, b TEXT, PRIMARY KEY(a, b)); INSERT INTO t VALUES ('a', NULL)", true, true},
		"a NULL in an INTEGER's place": {"CREATE TABLE t(id INTEGER PRIMARY KEY); INSERT INTO t VALUES (NULL)", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			physical, err := physicalOf(t, storage.Table{Name: "t"}, tt.sql)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "rows", physical.HasRows, tt.rows)
			same(t, "NULL key", physical.NullKey, tt.nullKey)
		})
	}
}

func TestWhatIsNoTableIsNamed(t *testing.T) {
	t.Parallel()
	for kind, statements := range map[string]string{
		"view":  "CREATE TABLE x(i INTEGER); CREATE VIEW todos AS SELECT i FROM x",
		"index": "CREATE TABLE x(i INTEGER); CREATE INDEX todos ON x(i)",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			openProgram(t, path).exec(statements)
			refuse(t, openStore(t, path), version6(), storage.CodeInvalidSpec, "todos", kind)
		})
	}
}

func TestTypesHaveOneSpellingAndNothingElseInThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"text": "TEXT", "varchar(20)": "VARCHAR(20)", "VarChar ( 20 )": "VARCHAR(20)", "numeric(12,2)": "NUMERIC(12,2)",
		"double   precision": "DOUBLE PRECISION", " real ": "REAL", "my_type2": "MY_TYPE2", "decimal( -1 , +2 )": "DECIMAL(-1,+2)",
	} {
		if !isType(text) || canonicalType(text) != want {
			t.Errorf("%q: type %t, spelled %q, want %q", text, isType(text), canonicalType(text), want)
		}
	}
	for _, text := range []string{
		"", "text not null", "text default 1", "integer primary key", "text collate nocase", "text); drop table x", "text -- x", "text check (1)",
		"a(1,2,3)", "a(x)", "2a", "text references x", "int generated always as (1)", `"text"`, "te'xt", "text unique",
	} {
		if isType(text) {
			t.Errorf("%q is taken as a type", text)
		}
	}
}

func TestAColumnThatWasThereIsComparedByFamily(t *testing.T) {
	t.Parallel()
	for declared, fits := range map[storage.ColumnType][]string{
		storage.TypeString:  {"TEXT", "varchar(10)", "CHARACTER(3)", "uuid", "", "clob"},
		storage.TypeInteger: {"INT", "bigint", "INTEGER", "numeric", ""},
		storage.TypeFloat:   {"REAL", "double precision", "float", "DECIMAL(4,2)"},
		storage.TypeBoolean: {"BOOLEAN", "INTEGER", "bool"},
		storage.TypeJSON:    {"JSON", "TEXT", "jsonb"},
		storage.TypeBytes:   {"BLOB", ""},
	} {
		for _, text := range fits {
			if !slices.Contains(familiesOf(text), declared) {
				t.Errorf("%q is no %s", text, declared)
			}
		}
	}
	for declared, other := range map[storage.ColumnType]string{
		storage.TypeString: "INTEGER", storage.TypeInteger: "TEXT", storage.TypeBytes: "TEXT", storage.TypeFloat: "INTEGER", storage.TypeJSON: "BLOB",
	} {
		if slices.Contains(familiesOf(other), declared) {
			t.Errorf("%q is taken as %s", other, declared)
		}
	}
}
