package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// sourceLockSets are the locks that a barrier needs on sources beside those of its steps. captured are the tables whose triggers it
// installs, completes, switches off or raises. They come first of all (docs/design.md section 3, "Locks of a barrier"): a captured program
// holds its table when its trigger comes to the log, so whoever took the log first and then waited for the table would deadlock with
// it. logged are the tables whose program writes the log itself; it locks its partition before its rows, so they come behind that.
func (s *Store) sourceLockSets(ctx context.Context, q querier, decision storage.Decision) (captured, logged lockSet, err error) {
	for _, c := range decision.Declare {
		for _, source := range c.Sources {
			if source.Changes == storage.Capture {
				captured.add(s.schemaName, source.Table, shareRowExclusive)
			} else {
				logged.add(s.schemaName, source.Table, shareRowExclusive)
			}
		}
	}
	if err := s.addStoredSources(ctx, q, &captured, &logged); err != nil {
		return nil, nil, err
	}
	if err := s.keepExisting(ctx, q, &captured); err != nil { // a table that a step creates is nobody else's yet
		return nil, nil, err
	}
	if _, forAll := decision.Raise[storage.AllPartitions]; forAll {
		fenced, err := s.sourceLocks(ctx, q)
		if err != nil {
			return nil, nil, err
		}
		for _, lock := range fenced {
			captured.add(lock.schema, lock.table, lock.mode)
		}
	}
	slices.SortFunc(captured, func(a, b tableLock) int {
		return cmp.Or(cmp.Compare(a.schema, b.schema), cmp.Compare(a.table, b.table))
	})
	return captured, logged, nil
}

// addStoredSources adds those of the checkpoints that are declared already: sources that open ones read, and sources whose capture nobody
// needs any more.
func (s *Store) addStoredSources(ctx context.Context, q querier, captured, logged *lockSet) error {
	installed, err := s.hasDefinitions(ctx, q)
	if err != nil || !installed {
		return err
	}
	needs, err := s.readSourceNeeds(ctx, q)
	if err != nil || len(needs) == 0 {
		return err
	}
	sources, err := s.readSources(ctx, q, tablesOfNeeds(needs))
	if err != nil {
		return err
	}
	for _, need := range needs {
		name := need.table.Name
		source := sources[name]
		switch {
		case source == nil:
		case need.capture, need.unused && source.capturing():
			captured.add(s.schemaName, name, shareRowExclusive)
		case !need.unused && !source.logsTruncate():
			logged.add(s.schemaName, name, shareRowExclusive)
		}
	}
	return nil
}

func tablesOfNeeds(needs []*sourceNeed) []string {
	tables := make([]string, len(needs))
	for i, need := range needs {
		tables[i] = need.table.Name
	}
	return tables
}

// sourcesToDeclare is sourceLockSets for one checkpoint that is declared outside a barrier.
func (s *Store) sourcesToDeclare(ctx context.Context, q querier, checkpoint storage.Checkpoint, raisesAll bool) (captured, logged lockSet, err error) {
	var tables []string
	for _, source := range checkpoint.Sources {
		tables = append(tables, source.Table)
	}
	sources, err := s.readSources(ctx, q, tables)
	if err != nil {
		return nil, nil, err
	}
	for _, source := range checkpoint.Sources {
		found := sources[source.Table]
		switch {
		case found == nil: // refused under the locks
		case source.Changes == storage.Capture:
			captured.add(s.schemaName, source.Table, shareRowExclusive)
		case !found.logsTruncate():
			logged.add(s.schemaName, source.Table, shareRowExclusive)
		}
	}
	if !raisesAll {
		return captured, logged, nil
	}
	fenced, err := s.sourceLocks(ctx, q)
	for _, lock := range fenced {
		captured.add(lock.schema, lock.table, lock.mode)
	}
	return captured, logged, err
}

// captures says whether triggers write the changes of some source of a checkpoint.
func captures(c storage.Checkpoint) bool {
	return slices.ContainsFunc(c.Sources, func(source storage.Source) bool { return source.Changes == storage.Capture })
}

// ensureSourcesOf is ensureCapture for the sources of one checkpoint that is declared outside a barrier.
func (s *Store) ensureSourcesOf(ctx context.Context, tx pgx.Tx, checkpoint storage.Checkpoint, minimum int64) error {
	needs, err := s.readSourceNeeds(ctx, tx)
	if err != nil {
		return err
	}
	for _, need := range needs {
		if need.unused || !slices.ContainsFunc(checkpoint.Sources, func(source storage.Source) bool { return source.Table == need.table.Name }) {
			continue
		}
		if err := s.ensureSource(ctx, tx, need, minimum); err != nil {
			return err
		}
	}
	return nil
}

// hasDefinitions says whether there is a catalog that could declare a source.
func (s *Store) hasDefinitions(ctx context.Context, q querier) (bool, error) {
	var exists bool
	err := q.QueryRow(ctx, `
		SELECT EXISTS (
		  SELECT
		    FROM pg_catalog.pg_class c
		    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		   WHERE n.nspname = $1::text
		     AND c.relname = 'sync_backfill_definitions')`, s.schemaName).Scan(&exists)
	return exists, translate(err, "look for the catalog")
}

