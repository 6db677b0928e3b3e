package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// suspend ends the pass before anything is changed. A schema with nothing left to do stays Ready.
func (r *SyncSchemaReconciler) suspend(_ context.Context, pass *schemaPass) (*verdict, error) {
	if !pass.object.Spec.Suspend {
		return nil, nil
	}
	gate := pass.gate.Verdict()
	if pass.migrated() && gate.Open && pass.fenceBroken == "" && ours(pass.status.Owner, r.Cluster, pass.object) {
		return done(v1alpha1.ReasonGateOpen, "%s", gate.Message), nil
	}
	return reconciling(0, v1alpha1.ReasonSuspended, "spec.suspend is true: no barrier, no Jobs, no activation. %s", gate.Message), nil
}

// approve waits, with cutover OnApproval, until a person has approved exactly the plan that stands now.
func (r *SyncSchemaReconciler) approve(ctx context.Context, pass *schemaPass) (*verdict, error) {
	if pass.object.Spec.EffectiveStrategy().Cutover != v1alpha1.CutoverOnApproval || pass.status.StoredVersion >= pass.target.Version {
		return nil, nil
	}
	plan, err := r.plan(ctx, pass)
	if err != nil {
		return nil, err
	}
	pass.target.PlanHash = plan.Hash // whatever is decided under the locks, nothing else is carried out
	if plan.Decision.Outcome != storage.Migrate {
		return nil, nil
	}
	wanted := decimal(pass.target.Version) + "@" + plan.Hash
	given := pass.object.Annotations[AnnotationApprove]
	if given == wanted {
		return nil, nil
	}
	pass.plan = planStatus(plan, pass.target.Version)
	message := fmt.Sprintf("plan %s of version %d waits for approval", plan.Hash, pass.target.Version)
	if given != "" {
		message += fmt.Sprintf("; %q approves another plan", cut(given, 80))
	}
	return reconciling(0, v1alpha1.ReasonApprovalPending, "%s (kubectl syncbarrier approve %s, or the annotation %s: %s)",
		message, pass.object.Name, AnnotationApprove, wanted), nil
}

// Bounds of the lists of a status.
const (
	maxPlanLocks = 256
	maxBlockers  = 10
)

func planStatus(plan storage.Plan, version int64) *v1alpha1.Plan {
	out := &v1alpha1.Plan{
		Hash: plan.Hash, Version: int32(version), LocksTotal: int32(len(plan.Locks)),
		ExpectedPauseMilliseconds: plan.ExpectedPause.Milliseconds(),
	}
	for _, lock := range plan.Locks[:min(len(plan.Locks), maxPlanLocks)] {
		out.Locks = append(out.Locks, v1alpha1.PlannedLock{Table: cut(lock.Table, maxTableName), Mode: cut(lock.Mode, 63)})
	}
	rewritten, backfilled := map[string]bool{}, map[string]bool{}
	for _, step := range plan.Decision.Steps {
		if step.Kind == storage.StepRewritePayload {
			rewritten[step.Table] = true
		}
	}
	for _, checkpoint := range plan.Decision.Declare {
		backfilled[checkpoint.Backfill.Table()] = true
	}
	for _, table := range slices.Sorted(maps.Keys(plan.Rows)) {
		if rewritten[table] {
			out.RowsRewritten += plan.Rows[table]
		}
		if backfilled[table] {
			out.RowsBackfilled += plan.Rows[table]
		}
	}
	return out
}

