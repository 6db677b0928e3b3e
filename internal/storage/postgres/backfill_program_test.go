package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// program is a load of several clients beside us. It counts what its clients meet.
type program struct {
	transactions atomic.Int64
	deadlocks    atomic.Int64
	failure      atomic.Pointer[error]
	slowest      atomic.Int64 // in nanoseconds
	stop         context.CancelFunc
	group        sync.WaitGroup
}

// startProgram runs clients, each on a connection of its own, until the test ends it. A deadlock is counted and passed over; anything else
// fails the test.
func (db *barrierDB) startProgram(clients int, transaction func(ctx context.Context, tx pgx.Tx, random *rand.Rand) error) *program {
	db.t.Helper()
	ctx, stop := context.WithCancel(db.ctx)
	p := &program{stop: stop}
	for client := range clients {
		conn := db.connect()
		random := rand.New(rand.NewPCG(1, uint64(client)))
		p.group.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				err := pgx.BeginFunc(context.WithoutCancel(ctx), conn, func(tx pgx.Tx) error { return transaction(db.ctx, tx, random) })
				p.note(err, time.Since(began))
			}
		})
	}
	db.t.Cleanup(func() { p.end(db.t) })
	return p
}

func (p *program) note(err error, took time.Duration) {
	switch {
	case err == nil, errors.Is(err, errRolledBack):
		p.transactions.Add(1)
	case stateOf(err) == "40P01":
		p.deadlocks.Add(1)
	default:
		p.failure.Store(&err)
	}
	for {
		slowest := p.slowest.Load()
		if int64(took) <= slowest || p.slowest.CompareAndSwap(slowest, int64(took)) {
			return
		}
	}
}

// end stops the clients and reports what they met.
func (p *program) end(t testing.TB) {
	t.Helper()
	p.stop()
	p.group.Wait()
	if failure := p.failure.Load(); failure != nil {
		t.Errorf("a client failed: %v", *failure)
	}
	if deadlocks := p.deadlocks.Load(); deadlocks > 0 {
		t.Errorf("the program met %d deadlocks in %d transactions", deadlocks, p.transactions.Load())
	}
}

// Clients that update two rows in falling order, while batches take rows in rising order.
func TestBatchesNeverDeadlockTheProgramAndGoOn(t *testing.T) {
	for name, expression := range map[string]string{"quick": "lower(title)", "careful": "(SELECT lower(title))"} {
		t.Run(name, func(t *testing.T) {
			checkpoint := normCheckpoint("norm", 2)
			checkpoint.Backfill.Update.Set["title_norm"] = expression
			db := newBackfillDB(t, todosSQL(2000), checkpoint, plainTodos(titleNorm))
			load := db.startProgram(8, func(ctx context.Context, tx pgx.Tx, random *rand.Rand) error {
				low := random.IntN(1999) + 1
				high := low + 1 + random.IntN(2000-low)
				for _, id := range []int{high, low} {
					if _, err := tx.Exec(ctx, "UPDATE todos SET title = title WHERE id = $1", id); err != nil {
						return err
					}
				}
				return nil
			})
			var rows, passes int64
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end); passes++ {
				claim := db.mustClaim(true)
				_, scanned := db.scan(claim, db.mustLeases(claim))
				rows += scanned
				for left := true; left; {
					batch, err := again(db.ctx, func() (storage.Batch, error) { return db.store.RetryLeftovers(db.ctx, claim, "*", 1000) })
					if err != nil {
						t.Fatalf("retry the leftovers: %v", err)
					}
					rows += batch.Rows
					left = !batch.Done
				}
			}
			load.end(t)
			t.Logf("%d passes with %d rows beside %d transactions, the slowest %s", passes, rows, load.transactions.Load(), time.Duration(load.slowest.Load()))
			if rows < 2000 || load.transactions.Load() < 1000 {
				t.Errorf("no progress: %d rows, %d transactions", rows, load.transactions.Load())
			}
			if slowest := time.Duration(load.slowest.Load()); slowest > 5*time.Second {
				t.Errorf("a transaction of the program took %s", slowest)
			}
		})
	}
}

