package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// rowActivationWait bounds each wait of ActivateCheckpoint, together with a quarter of deadlock_timeout: it waits for one partition and for
// one checkpoint row, so all of it stays below the half of it, and the program's own deadlock detector never finds us.
const rowActivationWait = 250 * time.Millisecond

// ActivateCheckpoint flips one row of a checkpoint that a program of the user's own fills, if no source change is above the watermark it
// gives; or a row of an SQL backfill whose ranges are scanned, if nothing is left of its tail. In one transaction: lock of the
// partition, fence, coverage, flip. Sources are those stored at the declaration. Asked again after success: OutcomeActivated.
//
// Errors: CodeCheckpointNotDeclared, CodeCheckpointDefinitionMissing, CodeCheckpointFenceMissing, CodeScanIncomplete; CodeLockTimeout
// while a writer of the partition is in flight.
func (s *Store) ActivateCheckpoint(ctx context.Context, owner storage.Ownership, watermark int64) (storage.Outcome, error) {
	what := fmt.Sprintf("activate checkpoint %q in partition %q", owner.Name, owner.Partition)
	var plan *backfillPlan
	err := s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		a := rowActivation{Tx: tx, store: s, owner: owner, watermark: watermark}
		err := a.run(ctx)
		plan = a.plan
		return err
	})
	var ended activationEnded
	switch {
	case errors.As(err, &ended):
		return ended.Outcome, nil
	case err != nil:
		return "", s.explainMissing(ctx, err, what)
	case plan != nil:
		return storage.OutcomeActivated, s.settleCapture(ctx, plan, owner.Partition)
	}
	return storage.OutcomeActivated, nil
}

// rowActivation is one ActivateCheckpoint under way.
type rowActivation struct {
	pgx.Tx
	store     *Store
	owner     storage.Ownership
	watermark int64 // up to which the caller says that every change is reflected
	plan      *backfillPlan
	version   int64
	stored    int64  // up to which the row itself says so
	began     int64  // position of the log when the pass began
	facts     string // what was true then
}

func (a *rowActivation) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		a.limit, a.read, a.lock, a.checkFence, a.checkWork, a.checkFacts, a.checkCoverage, a.checkCaptured,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	flipped, err := a.store.flip(ctx, a.Tx, a.owner, a.watermark)
	if err == nil && !flipped {
		return a.whyNot(ctx)
	}
	return err
}

// whyNot tells a row that somebody activated while this waited for the lock from one that another claim took.
func (a *rowActivation) whyNot(ctx context.Context) error {
	var activated bool
	err := a.QueryRow(ctx, a.store.sql(`
		SELECT EXISTS (
		  SELECT
		    FROM {schema}.sync_backfill_checkpoints
		   WHERE name = $1::text
		     AND partition = $2::text
		     AND state = 'activated')`), a.owner.Name, a.owner.Partition).Scan(&activated)
	switch {
	case err != nil:
		return err
	case activated:
		return activationEnded{Outcome: storage.OutcomeActivated}
	}
	return activationEnded{Outcome: storage.OutcomeLost}
}

func (a *rowActivation) limit(ctx context.Context) error {
	_, err := a.Exec(ctx, a.store.sql(limitsSQL), milliseconds(rowActivationWait), a.store.schema+", pg_temp", 0)
	return err
}

