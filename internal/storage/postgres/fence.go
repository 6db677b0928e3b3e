package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// maxRecordedPositions is up to how many partitions a raise for all notes the log position of each, so that commits that got past a weakened
// fence later can be counted. It takes milliseconds under the lock; a list of 100,000 would not.
const maxRecordedPositions = 1000

// raiseFence raises the minimum writer version of partitions, and of all with storage.AllPartitions, in the caller's transaction. A
// minimum that is there already and not lower stays. It returns the positions of the log at the raise: of each partition
// raised; for a raise for all the sum under storage.AllPartitions and, of up to 1,000 partitions, each that is above 0. So
// where the single ones add up to the sum, the list is complete. For captured partitions one number stands under storage.CapturePrefix.
//
// It waits for the appends that are open in a raised partition, or for all open inserts into the log, up to the lock timeout.
// Errors: CodeLockTimeout with Table.
func (s *Store) raiseFence(ctx context.Context, tx pgx.Tx, raise map[string]int64) (map[string]int64, error) {
	raised := map[string]int64{}
	// Single partitions first: the guard touches their rows of sync_partitions, which the protocol's writers hold when they
	// insert into sync_commits. The other way round, a writer and we would wait for each other.
	for _, partition := range slices.Sorted(maps.Keys(raise)) {
		if partition == storage.AllPartitions {
			continue
		}
		position, err := s.raisePartition(ctx, tx, partition, raise[partition])
		if err != nil {
			return nil, err
		}
		raised[partition] = position
	}
	if minimum, ok := raise[storage.AllPartitions]; ok {
		if err := s.raiseForAll(ctx, tx, minimum, raised); err != nil {
			return nil, err
		}
	}
	return raised, nil
}

// raisePartition writes the partition's own row. The guard on the table updates the row of sync_partitions before, which is what
// makes writers with an older snapshot fail.
func (s *Store) raisePartition(ctx context.Context, tx pgx.Tx, partition string, minimum int64) (int64, error) {
	what := fmt.Sprintf("raise the fence of partition %q to %d", partition, minimum)
	if err := s.writeMinimum(ctx, tx, partition, minimum); err != nil {
		return 0, lockError(err, what, "sync_partitions")
	}
	var position int64
	err := tx.QueryRow(ctx, s.sql(`
		SELECT coalesce(max(max_commit_seq), 0)
		  FROM {schema}.sync_partitions
		 WHERE partition = $1::text`), partition).Scan(&position)
	return position, translate(err, what+": read its position")
}