// migrate makes one attempt at the barrier, or agrees with one that was made. A database that is as it should be costs some reads.
func (r *SyncSchemaReconciler) migrate(ctx context.Context, pass *schemaPass) (*verdict, error) {
	if wait := pass.attempt.due.Sub(pass.now); wait > 0 && pass.attempt.failure != nil {
		v := r.explain(pass, pass.attempt.failure)
		pass.rest(v)
		return v, nil
	}
	if pass.status.StoredVersion < pass.target.Version {
		if workers := r.workersOf(pass); pass.attempt.tried != workers {
			if err := r.tryWorkers(ctx, pass); err != nil {
				return nil, err
			}
			pass.attempt.tried = workers
			r.attempts.put(pass.object.UID, pass.attempt)
		}
		finish, ahead := pass.lease.TryBarrier(pass.object.UID, r.waker(pass.object))
		if finish == nil {
			return reconciling(turnPause(ahead), v1alpha1.ReasonMigrating, "waits for another barrier on the same server"), nil
		}
		defer finish()
	}
	started := time.Now()
	result, err := pass.lease.Store.EnsureSchema(ctx, *pass.target, pass.attempt.next)
	if err != nil {
		return r.attemptFailed(ctx, pass, err, time.Since(started), result.LockHold)
	}
	pass.attempt = pass.attempt.succeeded()
	if !ours(pass.status.Owner, r.Cluster, pass.object) {
		pass.events = append(pass.events, notice{reason: "TakenOver", action: "TakeOver", note: "taken over from " + pass.status.Owner.String()})
	}
	if result.Outcome == storage.Agreed {
		r.attempts.put(pass.object.UID, pass.attempt)
		return nil, nil
	}
	pass.attempt.fence = nil // it is another one now
	r.attempts.put(pass.object.UID, pass.attempt)
	countBarrier(pass.object.Namespace, pass.object.Name, result)
	pass.events = append(pass.events, migratedNotice(result))
	for _, warning := range result.Warnings {
		pass.events = append(pass.events, notice{warning: true, reason: v1alpha1.ReasonMigrated, action: "Migrate", note: warning})
	}
	v, err := r.observe(ctx, pass)
	if err == nil && pass.status != nil {
		pass.events = append(pass.events, pass.announcePause(result)...)
	}
	return v, err
}

// expectedRowsPerSecond is what a backfill fills in a second where nothing limits it, for telling seconds from hours; `syncbarrier plan` reckons
// with the same.
const expectedRowsPerSecond = 100_000

// announcePause says how long the backfills are expected to keep old programs from writing and new ones from serving, by the database's
// estimate of rows.
func (p *schemaPass) announcePause(result storage.BarrierResult) []notice {
	var rows, seconds int64
	for _, checkpoint := range p.status.Checkpoints {
		if !slices.Contains(result.Declared, checkpoint.Definition.Name) {
			continue
		}
		rate := int64(expectedRowsPerSecond)
		if limit := int64(checkpoint.Settings.MaxRowsPerSecond); limit > 0 {
			rate = min(rate, limit)
		}
		rows += checkpoint.RowsEstimated
		seconds += 1 + checkpoint.RowsEstimated/rate
	}
	if seconds == 0 {
		return nil
	}
	return []notice{{reason: "WritesPaused", action: "Migrate", note: fmt.Sprintf(
		"programs below version %d cannot write, and version %d does not serve, until about %d rows are filled: expected to take %d s",
		p.status.MinWriterVersion, result.Version, rows, seconds)}}
}

func describeBarrier(result storage.BarrierResult) string {
	if result.Outcome == storage.Adopt {
		return fmt.Sprintf("version %d was there already, brought by another program; it is recorded", result.Version)
	}
	return fmt.Sprintf("version %d -> %d in one transaction; waited %d ms for locks, held them %d ms; %d checkpoints declared",
		result.Stored, result.Version, result.LockWait.Milliseconds(), result.LockHold.Milliseconds(), len(result.Declared))
}

// attemptFailed paces what passes by itself. What a person has to look at is looked at again at the next resync; if it showed only under the
// locks no event brings it on earlier, for each look holds writers up.
func (r *SyncSchemaReconciler) attemptFailed(ctx context.Context, pass *schemaPass, err error, took, held time.Duration) (*verdict, error) {
	if ctx.Err() != nil {
		return nil, err // the manager is ending
	}
	class := storage.ClassOf(err)
	barrierAttempts.WithLabelValues(pass.object.Namespace, pass.object.Name, string(class)).Inc()
	pass.lease.Report(err)
	v := r.explain(pass, err)
	switch {
	case v == nil:
		return nil, err
	case v.state == stateReconciling && class == storage.ClassPreviousVersionOpen && held == 0:
		return v, nil // no attempt at a lock was made, and the checkpoint's own event comes first
	case v.state == stateReconciling:
		pass.attempt = pass.attempt.failed(err, took, held, pass.now, draw(r.Jitter))
	case held > 0 || class == storage.ClassInvalidSQL || class == storage.ClassNotTransactional:
		pass.attempt = pass.attempt.refused(err, held, pass.now, r.resync())
	default:
		pass.attempt = pass.attempt.succeeded()
	}
	r.attempts.put(pass.object.UID, pass.attempt)
	pass.rest(v)
	return v, nil
}

