package storagetest

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runQuery(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"a registered query gets the partition first and its parameters after it", queryParameters},
		{"rows and position come from one snapshot", queryPosition},
		{"a closed gate refuses it with its reason", queryClosed},
		{"only registered queries run, with the right number of parameters", queryUnknown},
		{"a query cannot write", queryWrites},
		{"a query cannot be two statements or end the transaction", queryEscapes},
		{"a query that fails is named", queryFails},
		{"a barrier that comes between is seen whole or not at all", queryBetween},
	})
}

// queryStore opens a Store with the queries of these tests.
func (f *fixture) queryStore(queries ...storage.RegisteredQuery) storage.Store {
	f.Helper()
	return f.db.OpenStore(f.T, queries...)
}

func queryParameters(f *fixture) {
	f.apply(version1())
	for i, title := range []string{"x", "y", "z"} {
		f.write("a", 1, int64(i+1), title)
	}
	f.write("b", 1, 9, "y")
	store := f.queryStore(storage.RegisteredQuery{
		Name: "between", SQL: "SELECT id, title FROM todos WHERE tenant = $1 AND title >= $2 AND id < $3 ORDER BY id;", Parameters: 2,
	})
	result, err := store.Query(f.ctx, "a", "between", 1, "y", int64(3))
	f.must(err, "query")
	if want := []string{"id", "title"}; !reflect.DeepEqual(result.Columns, want) {
		f.Errorf("the columns are %v, want %v", result.Columns, want)
	}
	if want := [][]any{{int64(2), "y"}}; !reflect.DeepEqual(result.Rows, want) {
		f.Errorf("the rows are %v, want %v", result.Rows, want)
	}
	same(f, "position", result.MaxCommitSeq, 3)
	result, err = store.Query(f.ctx, "never seen", "between", 1, "y", int64(3))
	f.must(err, "query a partition without rows")
	same(f, "rows", len(result.Rows), 0)
	same(f, "position", result.MaxCommitSeq, 0)
}

