package postgres

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestOfEightMigratorsOneExecutesAndSevenAgree(t *testing.T) {
	db := newBarrierDB(t)
	db.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database()); END $$`)
	db.mustApply(target(5))
	wanted := withSQL(6, "CREATE TABLE once(i int)")
	wanted.Tables = []storage.Table{plainTodos(titleNorm), syncularNotes(3)}
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6)}
	wanted.Lock.TimeoutMilliseconds = 30000

	// All of them see version 5 and queue, so that seven have to find out under the lock that the work is done.
	holder, err := db.connect().Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(db.ctx, "LOCK TABLE sync_partitions IN ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	var executed, agreed atomic.Int64
	var migrators sync.WaitGroup
	for range 8 {
		store := openStore(t, Config{URL: db.url})
		migrators.Go(func() {
			result, err := applyOn(db.ctx, store, wanted)
			switch {
			case err != nil:
				t.Errorf("a migrator: %v", err)
			case result.Outcome == storage.Migrate:
				executed.Add(1)
			case result.Outcome == storage.Agreed:
				agreed.Add(1)
			}
		})
	}
	db.eventually("eight migrators wait", func() bool {
		return db.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'sync_partitions'::regclass") == "8"
	})
	if err := holder.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	migrators.Wait()
	if executed.Load() != 1 || agreed.Load() != 7 {
		t.Errorf("%d executed, %d agreed", executed.Load(), agreed.Load())
	}
	db.wantText("5 6", "SELECT string_agg(version::text, ' ' ORDER BY version) FROM sync_barrier_history")
	db.wantText("1", "SELECT count(*) FROM sync_backfill_checkpoints")
}

// Starting at the same moment on a database that nobody has prepared, they also meet at the catalog.
func TestEightMigratorsOfAnEmptyDatabaseMeetAtTheCatalog(t *testing.T) {
	db := newBarrierDB(t)
	wanted := withSQL(6, "CREATE TABLE once(i int)")
	wanted.Tables = []storage.Table{plainTodos(titleNorm), syncularNotes(3)}
	var executed atomic.Int64
	var migrators sync.WaitGroup
	for range 8 {
		store := openStore(t, Config{URL: db.url})
		migrators.Go(func() {
			result, err := applyOn(db.ctx, store, wanted)
			if err != nil {
				t.Errorf("a migrator: %v", err)
			}
			if result.Outcome == storage.Migrate {
				executed.Add(1)
			}
		})
	}
	migrators.Wait()
	if executed.Load() != 1 {
		t.Errorf("%d executed", executed.Load())
	}
}

func TestAgreeingTakesNoLockThatOthersWaitFor(t *testing.T) {
	db := newBarrierDB(t)
	wanted := withSQL(6, "CREATE TABLE once(i int)")
	wanted.Tables = []storage.Table{plainTodos(titleNorm), syncularNotes(3)}
	db.mustApply(wanted)
	// Somebody holds all tables of the protocol, as a barrier or a writer may.
	tx, err := db.connect().Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, "LOCK TABLE sync_partitions, sync_commits, sync_schema_meta, sync_writer_fence, todos, notes IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	result, err := db.once(wanted)
	if err != nil || result.Outcome != storage.Agreed {
		t.Errorf("%+v, %v", result, err)
	}
	if err := tx.Rollback(db.ctx); err != nil {
		t.Fatal(err)
	}
}

// I1: whoever looks in one snapshot sees marker, layouts, columns, checkpoints and fence of one and the same version.
func TestAnObserverNeverSeesHalfABarrier(t *testing.T) {
	db := newBarrierDB(t)
	versions := func(version int64) storage.Target {
		wanted := target(version, syncularNotes(int(version)), plainTodos(titleNorm))
		for v := int64(4); v <= version; v++ {
			wanted.Checkpoints = append(wanted.Checkpoints, normCheckpoint(fmt.Sprintf("norm-%d", v), v))
			wanted.Checkpoints[v-4].Backfill, wanted.Checkpoints[v-4].Verify = storage.Backfill{Job: true}, nil
		}
		wanted.Lock.TimeoutMilliseconds = 500
		return wanted
	}
	db.mustApply(versions(4))

	ctx, stop := context.WithCancel(db.ctx)
	var observers sync.WaitGroup
	var looks atomic.Int64
	for range 2 {
		conn := db.connect()
		observers.Go(func() {
			for ctx.Err() == nil {
				if err := lookForHalves(db.ctx, conn); err != nil {
					t.Error(err)
					return
				}
				looks.Add(1)
			}
		})
	}
	writer := db.connect()
	observers.Go(func() { // keeps the locks contended
		for ctx.Err() == nil {
			if _, err := writer.Exec(db.ctx, insertCommit, "p", 99); err != nil {
				t.Errorf("a writer: %v", err)
				return
			}
		}
	})
	for version := int64(5); version <= 24; version++ {
		wanted := versions(version)
		if version%3 == 0 { // every third one fails on its way first
			broken := wanted
			broken.Migrations = []storage.Migration{{Version: version, SQL: "SELECT 1/0"}}
			if _, err := db.apply(broken); storage.CodeOf(err) != storage.CodeInvalidSQL {
				t.Errorf("a broken version: %v", err)
			}
		}
		db.mustApply(wanted)
	}
	stop()
	observers.Wait()
	if looks.Load() < 20 {
		t.Errorf("only %d looks", looks.Load())
	}
}

// lookForHalves reads in one statement, so in one snapshot, but for the trigger's argument: it is a fact of the catalog, which
// shows the newest state. It may be ahead of the snapshot and never behind it.
func lookForHalves(ctx context.Context, conn *pgx.Conn) error {
	var marker, layouts, columns, checkpoint, fence, history, argument, open int64
	err := conn.QueryRow(ctx, `
		SELECT m.schema_version,
		       json_array_length(m.layouts::json -> 'notes'),
		       (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = 'notes'::regclass AND a.attnum > 0 AND NOT a.attisdropped) - 5,
		       (SELECT max(c.schema_version) FROM sync_backfill_checkpoints c),
		       (SELECT f.required_writer_version FROM sync_writer_fence f WHERE f.partition = '*'),
		       (SELECT max(h.version) FROM sync_barrier_history h),
		       (SELECT replace(encode(t.tgargs, 'escape'), '\000', '')::bigint FROM pg_trigger t WHERE t.tgname = 'syncbarrier_fence' AND t.tgenabled = 'A'),
		       (SELECT count(*) FROM sync_backfill_checkpoints)
		  FROM sync_schema_meta m`).Scan(&marker, &layouts, &columns, &checkpoint, &fence, &history, &argument, &open)
	if err != nil {
		return fmt.Errorf("look: %w", err)
	}
	if layouts != marker || columns != marker || checkpoint != marker || fence != marker || history != marker || argument != marker || open != marker-3 {
		return fmt.Errorf("half a barrier: marker %d, layouts %d, columns %d, checkpoint %d, fence %d, history %d, trigger %d, %d checkpoints",
			marker, layouts, columns, checkpoint, fence, history, argument, open)
	}
	return nil
}

func TestABarrierWhoseSessionIsKilledLeavesNothing(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(5, plainTodos(), syncularNotes(3)))
	before := db.text(wholeDatabase)
	wanted := withSQL(6, "CREATE TABLE half(i int); SELECT pg_sleep(60)")
	wanted.Tables = []storage.Table{plainTodos(titleNorm), syncularNotes(9)}
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6)}
	done := make(chan error, 1)
	go func() {
		_, err := db.once(wanted)
		done <- err
	}()
	db.eventually("the SQL runs", func() bool {
		return db.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") == "1"
	})
	db.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
	wantRefusal(t, <-done, storage.CodeConnectionLost)
	db.wantText(before, wholeDatabase)
	wanted.Migrations[0].SQL = "CREATE TABLE half(i int)"
	db.mustApply(wanted)
}

// wholeDatabase is a fingerprint of tables, columns, triggers and the content of what is ours.
const wholeDatabase = `
	SELECT md5(string_agg(what, ',' ORDER BY what))
	  FROM (SELECT c.relname || '.' || a.attname || ' ' || a.atttypid || ' ' || a.attnotnull AS what
	          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
	         WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
	         UNION ALL SELECT t.tgname || ' ' || t.tgenabled::text || ' ' || encode(t.tgargs, 'hex') FROM pg_trigger t
	         UNION ALL SELECT m::text FROM sync_schema_meta m
	         UNION ALL SELECT f::text FROM sync_writer_fence f
	         UNION ALL SELECT c::text FROM sync_backfill_checkpoints c
	         UNION ALL SELECT d::text FROM sync_backfill_definitions d
	         UNION ALL SELECT h::text FROM sync_barrier_history h
	         UNION ALL SELECT o::text FROM sync_barrier_owner o) all_of_it`

func TestACallerThatGivesUpLeavesNothing(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(5))
	before := db.text(wholeDatabase)
	ctx, cancel := context.WithCancel(db.ctx)
	done := make(chan error, 1)
	go func() {
		_, err := db.store.EnsureSchema(ctx, withSQL(6, "CREATE TABLE half(i int); SELECT pg_sleep(60)"), storage.Attempt{Number: 1})
		done <- err
	}()
	const sleeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
	db.eventually("the SQL runs", func() bool { return db.text(sleeping) == "1" })
	began := time.Now()
	cancel()
	err := <-done
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("giving up took %s", took)
	}
	wantRefusal(t, err, storage.CodeCancelled)
	db.eventually("the server stopped it", func() bool { return db.text(sleeping) == "0" })
	db.wantText(before, wholeDatabase)
}

// cutProxy stands between a store and its server. Once armed, it cuts the connection on which a barrier has written its history when the
// client then sends COMMIT, with or without passing that on, and in any case before an answer.
type cutProxy struct {
	listener net.Listener
	server   string
	deliver  bool // the server gets the COMMIT
	armed    atomic.Bool
}

func newCutProxy(t *testing.T, server string, deliver bool) *cutProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &cutProxy{listener: listener, server: server, deliver: deliver}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

func (p *cutProxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var silent atomic.Bool
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil {
				return
			}
			if silent.Load() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer, wrote := make([]byte, 64<<10), false
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		text := string(buffer[:n])
		wrote = wrote || strings.Contains(text, "INSERT INTO") && strings.Contains(text, "sync_barrier_history")
		if wrote && strings.Contains(text, "commit\x00") && p.armed.CompareAndSwap(true, false) {
			silent.Store(true)
			if p.deliver {
				_, _ = server.Write(buffer[:n])
				<-answered // the server has done it
			}
			return
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func TestALostAcknowledgementOfCommitIsFoundByAskingAgain(t *testing.T) {
	for name, test := range map[string]struct {
		delivered bool
		again     storage.DecisionOutcome
	}{
		"the server had committed": {true, storage.Agreed},
		"the server had not":       {false, storage.Migrate},
	} {
		t.Run(name, func(t *testing.T) {
			db := newBarrierDB(t)
			db.mustApply(target(5))
			through, err := url.Parse(db.url)
			if err != nil {
				t.Fatal(err)
			}
			proxy := newCutProxy(t, through.Host, test.delivered)
			through.Host = proxy.listener.Addr().String()
			store := openStore(t, Config{URL: through.String()})
			wanted := withSQL(6, "CREATE TABLE once(i int)")
			wanted.Tables = []storage.Table{plainTodos()}

			proxy.armed.Store(true)
			_, err = store.EnsureSchema(db.ctx, wanted, storage.Attempt{Number: 1})
			wantRefusal(t, err, storage.CodeCommitUnknown, "version 6")
			if !storage.ClassOf(err).Retryable() {
				t.Error("it is not tried again")
			}
			result, err := applyOn(db.ctx, store, wanted)
			if err != nil || result.Outcome != test.again {
				t.Errorf("asked again: %+v, %v", result, err)
			}
			db.wantText("5 6", "SELECT string_agg(version::text, ' ' ORDER BY version) FROM sync_barrier_history")
		})
	}
}
