package testdb

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// connect opens a connection that is closed when the test ends.
func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		// Some tests break the connection on purpose.
		_ = conn.Close(ctx)
	})
	return conn
}

// value runs a query that returns one value.
func value[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) T {
	t.Helper()
	var result T
	if err := conn.QueryRow(t.Context(), query, args...).Scan(&result); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return result
}

// run runs statements.
func run(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func TestEachTestGetsAnEmptyDatabaseOfItsOwn(t *testing.T) {
	first := connect(t, Postgres(t))
	second := connect(t, Postgres(t))
	run(t, first, "CREATE TABLE visits (id int)")

	const tables = "SELECT count(*) FROM pg_class WHERE relname = 'visits'"
	if got := value[int](t, first, tables); got != 1 {
		t.Errorf("the first database has %d tables visits, want 1", got)
	}
	if got := value[int](t, second, tables); got != 0 {
		t.Errorf("the second database has %d tables visits, want 0", got)
	}
}

func TestTheUserOfADatabaseIsASuperuserOfASupportedServer(t *testing.T) {
	conn := connect(t, Postgres(t))
	if !value[bool](t, conn, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") {
		t.Error("the user is no superuser")
	}
	major := value[int](t, conn, "SELECT current_setting('server_version_num')::int / 10000")
	if major < oldestMajor || major > newestMajor {
		t.Errorf("the server has version %d, want %d to %d", major, oldestMajor, newestMajor)
	}
	asked, err := askedMajor()
	if err != nil {
		t.Fatal(err)
	}
	if asked != 0 && major != asked {
		t.Errorf("the server has version %d, but %s asks for %d", major, majorVariable, asked)
	}
}

func TestADatabaseGoesWithItsTestWhateverHoldsIt(t *testing.T) {
	outside := connect(t, Postgres(t))
	var database, role string
	t.Run("a test that leaves things behind", func(t *testing.T) {
		dsn := Postgres(t)
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		database = conn.Config().Database
		roleURL := Role(t, dsn, "clerk")
		role = RoleName(t, roleURL)
		run(t, conn, "GRANT CREATE ON SCHEMA public TO "+quote(role))
		owner := connect(t, roleURL)
		run(t, owner, "CREATE TABLE owned (id int)")
		run(t, conn, "BEGIN", "CREATE TABLE half_done (id int)", "PREPARE TRANSACTION '"+database+"'")
		run(t, conn, "BEGIN", "LOCK TABLE owned") // and the connection stays open
	})
	if got := value[int](t, outside, "SELECT count(*) FROM pg_database WHERE datname = $1", database); got != 0 {
		t.Errorf("the database %s is still there", database)
	}
	if got := value[int](t, outside, "SELECT count(*) FROM pg_roles WHERE rolname = $1", role); got != 0 {
		t.Errorf("the role %s is still there", role)
	}
	if got := value[int](t, outside, "SELECT count(*) FROM pg_prepared_xacts WHERE database = $1", database); got != 0 {
		t.Errorf("the prepared transaction of %s is still there", database)
	}
}

func TestARoleIsNoSuperuserAndHasTheAttributesAskedFor(t *testing.T) {
	dsn := Postgres(t)
	conn := connect(t, Role(t, dsn, "clerk", "CREATEROLE", "CONNECTION LIMIT 3"))

	if name := value[string](t, conn, "SELECT current_user"); !strings.HasPrefix(name, "clerk_") {
		t.Errorf("the role is %q, want clerk_ and something random", name)
	}
	const attributes = "SELECT rolsuper, rolcreaterole, rolconnlimit FROM pg_roles WHERE rolname = current_user"
	var super, createRole bool
	var limit int
	if err := conn.QueryRow(t.Context(), attributes).Scan(&super, &createRole, &limit); err != nil {
		t.Fatal(err)
	}
	if super || !createRole || limit != 3 {
		t.Errorf("superuser %t, createrole %t, limit %d; want false, true, 3", super, createRole, limit)
	}
	if got, want := conn.Config().Database, connect(t, dsn).Config().Database; got != want {
		t.Errorf("the role's URL names the database %s, want %s", got, want)
	}
}

func TestTwoRolesOfOneNameAreTwoRoles(t *testing.T) {
	dsn := Postgres(t)
	if one, two := RoleName(t, Role(t, dsn, "app")), RoleName(t, Role(t, dsn, "app")); one == two {
		t.Errorf("both roles are called %s", one)
	}
}
