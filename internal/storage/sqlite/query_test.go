package sqlite

import (
	"reflect"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Whatever a registered query tries besides reading is refused, with or without a transaction of a writer around it.
func TestRegisteredQueryCannotWrite(t *testing.T) {
	texts := map[string]string{
		"insert":      "INSERT INTO todos(id, tenant, title) VALUES (1, ?1, 'x') RETURNING id",
		"with":        "WITH x AS (SELECT 1) UPDATE todos SET title = ?1 RETURNING id",
		"two":         "SELECT ?1; DELETE FROM todos",
		"pragma":      "PRAGMA user_version",
		"pragma call": "SELECT * FROM pragma_user_version WHERE ?1 = ?1",
		"attach":      "ATTACH ?1 AS other",
		"commit":      "COMMIT",
		"broken":      "SELECT nothing FROM nowhere WHERE ?1 = 1",
	}
	var queries []storage.RegisteredQuery
	for name, text := range texts {
		queries = append(queries, storage.RegisteredQuery{Name: name, SQL: text})
	}
	path := newFile(t)
	store, program := openWith(t, Config{Path: path, Create: true, Queries: queries}), openProgram(t, path)
	apply(t, store, version6())
	program.exec("INSERT INTO todos(id, tenant, title) VALUES (7, 'a', 'kept')")
	before := program.dump()
	for name := range texts {
		_, err := store.Query(testContext(t), "a", name, 6)
		wantCode(t, err, storage.CodeInvalidSQL)
		wantText(t, err, name)
		tx := beginWriter(t, store, "a", 6)
		_, err = tx.Query(testContext(t), name)
		wantCode(t, err, storage.CodeInvalidSQL)
		if _, err := tx.Exec(testContext(t), "UPDATE todos SET title = title"); err != nil {
			t.Errorf("after the refused query %q the writer cannot write: %v", name, err)
		}
		if err := tx.Rollback(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	if program.dump() != before {
		t.Error("a query changed the database")
	}
}

func TestRegisteredQueryReadsValuesAsTheyAre(t *testing.T) {
	path := newFile(t)
	query := storage.RegisteredQuery{Name: "all", SQL: `
		SELECT v.d, v.d AS d, v.any -- the partition is
		  FROM v
		 WHERE v.p = ?1 AND v.any IS NOT ?2
		 ORDER BY v.n DESC;`, Parameters: 1}
	store, program := openWith(t, Config{Path: path, Create: true, Queries: []storage.RegisteredQuery{query}}), openProgram(t, path)
	apply(t, store, version6())
	program.exec("CREATE TABLE v(n INTEGER PRIMARY KEY, p TEXT, d DATE, any)")
	program.exec("INSERT INTO v(p, d, any) VALUES ('a', '2020-01-01', x''), ('a', 'no date', NULL), ('b', '2020-01-01', 1), ('a', NULL, 2.5), ('a', 5, 'skip')")
	result, err := store.Query(testContext(t), "a", "all", 6, "skip")
	if err != nil {
		t.Fatal(err)
	}
	want := [][]any{{nil, nil, 2.5}, {"no date", "no date", nil}, {"2020-01-01", "2020-01-01", []byte{}}}
	if !reflect.DeepEqual(result.Rows, want) || !reflect.DeepEqual(result.Columns, []string{"d", "d", "any"}) {
		t.Errorf("got %v %#v, want %#v", result.Columns, result.Rows, want)
	}
}
