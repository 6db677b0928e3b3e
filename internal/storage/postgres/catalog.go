package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// ensureCatalog installs or upgrades tables, fence and guards in the caller's transaction, the barrier's. Where this build's revision is
// in place it only reads, so that many starters do not queue behind each other. What has been weakened since it was installed is not
// mended in silence, because rows may have got in: checkFence finds it, and RepairFence mends and counts. A catalog of another
// revision is replaced, at no moment absent.
//
// On a database of a program that follows the sync protocol it adds to that program's tables what is missing; the program's own trigger
// and function are left alone. The locks it needs for that come first: sync_partitions EXCLUSIVE, waited for up to the lock timeout, then
// the others without waiting.
//
// Errors: CodeNewerCatalog; CodeLayoutMismatch for a sync table with other columns, key or kind; CodeInvalidSpec where unqualified
// names mean other tables, or reserved partition keys are in use; CodeFenceBroken for a table that is gone; CodeLockTimeout with
// Table.
func (s *Store) ensureCatalog(ctx context.Context, tx pgx.Tx) error {
	found, err := s.readCatalog(ctx, tx)
	if err != nil {
		return err
	}
	if err := s.checkCatalog(ctx, tx, found); err != nil || found.current() {
		return err
	}
	// One installer at a time: CREATE IF NOT EXISTS of two transactions at once fails with a unique violation. The lock ends
	// with the transaction, behind a pooler too.
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1::text, 0))`,
		"syncbarrier catalog "+s.schema); err != nil {
		return lockError(err, "wait for another installation of the catalog in schema "+s.schemaName, "")
	}
	if found, err = s.readCatalog(ctx, tx); err != nil {
		return err
	}
	if err := s.checkCatalog(ctx, tx, found); err != nil || found.current() {
		return err
	}
	return s.install(ctx, tx, found)
}

// checkCatalog refuses what may not be touched.
func (s *Store) checkCatalog(ctx context.Context, tx pgx.Tx, found foundCatalog) error {
	if err := s.refuseNewer(found); err != nil {
		return err
	}
	if err := s.checkResolution(ctx, tx); err != nil {
		return err
	}
	if !found.inPlace() {
		return nil
	}
	for _, relation := range declaredRelations {
		if relation.kind == "TABLE" && !found.hasTable(relation.name) {
			return storage.Refuse(storage.CodeFenceBroken, "the table %s is gone", s.named(relation.name)).
				WithHint("restore it from a backup")
		}
	}
	return nil
}

// inPlace says whether this build's catalog was installed. Without any revision the functions are gone, or a restore left their comments
// out: then what is there is held against this build's.
func (f foundCatalog) inPlace() bool {
	return f.protocol == storage.CatalogProtocol && !f.ofOtherRelease()
}

// refuseNewer: what a newer Syncbarrier wrote is left alone.
func (s *Store) refuseNewer(found foundCatalog) error {
	if found.protocol <= storage.CatalogProtocol {
		return nil
	}
	return storage.Refuse(storage.CodeNewerCatalog, "the catalog in schema %s has protocol %d, this program knows up to %d",
		s.schemaName, found.protocol, storage.CatalogProtocol).WithHint("use the newer Syncbarrier that wrote it")
}

// current says whether there is nothing to do.
func (f foundCatalog) current() bool { return f.inPlace() && len(f.missing()) == 0 }

// missing gives what of catalog.sql is not there. A table or sequence that is gone although this build's revision was installed is not
// made again: that would hide the loss.
func (f foundCatalog) missing() []declaredRelation {
	var missing []declaredRelation
	for _, relation := range declaredRelations {
		if f.inPlace() && relation.kind != "INDEX" {
			continue
		}
		present := f.version
		if relation.kind != "COLUMN" {
			_, present = f.relations[relation.name]
		}
		if !present {
			missing = append(missing, relation)
		}
	}
	return missing
}

// install makes everything that is missing or of another revision.
func (s *Store) install(ctx context.Context, tx pgx.Tx, found foundCatalog) error {
	if err := s.checkSyncTables(ctx, tx, found); err != nil {
		return err
	}
	if err := s.checkReserved(ctx, tx, found); err != nil {
		return err
	}
	if err := s.lockForInstall(ctx, tx, found, false); err != nil {
		return err
	}
	if err := s.makeRelations(ctx, tx, found); err != nil || found.inPlace() {
		return err
	}
	if err := s.writeOwnerRow(ctx, tx); err != nil {
		return err
	}
	minimum := found.required()
	if found.protocol == 0 {
		if err := s.writeMinimum(ctx, tx, storage.AllPartitions, minimum); err != nil {
			return translate(err, "write the fence for all partitions")
		}
	}
	before, err := s.readCatalog(ctx, tx) // with the tables just made
	if err != nil {
		return err
	}
	if _, err := s.installFunctions(ctx, tx, before); err != nil {
		return err
	}
	_, err = s.installTriggers(ctx, tx, before, minimum)
	return err
}

// lockForInstall takes the locks of what exists, in the order of every barrier. A writer of the protocol takes sync_partitions before
// sync_commits, so the first lock is the one to wait for; whoever holds one of the others is not waited for while we hold it.
// EXCLUSIVE at once, because the barrier needs it later, and a stronger lock asked for later deadlocks with writers that queue.
func (s *Store) lockForInstall(ctx context.Context, tx pgx.Tx, found foundCatalog, holding bool) error {
	commits := "SHARE ROW EXCLUSIVE"
	if !found.version {
		commits = "ACCESS EXCLUSIVE" // for the new column
	}
	first := ""
	if holding {
		first = "NOWAIT"
	}
	locks := []struct{ table, mode, wait string }{
		{"sync_partitions", "EXCLUSIVE", first},
		{"sync_commits", commits, "NOWAIT"},
		{"sync_changes", "SHARE ROW EXCLUSIVE", "NOWAIT"},
		{"sync_schema_meta", "SHARE ROW EXCLUSIVE", "NOWAIT"},
		{"sync_backfill_checkpoints", "SHARE ROW EXCLUSIVE", "NOWAIT"},
		{"sync_writer_fence", "SHARE ROW EXCLUSIVE", "NOWAIT"},
	}
	for _, lock := range locks {
		if !found.hasTable(lock.table) {
			continue
		}
		statement := fmt.Sprintf("LOCK TABLE %s.%s IN %s MODE %s", s.schema, lock.table, lock.mode, lock.wait)
		if _, err := tx.Exec(ctx, statement); err != nil {
			return lockError(err, "lock "+lock.table, lock.table)
		}
	}
	return nil
}

// makeRelations makes the tables, indexes and columns that are missing. The index for coverage questions comes with a new table; on
// one that has rows it is built beforehand, without a lock (ensureCoverageIndex).
func (s *Store) makeRelations(ctx context.Context, tx pgx.Tx, found foundCatalog) error {
	for _, relation := range found.missing() {
		if relation.kind == "COLUMN" && !found.hasTable("sync_commits") {
			continue // the table just made has it
		}
		if _, err := tx.Exec(ctx, s.sql(relation.sql)); err != nil {
			return translate(err, "make "+relation.name)
		}
	}
	if found.hasTable("sync_changes") {
		return nil
	}
	_, err := tx.Exec(ctx, fmt.Sprintf(coverageIndexSQL, "", s.schema+".sync_changes"))
	return translate(err, "make the index "+coverageIndex)
}

// writeOwnerRow notes the catalog's number and which database this is. Nobody owns it yet.
func (s *Store) writeOwnerRow(ctx context.Context, tx pgx.Tx) error {
	system, err := systemIdentifier(ctx, tx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_barrier_owner(id, protocol, cluster, namespace, name, uid, system_identifier, updated_at_ms)
		VALUES (1, $1::integer, '', '', '', '', $2::text, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
		    ON CONFLICT (id) DO UPDATE SET protocol = EXCLUDED.protocol`), storage.CatalogProtocol, system)
	return translate(err, "write the catalog's protocol number")
}