// read finds the row, what it depends on, and whether the caller owns it. Nothing of it is trusted later but that an activated row stays so.
func (a *rowActivation) read(ctx context.Context) error {
	definition, err := a.store.definitionIn(ctx, a.Tx, a.owner.Name)
	if err != nil {
		return err
	}
	var state storage.State
	var epoch int64
	var token string
	err = a.QueryRow(ctx, a.store.sql(`
		SELECT c.schema_version, c.state, c.owner_epoch, c.watermark, coalesce(k.claim_token, ''), coalesce(k.position, 0), coalesce(k.facts, '{}')
		  FROM {schema}.sync_backfill_checkpoints c
		  LEFT JOIN {schema}.sync_backfill_progress k
		    ON k.checkpoint = c.name
		   AND k.kind = 'claim'
		   AND k.partition = c.partition
		   AND k.range_no = 0
		   AND k.owner_epoch = c.owner_epoch
		 WHERE c.name = $1::text
		   AND c.partition = $2::text`), a.owner.Name, a.owner.Partition).
		Scan(&a.version, &state, &epoch, &a.stored, &token, &a.began, &a.facts)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return storage.Refuse(storage.CodeCheckpointNotDeclared, "no checkpoint %q is declared in partition %q", a.owner.Name, a.owner.Partition)
	case err != nil:
		return err
	case state == storage.Activated:
		return activationEnded{Outcome: storage.OutcomeActivated}
	case token == "" || token != a.owner.Token || epoch != a.owner.OwnerEpoch:
		return activationEnded{Outcome: storage.OutcomeLost}
	}
	if definition.Checkpoint.Backfill.External() {
		a.plan, err = a.store.readExternalPlan(ctx, a.Tx, definition)
		return err
	}
	a.watermark = a.stored // the tail's own position, not the caller's word
	a.plan, err = a.store.readPlan(ctx, a.Tx, a.owner.Name)
	return err
}

