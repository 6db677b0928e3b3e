package postgres

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// partedSQL is a table in two levels of partitions: by tenant, and that of tenant b by number.
const partedSQL = `
	CREATE TABLE todos (id bigint, tenant text, title text, title_norm text, PRIMARY KEY (tenant, id)) PARTITION BY LIST (tenant);
	CREATE TABLE todos_a PARTITION OF todos FOR VALUES IN ('a');
	CREATE TABLE todos_b PARTITION OF todos FOR VALUES IN ('b') PARTITION BY RANGE (id);
	CREATE TABLE todos_b1 PARTITION OF todos_b FOR VALUES FROM (0) TO (100);
	CREATE TABLE todos_b2 PARTITION OF todos_b FOR VALUES FROM (100) TO (200)`

func parted() captureSpec {
	return captureSpec{table: "todos", key: []string{"tenant", "id"}, partition: byTenant, columns: []string{"title"}}
}

func TestCaptureLogsWhatAProgramDoesToAPartitionedTable(t *testing.T) {
	store, program := newSource(t, partedSQL)
	capture(t, store, parted())
	program.run(`INSERT INTO todos VALUES (1, 'a', 't'), (1, 'b', 't'), (100, 'b', 't')`)
	program.expectLog(`capture:todos/=a 1 ["a","1"]`, `capture:todos/=b 1 ["b","1"]`, `capture:todos/=b 1 ["b","100"]`)
	program.run(`INSERT INTO todos_b2 VALUES (101, 'b', 't')`)
	program.expectLog(`capture:todos/=b 1 ["b","101"]`)

	program.run(`UPDATE todos SET title_norm = 'n'`)
	program.expectLog()
	program.run(`UPDATE todos SET title = 'u' WHERE id = 1`)
	program.expectLog(`capture:todos/=a 1 ["a","1"]`, `capture:todos/=b 1 ["b","1"]`)
	program.run(`UPDATE todos_b1 SET title = 'v'`)
	program.expectLog(`capture:todos/=b 1 ["b","1"]`)

	program.run(`UPDATE todos SET id = 2 WHERE tenant = 'a'`)
	program.expectLog(`capture:todos/=a 1 ["a","2"]`, `capture:todos/=a 2 ["a","1"]`)
	program.run(`UPDATE todos SET id = 150 WHERE id = 1`) // moves to another partition of the table
	program.expectLog(`capture:todos/=b 1 ["b","150"]`, `capture:todos/=b 2 ["b","1"]`)
	program.run(`UPDATE todos SET tenant = 'b' WHERE tenant = 'a'`)
	program.expectLog(`capture:todos/=b 1 ["b","2"]`, `capture:todos/=a 2 ["a","2"]`)

	program.run(`DELETE FROM todos_b2 WHERE id = 100`)
	program.expectLog(`capture:todos/=b 2 ["b","100"]`)
	program.run(`DELETE FROM todos`)
	program.expectLog(`capture:todos/=b 2 ["b","2"]`, `capture:todos/=b 2 ["b","101"]`, `capture:todos/=b 2 ["b","150"]`)
}

func TestCaptureLogsTheTruncateOfATableAndOfOneOfItsPartitionsAlone(t *testing.T) {
	store, program := newSource(t, partedSQL)
	capture(t, store, parted())
	for _, statement := range []string{`TRUNCATE todos`, `TRUNCATE todos_a`, `TRUNCATE todos_b`, `TRUNCATE todos_b2`} {
		program.run(statement)
		program.expectLog("* 2 ")
	}
	program.run(`CREATE TABLE plain (id bigint PRIMARY KEY)`)
	program.run(`CREATE TABLE other (id bigint PRIMARY KEY REFERENCES plain)`)
	capture(t, store, captureSpec{table: "other", key: []string{"id"}})
	program.run(`BEGIN`)
	program.run(`TRUNCATE plain CASCADE`)
	program.run(`TRUNCATE todos`)
	program.run(`COMMIT`)
	tables := value[[]string](program, `SELECT array_agg(DISTINCT tbl ORDER BY tbl) FROM sync_changes WHERE partition = '*'`)
	if !slices.Equal(tables, []string{"other", "todos"}) {
		t.Errorf("the log names %q, want other and todos", tables)
	}
	if commits := value[int](program, `SELECT count(*) FROM sync_commits`); commits != 0 {
		t.Errorf("TRUNCATE wrote %d commits, which the fence on the log would have to judge", commits)
	}
}

