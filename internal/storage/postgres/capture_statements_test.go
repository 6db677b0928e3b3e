package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestCaptureLogsCopy(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	lines := strings.NewReader("1\ta\tx\n2\tb\ty\n3\t\\N\tz\n")
	if _, err := program.conn.PgConn().CopyFrom(testContext(t), lines, "COPY todos(id, tenant, title) FROM STDIN"); err != nil {
		t.Fatal(err)
	}
	program.expectLog("capture:todos/=a 1 1", "capture:todos/=b 1 2", "capture:todos/null 1 3")
}

func TestCaptureLogsBothSidesOfAnUpsert(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos VALUES (1, 'a', 't'), (2, 'a', 't')`)
	program.forgetLog()

	program.run(`INSERT INTO todos VALUES (1, 'a', 'u'), (3, 'a', 'u') ON CONFLICT (id) DO NOTHING`)
	program.expectLog("capture:todos/=a 1 3")
	program.run(`INSERT INTO todos VALUES (1, 'a', 'v'), (4, 'b', 'v') ON CONFLICT (id) DO UPDATE SET title = EXCLUDED.title`)
	program.expectLog("capture:todos/=a 1 1", "capture:todos/=b 1 4")
	program.run(`INSERT INTO todos VALUES (1, 'a', 'w') ON CONFLICT (id) DO UPDATE SET title_norm = 'w'`)
	program.expectLog()
}

func TestCaptureLogsEachActionOfMerge(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos VALUES (1, 'a', 't'), (2, 'a', 't'), (3, 'a', 't')`)
	program.forgetLog()

	err := program.try(`
		MERGE INTO todos USING (VALUES (1, 'gone'), (2, 'new'), (3, 't'), (4, 'more')) AS given(id, title) ON given.id = todos.id
		 WHEN MATCHED AND given.title = 'gone' THEN DELETE
		 WHEN MATCHED THEN UPDATE SET title = given.title
		 WHEN NOT MATCHED THEN INSERT (id, tenant, title) VALUES (given.id, 'b', given.title)`)
	if value[int](program, `SELECT current_setting('server_version_num')::integer`) < 150000 {
		if stateOf(err) != "42601" {
			t.Errorf("got %v from a server that has no MERGE", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	program.expectLog("capture:todos/=a 2 1", "capture:todos/=a 1 2", "capture:todos/=b 1 4")
}

func TestCaptureLosesWithASavepointOnlyWhatTheSavepointLost(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))

	program.run(`BEGIN`)
	program.run(`SAVEPOINT s`)
	program.run(`INSERT INTO todos VALUES (1, 'a', 't')`)
	program.run(`ROLLBACK TO s`)
	program.run(`INSERT INTO todos VALUES (2, 'a', 't')`)
	program.run(`SAVEPOINT s`)
	program.run(`INSERT INTO todos VALUES (3, 'b', 't')`)
	program.run(`ROLLBACK TO s`)
	program.run(`COMMIT`)
	program.expectLog("capture:todos/=a 1 2")

	program.run(`BEGIN`)
	program.run(`INSERT INTO todos VALUES (4, 'a', 't')`)
	program.run(`ROLLBACK`)
	program.expectLog()
}

func TestCaptureGivesATransactionOneCommitInEachPartition(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`BEGIN`)
	for id := range 5 {
		program.run(`INSERT INTO todos VALUES ($1::integer, CASE WHEN $1::integer % 2 = 0 THEN 'a' ELSE 'b' END, 't')`, id)
	}
	xid := value[int64](program, `SELECT pg_current_xact_id()::text::bigint`)
	program.run(`COMMIT`)

	commits := value[[]string](program, `
		SELECT array_agg(format('%s %s %s %s', partition, commit_seq = $1, client_id, actor_id = session_user) ORDER BY partition) FROM sync_commits`, xid)
	want := []string{"capture:todos/=a t syncbarrier.capture t", "capture:todos/=b t syncbarrier.capture t"}
	if fmt.Sprint(commits) != fmt.Sprint(want) {
		t.Errorf("commits %q, want %q", commits, want)
	}
	if numbers := value[int](program, `SELECT count(DISTINCT idx) FROM sync_changes WHERE op <> 4`); numbers != 5 {
		t.Errorf("%d different numbers for five changes", numbers)
	}
}

func TestCaptureNumbersChangesOnWhenTheSequenceStartsOver(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`SELECT setval('syncbarrier_change_idx', 2147483646)`)
	program.run(`INSERT INTO todos SELECT i, 'a' FROM generate_series(1, 4) AS i`)
	program.expectLog("capture:todos/=a 1 1", "capture:todos/=a 1 2", "capture:todos/=a 1 3", "capture:todos/=a 1 4")
}

func TestCaptureLogsCascadesOfForeignKeys(t *testing.T) {
	store, program := newSource(t, `
		CREATE TABLE owners (id bigint PRIMARY KEY);
		CREATE TABLE pets (id bigint PRIMARY KEY, owner bigint REFERENCES owners ON DELETE CASCADE ON UPDATE CASCADE, friend bigint
		  REFERENCES pets ON DELETE SET NULL ON UPDATE CASCADE)`)
	capture(t, store, captureSpec{table: "pets", key: []string{"id"}})
	program.run(`INSERT INTO owners VALUES (1), (2)`)
	program.run(`INSERT INTO pets VALUES (1, 1, NULL), (2, 1, 1), (3, 2, 1), (4, 2, 3)`)
	program.forgetLog()

	program.run(`UPDATE owners SET id = 20 WHERE id = 2`)
	program.expectLog("capture:pets/ 1 3", "capture:pets/ 1 4")
	program.run(`UPDATE pets SET id = 30 WHERE id = 3`)
	program.expectLog("capture:pets/ 1 30", "capture:pets/ 2 3", "capture:pets/ 1 4")
	program.run(`DELETE FROM owners WHERE id = 1`) // takes pets 1 and 2, and pet 30 loses its friend
	program.expectLog("capture:pets/ 2 1", "capture:pets/ 2 2", "capture:pets/ 1 30")
}

