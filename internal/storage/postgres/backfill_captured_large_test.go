package postgres

import (
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// A statement over more than 10,000 rows is logged as ranges. The tail goes over them in batches, a worker that is gone in between loses
// nothing, and ranges that are logged for each slice are read once.
func TestARangeOfTheCapturedLogIsAppliedInBatches(t *testing.T) {
	const rows = 25_000
	for name, partition := range map[string]storage.Partition{"in one": inOne, "by hash": byHash, "by tenant": byTenant} {
		t.Run(name, func(t *testing.T) {
			db, program := newTailedDB(t, rows, partition)
			claim := db.mustClaim(false)
			db.scan(claim, db.mustLeases(claim))
			program.run(`UPDATE todos SET title = title || '!'`)
			program.run(`UPDATE todos SET title = title || '?' WHERE id = 7`)
			db.wantText("3", `SELECT count(DISTINCT op) + count(DISTINCT op) FILTER (WHERE op = 3) FROM sync_changes WHERE op <> 4`)
			var applied int64
			batches := 0
			for done := false; !done; batches++ {
				store := db.store
				if batches == 3 {
					store = openStore(t, Config{URL: db.url}) // another process
				}
				batch, err := store.TailBatch(db.ctx, claim, "*", 2000)
				if err != nil || batch.Unverifiable != "" || batch.Rows > 2000 {
					t.Fatalf("batch %d: %+v, %v", batches, batch, err)
				}
				applied += batch.Rows
				done = batch.Done
			}
			if applied < rows || applied > rows+1 || batches < rows/2000 {
				t.Errorf("%d rows were applied in %d batches, want each of %d once", applied, batches, rows)
			}
			db.wantText("0", wrong)
			db.mustActivate(claim, "*")
		})
	}
}

// Rows that are gone are listed where they were many, so what was derived from them is removed.
func TestManyCapturedDeletesRemoveWhatWasDerived(t *testing.T) {
	checkpoint := wordsCheckpoint()
	checkpoint.Sources[0].Changes = storage.Capture
	db := newBackfillDB(t, wordsSQL, checkpoint, plainTodos())
	program := connect(t, db.url)
	program.run(`SET syncbarrier.writer_version = 2`)
	program.run(`INSERT INTO todos SELECT n, 'a', 'Many ' || n FROM generate_series(1001, 16000) AS n`)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	program.run(`DELETE FROM todos WHERE id > 1500`)
	program.run(`UPDATE todos SET id = id + 100000 WHERE id <= 10`)
	db.catchUp(claim, "*")
	db.wantText("0", wrongWords)
	program.run(`DELETE FROM todos WHERE id > 1000`)
	db.mustActivate(claim, "*")
	db.wantText("0", wrongWords)
}

// A row is derived from several sources: captured ones, mapped by `keys`, and one whose program writes the log itself.
func TestSeveralSourcesOfBothKinds(t *testing.T) {
	for _, kinds := range [][2]storage.Changes{{storage.Capture, storage.Capture}, {storage.Capture, storage.CommitLog}, {storage.CommitLog, storage.Capture}} {
		for _, partition := range []string{storage.AllPartitions, "a"} {
			t.Run(fmt.Sprintf("todos %s, owners %s, row %s", kinds[0], kinds[1], partition), func(t *testing.T) {
				t.Parallel()
				var listed []string
				if partition != storage.AllPartitions {
					listed = []string{partition}
				}
				checkpoint := labelCheckpoint(listed...)
				checkpoint.Sources[0].Changes, checkpoint.Sources[1].Changes = kinds[0], kinds[1]
				owners, setup := ownersTable(), labelledSQL
				if listed != nil {
					owners.Columns = append(owners.Columns, storage.Column{Name: "tenant", Type: storage.TypeString})
					owners.Partition = byTenant
					setup += `; ALTER TABLE owners ADD COLUMN tenant text NOT NULL DEFAULT 'a'`
				}
				db := newBackfillDB(t, setup, checkpoint, labelledTodos(), owners)
				program := connect(t, db.url)
				change := func(n int) {
					for i, statement := range []string{
						fmt.Sprintf(`UPDATE todos SET title = 'Title, edition %d' WHERE id = %d`, n, 20+2*n),
						fmt.Sprintf(`UPDATE owners SET name = 'Renamed %d' WHERE id = %d`, n, n),
					} {
						if kinds[i] == storage.CommitLog {
							w := db.begin(db.conn, "a")
							w.exec(`SET LOCAL syncbarrier.writer_version = 2`)
							w.exec(statement)
							w.log([]string{"todos", "owners"}[i], fmt.Sprint([]int{20 + 2*n, n}[i]))
							w.commit()
							continue
						}
						program.run(`SET syncbarrier.writer_version = 2`)
						program.run(statement)
					}
				}
				change(1)
				claim := db.mustClaim(false)
				change(2)
				db.scan(claim, db.mustLeases(claim))
				change(3)
				db.catchUp(claim, partition)
				if err := db.store.VerifyRow(db.ctx, claim, partition); err != nil {
					t.Fatal(err)
				}
				change(4)
				report := db.mustActivate(claim, partition)
				if report.Rest < 2 {
					t.Errorf("the activation filled %d rows", report.Rest)
				}
				db.wantText("0", wrongLabels+" AND tenant = 'a'")
			})
		}
	}
}

// A program that fills the rows itself keeps its own books: it is activated only if nothing captured is above the number it gives.
func TestAProgramThatFillsRowsFromACapturedSourceIsActivatedOnAClearLog(t *testing.T) {
	for _, partition := range []string{storage.AllPartitions, "a"} {
		var listed []string
		if partition != storage.AllPartitions {
			listed = []string{partition}
		}
		checkpoint := external("letters", 2, listed...)
		checkpoint.Sources = []storage.Source{{Table: "todos", Changes: storage.Capture}}
		db := newBackfillDB(t, todosSQL(20), checkpoint, plainTodos(titleNorm))
		program := connect(t, db.url)
		program.run(`SET syncbarrier.writer_version = 2`)
		claim, err := db.store.ClaimCheckpoint(db.ctx, partition, "letters")
		if err != nil {
			t.Fatal(err)
		}
		owner := storage.Ownership{Partition: partition, Name: "letters", OwnerEpoch: claim.Rows[0].OwnerEpoch, Token: claim.Token}
		activate := func(watermark int64, want storage.Outcome) {
			t.Helper()
			outcome, err := db.store.ActivateCheckpoint(db.ctx, owner, watermark)
			if err != nil || outcome != want {
				t.Fatalf("row %s, watermark %d: %q, %v; want %s", partition, watermark, outcome, err, want)
			}
		}
		covered := func(seq int64) storage.Verdict {
			t.Helper()
			coverage, err := db.store.HasSourceChangesAbove(db.ctx, partition, []string{"todos"}, seq)
			if err != nil {
				t.Fatal(err)
			}
			return coverage.Verdict
		}
		begun := claim.Rows[0].Watermark
		program.run(`UPDATE todos SET title = 'x' WHERE id = 2`)
		newest, err := db.store.SourceCoverageSeq(db.ctx, partition, []string{"todos"})
		if err != nil || newest <= begun {
			t.Fatalf("row %s: the newest change is %d, the pass began at %d (%v)", partition, newest, begun, err)
		}
		activate(begun, storage.OutcomeChanged)
		activate(newest+1_000_000_000, storage.OutcomeUnverifiable)
		if before, after := covered(begun), covered(newest); before != storage.Changed || after != storage.Clean {
			t.Errorf("row %s: coverage %s above %d and %s above %d", partition, before, begun, after, newest)
		}
		program.run(`BEGIN`)
		program.run(`UPDATE todos SET title = 'y' WHERE id = 4`)
		_, err = db.store.ActivateCheckpoint(db.ctx, owner, newest)
		expectCode(t, err, storage.CodeLockTimeout)
		program.run(`ROLLBACK`)
		activate(newest, storage.OutcomeActivated)
	}
}
