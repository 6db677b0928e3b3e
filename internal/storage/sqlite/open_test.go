package sqlite

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestWhatIsNoDatabaseFileIsRefused(t *testing.T) {
	directory := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(directory, "dangling")
	if err := os.Symlink(filepath.Join(directory, "nowhere"), link); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		path   string
		create bool
		code   storage.Code
		text   string
	}{
		"an empty path":                       {"", true, storage.CodeInvalidSpec, "empty"},
		"a database in memory":                {":memory:", true, storage.CodeInvalidSpec, "memory"},
		"a path with NUL":                     {"a\x00b", true, storage.CodeInvalidSpec, "NUL"},
		"a directory":                         {directory, true, storage.CodeInvalidSpec, "directory"},
		"a missing file":                      {filepath.Join(directory, "none.db"), false, storage.CodeInvalidSpec, "does not exist"},
		"a file in a missing directory":       {filepath.Join(directory, "none", "a.db"), true, storage.CodeInvalidSpec, "directory does not exist"},
		"a link to nowhere":                   {link, false, storage.CodeInvalidSpec, "does not exist"},
		"a device":                            {"/dev/null", true, storage.CodeInvalidSpec, "no regular file"},
		"a text file":                         {write("text", strings.Repeat("this is no database\n", 100)), false, storage.CodeInvalidSpec, "no SQLite database"},
		"a file that begins like a database":  {write("cut", "SQLite format 3\x00"+strings.Repeat("x", 2000)), false, storage.CodeInvalidSpec, "no SQLite database"},
		"a path that looks like a parameters": {filepath.Join(directory, "none.db?mode=memory"), false, storage.CodeInvalidSpec, "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := Open(testContext(t), Config{Path: tt.path, Create: tt.create})
			if err == nil {
				store.Close()
			}
			wantCode(t, err, tt.code)
			wantText(t, err, tt.text)
		})
	}
}

func TestAFileIsOpenedUnderWhateverName(t *testing.T) {
	for _, name := range []string{"plain.db", "a b.db", "50%41.db", "a?mode=ro.db", "a#b.db", "ä-ключ.db", "a&_pragma=user_version(9).db", "file:x.db", `quo"te'.db`} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			path := filepath.Join(directory, name)
			store := openStore(t, path)
			apply(t, store, version6())
			if !exists(t, path) {
				entries, err := os.ReadDir(directory)
				t.Fatalf("the file is not at %s but somewhere among %v (%v)", path, entries, err)
			}
			again := openWith(t, Config{Path: path})
			same(t, "outcome", apply(t, again, version6()).Outcome, storage.Agreed)
		})
	}
}

func TestARelativePathAndALinkMeanTheSameFile(t *testing.T) {
	directory := t.TempDir()
	t.Chdir(directory)
	store := openStore(t, "app.db")
	apply(t, store, version6())
	if err := os.Symlink(filepath.Join(directory, "app.db"), "link.db"); err != nil {
		t.Fatal(err)
	}
	linked := openWith(t, Config{Path: "link.db"})
	same(t, "outcome", apply(t, linked, version6()).Outcome, storage.Agreed)
	same(t, "file", linked.file, store.file)
}

