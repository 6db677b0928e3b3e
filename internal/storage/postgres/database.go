package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Database is an opened database. The Stores of all its schemas share its connections: nothing of a schema is left on one between two
// transactions, since the settings of each are LOCAL and its statements name the schema in full (docs/design.md section 7).
type Database struct {
	*connections
	config Config

	mu     sync.Mutex
	stores map[string]*Store // by schema
}

// mostStores is how many Stores a Database remembers. One that is forgotten is made anew.
const mostStores = 1024

// OpenDatabase is Open without a schema.
func OpenDatabase(ctx context.Context, config Config) (*Database, error) {
	pool, address, err := newPool(ctx, config)
	if err != nil {
		return nil, err
	}
	c := &connections{
		pool: pool, address: address, unnamed: config.Name != "", acquireTimeout: defaultAcquireTimeout, silenceMargin: defaultSilenceMargin,
		pooled: config.Pooler == PoolerTransaction, slots: make(chan struct{}, pool.Config().MaxConns),
	}
	if err := c.withinConnect(ctx, c.learn); err != nil {
		pool.Close()
		return nil, err
	}
	return &Database{connections: c, config: config, stores: map[string]*Store{}}, nil
}

// Store gives the Store of a schema; "": public. It is usable until the Database is closed. The first time it looks whether the schema
// exists.
//
// Errors: CodeInvalidSpec for a schema that does not exist; CodeConnectionsBusy, CodeConnectionLost, CodeAuthenticationFailed.
func (d *Database) Store(ctx context.Context, schema string) (storage.Store, error) {
	schema = cmp.Or(schema, defaultSchema)
	d.mu.Lock()
	known, ok := d.stores[schema]
	d.mu.Unlock()
	if ok {
		return known, nil
	}
	s, err := d.find(ctx, schema)
	if err != nil {
		return nil, err // not s: a nil *Store is no nil storage.Store
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.stores[schema]; ok { // what it remembers of backfills is for all
		return known, nil
	}
	if len(d.stores) >= mostStores {
		clear(d.stores)
	}
	d.stores[schema] = s
	return s, nil
}

// Close ends all connections, as Store.Close does.
func (d *Database) Close() { d.pool.Close() }

// find makes the Store of a schema that exists.
func (d *Database) find(ctx context.Context, schema string) (*Store, error) {
	s := &Store{
		connections: d.connections, schemaName: cmp.Or(schema, defaultSchema),
		queries: map[string]storage.RegisteredQuery{}, writerSample: cmp.Or(d.config.WriterSample, defaultWriterSample),
	}
	if err := storage.CheckIdentifier("schema", s.schemaName); err != nil {
		return nil, err
	}
	s.schema = quoteIdentifier(s.schemaName)
	for _, query := range d.config.Queries {
		s.queries[query.Name] = query
	}
	what := "look for schema " + s.schema + " of " + s.address
	conn, err := s.acquire(ctx, what)
	if err != nil {
		return nil, err
	}
	defer s.release(ctx, conn, false)
	var exists bool
	err = s.withinConnect(ctx, func(ctx context.Context) error {
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1::text)", s.schemaName).Scan(&exists)
		return translate(unanswered(ctx, conn.Conn(), err), what)
	})
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "%s has no schema %q", s.address, s.schemaName).
			WithHint("create it, or name another one")
	}
	return s, nil
}

// connections are those to one database, with what is known of its server.
type connections struct {
	pool   *pgxpool.Pool
	slots  chan struct{} // holds as many as connections are in use
	pooled bool          // a pooler in transaction mode is in between: nothing may be set for a session
	// acquireTimeout bounds the wait for one of the connections, and that for it to be made.
	acquireTimeout time.Duration
	// silenceMargin is how long an answer is waited for beyond the time that the server has for a statement.
	silenceMargin time.Duration
	settings      sessionSettings
	address       string // for messages: host:port/database, or the name that it is called by
	unnamed       bool   // nothing of where connections go stands in messages
}

