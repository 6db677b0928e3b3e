package controllers

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// findSchema reads the SyncSchema that the checkpoint belongs to, and refuses a standalone checkpoint that does not fit it.
func (r *BackfillCheckpointReconciler) findSchema(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	name := pass.object.Spec.SchemaRef.Name
	if err := checkName(v1alpha1.KindSyncSchema, name); err != nil {
		return nil, err
	}
	var schema v1alpha1.SyncSchema
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: pass.object.Namespace, Name: name}, &schema)
	switch {
	case err == nil && schema.DeletionTimestamp != nil:
		return reconciling(0, v1alpha1.ReasonPreviousVersionOpen, "SyncSchema %s is being deleted; nothing is begun for it any more", name), nil
	case apierrors.IsNotFound(err):
		return reconciling(0, v1alpha1.ReasonPreviousVersionOpen, "waits for SyncSchema %s, which is not in this namespace", name), nil
	case err != nil:
		return nil, fmt.Errorf("read SyncSchema %s: %w", name, err)
	}
	pass.schema = &schema
	if !standalone(pass.object) {
		return nil, nil
	}
	all, err := checkpointsOf(ctx, r.Client, pass.object.Namespace, name)
	if err != nil {
		return nil, err
	}
	_, refused := acceptStandalone(&schema.Spec, all)
	pass.refused = refused[pass.object.UID]
	return nil, nil
}

// refuse ends the pass of a standalone checkpoint that does not fit its schema. One that is activated with this very content stays so: a later version
// may have retired the tables that it speaks of.
func (r *BackfillCheckpointReconciler) refuse(_ context.Context, pass *checkpointPass) (*verdict, error) {
	if pass.refused == nil {
		return nil, nil
	}
	p := pass.progress
	if p == nil || pass.refused.reason == v1alpha1.ReasonConflict || p.Definition.Hash != contentHash(&pass.object.Spec.Checkpoint) {
		pass.progress = nil // another's, under the same name
		return pass.refused, nil
	}
	if p.Total > 0 && p.Activated == p.Total {
		return nil, nil
	}
	return pass.refused, nil
}

func (r *BackfillCheckpointReconciler) connect(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	var err error
	pass.connection, err = newResolver(r.Live, pass.object.Namespace).connection(ctx, pass.schema.Spec.Database.Postgres)
	if err == nil {
		pass.lease, err = r.Databases.Acquire(ctx, pass.connection)
	}
	if v := refusedAddress(err); v != nil {
		return v, nil
	}
	return nil, err
}

