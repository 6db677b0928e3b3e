package postgres

import (
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Settings that a database has for its programs must not decide what we do, see or think of ourselves. Each server is given those it knows.
// Its limits are shorter than what the migration takes, and longer than a BEGIN on a busy machine: that is where we set ours.
func TestContractUnderTheSettingsOfADatabase(t *testing.T) {
	db := newBarrierDB(t)
	name := quoteIdentifier(db.text(`SELECT current_database()`))
	for _, setting := range [][2]string{
		{"quote_all_identifiers", "on"}, {"standard_conforming_strings", "off"}, {"array_nulls", "off"}, {"transform_null_equals", "on"},
		{"default_transaction_isolation", "serializable"}, {"default_transaction_deferrable", "on"}, {"plpgsql.extra_errors", "all"},
		{"datestyle", "SQL, DMY"}, {"bytea_output", "escape"}, {"search_path", ""}, {"row_security", "on"}, {"statement_timeout", "1s"},
		{"lock_timeout", "1ms"}, {"transaction_timeout", "1s"},
	} {
		if setting[0] == "transaction_timeout" && db.text(`SELECT current_setting('server_version_num')::integer < 170000`) == "true" {
			continue
		}
		db.exec(fmt.Sprintf("ALTER DATABASE %s SET %s = %s", name, setting[0], quoteLiteral(setting[1])))
	}
	db.store.Close()
	db.store = openStore(t, Config{URL: db.url})
	wanted := target(2, plainTodos(titleNorm))
	wanted.Migrations = []storage.Migration{{Version: 2, SQL: "SELECT pg_sleep(2)"}}
	wanted.Checkpoints = []storage.Checkpoint{tailedCheckpoint()}
	db.exec(todosSQL(50))
	db.mustApply(wanted)
	if report, err := db.store.CheckFence(db.ctx); err != nil || !report.Intact() {
		t.Errorf("the fence: %+v, %v", report, err)
	}
	b := &backfillDB{barrierDB: db, name: "norm"}
	claim := b.mustClaim(false)
	b.scan(claim, b.mustLeases(claim))
	db.exec(`SET syncbarrier.writer_version = 2`)
	db.exec(`UPDATE todos SET title = 'Changed' WHERE id < 9`)
	b.catchUp(claim, storage.AllPartitions)
	b.mustActivate(claim, storage.AllPartitions)
	db.wantText("0", wrong)
}

// A column may be NULL in rows although it is marked as NOT NULL: from PostgreSQL 18 on the constraint need not be validated. An older
// server does not know that, and the column is not marked.
func TestContractOfAKeyWithNULLsIsRefused(t *testing.T) {
	db := newBarrierDB(t)
	db.exec(`CREATE TABLE todos(id bigint UNIQUE, tenant text NOT NULL, title text NOT NULL); INSERT INTO todos VALUES (NULL, 'a', 'No key')`)
	if db.text(`SELECT current_setting('server_version_num')::integer >= 180000`) == "true" {
		db.exec(`ALTER TABLE todos ADD CONSTRAINT filled NOT NULL id NOT VALID`)
	}
	for _, changes := range []storage.Changes{storage.Capture, storage.CommitLog} {
		wanted := target(2, plainTodos(titleNorm))
		checkpoint := normCheckpoint("norm", 2)
		checkpoint.Sources[0].Changes = changes
		wanted.Checkpoints = []storage.Checkpoint{checkpoint}
		db.refuses(wanted, storage.CodeInvalidSpec, "todos")
	}
	db.exec(`DELETE FROM todos WHERE id IS NULL; ALTER TABLE todos ALTER COLUMN id SET NOT NULL`)
	wanted := target(2, plainTodos(titleNorm))
	wanted.Checkpoints = []storage.Checkpoint{tailedCheckpoint()}
	db.mustApply(wanted)
}

// A value that the SQL of a version adds to an enumeration can be used from COMMIT on, and that is when the backfill begins.
func TestABackfillUsesAValueThatItsVersionAddsToAnEnumeration(t *testing.T) {
	db := newBarrierDB(t)
	db.exec(`CREATE TYPE mood AS ENUM ('sad'); ` + todosSQL(20) + `; ALTER TABLE todos ADD COLUMN mood mood`)
	wanted := target(2, plainTodos(storage.Column{Name: "mood", SQLType: "mood", Nullable: true}))
	wanted.Migrations = []storage.Migration{{Version: 2, SQL: `ALTER TYPE mood ADD VALUE 'glad'`}}
	checkpoint := normCheckpoint("norm", 2)
	checkpoint.Backfill.Update.Set = map[string]string{"mood": "CASE WHEN id > 10 THEN 'glad'::mood ELSE 'sad' END"}
	checkpoint.Verify = []storage.Verify{{Name: "glad", Query: `SELECT id FROM todos WHERE id > 10 AND mood IS DISTINCT FROM 'glad'::mood`}}
	wanted.Checkpoints = []storage.Checkpoint{checkpoint}
	db.mustApply(wanted)
	b := &backfillDB{barrierDB: db, name: "norm"}
	b.complete(b.mustClaim(false))
	db.wantText("10", `SELECT count(*) FROM todos WHERE mood = 'glad'`)
}

// SQL of a batch runs between statements of ours, on a session that other batches use after it.
func TestAStatementOfABatchThatChangesTheSessionIsRefused(t *testing.T) {
	for name, sql := range map[string]string{
		"the path":              `SET search_path = ''`,
		"the path, in a call":   `SELECT set_config('search_path', '', false)`,
		"the role":              `SET ROLE pg_monitor`,
		"how long we wait":      `SET lock_timeout = 0`,
		"how long a batch runs": `SET LOCAL statement_timeout = 0`,
		"which triggers fire":   `SET session_replication_role = replica`,
		"the version":           `SET syncbarrier.writer_version = 1`,
		"the encoding":          `SET client_encoding = 'LATIN1'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newBarrierDB(t)
			db.mustApply(target(1))
			db.exec(wordsSQL)
			wanted := target(2, plainTodos())
			checkpoint := wordsCheckpoint()
			checkpoint.Backfill.Statement.Apply += "; " + sql
			wanted.Checkpoints = []storage.Checkpoint{checkpoint}
			db.refuses(wanted, storage.CodeInvalidSQL, "apply", "changes the session's")
			db.wantText("1", `SELECT schema_version FROM sync_schema_meta`)
		})
	}
}
