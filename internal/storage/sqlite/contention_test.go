package sqlite

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// TestWorkersASchemaChangeAndAHoggingProgramAllGetThrough: twenty workers on a pool of eight read their checkpoint and advance it, one schema
// change is applied, and a program holds the write lock for 400 ms at a time. Nobody fails for a lock, and no settings get lost on the way.
func TestWorkersASchemaChangeAndAHoggingProgramAllGetThrough(t *testing.T) {
	t.Parallel()
	const workers = 20
	path := newFile(t)
	store := openWith(t, Config{Path: path, Create: true, BusyTimeout: 10 * time.Second})
	apply(t, store, version6())
	target := version7()
	external := storage.Checkpoint{
		Name: "letters", Version: 7, Backfill: storage.Backfill{Job: true},
		Sources: []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
	}
	for i := range workers {
		external.Partitions = append(external.Partitions, fmt.Sprintf("p%d", i))
	}
	target.Checkpoints = append(target.Checkpoints, external)
	apply(t, store, target)
	claim, err := store.ClaimAll(testContext(t), "letters", false)
	if err != nil || len(claim.Rows) != workers {
		t.Fatalf("claimed %d rows: %v", len(claim.Rows), err)
	}

	ctx, stop := context.WithTimeout(testContext(t), 5*time.Second)
	defer stop()
	var group sync.WaitGroup
	held := make(chan struct{})
	program := openProgram(t, path)
	group.Go(func() { hog(ctx, t, program, held, 400*time.Millisecond, 20*time.Millisecond) })
	<-held
	var advanced atomic.Int64
	for _, row := range claim.Rows {
		group.Go(func() {
			for step := int64(1); ctx.Err() == nil; step++ {
				rows, err := store.ReadCheckpoints(testContext(t), row.Partition)
				if err != nil || len(rows) != 1 || rows[0].ObservedRows != step-1 {
					t.Errorf("partition %s, step %d: read %v, %v", row.Partition, step, rows, err)
					return
				}
				moved, err := store.AdvanceCheckpoint(testContext(t), storage.Advance{
					Ownership: storage.Ownership{Partition: row.Partition, Name: "letters", OwnerEpoch: row.OwnerEpoch, Token: claim.Token},
					Watermark: row.Watermark, ObservedRows: step,
				})
				if err != nil || !moved {
					t.Errorf("partition %s, step %d: moved %t, %v", row.Partition, step, moved, err)
					return
				}
				advanced.Add(1)
			}
		})
	}
	next := target
	next.Version = 8
	result, err := ensurePatiently(testContext(t), store, next)
	if err != nil {
		t.Errorf("apply version 8: %v", err)
	}
	same(t, "outcome", result.Outcome, storage.Migrate)
	group.Wait()
	if advanced.Load() < workers {
		t.Errorf("%d workers advanced %d times in 5 s", workers, advanced.Load())
	}
	t.Logf("%d advances, the schema change waited %s", advanced.Load(), result.LockWait)
	wantSettings(t, store)
}

// wantSettings looks at all connections of the pool at once.
func wantSettings(t testing.TB, store *Store) {
	t.Helper()
	ctx := testContext(t)
	for range defaultMaxConnections {
		conn, err := store.acquire(ctx, "test")
		if err != nil {
			t.Fatal(err)
		}
		defer release(conn, false)
		for setting, want := range map[string]int64{"busy_timeout": store.busy.Milliseconds(), "foreign_keys": 1} {
			var got int64
			if err := conn.QueryRowContext(ctx, "PRAGMA "+setting).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("%s is %d on one of the connections, want %d", setting, got, want)
			}
		}
	}
	same(t, "connections", store.db.Stats().OpenConnections, defaultMaxConnections)
}
