package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// waitWatch looks, from another connection, at what the barrier's own session waits for while it carries its steps out. SQL of a user can need
// locks that its text does not name (a table named at run time, the other side of a foreign key). The error of such a wait does not
// say which table it was, so that nobody could be told and the next attempt could not wait for it first. And the SQL can switch
// the lock timeout off, so the watch ends a wait that goes beyond its bound. It also ends at once a wait for somebody who waits for us:
// nothing but a deadlock can come of it, of which the other could become the victim.
//
// Its connection is one of the pool's, and is kept until the barrier ends: while locks are held nobody else's work may be in the way of a look.
type waitWatch struct {
	store *Store
	conn  *pgxpool.Conn // nil while it has none
	pid   int
	every time.Duration // the pause between two looks
	bound time.Duration // the longest wait that is let be

	stop   context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	awaits *tableLock // what the session waited for when it was last looked at
}

const whatWatch = "watch the barrier's session"

// besideWait is how long a barrier that holds no lock yet waits for its watch to have a connection.
const besideWait = time.Second

// newWatch takes the connection of a watch before the barrier has locks. Where none is free the watch tries again with each look: the barrier
// can do without. The caller ends it with close.
func (s *Store) newWatch(ctx context.Context) *waitWatch {
	w := &waitWatch{store: s}
	w.conn, _ = s.acquireBeside(ctx, whatWatch, besideWait) // a server that is gone is the barrier's own to find out
	return w
}

// close gives the connection back.
func (w *waitWatch) close(ctx context.Context) {
	if w.conn != nil {
		w.store.release(ctx, w.conn, false)
		w.conn = nil
	}
}

// begin begins to watch the session of a transaction whose waits end after the given time, unless its SQL has switched that off: then
// after the bound. The caller ends it with end before the transaction ends.
func (w *waitWatch) begin(ctx context.Context, tx pgx.Tx, wait, bound time.Duration) error {
	w.every, w.bound = max(2*time.Millisecond, wait/4), bound
	if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&w.pid); err != nil {
		return err
	}
	// Its own mark: what closes the barrier's connection does not close this one.
	watched, stop := context.WithCancel(context.WithValue(ctx, closeMarkKey{}, &closeMark{}))
	w.stop = stop
	w.done.Go(func() { w.run(watched) })
	return nil
}

func (w *waitWatch) run(ctx context.Context) {
	for pause(ctx, w.every) == nil {
		// A look that fails costs the name of a table in an error, nothing else, so its own error is nobody's concern.
		_ = w.look(ctx)
		if w.conn != nil && w.conn.Conn().IsClosed() {
			w.close(ctx)
		}
	}
}

// look notes what is waited for, and ends the wait if it must end. A wait for a row is a wait for the transaction that holds it; the table is then that of the row's own lock.
func (w *waitWatch) look(ctx context.Context) (err error) {
	if w.conn == nil {
		if w.conn, err = w.store.acquireBeside(ctx, whatWatch, 0); err != nil {
			return err
		}
	}
	return w.store.onConn(ctx, w.conn, whatWatch, txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		awaits := &tableLock{mode: accessExclusive}
		var waits, failed, hopeless bool
		err := tx.QueryRow(ctx, `
			SELECT l.pid IS NOT NULL,
			       coalesce(a.state = 'idle in transaction (aborted)', false),
			       coalesce(n.nspname::text, ''),
			       coalesce(c.relname::text, ''),
			       coalesce(clock_timestamp() - l.waitstart > make_interval(secs => $2::double precision), false)
			       OR EXISTS (
			            SELECT
			              FROM unnest(pg_catalog.pg_blocking_pids(l.pid)) AS blocker
			             WHERE l.pid = ANY (pg_catalog.pg_blocking_pids(blocker)))
			  FROM pg_catalog.pg_stat_activity a
			  LEFT JOIN pg_catalog.pg_locks l ON l.pid = a.pid AND NOT l.granted
			  LEFT JOIN pg_catalog.pg_locks r ON r.pid = l.pid AND r.locktype = 'tuple'
			  LEFT JOIN pg_catalog.pg_class c ON c.oid = coalesce(l.relation, r.relation)
			  LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			 WHERE a.pid = $1::integer
			 LIMIT 1`, w.pid, w.bound.Seconds()).Scan(&waits, &failed, &awaits.schema, &awaits.table, &hopeless)
		switch {
		case err != nil:
			return err
		case waits:
			w.note(awaits)
		case !failed: // of one that failed, what it waited for last is what it failed by
			w.note(nil)
		}
		if hopeless {
			_, err = tx.Exec(ctx, "SELECT pg_cancel_backend($1::integer)", w.pid)
		}
		return err
	})
}

func (w *waitWatch) note(awaits *tableLock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaits = awaits
}

// end stops the watch. If the steps failed by a wait that was seen, and not because the caller gave up, the error becomes one that says
// for what.
func (w *waitWatch) end(ctx context.Context, err error) error {
	w.stop()
	w.done.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	code := storage.CodeOf(translate(err, ""))
	waited := code == storage.CodeLockTimeout || code == storage.CodeCancelled
	if err == nil || ctx.Err() != nil || !waited || w.awaits == nil || w.awaits.table == "" {
		return err
	}
	return &lockRefused{lock: *w.awaits, hidden: true}
}
