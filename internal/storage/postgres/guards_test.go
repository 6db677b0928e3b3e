package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestTheMarkerNeverGoesDown(t *testing.T) {
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	program.run(`INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 7, '{"a":1}')`)
	refused := map[string]string{
		"lower":             "UPDATE sync_schema_meta SET schema_version = 6, layouts = '{}'",
		"lower by upsert":   "INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 6, '{}') ON CONFLICT (id) DO UPDATE SET schema_version = EXCLUDED.schema_version, layouts = EXCLUDED.layouts",
		"NULL":              "UPDATE sync_schema_meta SET schema_version = NULL",
		"another id":        "UPDATE sync_schema_meta SET id = 2",
		"delete":            "DELETE FROM sync_schema_meta",
		"truncate":          "TRUNCATE sync_schema_meta",
		"in replica mode":   "SET LOCAL session_replication_role = replica; UPDATE sync_schema_meta SET schema_version = 6",
		"delete as replica": "SET LOCAL session_replication_role = replica; DELETE FROM sync_schema_meta",
	}
	for name, statement := range refused {
		t.Run(name, func(t *testing.T) { expectGuarded(t, program.try(statement), storage.CodeMarkerGuard) })
	}
	program.run(`UPDATE sync_schema_meta SET layouts = '{"b":2}', schema_version = 7`)
	if layouts := value[string](program, "SELECT layouts FROM sync_schema_meta"); layouts != `{"a":1}` {
		t.Errorf("layouts of the same version became %s", layouts)
	}
	program.run(`UPDATE sync_schema_meta SET layouts = '{"c":3}', schema_version = 8`)
	if layouts := value[string](program, "SELECT schema_version || layouts FROM sync_schema_meta"); layouts != `8{"c":3}` {
		t.Errorf("the next version reads %s", layouts)
	}
}

func TestTheMarkerIsNotRaisedWhileAnotherTargetIsOpen(t *testing.T) {
	store, dsn := newCatalog(t)
	program := connect(t, dsn)
	open := func(target string) {
		program.run(store.sql(`CREATE OR REPLACE TRIGGER syncbarrier_guard_marker BEFORE INSERT OR UPDATE OR DELETE ON {schema}.sync_schema_meta
			FOR EACH ROW EXECUTE FUNCTION {schema}.syncbarrier_guard_marker({target});
			ALTER TABLE {schema}.sync_schema_meta ENABLE ALWAYS TRIGGER syncbarrier_guard_marker`, "target", quoteLiteral(target)))
	}
	open("7")
	expectGuarded(t, program.try("INSERT INTO sync_schema_meta(id, schema_version) VALUES (1, 7)"), storage.CodeBarrierOpen)
	open("0")
	program.run("INSERT INTO sync_schema_meta(id, schema_version) VALUES (1, 6)")
	open("7")
	const upsert = "INSERT INTO sync_schema_meta(id, schema_version) VALUES (1, %d) ON CONFLICT (id) DO UPDATE SET schema_version = EXCLUDED.schema_version"
	expectGuarded(t, program.try(fmt.Sprintf(upsert, 7)), storage.CodeBarrierOpen)
	program.run(fmt.Sprintf(upsert, 6)) // a restart of the old program
	open("0")
	program.run(fmt.Sprintf(upsert, 7))
}

