package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	// behindRows is how many rows that are not activated are shown.
	behindRows = 10
	// errorBytes is how much of a worker's last error is kept.
	errorBytes = 4000
)

// ReadProgress gives what is known of one checkpoint, in one snapshot. CodeCheckpointNotDeclared.
func (s *Store) ReadProgress(ctx context.Context, name string) (progress storage.CheckpointProgress, err error) {
	what := fmt.Sprintf("read the progress of checkpoint %q", name)
	err = s.inTx(ctx, what, txOptions{iso: pgx.RepeatableRead, readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		progress, err = s.progressIn(ctx, tx, name)
		return err
	})
	return progress, s.explainMissing(ctx, err, what)
}

// progressIn is ReadProgress inside a transaction. Of a checkpoint that is activated nothing is left to judge: of a hundred old ones a status
// reads only what they came to.
func (s *Store) progressIn(ctx context.Context, tx pgx.Tx, name string) (storage.CheckpointProgress, error) {
	r := progressReader{Tx: tx, store: s, name: name}
	r.progress.Definition.Name = name
	for _, read := range []func(context.Context) error{r.rows, r.definition, r.work} {
		if err := read(ctx); err != nil {
			return storage.CheckpointProgress{}, err
		}
	}
	if r.progress.Activated == r.progress.Total {
		r.progress.RowsEstimated = r.progress.RowsDone
		return r.progress, nil
	}
	for _, read := range []func(context.Context) error{r.compareFacts, r.behind, r.unverifiable, r.estimate} {
		if err := read(ctx); err != nil {
			return storage.CheckpointProgress{}, err
		}
	}
	return r.progress, nil
}

type progressReader struct {
	pgx.Tx
	store     *Store
	name      string
	progress  storage.CheckpointProgress
	plan      *backfillPlan     // nil where SQL of ours has no part, or its table is gone
	changed   map[string]string // facts of claims: in what they hold no more
	estimated int64             // rows, as the pass noted when it began
	captured  map[string]bool   // of the rows shown, those with captured changes above their position
	unread    int               // and how many have a captured log that cannot answer
}

func (r *progressReader) rows(ctx context.Context) error {
	p := &r.progress
	var version, oldest, latest *int64
	err := r.QueryRow(ctx, r.store.sql(`
		SELECT count(*),
		       count(*) FILTER (WHERE state = 'declared'),
		       count(*) FILTER (WHERE state = 'backfilling'),
		       count(*) FILTER (WHERE state = 'activated'),
		       max(schema_version),
		       min(updated_at_ms) FILTER (WHERE state <> 'activated'),
		       greatest(max(updated_at_ms), (SELECT max(p.updated_at_ms)
		                                       FROM {schema}.sync_backfill_progress p
		                                      WHERE p.checkpoint = $1::text
		                                        AND p.kind <> 'claim'))
		  FROM {schema}.sync_backfill_checkpoints
		 WHERE name = $1::text`), r.name).Scan(&p.Total, &p.Declared, &p.Backfilling, &p.Activated, &version, &oldest, &latest)
	if err != nil {
		return fmt.Errorf("read the rows: %w", err)
	}
	if p.Total == 0 {
		return notDeclared(r.name)
	}
	p.Definition.Version = *version
	if oldest != nil {
		p.OldestUpdateAt = time.UnixMilli(*oldest).UTC()
	}
	p.LatestUpdateAt = time.UnixMilli(*latest).UTC()
	return nil
}

func (r *progressReader) definition(ctx context.Context) error {
	definition, err := r.store.definitionIn(ctx, r, r.name)
	if storage.CodeOf(err) == storage.CodeCheckpointDefinitionMissing {
		return nil
	}
	if err != nil {
		return err
	}
	r.progress.Definition, r.progress.Settings = definition, definition.Checkpoint.Settings
	return nil
}