// longRest is a pause that is said, with its end: who wonders why nothing happens is to know.
const longRest = 2 * DefaultResync

// rest has a verdict wait for the pause after the attempt.
func (p *schemaPass) rest(v *verdict) {
	if p.attempt.failure == nil {
		return
	}
	v.after = p.attempt.due.Sub(p.now)
	if p.attempt.rest > longRest {
		v.message += fmt.Sprintf("; it held writers up, so it is not tried again before %s unless the spec changes or somebody asks (kubectl syncbarrier retry %s)",
			p.attempt.due.UTC().Format(time.RFC3339), p.object.Name)
	}
}

// explain judges the failure of an attempt. A checkpoint that keeps the version back and that nobody speaks of any more is a person's to
// decide about.
func (r *SyncSchemaReconciler) explain(pass *schemaPass, err error) *verdict {
	if storage.CodeOf(err) == storage.CodeCheckpointIncomplete {
		if orphan := pass.orphan(); orphan != "" {
			return stalled(v1alpha1.ReasonCheckpointOrphaned,
				"checkpoint %q is declared in the database and not activated, but no object and no entry of the spec speaks of it: put its entry back, or give it up (syncbarrier checkpoint abandon)", orphan)
		}
	}
	return judge(err, v1alpha1.ReasonMigrating)
}

// orphan names an open checkpoint of the database without an object and without an entry in the spec; empty: there is none.
func (p *schemaPass) orphan() string {
	spoken := map[string]bool{}
	for i := range p.object.Spec.Checkpoints {
		spoken[p.object.Spec.Checkpoints[i].Name] = true
	}
	for i := range p.checkpoints {
		spoken[p.checkpoints[i].Spec.Name] = true
	}
	for _, checkpoint := range p.status.Checkpoints {
		if checkpoint.Activated < checkpoint.Total && checkpoint.Definition.Version <= p.target.Version && !spoken[checkpoint.Definition.Name] {
			return checkpoint.Definition.Name
		}
	}
	return ""
}

// workersOf tells apart what tryWorkers tries: what it has accepted once is not tried again with each attempt at a barrier, of which there may be
// many.
func (r *SyncSchemaReconciler) workersOf(pass *schemaPass) string {
	accepted, _ := acceptStandalone(&pass.object.Spec, pass.checkpoints)
	key := fmt.Sprint(pass.object.Generation, pass.status.StoredVersion, r.Image, r.PullPolicy)
	for i := range accepted {
		key += fmt.Sprint(" ", accepted[i].UID, accepted[i].Generation)
	}
	return key
}

// tryWorkers has the API server judge the Jobs that the version will need, those of standalone checkpoints among them, while nothing has
// happened yet. The Jobs of SQL are all made of the same template, so one of them stands for the rest.
func (r *SyncSchemaReconciler) tryWorkers(ctx context.Context, pass *schemaPass) error {
	spec := &pass.object.Spec
	sqlTried := false
	try := func(checkpoint *v1alpha1.BackfillCheckpoint) error {
		sql := checkpoint.Spec.Backfill.Job == nil
		if int64(checkpoint.Spec.Version) <= pass.status.StoredVersion || sql && sqlTried {
			return nil
		}
		sqlTried = sqlTried || sql
		return tryWorkerJob(ctx, r.Client, workerJobInput{
			Checkpoint: checkpoint, Database: spec.Database.Postgres, Worker: spec.Worker, ClaimToken: "try", ClaimNumber: 1,
			Parallelism: int32(manifest.Settings(&checkpoint.Spec.Backfill).Parallelism), Image: r.Image, PullPolicy: r.PullPolicy, Suspended: true,
		})
	}
	for i := range spec.Checkpoints {
		checkpoint := childOf(pass.object, &spec.Checkpoints[i])
		checkpoint.OwnerReferences = nil
		if err := try(checkpoint); err != nil {
			return err
		}
	}
	accepted, _ := acceptStandalone(spec, pass.checkpoints)
	for i := range accepted {
		if err := try(&accepted[i]); err != nil {
			return fmt.Errorf("BackfillCheckpoint %s: %w", accepted[i].Name, err)
		}
	}
	return nil
}
