package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// claimStatement bounds a statement of a claim: finding where to cut reads a sample of the table.
const claimStatement = 5 * time.Minute

// newClaimToken draws the token of a claim. Epochs can come again, after a restore or an abandoned name; a token does not.
func newClaimToken() string {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // it never fails (crypto/rand)
	return hex.EncodeToString(token)
}

// ClaimAll claims every row of a checkpoint that is not activated, in one transaction and with one token. The first claim of a row,
// and every row with restart, begins a pass: it notes the position of the log and cuts the keys into ranges. The scan begins only
// after this is committed, so whatever it does not see stands in the log above the noted position.
//
// A claim of a checkpoint whose rows are all activated has no rows. Errors: CodeCheckpointNotDeclared,
// CodeCheckpointDefinitionMissing, CodeLayoutMismatch.
func (s *Store) ClaimAll(ctx context.Context, name string, restart bool) (claim storage.Claim, err error) {
	what := fmt.Sprintf("claim checkpoint %q", name)
	err = s.inTx(ctx, what, txOptions{statementTimeout: claimStatement}, func(ctx context.Context, tx pgx.Tx) error {
		c := &claiming{Tx: tx, store: s, name: name, restart: restart, token: newClaimToken(), fresh: []string{}}
		claim, err = c.run(ctx)
		return err
	})
	if err != nil {
		return storage.Claim{}, s.explainMissing(ctx, err, what)
	}
	return claim, nil
}

// ClaimCheckpoint claims one row: its owner epoch is raised and a new token drawn, so whoever worked on it before is refused. The first
// claim of a row begins a pass, as with ClaimAll. A row that another program declared is claimed like any other.
//
// Errors: CodeCheckpointNotDeclared if there is no such row, or it is activated.
func (s *Store) ClaimCheckpoint(ctx context.Context, partition, name string) (claim storage.Claim, err error) {
	what := fmt.Sprintf("claim checkpoint %q in partition %q", name, partition)
	err = s.inTx(ctx, what, txOptions{statementTimeout: claimStatement}, func(ctx context.Context, tx pgx.Tx) error {
		c := &claiming{Tx: tx, store: s, name: name, only: &partition, token: newClaimToken(), fresh: []string{}}
		claim, err = c.run(ctx)
		if err == nil && len(claim.Rows) == 0 {
			err = storage.Refuse(storage.CodeCheckpointNotDeclared, "no open checkpoint %q is declared in partition %q", name, partition)
		}
		return err
	})
	if err != nil {
		return storage.Claim{}, s.explainMissing(ctx, err, what)
	}
	return claim, nil
}

// claiming is a claim under way.
type claiming struct {
	pgx.Tx
	store   *Store
	name    string
	only    *string // the partition of the one row to claim; nil: all rows
	restart bool
	token   string
	plan    *backfillPlan // nil where another program declared the checkpoint
	known   map[string]passFacts
	fresh   []string // the partitions of the rows whose pass begins with this claim, sorted
}

func (c *claiming) run(ctx context.Context) (storage.Claim, error) {
	claim := storage.Claim{Name: c.name, Token: c.token}
	if err := c.readPlan(ctx); err != nil {
		return claim, err
	}
	if c.plan != nil {
		claim.Version = c.plan.definition.Version
	}
	if err := c.lockRows(ctx); err != nil {
		return claim, err
	}
	var err error
	if claim.Rows, err = c.takeRows(ctx); err != nil || len(claim.Rows) == 0 {
		return claim, err
	}
	claim.Version = claim.Rows[0].Version
	return claim, c.beginPass(ctx)
}

// readPlan finds out what the pass depends on. A single row may be claimed that another program declared: what its pass is, only that
// program knows.
func (c *claiming) readPlan(ctx context.Context) error {
	definition, err := c.store.definitionIn(ctx, c, c.name)
	switch {
	case storage.CodeOf(err) == storage.CodeCheckpointDefinitionMissing && c.only != nil:
		return nil
	case err != nil:
		return err
	case definition.Checkpoint.Backfill.External():
		c.plan, err = c.store.readExternalPlan(ctx, c, definition)
	default:
		c.plan, err = c.store.readPlan(ctx, c, c.name)
	}
	return err
}