// TestAFileThatIsNotThereAnyMoreIsNotWorkedOn: what goes on with it would be seen by nobody, and reported as done.
func TestAFileThatIsNotThereAnyMoreIsNotWorkedOn(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(directory string) error{
		"another file in its place": func(d string) error { return os.Rename(filepath.Join(d, "other.db"), filepath.Join(d, "app.db")) },
		"deleted":                   func(d string) error { return os.Remove(filepath.Join(d, "app.db")) },
		"the link leads elsewhere": func(d string) error {
			if err := os.Symlink(filepath.Join(d, "other.db"), filepath.Join(d, "next")); err != nil {
				return err
			}
			return os.Rename(filepath.Join(d, "next"), filepath.Join(d, "link.db"))
		},
		"a link in its path leads elsewhere": func(d string) error {
			if err := os.Remove(filepath.Join(d, "current")); err != nil {
				return err
			}
			return os.Symlink(t.TempDir(), filepath.Join(d, "current"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := t.TempDir()
			for _, file := range []string{"app.db", "other.db"} {
				apply(t, openStore(t, filepath.Join(directory, file)), version6())
			}
			for link, to := range map[string]string{"link.db": "app.db", "current": "."} {
				if err := os.Symlink(filepath.Join(directory, to), filepath.Join(directory, link)); err != nil {
					t.Fatal(err)
				}
			}
			path := map[string]string{"the link leads elsewhere": "link.db", "a link in its path leads elsewhere": "current/app.db"}[name]
			if path == "" {
				path = "app.db"
			}
			store := openStore(t, filepath.Join(directory, path))
			if err := change(directory); err != nil {
				t.Fatal(err)
			}
			refuse(t, store, version7(), storage.CodeConflict, path)
			_, err := store.ReadServeGate(testContext(t), 6)
			wantCode(t, err, storage.CodeConflict)
			same(t, "there is a file", exists(t, filepath.Join(directory, "app.db")), name != "deleted")
		})
	}
}

func TestEveryConnectionHasItsSettings(t *testing.T) {
	store := openWith(t, Config{Path: newFile(t), Create: true})
	wantSettings(t, store)
	apply(t, store, version6()) // a barrier has a connection with settings of its own, which must not come back to the pool
	apply(t, store, withSQL(version7(), "CREATE TABLE extra(i INTEGER)"))
	wantSettings(t, store)
}

func TestSettingsAreRightAgainAfterTheLockWasWaitedFor(t *testing.T) {
	store := openWith(t, Config{Path: newFile(t), Create: true, MaxConnections: 1})
	ctx := testContext(t)
	err := store.inTx(ctx, "test", true, func(ctx context.Context, tx *sql.Conn) error {
		var timeout int64
		if err := tx.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&timeout); err != nil {
			return err
		}
		same(t, "busy_timeout inside a writing transaction", timeout, 5000)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpeningChangesNothing(t *testing.T) {
	path := newFile(t)
	p := openProgram(t, path)
	p.exec("PRAGMA journal_mode = DELETE")
	p.exec("CREATE TABLE mine(i INTEGER)")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	store := openWith(t, Config{Path: path})
	if _, err := store.Plan(testContext(t), version6()); err != nil {
		t.Fatal(err)
	}
	store.Close()
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Error("the file is another one after Open and Plan")
	}
}

func TestTheJournalModeStaysWhatItsProgramsChose(t *testing.T) {
	for mode, make := range map[string]string{"delete": "PRAGMA journal_mode = DELETE", "wal": "PRAGMA journal_mode = WAL"} {
		t.Run(mode, func(t *testing.T) {
			path := newFile(t)
			p := openProgram(t, path)
			p.exec(make)
			p.exec("CREATE TABLE mine(i INTEGER)")
			apply(t, openWith(t, Config{Path: path}), version6())
			same(t, "journal mode", openProgram(t, path).text("PRAGMA journal_mode"), mode)
		})
	}
	t.Run("a new file gets a write-ahead log", func(t *testing.T) {
		path := newFile(t)
		apply(t, openStore(t, path), version6())
		same(t, "journal mode", openProgram(t, path).text("PRAGMA journal_mode"), "wal")
	})
}

func TestAClosedStoreSaysSoAndClosesTwice(t *testing.T) {
	store := openStore(t, newFile(t))
	store.Close()
	store.Close()
	_, err := store.Identity(testContext(t))
	wantText(t, err, "closed")
}

func TestAFileThatIsLockedForReadersTooIsNamed(t *testing.T) {
	path := newFile(t)
	p := openProgram(t, path)
	p.exec("CREATE TABLE mine(i INTEGER)")
	holder, err := p.db.Conn(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer release(holder, true)
	if _, err := holder.ExecContext(testContext(t), "BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	for _, timeout := range []time.Duration{100 * time.Millisecond, time.Minute} {
		_, err = Open(testContext(t), Config{Path: path, BusyTimeout: timeout})
		wantCode(t, err, storage.CodeLockTimeout)
	}
	if waited := time.Since(started); waited > 20*time.Second {
		t.Errorf("waited %s", waited)
	}
}