// lock keeps the writers of the partition out until COMMIT, or of all: a change in flight would come after the look at the log, and
// belong to the time before the activation. No rows are locked, so this needs no order among partitions and rows.
func (a *rowActivation) lock(ctx context.Context) error {
	all := a.owner.Partition == storage.AllPartitions
	locks := &activation{
		batchTx:    &batchTx{Tx: a.Tx, store: a.store, plan: a.plan, claim: storage.Claim{Name: a.owner.Name}, row: storage.CheckpointRow{Partition: a.owner.Partition}},
		Activation: storage.Activation{Tables: all},
	}
	if err := locks.bound(ctx); err != nil {
		return err
	}
	order := []func(context.Context) error{a.lockLog, locks.lockSources}
	switch {
	case a.plan.captures() && all: // tables first, as captured programs come from there to the log
		order = []func(context.Context) error{locks.lockTables, a.lockLog}
	case a.plan.captures():
		order = []func(context.Context) error{locks.lockSources, a.lockLog, locks.lockCaptured}
	}
	for _, lock := range order {
		if err := lock(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lockLog keeps out whose programs write their log themselves: of the row's partition, or of all.
func (a *rowActivation) lockLog(ctx context.Context) error {
	switch {
	case len(a.plan.loggedTables()) == 0:
		return nil
	case a.owner.Partition != storage.AllPartitions:
		return a.store.lockPartition(ctx, a.Tx, a.owner.Partition)
	}
	_, err := a.Exec(ctx, a.store.sql(`LOCK TABLE {schema}.sync_partitions IN EXCLUSIVE MODE`))
	return err
}

func (a *rowActivation) checkFence(ctx context.Context) error {
	return a.store.requireFenceFor(ctx, a.Tx, a.owner.Name, a.owner.Partition, a.version)
}

// checkWork: what we fill ourselves has to be scanned to its end, with no key left over.
func (a *rowActivation) checkWork(ctx context.Context) error {
	if a.plan.definition.Checkpoint.Backfill.External() {
		return nil
	}
	var ranges, open, leftovers int64
	err := a.QueryRow(ctx, a.store.sql(`
		SELECT count(*), count(*) FILTER (WHERE NOT done),
		       (SELECT count(*)
		          FROM {schema}.sync_backfill_leftovers
		         WHERE checkpoint = $1::text
		           AND partition = $2::text)
		  FROM {schema}.sync_backfill_progress
		 WHERE checkpoint = $1::text
		   AND kind = 'range'
		   AND partition = $2::text`), a.owner.Name, a.owner.Partition).Scan(&ranges, &open, &leftovers)
	if err == nil && (ranges == 0 || open > 0 || leftovers > 0) {
		err = storage.Refuse(storage.CodeScanIncomplete, "checkpoint %q, partition %q: %d of %d ranges are not scanned to their end, and %d keys are left over",
			a.owner.Name, a.owner.Partition, open, ranges, leftovers)
	}
	return err
}

func (a *rowActivation) checkFacts(ctx context.Context) error {
	reason, err := a.store.checkFacts(ctx, a.Tx, a.plan, a.facts)
	if err == nil && reason != "" {
		err = activationEnded{Outcome: storage.OutcomeUnverifiable}
	}
	return err
}

// checkCoverage asks the log, under the lock. The log has to be whole from where the pass began: a commit that vanished below the
// watermark was never seen by whoever moved it.
func (a *rowActivation) checkCoverage(ctx context.Context) error {
	if len(a.plan.loggedTables()) == 0 {
		return nil
	}
	if a.owner.Partition == storage.AllPartitions {
		return a.checkAllLogs(ctx)
	}
	noted, err := decodeFacts(a.facts)
	if err != nil {
		return err
	}
	var epoch string
	err = a.QueryRow(ctx, a.store.sql(`
		SELECT coalesce((SELECT log_epoch FROM {schema}.sync_partition_registry WHERE partition = $1::text), '')`), a.owner.Partition).Scan(&epoch)
	if err != nil {
		return err
	}
	if epoch != noted.LogEpoch {
		return activationEnded{Outcome: storage.OutcomeUnverifiable}
	}
	// Above the position that the row itself has, the log must still answer: what was pruned by force, or lost, before the program had said
	// that it is reflected, may never have been read.
	known, err := a.store.coverageIn(ctx, a.Tx, a.owner.Partition, a.plan.loggedTables(), a.stored, a.began)
	if err != nil {
		return err
	}
	if known.Verdict == storage.Unverifiable {
		return activationEnded{Outcome: storage.OutcomeUnverifiable}
	}
	coverage, err := a.store.coverageIn(ctx, a.Tx, a.owner.Partition, a.plan.loggedTables(), a.watermark, a.began)
	if err != nil {
		return err
	}
	return endedBy(coverage, nil)
}

// checkAllLogs: of a row '*' each partition has a position of its own, which the progress rows keep; the caller's number says nothing.
func (a *rowActivation) checkAllLogs(ctx context.Context) error {
	a.watermark = 0
	answer, err := a.store.readLog(ctx, a.Tx, a.plan, logQuestion{
		checkpoint: a.owner.Name, partition: storage.AllPartitions, changes: 1, commits: math.MaxInt32,
	})
	switch {
	case err != nil:
		return err
	case answer.reason != "":
		return activationEnded{Outcome: storage.OutcomeUnverifiable}
	}
	for _, window := range answer.windows {
		if len(window.changes) > 0 {
			return activationEnded{Outcome: storage.OutcomeChanged}
		}
	}
	return nil
}

// checkCaptured asks the captured log, under the locks. Of SQL that we run, nothing may be left of its tail. A program of the user's own gives a
// number up to which every transaction had ended when it read the log; where a source has a log of its program's own too, that number
// is of that log, and the captured one has to be as it was at the claim.
func (a *rowActivation) checkCaptured(ctx context.Context) error {
	if !a.plan.captures() {
		return nil
	}
	row := storage.CheckpointRow{Partition: a.owner.Partition}
	b := &batchTx{Tx: a.Tx, store: a.store, plan: a.plan, claim: storage.Claim{Name: a.owner.Name}, row: row}
	if a.plan.definition.Checkpoint.Backfill.External() && a.plan.allCaptured() {
		coverage, err := a.store.capturedCoverage(ctx, a.Tx, a.plan.captureRules(), a.plan.bareOf(a.owner.Partition), a.watermark, a.stored)
		return endedBy(coverage, err)
	}
	var left changedRows
	complete, reason, err := b.readCapturedRest(ctx, 1, &left)
	switch {
	case err != nil:
		return err
	case reason != "":
		return activationEnded{Outcome: storage.OutcomeUnverifiable}
	case left.count > 0 || !complete:
		return activationEnded{Outcome: storage.OutcomeChanged}
	}
	return nil
}

// endedBy is the end of an activation that a verdict brings, nil if it is clean.
func endedBy(coverage storage.Coverage, err error) error {
	if err != nil {
		return err
	}
	switch coverage.Verdict {
	case storage.Changed:
		return activationEnded{Outcome: storage.OutcomeChanged}
	case storage.Unverifiable:
		return activationEnded{Outcome: storage.OutcomeUnverifiable}
	}
	return nil
}