func (s *Store) writeMinimum(ctx context.Context, tx pgx.Tx, partition string, minimum int64) error {
	_, err := tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_writer_fence AS f(partition, required_writer_version)
		VALUES ($1::text, $2::bigint)
		    ON CONFLICT (partition) DO UPDATE SET required_writer_version = EXCLUDED.required_writer_version
		 WHERE f.required_writer_version < EXCLUDED.required_writer_version`), partition, minimum)
	return err
}

// raiseForAll replaces the trigger's argument and updates the row that mirrors it.
func (s *Store) raiseForAll(ctx context.Context, tx pgx.Tx, minimum int64, raised map[string]int64) error {
	what := fmt.Sprintf("raise the fence for all partitions to %d", minimum)
	// Captured tables first: their writers come from there to the log.
	if err := s.raiseSourceFences(ctx, tx, minimum); err != nil {
		return err
	}
	// Waits for every open insert and keeps new ones out until COMMIT. Readers pass.
	if _, err := tx.Exec(ctx, s.sql(`LOCK TABLE {schema}.sync_commits IN SHARE ROW EXCLUSIVE MODE`)); err != nil {
		return lockError(err, what+": lock sync_commits", "sync_commits")
	}
	var found foundCatalog
	if err := s.readTriggers(ctx, tx, &found); err != nil {
		return translate(err, what+": read its trigger")
	}
	if enforced := found.enforced(); enforced < minimum {
		if err := s.installTrigger(ctx, tx, fenceDeclaration().withMinimum(minimum)); err != nil {
			return err
		}
	}
	if err := s.writeMinimum(ctx, tx, storage.AllPartitions, minimum); err != nil {
		return lockError(err, what, "sync_writer_fence")
	}
	return s.recordPositions(ctx, tx, raised)
}

// recordPositions notes where the log of each partition stands.
func (s *Store) recordPositions(ctx context.Context, tx pgx.Tx, raised map[string]int64) error {
	const what = "read the positions of all partitions"
	var sum, count int64
	err := tx.QueryRow(ctx, s.sql(`
		SELECT coalesce(sum(max_commit_seq), 0)::bigint, count(*)
		  FROM {schema}.sync_partitions
		 WHERE max_commit_seq > 0`)).Scan(&sum, &count)
	if err != nil {
		return translate(err, what)
	}
	raised[storage.AllPartitions] = sum
	if err := s.recordCapturedPosition(ctx, tx, raised); err != nil {
		return err
	}
	if count > maxRecordedPositions {
		return nil
	}
	rows, err := tx.Query(ctx, s.sql(`
		SELECT partition, max_commit_seq
		  FROM {schema}.sync_partitions
		 WHERE max_commit_seq > 0
		   AND partition <> $1::text`), storage.AllPartitions)
	if err != nil {
		return translate(err, what)
	}
	var partition string
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &position}, func() error {
		raised[partition] = position
		return nil
	})
	return translate(err, what)
}

// recordCapturedPosition notes where the log of all captured partitions stands: their commits are numbered by transactions, so one number
// serves. All who captured with a lower version have ended, since we hold their tables; whoever comes later has a higher number, or was
// already there without having written.
func (s *Store) recordCapturedPosition(ctx context.Context, tx pgx.Tx, raised map[string]int64) error {
	const what = "read the position of the captured partitions"
	fenced, err := s.sourceLocks(ctx, tx)
	if err != nil || len(fenced) == 0 {
		return err
	}
	var next int64
	err = tx.QueryRow(ctx, "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint").Scan(&next)
	if err == nil {
		raised[storage.CapturePrefix] = next - 1
	}
	return translate(err, what)
}

// installTrigger makes or replaces a trigger without a moment of absence. Replacing sets the firing mode back to the usual one, on the
// parent and on each partition, so ENABLE ALWAYS follows before anybody else can see it.
func (s *Store) installTrigger(ctx context.Context, tx pgx.Tx, t declaredTrigger) error {
	what := fmt.Sprintf("install the trigger %s on %s", t.name, t.table)
	table := s.schema + "." + quoteIdentifier(t.table)
	if _, err := tx.Exec(ctx, s.sql(t.sql)); err != nil {
		return lockError(err, what, t.table)
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", table, quoteIdentifier(t.name))); err != nil {
		return lockError(err, what, t.table)
	}
	if !t.perRow() {
		return nil
	}
	// Whether ENABLE reaches the partitions depends on the server's version.
	rows, err := tx.Query(ctx, `
		SELECT pg_catalog.format('ALTER TABLE %I.%I ENABLE ALWAYS TRIGGER %I', n.nspname, c.relname, t.tgname)
		  FROM pg_catalog.pg_partition_tree($1::text::regclass) AS tree
		  JOIN pg_catalog.pg_class AS c ON c.oid = tree.relid
		  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		  JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = tree.relid
		 WHERE t.tgname = $2::text
		   AND t.tgenabled <> 'A'`, table, t.name)
	if err != nil {
		return translate(err, what)
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return translate(err, what)
	}
	for _, statement := range statements {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return lockError(err, what, t.table)
		}
	}
	return nil
}

// enforced is the minimum that the trigger's argument enforces on the parent of the log, -1 if there is no such trigger.
func (f foundCatalog) enforced() int64 {
	for _, t := range f.triggers {
		if t.isRoot && t.root == fenceDeclaration().table && t.name == fenceTrigger {
			return t.minimum()
		}
	}
	return -1
}

// minimum is the argument as a number, -1 if it is none.
func (t foundTrigger) minimum() int64 {
	if len(t.arguments) != 1 {
		return -1
	}
	minimum, err := strconv.ParseInt(t.arguments[0], 10, 64)
	if err != nil || minimum < 0 {
		return -1
	}
	return minimum
}

// required is the minimum that the fence must enforce by all that is known: argument, mirror and history.
func (f foundCatalog) required() int64 {
	required := max(0, f.enforced(), f.minimum.history)
	if f.minimum.forAll != nil {
		required = max(required, *f.minimum.forAll)
	}
	return required
}

// lockError is translate with the table that was waited for, so that the next attempt can wait for it first.
func lockError(err error, what, table string) error {
	if sqlState(err) == stateLockTimeout {
		return &storage.Error{Code: storage.CodeLockTimeout, Message: what, Table: table, Err: withoutDetail(err)}
	}
	return translate(err, what)
}
