package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// tailedCheckpoint fills title_norm of todos, whose changes triggers log.
func tailedCheckpoint(partitions ...string) storage.Checkpoint {
	c := normCheckpoint("norm", 2, partitions...)
	c.Sources[0].Changes = storage.Capture
	return c
}

// todosIn are the todos with a rule for their partitions.
func todosIn(partition storage.Partition) storage.Table {
	table := plainTodos(titleNorm)
	table.Partition = partition
	return table
}

// newTailedDB has so many todos, captured, and a program of version 2 that writes them.
func newTailedDB(t testing.TB, rows int, partition storage.Partition, partitions ...string) (*backfillDB, *session) {
	t.Helper()
	db := newBackfillDB(t, todosSQL(rows), tailedCheckpoint(partitions...), todosIn(partition))
	program := connect(t, db.url)
	program.run(`SET syncbarrier.writer_version = 2`)
	return db, program
}

var (
	byHash = storage.Partition{Hash: 16}
	inOne  = storage.Partition{}
)

// What programs change while a pass is under way is right when it is activated: at the scan, between scan and tail, between
// tail and activation.
func TestCapturedChangesDuringAPassAreCovered(t *testing.T) {
	for name, test := range map[string]struct {
		partition  storage.Partition
		partitions []string
	}{
		"all, by tenant":    {byTenant, nil},
		"all, by hash":      {byHash, nil},
		"all, in one":       {inOne, nil},
		"listed, by tenant": {byTenant, []string{"a", "b", "moved"}},
		"listed, by hash":   {byHash, []string{storage.DefaultPartition}},
		"listed, in one":    {inOne, []string{storage.DefaultPartition}},
	} {
		t.Run(name, func(t *testing.T) {
			db, program := newTailedDB(t, 400, test.partition, test.partitions...)
			claim := db.mustClaim(false)
			change := func(n int) {
				program.run(`INSERT INTO todos(id, tenant, title) VALUES ($1, 'a', 'Inserted'), ($1 + 1, 'b', 'Inserted')`, 1000+10*n)
				program.run(`UPDATE todos SET title = 'Updated ' || $1::text WHERE id % 10 = $1::int`, n)
				program.run(`DELETE FROM todos WHERE id = $1`, 50+n)
				program.run(`UPDATE todos SET id = $1 + 2000, title = 'Key' WHERE id = $1`, 70+n)
				program.run(`UPDATE todos SET tenant = 'moved', title = 'Moved' WHERE id = $1`, 90+n)
			}
			change(1)
			db.scan(claim, db.mustLeases(claim))
			change(2)
			for _, row := range claim.Rows {
				db.catchUp(claim, row.Partition)
			}
			change(3)
			for _, row := range claim.Rows {
				db.mustActivate(claim, row.Partition)
			}
			db.wantText("0", wrong)
			db.settled()
			db.wantText("0", `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'syncbarrier_capture%'`)
			db.wantText("1", `SELECT count(*) FROM pg_trigger WHERE tgname = 'syncbarrier_fence_source'`)
		})
	}
}

// Partitions may have any name, and the statements go by every protocol.
func TestCapturedPartitionsOfAnyNameByEveryProtocol(t *testing.T) {
	for name, config := range map[string]func(url string) Config{
		"on sessions of its own": func(url string) Config { return Config{URL: url} },
		"by the simple protocol": func(url string) Config { return Config{URL: url, SimpleProtocol: true} },
		"behind a pooler":        func(url string) Config { return Config{URL: testdb.PgBouncer(t, url), Pooler: PoolerTransaction} },
	} {
		t.Run(name, func(t *testing.T) {
			names := []string{"{schema}", `it's a \ back{schema}slash`, "%s $1 ; --", strings.Repeat("long ", 50)}
			db := newBarrierDB(t)
			setup := `CREATE TABLE todos(id bigint PRIMARY KEY, tenant text NOT NULL, title text NOT NULL, title_norm text)`
			b := declareBackfill(db, setup, tailedCheckpoint(names...), todosIn(byTenant))
			db.store = openStore(t, config(db.url))
			program := connect(t, db.url)
			program.run(`SET syncbarrier.writer_version = 2`)
			change := func(title string) {
				program.run(`INSERT INTO todos SELECT n + (SELECT count(*) FROM todos), ($1::text[])[n], $2 FROM generate_series(1, 4) AS n`, names, title)
				program.run(`UPDATE todos SET title = title || 'X'`)
			}
			change("Before")
			claim := b.mustClaim(false)
			change("During")
			b.scan(claim, b.mustLeases(claim))
			change("After")
			for _, row := range claim.Rows {
				b.catchUp(claim, row.Partition)
			}
			change("At last")
			for _, row := range claim.Rows {
				if report := b.mustActivate(claim, row.Partition); report.Rest != 4 {
					t.Errorf("the activation of %q filled %d rows, want 4", row.Partition, report.Rest)
				}
			}
			db.wantText("0", wrong)
		})
	}
}

// A worker that is killed right after it has activated the last row leaves the triggers on. The next look at the version ends them.
func TestCaptureThatNobodyEndedIsEndedByTheNextApply(t *testing.T) {
	db, program := newTailedDB(t, 20, inOne, storage.DefaultPartition)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	reader := connect(t, db.url)
	report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: storage.DefaultPartition, BeforeCommit: func(context.Context, storage.Querier) error {
		return reader.try(`BEGIN; LOCK TABLE todos IN ROW EXCLUSIVE MODE`) // so nobody gets the table
	}})
	if err != nil || report.Outcome != storage.OutcomeActivated {
		t.Fatalf("%+v, %v", report, err)
	}
	const triggers = `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'syncbarrier_capture%'`
	if db.text(triggers) == "0" {
		t.Fatal("the capture was ended although the table was held")
	}
	reader.run(`COMMIT`)
	program.run(`UPDATE todos SET title = 'for nobody'`)
	wanted := target(2, todosIn(inOne))
	wanted.Checkpoints = []storage.Checkpoint{tailedCheckpoint(storage.DefaultPartition)}
	result := db.mustApply(wanted)
	if result.Outcome != storage.Agreed || len(result.Warnings) > 0 {
		t.Errorf("%+v", result)
	}
	db.wantText("0", triggers)
	db.eventually("the log is pruned", func() bool {
		db.mustApply(wanted)
		return db.text(`SELECT count(*) FROM sync_changes`) == "0"
	})
}

// settled waits until nothing is left of the captured log: transactions elsewhere in the server keep the last of it for a while.
func (db *backfillDB) settled() {
	db.t.Helper()
	plan := &backfillPlan{sources: []planSource{{Source: tailedCheckpoint().Sources[0], table: keyTable{declared: todosIn(byTenant)}}}}
	db.eventually("the captured log is pruned", func() bool {
		if err := db.store.settleCapture(db.ctx, plan, storage.AllPartitions); err != nil {
			db.t.Fatal(err)
		}
		return db.text(`SELECT count(*) FROM sync_changes`) == "0"
	})
}
