package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestCaptureWorksForAWriterWithoutAnyRightOnOurTables(t *testing.T) {
	store, url := newCatalog(t)
	setup := connect(t, url)
	setup.run(sourceSQL)
	setup.run(`CREATE TABLE parted (id bigint PRIMARY KEY, title text) PARTITION BY RANGE (id)`)
	setup.run(`CREATE TABLE parted_one PARTITION OF parted DEFAULT`)
	capture(t, store, todosBy(byTenant))
	capture(t, store, captureSpec{table: "parted", key: []string{"id"}})
	writer := otherRole(t, url, setup, `SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON todos`, `SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON parted`)
	for _, denied := range []string{`SELECT FROM sync_changes`, `INSERT INTO sync_partitions(partition) VALUES ('x')`, `SELECT nextval('syncbarrier_change_idx')`} {
		if state := stateOf(writer.try(denied)); state != stateNoPrivilege {
			t.Fatalf("%s: SQLSTATE %q, but the writer was to have no rights", denied, state)
		}
	}
	for _, table := range []string{"todos", "parted"} {
		writer.run(fmt.Sprintf(`INSERT INTO %s (id, title) VALUES (1, 't'), (2, 't')`, table))
		writer.run(fmt.Sprintf(`UPDATE %s SET title = 'u'`, table))
		writer.run(fmt.Sprintf(`UPDATE %s SET id = 3 WHERE id = 2`, table))
		writer.run(fmt.Sprintf(`DELETE FROM %s`, table))
		writer.run(fmt.Sprintf(`TRUNCATE %s`, table))
	}
	setup.expectLog("* 2 ", "capture:todos/null 1 1", "capture:todos/null 1 2", "capture:todos/null 1 3", "capture:todos/null 2 1", "capture:todos/null 2 2",
		"capture:todos/null 2 3", "capture:parted/ 1 1", "capture:parted/ 1 2", "capture:parted/ 1 3", "capture:parted/ 2 1", "capture:parted/ 2 2", "capture:parted/ 2 3")
}

func TestCaptureFiresInTheReplicaRole(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`SET session_replication_role = replica`)
	program.run(`INSERT INTO todos VALUES (1, 'a', 't'), (2, 'a', 't')`)
	program.expectLog("capture:todos/=a 1 1", "capture:todos/=a 1 2")
	program.run(`UPDATE todos SET title = 'u'`)
	program.expectLog("capture:todos/=a 1 1", "capture:todos/=a 1 2")
	program.run(`UPDATE todos SET note = 'u'`)
	program.expectLog()
	program.run(`DELETE FROM todos WHERE id = 1`)
	program.expectLog("capture:todos/=a 2 1")
	program.run(`TRUNCATE todos`)
	program.expectLog("* 2 ")
}

func TestCaptureLogsWhatLogicalReplicationApplies(t *testing.T) {
	source := connect(t, testdb.Postgres(t))
	store, url := newCatalog(t)
	target := connect(t, url)
	tables := []string{sourceSQL, partedNumbersSQL}
	for _, s := range []*session{source, target} {
		for _, sql := range tables {
			s.run(sql)
		}
	}
	capture(t, store, todosBy(byTenant))
	capture(t, store, captureSpec{table: "numbers", key: []string{"id"}, columns: []string{"title"}})
	source.run(`INSERT INTO todos VALUES (1, 'a', 'first')`)
	subscribe(t, source, target)
	target.waitLog("the first copy", "capture:todos/=a 1 1")

	source.run(`INSERT INTO todos VALUES (2, 'a', 't'), (3, 'b', 't')`)
	source.run(`INSERT INTO numbers VALUES (1, 't'), (150, 't')`)
	target.waitLog("inserts", "capture:todos/=a 1 2", "capture:todos/=b 1 3", "capture:numbers/ 1 1", "capture:numbers/ 1 150")
	source.run(`UPDATE todos SET title = 'u' WHERE id = 2`)
	source.run(`UPDATE todos SET note = 'u' WHERE id = 3`)
	source.run(`UPDATE todos SET tenant = 'c' WHERE id = 3`)
	source.run(`UPDATE todos SET id = 10 WHERE id = 1`)
	source.run(`UPDATE numbers SET id = 151 WHERE id = 1`)
	target.waitLog("updates", "capture:todos/=a 1 2", "capture:todos/=c 1 3", "capture:todos/=b 2 3", "capture:todos/=a 1 10", "capture:todos/=a 2 1",
		"capture:numbers/ 1 151", "capture:numbers/ 2 1")
	source.run(`DELETE FROM todos WHERE id = 2`)
	source.run(`DELETE FROM numbers WHERE id = 150`)
	target.waitLog("deletes", "capture:todos/=a 2 2", "capture:numbers/ 2 150")
	source.run(`TRUNCATE todos`)
	target.waitLog("a truncate", "* 2 ")
}

