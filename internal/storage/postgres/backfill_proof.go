package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// flip makes a claimed row `activated`. The proof stands only inside this transaction: the guard lets the update pass by it. false: the
// caller is not the owner, and nothing was changed that outlives a rollback. Whoever calls it has shown, under the lock of the
// partition, that no source change is missing.
func (s *Store) flip(ctx context.Context, tx pgx.Tx, owner storage.Ownership, watermark int64) (bool, error) {
	flipped := false
	err := send(ctx, tx,
		step{
			what: "write the proof", arguments: []any{owner.Name, owner.Partition, owner.OwnerEpoch},
			sql: s.sql(`
				INSERT INTO {schema}.sync_backfill_progress(checkpoint, kind, partition, owner_epoch, updated_at_ms)
				VALUES ($1::text, 'proof', $2::text, $3::bigint, ` + nowMS + `)`),
		},
		step{
			what: "activate the row", arguments: []any{owner.Name, owner.Partition, owner.OwnerEpoch, owner.Token, watermark},
			sql: s.sql(`
				UPDATE {schema}.sync_backfill_checkpoints c
				   SET state = 'activated',
				       watermark = greatest(c.watermark, $5::bigint),
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
				   AND EXISTS (
				     SELECT
				       FROM {schema}.sync_backfill_progress k
				      WHERE k.checkpoint = c.name
				        AND k.kind = 'claim'
				        AND k.partition = c.partition
				        AND k.owner_epoch = c.owner_epoch
				        AND k.claim_token = $4::text)`),
			done: func(tag pgconn.CommandTag) { flipped = tag.RowsAffected() == 1 },
		},
		step{
			what: "remove the proof and the leftovers", arguments: []any{owner.Name, owner.Partition},
			sql: s.sql(`
				WITH leftovers AS (
				  DELETE FROM {schema}.sync_backfill_leftovers
				   WHERE checkpoint = $1::text
				     AND partition = $2::text
				)
				DELETE FROM {schema}.sync_backfill_progress
				 WHERE checkpoint = $1::text
				   AND kind = 'proof'
				   AND partition = $2::text`),
		})
	return flipped, err
}

// requireFenceFor refuses to activate a row while old writers are let in: what they write later would be covered by nothing.
// CodeCheckpointFenceMissing.
func (s *Store) requireFenceFor(ctx context.Context, q querier, name, partition string, version int64) error {
	var required int64
	err := q.QueryRow(ctx, s.sql(`
		SELECT coalesce(max(required_writer_version), 0)
		  FROM {schema}.sync_writer_fence
		 WHERE partition IN ('*', $1::text)`), partition).Scan(&required)
	if err != nil {
		return fmt.Errorf("read the fence of partition %q: %w", partition, err)
	}
	if required < version {
		return storage.Refuse(storage.CodeCheckpointFenceMissing,
			"checkpoint %q of version %d, partition %q: the fence lets in writers from version %d on, so what old ones write would be covered by nothing",
			name, version, partition, required).WithHint("apply the version again, or run `syncbarrier fence repair`")
	}
	return nil
}
