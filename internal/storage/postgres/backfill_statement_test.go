package postgres

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestAStatementDerivesRowsAndRemovesWhatIsGone(t *testing.T) {
	for name, config := range map[string]func(url string) Config{
		"on sessions of its own": func(url string) Config { return Config{URL: url} },
		"by the simple protocol": func(url string) Config { return Config{URL: url, SimpleProtocol: true} },
		"behind a pooler":        func(url string) Config { return Config{URL: testdb.PgBouncer(t, url), Pooler: PoolerTransaction} },
	} {
		for _, partition := range []string{"a", "*"} {
			t.Run(name+", row "+partition, func(t *testing.T) {
				t.Parallel()
				var listed []string
				if partition != "*" {
					listed = []string{partition}
				}
				db := newBarrierDB(t)
				b := declareBackfill(db, wordsSQL, wordsCheckpoint(listed...), plainTodos())
				db.store = openStore(t, config(db.url))
				b.settings(storage.Settings{BatchRows: 7})
				claim := b.mustClaim(false)
				leases := b.mustLeases(claim)
				b.write("a", 2, "DELETE FROM todos WHERE id = 2")
				b.scan(claim, leases)
				b.write("a", 4, "DELETE FROM todos WHERE id = 4")
				b.write("a", 6, "UPDATE todos SET title = 'SIX' WHERE id = 6")
				b.catchUp(claim, partition)
				if partition == "*" {
					b.wantText("0", wrongWords)
				}
				b.write("a", 8, "DELETE FROM todos WHERE id = 8")
				b.write("a", 10, "UPDATE todos SET title = 'TEN' WHERE id = 10")
				if err := db.store.VerifyRow(db.ctx, claim, partition); err != nil {
					t.Fatal(err)
				}
				report := b.mustActivate(claim, partition)
				if report.Rest != 2 {
					t.Errorf("the activation filled %d rows, want 2", report.Rest)
				}
				if db.store.pooled {
					b.wantText("0", "SELECT count(*) FROM pg_class WHERE relname = 'batch'")
				}
				b.wantText("0", `SELECT count(*) FROM words w WHERE NOT EXISTS (SELECT FROM todos t WHERE t.id = w.id AND w.word = lower(t.title))`)
				b.wantText("0", `SELECT count(*) FROM todos t LEFT JOIN words w USING (id) WHERE tenant = 'a' AND w.word IS DISTINCT FROM lower(title)`)
			})
		}
	}
}

// Several statements are one backfill's; a transaction is not theirs to end.
func TestAStatementMayBeSeveralButCannotEndTheTransaction(t *testing.T) {
	checkpoint := wordsCheckpoint()
	checkpoint.Backfill.Statement.Apply = `
		DELETE FROM words USING batch WHERE words.id = batch.id;
		INSERT INTO words SELECT id, lower(title) FROM todos JOIN batch USING (id); -- and no more`
	db := newBackfillDB(t, wordsSQL, checkpoint, plainTodos())
	db.complete(db.mustClaim(false))
	db.wantText("0", wrongWords)

	for _, ending := range []string{"COMMIT", "ROLLBACK", "SAVEPOINT here", "PREPARE TRANSACTION 'backfill-of-a-user'"} {
		ending := newBackfillWithApply(t, "DELETE FROM words; "+ending)
		claim := ending.mustClaim(false)
		_, err := ending.store.ScanBatch(ending.ctx, claim, ending.mustLeases(claim)[0])
		wantRefusal(t, err, storage.CodeNotTransactional, "words", "apply")
		ending.wantText("1", "SELECT count(*) FROM words")
		ending.wantText("", "SELECT cursor_key FROM sync_backfill_progress WHERE kind = 'range'")
	}
}

func TestAStatementThatAGuardRefusesIsQuotedWithTheRefusal(t *testing.T) {
	db := newBackfillWithApply(t, "DELETE FROM sync_writer_fence")
	claim := db.mustClaim(false)
	_, err := db.store.ScanBatch(db.ctx, claim, db.mustLeases(claim)[0])
	wantRefusal(t, err, storage.CodeInvalidSQL, "a fence is not deleted")
}

