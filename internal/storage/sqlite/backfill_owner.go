package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// owned is a checkpoint row that a claim owns.
type owned struct {
	storage.CheckpointRow
	facts passFacts // what was true when its pass began
}

// readOwned reads a row of a claim. CodeOwnershipLost unless epoch and token are still the row's: by then another claim has it, or it
// was abandoned, or the file was restored from a copy.
func readOwned(ctx context.Context, q querier, claim storage.Claim, partition string) (row owned, err error) {
	claimed, ok := claim.Row(partition)
	if !ok {
		return row, storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q: the claim has no row for partition %q", claim.Name, partition)
	}
	var facts string
	row.CheckpointRow, err = scanCheckpoint(scanMore{q.QueryRowContext(ctx, `
		SELECT c.partition, c.name, c.schema_version, c.state, c.watermark, c.owner_epoch, c.observed_rows, c.updated_at_ms, p.facts
		  FROM main.sync_backfill_checkpoints c
		  JOIN main.sync_backfill_progress p
		    ON p.checkpoint = c.name
		   AND p.kind = 'claim'
		   AND p.partition = c.partition
		   AND p.range_no = 0
		   AND p.owner_epoch = c.owner_epoch
		 WHERE c.partition = ?1
		   AND c.name = ?2
		   AND c.owner_epoch = ?3
		   AND p.claim_token = ?4`, partition, claim.Name, claimed.OwnerEpoch, claim.Token), []any{&facts}})
	switch {
	case noRows(err):
		return row, ownershipLost(claim.Name, partition)
	case err != nil:
		return row, err
	}
	row.facts, err = decodeFacts(facts)
	return row, err
}

func ownershipLost(name, partition string) error {
	return storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q, partition %q: another claim owns it now", name, partition)
}

// checkOwner is the last statement of every transaction of a worker: whatever the transaction did is undone if it fails.
func checkOwner(ctx context.Context, q querier, claim storage.Claim, partition string, state storage.State) error {
	row, err := readOwned(ctx, q, claim, partition)
	if err == nil && row.State != state {
		return ownershipLost(claim.Name, partition)
	}
	return err
}

// checkLease is the same for a worker on a key range, which it must hold beside the claim.
func checkLease(ctx context.Context, q querier, claim storage.Claim, lease storage.Lease) error {
	var held bool
	err := q.QueryRowContext(ctx, `
		SELECT EXISTS (
		  SELECT 1
		    FROM main.sync_backfill_progress
		   WHERE checkpoint = ?1
		     AND kind = 'range'
		     AND partition = ?2
		     AND range_no = ?3
		     AND lease_epoch = ?4
		     AND claim_token = ?5)`, claim.Name, lease.Partition, lease.Range, lease.Epoch, claim.Token).Scan(&held)
	if err != nil {
		return err
	}
	if !held {
		return storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q, partition %q: another worker holds range %d now", claim.Name, lease.Partition, lease.Range)
	}
	return checkOwner(ctx, q, claim, lease.Partition, storage.Backfilling)
}

func sortLeases(leases []storage.Lease) {
	slices.SortFunc(leases, func(a, b storage.Lease) int { return cmp.Compare(a.Range, b.Range) })
}

// openWork reads all that a transaction of a worker needs. done says that the row is activated already, by this claim.
func openWork(ctx context.Context, tx *sql.Conn, claim storage.Claim, partition string) (w *work, row owned, err error) {
	if row, err = readOwned(ctx, tx, claim, partition); err != nil {
		return nil, row, err
	}
	definition, err := definitionIn(ctx, tx, claim.Name)
	if err != nil {
		return nil, row, err
	}
	w, err = newWork(ctx, tx, definition)
	return w, row, err
}