const partedNumbersSQL = `
	CREATE TABLE numbers (id bigint PRIMARY KEY, title text) PARTITION BY RANGE (id);
	CREATE TABLE numbers_low PARTITION OF numbers FOR VALUES FROM (0) TO (100);
	CREATE TABLE numbers_high PARTITION OF numbers FOR VALUES FROM (100) TO (200)`

// subscribe replicates all tables from one database to the other, on the same server.
func subscribe(t *testing.T, source, target *session) {
	t.Helper()
	name := value[string](source, `SELECT current_database()`) // slots belong to the whole server
	source.run(`CREATE PUBLICATION everything FOR TABLE todos, numbers WITH (publish_via_partition_root = true)`)
	source.run(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, name)
	connection := fmt.Sprintf("host=%s port=%d user=%s password=%s dbname=%s", source.conn.Config().Host, source.conn.Config().Port,
		source.conn.Config().User, source.conn.Config().Password, name)
	target.run(fmt.Sprintf(`CREATE SUBSCRIPTION mirror CONNECTION %s PUBLICATION everything WITH (create_slot = false, slot_name = %s)`,
		quoteLiteral(connection), quoteLiteral(name)))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, s := range []struct {
			session *session
			sql     string
		}{
			{target, `ALTER SUBSCRIPTION mirror DISABLE`}, {target, `ALTER SUBSCRIPTION mirror SET (slot_name = NONE)`}, {target, `DROP SUBSCRIPTION mirror`},
			{source, `SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = current_database()`},
			{source, `SELECT pg_drop_replication_slot(current_database())`},
		} {
			if _, err := s.session.conn.Exec(ctx, s.sql); err != nil {
				t.Errorf("%s: %v", s.sql, err)
			}
		}
	})
}

// waitLog waits until the log holds these changes, fails for any other, and forgets them.
func (s *session) waitLog(what string, want ...string) {
	s.t.Helper()
	ctx := testContext(s.t)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if got := value[[]string](s, loggedSQL); len(got) >= len(want) {
			s.expectLog(want...)
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			s.t.Fatalf("%s: the log holds %q only, want %q", what, value[[]string](s, loggedSQL), want)
		}
	}
}

func TestCaptureOfAPreparedTransactionHoldsItsPartitionUntilItEnds(t *testing.T) {
	store, url := newCatalog(t)
	setup, program := connect(t, url), connect(t, url)
	setup.run(sourceSQL)
	capture(t, store, todosBy(byTenant))
	gid := "capture " + value[string](setup, `SELECT current_database()`)
	program.run(`BEGIN`)
	program.run(`INSERT INTO todos VALUES (1, 'a', 't')`)
	program.run(`PREPARE TRANSACTION ` + quoteLiteral(gid))
	setup.run(`SET lock_timeout = 100`)
	const lock = `SELECT FROM sync_partitions WHERE partition = 'capture:todos/=a' FOR UPDATE`
	const ofTable = `SELECT FROM sync_partitions WHERE partition = 'capture:todos/' FOR UPDATE`
	setup.run(`INSERT INTO sync_partitions(partition) VALUES ('capture:todos/=a'), ('capture:todos/=b')`) // waits for no writer
	setup.run(strings.ReplaceAll(lock, "=a", "=b"))
	if state := stateOf(setup.try(ofTable)); state != stateLockTimeout {
		t.Errorf("SQLSTATE %q, want the row of the table to be held for the partition that had none", state)
	}
	program.run(`COMMIT PREPARED ` + quoteLiteral(gid))
	setup.run(ofTable)

	program.run(`BEGIN`)
	program.run(`UPDATE todos SET title = 'u'`)
	program.run(`PREPARE TRANSACTION ` + quoteLiteral(gid))
	if state := stateOf(setup.try(lock)); state != stateLockTimeout {
		t.Errorf("SQLSTATE %q, want an activation's lock to wait for the prepared transaction", state)
	}
	program.run(`ROLLBACK PREPARED ` + quoteLiteral(gid))
	setup.run(lock)
	setup.expectLog("capture:todos/=a 1 1")
}