// work reads ranges and claims.
func (r *progressReader) work(ctx context.Context) error {
	p := &r.progress
	err := r.QueryRow(ctx, r.store.sql(`
		SELECT count(*), count(*) FILTER (WHERE done), coalesce(sum(rows_done), 0)::bigint
		  FROM {schema}.sync_backfill_progress
		 WHERE checkpoint = $1::text
		   AND kind = 'range'`), r.name).Scan(&p.RangesTotal, &p.RangesDone, &p.RowsDone)
	if err != nil {
		return fmt.Errorf("read the ranges: %w", err)
	}
	rows, err := r.Query(ctx, r.store.sql(`
		SELECT p.claim_token, CASE WHEN c.state = 'activated' THEN '' ELSE p.last_error END, p.facts
		  FROM {schema}.sync_backfill_progress p
		  LEFT JOIN {schema}.sync_backfill_checkpoints c
		    ON c.name = p.checkpoint
		   AND c.partition = p.partition
		 WHERE p.checkpoint = $1::text
		   AND p.kind = 'claim'
		 -- A clock that was put back must not make the claim of rows that are done the newest.
		 ORDER BY coalesce(c.state, 'activated') <> 'activated', p.updated_at_ms, p.owner_epoch`), r.name)
	if err != nil {
		return fmt.Errorf("read the claims: %w", err)
	}
	r.changed = map[string]string{}
	var token, lastError, text string
	_, err = pgx.ForEachRow(rows, []any{&token, &lastError, &text}, func() error {
		p.ClaimToken = token
		if lastError != "" {
			p.LastError = lastError
		}
		facts, err := decodeFacts(text)
		p.Restarts = max(p.Restarts, facts.Restarts)
		r.estimated = max(r.estimated, facts.Rows)
		if facts.begun() {
			r.changed[text] = ""
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read the claims: %w", err)
	}
	return nil
}

// compareFacts finds out which of the noted facts hold no more.
func (r *progressReader) compareFacts(ctx context.Context) (err error) {
	if len(r.changed) == 0 || r.progress.Definition.Hash == "" || r.progress.Definition.Checkpoint.Backfill.External() {
		return nil
	}
	r.plan, err = r.store.readTables(ctx, r, r.progress.Definition)
	if storage.CodeOf(err) == storage.CodeLayoutMismatch {
		r.plan = nil // a table is gone
		return nil
	}
	if err != nil {
		return err
	}
	now, err := r.store.readPassFacts(ctx, r, r.plan)
	if err != nil {
		return err
	}
	for text := range r.changed {
		facts, err := decodeFacts(text)
		if err != nil {
			return err
		}
		r.changed[text] = facts.difference(now)
	}
	return nil
}

// standingSQL gives for each claimed row that is not activated whether its log still answers: pruned, ending before the position,
// or replaced. Of captured sources only the numbers tell that here; which changes there are is looked up for the rows that are shown. $1
// checkpoint, $2 whether programs write the log of a source themselves.
const standingSQL = `
SELECT c.partition, c.state, c.watermark, c.owner_epoch,
       CASE WHEN NOT $2::boolean
            THEN 0
            WHEN c.partition <> '*'
            THEN coalesce(p.max_commit_seq, 0) - c.watermark
            ELSE coalesce((SELECT sum(a.max_commit_seq - coalesce(n.position, 0))
                             FROM {schema}.sync_partitions a
                             LEFT JOIN {schema}.sync_backfill_progress n
                               ON n.checkpoint = c.name
                              AND n.kind = 'position'
                              AND n.partition = a.partition
                              AND n.range_no = 0
                            WHERE NOT starts_with(a.partition, 'capture:')), 0)::bigint
        END AS behind,
       coalesce(k.facts, '{}') AS facts,
       c.state = 'backfilling' AND
       (coalesce(w.position > pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint, false)
        OR CASE WHEN NOT $2::boolean
            THEN false
            WHEN c.partition <> '*'
            THEN coalesce(p.horizon_seq, 0) > c.watermark
                 OR coalesce(p.max_commit_seq, 0) < c.watermark
                 OR coalesce(k.facts::json ->> 'logEpoch' <> coalesce(r.log_epoch, ''), false) -- another program may have claimed it
            ELSE EXISTS (
              SELECT
                FROM {schema}.sync_partitions a
                LEFT JOIN {schema}.sync_backfill_progress n
                  ON n.checkpoint = c.name
                 AND n.kind = 'position'
                 AND n.partition = a.partition
                 AND n.range_no = 0
                LEFT JOIN {schema}.sync_partition_registry e
                  ON e.partition = a.partition
               WHERE NOT starts_with(a.partition, 'capture:')
                 AND (a.horizon_seq > coalesce(n.position, 0)
                      OR a.max_commit_seq < coalesce(n.position, 0)
                      OR n.facts <> coalesce(e.log_epoch, '')))
            END) AS silent
  FROM {schema}.sync_backfill_checkpoints c
  LEFT JOIN {schema}.sync_partitions p
    ON p.partition = c.partition
  LEFT JOIN {schema}.sync_partition_registry r
    ON r.partition = c.partition
  LEFT JOIN {schema}.sync_backfill_progress k
    ON k.checkpoint = c.name
   AND k.kind = 'claim'
   AND k.partition = c.partition
   AND k.range_no = 0
  LEFT JOIN {schema}.sync_backfill_progress w
    ON w.checkpoint = c.name
   AND w.kind = 'position'
   AND w.partition = c.partition
   AND w.range_no = 1
 WHERE c.name = $1::text
   AND c.state <> 'activated'`

// logged says whether programs write the log of a source themselves. So it is where only another program knows the checkpoint.
func (r *progressReader) logged() bool {
	sources := r.progress.Definition.Checkpoint.Sources
	return len(sources) == 0 || slices.ContainsFunc(sources, func(s storage.Source) bool { return s.Changes != storage.Capture })
}

// behind reads the rows that are furthest from being activated.
func (r *progressReader) behind(ctx context.Context) error {
	rows, err := r.Query(ctx, r.store.sql("SELECT * FROM ("+standingSQL+") AS standing ORDER BY state DESC, behind DESC, partition LIMIT $3::bigint"),
		r.name, r.logged(), int64(behindRows))
	if err != nil {
		return fmt.Errorf("read the rows that are behind: %w", err)
	}
	var row storage.BehindRow
	var behind int64
	var distances []int64
	var facts string
	var silent bool
	_, err = pgx.ForEachRow(rows, []any{&row.Partition, &row.State, &row.Watermark, &row.OwnerEpoch, &behind, &facts, &silent}, func() error {
		switch row.Verdict = ""; {
		case row.State != storage.Backfilling:
		case silent || r.changed[facts] != "":
			row.Verdict = storage.Unverifiable
		case behind > 0:
			row.Verdict = storage.Changed
		default:
			row.Verdict = storage.Clean
		}
		r.progress.Behind, distances = append(r.progress.Behind, row), append(distances, behind)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the rows that are behind: %w", err)
	}
	return r.sharpen(ctx, distances)
}

// sharpenBound is how much of a log is looked through for it.
const sharpenBound = 10_000

// sharpen finds out for the rows shown whether what is above their positions concerns a source at all, and is whole.
func (r *progressReader) sharpen(ctx context.Context, distances []int64) error {
	if err := r.sharpenCaptured(ctx); err != nil || !r.logged() {
		return err
	}
	var tables []string
	for _, source := range r.progress.Definition.Checkpoint.Sources {
		if source.Changes != storage.Capture {
			tables = append(tables, source.Table)
		}
	}
	for i, row := range r.progress.Behind {
		if row.Verdict != storage.Changed || r.captured[row.Partition] || row.Partition == storage.AllPartitions || len(tables) == 0 || distances[i] > sharpenBound {
			continue
		}
		coverage, err := r.store.coverageIn(ctx, r, row.Partition, tables, row.Watermark, row.Watermark)
		if err != nil {
			return err
		}
		r.progress.Behind[i].Verdict = coverage.Verdict
	}
	return nil
}

// unverifiable counts the rows whose log cannot answer.
func (r *progressReader) unverifiable(ctx context.Context) error {
	var changed []string
	for text, difference := range r.changed {
		if difference != "" {
			changed = append(changed, text)
		}
	}
	slices.Sort(changed)
	err := r.QueryRow(ctx, r.store.sql(`
		SELECT count(*)
		  FROM (`+standingSQL+`) AS standing
		 WHERE silent
		    OR state = 'backfilling' AND facts = ANY ($3::text[])`), r.name, r.logged(), changed).Scan(&r.progress.Unverifiable)
	if err != nil {
		return fmt.Errorf("count the rows whose log cannot answer: %w", err)
	}
	r.progress.Unverifiable += r.unread
	return nil
}

// estimate gives how many rows there are to do: as the pass noted, and before the first one as the planner thinks.
func (r *progressReader) estimate(ctx context.Context) (err error) {
	p := &r.progress
	p.RowsEstimated = max(p.RowsDone, r.estimated)
	if r.estimated > 0 || p.Definition.Hash == "" || p.Definition.Checkpoint.Backfill.External() {
		return nil
	}
	if r.plan == nil {
		r.plan, err = r.store.readTables(ctx, r, p.Definition)
		if storage.CodeOf(err) == storage.CodeLayoutMismatch {
			return nil
		}
		if err != nil {
			return err
		}
	}
	rows, err := r.store.estimatePass(ctx, r, r.plan)
	p.RowsEstimated = max(p.RowsDone, rows)
	return err
}

// RecordError keeps the last error of a claim for status. If the claim is not the newest any more nothing is kept, and that is no error.
func (s *Store) RecordError(ctx context.Context, claim storage.Claim, message string) error {
	if len(message) > errorBytes {
		message = message[:errorBytes]
	}
	what := fmt.Sprintf("record the last error of checkpoint %q", claim.Name)
	return s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql(`
			UPDATE {schema}.sync_backfill_progress
			   SET last_error = $3::text,
			       updated_at_ms = `+nowMS+`
			 WHERE checkpoint = $1::text
			   AND kind = 'claim'
			   AND claim_token = $2::text`), claim.Name, claim.Token, strings.ToValidUTF8(strings.ReplaceAll(message, "\x00", ""), ""))
		return err
	})
}

// ReplicationLag is the largest time by which a standby's replay is behind, 0 without any. CodeRightMissing if the role may not
// see the standbys: a limit that nobody can measure would not be kept.
func (s *Store) ReplicationLag(ctx context.Context) (time.Duration, error) {
	var lag float64
	var hidden int64
	err := s.readOnce(ctx, "read the replication lag", scanRow(&lag, &hidden), `
		SELECT coalesce(max(extract(epoch FROM replay_lag)) FILTER (WHERE state IN ('streaming', 'catchup')), 0)::float8,
		       count(*) FILTER (WHERE state IS NULL)
		  FROM pg_catalog.pg_stat_replication`)
	if err != nil {
		return 0, err
	}
	if hidden > 0 {
		return 0, storage.Refuse(storage.CodeRightMissing, "read the replication lag: the role may not see the standbys").
			WithHint("grant it pg_monitor, or set no maxReplicationLagSeconds")
	}
	return time.Duration(lag * float64(time.Second)), nil
}
