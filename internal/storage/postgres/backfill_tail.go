package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	// commitsPerChange bounds how many commits a tail batch passes over for the changes it is allowed: most may be of other tables.
	commitsPerChange = 4
	// partitionsPerBatch is how many partitions one tail batch of '*' reads, and changesPerPartition how many changes of each about.
	partitionsPerBatch  = 1000
	changesPerPartition = 200
)

// TailBatch applies changes of the sources that stand in the log above the position of a claimed row, and moves the position to
// the last commit it read, whole commits only and about limit changes. Whether the row of a key exists now decides what is done
// with it, not what the log calls the change. Done says that the log had nothing more.
//
// Unverifiable says why the log cannot answer; then nothing was changed. Errors: CodeOwnershipLost, CodeLockTimeout, CodeInvalidSQL,
// CodeSerialization if another worker of the claim moved the position.
func (s *Store) TailBatch(ctx context.Context, claim storage.Claim, partition string, limit int) (storage.Batch, error) {
	what := fmt.Sprintf("apply the log to checkpoint %q, partition %q", claim.Name, partition)
	tail := &tail{limit: max(1, limit)}
	batch, err := s.inBatch(ctx, what, claim, partition, batchWait, func(ctx context.Context, b *batchTx) (storage.Batch, error) {
		tail.batchTx = b
		return tail.run(ctx)
	}, s.readingFacts(claim.Name, partition, &tail.facts), s.readingPosition(claim.Name, partition, &tail.captured))
	if err != nil || !tail.moved {
		return batch, err
	}
	return batch, s.pruneBehind(ctx, tail.plan, partition)
}

// readingFacts reads the facts of a claim row.
func (s *Store) readingFacts(checkpoint, partition string, facts *string) step {
	return step{
		what: "read the facts of the claim",
		sql: s.sql(`
			SELECT coalesce((SELECT facts
			                   FROM {schema}.sync_backfill_progress
			                  WHERE checkpoint = $1::text
			                    AND kind = 'claim'
			                    AND partition = $2::text
			                    AND range_no = 0), '{}')`),
		arguments: []any{checkpoint, partition},
		rows:      scanRow(facts),
	}
}

// tail is a batch of the log.
type tail struct {
	*batchTx
	limit    int
	facts    string
	captured capturedPosition
	moved    bool // a reading of the captured log is complete, so some of it is needed no more
}

func (t *tail) run(ctx context.Context) (storage.Batch, error) {
	reason, err := t.store.checkFacts(ctx, t.Tx, t.plan, t.facts)
	if err != nil {
		return storage.Batch{}, err
	}
	if reason != "" {
		return storage.Batch{}, t.unverifiable(reason)
	}
	var changed changedRows
	log, err := t.read(ctx, &changed)
	if err != nil {
		return storage.Batch{}, err
	}
	complete, err := t.readCaptured(ctx, &changed)
	if err != nil {
		return storage.Batch{}, err
	}
	keys, reason, err := t.store.concernedKeys(ctx, t.Tx, t.plan, changed)
	if err != nil {
		return storage.Batch{}, err
	}
	if reason != "" {
		return storage.Batch{}, t.unverifiable(reason)
	}
	batch := storage.Batch{Done: log.complete && complete, Leftovers: t.leftovers}
	if len(keys) > 0 {
		if err := t.fill(ctx, keys, &batch); err != nil {
			return batch, err
		}
	}
	return batch, t.move(ctx, log.windows)
}

// read reads the log of the programs and refuses what proves nothing.
func (t *tail) read(ctx context.Context, changed *changedRows) (logAnswer, error) {
	if len(t.plan.loggedTables()) == 0 {
		return logAnswer{complete: true}, nil
	}
	facts, err := decodeFacts(t.facts)
	if err != nil {
		return logAnswer{}, err
	}
	log, err := t.store.readLog(ctx, t.Tx, t.plan, logQuestion{
		checkpoint: t.claim.Name, partition: t.partition(), position: t.position, epoch: facts.LogEpoch,
		changes: t.limit, commits: int64(t.limit) * commitsPerChange, partitions: partitionsPerBatch,
	})
	if err != nil {
		return log, err
	}
	if log.reason == "" {
		log.reason = t.plan.loggedRows(log.windows, changed)
	}
	if log.reason != "" {
		return log, t.unverifiable(log.reason)
	}
	return log, nil
}

// readCaptured reads the captured log up to the snapshot that the head of the batch took. complete says that nothing of it is left.
func (t *tail) readCaptured(ctx context.Context, changed *changedRows) (complete bool, err error) {
	if !t.plan.captures() {
		return true, nil
	}
	reason, err := t.captured.decode()
	if err != nil {
		return false, err
	}
	if reason != "" {
		return false, t.unverifiable(reason)
	}
	t.captured.begins()
	log, err := t.readCapturedLog(ctx, t.captured, t.captured.reading, t.limit)
	if err != nil {
		return false, err
	}
	if log.reason != "" {
		return false, t.unverifiable(log.reason)
	}
	place, reason, err := t.gather(ctx, log, t.captured.At, changed.count+t.limit, changed)
	if err != nil {
		return false, err
	}
	if reason != "" {
		return false, t.unverifiable(reason)
	}
	t.captured.advance(place)
	return place == nil, nil
}

