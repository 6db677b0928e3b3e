package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// holder is a transaction that holds a lock which keeps us from one of ours.
type holder struct {
	storage.Blocker
	open        time.Duration // how long the transaction is open
	transaction string        // tells this transaction from a later one of the same session
	yields      bool          // it lets go by itself when somebody waits: an autovacuum that may be cancelled
}

// maxBlockers bounds how many are named.
const maxBlockers = 10

func blockersOf(holders []holder) []storage.Blocker {
	var blockers []storage.Blocker
	for _, h := range holders[:min(len(holders), maxBlockers)] {
		blockers = append(blockers, h.Blocker)
	}
	return blockers
}

// holders reads who holds a lock that conflicts with one of these, partitions and children of the tables included, the longest
// transaction first. Query texts are not read, but for the words by which an autovacuum says that it does not yield: they could hold row data. What the
// server hides from our role (the age of other users' transactions) is zero.
func (s *Store) holders(ctx context.Context, locks lockSet) ([]holder, error) {
	var found []holder
	err := s.inTx(ctx, "look for who holds the tables", txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		found, err = s.holdersIn(ctx, tx, locks)
		return err
	})
	return found, err
}

func (s *Store) holdersIn(ctx context.Context, q querier, locks lockSet) ([]holder, error) {
	var schemas, tables, modes []string
	for _, lock := range locks {
		for _, mode := range lock.mode.conflicts() {
			schemas, tables, modes = append(schemas, lock.schema), append(tables, lock.table), append(modes, mode)
		}
	}
	rows, err := q.Query(ctx, holdersSQL, schemas, tables, modes)
	if err != nil {
		return nil, fmt.Errorf("read pg_locks: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (holder, error) {
		var h holder
		var schema, table string
		var seconds float64
		err := row.Scan(&h.PID, &h.Kind, &h.Name, &h.User, &schema, &table, &seconds, &h.transaction, &h.yields)
		h.open, h.HeldSeconds = time.Duration(seconds*float64(time.Second)), int64(seconds)
		h.Table = s.lockName(tableLock{schema: schema, table: table})
		return h, err
	})
	if err != nil {
		return nil, fmt.Errorf("read pg_locks: %w", err)
	}
	return found, nil
}

// holdersSQL: a prepared transaction has no process. What it is called is found by the lock that each transaction holds on its own
// id; the manual's join over '-1/' || transaction finds it only after a restart of the server (measured on 15).
const holdersSQL = `
	WITH RECURSIVE wanted(schema, name, mode) AS (
	  SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
	), relations(oid, schema, name, mode) AS (
	  SELECT c.oid, wanted.schema, wanted.name, wanted.mode
	    FROM wanted
	    JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema
	    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
	  UNION
	  SELECT i.inhrelid, relations.schema, relations.name, relations.mode
	    FROM relations
	    JOIN pg_catalog.pg_inherits i ON i.inhparent = relations.oid
	), held AS (
	  SELECT DISTINCT l.pid, l.virtualtransaction, relations.schema, relations.name
	    FROM relations
	    JOIN pg_catalog.pg_locks l ON l.relation = relations.oid AND l.mode = relations.mode
	   WHERE l.locktype = 'relation'
	     AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
	     AND l.granted
	     AND l.pid IS DISTINCT FROM pg_backend_pid()
	)
	SELECT coalesce(held.pid, 0),
	       CASE WHEN held.pid IS NULL THEN 'prepared transaction'
	            WHEN a.backend_type = 'autovacuum worker' OR v.pid IS NOT NULL THEN 'vacuum'
	            ELSE 'session' END,
	       coalesce(p.gid, a.application_name, ''),
	       coalesce(p.owner::text, a.usename::text, ''),
	       held.schema,
	       held.name,
	       coalesce(extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start)), 0)::double precision,
	       coalesce(p.gid, coalesce(held.pid, 0) || '/' || coalesce(a.xact_start::text, '')),
	       coalesce(a.backend_type = 'autovacuum worker' AND a.query NOT LIKE '%(to prevent wraparound)%', false)
	  FROM held
	  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = held.pid
	  LEFT JOIN pg_catalog.pg_stat_progress_vacuum v ON v.pid = held.pid
	  LEFT JOIN pg_catalog.pg_locks own
	         ON held.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid' AND own.mode = 'ExclusiveLock'
	        AND own.virtualtransaction = held.virtualtransaction
	  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = own.transactionid
	 ORDER BY 7 DESC, 1, 6`

// pollHolders is the pause between two looks at transactions that are waited for outside the queue.
const pollHolders = 50 * time.Millisecond

// outwaitLongHolders keeps a barrier out of the lock queue while a transaction that is older than the lock timeout holds what the barrier
// needs: it would be waited for in vain, with all writers queued behind us. It waits for exactly those transactions, outside the queue, for at
// most the budget; on a database that always has some long transaction the barrier then still gets its turn. What is left of
// them after that is CodeLockTimeout.
func (s *Store) outwaitLongHolders(ctx context.Context, locks lockSet, timeout, budget time.Duration) error {
	deadline := time.Now().Add(budget)
	var awaited []string
	for first := true; ; first = false {
		holders, err := s.holders(ctx, locks)
		if err != nil {
			return err
		}
		long := slices.DeleteFunc(holders, func(h holder) bool {
			if first {
				return h.yields || h.open < timeout
			}
			return !slices.Contains(awaited, h.transaction)
		})
		if len(long) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return &storage.Error{
				Code:    storage.CodeLockTimeout,
				Message: fmt.Sprintf("lock %s: a transaction that is open for long holds it, so the barrier does not queue for it", long[0].Table),
				Table:   long[0].Table,
				Blocked: blockersOf(long),
			}
		}
		if first {
			for _, h := range long {
				awaited = append(awaited, h.transaction)
			}
		}
		if err := pause(ctx, pollHolders); err != nil {
			return translate(err, "wait for who holds the tables")
		}
	}
}

// pause waits, or ends with the context.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