func queryPosition(f *fixture) {
	f.apply(version1())
	f.must(f.store.RotateLogEpoch(f.ctx, "a"), "give the partition an epoch")
	store := f.queryStore(storage.RegisteredQuery{Name: "count", SQL: "SELECT count(*) FROM todos WHERE tenant = $1"})
	writer := f.db.OpenStore(f.T)
	const commits = 40
	done := make(chan error, 1)
	go func() {
		for i := range int64(commits) {
			err := retry(f.ctx, func() error { _, err := writeTodo(f.ctx, writer, "a", 1, i, "x"); return err })
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for ended := false; !ended; {
		select {
		case err := <-done:
			f.must(err, "write")
			ended = true
		default:
		}
		result, err := store.Query(f.ctx, "a", "count", 1)
		f.must(err, "query")
		if result.Rows[0][0] != result.MaxCommitSeq {
			f.Fatalf("%v rows at position %d: each commit added one", result.Rows[0][0], result.MaxCommitSeq)
		}
		if result.LogEpoch == "" {
			f.Fatal("the result has no log epoch")
		}
	}
}

func queryClosed(f *fixture) {
	store := f.queryStore(storage.RegisteredQuery{Name: "count", SQL: "SELECT count(*) FROM todos WHERE tenant = $1"})
	_, err := store.Query(f.ctx, "a", "count", 1)
	f.wantCode(err, storage.CodeNotReady)
	f.wantMessage(err, string(storage.GateSchemaNotFound))
	f.apply(version1())
	_, err = store.Query(f.ctx, "a", "count", 2)
	f.wantCode(err, storage.CodeNotReady)
	f.wantMessage(err, string(storage.GateMigrationPending), "2")
	f.apply(version2(external("letters", 2, "a")))
	_, err = store.Query(f.ctx, "a", "count", 2)
	f.wantCode(err, storage.CodeNotReady)
	f.wantMessage(err, string(storage.GateBackfilling), "letters")
	_, err = store.Query(f.ctx, "a", "count", 1)
	f.must(err, "query as the version of before, which still reads")
	f.finishExternal("a", "letters")
	_, err = store.Query(f.ctx, "a", "count", 2)
	f.must(err, "query once the gate is open")
}

func queryUnknown(f *fixture) {
	f.apply(version1())
	store := f.queryStore(storage.RegisteredQuery{Name: "one", SQL: "SELECT title FROM todos WHERE tenant = $1 AND id = $2", Parameters: 1})
	for _, ask := range []func() error{
		func() error { _, err := store.Query(f.ctx, "a", "another", 1); return err },
		func() error { _, err := store.Query(f.ctx, "a", "SELECT 1", 1); return err },
		func() error { _, err := store.Query(f.ctx, "a", "one", 1); return err },
		func() error { _, err := store.Query(f.ctx, "a", "one", 1, 1, 2); return err },
		func() error { _, err := store.Query(f.ctx, "", "one", 1, int64(1)); return err },
		func() error { _, err := store.Query(f.ctx, "*", "one", 1, int64(1)); return err },
		func() error { _, err := f.store.Query(f.ctx, "a", "one", 1, int64(1)); return err },
	} {
		f.wantCode(ask(), storage.CodeInvalidSpec)
	}
}

func queryWrites(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "kept")
	statements := []string{
		"DELETE FROM todos WHERE tenant = $1 RETURNING id",
		"INSERT INTO todos (id, tenant, title) VALUES (2, $1, 'x') RETURNING id",
		"UPDATE sync_partitions SET horizon_seq = 1 WHERE partition = $1 RETURNING horizon_seq",
	}
	if f.db.Dialect == storage.PostgreSQL {
		statements = append(statements,
			"SELECT id FROM todos WHERE tenant = $1 FOR UPDATE",
			"SELECT nextval('syncbarrier_refused') FROM todos WHERE tenant = $1")
	}
	for _, statement := range statements {
		store := f.queryStore(storage.RegisteredQuery{Name: "writes", SQL: statement})
		_, err := store.Query(f.ctx, "a", "writes", 1)
		if code := storage.CodeOf(err); code != storage.CodeInvalidSQL {
			f.Errorf("%s: got code %q (%v), want %q", statement, code, err, storage.CodeInvalidSQL)
		}
	}
	same(f, "rows", f.number("SELECT count(*) FROM todos"), 1)
	same(f, "horizon", f.number("SELECT horizon_seq FROM sync_partitions WHERE partition = 'a'"), 0)
}

func queryEscapes(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "kept")
	for _, statement := range []string{
		"SELECT 1 WHERE $1 <> ''; DELETE FROM todos",
		"COMMIT",
		"SELECT 1 WHERE $1 <> '') AS q; COMMIT; DELETE FROM todos; --",
		"ROLLBACK; DELETE FROM todos",
	} {
		store := f.queryStore(storage.RegisteredQuery{Name: "escapes", SQL: statement})
		_, err := store.Query(f.ctx, "a", "escapes", 1)
		if code := storage.CodeOf(err); code != storage.CodeInvalidSQL {
			f.Errorf("%s: got code %q (%v), want %q", statement, code, err, storage.CodeInvalidSQL)
		}
	}
	same(f, "rows", f.number("SELECT count(*) FROM todos"), 1)
}

func queryFails(f *fixture) {
	f.apply(version1())
	store := f.queryStore(storage.RegisteredQuery{Name: "broken", SQL: "SELECT nothing FROM todos WHERE tenant = $1"})
	_, err := store.Query(f.ctx, "a", "broken", 1)
	f.wantCode(err, storage.CodeInvalidSQL)
	f.wantMessage(err, "broken", "nothing")
}

func queryBetween(f *fixture) {
	f.apply(version1())
	const rows = 50
	for i := range int64(rows) {
		f.write("a", 1, i, "0")
	}
	store := f.queryStore(storage.RegisteredQuery{
		Name: "state", SQL: "SELECT count(*), min(title), max(title), (SELECT schema_version FROM sync_schema_meta) FROM todos WHERE tenant = $1",
	})
	migrator := f.db.OpenStore(f.T)
	const versions = 6
	done := make(chan error, 1)
	go func() {
		target := version1()
		target.MinReaderVersion = minimum(0)
		for range versions {
			target.Version++
			target.Tables = []storage.Table{todos(), notes()}
			target.Migrations = append(target.Migrations, storage.Migration{
				Version: target.Version, SQL: fmt.Sprintf("UPDATE todos SET title = '%d'", target.Version),
			})
			if _, err := applyWith(f.ctx, migrator, target); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for ended := false; !ended; {
		select {
		case err := <-done:
			f.must(err, "apply")
			ended = true
		default:
		}
		var result storage.QueryResult
		f.must(retry(f.ctx, func() (err error) {
			result, err = store.Query(f.ctx, "a", "state", 1)
			return err
		}), "query")
		row := result.Rows[0]
		want := fmt.Sprint(row[3])
		if want == "1" {
			want = "0" // as the rows were written
		}
		if row[0] != int64(rows) || row[1] != want || row[2] != want {
			f.Fatalf("the query saw %v: a part of a barrier", row)
		}
	}
}
