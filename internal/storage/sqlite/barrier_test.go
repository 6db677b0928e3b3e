package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestABarrierMovesEverythingTogether(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	result := apply(t, store, version6())
	same(t, "outcome", result.Outcome, storage.Migrate)
	same(t, "version", result.Version, 6)
	result = apply(t, store, withSQL(version7(), "CREATE TABLE extra(i INTEGER)"))
	same(t, "outcome", result.Outcome, storage.Migrate)
	same(t, "stored before", result.Stored, 6)
	same(t, "declared", fmt.Sprint(result.Declared), "[title-norm]")
	same(t, "connection closed after the user's SQL", result.CloseConnection, true)
	p := openProgram(t, path)
	same(t, "marker", p.number("SELECT schema_version FROM sync_schema_meta"), 7)
	same(t, "fence", p.number("SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'"), 7)
	same(t, "checkpoint", fmt.Sprint(p.rows("SELECT partition, name, schema_version, state FROM sync_backfill_checkpoints")), "[[* title-norm 7 declared]]")
	same(t, "column", p.number("SELECT count(*) FROM pragma_table_info('todos') WHERE name = 'title_norm'"), 1)
	history, err := readHistory(testContext(t), store.db, mustObjects(t, store))
	if err != nil || len(history) != 2 {
		t.Fatalf("the history has %d rows (%v), want 2", len(history), err)
	}
	last := history[1]
	same(t, "content hash", last.ContentHash, withSQL(version7(), "CREATE TABLE extra(i INTEGER)").ContentHash(7))
	same(t, "fence in the history", last.MinWriterVersion, 7)
	same(t, "oldest reader", last.MinReaderVersion, 7)
	same(t, "attempts", last.Attempts, 1)
	if last.LockHold <= 0 && result.LockHold <= 0 {
		t.Error("the history does not say how long the lock was held")
	}
}

func TestAgreementAndRefusalNeedNoLock(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	holder, err := openStore(t, path).begin(testContext(t), "hold", true)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.rollback(context.Background())
	target := version6()
	target.Lock.TimeoutMilliseconds = 1
	same(t, "outcome", apply(t, store, target).Outcome, storage.Agreed)
	next := version7()
	next.Lock.TimeoutMilliseconds = 1
	refuse(t, store, next, storage.CodeLockTimeout)
	older := version6()
	older.Version = 5
	refuse(t, store, older, storage.CodeVersionRegression)
}

// failures are targets that fail somewhere between the lock and COMMIT.
func failures() map[string]struct {
	target storage.Target
	code   storage.Code
	text   string
} {
	unique := version7()
	unique.Tables[0].Indexes = []storage.Index{{Name: "todos_title", Columns: []string{"title"}, Unique: true}}
	wrongLayout := version7()
	wrongLayout.Tables[0].Columns[2].Type = storage.TypeBytes
	badBackfill := version7()
	badBackfill.Checkpoints[0].Backfill.Update.Set = map[string]string{"title_norm": "no_such_function(title)"}
	return map[string]struct {
		target storage.Target
		code   storage.Code
		text   string
	}{
		"a second statement that fails": {
			withSQL(version7(), "CREATE TABLE once(i INTEGER); INSERT INTO nowhere VALUES (1)"), storage.CodeInvalidSQL, "no such table: nowhere",
		},
		"a unique index over rows that are alike": {unique, storage.CodeInvalidSpec, "UNIQUE constraint failed"},
		"SQL that drops a declared column": {
			withSQL(version7(), "ALTER TABLE todos DROP COLUMN title_norm"), storage.CodeLayoutMismatch, "title_norm",
		},
		"SQL that drops the fence": {
			withSQL(version7(), "DROP TRIGGER syncbarrier_fence_insert"), storage.CodeFenceBroken, "syncbarrier_fence_insert",
		},
		"SQL that swallows the marker": {
			withSQL(version7(), "CREATE TRIGGER swallow BEFORE UPDATE ON sync_schema_meta BEGIN SELECT RAISE(IGNORE); END"),
			storage.CodeFenceBroken, "marker did not move",
		},
		"SQL that lowers the fence":        {withSQL(version7(), "DELETE FROM sync_writer_fence"), storage.CodeInvalidSQL, fenceGuard},
		"SQL that writes an old version":   {withSQL(version7(), "UPDATE sync_writer_fence SET required_writer_version = 5; "+insertOldCommit), storage.CodeInvalidSQL, string(storage.CodeWriterFenceRejected)},
		"a backfill that does not compile": {badBackfill, storage.CodeInvalidSQL, "no_such_function"},
		"a layout that differs":            {wrongLayout, storage.CodeLayoutMismatch, "title"},
	}
}

