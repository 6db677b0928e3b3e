package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Bounds of every transaction of ours (docs/design.md section 2, I7).
const (
	defaultLockTimeout      = 2 * time.Second
	defaultStatementTimeout = 60 * time.Second
	idleInTransaction       = 10 * time.Second
	connectionCheck         = 5 * time.Second
	defaultAcquireTimeout   = 10 * time.Second // for one of the connections to become free
	rollbackTimeout         = 2 * time.Second
)

// txOptions says what a transaction is like. Zero values: READ COMMITTED, writing, lock timeout 2 s, statement timeout 60 s.
type txOptions struct {
	iso              pgx.TxIsoLevel
	readOnly         bool
	lockTimeout      time.Duration
	statementTimeout time.Duration
}

// sessionSettings is what Open learned about what a server takes.
type sessionSettings struct {
	connectionCheck    bool // client_connection_check_interval works on the server's platform
	transactionTimeout bool // transaction_timeout is there, from PostgreSQL 17 on
}

// inTx runs fn in one transaction: BEGIN with the settings of beginSQL, fn, COMMIT. Any error of fn, or a cancelled ctx, rolls back;
// the rollback has a bound and a context of its own. what names the work in errors. Errors are *storage.Error: those that fn
// returns stay as they are, all others pass through translate. CodeCommitUnknown: the connection was lost during COMMIT.
//
// fn must use the context it is given, and may run twice: a plan that went stale by a change of a table (0A000) fails once for no fault
// of the caller, and the whole transaction is run again.
func (s *Store) inTx(ctx context.Context, what string, o txOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	err := s.tryTx(ctx, what, o, fn)
	if isStalePlan(err) {
		err = s.tryTx(ctx, what, o, fn)
	}
	return translate(err, what)
}

func (s *Store) tryTx(ctx context.Context, what string, o txOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	conn, err := s.acquire(ctx, what)
	if err != nil {
		return err
	}
	mark := &closeMark{}
	defer func() { s.release(ctx, conn, mark.set) }()
	return s.onConn(context.WithValue(ctx, closeMarkKey{}, mark), conn, what, o, fn)
}

// onConn runs fn in one transaction on a connection. ctx has its closeMark.
func (s *Store) onConn(ctx context.Context, conn *pgxpool.Conn, what string, o txOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	tx, err := s.begin(ctx, conn, o)
	if err != nil {
		return translate(err, what+": begin")
	}
	if err := fn(ctx, tx); err != nil {
		err = unanswered(ctx, conn.Conn(), err)
		rollback(ctx, tx)
		if sqlState(err) == stateReadOnly {
			closeConnection(ctx)
		}
		return err
	}
	return commit(ctx, tx, what)
}

// begin begins a transaction, whose statements then have the time that the server allows them to be answered.
func (s *Store) begin(ctx context.Context, conn *pgxpool.Conn, o txOptions) (pgx.Tx, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: s.beginSQL(o)})
	if err != nil {
		return nil, unanswered(ctx, conn.Conn(), err)
	}
	s.allow(conn.Conn(), cmp.Or(o.statementTimeout, defaultStatementTimeout))
	return tx, nil
}

// allow bounds the wait for each answer on a connection whose statements the server ends after the given time.
func (s *Store) allow(conn *pgx.Conn, statement time.Duration) {
	boundedOf(conn.PgConn().Conn()).allow(statement + s.silenceMargin)
}

// beginSQL begins a transaction and sets everything that a role, a database, a connection string or the server may have set otherwise,
// in one round trip. All is LOCAL: behind a transaction pooler the next transaction on the server's connection is somebody else's.
func (s *Store) beginSQL(o txOptions) string {
	iso, mode := o.iso, ""
	if iso == "" {
		iso = pgx.ReadCommitted
	}
	if o.readOnly {
		mode = " READ ONLY" // and never READ WRITE: a server that was set read only is to refuse us
	}
	if o.lockTimeout == 0 {
		o.lockTimeout = defaultLockTimeout
	}
	if o.statementTimeout == 0 {
		o.statementTimeout = defaultStatementTimeout
	}
	var b strings.Builder
	fmt.Fprintf(&b, "BEGIN ISOLATION LEVEL %s%s;", iso, mode)
	fmt.Fprintf(&b, "SET LOCAL lock_timeout = %d;", milliseconds(o.lockTimeout))
	fmt.Fprintf(&b, "SET LOCAL statement_timeout = %d;", milliseconds(o.statementTimeout))
	b.WriteString(s.pinnedSQL())
	return b.String()
}

