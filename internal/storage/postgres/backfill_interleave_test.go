package postgres

import (
	"context"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// labelled are todos whose label is made of their own title and the name of their owner, a row of another source.
const labelledSQL = `
	CREATE TABLE owners(id bigint PRIMARY KEY, name text NOT NULL);
	INSERT INTO owners SELECT n, 'Owner ' || n FROM generate_series(1, 10) AS n;
	CREATE TABLE todos(id bigint PRIMARY KEY, tenant text NOT NULL, title text NOT NULL, owner bigint NOT NULL DEFAULT 3, label text);
	INSERT INTO todos SELECT n, CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END, 'Title ' || n, 1 + n % 10, NULL FROM generate_series(1, 100) AS n;
	ANALYZE todos`

// wrongLabels counts rows whose label is not what its definition says.
const wrongLabels = `
	SELECT count(*)
	  FROM todos t
	 WHERE t.label IS DISTINCT FROM t.title || ' of ' || (SELECT o.name FROM owners o WHERE o.id = t.owner)`

func ownersTable() storage.Table {
	return storage.Table{Name: "owners", Layout: storage.Plain, PrimaryKey: []string{"id"}, Columns: []storage.Column{
		{Name: "id", Type: storage.TypeInteger}, {Name: "name", Type: storage.TypeString}}}
}

func labelledTodos() storage.Table {
	return plainTodos(storage.Column{Name: "owner", Type: storage.TypeInteger}, storage.Column{Name: "label", Type: storage.TypeString, Nullable: true})
}

func labelCheckpoint(partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "label", Version: 2, Partitions: partitions,
		Sources: []storage.Source{
			{Table: "todos", Changes: storage.CommitLog, Columns: []string{"title", "owner"}},
			{Table: "owners", Changes: storage.CommitLog, Keys: "SELECT todos.id FROM todos JOIN changed ON changed.id = todos.owner"},
		},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{
			"label": "title || ' of ' || (SELECT owners.name FROM owners WHERE owners.id = todos.owner)"}}},
		Verify: []storage.Verify{{Name: "none-missing", Query: "SELECT id FROM todos WHERE label IS NULL"}},
	}
}

// wordsSQL are todos and what a statement derives from them, row by row.
const wordsSQL = `
	CREATE TABLE todos(id bigint PRIMARY KEY, tenant text NOT NULL, title text NOT NULL);
	INSERT INTO todos SELECT n, CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END, 'Title ' || n FROM generate_series(1, 100) AS n;
	CREATE TABLE words(id bigint PRIMARY KEY, word text NOT NULL);
	ANALYZE todos`

const wrongWords = `
	SELECT count(*)
	  FROM todos t
	  FULL JOIN words w USING (id)
	 WHERE w.word IS DISTINCT FROM lower(t.title)`

func wordsCheckpoint(partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "words", Version: 2, Partitions: partitions,
		Sources: []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Statement: &storage.Statement{
			Table: "todos",
			Apply: `INSERT INTO words SELECT id, lower(title) FROM todos JOIN batch USING (id)
				ON CONFLICT (id) DO UPDATE SET word = EXCLUDED.word`,
			Remove: `DELETE FROM words USING batch WHERE words.id = batch.id`,
		}},
		Verify: []storage.Verify{{Name: "all-there", Query: "SELECT id FROM todos LEFT JOIN words USING (id) WHERE word IS NULL"}},
	}
}

// holdInserts holds the worker in its apply, which has its snapshot by then.
func (db *barrierDB) holdInserts(table, event string) freezer {
	db.t.Helper()
	f := db.freezeWorkers()
	db.exec("CREATE TRIGGER hold_worker_here BEFORE " + event + " ON " + quoteIdentifier(table) + ` FOR EACH STATEMENT
		WHEN (current_setting('application_name') = 'worker') EXECUTE FUNCTION hold_worker()`)
	return f
}

