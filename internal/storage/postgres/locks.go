package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// lockMode is a table lock of PostgreSQL, by strength. Of those a barrier uses each conflicts with all that a weaker one does.
type lockMode int

const (
	shareRowExclusive lockMode = iota + 1 // keeps writers out, lets readers in
	exclusive                             // also keeps out who locks rows
	accessExclusive                       // keeps everybody out
)

func (m lockMode) String() string {
	return [...]string{"", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"}[m]
}

// conflicts are the modes that keep us from this one, as pg_locks spells them (PostgreSQL manual, "Table-Level Locks").
func (m lockMode) conflicts() []string {
	modes := []string{"RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"}
	if m >= exclusive {
		modes = append(modes, "RowShareLock")
	}
	if m >= accessExclusive {
		modes = append(modes, "AccessShareLock")
	}
	return modes
}

// tableLock is a lock that a barrier takes.
type tableLock struct {
	schema, table string
	mode          lockMode
}

// lockSet are locks in the order in which they are taken, each table once.
type lockSet []tableLock

// add takes a table in, or strengthens its lock where it stands.
func (l *lockSet) add(schema, table string, mode lockMode) {
	for i := range *l {
		if (*l)[i].schema == schema && (*l)[i].table == table {
			(*l)[i].mode = max((*l)[i].mode, mode)
			return
		}
	}
	*l = append(*l, tableLock{schema: schema, table: table, mode: mode})
}

// covers says whether whoever holds l needs no lock of other that it does not have.
func (l lockSet) covers(other lockSet) bool {
	return !slices.ContainsFunc(other, func(need tableLock) bool {
		return !slices.ContainsFunc(l, func(have tableLock) bool {
			return have.schema == need.schema && have.table == need.table && have.mode >= need.mode
		})
	})
}

// waitFirst puts a table in front. One that is not among the locks is added if the steps may have needed it.
func (l lockSet) waitFirst(first lockSet, add bool) lockSet {
	for _, table := range first {
		i := slices.IndexFunc(l, func(lock tableLock) bool { return lock.schema == table.schema && lock.table == table.table })
		switch {
		case i >= 0:
			return slices.Concat(lockSet{l[i]}, l[:i], l[i+1:])
		case add:
			return slices.Concat(lockSet{table}, l)
		}
	}
	return l
}

// lockName is how a table is named in errors and plans: bare in our schema.
func (s *Store) lockName(l tableLock) string {
	if l.schema == s.schemaName {
		return l.table
	}
	return l.schema + "." + l.table
}

func (l tableLock) sql() string {
	return fmt.Sprintf("LOCK TABLE %s.%s IN %s MODE", quoteIdentifier(l.schema), quoteIdentifier(l.table), l.mode)
}

// locksFor gives the locks of a decision in their order (docs/design.md section 3, "Locks of a barrier"): sources that are or will be fenced
// and captured; sync_partitions, which writers of the sync protocol take first; the tables that steps or user SQL touch, each at once in its strongest mode, because
// a weaker lock that is raised later deadlocks with whoever did the same; sync_commits; and the marker's table last.
func (s *Store) locksFor(ctx context.Context, q querier, decision storage.Decision) (lockSet, error) {
	if decision.Outcome == storage.Agreed {
		return nil, nil
	}
	locks, logged, err := s.sourceLockSets(ctx, q, decision)
	if err != nil {
		return nil, err
	}
	if decision.LockPartitions {
		locks.add(s.schemaName, "sync_partitions", exclusive)
	}
	touched, err := s.touchedTables(ctx, q, decision, logged)
	if err != nil {
		return nil, err
	}
	for _, lock := range touched {
		locks.add(lock.schema, lock.table, lock.mode)
	}
	if len(decision.Raise) > 0 {
		locks.add(s.schemaName, "sync_commits", shareRowExclusive)
	}
	// EXCLUSIVE, so that whoever declares a checkpoint at the marker's version and locks its row for that is outside or before us.
	locks.add(s.schemaName, "sync_schema_meta", exclusive)
	return locks, nil
}

// touchedTables adds the tables of the steps, in order of their names. sync_commits and sync_schema_meta keep their places at the end,
// whoever names them.
func (s *Store) touchedTables(ctx context.Context, q querier, decision storage.Decision, touched lockSet) (lockSet, error) {
	var dropped []string
	var named []namedTable
	for _, step := range decision.Steps {
		switch step.Kind {
		case storage.StepDropTable:
			dropped = append(dropped, step.Table)
		case storage.StepAddColumn, storage.StepDropIndex:
			touched.add(s.schemaName, step.Table, accessExclusive)
		case storage.StepRewritePayload:
			touched.add(s.schemaName, step.Table, exclusive)
		case storage.StepCreateIndex:
			touched.add(s.schemaName, step.Table, shareRowExclusive)
		case storage.StepRunSQL:
			named = append(named, namesIn(step.SQL)...)
		}
	}
	if err := s.addDropped(ctx, q, dropped, &touched); err != nil {
		return nil, err
	}
	if err := s.addNamed(ctx, q, named, &touched); err != nil {
		return nil, err
	}
	if err := s.keepExisting(ctx, q, &touched); err != nil {
		return nil, err
	}
	last := map[string]int{"sync_commits": 1, "sync_schema_meta": 2}
	slices.SortFunc(touched, func(a, b tableLock) int {
		return cmp.Or(cmp.Compare(s.place(last, a), s.place(last, b)), cmp.Compare(a.schema, b.schema), cmp.Compare(a.table, b.table))
	})
	return touched, nil
}

func (s *Store) place(last map[string]int, l tableLock) int {
	if l.schema != s.schemaName {
		return 0
	}
	return last[l.table]
}

// protocolRows are tables of the sync protocol that hold rows of application tables, if they exist.
var protocolRows = []string{"sync_row_scopes", "sync_blob_refs", "sync_tombstones"}

// addDropped locks retired tables, those that foreign keys tie them to (a constraint that goes is taken off both tables), and
// the tables that hold rows of theirs.
func (s *Store) addDropped(ctx context.Context, q querier, dropped []string, touched *lockSet) error {
	if len(dropped) == 0 {
		return nil
	}
	for _, table := range dropped {
		touched.add(s.schemaName, table, accessExclusive)
	}
	for _, table := range protocolRows {
		touched.add(s.schemaName, table, shareRowExclusive)
	}
	rows, err := q.Query(ctx, `
		SELECT DISTINCT fn.nspname::text, f.relname::text
		  FROM pg_catalog.pg_constraint con
		  JOIN pg_catalog.pg_class c ON c.oid = con.conrelid
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		  JOIN pg_catalog.pg_class f ON f.oid = con.confrelid
		  JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace
		 WHERE con.contype = 'f'
		   AND n.nspname = $1::text
		   AND c.relname = ANY ($2::text[])`, s.schemaName, dropped)
	if err != nil {
		return fmt.Errorf("look for foreign keys of retired tables: %w", err)
	}
	var schema, table string
	_, err = pgx.ForEachRow(rows, []any{&schema, &table}, func() error {
		touched.add(schema, table, accessExclusive)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for foreign keys of retired tables: %w", err)
	}
	return nil
}

// addNamed locks the tables that user SQL names. An index stands for its table.
func (s *Store) addNamed(ctx context.Context, q querier, named []namedTable, touched *lockSet) error {
	if len(named) == 0 {
		return nil
	}
	var schemas, names []string
	var modes []int32
	for _, n := range named {
		schema := n.schema
		if schema == "" {
			schema = s.schemaName
		}
		schemas, names, modes = append(schemas, schema), append(names, n.name), append(modes, int32(n.mode))
	}
	rows, err := q.Query(ctx, `
		SELECT n.nspname::text, t.relname::text, max(named.mode)
		  FROM unnest($1::text[], $2::text[], $3::integer[]) named(schema, name, mode)
		  JOIN pg_catalog.pg_namespace found ON found.nspname = named.schema
		  JOIN pg_catalog.pg_class c ON c.relnamespace = found.oid AND c.relname = named.name
		  LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
		  JOIN pg_catalog.pg_class t ON t.oid = coalesce(i.indrelid, c.oid)
		  JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
		 WHERE t.relkind IN ('r', 'p')
		   AND n.nspname NOT IN ('pg_catalog', 'information_schema')
		   AND t.relpersistence <> 't'
		 GROUP BY 1, 2`, schemas, names, modes)
	if err != nil {
		return fmt.Errorf("look for the tables that the SQL names: %w", err)
	}
	var schema, table string
	var mode int32
	_, err = pgx.ForEachRow(rows, []any{&schema, &table, &mode}, func() error {
		touched.add(schema, table, lockMode(mode))
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for the tables that the SQL names: %w", err)
	}
	return nil
}

// keepExisting drops tables that a step is yet to create, and those of the sync protocol that this database does not have.
func (s *Store) keepExisting(ctx context.Context, q querier, touched *lockSet) error {
	var schemas, tables []string
	for _, lock := range *touched {
		schemas, tables = append(schemas, lock.schema), append(tables, lock.table)
	}
	rows, err := q.Query(ctx, `
		SELECT n.nspname::text, c.relname::text
		  FROM unnest($1::text[], $2::text[]) wanted(schema, name)
		  JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema
		  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
		 WHERE c.relkind IN ('r', 'p')`, schemas, tables)
	if err != nil {
		return fmt.Errorf("look for the tables to lock: %w", err)
	}
	existing := map[tableLock]bool{}
	var schema, table string
	_, err = pgx.ForEachRow(rows, []any{&schema, &table}, func() error {
		existing[tableLock{schema: schema, table: table}] = true
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for the tables to lock: %w", err)
	}
	*touched = slices.DeleteFunc(*touched, func(l tableLock) bool {
		return !existing[tableLock{schema: l.schema, table: l.table}]
	})
	return nil
}

// takeLocks takes the locks of an attempt: the first with the transaction's lock timeout, holding nothing, and the others without
// waiting at all. So nobody who waits for us can be waited for by us, and no deadlock can come of it. A refusal is a lockRefused.
func takeLocks(ctx context.Context, tx pgx.Tx, locks lockSet) error {
	for i, lock := range locks {
		statement := lock.sql()
		if i > 0 {
			statement += " NOWAIT"
		}
		_, err := tx.Exec(ctx, statement)
		switch sqlState(err) {
		case "":
			if err != nil {
				return err
			}
		case stateLockTimeout:
			return &lockRefused{lock: lock, waited: i == 0}
		case stateNoTable, stateNoSchema:
			return storage.Refuse(storage.CodeSerialization, "lock %s.%s: it went away while the barrier was planned", lock.schema, lock.table)
		default:
			return fmt.Errorf("lock %s.%s: %w", lock.schema, lock.table, err)
		}
	}
	return nil
}

// lockRefused says that a lock was not had. It is turned into a *storage.Error that names who holds it, once the transaction is over.
type lockRefused struct {
	lock   tableLock
	waited bool // as the first of an attempt, up to the timeout
	hidden bool // met by a step, which needs a lock that could not be foreseen
}

func (e *lockRefused) Error() string { return "lock " + e.lock.table + ": not had" }

// explainLock is for the error of a transaction that is over: a lock that was not had becomes CodeLockTimeout with the table to wait
// for first the next time, and with who holds it now. Other errors stay as they are.
func (s *Store) explainLock(ctx context.Context, err error, timeout time.Duration) error {
	return s.explainWanted(ctx, err, accessExclusive, timeout)
}

// explainWanted is explainLock for a lock of this mode, which an error of the server's does not say.
func (s *Store) explainWanted(ctx context.Context, err error, wanted lockMode, timeout time.Duration) error {
	var refused *lockRefused
	if errors.As(err, &refused) {
		wanted, err = refused.lock.mode, s.refusedLock(refused, timeout)
	}
	var locked *storage.Error
	if !errors.As(err, &locked) || locked.Code != storage.CodeLockTimeout || locked.Table == "" || len(locked.Blocked) > 0 {
		return err
	}
	named := *locked
	holders, lookErr := s.holdersOf(ctx, locked.Table, wanted)
	if lookErr != nil {
		named.Hint = "who holds it could not be read: " + lookErr.Error()
	}
	named.Blocked = blockersOf(holders)
	return &named
}

func (s *Store) refusedLock(refused *lockRefused, timeout time.Duration) error {
	name := s.lockName(refused.lock)
	message := fmt.Sprintf("lock %s in %s mode: it is held by another, and with other locks in hand we do not wait", name, refused.lock.mode)
	switch {
	case refused.waited:
		message = fmt.Sprintf("lock %s in %s mode: not had within %s", name, refused.lock.mode, timeout)
	case refused.hidden:
		message = fmt.Sprintf("a step of the barrier needs table %s, which is held by another", name)
	}
	return &storage.Error{Code: storage.CodeLockTimeout, Message: message, Table: name}
}

// holdersOf reads who keeps us from a table that lockName named.
func (s *Store) holdersOf(ctx context.Context, name string, mode lockMode) (holders []holder, err error) {
	err = s.inTx(ctx, "look for who holds "+name, txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		locks, err := s.findTable(ctx, tx, name)
		if err != nil {
			return err
		}
		for i := range locks {
			locks[i].mode = mode
		}
		holders, err = s.holdersIn(ctx, tx, locks)
		return err
	})
	return holders, err
}

// findTable finds the table of a name that lockName wrote.
func (s *Store) findTable(ctx context.Context, q querier, name string) (lockSet, error) {
	rows, err := q.Query(ctx, `
		SELECT n.nspname::text, c.relname::text
		  FROM pg_catalog.pg_class c
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 WHERE c.relkind IN ('r', 'p')
		   AND (n.nspname = $1::text AND c.relname = $2::text OR n.nspname || '.' || c.relname = $2::text)
		 ORDER BY n.nspname = $1::text DESC
		 LIMIT 1`, s.schemaName, name)
	if err != nil {
		return nil, fmt.Errorf("look for table %s: %w", name, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (tableLock, error) {
		lock := tableLock{mode: accessExclusive}
		return lock, row.Scan(&lock.schema, &lock.table)
	})
	if err != nil {
		return nil, fmt.Errorf("look for table %s: %w", name, err)
	}
	return found, nil
}

// deadlockTimeout is after how long a waiting session looks for a deadlock.
func deadlockTimeout(ctx context.Context, q querier) (time.Duration, error) {
	var milliseconds int64
	err := q.QueryRow(ctx, "SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'").Scan(&milliseconds)
	if err != nil {
		return 0, fmt.Errorf("read deadlock_timeout: %w", err)
	}
	return time.Duration(milliseconds) * time.Millisecond, nil
}
