package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Remove lists, in order, the statements that drop all that is ours: triggers, functions, indexes, the sequence, our tables, and the rows for
// all partitions in the protocol's tables. With apply it runs them in one transaction, under the locks of a barrier. The tables
// of the sync protocol and all application columns stay. Without a catalog the list is empty. Errors: CodeLockTimeout with Table.
func (s *Store) Remove(ctx context.Context, apply bool) ([]string, error) {
	var statements []string
	what := "remove the catalog"
	err := s.inTx(ctx, what, txOptions{readOnly: !apply}, func(ctx context.Context, tx pgx.Tx) error {
		found, err := s.readCatalog(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.refuseNewer(found); err != nil {
			return err
		}
		if apply && found.protocol != 0 {
			if err := s.lockForRemoval(ctx, tx, found); err != nil {
				return err
			}
			if found, err = s.readCatalog(ctx, tx); err != nil {
				return err
			}
		}
		if statements, err = s.captureRemovals(ctx, tx, found); err != nil {
			return err
		}
		statements = append(statements, s.removal(found)...)
		if !apply {
			return nil
		}
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return lockError(err, what+": "+statement, "")
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return statements, nil
}

// captureRemovals gives the statements that take triggers, fences and functions of captured tables away, then what they wrote: a catalog
// that is installed again must find nothing under keys of its own. The guards of the log have to be gone by then, so the rows go last.
func (s *Store) captureRemovals(ctx context.Context, q querier, found foundCatalog) ([]string, error) {
	if found.protocol == 0 {
		return nil, nil
	}
	sources, err := s.readSources(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	var statements []string
	for _, source := range sortedSources(sources) {
		statements = append(statements, s.captureRemoval(source, true)...)
	}
	functions, err := s.readCaptureFunctions(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	for _, table := range slices.Sorted(maps.Keys(functions)) {
		if sources[table] == nil { // the table was dropped, and its triggers with it
			statements = append(statements, fmt.Sprintf("DROP FUNCTION %s()", s.functionName(functions[table].name)))
		}
	}
	return statements, nil
}

// lockForRemoval takes the strongest mode of each table at once: to drop a trigger needs it. Captured tables first, as their writers come
// from there to the log.
func (s *Store) lockForRemoval(ctx context.Context, tx pgx.Tx, found foundCatalog) error {
	tables := slices.Concat([]string{"sync_partitions", "sync_commits", "sync_changes", "sync_schema_meta", "sync_backfill_checkpoints", "sync_writer_fence"}, ownTables)
	wait := ""
	sources, err := s.sourceLocks(ctx, tx)
	if err != nil {
		return err
	}
	for _, lock := range sources {
		lock.mode = accessExclusive
		if _, err := tx.Exec(ctx, lock.sql()+" "+wait); err != nil {
			return lockError(err, "lock "+s.lockName(lock), s.lockName(lock))
		}
		wait = "NOWAIT"
	}
	for _, table := range tables {
		if !found.hasTable(table) {
			continue
		}
		statement := fmt.Sprintf("LOCK TABLE %s.%s IN ACCESS EXCLUSIVE MODE %s", s.schema, table, wait)
		if _, err := tx.Exec(ctx, statement); err != nil {
			return lockError(err, "lock "+table, table)
		}
		wait = "NOWAIT" // only the first lock is waited for
	}
	return nil
}

// removal gives the statements. A name of ours in front of something that is not there any more is left out.
func (s *Store) removal(found foundCatalog) []string {
	if found.protocol == 0 {
		return nil
	}
	var statements []string
	add := func(format string, args ...any) { statements = append(statements, fmt.Sprintf(format, args...)) }
	for _, t := range found.triggers {
		if t.isRoot && declaredHere(t) {
			add("DROP TRIGGER %s ON %s", quoteIdentifier(t.name), t.relation)
		}
	}
	for _, function := range declaredFunctions {
		if _, exists := found.functions[function.name]; exists {
			add("DROP FUNCTION %s()", s.functionName(function.name))
		}
	}
	for _, table := range []string{"sync_backfill_checkpoints", "sync_writer_fence"} {
		if found.hasTable(table) {
			add("DELETE FROM %s.%s WHERE partition = %s", s.schema, table, quoteLiteral(storage.AllPartitions))
		}
	}
	for _, table := range []string{"sync_changes", "sync_commits", "sync_partitions"} {
		if found.hasTable(table) {
			add("DELETE FROM %s.%s WHERE partition = %s OR starts_with(partition, %s)", s.schema, table,
				quoteLiteral(storage.AllPartitions), quoteLiteral(storage.CapturePrefix))
		}
	}
	if _, exists := found.relations[coverageIndex]; exists {
		add("DROP INDEX %s.%s", s.schema, coverageIndex)
	}
	for _, relation := range slices.Backward(declaredRelations) {
		if _, exists := found.relations[relation.name]; exists && (relation.kind == "INDEX" || relation.kind == "SEQUENCE") {
			add("DROP %s %s.%s", relation.kind, s.schema, relation.name)
		}
	}
	for _, table := range ownTables {
		if found.hasTable(table) {
			add("DROP TABLE %s.%s", s.schema, table)
		}
	}
	return statements
}