// programStands says whether a statement of the program has ended, or waits for a lock.
func (db *barrierDB) programStands(done <-chan error, conn *pgx.Conn) func() bool {
	return func() bool {
		return len(done) > 0 || db.text("SELECT cardinality(pg_blocking_pids($1::integer)) > 0", conn.PgConn().PID()) == "true"
	}
}

// Rows that the program holds are left for later, whatever the backfill does with the others.
func TestRowsThatTheProgramHoldsAreLeftForLater(t *testing.T) {
	forms := map[string]struct {
		db    func() *backfillDB
		wrong string
		left  string // not filled, of the rows that are held
	}{
		"an update of its own row": {func() *backfillDB { return todosDB(t, 100) }, wrong,
			"SELECT count(*) FROM todos WHERE id IN (50, 51) AND title_norm IS NULL"},
		"an update that reads another table": {func() *backfillDB {
			return newBackfillDB(t, labelledSQL, labelCheckpoint(), labelledTodos(), ownersTable())
		}, wrongLabels,
			"SELECT count(*) FROM todos WHERE id IN (50, 51) AND label IS NULL"},
		"a statement": {func() *backfillDB { return newBackfillDB(t, wordsSQL, wordsCheckpoint(), plainTodos()) }, wrongWords,
			"SELECT 2 - count(*) FROM words WHERE id IN (50, 51)"},
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			db := form.db()
			holder, err := db.connect().Begin(db.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := holder.Exec(db.ctx, "SELECT FROM todos WHERE id IN (50, 51) FOR UPDATE"); err != nil {
				t.Fatal(err)
			}
			claim := db.mustClaim(false)
			batch, err := db.store.ScanBatch(db.ctx, claim, db.mustLeases(claim)[0])
			if err != nil || batch.Rows != 98 || batch.Skipped != 2 || batch.Leftovers != 2 || !batch.Done {
				t.Errorf("the scan gives %+v, %v, want 98 rows and 2 left over", batch, err)
			}
			db.wantText("2", form.left)
			db.wantText("2", form.wrong)
			retried, err := db.store.RetryLeftovers(db.ctx, claim, "*", 10)
			if err != nil || retried.Rows != 0 || retried.Skipped != 2 || retried.Done {
				t.Errorf("the retry gives %+v, %v, want 2 skipped", retried, err)
			}
			if err := db.store.VerifyRow(db.ctx, claim, "*"); err != nil {
				t.Errorf("what is left over counts as wrong: %v", err)
			}
			if err := holder.Rollback(db.ctx); err != nil {
				t.Fatal(err)
			}
			db.complete(claim)
			db.wantText("0", form.wrong)
		})
	}
}

// With the locking and the filling in one statement the scan writes the value of its old snapshot over the one that
// the tail wrote meanwhile, and nothing ever looks at that row again.
func TestAScanAndATailAtOnceLeaveNoStaleRow(t *testing.T) {
	db := newBackfillDB(t, wordsSQL, wordsCheckpoint(), plainTodos())
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	worker := db.workerStore()
	held := db.holdInserts("words", "INSERT")
	scanning := inBackground(func() (storage.Batch, error) { return worker.ScanBatch(db.ctx, claim, lease) })
	held.wait()

	program := db.connect()
	done := make(chan error, 1)
	go func() {
		tx, err := program.Begin(db.ctx)
		if err == nil {
			_, err = tx.Exec(db.ctx, "UPDATE todos SET title = 'NEWER' WHERE id = 50")
		}
		if err == nil {
			err = appendChanges(db.ctx, tx, "a", "todos", "50")
		}
		if err == nil {
			err = tx.Commit(db.ctx)
		}
		done <- err
	}()
	db.eventually("the program has committed, or waits for the scan", db.programStands(done, program))
	if _, err := db.store.TailBatch(db.ctx, claim, "*", 100); err != nil && !storage.ClassOf(err).Retryable() {
		t.Fatalf("tail: %v", err)
	}
	held.resume()
	if result := <-scanning; result.err != nil {
		t.Fatalf("scan: %v", result.err)
	}
	if err := <-done; err != nil {
		t.Fatalf("the program: %v", err)
	}
	db.scan(claim, db.mustLeases(claim))
	db.catchUp(claim, "*")
	db.wantText("0", wrongWords)
	db.mustActivate(claim, "*")
}

