package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// behindRows is how many of the rows that are furthest behind are shown.
const behindRows = 10

// errorBytes is how much of a worker's last error is kept.
const errorBytes = 4000

// ReadProgress gives what is known of one checkpoint, read in one snapshot.
//
// Errors: CodeCheckpointNotDeclared.
func (s *Store) ReadProgress(ctx context.Context, name string) (progress storage.CheckpointProgress, err error) {
	what := fmt.Sprintf("read the progress of checkpoint %q", name)
	err = s.inTx(ctx, what, false, func(ctx context.Context, tx *sql.Conn) error {
		progress, err = progressIn(ctx, tx, name)
		return err
	})
	return progress, err
}

// progressIn reads progress inside a transaction.
func progressIn(ctx context.Context, tx *sql.Conn, name string) (p storage.CheckpointProgress, err error) {
	p.Definition, err = definitionIn(ctx, tx, name)
	if err != nil && storage.CodeOf(err) != storage.CodeCheckpointDefinitionMissing {
		return p, err
	}
	p.Definition.Name = name
	p.Settings = p.Definition.Checkpoint.Settings
	for _, read := range []func(context.Context, *sql.Conn, *storage.CheckpointProgress) error{
		readStates, readShares, readClaims, readFurthest,
	} {
		if err := read(ctx, tx, &p); err != nil {
			return p, translate(err, fmt.Sprintf("read the progress of checkpoint %q", name))
		}
	}
	if p.Total == 0 {
		return p, notDeclared(name)
	}
	if p.Activated == p.Total {
		p.LastError, p.RowsEstimated = "", 0 // it was got over, and what was done is known
	}
	p.RowsEstimated = max(p.RowsEstimated, p.RowsDone)
	return p, nil
}

// readStates counts the rows by state.
func readStates(ctx context.Context, tx *sql.Conn, p *storage.CheckpointProgress) error {
	var oldest, latest sql.NullInt64
	err := tx.QueryRowContext(ctx, `
		SELECT count(*),
		       coalesce(sum(state = 'declared'), 0),
		       coalesce(sum(state = 'backfilling'), 0),
		       coalesce(sum(state = 'activated'), 0),
		       coalesce(max(schema_version), 0),
		       min(CASE WHEN state <> 'activated' THEN updated_at_ms END),
		       max(max(updated_at_ms), coalesce((SELECT max(p.updated_at_ms)
		                                           FROM main.sync_backfill_progress p
		                                          WHERE p.checkpoint = ?1
		                                            AND p.kind <> 'claim'), 0))
		  FROM main.sync_backfill_checkpoints
		 WHERE name = ?1`, p.Definition.Name).Scan(&p.Total, &p.Declared, &p.Backfilling, &p.Activated, &p.Definition.Version, &oldest, &latest)
	if oldest.Valid {
		p.OldestUpdateAt = time.UnixMilli(oldest.Int64).UTC()
	}
	if latest.Valid {
		p.LatestUpdateAt = time.UnixMilli(latest.Int64).UTC()
	}
	return err
}

// readShares sums up the ranges.
func readShares(ctx context.Context, tx *sql.Conn, p *storage.CheckpointProgress) error {
	return tx.QueryRowContext(ctx, `
		SELECT count(*), coalesce(sum(done), 0), coalesce(sum(rows_done), 0)
		  FROM main.sync_backfill_progress
		 WHERE checkpoint = ?1
		   AND kind = 'range'`, p.Definition.Name).Scan(&p.RangesTotal, &p.RangesDone, &p.RowsDone)
}

