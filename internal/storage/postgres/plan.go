package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// strategyBarrier is the one strategy that a Store carries out by itself.
const strategyBarrier = "Barrier"

// Rates for estimates, measured on two cores with durable settings; they are there to tell seconds from hours.
const (
	rewriteRowsPerSecond  = 150_000
	indexRowsPerSecond    = 600_000
	backfillRowsPerSecond = 100_000
	partitionsPerSecond   = 40_000 // checkpoint rows and fences of listed partitions
	barrierBase           = 20 * time.Millisecond
)

// Plan says what EnsureSchema would do now: locks, statements, rows, how long it would take, and who would be met. It changes nothing, takes no
// lock but those of reading, and works without a catalog. Its look at writers lasts five seconds, and is left out where
// no checkpoint is to be declared, and where target says that it was had. Rows and times are estimates.
//
// Errors: those of storage.Decide. A weakened fence is among the warnings of the decision; EnsureSchema would be refused for it.
func (s *Store) Plan(ctx context.Context, target storage.Target) (storage.Plan, error) {
	b := &barrier{store: s, target: target, timeout: defaultLockTimeout, plans: true}
	err := storage.CheckTarget(target, storage.PostgreSQL)
	if err != nil {
		return storage.Plan{}, err
	}
	if b.types, err = s.canonicalTypes(ctx, target); err != nil {
		return storage.Plan{}, err
	}
	var seen view
	var plan storage.Plan
	o := txOptions{iso: pgx.RepeatableRead, readOnly: true}
	err = s.inTx(ctx, fmt.Sprintf("plan version %d", target.Version), o, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if seen, err = b.lookIn(ctx, tx); err != nil {
			return err
		}
		plan, err = s.planIn(ctx, tx, b, seen)
		return err
	})
	if err != nil {
		return storage.Plan{}, err
	}
	if !target.WritersKnown {
		if plan.Unversioned, err = s.sampleWriters(ctx, plan.Decision.Declare); err != nil {
			return storage.Plan{}, err
		}
	}
	holders, err := s.holders(ctx, seen.locks)
	if err != nil {
		return storage.Plan{}, err
	}
	plan.Blockers = blockersOf(holders)
	return plan, nil
}

func (s *Store) planIn(ctx context.Context, tx pgx.Tx, b *barrier, seen view) (storage.Plan, error) {
	plan := storage.Plan{Decision: seen.decision}
	if seen.fence != nil {
		plan.Decision.Warnings = append(slices.Clone(plan.Decision.Warnings), seen.fence.Error())
	}
	missing, err := s.missingRights(ctx, tx, seen.locks, seen.decision)
	if err != nil {
		return storage.Plan{}, err
	}
	plan.Decision.Warnings = append(slices.Clone(plan.Decision.Warnings), missing...)
	if err := b.wouldRun(ctx, tx, &plan, seen.locks); err != nil {
		return storage.Plan{}, err
	}
	estimates, err := s.estimateRows(ctx, tx, seen.decision)
	if err != nil {
		return storage.Plan{}, err
	}
	estimatePlan(&plan, estimates)
	return plan, nil
}

// wouldRun fills in what a decision locks and runs, and the hash of that.
func (b *barrier) wouldRun(ctx context.Context, q querier, plan *storage.Plan, locks lockSet) error {
	for _, lock := range locks {
		plan.Locks = append(plan.Locks, storage.LockNote{Table: b.store.lockName(lock), Mode: lock.mode.String()})
	}
	r, err := b.store.rendererFor(ctx, q, b.types)
	if err != nil {
		return err
	}
	captures, err := b.store.plannedSources(ctx, q, plan.Decision, b.target.Tables)
	if err != nil {
		return err
	}
	plan.Statements = append(r.planned(plan.Decision), captures...)
	plan.Hash = storage.PlanHash(b.target.ContentHash(b.target.Version), plan.Decision.Stored, strategyBarrier, plan.Locks, plan.Statements)
	return nil
}

// checkApproved refuses a decision that is not the plan which was approved.
func (b *barrier) checkApproved(ctx context.Context, q querier, decision storage.Decision, locks lockSet) error {
	if b.target.PlanHash == "" {
		return nil
	}
	plan := storage.Plan{Decision: decision}
	if err := b.wouldRun(ctx, q, &plan, locks); err != nil {
		return err
	}
	return b.target.CheckApproved(b.what(), plan.Hash)
}