// An update that reads another table is never done by the one statement that waits for rows: it would see that table as it was when
// the statement began.
func TestAScanDoesNotWriteWhatAnotherTableWasBefore(t *testing.T) {
	db := newBackfillDB(t, labelledSQL, labelCheckpoint(), labelledTodos(), ownersTable())
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	worker := db.workerStore()
	held := db.holdInserts("todos", "UPDATE") // its snapshot is taken, no row is changed
	scanning := inBackground(func() (storage.Batch, error) { return worker.ScanBatch(db.ctx, claim, lease) })
	held.wait()
	w := db.begin(db.conn, "a")
	w.exec("UPDATE owners SET name = 'Renamed' WHERE id = 3")
	w.log("owners", "3")
	w.commit()
	// The rows of owner 3 are in the batch. Whoever tails now has to leave them for later.
	if _, err := db.store.TailBatch(db.ctx, claim, "*", 100); err != nil && !storage.ClassOf(err).Retryable() {
		t.Fatalf("tail: %v", err)
	}
	held.resume()
	if result := <-scanning; result.err != nil {
		t.Fatalf("scan: %v", result.err)
	}
	db.scan(claim, db.mustLeases(claim))
	db.catchUp(claim, "*")
	db.wantText("0", wrongLabels)
	db.mustActivate(claim, "*")
}

// A tail that meets a row which the leftovers' own retry holds writes its key down anew. Were the old entry deleted after the filling,
// the new one would go with it.
func TestALeftoverThatIsBeingRetriedIsNotLostToAChangeOfAnotherTable(t *testing.T) {
	db := newBackfillDB(t, labelledSQL, labelCheckpoint(), labelledTodos(), ownersTable())
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	db.exec(`INSERT INTO sync_backfill_leftovers VALUES ('label', '*', '2')`)
	worker := db.workerStore()
	held := db.holdInserts("todos", "UPDATE")
	retrying := inBackground(func() (storage.Batch, error) { return worker.RetryLeftovers(db.ctx, claim, "*", 100) })
	held.wait()
	w := db.begin(db.conn, "a")
	w.exec("UPDATE owners SET name = 'Renamed' WHERE id = 3") // that of row 2
	w.log("owners", "3")
	w.commit()
	if _, err := db.store.TailBatch(db.ctx, claim, "*", 100); err != nil && !storage.ClassOf(err).Retryable() {
		t.Fatalf("tail: %v", err)
	}
	held.resume()
	if result := <-retrying; result.err != nil {
		t.Fatalf("retry the leftovers: %v", result.err)
	}
	db.catchUp(claim, "*")
	db.wantText("0", wrongLabels)
	db.mustActivate(claim, "*")
}

