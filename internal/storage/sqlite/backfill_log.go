package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// behind is a partition whose log a checkpoint row has not read to its end, or cannot.
type behind struct {
	partition string
	position  int64
	last      int64  // max_commit_seq, read before the log
	epoch     string // the log epoch now
	noted     string // the log epoch when the position was noted; "" for a partition that did not exist then
	isNoted   bool
}

// readBehind gives what a row has not read yet: for a listed row its own partition, whether or not there is something; for '*' the
// partitions with something above their positions. reason says why the log cannot answer, "" if it can. A most limit partitions are
// given, 0 is all.
func (w *work) readBehind(ctx context.Context, row owned, limit int) (found []behind, reason string, err error) {
	if row.Partition != storage.AllPartitions {
		found, err = w.readListed(ctx, row)
	} else {
		found, err = w.readAllBehind(ctx, limit)
	}
	if err != nil {
		return nil, "", translate(err, fmt.Sprintf("checkpoint %q: read the positions in the log", w.definition.Name))
	}
	for _, b := range found {
		if b.isNoted && b.noted != b.epoch {
			return nil, fmt.Sprintf("the log of partition %q is another one than when the pass began: its log epoch changed", b.partition), nil
		}
		coverage, err := coverageIn(ctx, w.tx, b.partition, sourceTables(w.definition), b.position, b.position)
		if err != nil {
			return nil, "", err
		}
		if coverage.Verdict == storage.Unverifiable {
			return nil, fmt.Sprintf("partition %q: %s", b.partition, coverage.Reason), nil
		}
	}
	return found, "", nil
}

func (w *work) readListed(ctx context.Context, row owned) ([]behind, error) {
	b := behind{partition: row.Partition, position: row.Watermark, noted: row.facts.LogEpoch, isNoted: true}
	err := w.tx.QueryRowContext(ctx, `
		SELECT coalesce((SELECT max_commit_seq FROM main.sync_partitions WHERE partition = ?1), 0),
		       coalesce((SELECT log_epoch FROM main.sync_partition_registry WHERE partition = ?1), '')`,
		row.Partition).Scan(&b.last, &b.epoch)
	return []behind{b}, err
}

func (w *work) readAllBehind(ctx context.Context, limit int) ([]behind, error) {
	if limit == 0 {
		limit = -1
	}
	return collect(ctx, w.tx, func(row interface{ Scan(...any) error }) (b behind, err error) {
		var noted sql.NullString
		err = row.Scan(&b.partition, &b.position, &b.last, &b.epoch, &noted)
		b.noted, b.isNoted = noted.String, noted.Valid
		return b, err
	}, `
		WITH known AS (
		  SELECT p.partition, coalesce(q.position, 0) AS position, p.max_commit_seq, p.horizon_seq,
		         coalesce(r.log_epoch, '') AS epoch, q.facts AS noted
		    FROM main.sync_partitions p
		    LEFT JOIN main.sync_backfill_progress q
		      ON q.checkpoint = ?1
		     AND q.kind = 'position'
		     AND q.partition = p.partition
		     AND q.range_no = 0
		    LEFT JOIN main.sync_partition_registry r
		      ON r.partition = p.partition
		   WHERE substr(p.partition, 1, 8) <> 'capture:'
		)
		SELECT partition, position, max_commit_seq, epoch, noted
		  FROM known
		 WHERE max_commit_seq <> position
		    OR horizon_seq > position
		    OR noted <> epoch
		 ORDER BY partition
		 LIMIT ?2`, w.definition.Name, limit)
}

// stretchOf gives the commit up to which the changes above a position are taken together: whole commits only, at most limit changes, but
// always at least one commit with changes. all says that nothing is left above it.
func (w *work) stretchOf(ctx context.Context, b behind, limit int64) (upTo int64, all bool, err error) {
	names, err := readLoggedSources(ctx, w.tx, b.partition, sourceTables(w.definition))
	if err != nil || len(names) == 0 {
		return b.last, true, err
	}
	var parts []string
	var arguments []any
	for _, name := range names {
		// Each is one walk along the index (partition, tbl, commit_seq), which ends after so many changes.
		parts = append(parts, `
		  SELECT * FROM (
		    SELECT commit_seq
		      FROM main.sync_changes
		     WHERE partition = ?
		       AND tbl = ?
		       AND commit_seq > ?
		     ORDER BY commit_seq
		     LIMIT ?)`)
		arguments = append(arguments, b.partition, name, b.position, limit+1)
	}
	var first, beyond sql.NullInt64
	err = w.tx.QueryRowContext(ctx, `
		WITH next AS (`+strings.Join(parts, " UNION ALL ")+`)
		SELECT (SELECT min(commit_seq) FROM next),
		       (SELECT commit_seq FROM next ORDER BY commit_seq LIMIT 1 OFFSET ?)`, append(arguments, limit)...).Scan(&first, &beyond)
	switch {
	case err != nil:
		return 0, false, translate(err, fmt.Sprintf("checkpoint %q: read the log of partition %q", w.definition.Name, b.partition))
	case !beyond.Valid:
		return b.last, true, nil
	case beyond.Int64 > first.Int64:
		upTo = beyond.Int64 - 1
	default:
		upTo = first.Int64 // one commit with more changes than that
	}
	return upTo, upTo >= b.last, nil
}

