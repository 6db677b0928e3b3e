package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// A program's own trigger often notes the time of each update, in a column that counts as a source. So our own update is a change of a
// source, which the tail applies: it must find the row filled and leave it alone, or each pass over the log makes the next.
func TestATriggerThatNotesEveryUpdateDoesNotKeepABackfillGoing(t *testing.T) {
	db := newBackfillDB(t, todosSQL(300)+`;
		ALTER TABLE todos ADD COLUMN writes integer NOT NULL DEFAULT 0, ADD COLUMN label json;
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.writes := OLD.writes + 1; RETURN NEW; END';
		CREATE TRIGGER note BEFORE UPDATE ON todos FOR EACH ROW EXECUTE FUNCTION note()`, storage.Checkpoint{
		Name: "norm", Version: 2, Sources: []storage.Source{{Table: "todos", Changes: storage.Capture}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{
			"title_norm": "lower(title)", "label": "json_build_object('of', title)", // a type without an operator for equality
		}}},
	}, plainTodos(titleNorm, storage.Column{Name: "label", Type: storage.TypeJSON, Nullable: true}))
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	db.wantText("true", `SELECT count(*) >= 300 FROM sync_changes WHERE tbl = 'todos'`)
	for range 3 {
		db.catchUp(claim, storage.AllPartitions)
	}
	db.exec(`SET syncbarrier.writer_version = 2`)
	db.exec(`UPDATE todos SET title = 'Changed' WHERE id <= 10`)
	for range 3 {
		db.catchUp(claim, storage.AllPartitions)
	}
	db.mustActivate(claim, storage.AllPartitions)
	db.wantText("0", wrong+` OR label->>'of' IS DISTINCT FROM title`)
	db.wantText("0", `SELECT count(*) FROM todos WHERE writes <> CASE WHEN id <= 10 THEN 3 ELSE 1 END`)
}

// A trigger or a rule of the program's can keep an update from a row without an error. Such a row must not count as filled.
func TestARowThatATriggerKeepsFromBeingFilledIsNotCountedAsDone(t *testing.T) {
	const skip = `;
		CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER skip BEFORE UPDATE ON todos FOR EACH ROW WHEN (OLD.id = 7) EXECUTE FUNCTION skip()`
	for name, test := range map[string]struct{ setup, expression string }{
		"a trigger":                        {skip, "lower(title)"},
		"a trigger, other rows being read": {skip, "(SELECT lower(title))"},
		"a trigger, a new value each time": {skip, "lower(title) || random()"},
		"a rule":                           {`; CREATE RULE skip AS ON UPDATE TO todos WHERE OLD.id = 7 DO INSTEAD NOTHING`, "lower(title)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkpoint := normCheckpoint("norm", 2)
			checkpoint.Backfill.Update.Set["title_norm"] = test.expression
			checkpoint.Verify = nil
			db := newBackfillDB(t, todosSQL(20)+test.setup, checkpoint, plainTodos(titleNorm))
			db.settings(storage.Settings{BatchRows: 6})
			claim := db.mustClaim(false)
			var err error
			for _, lease := range db.mustLeases(claim) {
				for done := lease.Done; !done && err == nil; {
					var batch storage.Batch
					batch, err = again(db.ctx, func() (storage.Batch, error) { return db.store.ScanBatch(db.ctx, claim, lease) })
					done = batch.Done
				}
			}
			wantRefusal(t, err, storage.CodeInvalidSQL, "trigger", "todos")
		})
	}
}

