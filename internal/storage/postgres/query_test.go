package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// queryDB is a database at version 1 with three todos, and a store with queries.
func queryDB(t testing.TB, config Config, queries ...storage.RegisteredQuery) *barrierDB {
	t.Helper()
	config.Queries = queries
	db := newBarrierDB(t, config)
	db.mustApply(target(1, plainTodos()))
	db.exec("INSERT INTO todos SELECT n, 'a', 'Title ' || n FROM generate_series(1, 3) AS n")
	return db
}

// A barrier that rewrites a table commits after the query's snapshot was taken and before the query reads the table: in that snapshot the
// rewritten table is empty.
func TestAQueryNeverSeesATableThatABarrierRewroteMeanwhileAsEmpty(t *testing.T) {
	db := queryDB(t, Config{}, storage.RegisteredQuery{Name: "count", SQL: "SELECT count(*) FROM todos WHERE tenant = $1"})
	barrier := db.connect()
	db.execOn(barrier, "BEGIN")
	db.execOn(barrier, "ALTER TABLE todos ALTER COLUMN title TYPE varchar(100) USING upper(title)")
	db.execOn(barrier, "UPDATE sync_schema_meta SET schema_version = 2")
	db.execOn(barrier, `
		INSERT INTO sync_barrier_history SELECT 2, content_hash, state, entries, plain_layouts, 0, 0, 0, 0, 0, 1, '{}' FROM sync_barrier_history`)
	answered := make(chan storage.QueryResult, 1)
	failed := make(chan error, 1)
	go func() {
		result, err := db.store.Query(db.ctx, "a", "count", 1)
		failed <- err
		answered <- result
	}()
	db.eventually("the query waits for the table, with its snapshot taken", func() bool { return db.waiting("todos") })
	db.execOn(barrier, "COMMIT")
	if err := <-failed; err != nil {
		t.Fatalf("query: %v", err)
	}
	if result := <-answered; result.Rows[0][0] != int64(3) {
		t.Errorf("the query saw %v rows of a table that has 3", result.Rows[0][0])
	}
}

func TestAQueryCannotWriteThroughAFunction(t *testing.T) {
	for name, config := range map[string]Config{"cached": {}, "simple protocol": {SimpleProtocol: true}} {
		t.Run(name, func(t *testing.T) {
			db := queryDB(t, config, storage.RegisteredQuery{Name: "writes", SQL: "SELECT add_todo($1)"})
			db.exec(`
				CREATE FUNCTION add_todo(tenant text) RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER
				AS 'INSERT INTO todos VALUES (99, tenant, ''x'') RETURNING id'`)
			_, err := db.store.Query(db.ctx, "a", "writes", 1)
			expectCode(t, err, storage.CodeInvalidSQL)
			tx, err := db.store.Begin(db.ctx, "a", 1)
			if err != nil {
				t.Fatalf("begin: %v", err)
			}
			_, err = tx.Query(db.ctx, "writes")
			expectCode(t, err, storage.CodeInvalidSQL)
			if err := tx.Commit(db.ctx); err != nil {
				t.Errorf("commit after a query that was refused: %v", err)
			}
			db.wantText("3", "SELECT count(*) FROM todos")
		})
	}
}

func TestASettingThatAQueryMakesEndsWithIt(t *testing.T) {
	db := queryDB(t, Config{MaxConnections: 1},
		storage.RegisteredQuery{Name: "sets", SQL: "SELECT set_config('search_path', 'nowhere', false), $1::text"},
		storage.RegisteredQuery{Name: "reads", SQL: "SELECT current_setting('search_path'), $1::text"})
	before, err := db.store.Query(db.ctx, "a", "reads", 1)
	if err != nil {
		t.Fatalf("query: %v", err)
	}
	if _, err := db.store.Query(db.ctx, "a", "sets", 1); err != nil {
		t.Fatalf("query: %v", err)
	}
	after, err := db.store.Query(db.ctx, "a", "reads", 1)
	if err != nil {
		t.Fatalf("query: %v", err)
	}
	if before.Rows[0][0] != after.Rows[0][0] {
		t.Errorf("the search path is %v, was %v", after.Rows[0][0], before.Rows[0][0])
	}
	if _, err := db.store.MaxCommitSeq(db.ctx, "a"); err != nil {
		t.Errorf("read after it on the same connection: %v", err)
	}
}

func TestValuesOfAResultDoNotDependOnTheWayTheyCame(t *testing.T) {
	const values = `SELECT 1::smallint, -2::integer, 3::bigint, 1.5::real, -1e300::double precision, true, 'text'::text, NULL::text,
		'\x00ff'::bytea, 12345678901234567890.5::numeric, '2026-01-02 03:04:05+01'::timestamptz, '{"a": 1}'::jsonb,
		'00000000-0000-0000-0000-000000000001'::uuid, ARRAY[1, 2], $1::text`
	want := []any{
		int64(1), int64(-2), int64(3), 1.5, -1e300, true, "text", nil, []byte{0, 255}, "12345678901234567890.5",
		"2026-01-02 02:04:05+00", `{"a": 1}`, "00000000-0000-0000-0000-000000000001", "{1,2}", "a",
	}
	for name, config := range map[string]Config{"cached": {}, "simple protocol": {SimpleProtocol: true}, "pooled": {Pooler: PoolerTransaction}} {
		t.Run(name, func(t *testing.T) {
			db := queryDB(t, config, storage.RegisteredQuery{Name: "values", SQL: values})
			result, err := db.store.Query(db.ctx, "a", "values", 1)
			if err != nil {
				t.Fatalf("query: %v", err)
			}
			for i, value := range want {
				got := result.Rows[0][i]
				if bytes, ok := value.([]byte); ok {
					if text, isBytes := got.([]byte); !isBytes || string(text) != string(bytes) {
						t.Errorf("value %d is %#v, want %#v", i, got, value)
					}
				} else if got != value {
					t.Errorf("value %d is %#v, want %#v", i, got, value)
				}
			}
		})
	}
}