// collectChanges puts the keys of the backfilled table that changes above the position and up to a commit concern into the keys
// relation, and says how many changes those were.
func (w *work) collectChanges(ctx context.Context, b behind, upTo int64) (changes int64, reason string, err error) {
	for _, source := range w.definition.Checkpoint.Sources {
		rowIDs, err := w.readChanges(ctx, source.Table, b, upTo)
		if err != nil {
			return 0, "", err
		}
		changes += int64(len(rowIDs))
		if len(rowIDs) == 0 {
			continue
		}
		declared := tableOf(w.definition, source.Table)
		key, relation := w.key, keysRelation
		if source.Keys != "" {
			if key, err = w.makeChanged(ctx, source); err != nil {
				return 0, "", err
			}
			relation = changedRelation
		}
		keys, ok := keysOf(declared, key, b.partition, rowIDs)
		if !ok {
			return 0, fmt.Sprintf("partition %q: a commit between %d and %d names a row of table %q by something that is no key of it",
				b.partition, b.position+1, upTo, source.Table), nil
		}
		if err := w.insertKeys(ctx, relation, keys); err != nil {
			return 0, "", err
		}
		if source.Keys == "" {
			continue
		}
		if err := w.mapChanged(ctx, source); err != nil {
			return 0, "", err
		}
	}
	return changes, "", nil
}

func (w *work) readChanges(ctx context.Context, table string, b behind, upTo int64) ([]string, error) {
	names, err := readLoggedSources(ctx, w.tx, b.partition, []string{table})
	if err != nil || len(names) == 0 {
		return nil, err
	}
	rowIDs, err := collect(ctx, w.tx, func(row interface{ Scan(...any) error }) (id string, err error) {
		return id, row.Scan(&id)
	}, `
		SELECT DISTINCT row_id
		  FROM main.sync_changes
		 WHERE partition = ?1
		   AND tbl IN (SELECT value FROM json_each(?2))
		   AND commit_seq > ?3
		   AND commit_seq <= ?4`, b.partition, jsonList(names), b.position, upTo)
	return rowIDs, translate(err, fmt.Sprintf("checkpoint %q: read the log of partition %q", w.definition.Name, b.partition))
}

// collectLeftovers puts the keys that somebody left over for a row into the keys relation, at most limit of them (0: all), and says which.
func (w *work) collectLeftovers(ctx context.Context, row owned, limit int) (rowKeys []string, err error) {
	if limit <= 0 {
		limit = -1
	}
	rowKeys, err = collect(ctx, w.tx, func(row interface{ Scan(...any) error }) (key string, err error) {
		return key, row.Scan(&key)
	}, `
		SELECT row_key
		  FROM main.sync_backfill_leftovers
		 WHERE checkpoint = ?1
		   AND partition = ?2
		 ORDER BY row_key
		 LIMIT ?3`, row.Name, row.Partition, limit)
	if err != nil {
		return nil, translate(err, fmt.Sprintf("checkpoint %q: read the leftovers", w.definition.Name))
	}
	var keys [][]any
	for _, rowKey := range rowKeys {
		texts, ok := storage.DecodeKey(rowKey, len(w.key.columns))
		if !ok {
			return nil, storage.Refuse(storage.CodeContentDrift, "checkpoint %q: a leftover of partition %q is no key of table %q", row.Name, row.Partition, w.key.table)
		}
		keys = append(keys, w.key.candidates(texts)...)
	}
	return rowKeys, w.insertKeys(ctx, keysRelation, keys)
}

// dropLeftovers forgets leftovers that were done.
func (w *work) dropLeftovers(ctx context.Context, row owned, rowKeys []string) error {
	return w.exec(ctx, "drop leftovers", `
		DELETE FROM main.sync_backfill_leftovers
		 WHERE checkpoint = ?1
		   AND partition = ?2
		   AND row_key IN (SELECT value FROM json_each(?3))`, row.Name, row.Partition, jsonList(rowKeys))
}

