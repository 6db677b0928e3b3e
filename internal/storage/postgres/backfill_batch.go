package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	// batchWait bounds each wait of a batch, and so what the program may have to wait for us because we wait for it.
	batchWait = 100 * time.Millisecond
	// batchStatement bounds a statement of a batch: with nothing but the primary key, a small partition of a large table is
	// found by reading all of it.
	batchStatement = 10 * time.Minute
	// leftoversBound is how many skipped keys of one checkpoint row are kept before the scan has to wait for them.
	leftoversBound = 10_000
)

// batchTx is a batch under way: one READ COMMITTED transaction of separate statements (docs/design.md section 6).
type batchTx struct {
	pgx.Tx
	store     *Store
	plan      *backfillPlan
	claim     storage.Claim
	row       storage.CheckpointRow // as it was claimed
	position  int64                 // the watermark of the row, as this transaction found it
	settings  storage.Settings
	leftovers int64
	checked   bool // the ownership check was the last statement
}

func (b *batchTx) partition() string { return b.row.Partition }

// batchEnded rolls a batch back with an answer that is no failure.
type batchEnded struct{ batch storage.Batch }

func (batchEnded) Error() string { return "the batch ended without work" }

// unverifiableBatch ends a batch because the log cannot answer.
func (b *batchTx) unverifiable(reason string) error {
	return batchEnded{storage.Batch{Unverifiable: reason, Settings: b.settings, Leftovers: b.leftovers}}
}

// inBatch runs fn as one batch of a claimed row and checks ownership as its last statement. What also asks is read with the head. A row that this claim has activated
// meanwhile, on another worker, is nothing left to do; a pause in the settings is nothing to do now.
//
// All waits inside are bounded by wait and by a quarter of deadlock_timeout: the program's own deadlock detector never finds us.
func (s *Store) inBatch(ctx context.Context, what string, claim storage.Claim, partition string, wait time.Duration,
	fn func(ctx context.Context, b *batchTx) (storage.Batch, error), also ...step) (batch storage.Batch, err error) {

	row, ok := claim.Row(partition)
	if !ok {
		return batch, storage.Refuse(storage.CodeOwnershipLost, "%s: the claim has no row for partition %q", what, partition)
	}
	plan, err := s.plan(ctx, claim)
	if err != nil {
		return batch, err
	}
	err = s.inTx(ctx, what, txOptions{lockTimeout: wait, statementTimeout: batchStatement}, func(ctx context.Context, tx pgx.Tx) error {
		b := &batchTx{Tx: tx, store: s, plan: plan, claim: claim, row: row}
		if err := b.begin(ctx, wait, also...); err != nil {
			return err
		}
		if batch, err = fn(ctx, b); err != nil {
			return err
		}
		batch.Settings = b.settings
		if b.checked {
			return nil
		}
		return b.finish(ctx)
	})
	var ended batchEnded
	if errors.As(err, &ended) {
		return ended.batch, nil
	}
	if err != nil {
		return storage.Batch{}, fencedMeanwhile(err, what)
	}
	return batch, nil
}

// limitsSQL bounds the waits of a transaction by a quarter of the time after which the program's backends look for deadlocks. Compiling
// expressions takes longer (150 ms, measured) than all that our statements do, and some run with locks held. What we write passes the fences
// of the tables: as a writer of the checkpoint's version, or of a later one that has been fenced meanwhile.
const limitsSQL = `
SELECT set_config('lock_timeout',
         least($1::bigint, (extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000 / 4)::bigint)::text, true),
       set_config('search_path', $2::text, true),
       set_config('jit', 'off', true),
       set_config('syncbarrier.writer_version',
         greatest($3::bigint, (SELECT required_writer_version FROM {schema}.sync_writer_fence WHERE partition = '*'))::text, true)`

// fencedMeanwhile turns a fence that refused our own write into something that passes: it was raised after the transaction began, and the
// next one asks again.
func fencedMeanwhile(err error, what string) error {
	if storage.CodeOf(err) != storage.CodeWriterFenceRejected {
		return err
	}
	return &storage.Error{Code: storage.CodeSerialization, Message: what + ": the fence was raised meanwhile", Err: err}
}