// withinConnect gives fn the time that a connection may take to be made.
func (c *connections) withinConnect(ctx context.Context, fn func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err := fn(bounded)
	if storage.CodeOf(err) == storage.CodeCancelled && ctx.Err() == nil {
		return storage.Refuse(storage.CodeConnectionLost, "connect to %s: no answer within %s", c.address, connectTimeout)
	}
	return err
}

// learn finds out what the server takes, and refuses one that is too old.
func (c *connections) learn(ctx context.Context) error {
	s := &Store{connections: c, schema: "pg_catalog"} // of no schema of a user's
	what := "look at " + c.address
	var version int
	err := s.inTx(ctx, what, txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT current_setting('server_version_num')::integer").Scan(&version)
	})
	if err != nil {
		return err
	}
	if version < oldestServer {
		return storage.Refuse(storage.CodeInvalidSpec, "%s is PostgreSQL %d.%d; 14 is the oldest that is supported",
			c.address, version/10000, version%10000)
	}
	// Whether the server's platform can notice a client that is gone while a statement runs. Where it cannot, setting the interval is an error.
	err = s.inTx(ctx, what, txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL client_connection_check_interval = %d", milliseconds(connectionCheck)))
		return err
	})
	if err != nil && sqlState(err) == "" {
		return err
	}
	c.settings = sessionSettings{connectionCheck: err == nil, transactionTimeout: version >= 170000}
	return nil
}

// acquire takes a connection. Both waits are bounded: that for one to be free, and that for it to be made or to answer.
//
// Who has one must not wait for a second: Stores of several schemas share them, and would wait for each other. So inside of inTx this is
// refused. A barrier's watch uses acquireBeside.
//
// Errors: CodeConnectionsBusy, which says nothing of the server; CodeConnectionLost, CodeAuthenticationFailed.
func (c *connections) acquire(ctx context.Context, what string) (*pgxpool.Conn, error) {
	if holdsConnection(ctx) {
		return nil, storage.Refuse(storage.CodeInternal, "%s: a transaction asks for a second connection", what)
	}
	return c.take(ctx, what, c.acquireTimeout)
}

// acquireBeside takes a second connection for whoever has one already and can do without, if one is free within the given time.
func (c *connections) acquireBeside(ctx context.Context, what string, wait time.Duration) (*pgxpool.Conn, error) {
	if cap(c.slots) < 2 {
		wait = 0
	}
	return c.take(ctx, what, wait)
}

func (c *connections) take(ctx context.Context, what string, wait time.Duration) (*pgxpool.Conn, error) {
	free := time.NewTimer(wait)
	defer free.Stop()
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, translate(ctx.Err(), fmt.Sprintf("%s: wait for one of the %d connections to %s", what, cap(c.slots), c.address))
	case <-free.C:
		return nil, storage.Refuse(storage.CodeConnectionsBusy, "%s: none of the %d connections to %s was free within %s",
			what, cap(c.slots), c.address, wait)
	}
	bounded, cancel := context.WithTimeout(ctx, c.acquireTimeout)
	defer cancel()
	conn, err := c.pool.Acquire(bounded)
	if err == nil {
		boundedOf(conn.Conn().PgConn().Conn()).allow(answerTimeout)
		return conn, nil
	}
	<-c.slots
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) && bounded.Err() != nil {
		return nil, storage.Refuse(storage.CodeConnectionLost, "%s: connect to %s: no answer within %s", what, c.address, c.acquireTimeout)
	}
	return nil, c.connectError(err, what)
}

// release gives a connection back, or ends it.
func (c *connections) release(ctx context.Context, conn *pgxpool.Conn, end bool) {
	defer func() { <-c.slots }()
	if !end {
		boundedOf(conn.Conn().PgConn().Conn()).allow(connectTimeout) // what comes next is to find out whether it still answers
		conn.Release()                                               // it ends the connection by itself if a transaction is still open on it, or it is broken
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	// The connection is given up; how its end went changes nothing for anybody.
	_ = conn.Hijack().Close(bounded)
}
