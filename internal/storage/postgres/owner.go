package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// ownerIsRecorded says whether the owner of the facts is the target's, its UID included. The UID decides nothing, but is recorded.
func ownerIsRecorded(facts storage.Facts, target storage.Target) bool {
	if facts.Owner == nil {
		return target.Owner.Name == "" // an empty name is nobody
	}
	return *facts.Owner == target.Owner
}

// recordOwner writes the target's owner in the place of the one that the decision allowed it to follow. Another owner by now is a
// change under us, so the attempt is made again.
func (s *Store) recordOwner(ctx context.Context, tx pgx.Tx, before *storage.Owner, owner storage.Owner) error {
	var was storage.Owner
	if before != nil {
		was = *before
	}
	tag, err := tx.Exec(ctx, s.sql(`
		UPDATE {schema}.sync_barrier_owner
		   SET cluster = $1::text,
		       namespace = $2::text,
		       name = $3::text,
		       uid = $4::text,
		       updated_at_ms = `+nowMS+`
		 WHERE id = 1
		   AND cluster = $5::text
		   AND namespace = $6::text
		   AND name = $7::text`),
		owner.Cluster, owner.Namespace, owner.Name, owner.UID, was.Cluster, was.Namespace, was.Name)
	if err != nil {
		return fmt.Errorf("record the owner: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return storage.Refuse(storage.CodeSerialization, "record the owner: it changed while the barrier was under way")
	}
	return nil
}
