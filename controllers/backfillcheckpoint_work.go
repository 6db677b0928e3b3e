package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// maxRestarts is how often a pass begins again because the log could not answer, before a person has to look.
const maxRestarts = 3

// JobSelector selects the Jobs that the operator made: no others have to be cached.
func JobSelector() labels.Selector {
	return labels.SelectorFromSet(labels.Set{labelManagedBy: programName})
}

// work sees to it that a Job works on the newest claim. The database says whose claim that is, and the list of Jobs comes from the API server
// and from no cache: a Job that was just made is never made twice.
func (r *BackfillCheckpointReconciler) work(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	if pass.progress.Definition.Hash == "" {
		return reconciling(watchEvery, v1alpha1.ReasonBackfilling, "declared by another program, which has to activate it"), nil
	}
	jobs, err := jobsOf(ctx, r.Live, pass.object)
	if err != nil {
		return nil, err
	}
	for i := range jobs {
		if _, token, ok := jobClaim(&jobs[i]); ok && token == pass.progress.ClaimToken {
			pass.job = &jobs[i]
			r.claims.seen(pass.object.UID, pass.progress.Definition, token, pass.connection)
		}
	}
	outlook, err := readJobState(ctx, r.Live, pass.job, pass.now)
	if err != nil {
		return nil, err
	}
	return r.follow(ctx, pass, outlook, jobs)
}

// follow does what the state of the Job asks for.
func (r *BackfillCheckpointReconciler) follow(ctx context.Context, pass *checkpointPass, outlook jobOutlook, jobs []batchv1.Job) (*verdict, error) {
	last := lastFailure(jobs)
	if last.job != nil {
		last.at = r.paces.ended(pass.object.UID, last.job, last.at, pass.now)
	} else { // its Jobs are gone, an hour after they ended: the database says when something was done last
		last.at = pass.progress.OldestUpdateAt
	}
	asked, _ := pass.retryAsked(last)
	over := pass.job == nil || finished(pass.job)
	switch {
	case outlook.Next == jobRestart || over && pass.progress.Unverifiable > 0:
		if pass.progress.Restarts >= maxRestarts && !asked {
			return r.stall(pass, last, v1alpha1.ReasonUnverifiable,
				fmt.Sprintf("the log could not answer %d times running whether a change was missed; the last time: %s", maxRestarts+1, r.recorded(pass, outlook))), nil
		}
		return r.claimAndMake(ctx, pass, jobs, true)
	case outlook.Next == jobReplace:
		if v := r.afterLoss(pass, outlook); v != nil {
			return v, nil
		}
		return r.claimAndMake(ctx, pass, jobs, false)
	case outlook.Next == jobReplaceLater:
		if wait := replacePause(last.count) - pass.now.Sub(last.at); wait > 0 && !asked {
			pass.hold = outlook.Message
			return reconciling(pass.untilRetry(last, wait), outlook.Reason, "%s; another Job is made after a pause", outlook.Message), nil
		}
		return r.claimAndMake(ctx, pass, jobs, false)
	case outlook.Next == jobStall:
		if !asked && pass.now.Sub(last.at) < r.resync() {
			return r.stall(pass, last, outlook.Reason, r.recorded(pass, outlook)), nil
		}
		return r.claimAndMake(ctx, pass, jobs, false)
	case isSuspended(pass.job) && suspendedByUs(pass.job):
		if err := r.setSuspended(ctx, pass.job, false); err != nil {
			return nil, err
		}
	case toldWorkers(pass.job) != int32(pass.progress.Settings.WithDefaults().Parallelism) && !finished(pass.job):
		return r.claimAndMake(ctx, pass, jobs, false) // the number of workers is part of what each of them was told
	case !stillAsked(pass.job, pass.schema.Spec.Database.Postgres, pass.schema.Spec.Worker) && !finished(pass.job):
		return r.claimAndMake(ctx, pass, jobs, false) // a template that was put right, or another address, reaches no Job that is there
	}
	if v, err := r.throttled(ctx, pass); v != nil || err != nil {
		return v, err
	}
	return r.underWay(pass, outlook), nil
}