// lockRows locks what the claim changes, in the order in which a batch takes it: ranges before the checkpoint row. It finds
// out which rows begin a pass.
func (c *claiming) lockRows(ctx context.Context) error {
	if c.restart {
		if _, err := c.Exec(ctx, c.store.sql(`
			SELECT
			  FROM {schema}.sync_backfill_progress
			 WHERE checkpoint = $1::text
			   AND kind = 'range'
			 ORDER BY partition, range_no
			   FOR UPDATE`), c.name); err != nil {
			return fmt.Errorf("lock the ranges: %w", err)
		}
	}
	rows, err := c.Query(ctx, c.store.sql(`
		SELECT c.partition, coalesce(k.facts, '{}')
		  FROM {schema}.sync_backfill_checkpoints c
		  LEFT JOIN {schema}.sync_backfill_progress k
		    ON k.checkpoint = c.name
		   AND k.kind = 'claim'
		   AND k.partition = c.partition
		   AND k.range_no = 0
		 WHERE c.name = $1::text
		   AND c.state <> 'activated'
		   AND c.partition = coalesce($2::text, c.partition)
		 ORDER BY c.partition
		   FOR UPDATE OF c`), c.name, c.only)
	if err != nil {
		return fmt.Errorf("lock the checkpoint rows: %w", err)
	}
	c.known = map[string]passFacts{}
	var partition, text string
	_, err = pgx.ForEachRow(rows, []any{&partition, &text}, func() error {
		facts, err := decodeFacts(text)
		c.known[partition] = facts
		if c.plan != nil && (c.restart || !facts.begun()) {
			c.fresh = append(c.fresh, partition)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("lock the checkpoint rows: %w", err)
	}
	return nil
}

// takeRows raises the epochs, and notes the position of the log in the rows that begin a pass: in the same statement, since a
// watermark goes down only together with a new epoch.
func (c *claiming) takeRows(ctx context.Context) ([]storage.CheckpointRow, error) {
	rows, err := c.Query(ctx, c.store.sql(`
		UPDATE {schema}.sync_backfill_checkpoints c
		   SET owner_epoch = c.owner_epoch + 1,
		       state = 'backfilling',
		       watermark = CASE WHEN c.partition <> ALL ($2::text[]) OR c.partition = '*' AND NOT $4::boolean
		                        THEN c.watermark
		                        WHEN $4::boolean
		                        THEN `+safeSQL+`
		                        ELSE coalesce((SELECT p.max_commit_seq
		                                         FROM {schema}.sync_partitions p
		                                        WHERE p.partition = c.partition), 0)
		                    END,
		       updated_at_ms = `+nowMS+`
		 WHERE c.name = $1::text
		   AND c.state <> 'activated'
		   AND c.partition = coalesce($3::text, c.partition)
		RETURNING `+checkpointColumns), c.name, c.fresh, c.only, c.plan != nil && c.plan.allCaptured())
	if err != nil {
		return nil, fmt.Errorf("raise the owner epochs: %w", err)
	}
	taken, err := pgx.CollectRows(rows, scanCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("raise the owner epochs: %w", err)
	}
	if len(taken) != len(c.known) {
		return nil, storage.Refuse(storage.CodeSerialization, "%d of %d rows of checkpoint %q could be claimed", len(taken), len(c.known), c.name)
	}
	slices.SortFunc(taken, func(a, b storage.CheckpointRow) int { return strings.Compare(a.Partition, b.Partition) })
	return taken, c.writeClaim(ctx)
}

// writeClaim writes the token beside each row. What a pass began with stays as it was: only a restart begins anew.
func (c *claiming) writeClaim(ctx context.Context) error {
	_, err := c.Exec(ctx, c.store.sql(`
		INSERT INTO {schema}.sync_backfill_progress(checkpoint, kind, partition, claim_token, owner_epoch, updated_at_ms)
		SELECT c.name, 'claim', c.partition, $2::text, c.owner_epoch, `+nowMS+`
		  FROM {schema}.sync_backfill_checkpoints c
		 WHERE c.name = $1::text
		   AND c.state <> 'activated'
		   AND c.partition = coalesce($3::text, c.partition)
		    ON CONFLICT (checkpoint, kind, partition, range_no) DO UPDATE
		   SET claim_token = EXCLUDED.claim_token,
		       owner_epoch = EXCLUDED.owner_epoch,
		       updated_at_ms = EXCLUDED.updated_at_ms`), c.name, c.token, c.only)
	if err != nil {
		return fmt.Errorf("write the claim: %w", err)
	}
	return nil
}

// beginPass notes for the rows that begin a pass what is true now, and cuts their ranges.
func (c *claiming) beginPass(ctx context.Context) error {
	if len(c.fresh) == 0 {
		return nil
	}
	if err := c.forgetPass(ctx); err != nil {
		return err
	}
	if err := c.notePositions(ctx); err != nil {
		return err
	}
	if err := c.noteFacts(ctx); err != nil {
		return err
	}
	if c.plan.definition.Checkpoint.Backfill.External() {
		return nil // its program knows how far it is
	}
	ranges, err := c.store.cutRanges(ctx, c, c.plan, c.fresh)
	if err != nil {
		return err
	}
	return c.writeRanges(ctx, ranges)
}

func (c *claiming) forgetPass(ctx context.Context) error {
	for _, statement := range []sqlText{
		`DELETE FROM {schema}.sync_backfill_progress
		  WHERE checkpoint = $1::text
		    AND (kind = 'range' AND partition = ANY ($2::text[])
		         OR kind = 'position' AND range_no = 1 AND partition = ANY ($2::text[])
		         OR kind = 'position' AND range_no = 0 AND '*' = ANY ($2::text[]))`,
		`DELETE FROM {schema}.sync_backfill_leftovers
		  WHERE checkpoint = $1::text
		    AND partition = ANY ($2::text[])`,
	} {
		if _, err := c.Exec(ctx, c.store.sql(statement), c.name, c.fresh); err != nil {
			return fmt.Errorf("forget the pass before: %w", err)
		}
	}
	return nil
}

// notePositions notes where the logs stand that the pass depends on.
func (c *claiming) notePositions(ctx context.Context) error {
	if c.plan.captures() {
		if err := c.noteCaptured(ctx); err != nil {
			return err
		}
	}
	if c.plan.allCaptured() {
		return nil
	}
	return c.noteLogged(ctx)
}

// noteCaptured notes the snapshot of this moment. The scan begins after the claim is committed and sees all that is visible in it.
func (c *claiming) noteCaptured(ctx context.Context) error {
	_, err := c.Exec(ctx, c.store.sql(`
		INSERT INTO {schema}.sync_backfill_progress(checkpoint, kind, partition, range_no, position, facts, updated_at_ms)
		SELECT $1::text, 'position', fresh.partition, $3::integer, `+safeSQL+`,
		       json_build_object('applied', pg_catalog.pg_current_snapshot()::text)::text, `+nowMS+`
		  FROM unnest($2::text[]) AS fresh(partition)`), c.name, c.fresh, capturedRange)
	if err != nil {
		return fmt.Errorf("note the position in the captured log: %w", err)
	}
	return nil
}

// noteLogged gives each partition of the log an epoch, and for a row '*' notes where each log stands and in which epoch. A
// partition that is not noted did not exist: all of its log is to be read.
func (c *claiming) noteLogged(ctx context.Context) error {
	_, err := c.Exec(ctx, c.store.sql(`
		INSERT INTO {schema}.sync_partition_registry(partition, log_epoch, last_authenticated_at_ms)
		SELECT wanted.partition, `+randomEpoch+`, 0
		  FROM (SELECT p.partition
		          FROM {schema}.sync_partitions p
		         WHERE '*' = ANY ($1::text[])
		        UNION
		        SELECT listed.partition
		          FROM unnest($1::text[]) AS listed(partition)
		         WHERE listed.partition <> '*') AS wanted
		 WHERE NOT starts_with(wanted.partition, 'capture:')
		   AND NOT EXISTS (
		     SELECT
		       FROM {schema}.sync_partition_registry r
		      WHERE r.partition = wanted.partition)
		    ON CONFLICT (partition) DO NOTHING`), c.fresh)
	if err != nil {
		return fmt.Errorf("give partitions a log epoch: %w", err)
	}
	if !slices.Contains(c.fresh, storage.AllPartitions) {
		return nil
	}
	_, err = c.Exec(ctx, c.store.sql(`
		INSERT INTO {schema}.sync_backfill_progress(checkpoint, kind, partition, position, facts, updated_at_ms)
		SELECT $1::text, 'position', p.partition, p.max_commit_seq, r.log_epoch, `+nowMS+`
		  FROM {schema}.sync_partitions p
		  JOIN {schema}.sync_partition_registry r
		    ON r.partition = p.partition
		 WHERE NOT starts_with(p.partition, 'capture:')`), c.name)
	if err != nil {
		return fmt.Errorf("note the positions of the log: %w", err)
	}
	return nil
}

func (c *claiming) noteFacts(ctx context.Context) error {
	now, err := c.store.readPassFacts(ctx, c, c.plan)
	if err != nil {
		return err
	}
	if !c.plan.definition.Checkpoint.Backfill.External() {
		if now.Rows, err = c.store.estimatePass(ctx, c, c.plan); err != nil {
			return err
		}
	}
	epochs, err := c.logEpochs(ctx)
	if err != nil {
		return err
	}
	texts := make([]string, len(c.fresh))
	for i, partition := range c.fresh {
		facts := now
		facts.LogEpoch = epochs[partition]
		facts.Restarts = c.known[partition].Restarts
		if c.known[partition].begun() {
			facts.Restarts++
		}
		texts[i] = facts.encode()
	}
	_, err = c.Exec(ctx, c.store.sql(`
		UPDATE {schema}.sync_backfill_progress k
		   SET facts = noted.facts,
		       position = coalesce((SELECT c.watermark
		                              FROM {schema}.sync_backfill_checkpoints c
		                             WHERE c.name = k.checkpoint
		                               AND c.partition = k.partition), 0)
		  FROM unnest($2::text[], $3::text[]) AS noted(partition, facts)
		 WHERE k.checkpoint = $1::text
		   AND k.kind = 'claim'
		   AND k.partition = noted.partition`), c.name, c.fresh, texts)
	if err != nil {
		return fmt.Errorf("note the facts of the claim: %w", err)
	}
	return nil
}

func (c *claiming) logEpochs(ctx context.Context) (map[string]string, error) {
	rows, err := c.Query(ctx, c.store.sql(`
		SELECT partition, log_epoch
		  FROM {schema}.sync_partition_registry
		 WHERE partition = ANY ($1::text[])`), c.fresh)
	if err != nil {
		return nil, fmt.Errorf("read the log epochs: %w", err)
	}
	epochs := map[string]string{}
	var partition, epoch string
	if _, err := pgx.ForEachRow(rows, []any{&partition, &epoch}, func() error {
		epochs[partition] = epoch
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the log epochs: %w", err)
	}
	return epochs, nil
}

// writeRanges numbers the ranges over the whole checkpoint, behind those of rows whose pass goes on.
func (c *claiming) writeRanges(ctx context.Context, ranges []keyRange) error {
	partitions := make([]string, len(ranges))
	lower, upper := make([]*string, len(ranges)), make([]*string, len(ranges))
	for i, r := range ranges {
		partitions[i], lower[i], upper[i] = r.partition, encodeBound(r.lower), encodeBound(r.upper)
	}
	_, err := c.Exec(ctx, c.store.sql(`
		INSERT INTO {schema}.sync_backfill_progress(checkpoint, kind, partition, range_no, lower_key, upper_key, updated_at_ms)
		SELECT $1::text, 'range', cut.partition, taken.next + cut.place - 1, cut.lower_key, cut.upper_key, `+nowMS+`
		  FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS cut(partition, lower_key, upper_key, place)
		 CROSS JOIN (
		   SELECT coalesce(max(range_no) + 1, 0) AS next
		     FROM {schema}.sync_backfill_progress
		    WHERE checkpoint = $1::text
		      AND kind = 'range') AS taken`), c.name, partitions, lower, upper)
	if err != nil {
		return fmt.Errorf("write the ranges: %w", err)
	}
	return nil
}

func encodeBound(key []string) *string {
	if key == nil {
		return nil
	}
	text := storage.EncodeKey(key)
	return &text
}

// ReadClaim gives a claim back to a worker that knows only its token: the rows that still belong to it. It has no rows once all
// of them are activated. CodeOwnershipLost if a newer claim took them, CodeCheckpointNotDeclared.
func (s *Store) ReadClaim(ctx context.Context, name, token string) (storage.Claim, error) {
	claim := storage.Claim{Name: name, Token: token}
	var declared, claimed, open bool
	collect := func(rows pgx.Rows) error {
		claim.Rows, declared, claimed, open = nil, false, false, false
		for rows.Next() {
			var row storage.CheckpointRow
			var updated int64
			var ours bool
			err := rows.Scan(&row.Partition, &row.Name, &row.Version, &row.State, &row.Watermark, &row.OwnerEpoch, &row.ObservedRows, &updated, &ours)
			if err != nil {
				return err
			}
			row.UpdatedAt = time.UnixMilli(updated).UTC()
			declared, claimed, claim.Version = true, claimed || ours, row.Version
			open = open || row.State != storage.Activated
			if ours && row.State == storage.Backfilling {
				claim.Rows = append(claim.Rows, row)
			}
		}
		return rows.Err()
	}
	what := fmt.Sprintf("read the claim of checkpoint %q", name)
	err := s.readOnce(ctx, what, collect, s.sql(`
		SELECT c.partition, c.name, c.schema_version, c.state, c.watermark, c.owner_epoch, c.observed_rows, c.updated_at_ms,
		       coalesce(k.claim_token = $2::text AND k.owner_epoch = c.owner_epoch, false)
		  FROM {schema}.sync_backfill_checkpoints c
		  LEFT JOIN {schema}.sync_backfill_progress k
		    ON k.checkpoint = c.name
		   AND k.kind = 'claim'
		   AND k.partition = c.partition
		   AND k.range_no = 0
		 WHERE c.name = $1::text
		 ORDER BY c.partition`), name, token)
	switch {
	case err != nil:
		return storage.Claim{}, s.explainMissing(ctx, err, what)
	case !declared:
		return storage.Claim{}, notDeclared(name)
	case !claimed || len(claim.Rows) == 0 && open:
		return storage.Claim{}, storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q: another claim owns it now", name)
	}
	return claim, nil
}