// A writer that has its number but is not committed when the pass begins: its rows are invisible to the scan, or locked.
func TestAWriterInFlightAtTheClaimIsCovered(t *testing.T) {
	for _, partition := range []string{"a", "*"} {
		t.Run("row "+partition, func(t *testing.T) {
			t.Parallel()
			var listed []string
			if partition != "*" {
				listed = []string{partition}
			}
			db := todosDB(t, 100, listed...)
			db.write("a", 4, "UPDATE todos SET title = 'BEFORE' WHERE id = 4")
			inFlight := db.begin(db.connect(), "a")
			inFlight.exec("UPDATE todos SET title = 'IN FLIGHT' WHERE id = 2")
			inFlight.exec("INSERT INTO todos VALUES (1002, 'a', 'NEW')")
			inFlight.log("todos", "2", "1002")

			claim := db.mustClaim(false)
			if partition == "a" && claim.Rows[0].Watermark != 1 {
				t.Errorf("the pass begins at %d, want 1: the number of the open writer is not passed", claim.Rows[0].Watermark)
			}
			later := make(chan error, 1) // the next writer of the partition waits for the one in flight
			conn := db.connect()
			go func() {
				_, err := conn.Exec(db.ctx, "UPDATE sync_partitions SET max_commit_seq = max_commit_seq WHERE partition = 'a'")
				later <- err
			}()
			db.scan(claim, db.mustLeases(claim))
			report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: partition})
			if storage.CodeOf(err) != storage.CodeLockTimeout {
				t.Errorf("activated beside a writer in flight: %+v, %v", report, err)
			}
			inFlight.commit()
			if err := <-later; err != nil {
				t.Fatal(err)
			}
			// No tail: the activation itself has to see what came.
			report = db.mustActivate(claim, partition)
			if report.Rest < 2 {
				t.Errorf("the activation filled %d rows, want the two of the writer in flight", report.Rest)
			}
			rows := " AND tenant = 'a'"
			if partition == "*" {
				rows = ""
			}
			db.wantText("0", wrong+rows)
		})
	}
}

// The worst moments of a writer to commit: each of them stands between two statements of ours.
func TestAWriterThatCommitsBetweenTwoStepsIsCovered(t *testing.T) {
	change := func(db *backfillDB, id int) {
		db.write("a", int64(id), "UPDATE todos SET title = upper(title) || ' again' WHERE id = $1", id)
	}
	moments := map[string]func(db *backfillDB, claim storage.Claim){
		"between claim and scan": func(db *backfillDB, claim storage.Claim) {
			change(db, 2)
			db.scan(claim, db.mustLeases(claim))
		},
		"behind the cursor": func(db *backfillDB, claim storage.Claim) {
			lease := db.mustLeases(claim)[0]
			if _, err := db.store.ScanBatch(db.ctx, claim, lease); err != nil {
				db.t.Fatal(err)
			}
			change(db, 2)
			db.scan(claim, []storage.Lease{lease})
		},
		"after the scan": func(db *backfillDB, claim storage.Claim) {
			db.scan(claim, db.mustLeases(claim))
			change(db, 2)
		},
		"between tail and activation": func(db *backfillDB, claim storage.Claim) {
			db.scan(claim, db.mustLeases(claim))
			db.catchUp(claim, claim.Rows[0].Partition)
			change(db, 2)
		},
		"inserted below the cursor": func(db *backfillDB, claim storage.Claim) {
			db.scan(claim, db.mustLeases(claim))
			db.write("a", -5, "INSERT INTO todos VALUES (-5, 'a', 'BELOW')")
		},
		"moved from another partition": func(db *backfillDB, claim storage.Claim) {
			db.scan(claim, db.mustLeases(claim))
			w := db.begin(db.conn, "a")
			w.exec("UPDATE todos SET tenant = 'a', title = 'MOVED' WHERE id = 3")
			w.log("todos", "3")
			w.commit()
		},
		"deleted and made again": func(db *backfillDB, claim storage.Claim) {
			db.scan(claim, db.mustLeases(claim))
			db.write("a", 2, "DELETE FROM todos WHERE id = 2")
			db.catchUp(claim, claim.Rows[0].Partition)
			db.write("a", 2, "INSERT INTO todos VALUES (2, 'a', 'MADE AGAIN')")
		},
		"its key changed": func(db *backfillDB, claim storage.Claim) {
			db.scan(claim, db.mustLeases(claim))
			w := db.begin(db.conn, "a")
			w.exec("UPDATE todos SET id = 2002, title = 'NEW KEY' WHERE id = 2")
			w.log("todos", "2", "2002")
			w.commit()
		},
		"in a partition that is new": func(db *backfillDB, claim storage.Claim) {
			db.scan(claim, db.mustLeases(claim))
			w := db.begin(db.conn, "c")
			w.exec("INSERT INTO todos VALUES (3003, 'c', 'NEW PARTITION')")
			w.log("todos", "3003")
			w.commit()
			change(db, 4)
		},
		"while a row is held and not logged": func(db *backfillDB, claim storage.Claim) {
			holder, err := db.connect().Begin(db.ctx)
			if err != nil {
				db.t.Fatal(err)
			}
			if _, err := holder.Exec(db.ctx, "SELECT FROM todos WHERE id IN (2, 4) FOR UPDATE"); err != nil {
				db.t.Fatal(err)
			}
			db.scan(claim, db.mustLeases(claim))
			db.wantText("2", "SELECT count(*) FROM sync_backfill_leftovers")
			if err := holder.Rollback(db.ctx); err != nil {
				db.t.Fatal(err)
			}
		},
	}
	for name, moment := range moments {
		for _, partition := range []string{"a", "*"} {
			t.Run(name+", row "+partition, func(t *testing.T) {
				t.Parallel()
				var listed []string
				rows := ""
				if partition != "*" {
					listed, rows = []string{partition}, " AND tenant = 'a'"
				}
				db := todosDB(t, 100, listed...)
				db.settings(storage.Settings{BatchRows: 30})
				claim := db.mustClaim(false)
				moment(db, claim)
				db.mustActivate(claim, partition)
				db.wantText("0", wrong+rows)
			})
		}
	}
}