// An activation's lock waits for who captured something in the partition, and for nobody else; and while it is held, writers of the partition wait.
func TestCaptureSharesAPartitionAmongItsWritersAndYieldsItToAnActivation(t *testing.T) {
	store, url := newCatalog(t)
	setup, first, second, activation := connect(t, url), connect(t, url), connect(t, url), connect(t, url)
	setup.run(sourceSQL)
	setup.run(`INSERT INTO todos VALUES (1, 'a'), (2, 'a'), (3, 'b')`)
	capture(t, store, todosBy(byTenant))
	setup.run(`UPDATE todos SET title = 't'`)
	setup.forgetLog()

	first.run(`BEGIN`)
	first.run(`UPDATE todos SET title = 'u' WHERE id = 1`)
	second.run(`SET statement_timeout = 10000`)
	second.run(`UPDATE todos SET title = 'u' WHERE id = 2`) // does not wait for the first
	activation.run(`SET lock_timeout = 100`)
	activation.run(`SELECT FROM sync_partitions WHERE partition = 'capture:todos/=b' FOR UPDATE`)
	if state := stateOf(activation.try(`SELECT FROM sync_partitions WHERE partition = 'capture:todos/=a' FOR UPDATE`)); state != stateLockTimeout {
		t.Errorf("SQLSTATE %q, want the activation to wait for the writer", state)
	}
	first.run(`COMMIT`)

	activation.run(`BEGIN`)
	activation.run(`SELECT FROM sync_partitions WHERE partition = 'capture:todos/=a' FOR UPDATE`)
	done := make(chan error, 1)
	go func() { done <- second.try(`UPDATE todos SET title = 'v' WHERE id = 2`) }()
	waitBlocked(t, setup, second.pid())
	first.run(`SET statement_timeout = 10000`)
	first.run(`UPDATE todos SET title = 'v' WHERE id = 3`) // another partition
	activation.run(`COMMIT`)
	if err := <-done; err != nil {
		t.Error(err)
	}
	setup.expectLog("capture:todos/=a 1 1", "capture:todos/=a 1 2", "capture:todos/=b 1 3")
}

// Two transactions are the first of a partition, and each wants a row of the other's: whoever made the partition's row would be waited for.
func TestTheFirstWritersOfAPartitionDoNotWaitForEachOther(t *testing.T) {
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ"} {
		store, url := newCatalog(t)
		setup, first, second := connect(t, url), connect(t, url), connect(t, url)
		setup.run(sourceSQL)
		setup.run(`INSERT INTO todos VALUES (1, 'a'), (2, 'a')`)
		capture(t, store, todosBy(byTenant))
		for _, program := range []*session{first, second} {
			program.run(`SET lock_timeout = 2000`)
			program.run(`BEGIN ISOLATION LEVEL ` + level)
		}
		first.run(`UPDATE todos SET title = 'u' WHERE id = 1`)
		second.run(`UPDATE todos SET title = 'u' WHERE id = 2`)
		first.run(`INSERT INTO todos VALUES (3, 'new')`)
		second.run(`INSERT INTO todos VALUES (4, 'new')`)
		first.run(`COMMIT`)
		second.run(`COMMIT`)
		setup.expectLog("capture:todos/=a 1 1", "capture:todos/=a 1 2", "capture:todos/=new 1 3", "capture:todos/=new 1 4")
	}
}

func TestCaptureUnderRepeatableReadIsNotDisturbedByAnActivationOrAPrune(t *testing.T) {
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
		t.Run(level, func(t *testing.T) {
			store, url := newCatalog(t)
			setup, program := connect(t, url), connect(t, url)
			setup.run(sourceSQL)
			setup.run(`INSERT INTO todos VALUES (1, 'a')`)
			capture(t, store, todosBy(byTenant))
			setup.run(`UPDATE todos SET title = 't'`)
			setup.forgetLog()
			program.run(`BEGIN ISOLATION LEVEL ` + level)
			program.run(`SELECT FROM todos`) // takes the snapshot
			setup.run(`BEGIN`)
			setup.run(`SELECT FROM sync_partitions WHERE partition = 'capture:todos/=a' FOR UPDATE`)
			setup.run(`COMMIT`)
			setup.run(`UPDATE sync_partitions SET horizon_seq = 1 WHERE partition = 'capture:todos/=a'`)
			program.run(`UPDATE todos SET title = 'u'`)
			program.run(`COMMIT`)
		})
	}
}

