package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// ClaimCheckpoint claims one row: its owner epoch is raised and a new token drawn, so whoever worked on it before is refused.
//
// Errors: CodeCheckpointNotDeclared if there is no such row, or it is activated.
func (s *Store) ClaimCheckpoint(ctx context.Context, partition, name string) (storage.Claim, error) {
	claim, err := s.claim(ctx, claimRequest{name: name, partition: partition, single: true})
	if errors.Is(err, errNoCatalog) {
		return storage.Claim{}, err
	}
	if storage.CodeOf(err) == storage.CodeCheckpointNotDeclared || err == nil && len(claim.Rows) == 0 {
		return storage.Claim{}, storage.Refuse(storage.CodeCheckpointNotDeclared, "no open checkpoint %q is declared in partition %q", name, partition)
	}
	return claim, err
}

// ClaimAll claims every row of a checkpoint that is not activated, in one transaction, with one token. The first claim of a row notes the
// position of the log and cuts the work into key ranges; a later one goes on where the work stands, unless restart is set.
//
// Errors: CodeCheckpointNotDeclared; CodeCheckpointDefinitionMissing.
func (s *Store) ClaimAll(ctx context.Context, name string, restart bool) (storage.Claim, error) {
	return s.claim(ctx, claimRequest{name: name, restart: restart})
}

// claimRequest says which rows to claim and how.
type claimRequest struct {
	name      string
	partition string
	single    bool // only the row of partition, whoever declared it
	restart   bool
}

func (s *Store) claim(ctx context.Context, request claimRequest) (claim storage.Claim, err error) {
	what := fmt.Sprintf("claim checkpoint %q", request.name)
	var cuts map[string]cut
	// Where the table is cut is only a matter of equal shares: every key lies in some range wherever the cuts are. So they are sought
	// in a snapshot, and no writer waits for it.
	err = s.inTx(ctx, what, false, func(ctx context.Context, tx *sql.Conn) error {
		c, err := newClaimer(ctx, tx, request)
		if err != nil {
			return err
		}
		cuts, err = c.cutAll(ctx)
		return err
	})
	if err != nil {
		return storage.Claim{}, err
	}
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		c, err := newClaimer(ctx, tx, request)
		if err != nil {
			return err
		}
		c.cuts = cuts
		claim, err = c.claimAll(ctx)
		return err
	})
	if err != nil {
		return storage.Claim{}, err
	}
	return claim, nil
}

// claimer is one claim in one transaction.
type claimer struct {
	tx         *sql.Conn
	request    claimRequest
	definition storage.Definition // without a hash where another program declared the checkpoint
	work       *work              // nil for an external checkpoint
	rows       []openRow
	facts      passFacts
	cuts       map[string]cut
	claim      storage.Claim
}

// openRow is a row that is to be claimed, with the facts of the pass under way, if one has begun.
type openRow struct {
	storage.CheckpointRow
	before *passFacts
}

func newClaimer(ctx context.Context, tx *sql.Conn, request claimRequest) (*claimer, error) {
	c := &claimer{tx: tx, request: request}
	var err error
	c.definition, err = definitionIn(ctx, tx, request.name)
	foreign := storage.CodeOf(err) == storage.CodeCheckpointDefinitionMissing
	if err != nil && !(foreign && request.single) {
		return nil, err
	}
	if c.rows, err = readOpenRows(ctx, tx, request); err != nil {
		return nil, err
	}
	if !foreign && !c.definition.Checkpoint.Backfill.External() {
		if c.work, err = newWork(ctx, tx, c.definition); err != nil {
			return nil, err
		}
	}
	c.facts, err = readPassFacts(ctx, tx, c.definition)
	return c, err
}

func readOpenRows(ctx context.Context, q querier, request claimRequest) ([]openRow, error) {
	condition, arguments := "", []any{request.name}
	if request.single {
		condition, arguments = "AND c.partition = ?2", append(arguments, request.partition)
	}
	return collect(ctx, q, func(row interface{ Scan(...any) error }) (open openRow, err error) {
		var before sql.NullString
		open.CheckpointRow, err = scanCheckpoint(scanMore{row, []any{&before}})
		if err != nil || !before.Valid {
			return open, err
		}
		facts, err := decodeFacts(before.String)
		if facts.begun() {
			open.before = &facts
		}
		return open, err
	}, `
		SELECT c.partition, c.name, c.schema_version, c.state, c.watermark, c.owner_epoch, c.observed_rows, c.updated_at_ms, p.facts
		  FROM main.sync_backfill_checkpoints c
		  LEFT JOIN main.sync_backfill_progress p
		    ON p.checkpoint = c.name
		   AND p.kind = 'claim'
		   AND p.partition = c.partition
		   AND p.range_no = 0
		 WHERE c.name = ?1
		   AND c.state <> 'activated' `+condition+`
		 ORDER BY c.partition`, arguments...)
}