func TestCaptureLogsWhatDeferredConstraintTriggersWriteAtCommit(t *testing.T) {
	store, program := newSource(t, sourceSQL+`;
		CREATE TABLE events (id bigint PRIMARY KEY);
		CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  UPDATE todos SET title = title || '!' WHERE id = NEW.id;
		  RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER follow AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION follow()`)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos VALUES (1, 'a', 't'), (2, 'b', 't')`)
	program.forgetLog()
	program.run(`BEGIN`)
	program.run(`INSERT INTO events VALUES (1), (2)`)
	if waiting := value[int](program, `SELECT count(*) FROM sync_changes`); waiting != 0 {
		t.Errorf("%d changes before the deferred trigger ran", waiting)
	}
	program.run(`COMMIT`)
	program.expectLog("capture:todos/=a 1 1", "capture:todos/=b 1 2")
}

func TestCaptureLogsRowsThatTriggersOfTheProgramChange(t *testing.T) {
	store, program := newSource(t, sourceSQL+`;
		CREATE FUNCTION lower_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  NEW.tenant := lower(NEW.tenant);
		  NEW.id := NEW.id + 100;
		  RETURN NEW;
		END $$;
		CREATE TRIGGER zz_lower BEFORE INSERT ON todos FOR EACH ROW EXECUTE FUNCTION lower_tenant()`)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos VALUES (1, 'ACME', 't')`)
	program.expectLog("capture:todos/=acme 1 101")
}

// Titles are alike, so the rows before and after, taken as sets, differ at the ends only or not at all. But each key holds another row.
func TestCaptureLogsKeysThatMoveOntoEachOther(t *testing.T) {
	for _, deferrable := range []string{"", "DEFERRABLE"} {
		t.Run("PRIMARY KEY "+deferrable, func(t *testing.T) {
			store, program := newSource(t, `CREATE TABLE todos (id bigint PRIMARY KEY `+deferrable+`, title text, other bigint)`)
			capture(t, store, captureSpec{table: "todos", key: []string{"id"}, columns: []string{"title"}})
			program.run(`INSERT INTO todos SELECT i, 'same' FROM generate_series(1, 4) AS i`)
			program.forgetLog()
			program.run(`UPDATE todos SET id = id - 1`)
			got := program.logged()
			for key := range 4 {
				if !slices.Contains(got, fmt.Sprintf("capture:todos/ 1 %d", key)) {
					t.Errorf("key %d, which holds another row now, is not in the log: %q", key, got)
				}
			}
			if !slices.Contains(got, "capture:todos/ 2 4") {
				t.Errorf("key 4, which is gone, is not in the log: %q", got)
			}
			program.run(`
				WITH first AS (UPDATE todos SET id = 100 WHERE id = 0)
				UPDATE todos SET id = 99 WHERE id = 1`)
			program.expectLog("capture:todos/ 1 100", "capture:todos/ 1 99", "capture:todos/ 2 0", "capture:todos/ 2 1")
			if deferrable == "" {
				return
			}
			program.run(`UPDATE todos SET id = 5 - id WHERE id IN (2, 3)`)
			program.expectLog("capture:todos/ 1 2", "capture:todos/ 1 3", "capture:todos/ 2 2", "capture:todos/ 2 3")
		})
	}
}

func TestCaptureOfSlicesLogsEachKeyInItsSlice(t *testing.T) {
	store, program := newSource(t, `CREATE TABLE todos (region text, id bigint, title text, PRIMARY KEY (region, id))`)
	c := capture(t, store, captureSpec{table: "todos", key: []string{"region", "id"}, partition: storage.Partition{Hash: 16}})
	program.run(`INSERT INTO todos SELECT 'eu', i, 't' FROM generate_series(1, 500) AS i`)
	if wrong := value[int](program, `
		SELECT count(*)
		  FROM sync_changes
		 WHERE partition <> 'capture:todos/#' || (('x' || left(md5(row_id), 8))::bit(32)::bigint % 16)`); wrong != 0 {
		t.Errorf("%d changes in another slice than the one of their key", wrong)
	}
	if slices := value[int](program, `SELECT count(DISTINCT partition) FROM sync_changes`); slices != 16 {
		t.Errorf("500 keys are in %d slices, want all 16", slices)
	}
	if rows := value[int](program, `SELECT count(*) FROM sync_partitions WHERE partition LIKE 'capture:todos/#%'`); rows != 16 {
		t.Errorf("%d of 16 slices have their row beforehand", rows)
	}
	if c.prefix() != "capture:todos/" {
		t.Errorf("prefix %q", c.prefix())
	}
	program.forgetLog()

	program.run(`UPDATE todos SET id = 501 WHERE id = 1`)
	program.expectLog(slicedLine(program, 1, `["eu","501"]`), slicedLine(program, 2, `["eu","1"]`))
}

func slicedLine(s *session, op int, key string) string {
	return value[string](s, `SELECT format('capture:todos/#%s %s %s', ('x' || left(md5($2::text), 8))::bit(32)::bigint % 16, $1::integer, $2::text)`, op, key)
}
