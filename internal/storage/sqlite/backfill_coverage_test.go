package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The data of this test: the label of a todo is its owner's name and its title. Labels are derived by a statement into a table of their
// own, and by an update into a column.
const (
	labelSQL = "(SELECT name FROM owners WHERE owners.id = todos.owner) || ': ' || todos.title"

	wrongLabels = `
		SELECT count(*)
		  FROM (SELECT todos.id, ` + labelSQL + ` AS label FROM todos) AS wanted
		  FULL JOIN labels
		    ON labels.id = wanted.id
		 WHERE labels.label IS NOT wanted.label`
)

func coverageTables() []storage.Table {
	return []storage.Table{
		{
			Name: "todos", Layout: storage.Plain, PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "tenant"},
			Columns: []storage.Column{
				{Name: "id", Type: storage.TypeInteger}, {Name: "tenant", Type: storage.TypeString}, {Name: "owner", Type: storage.TypeString},
				{Name: "title", Type: storage.TypeString}, nullableColumn("label", storage.TypeString),
			},
		},
		{
			Name: "owners", Layout: storage.Plain, PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "tenant"},
			Columns: []storage.Column{{Name: "id", Type: storage.TypeString}, {Name: "tenant", Type: storage.TypeString}, {Name: "name", Type: storage.TypeString}},
		},
		{
			Name: "labels", Layout: storage.Plain, PrimaryKey: []string{"id"},
			Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}, nullableColumn("label", storage.TypeString)},
		},
	}
}

func coverageSources() []storage.Source {
	return []storage.Source{
		{Table: "todos", Changes: storage.CommitLog},
		{Table: "owners", Changes: storage.CommitLog, Keys: "SELECT todos.id FROM todos JOIN changed ON changed.id = todos.owner -- all of theirs"},
	}
}

func labelsCheckpoint(partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "labels", Version: 2, Partitions: partitions, Sources: coverageSources(), Settings: storage.Settings{BatchRows: 7},
		Backfill: storage.Backfill{Statement: &storage.Statement{
			Table: "todos",
			Apply: `INSERT INTO labels(id, label) SELECT todos.id, ` + labelSQL + ` FROM todos JOIN batch USING (id) WHERE true
				ON CONFLICT (id) DO UPDATE SET label = excluded.label`,
			Remove: "DELETE FROM labels WHERE id IN (SELECT id FROM batch);",
		}},
		Verify: []storage.Verify{{
			Name:  "labels-right",
			Query: "SELECT todos.id AS id FROM todos LEFT JOIN labels ON labels.id = todos.id WHERE labels.label IS NOT " + labelSQL + ";",
		}},
	}
}

func columnCheckpoint(partitions ...string) storage.Checkpoint {
	c := labelsCheckpoint(partitions...)
	c.Name = "column"
	c.Backfill = storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{"label": labelSQL}}}
	c.Verify = []storage.Verify{{Name: "column-right", Query: "SELECT id FROM todos WHERE label IS NOT " + labelSQL}}
	return c
}

// At the commit that activates a checkpoint no source change is missing from the derived data: whatever programs write that follow the sync
// protocol, while the table is scanned, the log is read and pruned, and the activation takes place. The data are compared in full
// inside the activating transaction.
func TestActivatedMeansCovered(t *testing.T) {
	for name, checkpoint := range map[string]storage.Checkpoint{
		"statement, all partitions":    labelsCheckpoint(),
		"update, all partitions":       columnCheckpoint(),
		"statement, listed partitions": labelsCheckpoint("p0", "p1", "p2"),
		"update, listed partitions":    columnCheckpoint("p0", "p1", "p2"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				coverOnce(t, checkpoint, seed)
			}
		})
	}
}

func coverOnce(t *testing.T, checkpoint storage.Checkpoint, seed uint64) {
	t.Helper()
	c := &coverageTest{T: t, checkpoint: checkpoint, path: newFile(t)}
	c.ctx = testContext(t)
	c.store = openStore(t, c.path)
	openProgram(t, c.path).exec("PRAGMA journal_mode = WAL")
	apply(t, c.store, storage.Target{Version: 1, Tables: coverageTables(), Owner: clinicOwner})
	random := rand.New(rand.NewPCG(seed, 1))
	for range 100 {
		c.must(c.write(random, 1), "write before the barrier")
	}
	apply(t, c.store, storage.Target{Version: 2, Tables: coverageTables(), Checkpoints: []storage.Checkpoint{checkpoint}, Owner: clinicOwner})

	ctx, stop := context.WithCancel(c.ctx)
	var group sync.WaitGroup
	for worker := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 2+worker))
		group.Go(func() {
			for ctx.Err() == nil {
				c.must(c.write(random, 2), "write")
			}
		})
	}
	group.Go(func() { c.prune(ctx, rand.New(rand.NewPCG(seed, 9))) })
	c.run()
	stop()
	group.Wait()
	verdict, err := c.store.ReadServeGate(c.ctx, 2)
	c.must(err, "read the gate")
	same(t, "gate", verdict.Verdict().Open, true)
}

type coverageTest struct {
	*testing.T
	ctx        context.Context
	path       string
	store      *Store
	checkpoint storage.Checkpoint
}

// must is for goroutines too, so it goes on.
func (c *coverageTest) must(err error, doing string) {
	if err != nil {
		c.Errorf("%s: %v", doing, err)
	}
}

