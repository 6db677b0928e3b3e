package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Locks of an activation with captured sources (docs/design.md section 6). A program takes rows and partitions in turn, so no order of them is
// free of cycles: nobody may wait for it for long while holding what it may want. Each wait is bounded by a quarter of deadlock_timeout and
// all together by half of it, so the program's own deadlock detector, which looks after the whole, never finds us. An attempt that is
// refused lets everything go.

// locksTables says whether the attempt locks whole tables. A row '*' always does where sources are captured: nobody knows which partitions will
// appear. Then nobody who writes a source is in flight, prepared transactions included, and no row has to be locked.
func (a *activation) locksTables() bool {
	return a.Tables || a.plan.captures() && (a.partition() == storage.AllPartitions || a.coversPartitions())
}

// coversPartitions says whether a listed row stands for all partitions of a source, because its own table has none.
func (a *activation) coversPartitions() bool {
	return a.plan.bareOf(a.partition()) == storage.AllPartitions &&
		slices.ContainsFunc(a.plan.captureRules(), func(rule captured) bool { return rule.partition.column != nil })
}

// lockTables keeps all writers of the sources and of the backfilled table out until COMMIT. Readers pass.
func (a *activation) lockTables(ctx context.Context) error {
	tables := a.plan.sourceTables()
	if target := a.plan.table.declared.Name; target != "" { // a program of the user's own fills what it likes
		tables = append(tables, target)
	}
	slices.Sort(tables)
	for _, table := range slices.Compact(tables) {
		if err := a.lockOne(ctx, table, "LOCK TABLE "+a.store.tableSQL(table)+" IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
	}
	return nil
}

// lockSources takes the sources as a writer does. It waits for a TRUNCATE and an ALTER TABLE in flight, and keeps new ones out: they
// take no partition, so without it one could commit between our look at the log and our COMMIT.
func (a *activation) lockSources(ctx context.Context) error {
	for _, table := range a.plan.sourceTables() {
		if err := a.lockOne(ctx, table, "LOCK TABLE "+a.store.tableSQL(table)+" IN ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
	}
	return nil
}

// lockKnownRest locks the rows that are still to be done, as far as the log shows them now, in the order of their keys. Without it the
// partition would be taken first, and a hot row in it would be new in the log, and held, each time: the attempt would never end. Once we have
// such a row, those who want it wait without having captured it, and those who have captured it end.
func (a *activation) lockKnownRest(ctx context.Context) error {
	known, err := a.readTheRest(ctx)
	if err != nil || len(known.keys) == 0 {
		return err
	}
	table := a.plan.table.declared.Name
	if err := a.waitInAll(ctx); err != nil {
		return err
	}
	if _, err := a.lockKeys(ctx, known.keys, waitLocked); err != nil {
		return a.refused(table, err)
	}
	if a.firstLock.IsZero() {
		a.firstLock = time.Now()
	}
	return a.waitAsBefore(ctx)
}

// lockCaptured takes the captured partitions of the row. A program that has captured a change holds its partition FOR KEY SHARE until it
// ends, so this waits for exactly those; whoever comes to capture one later waits for our COMMIT, and his change comes after the activation.
// Without it a change could commit between our look at the log and our COMMIT, and nobody would ever read it.
func (a *activation) lockCaptured(ctx context.Context) error {
	const table = "sync_partitions"
	rules := a.plan.captureRules()
	bare := a.plan.bareOf(a.partition())
	shared := []string{} // the rows that those share who write a partition without a row
	for _, rule := range rules {
		if rule.partition.column == nil {
			continue // the barrier made its partitions
		}
		shared = append(shared, rule.prefix())
		if bare == storage.AllPartitions {
			continue
		}
		// It has a row from now on, that no writer can share. Were there none, a worker could make it after we looked.
		err := a.lockOne(ctx, table, a.store.sql(`
			INSERT INTO {schema}.sync_partitions(partition)
			SELECT {key}
			    ON CONFLICT (partition) DO NOTHING`, "key", rule.keyOfText(quoteText(bare))))
		if err != nil {
			return err
		}
	}
	if err := a.waitInAll(ctx); err != nil {
		return err
	}
	_, err := a.Exec(ctx, a.store.sql(`
		SELECT
		  FROM {schema}.sync_partitions p
		 WHERE p.partition IN (SELECT d.partition FROM ({due}) AS d)
		    OR p.partition = ANY ($1::text[])
		 ORDER BY p.partition
		   FOR UPDATE`, "due", a.store.dueSQL(rules, bare)), shared)
	if err != nil {
		return a.refused(table, err)
	}
	return a.waitAsBefore(ctx)
}

// waitInAll bounds the next statement, which may wait for many rows one after the other, as a whole.
func (a *activation) waitInAll(ctx context.Context) error {
	if err := a.wait(ctx); err != nil {
		return err
	}
	return a.statementTimeout(ctx, time.Until(a.deadline))
}

func (a *activation) waitAsBefore(ctx context.Context) error {
	return a.statementTimeout(ctx, activationStatement)
}

func (a *activation) statementTimeout(ctx context.Context, timeout time.Duration) error {
	_, err := a.Exec(ctx, "SELECT set_config('statement_timeout', $1::bigint::text, true)", max(1, milliseconds(timeout)))
	if err != nil {
		return fmt.Errorf("bound the next statement: %w", err)
	}
	return nil
}

// lockForRest is how the rows of the rest are locked once nothing can be added to it. Where partitions are captured nobody is waited for any
// more: he may be waiting for the partition that we hold.
func (a *activation) lockForRest() rowLock {
	switch {
	case a.locksTables():
		return tableIsHeld
	case a.plan.captures():
		return onlyFree
	default:
		return waitLocked
	}
}

// endCaptures switches the capture of sources off that no checkpoint needs after this activation. Only where the tables are locked anyway: else
// it is a transaction of its own, after this one.
func (a *activation) endCaptures(ctx context.Context) error {
	if !a.locksTables() {
		return nil
	}
	for _, table := range a.plan.capturedTables() {
		if _, err := a.store.disableUnused(ctx, a.Tx, table); err != nil {
			return err
		}
	}
	return nil
}

// tableSQL names a table of our schema in full.
func (s *Store) tableSQL(table string) string { return s.schema + "." + quoteIdentifier(table) }