// headSQL is what a batch has to know first. $1 checkpoint, $2 partition.
const headSQL = `
SELECT d.settings,
       c.state,
       c.owner_epoch,
       coalesce(k.claim_token, ''),
       c.watermark,
       (SELECT count(*)
          FROM (SELECT
                  FROM {schema}.sync_backfill_leftovers l
                 WHERE l.checkpoint = c.name
                   AND l.partition = c.partition
                 LIMIT 10001) AS bounded)
  FROM {schema}.sync_backfill_checkpoints c
  JOIN {schema}.sync_backfill_definitions d
    ON d.name = c.name
  LEFT JOIN {schema}.sync_backfill_progress k
    ON k.checkpoint = c.name
   AND k.kind = 'claim'
   AND k.partition = c.partition
   AND k.range_no = 0
 WHERE c.name = $1::text
   AND c.partition = $2::text`

// begin sets the limits and reads the head, and what the caller wants to know as well, in one round trip. It locks nothing: whoever
// locked the checkpoint row before the rows of a batch could end in a deadlock with an activation.
func (b *batchTx) begin(ctx context.Context, wait time.Duration, also ...step) error {
	var settings, token string
	var state storage.State
	var epoch int64
	steps := append([]step{
		{
			what: "set the limits of a batch", sql: b.store.sql(limitsSQL),
			arguments: []any{milliseconds(wait), b.plan.path, b.plan.definition.Version},
		},
		{
			what: "read the checkpoint", sql: b.store.sql(headSQL), arguments: []any{b.claim.Name, b.partition()},
			rows: scanRow(&settings, &state, &epoch, &token, &b.position, &b.leftovers),
		},
	}, also...)
	err := send(ctx, b.Tx, steps...)
	if errors.Is(err, pgx.ErrNoRows) {
		return b.lost()
	}
	if err != nil {
		return err
	}
	if b.settings, err = storage.DecodeSettings(b.claim.Name, settings); err != nil {
		return err
	}
	if err := b.judge(state, epoch, token); err != nil {
		return err
	}
	if b.settings.Paused {
		return batchEnded{storage.Batch{Settings: b.settings, Leftovers: b.leftovers}}
	}
	return nil
}

// judge compares what was read with the claim.
func (b *batchTx) judge(state storage.State, epoch int64, token string) error {
	switch {
	case epoch != b.row.OwnerEpoch || token != b.claim.Token:
		return b.lost()
	case state == storage.Activated:
		return batchEnded{storage.Batch{Done: true, Settings: b.settings}}
	}
	return nil
}

func (b *batchTx) lost() error {
	return storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q, partition %q: another claim owns it now", b.claim.Name, b.partition())
}

// ownershipSQL locks the checkpoint row against the next claim until we commit. It runs last. FOR SHARE, so that many workers of the claim
// may end their batches at once; a claim that is being committed makes it wait, and then finds the epoch changed.
const ownershipSQL = `
SELECT
  FROM {schema}.sync_backfill_checkpoints c
  JOIN {schema}.sync_backfill_progress k
    ON k.checkpoint = c.name
   AND k.kind = 'claim'
   AND k.partition = c.partition
   AND k.range_no = 0
 WHERE c.name = $1::text
   AND c.partition = $2::text
   AND c.owner_epoch = $3::bigint
   AND c.state = 'backfilling'
   AND k.owner_epoch = c.owner_epoch
   AND k.claim_token = $4::text
   FOR SHARE OF c`

// finish sends the last statements of a batch in one round trip, and behind them, last of all, the ownership check. Were it first, a
// claim could commit between it and the writes of the batch, which would stay.
func (b *batchTx) finish(ctx context.Context, steps ...step) error {
	owner := false
	steps = append(steps, step{
		what: "check the ownership", sql: b.store.sql(ownershipSQL),
		arguments: []any{b.claim.Name, b.partition(), b.row.OwnerEpoch, b.claim.Token},
		done:      func(tag pgconn.CommandTag) { owner = tag.RowsAffected() == 1 },
	})
	b.checked = true
	if err := send(ctx, b.Tx, steps...); err != nil || owner {
		return err
	}
	return b.whyNotOwner(ctx)
}

// whyNotOwner tells a row that was activated under this claim from one that another claim took.
func (b *batchTx) whyNotOwner(ctx context.Context) error {
	var settings, token string
	var state storage.State
	var epoch, ignored int64
	err := b.QueryRow(ctx, b.store.sql(headSQL), b.claim.Name, b.partition()).Scan(&settings, &state, &epoch, &token, &ignored, &ignored)
	if errors.Is(err, pgx.ErrNoRows) {
		return b.lost()
	}
	if err != nil {
		return err
	}
	if err := b.judge(state, epoch, token); err != nil {
		return err
	}
	return b.lost()
}
