package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestAPrivateServerKeepsItsDataAndAddressOverStopAndRestart(t *testing.T) {
	server := PostgresServer(t, ServerOptions{Settings: map[string]string{"work_mem": "7MB"}})
	dsn := server.DSN("postgres")
	before := connect(t, dsn)
	run(t, before, "CREATE TABLE visits (id int)", "INSERT INTO visits VALUES (1)")
	if got := value[string](t, before, "SHOW work_mem"); got != "7MB" {
		t.Errorf("work_mem is %s, want 7MB", got)
	}

	server.Restart()
	if got := value[int](t, connect(t, dsn), "SELECT count(*) FROM visits"); got != 1 {
		t.Errorf("%d rows after the restart, want 1", got)
	}

	server.Stop()
	if conn, err := pgx.Connect(t.Context(), dsn); err == nil {
		conn.Close(t.Context())
		t.Error("a stopped server still answers")
	}
	server.Start()
	if got := value[int](t, connect(t, dsn), "SELECT count(*) FROM visits"); got != 1 {
		t.Errorf("%d rows after stop and start, want 1", got)
	}
}

func TestAKilledServerBreaksConnectionsWithoutAWordAndRecovers(t *testing.T) {
	server := PostgresServer(t, ServerOptions{Durable: true})
	dsn := server.DSN("postgres")
	conn := connect(t, dsn)
	run(t, conn, "CREATE TABLE visits (id int)", "INSERT INTO visits VALUES (1)")
	run(t, conn, "BEGIN", "INSERT INTO visits VALUES (2)")

	server.Kill()
	_, err := conn.Exec(t.Context(), "COMMIT")
	var said *pgconn.PgError
	if err == nil || errors.As(err, &said) {
		t.Errorf("commit on a killed server: %v, want a broken connection", err)
	}

	server.Start()
	if got := value[int](t, connect(t, dsn), "SELECT count(*) FROM visits"); got != 1 {
		t.Errorf("%d rows after crash recovery, want the committed one", got)
	}
}

// awaitValue asks until a query returns what is wanted.
func awaitValue[T comparable](t *testing.T, conn *pgx.Conn, query string, want T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		var got T
		err := conn.QueryRow(ctx, query).Scan(&got)
		if err == nil && got == want {
			return
		}
		if paused := pause(ctx); paused != nil {
			t.Fatalf("%s: %v (last error %v), want %v", query, got, err, want)
		}
	}
}

func TestAStandbyFollowsItsPrimaryOnEveryKindOfServer(t *testing.T) {
	for _, major := range []int{0, oldestMajor, newestMajor} {
		t.Run(fmt.Sprintf("major %d", major), func(t *testing.T) {
			primary := PostgresServer(t, ServerOptions{Major: major})
			if major != 0 {
				got := value[int](t, connect(t, primary.DSN("postgres")), "SELECT current_setting('server_version_num')::int / 10000")
				if got != major {
					t.Fatalf("the server has version %d, want %d", got, major)
				}
			}
			run(t, connect(t, primary.DSN("postgres")), "CREATE TABLE visits (id int)", "INSERT INTO visits VALUES (1)")
			standby := primary.Standby(t)
			conn := connect(t, standby.DSN("postgres"))

			if !value[bool](t, conn, "SELECT pg_is_in_recovery()") {
				t.Error("the standby is no standby")
			}
			awaitValue(t, conn, "SELECT count(*) FROM visits", 1)
			run(t, connect(t, primary.DSN("postgres")), "INSERT INTO visits VALUES (2)")
			awaitValue(t, conn, "SELECT count(*) FROM visits", 2)

			primary.Kill()
			standby.Promote()
			run(t, connect(t, standby.DSN("postgres")), "INSERT INTO visits VALUES (3)")
		})
	}
}

func TestADatabaseOnAPrivateServerIsEmptyAndItsOwn(t *testing.T) {
	server := PostgresServer(t, ServerOptions{})
	one, two := connect(t, server.Database(t)), connect(t, server.Database(t))
	if one.Config().Database == two.Config().Database {
		t.Fatalf("both databases are %s", one.Config().Database)
	}
	if got, want := one.Config().Port, connect(t, server.DSN("postgres")).Config().Port; got != want {
		t.Errorf("the database is on port %d, the server on %d", got, want)
	}
}

func TestAServerWhoseTestProcessIsGoneIsEnded(t *testing.T) {
	server := PostgresServer(t, ServerOptions{})
	conn := connect(t, server.DSN("postgres"))
	folder := server.cluster.folder

	// The kernel closes our end of the pipe when the process ends.
	if err := server.guard.dismiss(); err != nil {
		t.Fatalf("the guard failed: %v", err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the server still answers")
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's folder is still there: %v", err)
	}

	// So that the clean-up of the test finds the state it expects.
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	guard, err := startGuard(folder, filepath.Join(folder, "none"), "QUIT")
	if err != nil {
		t.Fatal(err)
	}
	server.guard = guard
}
