package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// A cancel request that its client gives up ends a PgBouncer 1.18 with all that is behind it; a request that comes too late ends the
// statement after.
func TestStatementsThatAreCancelledAtAnyMomentLeavePoolerAndConnectionUsable(t *testing.T) {
	direct := testdb.Postgres(t)
	for name, config := range map[string]Config{
		"direct":    {URL: direct, MaxConnections: 1},
		"PgBouncer": {URL: testdb.PgBouncer(t, direct), Pooler: PoolerTransaction, MaxConnections: 1},
	} {
		t.Run(name, func(t *testing.T) {
			store := openStore(t, config)
			ctx := testContext(t)
			for i := range 100 {
				bounded, cancel := context.WithTimeout(ctx, time.Duration(i)*100*time.Microsecond)
				err := store.inTx(bounded, "be cancelled", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, fmt.Sprintf("SELECT pg_sleep(%f)", float64(i%7)*0.001))
					return err
				})
				cancel()
				if err != nil && storage.CodeOf(err) != storage.CodeCancelled && bounded.Err() == nil {
					t.Fatalf("cancelled after %d: %v", i, err)
				}
				var one int
				if err := store.readOnce(ctx, "read after it", scanRow(&one), "SELECT 1"); err != nil {
					t.Fatalf("read after statement %d was cancelled: %v", i, err)
				}
			}
		})
	}
}

func TestACancelledWaitEndsItsTransactionOnTheServer(t *testing.T) {
	store, url := newCatalog(t)
	holder := connect(t, url)
	holder.run("BEGIN")
	holder.run("LOCK TABLE sync_partitions IN ACCESS EXCLUSIVE MODE")
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	tx, err := store.Begin(ctx, "a", 1)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- tx.LockPartition(ctx) }()
	watcher := connect(t, url)
	waitAnyBlocked(t, watcher, "sync_partitions")
	cancel()
	expectCode(t, <-ended, storage.CodeCancelled)
	if err := tx.Rollback(ctx); err != nil {
		t.Errorf("roll back: %v", err)
	}
	if waiting := value[int](watcher, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'sync_partitions'::regclass`); waiting != 0 {
		t.Errorf("%d sessions still wait", waiting)
	}
}