// afterLoss waits before another Job is made where one after the other went before its work was done; nil: it is made now. A Job that this process
// never saw is none that was lost.
func (r *BackfillCheckpointReconciler) afterLoss(pass *checkpointPass, outlook jobOutlook) *verdict {
	known, ok := r.claims.get(pass.object.UID)
	if !ok || !known.hasJob || known.claim.Token != pass.progress.ClaimToken {
		return nil
	}
	wait, at := r.paces.lose(pass.object.UID, known.claim.Token, pass.now)
	lost := failure{at: at}
	if asked, _ := pass.retryAsked(lost); asked || wait <= 0 {
		return nil
	}
	pass.hold = "one Job after the other goes before its work is done; of the last one: " + r.recorded(pass, outlook)
	return reconciling(pass.untilRetry(lost, wait), v1alpha1.ReasonBackfilling, "%s; another Job is made after a pause", pass.hold)
}

// leave deletes the Jobs of a namespace that is being deleted, which would stay for ever otherwise. The pods go first there, and the last one of an
// index keeps its finalizer until the next one is made, in which its failures are counted; in such a namespace nobody can make it (Kubernetes
// source, pkg/controller/job, delayed deletion; pkg/controller/namespace/deletion, ordered deletion). A trial tells: the operator reads no namespaces.
func (r *BackfillCheckpointReconciler) leave(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	jobs, err := jobsOf(ctx, r.Client, pass.object)
	if err != nil {
		return nil, err
	}
	jobs = slices.DeleteFunc(jobs, func(job batchv1.Job) bool {
		return finished(&job) || job.Status.Active > 0 || job.DeletionTimestamp != nil
	})
	if len(jobs) == 0 || pass.schema.Spec.Database.Postgres == nil {
		return nil, nil
	}
	err = tryWorkerJob(ctx, r.Client, r.jobInput(pass))
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil, nil // what else is wrong with it is said where a Job is to be made
	}
	for i := range jobs {
		if err := r.deleteJob(ctx, &jobs[i]); err != nil {
			return nil, err
		}
	}
	return nil, err
}

// throttled says that workers wait for a standby, as they were told to. A role that may not see the standbys is the workers' to report.
func (r *BackfillCheckpointReconciler) throttled(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	limit := time.Duration(pass.progress.Settings.MaxReplicationLagSeconds) * time.Second
	if limit <= 0 {
		return nil, nil
	}
	lag, err := pass.lease.Store.ReplicationLag(ctx)
	switch {
	case storage.CodeOf(err) == storage.CodeRightMissing:
		return nil, nil
	case err != nil:
		return nil, err
	case lag <= limit:
		return nil, nil
	}
	r.stills.forget(pass.object.UID) // they wait as they were told to
	pass.hold = fmt.Sprintf("a standby is more than the %s behind that maxReplicationLagSeconds allows", limit)
	return reconciling(spread(watchEvery, draw(r.Jitter)), v1alpha1.ReasonThrottled, "%s", pass.hold), nil
}

// stall waits for a person, and looks again a resync after the failure, and at each one from then on: what was wrong may have been put right in
// the database.
func (r *BackfillCheckpointReconciler) stall(pass *checkpointPass, last failure, reason, message string) *verdict {
	pass.hold = message
	v := stalled(reason, "%s", message)
	left := r.resync() - pass.now.Sub(last.at)
	if left <= 0 {
		left = spread(r.resync(), draw(r.Jitter))
	}
	v.after = pass.untilRetry(last, left)
	return v
}

// recorded prefers the error that the worker left in the database: it is whole, where a log is cut.
func (r *BackfillCheckpointReconciler) recorded(pass *checkpointPass, outlook jobOutlook) string {
	if pass.progress.LastError != "" {
		return pass.progress.LastError
	}
	return outlook.Message
}