func TestOnlyExpressionsOfTheirOwnRowAreFilledWithoutLooking(t *testing.T) {
	db := newBarrierDB(t)
	db.exec(labelledSQL + `;
		CREATE FUNCTION of_owner(bigint) RETURNS text LANGUAGE sql STABLE AS 'SELECT name FROM owners WHERE id = $1';
		CREATE FUNCTION pretends(bigint) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT name FROM owners WHERE id = $1';
		CREATE OPERATOR ~~~> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = int8mi);
		CREATE SEQUENCE numbers`)
	cases := []struct {
		expression string
		own        bool
	}{
		{"lower(title)", true},
		{"title || ' ' || coalesce(label, '') || id::text -- a comment )", true},
		{"CASE WHEN todos.id > 5 THEN upper(title) ELSE regexp_replace(title, 'SELECT (.*)', '\\1') END", true},
		{"title /* SELECT 1 */ || 'SELECT' || now()::text", true},
		{"(SELECT name FROM owners WHERE owners.id = todos.owner)", false},
		{"(SELECT max(title) FROM todos)", false},
		{"array_to_string(ARRAY(TABLE owners ORDER BY 1 LIMIT 0)::text[], '')", false},
		{"CASE WHEN EXISTS (VALUES (1)) THEN title END", false},
		{"of_owner(owner)", false},
		{"pretends(owner)", false},
		{"(id ~~~> owner)::text", false},
		{"nextval('numbers')::text", false},
		{"query_to_xml('SELECT name FROM owners', true, true, '')::text", false},
	}
	for i, c := range cases {
		checkpoint := labelCheckpoint()
		checkpoint.Name = "label-" + strconv.Itoa(i)
		checkpoint.Backfill.Update.Set["label"] = c.expression
		tables := []storage.Table{labelledTodos(), ownersTable()}
		err := db.store.inTx(db.ctx, "plan", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			plan, err := db.store.readTables(ctx, tx, storage.NewDefinition(checkpoint, tables))
			if err != nil {
				return err
			}
			plan.path = db.store.pathFor(plan)
			if err := db.store.planUpdate(ctx, tx, plan, *checkpoint.Backfill.Update); err != nil {
				return err
			}
			if plan.ownRow != c.own {
				t.Errorf("%s: reads its own row only: got %t, want %t", c.expression, plan.ownRow, c.own)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", c.expression, err)
		}
	}
}