// scanMore scans columns beyond those that a scan function knows.
type scanMore struct {
	row  interface{ Scan(...any) error }
	more []any
}

func (s scanMore) Scan(targets ...any) error { return s.row.Scan(append(targets, s.more...)...) }

// begins says whether the pass of a row starts with this claim.
func (c *claimer) begins(row openRow) bool { return row.before == nil || c.request.restart }

func (c *claimer) claimAll(ctx context.Context) (storage.Claim, error) {
	c.claim = storage.Claim{Name: c.request.name, Version: c.definition.Version, Token: randomID()}
	for _, row := range c.rows {
		c.claim.Version = row.Version
		if err := c.claimRow(ctx, row); err != nil {
			return storage.Claim{}, err
		}
	}
	return c.claim, nil
}

// claimRow makes this claim the owner of a row. Scan and tail begin only once it is committed, so whatever commits later than the position
// noted here stands above it in the log.
func (c *claimer) claimRow(ctx context.Context, row openRow) error {
	facts := c.facts
	switch {
	case row.before != nil && !c.request.restart:
		facts = *row.before // what was true when the pass began, not now
	case row.before != nil:
		facts.Restarts = row.before.Restarts + 1
	}
	position := row.Watermark
	if c.begins(row) {
		var err error
		if position, err = c.beginPass(ctx, row, &facts); err != nil {
			return err
		}
	}
	claimed, err := scanCheckpoint(c.tx.QueryRowContext(ctx, `
		UPDATE main.sync_backfill_checkpoints
		   SET owner_epoch = owner_epoch + 1,
		       state = 'backfilling',
		       watermark = ?3,
		       updated_at_ms = ?4
		 WHERE partition = ?1
		   AND name = ?2
		   AND state <> 'activated'
		RETURNING `+checkpointColumns, row.Partition, row.Name, position, nowMillis()))
	if noRows(err) {
		return storage.Refuse(storage.CodeCheckpointGuard, "the database refused the claim of checkpoint %q in partition %q", row.Name, row.Partition)
	}
	if err != nil {
		return err
	}
	_, err = c.tx.ExecContext(ctx, `
		INSERT INTO main.sync_backfill_progress(checkpoint, kind, partition, claim_token, owner_epoch, facts, updated_at_ms)
		VALUES (?1, 'claim', ?2, ?3, ?4, ?5, ?6)
		ON CONFLICT (checkpoint, kind, partition, range_no) DO UPDATE
		   SET claim_token = excluded.claim_token,
		       owner_epoch = excluded.owner_epoch,
		       facts = excluded.facts,
		       updated_at_ms = excluded.updated_at_ms`,
		row.Name, row.Partition, c.claim.Token, claimed.OwnerEpoch, facts.encode(), nowMillis())
	c.claim.Rows = append(c.claim.Rows, claimed)
	return err
}

// beginPass forgets the pass before, notes the position of the log and cuts the ranges. It returns the row's new watermark.
func (c *claimer) beginPass(ctx context.Context, row openRow, facts *passFacts) (position int64, err error) {
	if c.definition.Hash == "" {
		return row.Watermark, nil // the program that declared it keeps its own books
	}
	_, err = c.tx.ExecContext(ctx, `
		DELETE FROM main.sync_backfill_progress
		 WHERE checkpoint = ?1
		   AND ((kind = 'range' AND partition = ?2) OR (kind = 'position' AND ?2 = '*'))`, row.Name, row.Partition)
	if err != nil {
		return 0, err
	}
	_, err = c.tx.ExecContext(ctx, `
		DELETE FROM main.sync_backfill_leftovers
		 WHERE checkpoint = ?1
		   AND partition = ?2`, row.Name, row.Partition)
	if err != nil {
		return 0, err
	}
	if position, err = c.notePosition(ctx, row, facts); err != nil {
		return 0, err
	}
	if c.work == nil {
		return position, nil
	}
	facts.Rows = c.cuts[row.Partition].rows
	return position, c.writeRanges(ctx, row.Partition, c.cuts[row.Partition].bounds)
}

