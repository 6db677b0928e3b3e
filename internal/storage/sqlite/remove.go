package sqlite

import (
	"context"
	"database/sql"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Remove lists the statements that drop all that is ours, the rows for all partitions in the protocol's tables included, and with apply runs
// them in one transaction under the write lock. The tables of the sync protocol and the application's stay, and so does what the
// protocol's own trigger refuses. Without a catalog there is nothing to list. CodeNewerCatalog, CodeLockTimeout.
func (s *Store) Remove(ctx context.Context, apply bool) (statements []string, err error) {
	err = s.inTx(ctx, "remove Syncbarrier from "+s.path, apply, func(ctx context.Context, tx *sql.Conn) error {
		statements, err = removal(ctx, tx)
		if err != nil || !apply {
			return err
		}
		for _, statement := range statements {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return translate(err, "remove Syncbarrier: "+statement)
			}
		}
		return nil
	})
	return statements, err
}

// removal gives the statements: triggers first, since they refuse the rest.
func removal(ctx context.Context, q querier) ([]string, error) {
	objects, err := readObjects(ctx, q)
	if err != nil {
		return nil, err
	}
	recorded, err := readOwner(ctx, q, objects)
	if err != nil {
		return nil, err
	}
	if recorded.protocol > storage.CatalogProtocol {
		return nil, newerCatalog(recorded.protocol)
	}
	standing, err := readTriggers(ctx, q)
	if err != nil {
		return nil, err
	}
	var statements []string
	for _, name := range sortedKeys(standing) {
		if strings.HasPrefix(name, triggerPrefix) {
			statements = append(statements, "DROP TRIGGER "+quoteIdentifier(name))
		}
	}
	if recorded.protocol != 0 {
		// No program of the sync protocol knows the partition '*'; left behind, it would be taken for a partition in use.
		for _, table := range []string{"sync_backfill_checkpoints", "sync_writer_fence"} {
			if objects.isTable(table) {
				statements = append(statements, "DELETE FROM "+table+" WHERE partition = '*'")
			}
		}
	}
	for _, name := range catalogIndexes {
		if objects.kinds[name] == "index" {
			statements = append(statements, "DROP INDEX "+quoteIdentifier(name))
		}
	}
	for _, name := range catalogTables {
		if objects.isTable(name) {
			statements = append(statements, "DROP TABLE "+quoteIdentifier(name))
		}
	}
	return statements, nil
}
