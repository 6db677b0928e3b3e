package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// RetryLeftovers tries the keys that earlier batches of a row skipped once more, at most limit of them. Done says that none is left.
//
// Errors: CodeOwnershipLost, CodeLockTimeout, CodeInvalidSQL and those that every method may return.
func (s *Store) RetryLeftovers(ctx context.Context, claim storage.Claim, partition string, limit int) (storage.Batch, error) {
	what := fmt.Sprintf("retry leftovers of checkpoint %q, partition %q", claim.Name, partition)
	return s.inBatch(ctx, what, claim, partition, batchWait, func(ctx context.Context, b *batchTx) (storage.Batch, error) {
		keys, texts, err := b.readLeftovers(ctx, limit)
		if err != nil || len(keys) == 0 {
			return storage.Batch{Done: err == nil}, err
		}
		sorted, err := b.lockKeys(ctx, keys, skipLocked)
		if err != nil {
			return storage.Batch{}, err
		}
		// Before the rows are filled. A tail that meets one of our rows writes its key down again; were the old entry deleted
		// after the filling, the tail could take it for its own, and what it wanted filled would be lost.
		if err := b.dropLeftovers(ctx, texts, sorted.held); err != nil {
			return storage.Batch{}, err
		}
		if err := b.apply(ctx, sorted); err != nil {
			return storage.Batch{}, err
		}
		left, err := b.countLeftovers(ctx)
		return storage.Batch{
			Rows:      int64(len(sorted.locked)),
			Skipped:   int64(len(sorted.held)),
			Leftovers: left,
			Done:      left == 0,
		}, err
	})
}

// readLeftovers gives keys of the row's leftovers, and the texts they are stored by. No limit is 0.
func (b *batchTx) readLeftovers(ctx context.Context, limit int) (keys [][]string, texts []string, err error) {
	rows, err := b.Query(ctx, b.store.sql(`
		SELECT row_key
		  FROM {schema}.sync_backfill_leftovers
		 WHERE checkpoint = $1::text
		   AND partition = $2::text
		 ORDER BY random() -- or keys that are held for long would keep the others from their turn
		 LIMIT nullif($3::bigint, 0)`), b.claim.Name, b.partition(), int64(limit))
	if err == nil {
		texts, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the leftovers: %w", err)
	}
	for _, text := range texts {
		key, err := b.plan.table.decode(&text)
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, key)
	}
	return keys, texts, nil
}

// dropLeftovers deletes entries and writes down those again that are still held. Both in one go would leave the entry of a key that is
// written in two ways.
func (b *batchTx) dropLeftovers(ctx context.Context, texts []string, held [][]string) error {
	_, err := b.Exec(ctx, b.store.sql(`
		DELETE FROM {schema}.sync_backfill_leftovers
		 WHERE checkpoint = $1::text
		   AND partition = $2::text
		   AND row_key = ANY ($3::text[])`), b.claim.Name, b.partition(), texts)
	if err != nil {
		return fmt.Errorf("delete leftovers: %w", err)
	}
	return b.keepLeftovers(ctx, held)
}

// keepLeftovers writes down keys that somebody else holds, for later.
func (b *batchTx) keepLeftovers(ctx context.Context, keys [][]string) error {
	if len(keys) == 0 {
		return nil
	}
	if err := b.keepable(keys); err != nil {
		return err
	}
	step := b.keepingLeftovers(keys)
	if _, err := b.Exec(ctx, step.sql, step.arguments...); err != nil {
		return fmt.Errorf("%s: %w", step.what, err)
	}
	return nil
}

// longestLeftover is how long a key's text may be that is written down, in bytes, with the names of its checkpoint and partition beside it: together
// they have to fit into an entry of an index, of which the server allows 2704 bytes with their heads.
const longestLeftover = 2600

// keepable refuses keys that are too long to be written down: then the batch is done again when their rows are free. A key that fits into
// the index of its own table can be longer as text.
func (b *batchTx) keepable(keys [][]string) error {
	for _, key := range keys {
		if len(storage.EncodeKey(key))+len(b.claim.Name)+len(b.partition()) > longestLeftover {
			table := b.plan.table.declared.Name
			return &storage.Error{
				Code: storage.CodeLockTimeout, Table: table,
				Message: fmt.Sprintf("checkpoint %q: a row of table %q is held by another, and its key is too long to be left for later", b.claim.Name, table),
			}
		}
	}
	return nil
}

func (b *batchTx) keepingLeftovers(keys [][]string) step {
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i] = storage.EncodeKey(key)
	}
	// An entry that somebody is deleting makes this wait for him, so it is never taken for one that stays.
	return step{what: "keep leftovers", sql: b.store.sql(`
		INSERT INTO {schema}.sync_backfill_leftovers(checkpoint, partition, row_key)
		SELECT $1::text, $2::text, held.row_key
		  FROM unnest($3::text[]) AS held(row_key)
		    ON CONFLICT DO NOTHING`), arguments: []any{b.claim.Name, b.partition(), texts}}
}

func (b *batchTx) countLeftovers(ctx context.Context) (count int64, err error) {
	err = b.QueryRow(ctx, b.store.sql(`
		SELECT count(*)
		  FROM {schema}.sync_backfill_leftovers
		 WHERE checkpoint = $1::text
		   AND partition = $2::text`), b.claim.Name, b.partition()).Scan(&count)
	if err != nil {
		return 0, fmt.Errorf("count the leftovers: %w", err)
	}
	return count, nil
}
