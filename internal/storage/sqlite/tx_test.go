package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// counter makes a file with one number in it.
func counter(t testing.TB, config Config, journal string) (*Store, program) {
	t.Helper()
	p := openProgram(t, config.Path)
	p.exec("PRAGMA journal_mode = " + journal)
	p.exec("CREATE TABLE counter(n INTEGER)")
	p.exec("INSERT INTO counter VALUES (0)")
	return openWith(t, config), p
}

func increment(ctx context.Context, tx *sql.Conn) error {
	_, err := tx.ExecContext(ctx, "UPDATE counter SET n = n + 1")
	return err
}

func TestASnapshotThatIsTooOldRunsTheWholeTransactionAgain(t *testing.T) {
	t.Parallel()
	store, p := counter(t, Config{Path: newFile(t)}, "WAL")
	var read []int64
	err := store.inTx(testContext(t), "test", false, func(ctx context.Context, tx *sql.Conn) error {
		var n int64
		if err := tx.QueryRowContext(ctx, "SELECT n FROM counter").Scan(&n); err != nil {
			return err
		}
		read = append(read, n)
		if len(read) == 1 {
			p.exec("UPDATE counter SET n = 10") // from here on the snapshot is old
		}
		return increment(ctx, tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(read) != 2 || read[0] != 0 || read[1] != 10 {
		t.Errorf("the transaction read %v, want 0 and then 10", read)
	}
	same(t, "n", p.number("SELECT n FROM counter"), 11)
}

func TestTheWriteLockIsWaitedForNoLongerThanItsBound(t *testing.T) {
	t.Parallel()
	for _, journal := range []string{"WAL", "DELETE"} {
		t.Run(journal, func(t *testing.T) {
			store, p := counter(t, Config{Path: newFile(t), BusyTimeout: 200 * time.Millisecond}, journal)
			holder, err := p.db.Conn(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			defer release(holder, true)
			if _, err := holder.ExecContext(testContext(t), "BEGIN IMMEDIATE"); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			err = store.inTx(testContext(t), "count", true, increment)
			waited := time.Since(started)
			wantCode(t, err, storage.CodeLockTimeout)
			wantText(t, err, "count", "write lock", store.path)
			if waited < 200*time.Millisecond || waited > 5*time.Second {
				t.Errorf("waited %s for a lock with a bound of 200ms", waited)
			}
			if _, err := holder.ExecContext(testContext(t), "COMMIT"); err != nil {
				t.Fatal(err)
			}
			if err := store.inTx(testContext(t), "count", true, increment); err != nil {
				t.Errorf("with the lock free again: %v", err)
			}
		})
	}
}

func TestACommitThatAReaderKeepsOutIsUndoneAndTimesOut(t *testing.T) {
	t.Parallel()
	store, p := counter(t, Config{Path: newFile(t), BusyTimeout: 200 * time.Millisecond}, "DELETE")
	reader, err := p.db.Conn(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer release(reader, true)
	read := func(statement string) {
		t.Helper()
		if _, err := reader.ExecContext(testContext(t), statement); err != nil {
			t.Fatal(err)
		}
	}
	read("BEGIN; SELECT n FROM counter")
	err = store.inTx(testContext(t), "count", true, increment)
	wantCode(t, err, storage.CodeLockTimeout)
	wantText(t, err, "commit", "kept reading")
	read("COMMIT")
	same(t, "n", p.number("SELECT n FROM counter"), 0)
	if err := store.inTx(testContext(t), "count", true, increment); err != nil {
		t.Errorf("without the reader: %v", err)
	}
	same(t, "n", p.number("SELECT n FROM counter"), 1)
}

func TestACancelledTransactionLeavesNothingAndNoLock(t *testing.T) {
	t.Parallel()
	store, p := counter(t, Config{Path: newFile(t)}, "WAL")
	ctx, cancel := context.WithCancel(testContext(t))
	err := store.inTx(ctx, "count", true, func(ctx context.Context, tx *sql.Conn) error {
		if err := increment(ctx, tx); err != nil {
			return err
		}
		cancel()
		return nil
	})
	wantCode(t, err, storage.CodeCancelled)
	same(t, "n", p.number("SELECT n FROM counter"), 0)
	p.exec("UPDATE counter SET n = 5") // it would wait for a lock that was left
	err = store.inTx(ctx, "count", true, increment)
	wantCode(t, err, storage.CodeCancelled)
}

func TestAStatementThatIsCancelledGivesTheLockBack(t *testing.T) {
	t.Parallel()
	store, p := counter(t, Config{Path: newFile(t)}, "WAL")
	ctx, cancel := context.WithTimeout(testContext(t), 100*time.Millisecond)
	defer cancel()
	started := time.Now()
	err := store.inTx(ctx, "count for ever", true, func(ctx context.Context, tx *sql.Conn) error {
		if err := increment(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, endlessSQL)
		return err
	})
	wantCode(t, err, storage.CodeCancelled)
	if ended := time.Since(started); ended > 10*time.Second {
		t.Errorf("it ended after %s", ended)
	}
	same(t, "n", p.number("SELECT n FROM counter"), 0)
	p.exec("UPDATE counter SET n = 5")
}

// endlessSQL counts for hours.
const endlessSQL = `
	WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)
	SELECT max(n) FROM (SELECT n FROM c LIMIT 1000000000000)`

func TestAnErrorOfTheWorkKeepsItsCodeAndRollsBack(t *testing.T) {
	t.Parallel()
	store, p := counter(t, Config{Path: newFile(t)}, "WAL")
	err := store.inTx(testContext(t), "count", true, func(ctx context.Context, tx *sql.Conn) error {
		if err := increment(ctx, tx); err != nil {
			return err
		}
		return fmt.Errorf("wrapped: %w", storage.Refuse(storage.CodeConflict, "no"))
	})
	wantCode(t, err, storage.CodeConflict)
	same(t, "n", p.number("SELECT n FROM counter"), 0)
}

func TestAConnectionThatUserSQLRanOnIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	store := openWith(t, Config{Path: newFile(t), Create: true, MaxConnections: 1})
	mark := func(ctx context.Context, tx *sql.Conn) error {
		closeConnection(ctx)
		_, err := tx.ExecContext(ctx, "CREATE TEMP TABLE left_behind(i INTEGER)")
		return err
	}
	if err := store.inTx(testContext(t), "test", true, mark); err != nil {
		t.Fatal(err)
	}
	err := store.inTx(testContext(t), "test", false, func(ctx context.Context, tx *sql.Conn) error {
		left, err := countOf(ctx, tx, "temporary tables", "SELECT count(*) FROM temp.sqlite_master")
		same(t, "temporary tables", left, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWritersBesideAHoggingProgramAllGetTheirTurn is the load under which SQLite's own wait ends in "database is locked": a program that
// holds the write lock for 400 ms at a time and hardly lets go, and twenty writers of ours on a pool of eight, each reading before
// it writes.
func TestWritersBesideAHoggingProgramAllGetTheirTurn(t *testing.T) {
	t.Parallel()
	store, p := counter(t, Config{Path: newFile(t), BusyTimeout: 10 * time.Second}, "WAL")
	ctx, stop := context.WithTimeout(testContext(t), 4*time.Second)
	defer stop()
	var group sync.WaitGroup
	held := make(chan struct{})
	group.Go(func() { hog(ctx, t, p, held, 400*time.Millisecond, 20*time.Millisecond) })
	<-held
	var advanced, timeouts atomic.Int64
	for range 20 {
		group.Go(func() {
			for ctx.Err() == nil {
				err := store.inTx(context.WithoutCancel(ctx), "advance", true, func(ctx context.Context, tx *sql.Conn) error {
					var n int64
					if err := tx.QueryRowContext(ctx, "SELECT n FROM counter").Scan(&n); err != nil {
						return err
					}
					_, err := tx.ExecContext(ctx, "UPDATE counter SET n = ? WHERE n = ?", n+1, n)
					return err
				})
				switch storage.CodeOf(err) {
				case "":
					advanced.Add(1)
				case storage.CodeLockTimeout:
					timeouts.Add(1)
				default:
					t.Errorf("advance: %v", err)
				}
			}
		})
	}
	group.Wait()
	same(t, "n", p.number("SELECT n FROM counter"), advanced.Load())
	same(t, "waits that timed out", timeouts.Load(), 0)
	if advanced.Load() < 20 {
		t.Errorf("20 writers advanced %d times in 4 s", advanced.Load())
	}
	t.Logf("%d advances beside the program", advanced.Load())
}

func TestThoseWhoWaitForTheLockLeaveConnectionsToReaders(t *testing.T) {
	t.Parallel()
	store, p := counter(t, Config{Path: newFile(t), BusyTimeout: 2 * time.Second, MaxConnections: 2}, "WAL")
	holder, err := p.db.Conn(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer release(holder, true)
	if _, err := holder.ExecContext(testContext(t), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() { wantCode(t, store.inTx(testContext(t), "count", true, increment), storage.CodeLockTimeout) })
	}
	waitUntil(t, "somebody waits for the lock", func() bool { return len(store.turn) == 1 })
	for range 20 {
		started := time.Now()
		err := store.inTx(testContext(t), "read", false, func(ctx context.Context, tx *sql.Conn) error {
			_, err := countOf(ctx, tx, "rows", "SELECT count(*) FROM counter")
			return err
		})
		if waited := time.Since(started); err != nil || waited > time.Second {
			t.Errorf("a read took %s: %v", waited, err)
		}
	}
	group.Wait()
}

// hog holds the write lock again and again until ctx ends, and leaves it free for a short while in between. held is closed when it holds
// it for the first time.
func hog(ctx context.Context, t testing.TB, p program, held chan struct{}, hold, free time.Duration) {
	first := sync.OnceFunc(func() { close(held) })
	defer first()
	conn, err := p.db.Conn(ctx)
	if err != nil {
		t.Errorf("hog: %v", err)
		return
	}
	defer release(conn, false)
	for ctx.Err() == nil {
		if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			if ctx.Err() == nil {
				t.Errorf("hog: %v", err)
			}
			return
		}
		first()
		_ = sleep(ctx, hold) // holding the lock is the load, not a way to wait for something
		if _, err := conn.ExecContext(context.WithoutCancel(ctx), "COMMIT"); err != nil {
			t.Errorf("hog: %v", err)
			return
		}
		_ = sleep(ctx, free)
	}
}