// write does some changes in one partition, as a program does, and logs them in one commit.
func (c *coverageTest) write(random *rand.Rand, version int64) (err error) {
	partition := fmt.Sprint("p", random.IntN(3))
	tx, err := c.store.Begin(c.ctx, partition, version)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tx.Rollback(c.ctx)) }()
	commit := storage.Commit{ClientID: "client", ClientCommitID: "commit", ActorID: "actor"}
	for range 1 + random.IntN(4) {
		change, statement, arguments := c.change(random, partition)
		if _, err := tx.Exec(c.ctx, statement, arguments...); err != nil {
			return err
		}
		commit.Changes = append(commit.Changes, change)
	}
	if _, err := tx.AppendCommit(c.ctx, commit); err != nil {
		return err
	}
	if random.IntN(10) == 0 {
		return nil // rolled back: nothing of it was ever there
	}
	return tx.Commit(c.ctx)
}

func (c *coverageTest) change(random *rand.Rand, partition string) (storage.Change, string, []any) {
	todo, owner, word := partitioned(random.IntN(40), partition), fmt.Sprint(partition, "-", random.IntN(4)), fmt.Sprint("w", random.IntN(1000))
	change := storage.Change{Table: "todos", RowID: fmt.Sprint(todo), Op: storage.OpUpsert}
	switch random.IntN(6) {
	case 0:
		change.Op = storage.OpDelete
		return change, "DELETE FROM todos WHERE id = $1", []any{todo}
	case 1:
		change.Table, change.RowID = "owners", owner
		return change, "INSERT INTO owners(id, tenant, name) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
			[]any{owner, partition, word}
	case 2:
		change.Table, change.RowID, change.Op = "owners", owner, storage.OpDelete
		return change, "DELETE FROM owners WHERE id = $1", []any{owner}
	default:
		return change, `INSERT INTO todos(id, tenant, owner, title) VALUES ($1, $2, $3, $4)
			ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, title = excluded.title`, []any{todo, partition, owner, word}
	}
}

// partitioned gives ids of their own to each partition, lying among those of the others.
func partitioned(n int, partition string) int64 { return int64(n)*3 + int64(partition[1]-'0') }

// prune keeps the log short, as far as it may.
func (c *coverageTest) prune(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		partition := fmt.Sprint("p", random.IntN(3))
		last, err := c.store.MaxCommitSeq(c.ctx, partition)
		c.must(err, "read the position")
		if _, err := c.store.Prune(c.ctx, partition, random.Int64N(last+1), false); storage.CodeOf(err) != storage.CodePruneRefused {
			c.must(err, "prune")
		}
	}
}

// run does the backfill with two workers, and begins to read the log before the scan is done.
func (c *coverageTest) run() {
	claim, err := c.store.ClaimAll(c.ctx, c.checkpoint.Name, false)
	c.must(err, "claim")
	var group sync.WaitGroup
	for index := range 2 {
		group.Go(func() {
			leases, err := c.store.TakeRanges(c.ctx, claim, index, 2)
			c.must(err, "take ranges")
			for _, lease := range leases {
				for batches := 0; !lease.Done && !c.Failed(); batches++ {
					if batches > maxBatches {
						c.Errorf("range %d does not end", lease.Range)
					}
					batch, err := c.store.ScanBatch(c.ctx, claim, lease)
					c.must(err, "scan")
					lease.Done = batch.Done
					c.tail(claim, lease.Partition, 5)
				}
			}
		})
	}
	group.Wait()
	for _, row := range claim.Rows {
		c.finish(claim, row.Partition)
	}
}

func (c *coverageTest) tail(claim storage.Claim, partition string, limit int) (done bool) {
	batch, err := c.store.TailBatch(c.ctx, claim, partition, limit)
	c.must(err, "tail")
	if batch.Unverifiable != "" {
		c.Errorf("the tail of %s is unverifiable: %s", partition, batch.Unverifiable)
	}
	return batch.Done
}

func (c *coverageTest) finish(claim storage.Claim, partition string) {
	for rest := 1; !c.Failed(); rest *= 2 {
		for rounds := 0; rounds < 20 && !c.tail(claim, partition, 50) && !c.Failed(); rounds++ {
		}
		c.must(c.store.VerifyRow(c.ctx, claim, partition), "verify")
		report, err := c.store.Activate(c.ctx, claim, storage.Activation{
			Partition: partition, MaxRest: rest,
			BeforeCommit: func(ctx context.Context, q storage.Querier) error { return c.compare(ctx, q, partition) },
		})
		c.must(err, "activate")
		switch report.Outcome {
		case storage.OutcomeActivated:
			return
		case storage.OutcomeChanged:
		default:
			c.Errorf("the activation of %s gives %+v", partition, report)
			return
		}
	}
}

// compare counts wrong rows, inside the transaction that activates.
func (c *coverageTest) compare(ctx context.Context, q storage.Querier, partition string) error {
	query := wrongLabels
	if c.checkpoint.Name == "column" {
		query = "SELECT count(*) FROM todos WHERE label IS NOT " + labelSQL
	}
	if partition != storage.AllPartitions {
		query = map[string]string{
			"column": query + " AND tenant = '" + partition + "'",
			"labels": query + fmt.Sprintf(" AND coalesce(wanted.id, labels.id) %% 3 = %c", partition[1]),
		}[c.checkpoint.Name]
	}
	rows, err := q.Query(ctx, query)
	if err == nil && rows[0][0] != int64(0) {
		err = fmt.Errorf("%v rows are wrong in %s", rows[0][0], partition)
	}
	return err
}