// protocolWriter changes two rows of tenant a, the hot one among them, in the order that the sync protocol asks for.
func protocolWriter(ctx context.Context, tx pgx.Tx, random *rand.Rand) error {
	if _, err := tx.Exec(ctx, "SELECT FROM sync_partitions WHERE partition = 'a' FOR UPDATE"); err != nil {
		return err
	}
	id := 2 + 2*random.IntN(100)
	if _, err := tx.Exec(ctx, "UPDATE todos SET title = 'T' || $2::text WHERE id IN (2, $1)", id, strconv.Itoa(random.IntN(1000))); err != nil {
		return err
	}
	return appendChanges(ctx, tx, "a", "todos", "2", strconv.Itoa(id))
}

// rowsFirstWriter changes the hot row before it takes its partition, as a program may that appends at the end of its transaction.
func rowsFirstWriter(ctx context.Context, tx pgx.Tx, random *rand.Rand) error {
	if _, err := tx.Exec(ctx, "UPDATE todos SET title = 'T' || $1::text WHERE id = 2", strconv.Itoa(random.IntN(1000))); err != nil {
		return err
	}
	return appendChanges(ctx, tx, "a", "todos", "2")
}

// Whatever the order of its locks, the program meets no deadlock, the activation ends, and at its COMMIT everything is covered.
func TestActivationEndsUnderConstantLoadOnAHotRow(t *testing.T) {
	writers := map[string]func(context.Context, pgx.Tx, *rand.Rand) error{"partition first": protocolWriter, "rows first": rowsFirstWriter}
	for name, writer := range writers {
		for _, partition := range []string{"a", "*"} {
			t.Run(name+", row "+partition, func(t *testing.T) {
				var listed []string
				rows := ""
				if partition != "*" {
					listed, rows = []string{partition}, " AND tenant = 'a'"
				}
				db := todosDB(t, 1000, listed...)
				db.exec("INSERT INTO sync_partitions(partition) VALUES ('a') ON CONFLICT DO NOTHING")
				load := db.startProgram(8, writer)
				claim := db.mustClaim(false)
				db.scan(claim, db.mustLeases(claim))
				attempts, held := db.activateUnderLoad(claim, partition, wrong+rows)
				load.end(t)
				t.Logf("activated after %d attempts, held %s, beside %d transactions, the slowest %s",
					attempts, held, load.transactions.Load(), time.Duration(load.slowest.Load()))
				if attempts > 100 {
					t.Errorf("it took %d attempts", attempts)
				}
				if slowest := time.Duration(load.slowest.Load()); slowest > 2*time.Second {
					t.Errorf("a transaction of the program took %s", slowest)
				}
			})
		}
	}
}

// activateUnderLoad does what a worker does: tail, attempt, pause, and after 20 refusals the last resort. check has to give 0 under the
// locks of the attempt that succeeds.
func (db *backfillDB) activateUnderLoad(claim storage.Claim, partition, check string) (attempts int, held time.Duration) {
	db.t.Helper()
	for refused := 0; ; {
		_, err := again(db.ctx, func() (storage.Batch, error) { return db.store.TailBatch(db.ctx, claim, partition, 1000) })
		if err != nil {
			db.t.Fatalf("tail: %v", err)
		}
		if _, err := again(db.ctx, func() (storage.Batch, error) { return db.store.RetryLeftovers(db.ctx, claim, partition, 1000) }); err != nil {
			db.t.Fatalf("leftovers: %v", err)
		}
		attempts++
		report, err := db.store.Activate(db.ctx, claim, storage.Activation{
			Partition: partition, Tables: refused >= 20,
			BeforeCommit: func(ctx context.Context, q storage.Querier) error {
				rows, err := q.Query(ctx, check)
				if err != nil {
					return err
				}
				if rows[0][0].(int64) != 0 {
					db.t.Errorf("%d rows are not covered at the commit that activates", rows[0][0])
				}
				return nil
			},
		})
		switch {
		case err == nil && report.Outcome == storage.OutcomeActivated:
			return attempts, report.Held
		case storage.CodeOf(err) == storage.CodeLockTimeout:
			refused++
			pauseFor(db.ctx, time.Duration(10+rand.IntN(40))*time.Millisecond)
		case err != nil || report.Outcome != storage.OutcomeChanged:
			db.t.Fatalf("activate: %+v, %v", report, err)
		}
	}
}

// pauseFor is what a worker does between attempts; nothing is waited for.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