// estimateRows reads how many rows the tables of a decision have, as the server's statistics have it: nothing is counted and nothing
// is locked. Partitions and children count for their parent.
func (s *Store) estimateRows(ctx context.Context, q querier, decision storage.Decision) (map[string]int64, error) {
	var names []string
	for _, step := range decision.Steps {
		if step.Table != "" {
			names = append(names, step.Table)
		}
	}
	for _, c := range decision.Declare {
		names = append(names, c.Backfill.Table())
	}
	rows, err := q.Query(ctx, `
		WITH RECURSIVE tables(name, oid) AS (
		  SELECT c.relname::text, c.oid
		    FROM pg_catalog.pg_class c
		    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		   WHERE n.nspname = $1::text
		     AND c.relname = ANY ($2::text[])
		     AND c.relkind IN ('r', 'p')
		  UNION
		  SELECT tables.name, i.inhrelid
		    FROM tables
		    JOIN pg_catalog.pg_inherits i ON i.inhparent = tables.oid
		)
		SELECT tables.name, sum(greatest(c.reltuples, pg_catalog.pg_stat_get_live_tuples(c.oid), 0))::bigint
		  FROM tables
		  JOIN pg_catalog.pg_class c ON c.oid = tables.oid
		 WHERE c.relkind = 'r'
		 GROUP BY tables.name`, s.schemaName, names)
	if err != nil {
		return nil, fmt.Errorf("estimate rows: %w", err)
	}
	estimates := map[string]int64{}
	var name string
	var count int64
	_, err = pgx.ForEachRow(rows, []any{&name, &count}, func() error {
		estimates[name] = count
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("estimate rows: %w", err)
	}
	return estimates, nil
}

// estimatePlan fills in rows and times. What the SQL of a version takes nobody can tell, so that is said instead.
func estimatePlan(plan *storage.Plan, estimates map[string]int64) {
	plan.Rows = map[string]int64{}
	if plan.Decision.Outcome == storage.Agreed {
		return
	}
	plan.ExpectedHold = barrierBase
	for _, step := range plan.Decision.Steps {
		switch step.Kind {
		case storage.StepRewritePayload:
			plan.Rows[step.Table] = estimates[step.Table]
			plan.ExpectedHold += lasting(estimates[step.Table], rewriteRowsPerSecond)
		case storage.StepCreateIndex:
			plan.ExpectedHold += lasting(estimates[step.Table], indexRowsPerSecond)
		case storage.StepRunSQL:
			plan.Decision.Warnings = append(slices.Clone(plan.Decision.Warnings),
				fmt.Sprintf("the time that the SQL of version %d takes under the lock is not part of the expected hold", step.Version))
		}
	}
	var backfill time.Duration
	for _, c := range plan.Decision.Declare {
		plan.ExpectedHold += lasting(int64(len(c.Rows())), partitionsPerSecond)
		table := c.Backfill.Table()
		if table == "" {
			continue
		}
		plan.Rows[table] = estimates[table]
		rate := int64(backfillRowsPerSecond)
		if limit := int64(c.Settings.MaxRowsPerSecond); limit > 0 {
			rate = min(rate, limit)
		}
		backfill += lasting(estimates[table], rate)
	}
	plan.ExpectedPause = plan.ExpectedHold + backfill
}

func lasting(rows, perSecond int64) time.Duration {
	return time.Duration(float64(rows) / float64(perSecond) * float64(time.Second))
}

// How long and how often the sessions are looked at.
const (
	defaultWriterSample = 5 * time.Second
	samplePause         = 100 * time.Millisecond
)

// sampleWriters looks for some seconds who writes to the sources of checkpoints that are to be declared, without a version in the settings of
// its role or database. A program that sets its version by itself cannot be told from one that has none: more is not claimed. It is for
// people, and decides nothing.
func (s *Store) sampleWriters(ctx context.Context, declared []storage.Checkpoint) ([]storage.UnversionedWriter, error) {
	sources := []string{}
	for _, c := range declared {
		for _, source := range c.Sources {
			sources = append(sources, source.Table)
		}
	}
	if len(sources) == 0 {
		return nil, nil
	}
	seen := map[storage.UnversionedWriter]map[int]bool{}
	for until := time.Now().Add(s.writerSample); time.Now().Before(until); {
		if err := s.sampleOnce(ctx, sources, seen); err != nil {
			return nil, err
		}
		if err := pause(ctx, samplePause); err != nil {
			return nil, translate(err, "look at the writers")
		}
	}
	var writers []storage.UnversionedWriter
	for writer, sessions := range seen {
		writer.Sessions = len(sessions)
		writers = append(writers, writer)
	}
	slices.SortFunc(writers, func(a, b storage.UnversionedWriter) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Application, b.Application), cmp.Compare(a.User, b.User))
	})
	return writers, nil
}

// sampleOnce is a transaction of its own, since pg_stat_activity does not change within one. Workers of ours go by the application name
// of this connection.
func (s *Store) sampleOnce(ctx context.Context, sources []string, seen map[storage.UnversionedWriter]map[int]bool) error {
	return s.inTx(ctx, "look at the writers", txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT coalesce(a.application_name, ''), coalesce(a.usename::text, ''), c.relname::text, l.pid
			  FROM pg_catalog.pg_locks l
			  JOIN pg_catalog.pg_class c ON c.oid = l.relation
			  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			  JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
			 WHERE l.locktype = 'relation'
			   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
			   AND l.mode = 'RowExclusiveLock'
			   AND l.granted
			   AND n.nspname = $1::text
			   AND c.relname = ANY ($2::text[])
			   AND a.application_name <> current_setting('application_name')
			   AND NOT EXISTS (
			     SELECT
			       FROM pg_catalog.pg_db_role_setting set
			      CROSS JOIN LATERAL unnest(set.setconfig) setting
			      WHERE set.setdatabase IN (0, a.datid)
			        AND set.setrole IN (0, a.usesysid)
			        AND setting LIKE 'syncbarrier.writer\_version=%')`, s.schemaName, sources)
		if err != nil {
			return err
		}
		var writer storage.UnversionedWriter
		var pid int
		_, err = pgx.ForEachRow(rows, []any{&writer.Application, &writer.User, &writer.Table, &pid}, func() error {
			if seen[writer] == nil {
				seen[writer] = map[int]bool{}
			}
			seen[writer][pid] = true
			return nil
		})
		return err
	})
}
