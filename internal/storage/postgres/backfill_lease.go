package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// TakeRanges takes the ranges r of a claim with r mod of = index and raises their lease epochs, so whoever held them before is
// refused from now on. Ranges that are finished are returned too. CodeOwnershipLost if the claim is not the newest of all its rows;
// CodeInvalidSpec for a share that is none.
func (s *Store) TakeRanges(ctx context.Context, claim storage.Claim, index, of int) (leases []storage.Lease, err error) {
	what := fmt.Sprintf("take ranges of checkpoint %q", claim.Name)
	if of < 1 || index < 0 || index >= of {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "%s: there is no share %d of %d", what, index, of)
	}
	partitions, epochs := make([]string, len(claim.Rows)), make([]int64, len(claim.Rows))
	for i, row := range claim.Rows {
		partitions[i], epochs[i] = row.Partition, row.OwnerEpoch
	}
	err = s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, s.sql(`
			UPDATE {schema}.sync_backfill_progress
			   SET lease_epoch = lease_epoch + 1,
			       claim_token = $2::text,
			       updated_at_ms = `+nowMS+`
			 WHERE checkpoint = $1::text
			   AND kind = 'range'
			   AND partition = ANY ($3::text[])
			   AND range_no % $4::integer = $5::integer
			RETURNING partition, range_no, lease_epoch, done, rows_done`), claim.Name, claim.Token, partitions, of, index)
		if err != nil {
			return err
		}
		leases, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (lease storage.Lease, err error) {
			err = row.Scan(&lease.Partition, &lease.Range, &lease.Epoch, &lease.Done, &lease.Rows)
			return lease, err
		})
		if err != nil {
			return err
		}
		return s.checkClaim(ctx, tx, claim, partitions, epochs)
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(leases, func(a, b storage.Lease) int { return a.Range - b.Range })
	return leases, nil
}

// checkClaim is the ownership check for all rows of a claim, last of its transaction. A row that is activated meanwhile is still ours.
func (s *Store) checkClaim(ctx context.Context, tx pgx.Tx, claim storage.Claim, partitions []string, epochs []int64) error {
	var owned int
	err := tx.QueryRow(ctx, s.sql(`
		SELECT count(*)
		  FROM (SELECT c.partition
		          FROM {schema}.sync_backfill_checkpoints c
		          JOIN unnest($3::text[], $4::bigint[]) AS claimed(partition, owner_epoch)
		            ON claimed.partition = c.partition
		           AND claimed.owner_epoch = c.owner_epoch
		          JOIN {schema}.sync_backfill_progress k
		            ON k.checkpoint = c.name
		           AND k.kind = 'claim'
		           AND k.partition = c.partition
		           AND k.range_no = 0
		           AND k.owner_epoch = c.owner_epoch
		           AND k.claim_token = $2::text
		         WHERE c.name = $1::text
		           FOR SHARE OF c) AS ours`), claim.Name, claim.Token, partitions, epochs).Scan(&owned)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("check the ownership: %w", err)
	}
	if owned != len(partitions) {
		return storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q: another claim owns %d of its rows now", claim.Name, len(partitions)-owned)
	}
	return nil
}