// TestAStaleMigratorDoesNotMoveTheMarkerDown: a version 6 program reads 5, waits behind a barrier from 5 to 7, and writes 6.
func TestAStaleMigratorDoesNotMoveTheMarkerDown(t *testing.T) {
	_, dsn := newCatalog(t)
	watcher, ours, theirs := connect(t, dsn), connect(t, dsn), connect(t, dsn)
	watcher.run(`INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 5, '{"v":5}')`)
	ours.run("BEGIN")
	ours.run("LOCK TABLE sync_partitions IN EXCLUSIVE MODE")
	if read := value[int64](theirs, "SELECT schema_version FROM sync_schema_meta WHERE id = 1"); read != 5 {
		t.Fatalf("the marker is %d", read)
	}
	theirs.run("BEGIN")
	done := make(chan error, 1)
	go func() { done <- theirs.try("LOCK TABLE sync_partitions IN EXCLUSIVE MODE") }()
	waitBlocked(t, watcher, theirs.pid())
	ours.run(`UPDATE sync_schema_meta SET schema_version = 7, layouts = '{"v":7}'`)
	ours.run("COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	expectGuarded(t, theirs.try(`INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 6, '{"v":6}')
		ON CONFLICT (id) DO UPDATE SET schema_version = EXCLUDED.schema_version, layouts = EXCLUDED.layouts`), storage.CodeMarkerGuard)
	theirs.run("ROLLBACK")
	if marker := value[string](watcher, "SELECT schema_version || layouts FROM sync_schema_meta"); marker != `7{"v":7}` {
		t.Errorf("the marker is %s", marker)
	}
}

func TestFenceRowsNeverGoDown(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, map[string]int64{"p": 7, storage.AllPartitions: 6})
	program := connect(t, dsn)
	for name, statement := range map[string]string{
		"lower":           "UPDATE sync_writer_fence SET required_writer_version = 5 WHERE partition = 'p'",
		"all lower":       "UPDATE sync_writer_fence SET required_writer_version = required_writer_version - 1",
		"lower by upsert": "INSERT INTO sync_writer_fence VALUES ('*', 1) ON CONFLICT (partition) DO UPDATE SET required_writer_version = EXCLUDED.required_writer_version",
		"NULL":            "UPDATE sync_writer_fence SET required_writer_version = NULL WHERE partition = 'p'",
		"another key":     "UPDATE sync_writer_fence SET partition = 'q' WHERE partition = 'p'",
		"delete":          "DELETE FROM sync_writer_fence WHERE partition = 'p'",
		"delete for all":  "DELETE FROM sync_writer_fence WHERE partition = '*'",
		"truncate":        "TRUNCATE sync_writer_fence",
		"as replica":      "SET LOCAL session_replication_role = replica; DELETE FROM sync_writer_fence",
	} {
		t.Run(name, func(t *testing.T) { expectGuarded(t, program.try(statement), storage.CodeFenceGuard) })
	}
	// The protocol's own statement raises, or leaves what is higher.
	const declare = `INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES ('p', $1)
		ON CONFLICT (partition) DO UPDATE SET required_writer_version = GREATEST(sync_writer_fence.required_writer_version, EXCLUDED.required_writer_version)`
	program.run(declare, 5)
	program.run(declare, 9)
	if n := value[int64](program, "SELECT required_writer_version FROM sync_writer_fence WHERE partition = 'p'"); n != 9 {
		t.Errorf("the fence is %d, want 9", n)
	}
}

// TestADeclarationByAnotherProgramWaitsForOpenAppends: it raises the fence of one partition without touching the partition's row; the
// guard does that, so that no append of the old version commits after the raise.
func TestADeclarationByAnotherProgramWaitsForOpenAppends(t *testing.T) {
	for _, iso := range isolationLevels {
		t.Run(string(iso), func(t *testing.T) {
			_, dsn := newCatalog(t)
			watcher, writer, program := connect(t, dsn), connect(t, dsn), connect(t, dsn)
			writer.run("BEGIN ISOLATION LEVEL " + string(iso))
			if err := writer.append("p", 5); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- program.try("INSERT INTO sync_writer_fence VALUES ('p', 6)") }()
			waitBlocked(t, watcher, program.pid())
			if n := value[int64](watcher, "SELECT count(*) FROM sync_writer_fence WHERE partition = 'p'"); n != 0 {
				t.Error("the fence is to be seen while the old append is open")
			}
			writer.run("COMMIT")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			expectFenced(t, writer.append("p", 5))
		})
	}
}

func TestPartitionsKeepTheLargerNumbers(t *testing.T) {
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	program.run("INSERT INTO sync_partitions(partition, max_commit_seq, horizon_seq) VALUES ('p', 300, 200)")
	program.run("INSERT INTO sync_partitions(partition, horizon_seq) VALUES ('p', 150) ON CONFLICT (partition) DO UPDATE SET horizon_seq = EXCLUDED.horizon_seq")
	program.run("UPDATE sync_partitions SET max_commit_seq = 10")
	program.run("UPDATE sync_partitions SET max_commit_seq = 301, horizon_seq = 0")
	if n := value[string](program, "SELECT max_commit_seq || ' ' || horizon_seq FROM sync_partitions"); n != "301 200" {
		t.Errorf("numbers are %s, want 301 200", n)
	}
	program.run("UPDATE sync_partitions SET max_commit_seq = 302, horizon_seq = 250")
	if n := value[string](program, "SELECT max_commit_seq || ' ' || horizon_seq FROM sync_partitions"); n != "302 250" {
		t.Errorf("numbers are %s, want 302 250", n)
	}
	for name, statement := range map[string]string{
		"another key": "UPDATE sync_partitions SET partition = 'q'",
		"delete":      "DELETE FROM sync_partitions",
		"truncate":    "TRUNCATE sync_partitions",
		"as replica":  "SET LOCAL session_replication_role = replica; DELETE FROM sync_partitions",
	} {
		t.Run(name, func(t *testing.T) { expectGuarded(t, program.try(statement), storage.CodePartitionGuard) })
	}
}

// TestTwoPrunersLeaveTheHigherHorizon: both read, the faster one writes 200 and deletes, the slower one writes 150.
func TestTwoPrunersLeaveTheHigherHorizon(t *testing.T) {
	_, dsn := newCatalog(t)
	fast, slow, watcher := connect(t, dsn), connect(t, dsn), connect(t, dsn)
	watcher.run("INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ('p', 300)")
	const set = `INSERT INTO sync_partitions(partition, horizon_seq) VALUES ('p', $1) ON CONFLICT (partition) DO UPDATE SET horizon_seq = EXCLUDED.horizon_seq`
	fast.run("BEGIN")
	fast.run(set, 200)
	done := make(chan error, 1)
	go func() { done <- slow.try(set, 150) }()
	waitBlocked(t, watcher, slow.pid())
	fast.run("COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := value[int64](watcher, "SELECT horizon_seq FROM sync_partitions"); n != 200 {
		t.Errorf("the horizon is %d, want 200", n)
	}
}

const checkpointInto = "sync_backfill_checkpoints(partition, name, schema_version, state, watermark, owner_epoch, updated_at_ms)"

// define makes a checkpoint one of ours.
func define(s *session, name string) {
	s.t.Helper()
	s.run(`INSERT INTO sync_backfill_definitions(name, version, hash, definition, settings) VALUES ($1, 7, 'h', '{}', '{}')`, name)
}

func progress(s *session, checkpoint, kind, partition string, epoch int64) {
	s.t.Helper()
	s.run(`INSERT INTO sync_backfill_progress(checkpoint, kind, partition, owner_epoch, updated_at_ms) VALUES ($1, $2, $3, $4, 0)`,
		checkpoint, kind, partition, epoch)
}

func TestChangesOfACheckpointThatTakeSomethingBackAreSkipped(t *testing.T) {
	const row = "('p', 'c', 7, '%s', 100, 5, 0)"
	cases := []struct {
		name, state, update string
		defined, applies    bool
	}{
		{"epoch and watermark go on", "backfilling", "owner_epoch = 6, watermark = 101", false, true},
		{"nothing changes", "backfilling", "updated_at_ms = 1", false, true},
		{"a new claim may start lower", "backfilling", "owner_epoch = 6, watermark = 0", false, true},
		{"declared becomes backfilling", "declared", "state = 'backfilling', owner_epoch = 6", false, true},
		{"lower epoch", "backfilling", "owner_epoch = 4", false, false},
		{"lower epoch with higher watermark", "backfilling", "owner_epoch = 4, watermark = 200", false, false},
		{"lower watermark", "backfilling", "watermark = 99", false, false},
		{"NULL epoch", "backfilling", "owner_epoch = NULL", false, false},
		{"lower version", "backfilling", "schema_version = 6", false, false},
		{"higher version without a definition", "backfilling", "schema_version = 8", false, true},
		{"higher version with a definition", "backfilling", "schema_version = 8", true, false},
		{"the claim of another program with a definition", "declared", "owner_epoch = owner_epoch + 1, state = 'backfilling', schema_version = 7", true, true},
		{"state goes back", "backfilling", "state = 'declared'", false, false},
		{"another name", "backfilling", "name = 'd'", false, false},
		{"another partition", "backfilling", "partition = 'q'", false, false},
		{"activated without a definition", "backfilling", "state = 'activated'", false, true},
		{"activated with a definition and no proof", "backfilling", "state = 'activated', watermark = 200", true, false},
		{"declared to activated with a definition and no proof", "declared", "state = 'activated'", true, false},
		{"activated stays as it is: watermark", "activated", "watermark = 200", false, false},
		{"activated stays as it is: epoch", "activated", "owner_epoch = 9", false, false},
		{"activated stays as it is: state", "activated", "state = 'backfilling'", false, false},
	}
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			program.run("BEGIN")
			defer program.run("ROLLBACK")
			program.run("INSERT INTO " + checkpointInto + " VALUES " + fmt.Sprintf(row, c.state))
			if c.defined {
				define(program, "c")
			}
			tag, err := program.conn.Exec(testContext(t), "UPDATE sync_backfill_checkpoints SET "+c.update)
			if err != nil {
				t.Fatal(err)
			}
			if applied := tag.RowsAffected() == 1; applied != c.applies {
				t.Errorf("applied is %v, want %v", applied, c.applies)
			}
		})
	}
}

// TestADefinitionIsKept: without its definition a checkpoint would be another program's, to activate without proof.
func TestADefinitionIsKept(t *testing.T) {
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	define(program, "c")
	program.run("INSERT INTO " + checkpointInto + " VALUES ('p', 'c', 7, 'backfilling', 100, 5, 0)")
	for _, role := range []string{"origin", "replica"} {
		program.run("SET session_replication_role = " + role)
		for _, sql := range []string{
			"DELETE FROM sync_backfill_definitions",
			"TRUNCATE sync_backfill_definitions",
			"UPDATE sync_backfill_definitions SET name = 'd'",
			"UPDATE sync_backfill_definitions SET version = 8",
			"UPDATE sync_backfill_definitions SET hash = 'other'",
			"UPDATE sync_backfill_definitions SET definition = '[]'",
			"INSERT INTO sync_backfill_definitions VALUES ('c', 7, 'h', '[]', '{}') ON CONFLICT (name) DO UPDATE SET definition = EXCLUDED.definition",
		} {
			t.Run(role+": "+sql, func(t *testing.T) { expectGuarded(t, program.try(sql), storage.CodeCheckpointGuard) })
		}
	}
	program.run(`UPDATE sync_backfill_definitions SET settings = '{"paused":true}'`)
	progress(program, "c", "abandoned", "*", 0)
	expectGuarded(t, program.try("DELETE FROM sync_backfill_definitions"), storage.CodeCheckpointGuard) // its row still needs it
	program.run("DELETE FROM sync_backfill_checkpoints")
	program.run("DELETE FROM sync_backfill_definitions")
}

func TestOnlyAProofOfTheSameClaimActivates(t *testing.T) {
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	proofs := []struct {
		name, checkpoint, kind, partition string
		epoch                             int64
		activates                         bool
	}{
		{"the proof", "c", "proof", "p", 5, true},
		{"of another checkpoint", "d", "proof", "p", 5, false},
		{"of another partition", "c", "proof", "q", 5, false},
		{"of an older claim", "c", "proof", "p", 4, false},
		{"no proof but a claim", "c", "claim", "p", 5, false},
	}
	for _, proof := range proofs {
		t.Run(proof.name, func(t *testing.T) {
			program.run("BEGIN")
			defer program.run("ROLLBACK")
			define(program, "c")
			program.run("INSERT INTO " + checkpointInto + " VALUES ('p', 'c', 7, 'backfilling', 100, 5, 0)")
			progress(program, proof.checkpoint, proof.kind, proof.partition, proof.epoch)
			tag, err := program.conn.Exec(testContext(t), "UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE owner_epoch = 5 AND state <> 'activated'")
			if err != nil {
				t.Fatal(err)
			}
			if activated := tag.RowsAffected() == 1; activated != proof.activates {
				t.Errorf("activated is %v, want %v", activated, proof.activates)
			}
		})
	}
}

// TestAProofOfAnotherTransactionDoesNotActivate: it is never committed, so no other transaction can see it.
func TestAProofOfAnotherTransactionDoesNotActivate(t *testing.T) {
	_, dsn := newCatalog(t)
	ours, theirs := connect(t, dsn), connect(t, dsn)
	define(ours, "c")
	ours.run("INSERT INTO " + checkpointInto + " VALUES ('p', 'c', 7, 'backfilling', 100, 5, 0), ('q', 'c', 7, 'backfilling', 100, 5, 0)")
	ours.run("BEGIN")
	progress(ours, "c", "proof", "q", 5)
	tag, err := theirs.conn.Exec(testContext(t), "UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE partition = 'q'")
	if err != nil {
		t.Fatal(err)
	}
	if tag.RowsAffected() != 0 {
		t.Error("another transaction's proof activated the row")
	}
	ours.run("ROLLBACK")
}

// TestATransactionFromBeforeTheDefinitionDoesNotActivateWithoutProof: it does not see that the checkpoint became ours.
func TestATransactionFromBeforeTheDefinitionDoesNotActivateWithoutProof(t *testing.T) {
	for _, iso := range isolationLevels {
		t.Run(string(iso), func(t *testing.T) {
			_, dsn := newCatalog(t)
			ours, theirs := connect(t, dsn), connect(t, dsn)
			ours.run("INSERT INTO " + checkpointInto + " VALUES ('p', 'c', 7, 'backfilling', 100, 5, 0)")
			theirs.run("BEGIN ISOLATION LEVEL " + string(iso))
			theirs.run("SELECT count(*) FROM sync_backfill_definitions")
			define(ours, "c")
			err := theirs.try("UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE partition = 'p' AND owner_epoch = 5")
			if state := stateOf(err); err != nil && state != "40001" {
				t.Errorf("got %v", err)
			}
			if err == nil {
				theirs.run("COMMIT")
			}
			if state := value[string](ours, "SELECT state FROM sync_backfill_checkpoints"); state != "backfilling" {
				t.Errorf("the row is %s", state)
			}
		})
	}
}

func TestCheckpointsAreInsertedAsTheyMay(t *testing.T) {
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	define(program, "ours")
	expectGuarded(t, program.try("INSERT INTO "+checkpointInto+" VALUES ('p', 'ours', 7, 'activated', 0, 0, 0)"), storage.CodeCheckpointGuard)
	program.run("INSERT INTO " + checkpointInto + " VALUES ('p', 'theirs', 7, 'activated', 0, 0, 0)")
	program.run("INSERT INTO " + checkpointInto + " VALUES ('p', 'ours', 7, 'declared', 0, 0, 0)")

	progress(program, "again", "floor", "p", 12)
	progress(program, "again", "floor", "*", 4)
	program.run("INSERT INTO " + checkpointInto + " VALUES ('p', 'again', 7, 'declared', 0, 0, 0), ('q', 'again', 7, 'declared', 0, 0, 0), ('r', 'again', 7, 'declared', 0, 99, 0)")
	for partition, want := range map[string]int64{"p": 12, "q": 4, "r": 99} {
		if epoch := value[int64](program, "SELECT owner_epoch FROM sync_backfill_checkpoints WHERE name = 'again' AND partition = $1", partition); epoch != want {
			t.Errorf("the row of partition %s starts at epoch %d, want %d", partition, epoch, want)
		}
	}
}

func TestCheckpointsAreNotDeleted(t *testing.T) {
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	program.run("INSERT INTO " + checkpointInto + " VALUES ('p', 'kept', 7, 'declared', 0, 0, 0), ('p', 'left', 7, 'declared', 0, 0, 0)")
	progress(program, "left", "abandoned", "*", 0)
	expectGuarded(t, program.try("DELETE FROM sync_backfill_checkpoints"), storage.CodeCheckpointGuard)
	expectGuarded(t, program.try("DELETE FROM sync_backfill_checkpoints WHERE name = 'kept'"), storage.CodeCheckpointGuard)
	expectGuarded(t, program.try("TRUNCATE sync_backfill_checkpoints"), storage.CodeCheckpointGuard)
	expectGuarded(t, program.try("SET LOCAL session_replication_role = replica; DELETE FROM sync_backfill_checkpoints WHERE name = 'kept'"), storage.CodeCheckpointGuard)
	program.run("DELETE FROM sync_backfill_checkpoints WHERE name = 'left'")
	if names := value[string](program, "SELECT string_agg(name, ',') FROM sync_backfill_checkpoints"); names != "kept" {
		t.Errorf("left are %s, want kept", names)
	}
}

// TestAFrozenWorkerIsRefusedAfterItsCheckpointCameBack: epoch 1, abandon, declare again, claim: not epoch 1 again.
func TestAFrozenWorkerIsRefusedAfterItsCheckpointCameBack(t *testing.T) {
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	const declare = "INSERT INTO " + checkpointInto + " VALUES ('p', 'c', 7, 'declared', 0, 0, 0)"
	const claim = "UPDATE sync_backfill_checkpoints SET owner_epoch = owner_epoch + 1, state = 'backfilling' WHERE name = 'c' RETURNING owner_epoch"
	program.run(declare)
	frozen := value[int64](program, claim)
	progress(program, "c", "floor", "p", frozen)
	progress(program, "c", "abandoned", "*", 0)
	program.run("DELETE FROM sync_backfill_checkpoints WHERE name = 'c'")
	program.run(declare)
	if now := value[int64](program, claim); now <= frozen {
		t.Errorf("the new claim has epoch %d, the frozen worker %d", now, frozen)
	}
	tag, err := program.conn.Exec(testContext(t), "UPDATE sync_backfill_checkpoints SET watermark = 500 WHERE name = 'c' AND owner_epoch = $1", frozen)
	if err != nil || tag.RowsAffected() != 0 {
		t.Errorf("the frozen worker moved %d rows, error %v", tag.RowsAffected(), err)
	}
}

func TestCapturedLogRowsGoOnlyBelowTheHorizon(t *testing.T) {
	_, dsn := newCatalog(t)
	program := connect(t, dsn)
	program.run(`
		INSERT INTO sync_partitions(partition, horizon_seq, max_commit_seq) VALUES ('capture:t/', 10, 0), ('plain', 0, 30);
		INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms)
		SELECT p, n, 'c', n, 'a', 0 FROM unnest(ARRAY['capture:t/', 'capture:u/', 'plain']) AS p, generate_series(1, 20) AS n;
		INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
		SELECT partition, commit_seq, 0, 't', '1', 1, '{}' FROM sync_commits`)
	for _, table := range []string{"sync_commits", "sync_changes"} {
		expectGuarded(t, program.try("DELETE FROM "+table+" WHERE partition = 'capture:t/' AND commit_seq <= 11"), storage.CodePartitionGuard)
		expectGuarded(t, program.try("DELETE FROM "+table+" WHERE partition = 'capture:u/'"), storage.CodePartitionGuard)
		program.run("DELETE FROM " + table + " WHERE partition = 'capture:t/' AND commit_seq <= 10")
		program.run("DELETE FROM " + table + " WHERE partition = 'plain'")
	}
	program.run("BEGIN")
	program.run("UPDATE sync_partitions SET horizon_seq = 15 WHERE partition = 'capture:t/'")
	program.run("DELETE FROM sync_commits WHERE partition = 'capture:t/' AND commit_seq <= 15")
	program.run("COMMIT")
}

func TestGuardsSeeSettingsOfNoSession(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, map[string]int64{"p": 7})
	program := connect(t, dsn)
	program.run("INSERT INTO sync_schema_meta(id, schema_version) VALUES (1, 7)")
	for _, setting := range []string{"SET search_path = pg_catalog", "SET session_replication_role = replica", "SET plpgsql.variable_conflict = error", "SET row_security = on"} {
		program.run(setting)
		expectGuarded(t, program.try("UPDATE public.sync_schema_meta SET schema_version = 6"), storage.CodeMarkerGuard)
		expectGuarded(t, program.try("UPDATE public.sync_writer_fence SET required_writer_version = 6 WHERE partition = 'p'"), storage.CodeFenceGuard)
	}
}

// TestOurOwnTranslationOfRefusals: the codes come back through a Store.
func TestOurOwnTranslationOfRefusals(t *testing.T) {
	store, _ := newCatalog(t)
	err := store.inTx(testContext(t), "take the marker away", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, store.sql("TRUNCATE {schema}.sync_schema_meta"))
		return err
	})
	expectCode(t, err, storage.CodeMarkerGuard)
	if want := "take the marker away: table public.sync_schema_meta: the marker is not deleted [sync.storage.marker_guard]"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}