// underWay says how far the work is.
func (r *BackfillCheckpointReconciler) underWay(pass *checkpointPass, outlook jobOutlook) *verdict {
	after := spread(watchEvery, draw(r.Jitter))
	p := pass.progress
	r.holdIfStill(pass, outlook.Running)
	if outlook.Reason == v1alpha1.ReasonWorkerPending {
		pass.hold = outlook.Message
		return reconciling(after, v1alpha1.ReasonWorkerPending, "%s", outlook.Message)
	}
	switch {
	case p.RangesDone < p.RangesTotal || p.RangesTotal == 0:
		return reconciling(after, v1alpha1.ReasonBackfilling, "%s%s", outlook.Message, pass.andHeld())
	case slices.ContainsFunc(p.Behind, func(b storage.BehindRow) bool { return b.Verdict != storage.Clean }):
		return reconciling(after, v1alpha1.ReasonCatchingUp, "every row was gone over; changes that came meanwhile are being applied%s", pass.andHeld())
	default:
		return reconciling(after, v1alpha1.ReasonActivating, "every row and every change is applied%s", pass.andHeld())
	}
}

// claimAndMake takes the work for a new Job: older workers can change nothing from then on.
func (r *BackfillCheckpointReconciler) claimAndMake(ctx context.Context, pass *checkpointPass, jobs []batchv1.Job, restart bool) (*verdict, error) {
	if v, err := pass.mayChange(ctx, r.Cluster); v != nil || err != nil {
		return v, err
	}
	input := r.jobInput(pass)
	if v, err := r.tryJob(ctx, pass, input); v != nil || err != nil {
		return v, err // a Job that cannot be made takes the work from nobody
	}
	claim, err := r.claim(ctx, pass, restart)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	if len(claim.Rows) == 0 {
		return reconciling(time.Second, v1alpha1.ReasonActivating, "it was activated just now"), nil
	}
	input.ClaimToken, input.ClaimNumber, input.Retried = claim.Token, claimNumber(claim), pass.retriesDone()
	job, err := newWorkerJob(input)
	if err != nil {
		return nil, err
	}
	if v, err := r.makeJob(ctx, pass, job); v != nil || err != nil {
		return v, err
	}
	r.claims.jobMade(pass.object.UID)
	pass.job = job
	pass.events = append(pass.events, jobNotice(job.Name, input.ClaimNumber, restart))
	for i := range jobs {
		if !finished(&jobs[i]) && jobs[i].Name != job.Name {
			if err := r.deleteJob(ctx, &jobs[i]); err != nil {
				return nil, err
			}
		}
	}
	if _, err := r.observe(ctx, pass); err != nil {
		return nil, err
	}
	reason := v1alpha1.ReasonBackfilling
	if restart {
		reason = v1alpha1.ReasonSourceChanged
	}
	return reconciling(spread(watchEvery, draw(r.Jitter)), reason, "Job %s is made", job.Name), nil
}

// jobInput is what a Job of the checkpoint is made from, with a claim to try it with.
func (r *BackfillCheckpointReconciler) jobInput(pass *checkpointPass) workerJobInput {
	settings := manifest.Settings(&pass.object.Spec.Backfill)
	if pass.progress != nil {
		settings = pass.progress.Settings
	}
	return workerJobInput{
		Checkpoint: pass.object, Database: pass.schema.Spec.Database.Postgres, Worker: pass.schema.Spec.Worker, ClaimToken: "try", ClaimNumber: 1,
		Parallelism: int32(settings.WithDefaults().Parallelism), Image: r.Image, PullPolicy: r.PullPolicy,
	}
}

// tryJob has the API server judge the Job that is to be made. A template that it refuses is a person's to put right; an admission or a quota
// may let the next one in. Workers that are there go on meanwhile, and are looked at as often as ever.
func (r *BackfillCheckpointReconciler) tryJob(ctx context.Context, pass *checkpointPass, input workerJobInput) (*verdict, error) {
	err := tryWorkerJob(ctx, r.Client, input)
	switch {
	case err == nil:
		return nil, nil
	case apierrors.IsForbidden(err):
		return r.refusedJob(pass, err), nil
	case storage.CodeOf(err) == storage.CodeInvalidSpec && pass.job != nil && !finished(pass.job):
		pass.hold = err.Error()
		v := stalled(v1alpha1.ReasonInvalidSpec, "%s", err)
		v.after = spread(watchEvery, draw(r.Jitter))
		return v, nil
	}
	return nil, err
}

