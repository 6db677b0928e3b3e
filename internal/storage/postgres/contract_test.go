package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/storagetest"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

var _ storage.Store = (*Store)(nil)

func TestContract(t *testing.T) {
	dsn := testdb.Postgres(t)
	runContract(t, dsn, Config{URL: dsn})
}

func TestContractSimpleProtocol(t *testing.T) {
	dsn := testdb.Postgres(t)
	runContract(t, dsn, Config{URL: dsn, SimpleProtocol: true})
}

func TestContractPgBouncer(t *testing.T) {
	dsn := testdb.Postgres(t)
	runContract(t, dsn, Config{URL: testdb.PgBouncer(t, dsn), Pooler: PoolerTransaction})
}

// runContract gives each test a database schema of its own, with a name that has to be quoted.
func runContract(t *testing.T, dsn string, config Config) {
	var schemas atomic.Int64
	storagetest.Run(t, func(t *testing.T) storagetest.Database {
		schema := fmt.Sprintf(`Clinic "%d" of %%s $1`, schemas.Add(1))
		connectTo(t, dsn, "").mustExec(t, "CREATE SCHEMA "+quoteIdentifier(schema))
		return storagetest.Database{
			Dialect:      storage.PostgreSQL,
			Capabilities: storagetest.Capabilities{ConcurrentWriters: true, RowLocks: true, Contenders: 100},
			OpenStore: func(t testing.TB, queries ...storage.RegisteredQuery) storage.Store {
				config := config
				config.Schema, config.Queries = schema, queries
				return openStore(t, config)
			},
			Connect: func(t testing.TB) storagetest.Connection { return connectTo(t, dsn, schema) },
		}
	})
}

// connection is a program's own, past any pooler.
type connection struct{ *pgx.Conn }

// connectTo connects, with a schema as search path if one is given.
func connectTo(t testing.TB, dsn, schema string) connection {
	t.Helper()
	conn, err := pgx.Connect(testContext(t), dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	c := connection{conn}
	if schema != "" {
		c.mustExec(t, "SET search_path = "+quoteIdentifier(schema))
	}
	return c
}

func (c connection) mustExec(t testing.TB, sql string, arguments ...any) {
	t.Helper()
	if _, err := c.Exec(testContext(t), sql, arguments...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (c connection) Exec(ctx context.Context, sql string, arguments ...any) (int64, error) {
	tag, err := c.Conn.Exec(ctx, sql, arguments...)
	return tag.RowsAffected(), err
}

func (c connection) Query(ctx context.Context, sql string, arguments ...any) ([][]any, error) {
	rows, err := c.Conn.Query(ctx, sql, append([]any{textResult}, arguments...)...)
	if err != nil {
		return nil, err
	}
	_, found, err := collectResult(rows)
	return found, err
}
