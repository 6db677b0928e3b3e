package testdb

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// statementTimeout bounds the work of one set-up or clean-up step. Creating a
// database copies files, which takes seconds on a machine that is very busy.
const statementTimeout = 60 * time.Second

// Postgres creates an empty database on the shared server and returns its URL,
// for a superuser. The database is dropped when the test ends, whoever is
// still connected to it, and so are the roles that Role made for it.
//
// Names of prepared transactions and of replication slots belong to the whole
// server: a test that uses them chooses names that no other test chooses.
func Postgres(t testing.TB) string {
	t.Helper()
	admin, err := sharedServer()
	if err != nil {
		t.Fatalf("start the shared PostgreSQL for tests: %v", err)
	}
	return freshDatabase(t, admin)
}

// Role creates a login role that is no superuser and returns the URL of the
// database of dsn for it. The options are role attributes as in CREATE ROLE,
// for instance "CREATEROLE" or "CONNECTION LIMIT 3"; dsn must belong to a role
// that may grant them.
//
// Roles belong to the whole server, so the role's real name is the given one
// with something random behind it: RoleName reads it from the URL. It owns
// nothing and has the rights of PUBLIC only.
func Role(t testing.TB, dsn, name string, options ...string) string {
	t.Helper()
	role := name + "_" + randomHex(t, 4)
	password := randomHex(t, 12)
	err := execute(dsn, fmt.Sprintf("CREATE ROLE %s LOGIN NOSUPERUSER PASSWORD '%s' %s",
		quote(role), password, strings.Join(options, " ")))
	if err != nil {
		t.Fatalf("create the role %s: %v", role, err)
	}
	roleURL, database := withUser(t, dsn, role, password)
	rolesOf.add(database, role)
	return roleURL
}

// RoleName returns the name of the role that a URL logs in as.
func RoleName(t testing.TB, dsn string) string {
	t.Helper()
	return mustParse(t, dsn).User.Username()
}

// freshDatabase creates a database on the server of admin and drops it when
// the test ends.
func freshDatabase(t testing.TB, admin string) string {
	t.Helper()
	name := databaseName(t)
	if err := createDatabase(admin, name); err != nil {
		t.Fatalf("create the database %s: %v", name, err)
	}
	rolesOf.watch(name)
	t.Cleanup(func() {
		if err := dropDatabase(admin, name); err != nil {
			t.Errorf("drop the database %s: %v", name, err)
		}
	})
	return withDatabase(t, admin, name)
}

// createDatabase copies template0: nobody can be connected to it, so creating from
// it never has to wait for, or fail because of, another test. Where the server has
// the choice it copies the files, as all did before version 15: block by block
// through the write-ahead log costs it twice as much.
func createDatabase(admin, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var version int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::integer").Scan(&version); err != nil {
		return err
	}
	create := "CREATE DATABASE " + quote(name) + " TEMPLATE template0"
	if version >= 150000 {
		create += " STRATEGY FILE_COPY"
	}
	_, err = conn.Exec(ctx, create)
	return err
}

// dropDatabase removes a test's database and the roles made for it.
func dropDatabase(admin, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)

	if err := rollBackPrepared(ctx, conn, name); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)"); err != nil {
		return err
	}
	for _, role := range rolesOf.take(name) {
		if err := dropRole(ctx, conn, role); err != nil {
			return fmt.Errorf("drop the role %s: %w", role, err)
		}
	}
	return nil
}

// rollBackPrepared ends the prepared transactions of a database: WITH (FORCE)
// ends sessions, but a prepared transaction has none and keeps the database.
func rollBackPrepared(ctx context.Context, conn *pgx.Conn, database string) error {
	rows, err := conn.Query(ctx, "SELECT gid FROM pg_prepared_xacts WHERE database = $1", database)
	if err != nil {
		return err
	}
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(gids) == 0 {
		return err
	}
	config := conn.Config()
	config.Database = database
	inside, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer inside.Close(ctx)
	for _, gid := range gids {
		if _, err := inside.Exec(ctx, "ROLLBACK PREPARED '"+strings.ReplaceAll(gid, "'", "''")+"'"); err != nil {
			return fmt.Errorf("roll back the prepared transaction %s: %w", gid, err)
		}
	}
	return nil
}

// dropRole removes a role, if the test has not done so, and the rights on
// shared objects that would keep it.
func dropRole(ctx context.Context, conn *pgx.Conn, role string) error {
	var exists bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", role).Scan(&exists)
	if err != nil || !exists {
		return err
	}
	if _, err := conn.Exec(ctx, "DROP OWNED BY "+quote(role)); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "DROP ROLE "+quote(role))
	return err
}

// execute runs one statement on a connection of its own.
func execute(dsn, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

// rolesOf remembers which roles to drop with which database. A role can only
// go after the objects it owns, and those go with the database.
var rolesOf = roleRegistry{roles: map[string][]string{}}

type roleRegistry struct {
	mu    sync.Mutex
	roles map[string][]string
}

// watch makes the roles of a database remembered from now on.
func (r *roleRegistry) watch(database string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.roles[database] = []string{}
}

// add notes a role, if its database is one that this process drops. The roles
// of a private server go with the server.
func (r *roleRegistry) add(database, role string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if roles, watched := r.roles[database]; watched {
		r.roles[database] = append(roles, role)
	}
}

// take returns the roles of a database and forgets them.
func (r *roleRegistry) take(database string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	roles := r.roles[database]
	delete(r.roles, database)
	return roles
}
