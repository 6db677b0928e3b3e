package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Plan says what EnsureSchema would do now, from one snapshot. It changes nothing and takes no lock (storage.Barriers). Nobody can be
// seen writing to an SQLite file without a version beforehand, so Unversioned stays empty.
func (s *Store) Plan(ctx context.Context, target storage.Target) (plan storage.Plan, err error) {
	if err := storage.CheckTarget(target, storage.SQLite); err != nil {
		return storage.Plan{}, err
	}
	err = s.inTx(ctx, fmt.Sprintf("plan version %d of %s", target.Version, s.path), false, func(ctx context.Context, tx *sql.Conn) error {
		found, err := s.foresee(ctx, tx, target)
		if err != nil {
			return err
		}
		plan, err = s.planOf(ctx, tx, found)
		return err
	})
	if err != nil {
		return storage.Plan{}, err
	}
	plan.Blockers = s.blockers()
	return plan, nil
}

// foresee reads the facts in the caller's transaction and decides for a plan.
func (s *Store) foresee(ctx context.Context, q querier, target storage.Target) (finding, error) {
	f, err := s.find(ctx, q, target)
	if err != nil {
		return f, err
	}
	if f.facts, err = readFacts(ctx, q, f.objects, target); err == nil {
		f.decision, err = storage.DecidePlan(target, f.facts)
	}
	return f, err
}

// planOf describes a decision.
func (s *Store) planOf(ctx context.Context, q querier, found finding) (storage.Plan, error) {
	plan := wouldRun(found)
	if found.decision.Outcome == storage.Migrate {
		if err := s.estimate(ctx, q, found, &plan); err != nil {
			return storage.Plan{}, err
		}
	}
	return plan, nil
}

// wouldRun is what a decision locks and runs, and the hash of that.
func wouldRun(found finding) storage.Plan {
	plan := storage.Plan{Decision: found.decision, Rows: map[string]int64{}}
	plan.Statements = planned(found)
	if len(plan.Statements) > 0 {
		// One lock for all writers. Readers go on in a file with a write-ahead log.
		plan.Locks = []storage.LockNote{{Table: "the database file", Mode: "IMMEDIATE"}}
	}
	plan.Hash = storage.PlanHash(found.target.ContentHash(found.target.Version), found.decision.Stored, "Barrier", plan.Locks, plan.Statements)
	return plan
}

// planned lists all statements of a decision for people, as they run, in order.
func planned(found finding) []string {
	var statements []string
	if found.installs() {
		statements = append(statements, catalogStatements...)
		for _, t := range triggers {
			statements = append(statements, t.sql)
		}
	}
	for _, step := range found.decision.Steps {
		statements = append(statements, renderStep(step, found.objects)...)
	}
	if found.decision.Outcome == storage.Migrate {
		statements = append(statements, renderMarker(found.decision, found.facts.Marker != nil))
	}
	for _, c := range found.decision.Declare {
		statements = append(statements, fmt.Sprintf("-- declare checkpoint %q of version %d in %s", c.Name, c.Version, partitionsOf(c)))
	}
	for _, partition := range sortedKeys(found.decision.Raise) {
		whose := "all partitions"
		if partition != storage.AllPartitions {
			whose = fmt.Sprintf("partition %q", partition)
		}
		statements = append(statements, fmt.Sprintf("-- raise the fence of %s to writer version %d", whose, found.decision.Raise[partition]))
	}
	return statements
}

func partitionsOf(c storage.Checkpoint) string {
	if len(c.Partitions) == 0 {
		return "all partitions"
	}
	const shown = 10
	names := make([]string, 0, shown)
	for _, partition := range c.Partitions[:min(len(c.Partitions), shown)] {
		names = append(names, fmt.Sprintf("%q", partition))
	}
	text := strings.Join(names, ", ")
	if more := len(c.Partitions) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Rates for estimates, measured with this driver on a small machine. They tell seconds from hours, not more.
const (
	baseHold         = 20 * time.Millisecond
	rewritesASecond  = 200_000 // rows of a table whose payloads are rewritten
	indexedASecond   = 400_000 // rows put into an index
	backfilledSecond = 50_000  // rows filled in batches
)

// estimate counts the rows at hand and says how long they take.
func (s *Store) estimate(ctx context.Context, q querier, found finding, plan *storage.Plan) error {
	hold := baseHold
	counts := map[string]int64{}
	rowsOf := func(table string) (int64, error) {
		if count, counted := counts[table]; counted || !found.objects.isTable(table) {
			return count, nil
		}
		count, err := countOf(ctx, q, "rows of "+table, "SELECT count(*) FROM "+quoteIdentifier(table))
		counts[table] = count
		return count, err
	}
	for _, step := range found.decision.Steps {
		rate := int64(0)
		switch step.Kind {
		case storage.StepRewritePayload:
			rate = rewritesASecond
		case storage.StepCreateIndex:
			rate = indexedASecond
		default:
			continue
		}
		rows, err := rowsOf(step.Table)
		if err != nil {
			return err
		}
		hold += time.Duration(rows) * time.Second / time.Duration(rate)
		if step.Kind == storage.StepRewritePayload {
			plan.Rows[step.Table] = rows
		}
	}
	var filled int64
	var tables []string
	for _, c := range found.decision.Declare {
		table := c.Backfill.Table()
		if table == "" || slices.Contains(tables, table) {
			continue
		}
		tables = append(tables, table)
		rows, err := rowsOf(table)
		if err != nil {
			return err
		}
		plan.Rows[table] = rows
		filled += rows
	}
	plan.ExpectedHold = hold
	plan.ExpectedPause = hold + time.Duration(filled)*time.Second/backfilledSecond
	return nil
}