const insertOldCommit = `INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
	VALUES ('p', 1, 'c', '1', 'a', 0, 1)`

func TestWhateverFailsNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, tt := range failures() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			apply(t, store, version6())
			p := openProgram(t, path)
			p.exec("INSERT INTO todos(id, tenant, title) VALUES (1, 'a', 'same'), (2, 'a', 'same')")
			before := p.dump()
			refuse(t, store, tt.target, tt.code, tt.text)
			same(t, "the file is as it was", p.dump(), before)
			same(t, "outcome of the right version", apply(t, store, version7()).Outcome, storage.Migrate)
		})
	}
}

func TestAFirstBarrierThatFailsLeavesAnEmptyFile(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	refuse(t, store, withSQL(version6(), "SELECT no_such_column FROM todos"), storage.CodeInvalidSQL)
	same(t, "objects", openProgram(t, path).number("SELECT count(*) FROM sqlite_master"), 0)
	apply(t, store, version6())
}

func TestALongStatementEndsWithItsTimeoutAndLeavesNothing(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	before := p.dump()
	target := withSQL(version7(), "CREATE TABLE once(i INTEGER);"+endlessSQL)
	target.Lock.StatementTimeoutSeconds = 1
	started := time.Now()
	result, err := store.EnsureSchema(testContext(t), target, storage.Attempt{Number: 1})
	wantCode(t, err, storage.CodeCancelled)
	wantText(t, err, "SQL of version 7", "raise lock.statementTimeoutSeconds")
	if ended := time.Since(started); ended > 20*time.Second || result.LockHold < time.Second {
		t.Errorf("it ended after %s, and says that it held the lock for %s", ended, result.LockHold)
	}
	same(t, "the file is as it was", p.dump(), before)
}

func TestACancelledBarrierLeavesNothingAndLetsTheNextOneIn(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	before := p.dump()
	ctx, cancel := context.WithTimeout(testContext(t), 200*time.Millisecond)
	defer cancel()
	_, err := store.EnsureSchema(ctx, withSQL(version7(), "CREATE TABLE once(i INTEGER);"+endlessSQL), storage.Attempt{Number: 1})
	wantCode(t, err, storage.CodeCancelled)
	same(t, "the file is as it was", p.dump(), before)
	same(t, "outcome", apply(t, openStore(t, path), version7()).Outcome, storage.Migrate)
}

// slowTarget writes more than the page cache holds and then works for hours.
func slowTarget() storage.Target {
	return withSQL(version7(), `
		CREATE TABLE bulk(b BLOB);
		WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 200)
		INSERT INTO bulk SELECT randomblob(50000) FROM c;`+endlessSQL)
}

func init() {
	childTasks["apply-slow"] = func(path string) error { return childEnsure(path, slowTarget()) }
	childTasks["apply-once"] = func(path string) error { return childEnsure(path, onceTarget()) }
}

// childEnsure makes attempts until one is not merely late, and prints what it did.
func childEnsure(path string, target storage.Target) error {
	store, err := Open(contextOfChild(), Config{Path: path})
	if err != nil {
		return err
	}
	defer store.Close()
	result, err := ensurePatiently(contextOfChild(), store, target)
	if err == nil {
		fmt.Println(result.Outcome)
	}
	return err
}

func ensurePatiently(ctx context.Context, store *Store, target storage.Target) (storage.BarrierResult, error) {
	for attempt := 1; ; attempt++ {
		result, err := store.EnsureSchema(ctx, target, storage.Attempt{Number: attempt})
		if storage.CodeOf(err) != storage.CodeLockTimeout || attempt == 100 {
			return result, err
		}
	}
}

func TestAKilledBarrierLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, journal := range []string{"WAL", "DELETE"} {
		t.Run(journal, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			p := openProgram(t, path)
			p.exec("PRAGMA journal_mode = " + journal)
			store := openStore(t, path)
			p.exec("CREATE TABLE before_us(i INTEGER)")
			apply(t, store, version6())
			before := p.dump()

			command := child(t, "apply-slow", path)
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			// The barrier is in the middle once more has been written than a cache holds: to the log, or to the file itself.
			written := func() int64 {
				file := path
				if journal == "WAL" {
					file += "-wal"
				}
				info, err := os.Stat(file)
				if err != nil {
					return 0
				}
				return info.Size()
			}
			waitUntil(t, "the barrier has written much", func() bool { return written() > 4_000_000 })
			if err := command.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = command.Wait()

			same(t, "the file is as it was", p.dump(), before)
			wantIntact(t, store)
			if err := p.commit("p", 1, 6); err != nil {
				t.Errorf("version 6 is still right: %v", err)
			}
			same(t, "integrity", p.text("PRAGMA integrity_check"), "ok")
			same(t, "outcome", apply(t, store, version7()).Outcome, storage.Migrate)
		})
	}
}

// onceTarget fails if its SQL is run twice.
func onceTarget() storage.Target { return withSQL(version7(), "CREATE TABLE once(i INTEGER)") }

func TestOfManyMigratorsOneMigrates(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	apply(t, openStore(t, path), version6())
	var lock sync.Mutex
	outcomes := map[string]int{}
	count := func(outcome string) {
		lock.Lock()
		defer lock.Unlock()
		outcomes[outcome]++
	}
	var group sync.WaitGroup
	for range 4 {
		store := openStore(t, path)
		group.Go(func() {
			result, err := ensurePatiently(testContext(t), store, onceTarget())
			if err != nil {
				t.Errorf("migrate: %v", err)
			}
			count(string(result.Outcome))
		})
		command := child(t, "apply-once", path)
		group.Go(func() {
			output, err := command.CombinedOutput()
			if err != nil {
				t.Errorf("migrate in a process of its own: %v: %s", err, output)
			}
			outcome, _, _ := strings.Cut(string(output), "\n")
			count(outcome)
		})
	}
	group.Wait()
	same(t, "outcomes", fmt.Sprint(outcomes), fmt.Sprint(map[string]int{"agreed": 7, "migrate": 1}))
	p := openProgram(t, path)
	same(t, "history rows", p.number("SELECT count(*) FROM sync_barrier_history"), 2)
	same(t, "checkpoints", p.number("SELECT count(*) FROM sync_backfill_checkpoints"), 1)
}

func TestMigratorsOfFollowingVersionsRunEachOnceAndInOrder(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	all := []storage.Migration{{Version: 1, SQL: "CREATE TABLE ran(version INTEGER)"}}
	for version := int64(2); version <= 5; version++ {
		all = append(all, storage.Migration{Version: version, SQL: fmt.Sprintf("INSERT INTO ran VALUES (%d)", version)})
	}
	var group sync.WaitGroup
	for _, version := range []int64{1, 2, 2, 3, 4, 5, 5} {
		store := openStore(t, path)
		group.Go(func() {
			target := atVersion(version)
			target.Migrations = all
			_, err := ensurePatiently(testContext(t), store, target)
			if err != nil && (storage.CodeOf(err) != storage.CodeVersionRegression || version == 5) {
				t.Errorf("version %d: %v", version, err)
			}
		})
	}
	group.Wait()
	p := openProgram(t, path)
	same(t, "what ran", p.text("SELECT group_concat(version, ' ') FROM (SELECT version FROM ran ORDER BY rowid)"), "2 3 4 5")
	same(t, "marker", p.number("SELECT schema_version FROM sync_schema_meta"), 5)
}

func TestManyFirstBarriersMeetOnANewFile(t *testing.T) {
	t.Parallel()
	for round := range 5 {
		path := newFile(t)
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				store, err := Open(testContext(t), Config{Path: path, Create: true})
				if err != nil {
					t.Errorf("round %d: open: %v", round, err)
					return
				}
				defer store.Close()
				if _, err := ensurePatiently(testContext(t), store, withSQL(version6(), "CREATE TABLE once(i INTEGER)")); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		group.Wait()
		p := openProgram(t, path)
		same(t, "journal mode", p.text("PRAGMA journal_mode"), "wal")
		same(t, "history", p.number("SELECT count(*) FROM sync_barrier_history"), 1)
	}
}