// observe reads what the database says of the checkpoint.
func (r *BackfillCheckpointReconciler) observe(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	progress, err := pass.lease.Store.ReadProgress(ctx, pass.object.Spec.Name)
	if storage.CodeOf(err) == storage.CodeCheckpointNotDeclared {
		pass.progress = nil
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pass.progress = &progress
	return nil, nil
}

// declare waits for the barrier, which declares children and the standalone checkpoints that are there by then, and declares a standalone one
// that came later.
func (r *BackfillCheckpointReconciler) declare(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	if pass.progress != nil {
		return nil, nil
	}
	status, err := pass.look(ctx)
	if err != nil {
		return nil, err
	}
	version := int64(pass.object.Spec.Version)
	switch {
	case status.Protocol == 0 || status.StoredVersion < version:
		return reconciling(0, v1alpha1.ReasonPreviousVersionOpen,
			"the barrier of version %d, which declares it, has not been made yet; the database is at version %d%s", version, status.StoredVersion,
			stalledSchema(pass.schema)), nil
	case !standalone(pass.object):
		return reconciling(0, v1alpha1.ReasonPreviousVersionOpen,
			"the database is at version %d and does not hold this checkpoint; SyncSchema %s says why", status.StoredVersion, pass.schema.Name), nil
	case pass.schema.Spec.Suspend:
		return suspended(), nil
	}
	if v, err := pass.mayChange(ctx, r.Cluster); v != nil || err != nil {
		return v, err
	}
	if v, err := r.tryJob(ctx, pass, r.jobInput(pass)); v != nil || err != nil {
		return v, err // what no worker can be made for closes no gate
	}
	definition, tables := pass.definition()
	if _, err := pass.lease.Store.DeclareCheckpoint(ctx, definition, tables); err != nil {
		return nil, fmt.Errorf("declare: %w", err)
	}
	pass.events = append(pass.events, notice{reason: eventDeclared, action: "Declare",
		note: fmt.Sprintf("declared at version %d, while its gate was closed", version)})
	return r.observe(ctx, pass)
}

// stalledSchema says that a SyncSchema waits for a person, as the end of a sentence.
func stalledSchema(schema *v1alpha1.SyncSchema) string {
	if reason := stalledReason(schema); reason != "" {
		return "; SyncSchema " + schema.Name + " is stalled: " + reason
	}
	return ""
}

// stalledReason is why a SyncSchema waits for a person; empty: it does not.
func stalledReason(schema *v1alpha1.SyncSchema) string {
	if !meta.IsStatusConditionTrue(schema.Status.Conditions, v1alpha1.ConditionStalled) {
		return ""
	}
	return meta.FindStatusCondition(schema.Status.Conditions, v1alpha1.ConditionStalled).Reason
}

// compare refuses an object that speaks of something else than what is declared under its name.
func (r *BackfillCheckpointReconciler) compare(_ context.Context, pass *checkpointPass) (*verdict, error) {
	declared := pass.progress.Definition
	if declared.Version != int64(pass.object.Spec.Version) {
		return stalled(v1alpha1.ReasonContentDrift, "checkpoint %q is declared for version %d, and a name belongs to its version for ever",
			pass.object.Spec.Name, declared.Version), nil
	}
	definition, _ := pass.definition()
	if declared.Hash != "" && declared.Hash != definition.Hash() {
		return stalled(v1alpha1.ReasonContentDrift, "checkpoint %q was declared with other content; another backfill needs another name",
			pass.object.Spec.Name), nil
	}
	return nil, nil
}

// finish ends with a checkpoint that is activated. Nothing is started for it again, whatever became of its Jobs.
func (r *BackfillCheckpointReconciler) finish(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	p := pass.progress
	if p.Activated < p.Total {
		return nil, nil
	}
	if pass.before.State != v1alpha1.StateActivated { // what another SyncSchema brought about is no work of this one
		status, err := pass.look(ctx)
		if err != nil {
			return nil, err
		}
		if owner := foreignOwner(status.Owner, r.Cluster, pass.schema); owner != "" {
			pass.progress = nil
			return managedBy(owner, pass.schema), nil
		}
	}
	r.claims.forget(pass.object.UID)
	jobs, err := jobsOf(ctx, r.Client, pass.object)
	if err != nil {
		return nil, err
	}
	for i := range jobs {
		if isSuspended(&jobs[i]) { // it would stand there for ever
			if err := r.deleteJob(ctx, &jobs[i]); err != nil {
				return nil, err
			}
		}
	}
	return done(v1alpha1.ReasonActivated, "all of it is activated (partitions: %d)", p.Total), nil
}

// settings passes the live settings on to the workers. A suspended schema pauses them: Jobs are stopped too, but a worker that was started by
// other means is not in a Job.
func (r *BackfillCheckpointReconciler) settings(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	wanted := manifest.Settings(&pass.object.Spec.Backfill)
	wanted.Paused = pass.schema.Spec.Suspend
	if pass.progress.Definition.Hash == "" || pass.progress.Settings == wanted {
		return nil, nil
	}
	if v, err := pass.mayChange(ctx, r.Cluster); v != nil || err != nil {
		return v, err
	}
	if err := pass.lease.Store.WriteSettings(ctx, pass.object.Spec.Name, wanted); err != nil {
		return nil, fmt.Errorf("write the settings: %w", err)
	}
	pass.progress.Settings = wanted
	return nil, nil
}

// suspend stops the Jobs of a suspended schema.
func (r *BackfillCheckpointReconciler) suspend(ctx context.Context, pass *checkpointPass) (*verdict, error) {
	if !pass.schema.Spec.Suspend {
		return nil, nil
	}
	jobs, err := jobsOf(ctx, r.Client, pass.object)
	if err != nil {
		return nil, err
	}
	for i := range jobs {
		job := &jobs[i]
		if _, token, ok := jobClaim(job); ok && token == pass.progress.ClaimToken {
			pass.job = job
		}
		if !finished(job) && !isSuspended(job) {
			if err := r.setSuspended(ctx, job, true); err != nil {
				return nil, err
			}
		}
	}
	v := suspended()
	pass.hold = v.message
	return v, nil
}

func suspended() *verdict {
	return reconciling(0, v1alpha1.ReasonSuspended, "the SyncSchema is suspended: no Jobs and no activation")
}

// jobsOf lists the Jobs of a checkpoint.
func jobsOf(ctx context.Context, from client.Reader, checkpoint *v1alpha1.BackfillCheckpoint) ([]batchv1.Job, error) {
	var list batchv1.JobList
	err := from.List(ctx, &list, client.InNamespace(checkpoint.Namespace), client.MatchingLabels{labelCheckpoint: checkpoint.Name})
	if err != nil {
		return nil, fmt.Errorf("list the Jobs: %w", err)
	}
	var jobs []batchv1.Job
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], checkpoint) {
			jobs = append(jobs, list.Items[i])
		}
	}
	return jobs, nil
}
