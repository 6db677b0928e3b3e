package sqlite

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// protocolDDL is what a program of Syncular's server protocol runs at each start on SQLite.
const protocolDDL = `
CREATE TABLE IF NOT EXISTS sync_partitions(partition TEXT PRIMARY KEY, max_commit_seq INTEGER NOT NULL DEFAULT 0, horizon_seq INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS sync_partition_registry(partition TEXT PRIMARY KEY, log_epoch TEXT NOT NULL, epoch_required INTEGER NOT NULL DEFAULT 0,
  last_authenticated_at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sync_commits(partition TEXT NOT NULL, commit_seq INTEGER NOT NULL, client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL, created_at_ms INTEGER NOT NULL, writer_version INTEGER, PRIMARY KEY(partition, commit_seq));
CREATE INDEX IF NOT EXISTS sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE IF NOT EXISTS sync_changes(partition TEXT NOT NULL, commit_seq INTEGER NOT NULL, idx INTEGER NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL,
  op INTEGER NOT NULL, row_version INTEGER, scopes TEXT NOT NULL, payload BLOB, PRIMARY KEY(partition, commit_seq, idx));
CREATE INDEX IF NOT EXISTS sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE IF NOT EXISTS sync_row_scopes(partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, scope TEXT NOT NULL, PRIMARY KEY(partition, tbl, row_id, scope));
CREATE TABLE IF NOT EXISTS sync_blob_refs(partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, blob TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints(partition TEXT NOT NULL, name TEXT NOT NULL, schema_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('declared','backfilling','activated')), watermark INTEGER NOT NULL DEFAULT 0, owner_epoch INTEGER NOT NULL DEFAULT 0,
  observed_rows INTEGER NOT NULL DEFAULT 0, updated_at_ms INTEGER NOT NULL, PRIMARY KEY(partition, name));
CREATE TABLE IF NOT EXISTS sync_writer_fence(partition TEXT PRIMARY KEY, required_writer_version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sync_schema_meta(id INTEGER PRIMARY KEY CHECK (id = 1), schema_version INTEGER NOT NULL, layouts TEXT NOT NULL DEFAULT '{}');
CREATE TRIGGER IF NOT EXISTS sync_commits_writer_fence
BEFORE INSERT ON sync_commits
FOR EACH ROW
WHEN EXISTS (
  SELECT 1 FROM sync_writer_fence
   WHERE partition = NEW.partition
     AND (NEW.writer_version IS NULL OR NEW.writer_version < required_writer_version)
)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.writer_fence_rejected');
END`

// startProgram does what the program does at each start.
func startProgram(p program) {
	p.t.Helper()
	p.exec(protocolDDL)
}

// append does what the program does for each push: the writer's lock, the next number, the commit.
func (p program) append(partition string, version any) error {
	conn, err := p.db.Conn(testContext(p.t))
	if err != nil {
		return err
	}
	defer release(conn, false)
	ctx := testContext(p.t)
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, statement := range []struct {
		sql       string
		arguments []any
	}{
		{"INSERT INTO sync_partitions(partition) VALUES (?) ON CONFLICT(partition) DO NOTHING", []any{partition}},
		{"UPDATE sync_partitions SET max_commit_seq = max_commit_seq + 1 WHERE partition = ?", []any{partition}},
		{`INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
			SELECT partition, max_commit_seq, 'c', 'c', 'a', 0, ? FROM sync_partitions WHERE partition = ?`, []any{version, partition}},
	} {
		if _, err := conn.ExecContext(ctx, statement.sql, statement.arguments...); err != nil {
			_, _ = conn.ExecContext(ctx, "ROLLBACK")
			return err
		}
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

func isFenced(err error) bool { return err != nil && strings.Contains(err.Error(), fenced) }

func TestAProgramOfTheProtocolStartsBesideUs(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"ours", "theirs"} {
		t.Run("the file is "+first, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			p := openProgram(t, path)
			p.exec("PRAGMA journal_mode = WAL")
			if first == "theirs" {
				startProgram(p)
				p.exec(`INSERT INTO sync_schema_meta VALUES (1, 6, '{"notes":[{"name":"title","type":"string","nullable":false}]}')`)
				p.exec(renderCreate(notesTable()))
				p.exec(renderCreate(todosTable()))
				if err := p.append("p", nil); err != nil {
					t.Fatal(err)
				}
			}
			store := openStore(t, path)
			result := apply(t, store, version6())
			same(t, "outcome", result.Outcome, map[string]storage.DecisionOutcome{"ours": storage.Migrate, "theirs": storage.Adopt}[first])
			apply(t, store, version7())
			for range 2 {
				startProgram(p)
				if err := p.append("p", 6); !isFenced(err) {
					t.Errorf("version 6: %v", err)
				}
				if err := p.append("new", nil); !isFenced(err) {
					t.Errorf("no version in a new partition: %v", err)
				}
				if err := p.append("p", 7); err != nil {
					t.Errorf("version 7: %v", err)
				}
			}
			wantIntact(t, store)
		})
	}
}

