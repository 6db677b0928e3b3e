package postgres

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// What docs/adopt.md says of the ways in which a program gives its writer version, and of poolers.

const writeOne = `INSERT INTO todos VALUES ((SELECT coalesce(max(id), 0) + 1 FROM todos), 'a', 'x')`

// withOptions is a connection string that sends command-line options to the server, as PGOPTIONS does.
func withOptions(t testing.TB, dsn, options string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("options", options)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // in a connection string + is a plus
	return u.String()
}

func TestTheVersionArrivesByEachDocumentedWay(t *testing.T) {
	for name, way := range map[string]func(db *barrierDB, role string) *session{
		"options in the connection string": func(db *barrierDB, role string) *session {
			return connect(db.t, withOptions(db.t, role, "-c syncbarrier.writer_version=2"))
		},
		"a setting of the role, made by a superuser": func(db *barrierDB, role string) *session {
			db.exec(`ALTER ROLE ` + quoteIdentifier(testdb.RoleName(db.t, role)) + ` SET syncbarrier.writer_version = 2`)
			return connect(db.t, role)
		},
		"a setting of the database, made by a superuser": func(db *barrierDB, role string) *session {
			db.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET syncbarrier.writer_version = 2', current_database()); END $$`)
			return connect(db.t, role)
		},
		"SET after connecting, without a pooler": func(db *barrierDB, role string) *session {
			program := connect(db.t, role)
			program.run(`SET syncbarrier.writer_version = 2`)
			return program
		},
		"SET LOCAL in each transaction, through a pooler": func(db *barrierDB, role string) *session {
			program := connectSimply(db.t, testdb.PgBouncer(db.t, role))
			program.run(`BEGIN`)
			program.run(`SET LOCAL syncbarrier.writer_version = 2`)
			return program
		},
		"an entry of PgBouncer with its own connect_query": func(db *barrierDB, role string) *session {
			through := testdb.PgBouncer(db.t, role, testdb.WithEntry("clinic_v2", "SET syncbarrier.writer_version = 2"))
			return connectSimply(db.t, throughEntry(db.t, through, "clinic_v2"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, role := newAdoptDB(t)
			expectFenced(t, connect(t, role).try(writeOne))
			way(db, role).run(writeOne)
		})
	}
}

// newAdoptDB is a captured database at version 2, and the address of a role that may write todos and nothing else.
func newAdoptDB(t testing.TB) (*barrierDB, string) {
	db, _ := newCapturedDB(t)
	role := testdb.Role(t, db.url, "program")
	db.exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON todos TO ` + quoteIdentifier(testdb.RoleName(t, role)))
	return db, role
}

// connectSimply connects as poolers like it: without prepared statements.
func connectSimply(t testing.TB, dsn string) *session {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(testContext(t), config)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &session{t: t, conn: conn}
}

func throughEntry(t testing.TB, through, entry string) string {
	t.Helper()
	u, err := url.Parse(through)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + entry
	return u.String()
}

func TestAProgramMayNotGiveItsOwnRoleAVersionWithoutTheRight(t *testing.T) {
	db, role := newAdoptDB(t)
	program := connect(t, role)
	set := `ALTER ROLE CURRENT_USER SET syncbarrier.writer_version = 2`
	if err := program.try(set); sqlState(err) != "42501" {
		t.Errorf("a role that may not set the version for itself: %v, want permission denied", err)
	}
	if value[int](program, `SELECT current_setting('server_version_num')::int`) < 150000 {
		return // GRANT SET ON PARAMETER came with PostgreSQL 15
	}
	db.exec(`GRANT SET ON PARAMETER syncbarrier.writer_version TO ` + quoteIdentifier(testdb.RoleName(t, role)))
	t.Cleanup(func() {
		db.exec(`REVOKE SET ON PARAMETER syncbarrier.writer_version FROM ` + quoteIdentifier(testdb.RoleName(t, role)))
	})
	program.run(set)
	connect(t, role).run(writeOne)
}

func TestPgBouncerRefusesOptionsOrDropsThem(t *testing.T) {
	_, role := newAdoptDB(t)
	t.Run("refused", func(t *testing.T) {
		through := testdb.PgBouncer(t, role)
		conn, err := pgx.Connect(testContext(t), withOptions(t, through, "-c syncbarrier.writer_version=2"))
		if err == nil {
			_ = conn.Close(context.Background())
		}
		if err == nil || !strings.Contains(err.Error(), "unsupported startup parameter") {
			t.Errorf("a client with options: %v, want it refused", err)
		}
	})
	t.Run("dropped, so the program is fenced", func(t *testing.T) {
		through := testdb.PgBouncer(t, role, testdb.WithIgnoredParameter("options"))
		expectFenced(t, connectSimply(t, withOptions(t, through, "-c syncbarrier.writer_version=2")).try(writeOne))
	})
}

// Why SET is forbidden behind transaction pooling: what one client sets is there for whoever gets its server connection next.
func TestASessionSettingBehindAPoolerReachesOtherClients(t *testing.T) {
	_, role := newAdoptDB(t)
	through := testdb.PgBouncer(t, role, testdb.WithPoolSize(1))
	connectSimply(t, through).run(`SET syncbarrier.writer_version = 2`)
	other := connectSimply(t, through)
	if got := value[string](other, `SELECT current_setting('syncbarrier.writer_version', true)`); got != "2" {
		t.Errorf("the next client has version %q; docs/adopt.md says that it gets the other's", got)
	}
	t.Run("SET LOCAL does not", func(t *testing.T) {
		through := testdb.PgBouncer(t, role, testdb.WithPoolSize(1))
		program := connectSimply(t, through)
		program.run(`BEGIN`)
		program.run(`SET LOCAL syncbarrier.writer_version = 2`)
		program.run(writeOne)
		program.run(`COMMIT`)
		expectFenced(t, connectSimply(t, through).try(writeOne))
	})
}