// pinnedSQL sets what is the same in all transactions of ours. User SQL may have changed it, so it is also there to set it again.
func (s *Store) pinnedSQL() string {
	var b strings.Builder
	fmt.Fprintf(&b, "SET LOCAL idle_in_transaction_session_timeout = %d;", milliseconds(idleInTransaction))
	if s.settings.connectionCheck {
		fmt.Fprintf(&b, "SET LOCAL client_connection_check_interval = %d;", milliseconds(connectionCheck))
	}
	if s.settings.transactionTimeout {
		// Each statement and each wait has a bound of its own. A limit that a database has for its programs would end a barrier or a
		// batch every time at the same place, and it would never be done.
		b.WriteString("SET LOCAL transaction_timeout = 0;")
	}
	// With row security off a policy that would hide rows from us is an error; with it on, a gate would read an empty answer.
	b.WriteString("SET LOCAL row_security = off;")
	// Compiling expressions takes longer than all that our statements do, and most run with locks held. Measured, where a role has
	// enable_seqscan off, which makes every statement look expensive: a barrier held its locks for 68 s instead of one.
	b.WriteString("SET LOCAL jit = off;")
	// pg_temp last: a temporary table must never stand in for one of ours.
	fmt.Fprintf(&b, "SET LOCAL search_path = %s, pg_temp;", s.schema)
	// Keys travel as text. How a value is written must not depend on who wrote it.
	b.WriteString("SET LOCAL datestyle = 'ISO, MDY';" +
		"SET LOCAL timezone = 'UTC';" +
		"SET LOCAL intervalstyle = 'postgres';" +
		"SET LOCAL extra_float_digits = 3;" +
		"SET LOCAL bytea_output = 'hex';" +
		"SET LOCAL lc_monetary = 'C';" +
		"SET LOCAL standard_conforming_strings = on;" +
		"SET LOCAL array_nulls = on;" +
		"SET LOCAL client_encoding = 'UTF8';" +
		// The server writes down settings and conditions with or without quotes as this says, and they are compared with what was declared.
		"SET LOCAL quote_all_identifiers = off")
	return b.String()
}

// rollback undoes a transaction in bounded time, also when ctx has ended. If it fails, release ends the connection, which undoes
// the transaction too.
func rollback(ctx context.Context, tx pgx.Tx) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(bounded)
}

// commit ends a transaction and tells "refused", where nothing happened, from "unknown".
func commit(ctx context.Context, tx pgx.Tx, what string) error {
	if err := ctx.Err(); err != nil {
		rollback(ctx, tx)
		return err
	}
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	answered := sqlState(err) != "" && !isConnectionState(sqlState(err))
	if answered || errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return translate(err, what+": commit")
	}
	return &storage.Error{
		Code:    storage.CodeCommitUnknown,
		Message: what + ": the connection was lost during COMMIT, so it is not known whether it took place",
		Hint:    "ask again; nothing is done twice",
		Err:     withoutDetail(err),
	}
}

type closeMarkKey struct{}

// closeMark is with everything that is done inside of a transaction of ours.
type closeMark struct{ set bool }

// holdsConnection says that ctx is that of a transaction of ours, which has a connection.
func holdsConnection(ctx context.Context) bool { return ctx.Value(closeMarkKey{}) != nil }

// closeConnection makes inTx end the connection of ctx's transaction instead of giving it back to the pool: SQL of a user has
// run on it, which may have left anything in the session (docs/design.md section 3, "Locks of a barrier").
func closeConnection(ctx context.Context) {
	if mark, ok := ctx.Value(closeMarkKey{}).(*closeMark); ok {
		mark.set = true
	}
}