// What a trigger keeps from being written again because nothing would change is filled.
func TestATriggerThatSuppressesRedundantUpdatesIsNoReasonToRefuse(t *testing.T) {
	db := newBackfillDB(t, todosSQL(20)+`;
		UPDATE todos SET title_norm = lower(title) WHERE id % 3 = 0;
		CREATE TRIGGER redundant BEFORE UPDATE ON todos FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
		normCheckpoint("norm", 2), plainTodos(titleNorm))
	db.settings(storage.Settings{BatchRows: 6})
	db.complete(db.mustClaim(false))
	db.wantText("0", wrong)
}

// A domain may refuse values that were there before its check. Their rows are rows like others.
func TestRowsWhoseKeyItsDomainWouldRefuseTodayAreFilled(t *testing.T) {
	for name, backfill := range map[string]storage.Backfill{
		"by an update": {Update: &storage.Update{Table: "t", Set: map[string]string{"v": "src"}}},
		"by a statement": {Statement: &storage.Statement{Table: "t",
			Apply: "UPDATE t SET v = src FROM batch WHERE t.a = batch.a AND t.b = batch.b", Remove: "SELECT FROM batch"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkpoint := onceCheckpoint(nil)
			checkpoint.Backfill = backfill
			checkpoint.Sources[0].Changes = storage.Capture
			db := newBackfillDB(t, `
				CREATE DOMAIN short AS varchar(10); CREATE DOMAIN code AS short; CREATE DOMAIN positive AS integer;
				CREATE TABLE t(a code, b positive, src text, v text, PRIMARY KEY (a, b));
				INSERT INTO t SELECT 'c' || n % 3, n - 50, n::text FROM generate_series(1, 100) n;
				ALTER DOMAIN positive ADD CHECK (VALUE > 0) NOT VALID; ALTER DOMAIN short ADD CHECK (VALUE <> 'c1') NOT VALID`,
				checkpoint, storage.Table{Name: "t", Layout: storage.Plain, PrimaryKey: []string{"a", "b"}, Columns: []storage.Column{
					textKey("a"), {Name: "b", Type: storage.TypeInteger}, {Name: "src", Type: storage.TypeString, Nullable: true},
					{Name: "v", Type: storage.TypeString, Nullable: true}}})
			db.settings(storage.Settings{BatchRows: 7})
			claim := db.mustClaim(false)
			db.scan(claim, db.mustLeases(claim))
			db.exec(`SET syncbarrier.writer_version = 2`)
			db.exec(`UPDATE t SET src = 'changed' WHERE b < -40`)
			db.exec(`DELETE FROM t WHERE b = -40`)
			db.catchUp(claim, storage.AllPartitions)
			db.mustActivate(claim, storage.AllPartitions)
			db.wantText("0", `SELECT count(*) FROM t WHERE v IS DISTINCT FROM src`)
			db.wantText("99", `SELECT count(*) FROM t`)
		})
	}
}

// A key can be longer as text than any index allows. Its row, when the program holds it, is waited for and not left for later.
func TestAHeldRowWithALongKeyIsWaitedFor(t *testing.T) {
	checkpoint := onceCheckpoint(map[string]string{"v": "(SELECT src)"})
	checkpoint.Sources[0].Changes = storage.Capture
	db := newBackfillDB(t, `
		CREATE TABLE t(id bytea PRIMARY KEY, src text, v text);
		INSERT INTO t SELECT string_agg(decode(md5(n || ' ' || i), 'hex'), ''), n::text FROM generate_series(1, 3) n, generate_series(1, 120) i GROUP BY n`,
		checkpoint, storage.Table{Name: "t", Layout: storage.Plain, PrimaryKey: []string{"id"}, Columns: []storage.Column{
			{Name: "id", Type: storage.TypeBytes}, {Name: "src", Type: storage.TypeString, Nullable: true}, {Name: "v", Type: storage.TypeString, Nullable: true}}})
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	db.exec(`SET syncbarrier.writer_version = 2`)
	db.exec(`BEGIN; UPDATE t SET src = 'held' WHERE src = '2'`)
	_, err := db.store.ScanBatch(db.ctx, claim, lease)
	expectCode(t, err, storage.CodeLockTimeout)
	db.exec(`COMMIT`)
	db.scan(claim, []storage.Lease{lease})

	db.exec(`UPDATE t SET src = 'logged' WHERE src = '3'`)
	db.exec(`BEGIN; UPDATE t SET src = 'held again' WHERE src IN ('held', 'logged')`)
	_, err = db.store.TailBatch(db.ctx, claim, storage.AllPartitions, 1000)
	expectCode(t, err, storage.CodeLockTimeout)
	db.exec(`COMMIT`)
	db.catchUp(claim, storage.AllPartitions)
	db.mustActivate(claim, storage.AllPartitions)
	db.wantText("0", "SELECT count(*) FROM t WHERE v IS DISTINCT FROM src")
}
