package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

var isolationLevels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// TestNoOlderSnapshotGetsPastARaise: a writer of version 5 and a raise to 6, for each isolation level, for a partition that exists
// and one that the writer is the first to use, for a transaction whose snapshot is older or younger than the raise, for a raise for
// all and for the partition alone, and for both ways to insert.
func TestNoOlderSnapshotGetsPastARaise(t *testing.T) {
	store, url := newCatalog(t)
	raise(t, store, forAll(5))
	watcher, writer := connect(t, url), connect(t, url)
	statements := map[string]string{"append": appendSQL, "insert": insertSQL}
	run := 0
	for _, iso := range isolationLevels {
		for _, known := range []bool{true, false} {
			for _, before := range []bool{true, false} {
				for _, single := range []bool{false, true} {
					for how, statement := range statements {
						run++
						partition, number := fmt.Sprintf("p%d", run), int64(1000+run)
						name := fmt.Sprintf("%s known=%v snapshotBefore=%v single=%v %s", iso, known, before, single, how)
						t.Run(name, func(t *testing.T) {
							if known {
								if err := watcher.append(partition, storage.CatalogProtocol+1_000_000); err != nil {
									t.Fatal(err)
								}
							}
							arguments := []any{partition, int64(4 + run)} // the version that was right so far
							if how == "insert" {
								arguments = append(arguments, number)
							}
							target := map[string]int64{storage.AllPartitions: int64(5 + run)}
							if single {
								target = map[string]int64{partition: int64(5 + run)}
							}
							begin := func() {
								writer.run("BEGIN ISOLATION LEVEL " + string(iso))
								// The snapshot, and the log was read in it.
								writer.run("SELECT count(*) FROM sync_commits")
							}
							if before {
								begin()
								raise(t, store, target)
							} else {
								raise(t, store, target)
								begin()
							}
							err := writer.try(statement, arguments...)
							writer.run("ROLLBACK")

							mayFailToSerialize := single && before && iso != pgx.ReadCommitted
							if !mayFailToSerialize || stateOf(err) != "40001" {
								expectFenced(t, err)
							}
							if single {
								raise(t, store, forAll(int64(5+run))) // so that the next run starts one higher
							}
						})
					}
				}
			}
		}
	}
	if n := value[int64](watcher, "SELECT count(*) FROM sync_commits WHERE writer_version < 1000"); n != 0 {
		t.Errorf("%d commits got past the fence", n)
	}
}

func TestARightWriterWithAnOldSnapshotPassesARaiseForAll(t *testing.T) {
	store, url := newCatalog(t)
	raise(t, store, forAll(5))
	writer := connect(t, url)
	for i, iso := range isolationLevels {
		for _, partition := range []string{"known", fmt.Sprintf("new%d", i)} {
			writer.run("BEGIN ISOLATION LEVEL " + string(iso))
			writer.run("SELECT count(*) FROM sync_commits")
			raise(t, store, forAll(int64(6+i)))
			if err := writer.append(partition, 9); err != nil {
				t.Errorf("%s, partition %s: %v", iso, partition, err)
			}
			writer.run("COMMIT")
		}
	}
}

func TestAPlanPreparedBeforeARaiseIsFenced(t *testing.T) {
	store, url := newCatalog(t)
	writer := connect(t, url)
	writer.run("PREPARE put(text, bigint) AS " + `INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		VALUES ($1, $2, 'client', 'c', 'actor', 0, 5)`)
	for i := range 6 { // until the plan is a generic one
		writer.run(fmt.Sprintf("EXECUTE put('p', %d)", i))
	}
	raise(t, store, forAll(6))
	expectFenced(t, writer.try("EXECUTE put('p', 100)"))
}

func TestARaiseForAllWaitsForOpenAppends(t *testing.T) {
	store, url := newCatalog(t)
	watcher, writer := connect(t, url), connect(t, url)
	writer.run("BEGIN")
	if err := writer.append("p", 5); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- tryRaise(testContext(t), store, forAll(6)) }()
	waitAnyBlocked(t, watcher, "LOCK TABLE")
	writer.run("COMMIT") // before the fence, and seen by whoever raised it
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	expectFenced(t, writer.append("p", 5))
}