// keysOf gives the keys that changes of a source name. A row of a Syncular table is named by its row id, in the partition of the commit.
func keysOf(declared storage.Table, key tableKey, partition string, rowIDs []string) (keys [][]any, ok bool) {
	for _, rowID := range rowIDs {
		texts := []string{partition, rowID}
		if declared.Layout != storage.Syncular {
			if texts, ok = storage.DecodeKey(rowID, len(key.columns)); !ok {
				return nil, false
			}
		}
		keys = append(keys, key.candidates(texts)...)
	}
	return keys, true
}

// makeChanged makes the relation of changed keys of a source that is not the backfilled table.
func (w *work) makeChanged(ctx context.Context, source storage.Source) (tableKey, error) {
	key, err := readKey(ctx, w.tx, tableOf(w.definition, source.Table))
	if err != nil {
		return key, err
	}
	if err := w.exec(ctx, "drop "+changedRelation, "DROP TABLE IF EXISTS "+changedRelation); err != nil {
		return key, err
	}
	return key, w.exec(ctx, "make "+changedRelation, key.temporary(changedRelation))
}

// mapSQL runs the user's mapping from changed to keys of the backfilled table.
func (w *work) mapSQL(source storage.Source) string {
	return "INSERT OR IGNORE INTO " + keysRelation + " SELECT " + w.key.list("q.") + " FROM " + subquery(source.Keys) + " AS q"
}

func (w *work) mapChanged(ctx context.Context, source storage.Source) error {
	what := fmt.Sprintf("checkpoint %q: map keys of source %q", w.definition.Name, source.Table)
	return contained(ctx, w.tx, what, &authorizer{}, func() error {
		_, err := w.tx.ExecContext(ctx, w.mapSQL(source))
		return err
	})
}

// applyKeys derives anew what the keys relation names: whether a row exists now decides, whatever the log says was done to it. What is
// gone goes first, since a key that only looks like one of those may exist.
func (w *work) applyKeys(ctx context.Context) (rows int64, err error) {
	if remove := w.removeSQL(); remove != "" {
		gone, err := w.fillFromKeys(ctx, `
			SELECT `+w.key.list("k.")+`
			  FROM `+keysRelation+` AS k
			 WHERE NOT EXISTS (SELECT 1 FROM `+w.table()+` AS t WHERE `+w.key.matches("t.", "k.")+`)`)
		if err != nil {
			return 0, err
		}
		if gone > 0 {
			if _, err := w.apply(ctx, remove); err != nil {
				return 0, err
			}
		}
		rows += gone
	}
	there, err := w.fillFromKeys(ctx, `
		SELECT `+w.key.list("t.")+`
		  FROM `+keysRelation+` AS k
		 CROSS JOIN `+w.table()+` AS t
		 WHERE `+w.key.matches("t.", "k."))
	if err != nil {
		return 0, err
	}
	left := there
	if left > 0 && w.definition.Checkpoint.Backfill.Update != nil {
		if left, err = w.leaveOutFilled(ctx); err != nil {
			return 0, err
		}
	}
	if left > 0 {
		if err := w.fill(ctx, left); err != nil {
			return 0, err
		}
	}
	return rows + there, nil
}

// fillFromKeys puts other keys into batch and says how many.
func (w *work) fillFromKeys(ctx context.Context, query string) (int64, error) {
	if err := w.exec(ctx, "empty a batch", "DELETE FROM "+batchRelation); err != nil {
		return 0, err
	}
	if err := w.exec(ctx, "fill a batch", "INSERT OR IGNORE INTO "+batchRelation+query); err != nil {
		return 0, err
	}
	return w.count(ctx, "count a batch", "SELECT count(*) FROM "+batchRelation)
}

// movePosition notes how far a row has read the log of a partition.
func (w *work) movePosition(ctx context.Context, row owned, b behind, upTo int64) error {
	if row.Partition != storage.AllPartitions {
		return w.exec(ctx, "move the watermark", `
			UPDATE main.sync_backfill_checkpoints
			   SET watermark = ?3,
			       updated_at_ms = ?4
			 WHERE partition = ?1
			   AND name = ?2
			   AND owner_epoch = ?5
			   AND watermark < ?3`, row.Partition, row.Name, upTo, nowMillis(), row.OwnerEpoch)
	}
	if err := noteEpoch(ctx, w.tx, b.partition); err != nil {
		return err
	}
	return w.exec(ctx, "move a position", `
		INSERT INTO main.sync_backfill_progress(checkpoint, kind, partition, position, facts, updated_at_ms)
		SELECT ?1, 'position', ?2, ?3, log_epoch, ?4
		  FROM main.sync_partition_registry
		 WHERE partition = ?2
		ON CONFLICT (checkpoint, kind, partition, range_no) DO UPDATE
		   SET position = excluded.position,
		       updated_at_ms = excluded.updated_at_ms`,
		row.Name, b.partition, upTo, nowMillis())
}