// checkReserved refuses a database in which somebody uses partition keys that are ours.
func (s *Store) checkReserved(ctx context.Context, tx pgx.Tx, found foundCatalog) error {
	if found.protocol != 0 || len(found.functions) > 0 {
		return nil
	}
	for _, table := range []string{"sync_partitions", "sync_partition_registry", "sync_writer_fence", "sync_backfill_checkpoints"} {
		if !found.hasTable(table) {
			continue
		}
		rows, err := tx.Query(ctx, fmt.Sprintf(`
			SELECT partition
			  FROM %s.%s
			 WHERE partition = $1::text
			    OR starts_with(partition, $2::text)
			 ORDER BY partition
			 LIMIT 1`, s.schema, table), storage.AllPartitions, storage.CapturePrefix)
		if err != nil {
			return translate(err, "look for reserved partition keys in "+table)
		}
		keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return translate(err, "look for reserved partition keys in "+table)
		}
		if len(keys) > 0 {
			return storage.Refuse(storage.CodeInvalidSpec, "table %s has the partition key %q, but %q and keys beginning with %q are reserved",
				s.named(table), keys[0], storage.AllPartitions, storage.CapturePrefix)
		}
	}
	return nil
}

// checkResolution refuses a database in which the sync tables' bare names mean other tables than ours for a program that connects as we
// do: it would write past fence and guards. Where our schema is not in such a program's search_path at all, its tables are its
// own business.
func (s *Store) checkResolution(ctx context.Context, tx pgx.Tx) error {
	const what = "resolve the names of the sync tables"
	_, err := tx.Exec(ctx, `
		SELECT pg_catalog.set_config('search_path', (SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'search_path'), true)`)
	if err != nil {
		return translate(err, what)
	}
	rows, err := tx.Query(ctx, `
		SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
		  FROM pg_catalog.unnest($1::text[]) AS name
		  JOIN pg_catalog.pg_class AS c ON c.oid = pg_catalog.to_regclass(name)
		  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		 WHERE n.nspname <> $2::text
		   AND $2::name = ANY(pg_catalog.current_schemas(false))
		 ORDER BY 1`, syncTables(), s.schemaName)
	if err != nil {
		return translate(err, what)
	}
	others, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return translate(err, what)
	}
	if _, err := tx.Exec(ctx, s.pinnedSQL()); err != nil {
		return translate(err, what)
	}
	if len(others) > 0 {
		return storage.Refuse(storage.CodeInvalidSpec, "a program that connects as we do finds the table %s under its bare name, and not the one of schema %s",
			others[0], s.schemaName).WithHint("name the schema that the programs use, or change the search_path")
	}
	return nil
}

// syncTables are the tables of the sync protocol.
func syncTables() []string {
	var tables []string
	for _, relation := range declaredRelations {
		if relation.kind == "TABLE" && !slices.Contains(ownTables, relation.name) {
			tables = append(tables, relation.name)
		}
	}
	return tables
}

// ownTables are the tables that only we use, in the order in which they are dropped.
var ownTables = []string{
	"sync_backfill_leftovers", "sync_backfill_progress", "sync_backfill_definitions", "sync_barrier_history", "sync_barrier_owner",
}