// plannedSources lists the triggers that a decision's checkpoints put on their sources. What the barrier's own steps make first cannot be
// read yet, so it is only named.
func (s *Store) plannedSources(ctx context.Context, q querier, decision storage.Decision, tables []storage.Table) ([]string, error) {
	var definitions []storage.Definition
	open := map[string]bool{}
	for _, c := range decision.Declare {
		definitions = append(definitions, storage.NewDefinition(c, tables))
		open[c.Name] = true
	}
	needs, err := sourceNeeds(definitions, open)
	if err != nil {
		return nil, err
	}
	var planned []string
	for _, need := range needs {
		if !need.capture {
			continue
		}
		planned = append(planned, fmt.Sprintf("-- capture the changes of table %q by triggers, from COMMIT on", need.table.Name))
		c, err := s.readCaptured(ctx, q, need.table, need.source, need.targets)
		if storage.CodeOf(err) == storage.CodeInvalidSpec && changesColumns(decision, need.table.Name) {
			continue
		}
		if err != nil {
			return nil, err
		}
		statements, err := s.plannedCapture(c, decision.MinWriter)
		if err != nil {
			return nil, err
		}
		planned = append(planned, statements...)
	}
	return planned, nil
}

// changesColumns says whether the steps of a decision may change what columns a table has.
func changesColumns(decision storage.Decision, table string) bool {
	return slices.ContainsFunc(decision.Steps, func(step storage.Step) bool {
		return step.Kind == storage.StepRunSQL || step.Table == table && (step.Kind == storage.StepCreateTable || step.Kind == storage.StepAddColumn)
	})
}

// asWriter lets statements of this transaction pass the fences of captured tables: SQL of a version, and the batches of its backfill, write
// as programs of that version do.
func asWriter(version int64) string {
	return fmt.Sprintf("SET LOCAL %s = '%d';", writerVersionSetting, version)
}

// captureFindings is checkCapture for the check of the fence.
func (s *Store) captureFindings(ctx context.Context, q querier, found foundCatalog) ([]storage.FenceFinding, error) {
	if !found.readable("sync_backfill_definitions") || !found.readable("sync_backfill_checkpoints") {
		return nil, nil // which is a finding of its own
	}
	return s.checkCapture(ctx, q, found.required(), found.owner)
}

// lockSources takes every table that a repair may have to put a trigger on, only the first with waiting. It says whether there was one.
func (s *Store) lockSources(ctx context.Context, tx pgx.Tx, found foundCatalog) (bool, error) {
	if !found.readable("sync_backfill_definitions") || !found.readable("sync_backfill_checkpoints") {
		return false, nil
	}
	needs, err := s.readSourceNeeds(ctx, tx)
	if err != nil {
		return false, err
	}
	var locks lockSet
	for _, need := range needs {
		locks.add(s.schemaName, need.table.Name, shareRowExclusive)
	}
	if err := s.keepExisting(ctx, tx, &locks); err != nil {
		return false, err
	}
	fenced, err := s.sourceLocks(ctx, tx)
	if err != nil {
		return false, err
	}
	for _, lock := range fenced {
		locks.add(lock.schema, lock.table, lock.mode)
	}
	return len(locks) > 0, takeLocks(ctx, tx, locks)
}

// repairCapture puts capture and the fences of sources back, under the locks of lockSources. It names what was not as it should be.
func (s *Store) repairCapture(ctx context.Context, tx pgx.Tx, found foundCatalog) ([]string, error) {
	findings, err := s.captureFindings(ctx, tx, found)
	if err != nil || len(findings) == 0 {
		return nil, err
	}
	needs, err := s.readSourceNeeds(ctx, tx)
	if err != nil {
		return nil, err
	}
	sources, err := s.readSources(ctx, tx, tablesOfNeeds(needs))
	if err != nil {
		return nil, err
	}
	for _, need := range needs {
		if sources[need.table.Name] == nil {
			continue // it is gone, which only a person can judge
		}
		if err := s.repairSource(ctx, tx, need, found.required()); err != nil {
			return nil, err
		}
	}
	if err := s.raiseSourceFences(ctx, tx, found.required()); err != nil { // those that no definition names any more
		return nil, err
	}
	var repaired []string
	for _, finding := range findings {
		if finding.Repairable && !slices.Contains(repaired, finding.Object) {
			repaired = append(repaired, finding.Object)
		}
	}
	return repaired, nil
}

// repairSource puts back what of one source is missing. A source that cannot be captured any more is left to a person: the check names it.
func (s *Store) repairSource(ctx context.Context, tx pgx.Tx, need *sourceNeed, minimum int64) error {
	if need.fenced {
		source, err := s.lockSource(ctx, tx, need.table.Name, shareRowExclusive)
		if err != nil || source == nil {
			return err
		}
		for _, t := range source.fences(max(minimum, source.enforced())) {
			if err := s.installSourceTrigger(ctx, tx, source, t); err != nil {
				return err
			}
		}
	}
	if need.unused {
		return nil
	}
	err := s.ensureSource(ctx, tx, need, minimum)
	if storage.CodeOf(err) == storage.CodeInvalidSpec {
		return nil // found before anything was tried at the server
	}
	return err
}