// readClaims reads what claims noted, the newest last.
func readClaims(ctx context.Context, tx *sql.Conn, p *storage.CheckpointProgress) error {
	type noted struct{ token, facts, lastError string }
	claims, err := collect(ctx, tx, func(row interface{ Scan(...any) error }) (n noted, err error) {
		return n, row.Scan(&n.token, &n.facts, &n.lastError)
	}, `
		SELECT p.claim_token, p.facts, CASE WHEN c.state = 'activated' THEN '' ELSE p.last_error END
		  FROM main.sync_backfill_progress p
		  LEFT JOIN main.sync_backfill_checkpoints c
		    ON c.name = p.checkpoint
		   AND c.partition = p.partition
		 WHERE p.checkpoint = ?1
		   AND p.kind = 'claim'
		 -- A clock that was put back must not make the claim of rows that are done the newest.
		 ORDER BY coalesce(c.state, 'activated') <> 'activated', p.updated_at_ms, p.owner_epoch`, p.Definition.Name)
	for _, claim := range claims {
		facts, err := decodeFacts(claim.facts)
		if err != nil {
			return err
		}
		p.ClaimToken = claim.token
		p.RowsEstimated += facts.Rows
		p.Restarts = max(p.Restarts, facts.Restarts)
		if claim.lastError != "" {
			p.LastError = claim.lastError
		}
	}
	return err
}

// readFurthest judges every open row and keeps those that are furthest behind.
func readFurthest(ctx context.Context, tx *sql.Conn, p *storage.CheckpointProgress) error {
	open, err := readOpenRows(ctx, tx, claimRequest{name: p.Definition.Name})
	if err != nil || len(open) == 0 {
		return err
	}
	w := &work{tx: tx, definition: p.Definition}
	now, err := readPassFacts(ctx, tx, p.Definition)
	if err != nil {
		return err
	}
	type distant struct {
		storage.BehindRow
		distance int64
	}
	var rows []distant
	for _, row := range open {
		d := distant{BehindRow: storage.BehindRow{
			Partition: row.Partition, State: row.State, Watermark: row.Watermark, OwnerEpoch: row.OwnerEpoch,
		}}
		if row.before != nil && p.Definition.Hash != "" {
			if d.Verdict, d.distance, err = w.judge(ctx, owned{CheckpointRow: row.CheckpointRow, facts: *row.before}, now); err != nil {
				return err
			}
		}
		if d.Verdict == storage.Unverifiable {
			p.Unverifiable++
		}
		rows = append(rows, d)
	}
	slices.SortStableFunc(rows, func(a, b distant) int { return cmp.Compare(b.distance, a.distance) })
	for _, d := range rows[:min(behindRows, len(rows))] {
		p.Behind = append(p.Behind, d.BehindRow)
	}
	return nil
}

// judge says whether the log answers for an open row, and how many commits it has not read.
func (w *work) judge(ctx context.Context, row owned, now passFacts) (verdict storage.Verdict, distance int64, err error) {
	if row.facts.difference(now) != "" {
		return storage.Unverifiable, 0, nil
	}
	found, reason, err := w.readBehind(ctx, row, 0)
	if err != nil || reason != "" {
		return storage.Unverifiable, 0, err
	}
	verdict = storage.Clean
	for _, b := range found {
		distance += b.last - b.position
		coverage, err := coverageIn(ctx, w.tx, b.partition, sourceTables(w.definition), b.position, b.position)
		if err != nil {
			return "", 0, err
		}
		if coverage.Verdict != storage.Clean {
			verdict = coverage.Verdict
		}
	}
	return verdict, distance, nil
}

// RecordError keeps the last error of a claim for status. It is no error if the claim is not the newest any more.
func (s *Store) RecordError(ctx context.Context, claim storage.Claim, message string) error {
	if len(message) > errorBytes {
		message = message[:errorBytes]
	}
	message = strings.ToValidUTF8(strings.ReplaceAll(message, "\x00", ""), "")
	what := fmt.Sprintf("record the last error of checkpoint %q", claim.Name)
	return s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		_, err := tx.ExecContext(ctx, `
			UPDATE main.sync_backfill_progress
			   SET last_error = ?3,
			       updated_at_ms = ?4
			 WHERE checkpoint = ?1
			   AND kind = 'claim'
			   AND claim_token = ?2`, claim.Name, claim.Token, message, nowMillis())
		return err
	})
}

// ReplicationLag is 0: a file has no standbys.
func (s *Store) ReplicationLag(context.Context) (time.Duration, error) { return 0, nil }
