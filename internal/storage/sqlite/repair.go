package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// RepairFence puts fence and guards back in one transaction under the write lock, at the highest minimum that row or history say. Repaired
// names what it put back; Findings are those that are left for a person to mend; GotIn counts the commits that were stored below the
// fence meanwhile. CodeFenceBroken without a catalog, CodeNewerCatalog, CodeLockTimeout.
func (s *Store) RepairFence(ctx context.Context) (report storage.FenceReport, err error) {
	err = s.inTx(ctx, "repair the fence of "+s.path, true, func(ctx context.Context, tx *sql.Conn) error {
		before, err := s.fenceReport(ctx, tx)
		if err != nil {
			return err
		}
		if before.Intact() {
			report = before
			return nil
		}
		repaired, err := repair(ctx, tx)
		if err != nil {
			return err
		}
		report, err = s.fenceReport(ctx, tx)
		report.Repaired = repaired
		return err
	})
	if err != nil {
		return storage.FenceReport{}, err
	}
	return report, nil
}

func repair(ctx context.Context, tx *sql.Conn) ([]string, error) {
	objects, err := readObjects(ctx, tx)
	if err != nil {
		return nil, err
	}
	repaired, err := repairObjects(ctx, tx, objects)
	if err != nil {
		return nil, err
	}
	if objects.isTable("sync_writer_fence") {
		// The rows go first: with the triggers in place and no row, everything would be refused.
		for _, rows := range []func(context.Context, querier, schemaObjects) ([]string, error){repairFenceRow, repairListedFences} {
			raised, err := rows(ctx, tx, objects)
			if err != nil {
				return nil, err
			}
			repaired = append(repaired, raised...)
		}
	}
	if objects.isTable("sync_commits") && !objects.hasVersions() {
		// A trigger that names a column which is not there makes SQLite refuse to rename one, so nobody could put the column back.
		return repaired, nil
	}
	var gone []string
	for table := range protocolColumns {
		if !objects.isTable(table) {
			gone = append(gone, table)
		}
	}
	for _, table := range catalogTables {
		if !objects.isTable(table) && !slices.Contains(emptyTables, table) {
			gone = append(gone, table)
		}
	}
	installed, err := installTriggers(ctx, tx, gone)
	if err != nil {
		return nil, err
	}
	for _, name := range installed {
		repaired = append(repaired, "trigger "+name)
	}
	return repaired, nil
}

// repairObjects makes the tables and indexes again that hold nothing of their own.
func repairObjects(ctx context.Context, q querier, objects schemaObjects) ([]string, error) {
	var repaired []string
	for _, statement := range catalogStatements {
		// CREATE TABLE IF NOT EXISTS name(, CREATE INDEX IF NOT EXISTS name ON table
		kind, name := strings.ToLower(strings.Fields(statement)[1]), strings.TrimSuffix(strings.Fields(statement)[5], "(")
		isOurs := slices.Contains(emptyTables, name) || slices.Contains(catalogIndexes, name) && objects.isTable(indexedTable(statement))
		if !isOurs || objects.kinds[name] == kind {
			continue
		}
		if _, err := q.ExecContext(ctx, statement); err != nil {
			return nil, translate(err, "make "+kind+" "+name+" again")
		}
		repaired = append(repaired, kind+" "+name)
	}
	return repaired, nil
}

// indexedTable gives the table of one of our CREATE INDEX statements.
func indexedTable(statement string) string {
	_, on, _ := strings.Cut(statement, " ON ")
	table, _, _ := strings.Cut(on, "(")
	return table
}

// repairFenceRow raises the fence for all to what it was raised to before. A row that holds no number is for a person to mend.
func repairFenceRow(ctx context.Context, q querier, objects schemaObjects) ([]string, error) {
	history, err := readHistory(ctx, q, objects)
	if err != nil {
		return nil, err
	}
	minimum, exists, err := readFence(ctx, q)
	wanted := highestFence(history)
	switch {
	case storage.CodeOf(err) == storage.CodeFenceBroken:
		return nil, nil
	case err != nil:
		return nil, err
	case exists && minimum >= wanted:
		return nil, nil
	}
	if _, err := raiseFence(ctx, q, map[string]int64{storage.AllPartitions: wanted}); err != nil {
		return nil, err
	}
	return []string{"row '*' of sync_writer_fence"}, nil
}