func TestAProgramsOwnCheckpointsGoOnBesideUs(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	startProgram(p)
	store := openStore(t, path)
	apply(t, store, version6())
	// The statements of the protocol, as its program runs them.
	p.exec(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms)
		VALUES ('p', 'theirs', 6, 'declared', 0, 0, 0, 1) ON CONFLICT(partition, name) DO NOTHING`)
	p.exec(`INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES ('p', 6) ON CONFLICT(partition) DO UPDATE SET
		required_writer_version = max(sync_writer_fence.required_writer_version, excluded.required_writer_version)`)
	same(t, "epoch of the claim", p.number(`UPDATE sync_backfill_checkpoints
		SET owner_epoch = owner_epoch + 1, state = CASE WHEN state = 'declared' THEN 'backfilling' ELSE state END, schema_version = 6, updated_at_ms = 2
		WHERE partition = 'p' AND name = 'theirs' AND state <> 'activated' RETURNING owner_epoch`), 1)
	p.exec("UPDATE sync_backfill_checkpoints SET watermark = 3, observed_rows = 10, updated_at_ms = 3 WHERE partition = 'p' AND name = 'theirs' AND owner_epoch = 1")
	refuse(t, store, version7(), storage.CodeCheckpointIncomplete)
	p.exec(`UPDATE sync_backfill_checkpoints SET state = 'activated', watermark = 4, updated_at_ms = 4
		WHERE partition = 'p' AND name = 'theirs' AND owner_epoch = 1 AND state <> 'activated'`)
	same(t, "state", p.text("SELECT state || watermark FROM sync_backfill_checkpoints"), "activated4")
	apply(t, store, version7())
}

// TestAnOlderProgramsLogGetsTheColumn: version 0.22 of the protocol's server had no writer_version, no checkpoints and no fence.
func TestAnOlderProgramsLogGetsTheColumn(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	p := openProgram(t, path)
	older := strings.ReplaceAll(strings.Split(protocolDDL, "CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints")[0], "writer_version INTEGER, ", "")
	p.exec(older)
	insert := "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms) VALUES ('p', ?, 'c', 'c', 'a', 0)"
	p.exec(insert, 1)
	store := openStore(t, path)
	apply(t, store, version6())
	p.exec(insert, 2)
	apply(t, store, version7())
	p.refused(fenced, insert, 3)
	same(t, "commits", p.number("SELECT count(*) FROM sync_commits WHERE writer_version IS NULL"), 2)
}

func TestTablesThatOnlyHaveTheNamesOfTheProtocolOrOursAreRefused(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"other columns":       "CREATE TABLE sync_commits(id INTEGER PRIMARY KEY, author TEXT)",
		"a view":              "CREATE TABLE x(i INTEGER); CREATE VIEW sync_partitions AS SELECT i FROM x",
		"a checkpoint of old": "CREATE TABLE sync_backfill_checkpoints(name TEXT)",
		"an owner of its own": "CREATE TABLE sync_barrier_owner(id INTEGER PRIMARY KEY, person TEXT)",
		"a progress bar":      "CREATE TABLE sync_backfill_progress(percent REAL)",
		"a view of ours":      "CREATE VIEW sync_barrier_history AS SELECT 1 AS version",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			p := openProgram(t, path)
			p.exec(statement)
			before := p.dump()
			refuse(t, openStore(t, path), version6(), storage.CodeLayoutMismatch, "sync_")
			same(t, "the file is as it was", p.dump(), before)
		})
	}
}

func TestPartitionKeysThatAreOursAreRefusedInAFileThatIsNot(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"*", "capture:", "capture:todos/=a"} {
		for _, table := range []string{"sync_partitions(partition)", "sync_writer_fence(partition, required_writer_version)"} {
			t.Run(key+" in "+table, func(t *testing.T) {
				t.Parallel()
				path := newFile(t)
				p := openProgram(t, path)
				startProgram(p)
				values := "(?)"
				if strings.Contains(table, ",") {
					values = "(?, 3)"
				}
				p.exec("INSERT INTO "+table+" VALUES "+values, key)
				refuse(t, openStore(t, path), version6(), storage.CodeInvalidSpec, "reserved", key)
			})
		}
	}
	t.Run("keys that only look like them", func(t *testing.T) {
		t.Parallel()
		path := newFile(t)
		p := openProgram(t, path)
		startProgram(p)
		p.exec("INSERT INTO sync_partitions(partition) VALUES ('Capture:'), ('capture'), ('capture;'), ('**'), (' capture:')")
		apply(t, openStore(t, path), version6())
	})
}

// TestNoCommitBelowTheFenceLandsWhileItIsInstalledAndReplaced: writers old and new write without a pause, programs start over and over,
// while our catalog is installed, replaced as over another build's, repaired and raised. What was stored after a raise has its version;
// and no writer gets an error but the fence's.
func TestNoCommitBelowTheFenceLandsWhileItIsInstalledAndReplaced(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	admin := openProgram(t, path)
	admin.exec("PRAGMA journal_mode = WAL")
	startProgram(admin)
	store := openStore(t, path)
	ctx, stop := context.WithCancel(testContext(t))
	var required atomic.Int64
	var stored, refused atomic.Int64
	var programs sync.WaitGroup
	defer programs.Wait()
	defer stop()
	for i := range 3 {
		p := openProgram(t, path)
		programs.Go(func() {
			for n := int64(0); ctx.Err() == nil; n++ {
				before := required.Load()
				version := before + n%3 - 1 // below the fence, at it, above it
				err := p.append(fmt.Sprintf("%d-%d", i, n%5), version)
				switch {
				case err == nil && before >= 1 && version < before:
					t.Errorf("version %d was stored when %d was required", version, before)
				case err == nil:
					stored.Add(1)
				case isFenced(err):
					refused.Add(1)
				default:
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	starting := openProgram(t, path)
	programs.Go(func() {
		for ctx.Err() == nil {
			if _, err := starting.db.ExecContext(testContext(t), protocolDDL); err != nil {
				t.Errorf("start: %v", err)
				return
			}
		}
	})
	target := version6()
	for round := int64(6); round <= 26; round++ {
		target.Version, target.MinWriterVersion = round, &round
		if _, err := ensurePatiently(testContext(t), store, target); err != nil {
			t.Errorf("round %d: %v", round, err)
			break
		}
		required.Store(round)
		switch round % 3 {
		case 0: // the next barrier replaces everything
			admin.exec("UPDATE sync_barrier_owner SET revision = 'another build'")
		case 1:
			admin.exec("DROP TRIGGER syncbarrier_fence_update")
			if _, err := store.RepairFence(testContext(t)); err != nil {
				t.Errorf("repair: %v", err)
			}
		}
	}
	stop()
	programs.Wait()
	if stored.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d commits stored and %d refused prove nothing", stored.Load(), refused.Load())
	}
	t.Logf("%d commits stored, %d refused", stored.Load(), refused.Load())
	wantIntact(t, store)
}