// fill does what the changes ask for. Rows that the program holds are left for later.
func (t *tail) fill(ctx context.Context, keys [][]string, batch *storage.Batch) error {
	sorted, err := t.lockKeys(ctx, keys, skipLocked)
	if err != nil {
		return err
	}
	if err := t.keepLeftovers(ctx, sorted.held); err != nil {
		return err
	}
	if err := t.apply(ctx, sorted); err != nil {
		return err
	}
	batch.Rows, batch.Skipped = int64(len(sorted.locked)), int64(len(sorted.held))
	if statement := t.plan.statement(); statement != nil && statement.Remove != "" {
		batch.Rows += int64(len(sorted.gone))
	}
	if batch.Skipped > 0 {
		batch.Leftovers, err = t.countLeftovers(ctx)
	}
	return err
}

// move moves the positions from where this batch found them, and checks ownership last. Nobody else may have moved them: then
// changes may have been applied by an old state of things.
func (t *tail) move(ctx context.Context, windows []logWindow) error {
	moved, wanted := int64(0), int64(0)
	count := func(tag pgconn.CommandTag) { moved += tag.RowsAffected() }
	var steps []step
	switch {
	case len(windows) == 0:
	case t.partition() == storage.AllPartitions:
		wanted = int64(len(windows))
		steps = t.movingPositions(windows, count)
	case windows[0].upto > windows[0].position:
		wanted = 1
		steps = append(steps, t.movingWatermark(windows[0], count))
	}
	if t.plan.captures() {
		wanted++
		steps = append(steps, t.movingPosition(t.captured, count))
		if t.plan.allCaptured() {
			steps = append(steps, t.showingPosition(t.captured.position))
		}
	}
	if err := t.finish(ctx, steps...); err != nil {
		return err
	}
	t.moved = t.plan.captures() && t.captured.At == nil
	if moved != wanted {
		return storage.Refuse(storage.CodeSerialization, "checkpoint %q, partition %q: another worker moved the position meanwhile", t.claim.Name, t.partition())
	}
	return nil
}

func (t *tail) movingWatermark(w logWindow, count func(pgconn.CommandTag)) step {
	return step{
		what: "move the watermark",
		sql: t.store.sql(`
			UPDATE {schema}.sync_backfill_checkpoints c
			   SET watermark = $5::bigint,
			       observed_rows = greatest(c.observed_rows, (SELECT coalesce(sum(r.rows_done), 0)
			                                                    FROM {schema}.sync_backfill_progress r
			                                                   WHERE r.checkpoint = c.name
			                                                     AND r.kind = 'range'
			                                                     AND r.partition = c.partition)),
			       updated_at_ms = ` + nowMS + `
			 WHERE c.name = $1::text
			   AND c.partition = $2::text
			   AND c.owner_epoch = $3::bigint
			   AND c.state = 'backfilling'
			   AND c.watermark = $4::bigint`),
		arguments: []any{t.claim.Name, t.partition(), t.row.OwnerEpoch, w.position, w.upto},
		done:      count,
	}
}

// movingPositions moves those that are written down, and writes down those of partitions that are new since the claim, with the
// epoch of their log.
func (t *tail) movingPositions(windows []logWindow, count func(pgconn.CommandTag)) []step {
	var known, fresh struct {
		partitions    []string
		position, end []int64
	}
	for _, w := range windows {
		list := &fresh
		if w.known {
			list = &known
		}
		list.partitions, list.position, list.end = append(list.partitions, w.partition), append(list.position, w.position), append(list.end, w.upto)
	}
	return []step{
		{
			what: "move the positions",
			sql: t.store.sql(`
				UPDATE {schema}.sync_backfill_progress n
				   SET position = moved.upto,
				       updated_at_ms = ` + nowMS + `
				  FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS moved(partition, position, upto)
				 WHERE n.checkpoint = $1::text
				   AND n.kind = 'position'
				   AND n.partition = moved.partition
				   AND n.range_no = 0
				   AND n.position = moved.position`),
			arguments: []any{t.claim.Name, known.partitions, known.position, known.end},
			done:      count,
		},
		{
			what: "give new partitions a log epoch",
			sql: t.store.sql(`
				INSERT INTO {schema}.sync_partition_registry(partition, log_epoch, last_authenticated_at_ms)
				SELECT fresh.partition, ` + randomEpoch + `, 0
				  FROM unnest($1::text[]) AS fresh(partition)
				    ON CONFLICT (partition) DO NOTHING`),
			arguments: []any{fresh.partitions},
		},
		{
			what: "note the positions of new partitions",
			sql: t.store.sql(`
				INSERT INTO {schema}.sync_backfill_progress(checkpoint, kind, partition, position, facts, updated_at_ms)
				SELECT $1::text, 'position', fresh.partition, fresh.upto, r.log_epoch, ` + nowMS + `
				  FROM unnest($2::text[], $3::bigint[]) AS fresh(partition, upto)
				  JOIN {schema}.sync_partition_registry r
				    ON r.partition = fresh.partition
				    ON CONFLICT DO NOTHING`),
			arguments: []any{t.claim.Name, fresh.partitions, fresh.end},
			done:      count,
		},
	}
}
