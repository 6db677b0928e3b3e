package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// load is what clients of a program met.
type load struct {
	done, deadlocks, serialization int
	took                           time.Duration
}

func (l load) String() string {
	return fmt.Sprintf("%d transactions in %s (%.0f/s), %d deadlocks, %d serialization failures", l.done, l.took.Round(time.Millisecond),
		float64(l.done)/l.took.Seconds(), l.deadlocks, l.serialization)
}

const (
	loadClients = 8
	loadRows    = 100_000 // so many that two clients rarely meet by chance, however slow the machine makes them
)

// runLoad lets clients run a transaction over and over, in parallel, each on a connection of its own. A transaction that is refused by a
// deadlock or a serialization failure is counted and not repeated; any other error fails the test.
func runLoad(t *testing.T, url string, transactions int, level pgx.TxIsoLevel, transaction func(ctx context.Context, tx pgx.Tx, random *rand.Rand) error) load {
	t.Helper()
	var total load
	var mutex sync.Mutex
	var clients sync.WaitGroup
	ctx := testContext(t)
	sessions := make([]*session, loadClients)
	for i := range sessions {
		sessions[i] = connect(t, url)
	}
	started := time.Now()
	for i, client := range sessions {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range transactions {
				err := pgx.BeginTxFunc(ctx, client.conn, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error { return transaction(ctx, tx, random) })
				mutex.Lock()
				switch stateOf(err) {
				case "40P01":
					total.deadlocks++
				case "40001":
					total.serialization++
				default:
					if err != nil {
						t.Errorf("client %d: %v", i, err)
					}
					total.done++
				}
				mutex.Unlock()
			}
		})
	}
	clients.Wait()
	total.took = time.Since(started)
	return total
}

// twoRows changes two random rows, in any order.
func twoRows(ctx context.Context, tx pgx.Tx, random *rand.Rand) error {
	first, second := random.IntN(loadRows), random.IntN(loadRows)
	if first == second {
		second = (first + 1) % loadRows
	}
	return update(ctx, tx, first, second)
}

// opposite changes two of a few rows, one way or the other, in the order of their numbers: without us, no cycle can come of it.
func opposite(ctx context.Context, tx pgx.Tx, random *rand.Rand) error {
	first := random.IntN(50)
	return update(ctx, tx, first, first+1+random.IntN(50))
}

func update(ctx context.Context, tx pgx.Tx, ids ...int) error {
	for _, id := range ids {
		if _, err := tx.Exec(ctx, `UPDATE todos SET title = title || '.' WHERE id = $1`, id); err != nil {
			return err
		}
	}
	return nil
}

func TestCaptureBringsNoDeadlockAndNoSerializationFailureIntoAProgram(t *testing.T) {
	const perClient = 150
	for _, c := range []struct {
		name        string
		transaction func(ctx context.Context, tx pgx.Tx, random *rand.Rand) error
		level       pgx.TxIsoLevel
	}{
		{"two random rows, READ COMMITTED", twoRows, pgx.ReadCommitted},
		{"two random rows, REPEATABLE READ", twoRows, pgx.RepeatableRead},
		{"two random rows, SERIALIZABLE", twoRows, pgx.Serializable},
		{"few rows in order, READ COMMITTED", opposite, pgx.ReadCommitted},
	} {
		t.Run(c.name, func(t *testing.T) {
			store, url := newCatalog(t)
			setup := connect(t, url)
			setup.run(sourceSQL)
			setup.run(fmt.Sprintf(`INSERT INTO todos SELECT i, 't' || i %% 16, '' FROM generate_series(0, %d) AS i`, loadRows-1))
			setup.run(`VACUUM ANALYZE todos`)
			without := runLoad(t, url, perClient, c.level, c.transaction)
			t.Logf("without capture: %s", without)
			if without.deadlocks > 0 {
				t.Fatalf("the load deadlocks by itself: %s", without)
			}
			for _, partition := range []storage.Partition{{Hash: 16}, {}, byTenant} {
				capture(t, store, captureSpec{table: "todos", key: []string{"id"}, partition: partition})
				setup.run(`UPDATE todos SET title = title || '!' WHERE id < 16`) // now the tenants' partitions have their rows
				setup.forgetLog()
				with := runLoad(t, url, perClient, c.level, c.transaction)
				t.Logf("captured, partition %+v: %s", partition, with)
				if with.deadlocks > 0 {
					t.Errorf("partition %+v: %s", partition, with)
				}
				// One in a hundred more is noise; a commit number from a row that writers share costs every second transaction.
				if most := without.serialization + loadClients*perClient/100; with.serialization > most {
					t.Errorf("partition %+v: %s; without capture %d serialization failures", partition, with, without.serialization)
				}
				if commits := value[int](setup, `SELECT count(DISTINCT commit_seq) FROM sync_commits`); commits != with.done {
					t.Errorf("partition %+v: the log has %d commits of %d transactions", partition, commits, with.done)
				}
			}
		})
	}
}
