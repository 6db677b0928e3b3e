package testdb

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// pooled opens a connection that uses no prepared statements, as a client of a
// transaction pool has to.
func pooled(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(t.Context()); err != nil {
			t.Logf("close: %v", err)
		}
	})
	return conn
}

func TestPgBouncerSharesServerSessionsBetweenTransactions(t *testing.T) {
	dsn := Postgres(t)
	through := PgBouncer(t, dsn)
	one, two := pooled(t, through), pooled(t, through)

	run(t, one, "SET my.mark = 'left by another client'")
	if got := value[string](t, two, "SELECT current_setting('my.mark', true)"); got != "left by another client" {
		t.Errorf("the second client sees %q: the pool is not in transaction mode", got)
	}

	run(t, one, "BEGIN")
	first := value[int](t, one, "SELECT pg_backend_pid()")
	if second := value[int](t, two, "SELECT pg_backend_pid()"); first == second {
		t.Error("a transaction shares its server session with another client")
	}
	run(t, one, "ROLLBACK")
	if got, want := one.Config().Database, connect(t, dsn).Config().Database; got != want {
		t.Errorf("the pool's URL names the database %s, want %s", got, want)
	}
}

func TestPgBouncerServesARoleThatIsNoSuperuser(t *testing.T) {
	roleURL := Role(t, Postgres(t), "clerk")
	conn := pooled(t, PgBouncer(t, roleURL))
	if got, want := value[string](t, conn, "SELECT current_user"), RoleName(t, roleURL); got != want {
		t.Errorf("the pool logs in as %s, want %s", got, want)
	}
}