// notePosition notes how far the log goes now, and which log that is.
func (c *claimer) notePosition(ctx context.Context, row openRow, facts *passFacts) (position int64, err error) {
	if row.Partition == storage.AllPartitions {
		return row.Watermark, c.noteAllPositions(ctx)
	}
	if err := noteEpoch(ctx, c.tx, row.Partition); err != nil {
		return 0, err
	}
	err = c.tx.QueryRowContext(ctx, `
		SELECT coalesce((SELECT max_commit_seq FROM main.sync_partitions WHERE partition = ?1), 0),
		       (SELECT log_epoch FROM main.sync_partition_registry WHERE partition = ?1)`,
		row.Partition).Scan(&facts.Position, &facts.LogEpoch)
	return facts.Position, err
}

// noteEpoch gives a log epoch to a partition that has none, so that a later change of it shows.
func noteEpoch(ctx context.Context, q querier, partition string) error {
	_, err := q.ExecContext(ctx, `
		INSERT INTO main.sync_partition_registry(partition, log_epoch, last_authenticated_at_ms)
		VALUES (?1, `+randomEpoch+`, 0)
		ON CONFLICT (partition) DO NOTHING`, partition)
	return translate(err, fmt.Sprintf("give partition %q a log epoch", partition))
}

// noteAllPositions notes the position of every partition there is. One without a row did not exist at the claim, and counts from 0.
func (c *claimer) noteAllPositions(ctx context.Context) error {
	_, err := c.tx.ExecContext(ctx, `
		INSERT INTO main.sync_partition_registry(partition, log_epoch, last_authenticated_at_ms)
		SELECT p.partition, `+randomEpoch+`, 0
		  FROM main.sync_partitions p
		 WHERE NOT EXISTS (SELECT 1 FROM main.sync_partition_registry r WHERE r.partition = p.partition)`)
	if err != nil {
		return err
	}
	_, err = c.tx.ExecContext(ctx, `
		INSERT INTO main.sync_backfill_progress(checkpoint, kind, partition, position, facts, updated_at_ms)
		SELECT ?1, 'position', p.partition, p.max_commit_seq, r.log_epoch, ?2
		  FROM main.sync_partitions p
		  JOIN main.sync_partition_registry r
		    ON r.partition = p.partition
		 WHERE substr(p.partition, 1, 8) <> 'capture:'`, c.request.name, nowMillis())
	return err
}

// ReadClaim gives a claim back to a worker that knows only its token: the rows that still belong to it. It has no rows once
// all of them are activated.
//
// Errors: CodeOwnershipLost if a newer claim took them; CodeCheckpointNotDeclared.
func (s *Store) ReadClaim(ctx context.Context, name, token string) (claim storage.Claim, err error) {
	what := fmt.Sprintf("read the claim of checkpoint %q", name)
	err = s.inTx(ctx, what, false, func(ctx context.Context, tx *sql.Conn) error {
		var version sql.NullInt64
		var open, owned bool
		err := tx.QueryRowContext(ctx, `
			SELECT (SELECT max(schema_version) FROM main.sync_backfill_checkpoints WHERE name = ?1),
			       EXISTS (
			         SELECT 1
			           FROM main.sync_backfill_checkpoints
			          WHERE name = ?1
			            AND state <> 'activated'),
			       EXISTS (
			         SELECT 1
			           FROM main.sync_backfill_progress
			          WHERE checkpoint = ?1
			            AND kind = 'claim'
			            AND claim_token = ?2)`, name, token).Scan(&version, &open, &owned)
		switch {
		case err != nil:
			return err
		case !version.Valid:
			return notDeclared(name)
		}
		claim = storage.Claim{Name: name, Version: version.Int64, Token: token}
		claim.Rows, err = collect(ctx, tx, scanCheckpoint, `
			SELECT c.partition, c.name, c.schema_version, c.state, c.watermark, c.owner_epoch, c.observed_rows, c.updated_at_ms
			  FROM main.sync_backfill_checkpoints c
			  JOIN main.sync_backfill_progress p
			    ON p.checkpoint = c.name
			   AND p.kind = 'claim'
			   AND p.partition = c.partition
			   AND p.owner_epoch = c.owner_epoch
			 WHERE c.name = ?1
			   AND p.claim_token = ?2
			   AND c.state = 'backfilling'
			 ORDER BY c.partition`, name, token)
		if err == nil && (!owned || len(claim.Rows) == 0 && open) {
			return storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q: another claim owns it now", name)
		}
		return err
	})
	if err != nil {
		return storage.Claim{}, err
	}
	return claim, nil
}
