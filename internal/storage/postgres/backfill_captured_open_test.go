package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Ways to have a transaction in flight, and to end it.
var openTransactions = map[string]struct{ begin, end []string }{
	"with new rows alone": { // which nobody can lock: only its partition is held
		[]string{`BEGIN`, `INSERT INTO todos VALUES (998, 'a', 'Late'), (999, 'a', 'Late')`},
		[]string{`COMMIT`},
	},
	"open": {
		[]string{`BEGIN`, `UPDATE todos SET title = 'Late' WHERE id = 2`, `INSERT INTO todos VALUES (999, 'a', 'Late')`},
		[]string{`COMMIT`},
	},
	"prepared": {
		[]string{`BEGIN`, `UPDATE todos SET title = 'Late' WHERE id = 2`, `INSERT INTO todos VALUES (999, 'a', 'Late')`, `PREPARE TRANSACTION 'captured'`},
		[]string{`COMMIT PREPARED 'captured'`},
	},
	"with a savepoint rolled back": {
		[]string{`BEGIN`, `SAVEPOINT s`, `UPDATE todos SET title = 'Never' WHERE id = 4`, `ROLLBACK TO s`,
			`UPDATE todos SET title = 'Late' WHERE id = 2`, `INSERT INTO todos VALUES (999, 'a', 'Late')`},
		[]string{`COMMIT`},
	},
}

// A transaction that was there before the pass began is waited for by the activation alone, in bounded time, and what it changed is covered.
func TestATransactionInFlightFromTheClaimToTheActivationIsCovered(t *testing.T) {
	for name, transaction := range openTransactions {
		for _, partition := range []string{storage.AllPartitions, "a"} {
			t.Run(name+", row "+partition, func(t *testing.T) {
				var listed []string
				if partition != storage.AllPartitions {
					listed = []string{partition}
				}
				db, program := newTailedDB(t, 100, byTenant, listed...)
				gid := db.text(`SELECT current_database()`)
				run := func(statements []string) {
					for _, statement := range statements {
						program.run(replaceGID(statement, gid))
					}
				}
				run(transaction.begin)
				claim := db.mustClaim(false)
				db.scan(claim, db.mustLeases(claim))
				batch, err := db.store.TailBatch(db.ctx, claim, partition, 1000)
				if err != nil || !batch.Done || batch.Unverifiable != "" {
					t.Fatalf("the tail waits for nobody: %+v, %v", batch, err)
				}
				_, err = db.store.Activate(db.ctx, claim, storage.Activation{Partition: partition})
				expectCode(t, err, storage.CodeLockTimeout)
				run(transaction.end)
				report := db.mustActivate(claim, partition)
				if report.Rest < 2 {
					t.Errorf("the activation filled %d rows, want those of the transaction", report.Rest)
				}
				db.wantText("0", wrong+" AND tenant = 'a'")
			})
		}
	}
}

// A transaction elsewhere keeps the position where it is, and the log from being pruned. It stops nothing, and what is applied once is not
// applied again at the activation.
func TestATransactionElsewhereNeitherStopsAnActivationNorInflatesItsRest(t *testing.T) {
	for _, partition := range []string{storage.AllPartitions, "a"} {
		var listed []string
		if partition != storage.AllPartitions {
			listed = []string{partition}
		}
		db, program := newTailedDB(t, 100, byTenant, listed...)
		elsewhere := connect(t, db.url)
		elsewhere.run(`CREATE TABLE elsewhere (n int)`)
		elsewhere.run(`BEGIN`)
		elsewhere.run(`INSERT INTO elsewhere VALUES (1)`)
		claim := db.mustClaim(false)
		db.scan(claim, db.mustLeases(claim))
		for range 50 {
			program.run(`UPDATE todos SET title = title || '.' WHERE tenant = 'a'`)
		}
		db.catchUp(claim, partition)
		program.run(`UPDATE todos SET title = 'Last' WHERE id = 2`)
		report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: partition, MaxRest: 10})
		if err != nil || report.Outcome != storage.OutcomeActivated || report.Rest != 1 {
			t.Errorf("row %s: %+v, %v; want one row to be left", partition, report, err)
		}
		db.wantText("0", wrong+" AND tenant = 'a'")
		elsewhere.run(`COMMIT`)
	}
}

// With all locks held, right before COMMIT, nothing is missing; and nobody can add to it.
func TestAtTheCommitOfAnActivationNothingIsMissing(t *testing.T) {
	for _, partition := range []string{storage.AllPartitions, "a"} {
		var listed []string
		if partition != storage.AllPartitions {
			listed = []string{partition}
		}
		db, program := newTailedDB(t, 100, byTenant, listed...)
		claim := db.mustClaim(false)
		db.scan(claim, db.mustLeases(claim))
		program.run(`UPDATE todos SET title = 'Changed' WHERE tenant = 'a'`)
		blocked := make(chan error, 1)
		looked := false
		report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: partition, BeforeCommit: func(ctx context.Context, q storage.Querier) error {
			go func() { blocked <- program.try(`INSERT INTO todos VALUES (999, 'a', 'After')`) }()
			waitBlocked(t, connect(t, db.url), program.pid())
			rows, err := q.Query(ctx, wrong+" AND tenant = 'a'")
			if err == nil && rows[0][0] != int64(0) {
				t.Errorf("row %s: %v rows are wrong before COMMIT", partition, rows[0][0])
			}
			looked = true
			if err == nil && partition == storage.AllPartitions {
				rows, err = q.Query(ctx, `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'syncbarrier_capture%' AND tgenabled <> 'D'`)
				if err == nil && rows[0][0] != int64(0) {
					t.Errorf("%v capture triggers still fire, and nobody needs them", rows[0][0])
				}
			}
			return err
		}})
		if err != nil || report.Outcome != storage.OutcomeActivated || !looked {
			t.Fatalf("row %s: %+v, %v", partition, report, err)
		}
		if err := <-blocked; err != nil {
			t.Errorf("row %s: the program's next change: %v", partition, err)
		}
	}
}

// A checkpoint may still be open when a later barrier shuts its own version out: its worker is not a writer of that version.
func TestAWorkerPassesTheFenceOfALaterVersion(t *testing.T) {
	db, _ := newTailedDB(t, 100, byTenant)
	claim := db.mustClaim(false)
	raise(t, db.store, forAll(3))
	inStore(t, db.store, func(ctx context.Context, tx pgx.Tx) error { return db.store.raiseSourceFences(ctx, tx, 3) })
	expectFenced(t, connect(t, db.url).try(`SET syncbarrier.writer_version = 2; UPDATE todos SET title = 'x'`))
	db.complete(claim)
	db.wantText("0", wrong)
}

// replaceGID gives a prepared transaction a name that no other database of the server uses.
func replaceGID(statement, gid string) string {
	return strings.ReplaceAll(statement, "'captured'", quoteLiteral("captured "+gid))
}