// TestNoReaderEverSeesHalfABarrier reads in snapshots of its own while barriers come and go: version, column, fence, checkpoint and
// triggers always belong together.
func TestNoReaderEverSeesHalfABarrier(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	p := openProgram(t, path)
	p.exec("PRAGMA journal_mode = WAL")
	ctx, stop := context.WithCancel(testContext(t))
	var group sync.WaitGroup
	seen := map[string]int{}
	group.Go(func() {
		for ctx.Err() == nil {
			state, err := readHalves(ctx, p)
			switch {
			case err != nil && !errors.Is(err, context.Canceled):
				t.Errorf("read: %v", err)
			case err == nil:
				seen[state]++
			}
		}
	})
	whole := len(triggers)
	states := []string{
		"0 triggers, version 0, fence 0, column 0, checkpoints 0",
		fmt.Sprintf("%d triggers, version 6, fence 0, column 0, checkpoints 0", whole),
		fmt.Sprintf("%d triggers, version 7, fence 7, column 1, checkpoints 1", whole),
	}
	apply(t, store, version6())
	apply(t, store, version7())
	for range 20 {
		// An upgrade replaces every trigger whose text differs.
		p.exec("UPDATE sync_barrier_owner SET revision = 'older'")
		p.exec("BEGIN; DROP TRIGGER syncbarrier_fence_insert; CREATE TRIGGER syncbarrier_fence_insert BEFORE INSERT ON sync_commits BEGIN SELECT 1; END; COMMIT")
		apply(t, store, version7())
	}
	stop()
	group.Wait()
	for state := range seen {
		if !slices.Contains(states, state) {
			t.Errorf("a reader saw: %s", state)
		}
	}
	if seen[states[2]] == 0 {
		t.Errorf("the reader saw %v, so it proves nothing", seen)
	}
}

func readHalves(ctx context.Context, p program) (string, error) {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return "", err
	}
	defer release(conn, false)
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return "", err
	}
	defer func() { _, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") }()
	var numbers [5]int64
	for i, query := range []string{
		"SELECT count(*) FROM sqlite_master WHERE type = 'trigger'",
		"SELECT schema_version FROM sync_schema_meta",
		"SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'",
		"SELECT count(*) FROM pragma_table_info('todos') WHERE name = 'title_norm'",
		"SELECT count(*) FROM sync_backfill_checkpoints",
	} {
		err := conn.QueryRowContext(ctx, query).Scan(&numbers[i])
		if err != nil && !strings.Contains(err.Error(), "no such table") && !noRows(err) {
			return "", err
		}
	}
	return fmt.Sprintf("%d triggers, version %d, fence %d, column %d, checkpoints %d", numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]), nil
}

// TestAProgramThatReadTheMarkerBeforeItWaitedDoesNotMoveItBack is what a program of the sync protocol does that starts with an older version
// while a barrier is under way: it reads the marker, waits for the lock, and writes its own version and layouts.
func TestAProgramThatReadTheMarkerBeforeItWaitedDoesNotMoveItBack(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	same(t, "what it read", p.number("SELECT schema_version FROM sync_schema_meta"), 6)
	next := version7()
	next.Version, next.Checkpoints[0].Version = 8, 8
	apply(t, store, next)
	p.refused(markerGuard, `INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 7, '{}')
		ON CONFLICT(id) DO UPDATE SET schema_version = excluded.schema_version, layouts = excluded.layouts`)
	same(t, "marker", p.number("SELECT schema_version FROM sync_schema_meta"), 8)
	same(t, "outcome", apply(t, store, next).Outcome, storage.Agreed)
}

func TestABarrierGetsInBesideAHoggingProgram(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	ctx, stop := context.WithCancel(testContext(t))
	var group sync.WaitGroup
	held := make(chan struct{})
	group.Go(func() { hog(ctx, t, p, held, 400*time.Millisecond, 20*time.Millisecond) })
	<-held
	result, err := ensurePatiently(testContext(t), store, version7())
	stop()
	group.Wait()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "outcome", result.Outcome, storage.Migrate)
}

func TestTwoFilesInOneDirectoryAreTwoDatabases(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	first, second := openStore(t, filepath.Join(directory, "a.db")), openStore(t, filepath.Join(directory, "b.db"))
	apply(t, first, version7())
	apply(t, second, version6())
	one, err := first.Identity(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	other, err := second.Identity(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if one.System == other.System || one.System == "" || !strings.HasPrefix(one.Server, "SQLite 3.") {
		t.Errorf("identities %v and %v", one, other)
	}
}
