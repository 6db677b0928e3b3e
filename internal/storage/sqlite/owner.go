package sqlite

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// recordedOwner is the row of sync_barrier_owner. The zero value: there is no catalog.
type recordedOwner struct {
	owner    *storage.Owner // nil where nobody manages the database yet
	protocol int
	revision string
	system   string // the id that tells this database from others
}

// readOwner gives who manages this database, and what is known of its catalog.
func readOwner(ctx context.Context, q querier, objects schemaObjects) (recordedOwner, error) {
	var r recordedOwner
	if !objects.isTable("sync_barrier_owner") {
		return r, nil
	}
	var owner storage.Owner
	err := q.QueryRowContext(ctx, `
		SELECT protocol, revision, system_identifier, cluster, namespace, name, uid
		FROM sync_barrier_owner
		WHERE id = 1`).Scan(&r.protocol, &r.revision, &r.system, &owner.Cluster, &owner.Namespace, &owner.Name, &owner.UID)
	if err != nil && !noRows(err) {
		return r, translate(err, "read sync_barrier_owner")
	}
	if owner.Name != "" {
		r.owner = &owner
	}
	return r, nil
}

// recordOwner notes who manages this database from now on, and the catalog that was installed. The id that tells this database from
// others is drawn once and stays.
func recordOwner(ctx context.Context, q querier, owner storage.Owner) error {
	_, err := q.ExecContext(ctx, `
		INSERT INTO sync_barrier_owner(id, protocol, revision, cluster, namespace, name, uid, system_identifier, updated_at_ms)
		VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT(id) DO UPDATE
		SET protocol = excluded.protocol,
		    revision = excluded.revision,
		    cluster = excluded.cluster,
		    namespace = excluded.namespace,
		    name = excluded.name,
		    uid = excluded.uid,
		    updated_at_ms = excluded.updated_at_ms`,
		storage.CatalogProtocol, catalogRevision, owner.Cluster, owner.Namespace, owner.Name, owner.UID, randomID(), nowMillis())
	return translate(err, "write sync_barrier_owner")
}

// ownerIsRecorded says whether the owner in the database is the target's, its UID included. The UID decides nothing, but is recorded.
func ownerIsRecorded(facts storage.Facts, target storage.Target) bool {
	return facts.Owner != nil && *facts.Owner == target.Owner
}

// randomID draws 16 random bytes, in hex.
func randomID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails, it ends the program instead (crypto/rand)
	return hex.EncodeToString(id[:])
}