func TestCaptureFollowsPartitionsThatComeAndGo(t *testing.T) {
	store, program := newSource(t, partedSQL)
	c := capture(t, store, parted())
	program.run(`CREATE TABLE todos_c PARTITION OF todos FOR VALUES IN ('c')`)
	program.run(`INSERT INTO todos_c VALUES (1, 'c', 't')`)
	program.run(`SET session_replication_role = replica`)
	program.run(`UPDATE todos_c SET title = 'u'`)
	program.run(`RESET session_replication_role`)
	program.expectLog(`capture:todos/=c 1 ["c","1"]`)

	program.run(`CREATE TABLE todos_d (id bigint, tenant text, title text, title_norm text, PRIMARY KEY (tenant, id))`)
	program.run(`INSERT INTO todos_d VALUES (1, 'd', 't')`)
	program.run(`ALTER TABLE todos ATTACH PARTITION todos_d FOR VALUES IN ('d')`)
	program.expectLog() // no trigger sees it: the fingerprint does
	program.run(`DELETE FROM todos_d`)
	program.expectLog(`capture:todos/=d 2 ["d","1"]`)

	program.run(`ALTER TABLE todos DETACH PARTITION todos_a`)
	program.run(`INSERT INTO todos_a VALUES (1, 'a', 't')`)
	program.expectLog() // it is no row of the source any more
	program.run(`ALTER TABLE todos ATTACH PARTITION todos_a FOR VALUES IN ('a')`)
	program.run(`UPDATE todos SET title = 'w'`)
	program.expectLog(`capture:todos/=a 1 ["a","1"]`, `capture:todos/=c 1 ["c","1"]`)

	// The next installation puts what is not copied on the new partitions, and leaves the rest as it is.
	before := changesOf(t, store, c.table)
	capture(t, store, parted())
	after := changesOf(t, store, c.table)
	program.run(`TRUNCATE todos_d`)
	program.expectLog("* 2 ")
	for _, was := range before {
		if !slices.Contains(after, was) {
			t.Errorf("installing capture again changed %s", was)
		}
	}
}

// changesOf gives the state of the triggers that write the log of a table.
func changesOf(t testing.TB, store *Store, table string) []string {
	t.Helper()
	var changes []string
	inStore(t, store, func(ctx context.Context, tx pgx.Tx) error {
		sources, err := store.readSources(ctx, tx, []string{table})
		if err == nil {
			changes = sources[table].changes()
		}
		return err
	})
	return changes
}

func TestCaptureOfAPartitionedTableInSlicesAndInOne(t *testing.T) {
	store, program := newSource(t, partedSQL)
	spec := parted()
	spec.partition = storage.Partition{Hash: 4}
	capture(t, store, spec)
	program.run(`INSERT INTO todos SELECT i, 'b', 't' FROM generate_series(0, 199) AS i`)
	wrong := value[int](program, `
		SELECT count(*)
		  FROM sync_changes
		 WHERE partition <> 'capture:todos/#' || (('x' || left(md5(row_id), 8))::bit(32)::bigint % 4)`)
	if all := len(program.logged()); wrong != 0 || all != 200 {
		t.Errorf("%d of %d changes are in another slice than the one of their key", wrong, all)
	}

	spec.partition = storage.Partition{}
	capture(t, store, spec)
	program.run(fmt.Sprintf(`DELETE FROM todos WHERE id = %d`, 7))
	program.expectLog(`capture:todos/ 2 ["b","7"]`)
}
