package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Bounds of every transaction of ours (docs/design.md section 2, I7).
const (
	acquireTimeout  = 10 * time.Second // for one of the pool's connections to become free
	rollbackTimeout = 2 * time.Second
	firstPoll       = time.Millisecond
	longestPoll     = 8 * time.Millisecond
)

// inTx runs fn in one transaction: BEGIN IMMEDIATE where it writes and BEGIN (one snapshot) where it only reads, fn, COMMIT. Any error
// of fn, or a cancelled ctx, rolls back; the rollback has a bound and a context of its own. what names the work in errors. Errors
// are *storage.Error: those that fn returns stay as they are, all others pass through translate.
//
// fn must use the context it is given, and may run twice: SQLITE_BUSY_SNAPSHOT means that the snapshot is too old to write, and only a
// new transaction helps, never the statement again.
func (s *Store) inTx(ctx context.Context, what string, write bool, fn func(ctx context.Context, tx *sql.Conn) error) error {
	deadline := time.Now().Add(s.busy)
	for {
		err := s.tryTx(ctx, what, write, fn)
		if extendedCode(err) == codeBusySnapshot && time.Now().Before(deadline) {
			continue
		}
		return translate(err, what)
	}
}

func (s *Store) tryTx(ctx context.Context, what string, write bool, fn func(ctx context.Context, tx *sql.Conn) error) error {
	t, err := s.begin(ctx, what, write)
	if err != nil {
		return err
	}
	if err := fn(context.WithValue(ctx, closeMarkKey{}, t), t.conn); err != nil {
		t.rollback(ctx)
		return err
	}
	return t.commit(ctx)
}

// transaction is an open transaction with its connection. It ends by commit or rollback, after which both do nothing.
type transaction struct {
	store *Store
	conn  *sql.Conn
	what  string
	close bool // end the connection instead of using it again
	ended bool
}

// begin opens a transaction. One that writes waits for the file's write lock, in turn with the others of this store and not longer than
// the busy timeout: CodeLockTimeout then names who holds it.
func (s *Store) begin(ctx context.Context, what string, write bool) (*transaction, error) {
	if write {
		conn, err := s.lock(ctx, what, s.busy, nil)
		if err != nil {
			return nil, err
		}
		return &transaction{store: s, conn: conn, what: what}, nil
	}
	conn, err := s.acquire(ctx, what)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		release(conn, false)
		return nil, translate(err, what+": begin")
	}
	return &transaction{store: s, conn: conn, what: what}, nil
}

// lock opens a transaction that holds the file's write lock. The turn comes before the connection: those who wait would otherwise hold all
// connections of the pool, and nobody could even read. prepare, if given, sets up the connection before BEGIN.
func (s *Store) lock(ctx context.Context, what string, bound time.Duration, prepare func(context.Context, *sql.Conn) error) (*sql.Conn, error) {
	deadline := time.Now().Add(bound)
	if err := s.takeTurn(ctx, what, deadline, bound); err != nil {
		return nil, err
	}
	defer func() { <-s.turn }()
	conn, err := s.acquire(ctx, what)
	if err != nil {
		return nil, err
	}
	if prepare != nil {
		err = prepare(ctx, conn)
	}
	if err == nil {
		err = s.beginImmediate(ctx, conn, what, deadline, bound)
	}
	if err != nil {
		release(conn, true)
		return nil, err
	}
	return conn, nil
}

// beginImmediate asks for the write lock again and again in short pauses. SQLite's own wait sleeps up to 100 ms at a time, so beside a
// program that writes all the time it would hardly ever meet the moment in which the lock is free.
func (s *Store) beginImmediate(ctx context.Context, conn *sql.Conn, what string, deadline time.Time, bound time.Duration) error {
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 0"); err != nil {
		return translate(err, what+": begin")
	}
	for pause := firstPoll; ; pause = min(2*pause, longestPoll) {
		_, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE")
		switch {
		case err == nil:
			_, err = conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", s.busy.Milliseconds()))
			return translate(err, what+": begin")
		case primaryCode(err) != codeBusy:
			return translate(err, what+": begin")
		case time.Now().After(deadline):
			return s.lockTimeout(what, bound)
		}
		if err := sleep(ctx, pause/2+rand.N(pause)); err != nil {
			return translate(err, what+": wait for the write lock of "+s.path)
		}
	}
}