// refusedJob says so in the API server's own words: a quota, an admission, or a namespace that is going away.
func (r *BackfillCheckpointReconciler) refusedJob(pass *checkpointPass, err error) *verdict {
	pass.hold = "the API server refuses the Job: " + err.Error()
	return reconciling(spread(time.Minute, draw(r.Jitter)), v1alpha1.ReasonWorkerPending, "%s", pass.hold)
}

// claim makes a claim, or takes up the one that this process made and could not make a Job for.
func (r *BackfillCheckpointReconciler) claim(ctx context.Context, pass *checkpointPass, restart bool) (storage.Claim, error) {
	remembered, ok := r.claims.get(pass.object.UID)
	if ok && !remembered.hasJob && !restart && pass.job == nil && remembered.claim.Token == pass.progress.ClaimToken {
		claim, err := pass.lease.Store.ReadClaim(ctx, pass.object.Spec.Name, remembered.claim.Token)
		if err == nil && len(claim.Rows) > 0 {
			return claim, nil
		}
	}
	claim, err := pass.lease.Store.ClaimAll(ctx, pass.object.Spec.Name, restart)
	if err == nil {
		r.claims.put(pass.object.UID, claim, pass.connection)
	}
	return claim, err
}

func claimNumber(claim storage.Claim) int64 {
	var highest int64
	for _, row := range claim.Rows {
		highest = max(highest, row.OwnerEpoch)
	}
	return highest
}

// makeJob creates the Job. One of the same name is this one, made before, or somebody else's, which is neither adopted nor deleted.
func (r *BackfillCheckpointReconciler) makeJob(ctx context.Context, pass *checkpointPass, job *batchv1.Job) (*verdict, error) {
	err := r.Client.Create(ctx, job, client.FieldOwner(FieldManager))
	switch {
	case err == nil:
		return nil, nil
	case apierrors.IsAlreadyExists(err):
		var found batchv1.Job
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(job), &found); err != nil {
			return nil, fmt.Errorf("read Job %s: %w", job.Name, err)
		}
		if metav1.IsControlledBy(&found, pass.object) {
			return nil, nil
		}
		return stalled(v1alpha1.ReasonConflict, "there is a Job %s that does not belong to this checkpoint; rename or delete it", job.Name), nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		return r.refusedJob(pass, err), nil
	}
	return nil, fmt.Errorf("create Job %s: %w", job.Name, err)
}

func (r *BackfillCheckpointReconciler) deleteJob(ctx context.Context, job *batchv1.Job) error {
	err := r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete Job %s: %w", job.Name, err)
	}
	return nil
}

func (r *BackfillCheckpointReconciler) setSuspended(ctx context.Context, job *batchv1.Job, suspend bool) error {
	mark := "null"
	if suspend {
		mark = `"true"`
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%s}},"spec":{"suspend":%t}}`, job.UID, annotationSuspended, mark, suspend)
	err := r.Client.Patch(ctx, job.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("suspend Job %s: %w", job.Name, err)
	}
	return nil
}

func isSuspended(job *batchv1.Job) bool {
	return job != nil && job.Spec.Suspend != nil && *job.Spec.Suspend && !finished(job)
}

// suspendedByUs tells what spec.suspend stopped from what a person or a queue of Jobs did. That is theirs to end: to resume it would begin a
// quarrel, in which each round costs the workers that it started.
func suspendedByUs(job *batchv1.Job) bool { return job.Annotations[annotationSuspended] != "" }

func finished(job *batchv1.Job) bool {
	return jobHas(job, batchv1.JobComplete) || jobHas(job, batchv1.JobFailed)
}