func TestARaiseOfOnePartitionWaitsForItsOpenAppendsOnly(t *testing.T) {
	store, url := newCatalog(t)
	watcher, writer, other := connect(t, url), connect(t, url), connect(t, url)
	for _, s := range []*session{writer, other} {
		s.run("BEGIN")
	}
	if err := writer.append("p", 5); err != nil {
		t.Fatal(err)
	}
	if err := other.append("q", 5); err != nil {
		t.Fatal(err)
	}
	raise(t, store, map[string]int64{"r": 6}) // nobody is in its way
	done := make(chan error, 1)
	go func() { done <- tryRaise(testContext(t), store, map[string]int64{"p": 6}) }()
	waitAnyBlocked(t, watcher, "sync_writer_fence")
	writer.run("COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	expectFenced(t, writer.append("p", 5))
	other.run("COMMIT")
	if err := other.append("q", 5); err != nil {
		t.Errorf("another partition: %v", err)
	}
}

// TestARaiseNeverDeadlocksAWriter: the writer locks its partition, the raise of both kinds comes, and the writer goes on to insert.
func TestARaiseNeverDeadlocksAWriter(t *testing.T) {
	for _, target := range []map[string]int64{forAll(6), {"p": 6}, {"p": 6, storage.AllPartitions: 6}} {
		store, url := newCatalog(t)
		watcher, writer := connect(t, url), connect(t, url)
		if err := writer.append("p", 5); err != nil {
			t.Fatal(err)
		}
		writer.run("BEGIN")
		writer.run("SELECT 1 FROM sync_partitions WHERE partition = 'p' FOR UPDATE")
		done := make(chan error, 1)
		go func() { done <- tryRaise(testContext(t), store, target) }()
		if _, single := target["p"]; single {
			waitAnyBlocked(t, watcher, "sync_writer_fence")
			if err := writer.append("p", 5); err != nil {
				t.Errorf("%v: the writer that was first: %v", target, err)
			}
			writer.run("COMMIT")
			if err := <-done; err != nil {
				t.Errorf("%v: %v", target, err)
			}
			continue
		}
		if err := <-done; err != nil { // the partition's lock is not in its way
			t.Errorf("%v: %v", target, err)
		}
		expectFenced(t, writer.append("p", 5))
		writer.run("ROLLBACK")
	}
}

func TestMinimumZeroIsNoLimit(t *testing.T) {
	_, url := newCatalog(t)
	writer := connect(t, url)
	for _, version := range []any{nil, 0, 1, -7} {
		if err := writer.append("p", version); err != nil {
			t.Errorf("version %v: %v", version, err)
		}
	}
}

func TestFromMinimumOneOnAMissingVersionIsRefused(t *testing.T) {
	store, url := newCatalog(t)
	raise(t, store, forAll(1))
	writer := connect(t, url)
	for _, version := range []any{nil, 0, -7} {
		expectFenced(t, writer.append("p", version))
	}
	if err := writer.append("p", 1); err != nil {
		t.Errorf("version 1: %v", err)
	}
}

func TestWithoutTheRowForAllEveryWriterIsRefused(t *testing.T) {
	_, url := newCatalog(t)
	admin, writer := connect(t, url), connect(t, url)
	admin.run("ALTER TABLE sync_writer_fence DISABLE TRIGGER USER")
	admin.run("DELETE FROM sync_writer_fence")
	expectFenced(t, writer.append("p", 99))
}

func TestARefusalNamesTablePartitionAndVersionsAndIsCounted(t *testing.T) {
	store, url := newCatalog(t)
	raise(t, store, forAll(6))
	writer := connect(t, url)
	err := writer.append("p'1", 5)
	expectFenced(t, err)
	want := `table public.sync_commits, partition 'p''1': writer version 5, required 6`
	if got := detailOf(err); got != want {
		t.Errorf("detail %q, want %q", got, want)
	}
	err = writer.append("p", nil)
	if want := `table public.sync_commits, partition 'p': writer version missing, required 6`; detailOf(err) != want {
		t.Errorf("detail %q, want %q", detailOf(err), want)
	}
	if n := value[int64](writer, "SELECT last_value FROM syncbarrier_refused"); n != 2 {
		t.Errorf("%d refusals counted, want 2", n)
	}
}

func TestASinglePartitionsMinimumHoldsForItAlone(t *testing.T) {
	store, url := newCatalog(t)
	raise(t, store, forAll(5))
	raise(t, store, map[string]int64{"p": 7})
	writer := connect(t, url)
	expectFenced(t, writer.append("p", 6))
	if err := writer.append("q", 6); err != nil {
		t.Errorf("another partition: %v", err)
	}
	raise(t, store, map[string]int64{"p": 3, storage.AllPartitions: 2}) // lower: nothing happens
	expectFenced(t, writer.append("p", 6))
	expectFenced(t, writer.append("q", 4))
	if n := value[int64](writer, "SELECT required_writer_version FROM sync_writer_fence WHERE partition = 'p'"); n != 7 {
		t.Errorf("the partition's minimum is %d, want 7", n)
	}
}

func TestARaiseReturnsThePositions(t *testing.T) {
	store, url := newCatalog(t)
	writer := connect(t, url)
	for partition, commits := range map[string]int{"p": 3, "q": 2} {
		for range commits {
			if err := writer.append(partition, 9); err != nil {
				t.Fatal(err)
			}
		}
	}
	var raised map[string]int64
	err := store.inTx(testContext(t), "raise", txOptions{}, func(ctx context.Context, tx pgx.Tx) (err error) {
		raised, err = store.raiseFence(ctx, tx, map[string]int64{"q": 8, "new": 8, storage.AllPartitions: 7})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{storage.AllPartitions: 5, "p": 3, "q": 2, "new": 0}
	if fmt.Sprint(raised) != fmt.Sprint(want) {
		t.Errorf("positions %v, want %v", raised, want)
	}
}