// takeTurn waits until no other transaction of this store asks for the write lock.
func (s *Store) takeTurn(ctx context.Context, what string, deadline time.Time, bound time.Duration) error {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-timer.C:
		return s.lockTimeout(what, bound)
	case <-ctx.Done():
		return translate(ctx.Err(), what+": wait for the write lock of "+s.path)
	}
}

// lockTimeout is the named refusal. A process that died leaves no lock behind; one that was stopped keeps it, and nothing can be done
// about that but say so.
func (s *Store) lockTimeout(what string, bound time.Duration) error {
	return &storage.Error{
		Code:    storage.CodeLockTimeout,
		Message: fmt.Sprintf("%s: another process or connection held the write lock of %s for longer than %s", what, s.path, bound),
		Blocked: s.blockers(),
	}
}

// commit ends the transaction. A COMMIT that SQLite refuses (somebody still reads a file without a write-ahead log) did nothing and is
// rolled back. CodeCommitUnknown: the disk failed during it. CodeInvalidSQL: SQL of a user or a program left a deferred foreign key broken.
func (t *transaction) commit(ctx context.Context) error {
	if t.ended {
		return nil
	}
	if err := ctx.Err(); err != nil {
		t.rollback(ctx)
		return translate(err, t.what)
	}
	// The driver answers with the context's error if it ended while COMMIT ran, even if COMMIT took place. So it gets one that
	// does not end; the wait inside is bounded by the busy timeout.
	_, err := t.conn.ExecContext(context.WithoutCancel(ctx), "COMMIT")
	if err == nil {
		t.ended = true
		release(t.conn, t.close)
		return nil
	}
	t.rollback(ctx)
	switch primaryCode(err) {
	case codeBusy:
		return &storage.Error{
			Code:    storage.CodeLockTimeout,
			Message: fmt.Sprintf("%s: commit: another connection kept reading %s for longer than %s", t.what, t.store.path, t.store.busy),
			Blocked: t.store.blockers(),
		}
	case codeIO:
		return &storage.Error{
			Code:    storage.CodeCommitUnknown,
			Message: t.what + ": the disk failed during COMMIT, so it is not known whether it took place",
			Hint:    "ask again; nothing is done twice",
			Err:     err,
		}
	case codeConstraint:
		// Only a foreign key that is checked at the end, which statements of ours have nothing to do with.
		return translateUserSQL(err, t.what+": commit")
	}
	return translate(err, t.what+": commit")
}

// rollback undoes the transaction in bounded time, also when ctx has ended. If that fails the connection is closed, which undoes it too.
func (t *transaction) rollback(ctx context.Context) {
	if t.ended {
		return
	}
	t.ended = true
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, err := t.conn.ExecContext(bounded, "ROLLBACK")
	release(t.conn, t.close || err != nil)
}

// acquire takes a connection of the pool. The wait is bounded: all connections may be busy.
func (s *Store) acquire(ctx context.Context, what string) (*sql.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	conn, err := s.db.Conn(bounded)
	switch {
	case err == nil:
		if err := s.checkSameFile(what); err != nil {
			release(conn, true)
			return nil, err
		}
		return conn, nil
	case ctx.Err() == nil && bounded.Err() != nil:
		return nil, storage.Refuse(storage.CodeConnectionsBusy, "%s: no connection to %s was free within %s", what, s.path, acquireTimeout)
	default:
		if gone := s.checkSameFile(what); ctx.Err() == nil && gone != nil {
			return nil, gone // why it could not be opened
		}
		return nil, translate(err, what+": open "+s.path)
	}
}

// release gives a connection back to the pool, or ends it.
func release(conn *sql.Conn, end bool) {
	if end {
		// The pool drops a connection of which the driver says that it is bad.
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	// A connection that was ended says so here; there is nothing left to do for it.
	_ = conn.Close()
}

type closeMarkKey struct{}

// closeConnection makes inTx end the connection of ctx's transaction instead of giving it back to the pool: SQL of a user has run
// on it, which may have left anything in the session (docs/design.md section 3, "Locks of a barrier").
func closeConnection(ctx context.Context) {
	if t, ok := ctx.Value(closeMarkKey{}).(*transaction); ok {
		t.close = true
	}
}

// sleep waits, or returns the error of ctx when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// noRows says that a query for one row found none.
func noRows(err error) bool { return errors.Is(err, sql.ErrNoRows) }