func TestCaptureCannotBeForged(t *testing.T) {
	store, url := newCatalog(t)
	setup := connect(t, url)
	setup.run(sourceSQL)
	spec := todosBy(byTenant)
	spec.minimum = 2
	capture(t, store, spec)
	raise(t, store, forAll(2))
	writer := otherRole(t, url, setup, `SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON todos`, `CREATE ON SCHEMA public`)
	writer.run(`CREATE TABLE mine (id bigint PRIMARY KEY, tenant text, title text)`)
	for _, attach := range []string{
		`CREATE TRIGGER forge AFTER INSERT ON mine REFERENCING NEW TABLE AS _sb_new FOR EACH STATEMENT EXECUTE FUNCTION syncbarrier_capture_todos()`,
		`CREATE TRIGGER forge AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION syncbarrier_capture_todos()`,
		`CREATE TRIGGER forge AFTER TRUNCATE ON mine EXECUTE FUNCTION syncbarrier_log_truncate('todos')`,
		`CREATE TRIGGER forge BEFORE INSERT ON mine EXECUTE FUNCTION syncbarrier_fence_source('0')`,
		`ALTER TABLE todos DISABLE TRIGGER ALL`,
		`DROP TRIGGER syncbarrier_fence_source ON todos`,
		`SET session_replication_role = replica`,
		`SELECT syncbarrier_capture_todos()`,
	} {
		if err := writer.try(attach); stateOf(err) != stateNoPrivilege && stateOf(err) != stateNotSupported {
			t.Errorf("%s: got %v, want it refused", attach, err)
		}
	}
	// Tables and functions under our names and under those that the functions use, where the writer's own path finds them first.
	for _, shadow := range []string{
		`CREATE TEMP TABLE sync_writer_fence AS SELECT '*'::text AS partition, 0 AS required_writer_version`,
		`CREATE TEMP TABLE sync_partitions (partition text PRIMARY KEY)`,
		`CREATE TEMP TABLE sync_commits (partition text)`,
		`CREATE TEMP TABLE sync_changes (partition text)`,
		`CREATE TEMP TABLE _sb_new AS SELECT 9 AS id, 'z'::text AS tenant`,
		`CREATE FUNCTION pg_temp.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT ''7''::text'`,
		`CREATE FUNCTION pg_temp.md5(text) RETURNS text LANGUAGE sql AS 'SELECT ''0''::text'`,
		`SET search_path = pg_temp, public`,
	} {
		writer.run(shadow)
	}
	for _, version := range []string{"", "x", "1", "-7", "2147483648", "9999999999", "99999999999", " 2", "2 ", "2\n", "+2", "0x2", "2.0", "NULL", "٢"} {
		writer.run(`SELECT set_config('syncbarrier.writer_version', $1, false)`, version)
		expectFenced(t, writer.try(`INSERT INTO public.todos VALUES (1, 'a', 't')`))
		expectFenced(t, writer.try(`TRUNCATE public.todos`))
	}
	setup.expectLog()

	writer.run(`SET syncbarrier.writer_version = '0000000002'`)
	writer.run(`INSERT INTO public.todos VALUES (1, 'a', 't'), (2, 'b', 't')`)
	setup.expectLog("capture:todos/=a 1 1", "capture:todos/=b 1 2")

	// The right version for the commit alone does not help: each statement is judged.
	writer.run(`BEGIN`)
	writer.run(`UPDATE public.todos SET title = 'u' WHERE id = 1`)
	writer.run(`SET LOCAL syncbarrier.writer_version = '1'`)
	expectFenced(t, writer.try(`UPDATE public.todos SET title = 'v' WHERE id = 1`))
	writer.run(`ROLLBACK`)

	// A commit made by hand beforehand does not help either.
	setup.run(`BEGIN`)
	setup.run(`INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		VALUES ('capture:todos/=a', pg_current_xact_id()::text::bigint, 'x', 'x', 'x', 0, 7)`)
	expectFenced(t, setup.try(`UPDATE todos SET title = 'v' WHERE id = 1`))
	setup.run(`ROLLBACK`)
	setup.expectLog()
}

func TestCaptureRunsNothingOfTheWritersWithOurRights(t *testing.T) {
	store, url := newCatalog(t)
	setup := connect(t, url)
	setup.run(`GRANT CREATE ON SCHEMA public TO PUBLIC`)
	writer := otherRole(t, url, setup)
	writer.run(`CREATE TYPE mood AS ENUM ('a', 'b')`)
	writer.run(`CREATE TABLE ran (who text)`)
	writer.run(`GRANT ALL ON ran TO PUBLIC`)
	writer.run(`CREATE FUNCTION mine(mood) RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN 'mine'; END $$`)
	writer.run(`CREATE CAST (mood AS text) WITH FUNCTION mine(mood) AS ASSIGNMENT`)
	setup.run(`CREATE TABLE src (k mood PRIMARY KEY, tenant mood, title text)`)
	setup.run(`GRANT ALL ON src TO PUBLIC`)
	capture(t, store, captureSpec{table: "src", key: []string{"k"}, partition: byTenant})
	writer.run(`INSERT INTO src VALUES ('a', 'b', 't'), ('b', 'a', 't')`)
	writer.run(`UPDATE src SET title = 'u'`)
	writer.run(`UPDATE src SET title = 'v' WHERE k = 'a'`)
	writer.run(`DELETE FROM src`)
	setup.expectLog("capture:src/=a 1 b", "capture:src/=a 2 b", "capture:src/=b 1 a", "capture:src/=b 2 a")
	if ran := value[int](setup, `SELECT count(*) FROM ran`); ran != 0 {
		t.Errorf("a function of the writer's ran %d times as %s", ran, value[string](setup, `SELECT min(who) FROM ran`))
	}
}