// newBackfillWithApply puts SQL into a stored definition that no declaration would have let pass.
func newBackfillWithApply(t testing.TB, apply string) *backfillDB {
	t.Helper()
	db := newBackfillDB(t, wordsSQL+"; INSERT INTO words VALUES (1, 'one')", wordsCheckpoint(), plainTodos())
	checkpoint := wordsCheckpoint()
	checkpoint.Backfill.Statement.Apply = apply
	text, err := storage.EncodeDefinition(storage.NewDefinition(checkpoint, []storage.Table{plainTodos()}))
	if err != nil {
		t.Fatal(err)
	}
	db.exec("ALTER TABLE sync_backfill_definitions DISABLE TRIGGER syncbarrier_guard_definition_kept")
	db.exec("UPDATE sync_backfill_definitions SET definition = $1", text)
	db.exec("ALTER TABLE sync_backfill_definitions ENABLE ALWAYS TRIGGER syncbarrier_guard_definition_kept")
	return db
}

func TestBackfillsOfDifferentKeysTakeTurnsOnOneSession(t *testing.T) {
	db := newBarrierDB(t)
	db.exec(wordsSQL + `;
		CREATE TABLE pairs(a text, b int, PRIMARY KEY (a, b)); INSERT INTO pairs SELECT 'a' || n, n FROM generate_series(1, 20) n;
		CREATE TABLE pair_words(a text, b int, word text, PRIMARY KEY (a, b))`)
	pairs := storage.Table{Name: "pairs", Layout: storage.Plain, PrimaryKey: []string{"a", "b"}, Columns: []storage.Column{textKey("a"), typedKey("b", "integer")}}
	second := storage.Checkpoint{
		Name: "pair-words", Version: 2, Sources: []storage.Source{{Table: "pairs", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Statement: &storage.Statement{Table: "pairs", Apply: "INSERT INTO pair_words SELECT a, b, upper(a) FROM batch"}},
	}
	wanted := target(2, plainTodos(), pairs)
	wanted.Checkpoints = []storage.Checkpoint{wordsCheckpoint(), second}
	db.mustApply(wanted)
	db.store = openStore(t, Config{URL: db.url, MaxConnections: 1})
	words, other := &backfillDB{db, "words"}, &backfillDB{db, "pair-words"}
	words.settings(storage.Settings{BatchRows: 30})
	other.settings(storage.Settings{BatchRows: 6})
	wordsClaim, otherClaim := words.mustClaim(false), other.mustClaim(false)
	wordsLease, otherLease := words.mustLeases(wordsClaim)[0], other.mustLeases(otherClaim)[0]
	for range 3 {
		if _, err := db.store.ScanBatch(db.ctx, wordsClaim, wordsLease); err != nil {
			t.Fatal(err)
		}
		if _, err := db.store.ScanBatch(db.ctx, otherClaim, otherLease); err != nil {
			t.Fatal(err)
		}
	}
	words.complete(wordsClaim)
	other.complete(otherClaim)
	db.wantText("0", wrongWords)
	db.wantText("20", "SELECT count(*) FROM pair_words WHERE word = upper(a)")
}

// A Syncular table is gone over by (_sync_partition, _sync_row_id), and the log of a partition names rows of that partition.
func TestAStatementGoesOverASyncularTable(t *testing.T) {
	for _, partition := range []string{"a", "*"} {
		t.Run("row "+partition, func(t *testing.T) {
			var listed []string
			where := ""
			if partition != "*" {
				listed, where = []string{partition}, " WHERE n._sync_partition = 'a'"
			}
			db := newBarrierDB(t)
			db.mustApply(target(1, syncularNotes(2)))
			db.exec(`
				CREATE TABLE note_words(partition text, row_id text, word text, PRIMARY KEY (partition, row_id));
				INSERT INTO notes SELECT CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END, 'n' || n / 2, 'Title ' || n, n, 1, '{}', '\x00'
				  FROM generate_series(1, 50) AS n`)
			wanted := target(2, syncularNotes(2))
			wanted.Checkpoints = []storage.Checkpoint{{
				Name: "note-words", Version: 2, Partitions: listed,
				Sources: []storage.Source{{Table: "notes", Changes: storage.CommitLog}},
				Backfill: storage.Backfill{Statement: &storage.Statement{
					Table: "notes",
					Apply: `INSERT INTO note_words SELECT _sync_partition, _sync_row_id, lower(title) FROM notes JOIN batch USING (_sync_partition, _sync_row_id)
						ON CONFLICT (partition, row_id) DO UPDATE SET word = EXCLUDED.word`,
					Remove: `DELETE FROM note_words USING batch WHERE partition = _sync_partition AND row_id = _sync_row_id`,
				}},
				Verify: []storage.Verify{{Name: "all-there", Query: `SELECT _sync_partition, _sync_row_id FROM notes
					LEFT JOIN note_words ON partition = _sync_partition AND row_id = _sync_row_id WHERE word IS DISTINCT FROM lower(title)`}},
			}}
			db.mustApply(wanted)
			b := &backfillDB{db, "note-words"}
			b.settings(storage.Settings{BatchRows: 4})
			claim := b.mustClaim(false)
			b.scan(claim, b.mustLeases(claim))
			w := db.begin(db.conn, "a")
			w.exec("UPDATE notes SET title = 'CHANGED' WHERE _sync_partition = 'a' AND _sync_row_id = 'n3'")
			w.exec("DELETE FROM notes WHERE _sync_partition = 'a' AND _sync_row_id = 'n4'")
			w.log("notes", "n3", "n4")
			w.commit()
			b.catchUp(claim, partition)
			if err := db.store.VerifyRow(db.ctx, claim, partition); err != nil {
				t.Fatal(err)
			}
			b.mustActivate(claim, partition)
			db.wantText("0", `SELECT count(*) FROM (SELECT * FROM notes n`+where+`) n
				LEFT JOIN note_words ON partition = _sync_partition AND row_id = _sync_row_id WHERE word IS DISTINCT FROM lower(title)`)
			db.wantText("0", "SELECT count(*) FROM note_words WHERE partition = 'a' AND row_id = 'n4'")
			others := map[string]string{"a": "0", "*": "25"}
			db.wantText(others[partition], "SELECT count(*) FROM note_words WHERE partition = 'b'")
		})
	}
}

// Names that have to be quoted, a schema that has to be, a row of the default partition, and a table whose rows are in partitions.
func TestNamesThatHaveToBeQuoted(t *testing.T) {
	const schema = `Our "App", 1`
	db := newBarrierDB(t, Config{URL: testdb.Postgres(t), Schema: schema})
	db.exec(`SET search_path = "Our ""App"", 1"`)
	b := declareBackfill(db, `
		CREATE TABLE "To, ""Dos""($1)"("I, D" bigint, "Half" int, "Title" text, "select" text, PRIMARY KEY ("I, D", "Half")) PARTITION BY LIST ("Half");
		CREATE TABLE one PARTITION OF "To, ""Dos""($1)" FOR VALUES IN (1);
		CREATE TABLE rest PARTITION OF "To, ""Dos""($1)" DEFAULT;
		INSERT INTO "To, ""Dos""($1)" SELECT n, n % 3, 'Title ' || n FROM generate_series(1, 60) AS n`,
		storage.Checkpoint{
			Name: "quoted", Version: 2, Partitions: []string{storage.DefaultPartition},
			Sources: []storage.Source{{Table: `To, "Dos"($1)`, Changes: storage.CommitLog}},
			Backfill: storage.Backfill{Update: &storage.Update{Table: `To, "Dos"($1)`, Set: map[string]string{
				"select": `(SELECT lower("To, ""Dos""($1)"."Title") || '$1') -- not $2`}}},
			Verify: []storage.Verify{{Name: "all", Query: `SELECT "Half", "I, D" FROM "To, ""Dos""($1)" WHERE "select" IS DISTINCT FROM lower("Title") || '$1';`}},
		},
		storage.Table{Name: `To, "Dos"($1)`, Layout: storage.Plain, PrimaryKey: []string{"I, D", "Half"}, Columns: []storage.Column{
			typedKey("I, D", "bigint"), typedKey("Half", "integer"), {Name: "Title", Type: storage.TypeString}, {Name: "select", Type: storage.TypeString, Nullable: true}}})
	b.settings(storage.Settings{BatchRows: 7})
	claim := b.mustClaim(false)
	b.scan(claim, b.mustLeases(claim))
	w := db.begin(db.conn, storage.DefaultPartition)
	w.exec(`UPDATE "To, ""Dos""($1)" SET "Title" = 'CHANGED' WHERE "I, D" = 4`)
	w.exec(`DELETE FROM "To, ""Dos""($1)" WHERE "I, D" = 5`)
	w.log(`To, "Dos"($1)`, `["4","1"]`, `[ "5", "2" ]`)
	w.commit()
	b.complete(claim)
	db.wantText("0", `SELECT count(*) FROM "To, ""Dos""($1)" WHERE "select" IS DISTINCT FROM lower("Title") || '$1'`)
}

func TestAnErrorOfTheUsersSQLNamesTheKeyAndLosesNothing(t *testing.T) {
	for form, expression := range map[string]string{"quick": "(100 / (id - 57))::text", "careful": "(SELECT (100 / (id - 57))::text)"} {
		t.Run(form, func(t *testing.T) {
			checkpoint := normCheckpoint("norm", 2)
			checkpoint.Backfill.Update.Set["title_norm"] = expression
			db := newBackfillDB(t, todosSQL(100), checkpoint, plainTodos(titleNorm))
			claim := db.mustClaim(false)
			lease := db.mustLeases(claim)[0]
			_, err := db.store.ScanBatch(db.ctx, claim, lease)
			wantRefusal(t, err, storage.CodeInvalidSQL, "norm", "todos", "division by zero")
			var filled int
			for lease.Limit = 1; ; filled++ {
				if _, err = db.store.ScanBatch(db.ctx, claim, lease); err != nil {
					break
				}
			}
			wantRefusal(t, err, storage.CodeInvalidSQL, "norm", `key "57"`, "division by zero")
			if strings.Contains(err.Error(), "Title 57") {
				t.Errorf("the error holds row data: %v", err)
			}
			if filled != 56 {
				t.Errorf("%d rows were filled before the one that fails, want 56", filled)
			}
			db.wantText("56", "SELECT count(*) FROM todos WHERE title_norm IS NOT NULL")
			db.exec("UPDATE todos SET id = 1057 WHERE id = 57")
			lease.Limit = 0
			db.scan(claim, []storage.Lease{lease})
			db.wantText("0", "SELECT count(*) FROM todos WHERE title_norm IS NULL")
		})
	}
}

func TestACheckThatTheTableDefersFailsInTheBatchByItsName(t *testing.T) {
	checkpoint := normCheckpoint("norm", 2)
	checkpoint.Backfill.Update.Set["title_norm"] = "CASE WHEN id < 3 THEN 'same' ELSE lower(title) END"
	db := newBackfillDB(t, todosSQL(100)+"; ALTER TABLE todos ADD CONSTRAINT apart UNIQUE (title_norm) DEFERRABLE INITIALLY DEFERRED", checkpoint, plainTodos(titleNorm))
	claim := db.mustClaim(false)
	_, err := db.store.ScanBatch(db.ctx, claim, db.mustLeases(claim)[0])
	wantRefusal(t, err, storage.CodeInvalidSQL, "norm", "apart")
	db.wantText("0", "SELECT count(*) FROM todos WHERE title_norm IS NOT NULL")
}

func TestSettingsTakeEffectWithTheNextBatch(t *testing.T) {
	db := todosDB(t, 100)
	db.settings(storage.Settings{BatchRows: 10})
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	expect := func(rows int64, done bool) {
		t.Helper()
		batch, err := db.store.ScanBatch(db.ctx, claim, lease)
		if err != nil || batch.Rows != rows || batch.Done != done {
			t.Fatalf("got %+v, %v, want %d rows, done %t", batch, err, rows, done)
		}
	}
	expect(10, false)
	db.settings(storage.Settings{BatchRows: 25})
	expect(25, false)
	db.settings(storage.Settings{BatchRows: 25, Paused: true})
	expect(0, false)
	db.write("a", 2, "UPDATE todos SET title = 'X' WHERE id = 2")
	if batch, err := db.store.TailBatch(db.ctx, claim, "*", 10); err != nil || batch.Rows != 0 || batch.Done || !batch.Settings.Paused {
		t.Errorf("a paused tail: %+v, %v", batch, err)
	}
	db.settings(storage.Settings{})
	expect(65, true)
	expect(0, true)
	db.complete(claim)
}

func TestAScanWaitsForItsLeftoversWhenTheyAreMany(t *testing.T) {
	db := todosDB(t, 100)
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	db.exec("INSERT INTO sync_backfill_leftovers SELECT 'norm', '*', (n + 1000)::text FROM generate_series(1, 10001) n")
	batch, err := db.store.ScanBatch(db.ctx, claim, lease)
	if err != nil || batch.Rows != 0 || batch.Skipped != 10001 || batch.Done {
		t.Fatalf("got %+v, %v, want nothing but 10001 skipped keys", batch, err)
	}
	for done := false; !done; {
		batch, err := db.store.RetryLeftovers(db.ctx, claim, "*", 5000)
		if err != nil {
			t.Fatal(err)
		}
		done = batch.Done
	}
	db.complete(claim)
	db.wantText("0", wrong)
}
