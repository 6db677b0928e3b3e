package sqlite

import (
	"context"
	"database/sql"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Status reads everything about the file that people ask for, in one snapshot. A file without our catalog is no error: Protocol is 0. Refused
// writes are not counted: in SQLite nothing survives the rollback of a refused transaction. CodeNewerCatalog.
func (s *Store) Status(ctx context.Context) (status storage.Status, err error) {
	err = s.inTx(ctx, "read the status of "+s.path, false, func(ctx context.Context, tx *sql.Conn) error {
		status, err = s.statusIn(ctx, tx)
		return err
	})
	if err != nil {
		return storage.Status{}, err
	}
	return status, nil
}

// statusIn is Status inside somebody's transaction.
func (s *Store) statusIn(ctx context.Context, tx *sql.Conn) (storage.Status, error) {
	var status storage.Status
	objects, err := readObjects(ctx, tx)
	if err != nil {
		return status, err
	}
	recorded, err := readOwner(ctx, tx, objects)
	if err != nil {
		return status, err
	}
	if recorded.protocol > storage.CatalogProtocol {
		return status, newerCatalog(recorded.protocol)
	}
	status.Protocol, status.Owner = recorded.protocol, recorded.owner
	if status.Database, err = s.identityIn(ctx, tx); err != nil {
		return status, err
	}
	marker, err := readMarker(ctx, tx, objects)
	if err != nil {
		return status, err
	}
	if marker != nil {
		status.StoredVersion = marker.Version
	}
	if recorded.protocol == 0 {
		return status, nil
	}
	return status, readStatus(ctx, tx, objects, &status)
}

// readStatus reads what only a file with our catalog has.
func readStatus(ctx context.Context, tx *sql.Conn, objects schemaObjects, status *storage.Status) (err error) {
	status.MinWriterVersion, _, err = readFence(ctx, tx)
	if err != nil && storage.CodeOf(err) != storage.CodeFenceBroken { // a check of the fence tells; everything else is still to be seen
		return err
	}
	if status.History, err = readHistory(ctx, tx, objects); err != nil {
		return err
	}
	for _, row := range status.History {
		if row.Version <= status.StoredVersion {
			status.MinReaderVersion = row.MinReaderVersion
		}
		if row.Version == status.StoredVersion {
			status.ContentHash = row.ContentHash
		}
	}
	if status.Partitions, err = countOf(ctx, tx, "partitions", "SELECT count(*) FROM sync_partitions"); err != nil {
		return err
	}
	names, err := checkpointNames(ctx, tx)
	if err != nil {
		return err
	}
	for _, name := range names {
		progress, err := progressIn(ctx, tx, name)
		if err != nil {
			return err
		}
		status.Checkpoints = append(status.Checkpoints, progress)
	}
	return nil
}

// checkpointNames are the names that have rows, the lowest version first.
func checkpointNames(ctx context.Context, q querier) ([]string, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT name
		FROM sync_backfill_checkpoints
		GROUP BY name
		ORDER BY max(schema_version), name`)
	if err != nil {
		return nil, translate(err, "read checkpoint names")
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, translate(err, "read checkpoint names")
		}
		names = append(names, name)
	}
	return names, translate(rows.Err(), "read checkpoint names")
}
