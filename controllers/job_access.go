package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups="",resources=events,verbs=list

// tryWorkerJob has the API server judge the Job without making it: schema, admission and quotas are known before anything has happened in
// the database. The checkpoint need not be in the cluster yet.
//
// Errors: CodeInvalidSpec naming the template, with the API server's words; any other error of the API server, which passes, as it is.
func tryWorkerJob(ctx context.Context, c client.Client, in workerJobInput) error {
	job, err := newWorkerJob(in)
	if err != nil {
		return err
	}
	job.OwnerReferences = nil // the judgement is about the template, and the owner may not exist yet
	err = c.Create(ctx, job, client.DryRunAll)
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	if refusedByContent(err) {
		field := fieldWorkerTemplate
		if in.Checkpoint.Spec.Backfill.Job != nil {
			field = fieldJobTemplate
		}
		return &storage.Error{Code: storage.CodeInvalidSpec, Message: field + ": the API server refuses the worker's Job", Err: err}
	}
	return fmt.Errorf("try the worker's Job of checkpoint %q: %w", in.Checkpoint.Spec.Name, err)
}

// refusedByContent tells what the Job's content was refused for from a right that the operator lacks, and from a namespace that is going
// away. An admission names the object, which a missing right does not.
func refusedByContent(err error) bool {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false
	}
	var status apierrors.APIStatus
	named := errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != ""
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && named
}

// readJobState reads a Job's pods, and the events of what keeps it waiting, and says what became of it. reader is one that asks the API server:
// no cache of all pods and events is kept for this.
func readJobState(ctx context.Context, reader client.Reader, job *batchv1.Job, now time.Time) (jobOutlook, error) {
	if job == nil {
		return jobState(nil, nil, nil, now), nil
	}
	var pods corev1.PodList
	err := reader.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.ControllerUidLabel: string(job.UID)})
	if err != nil {
		return jobOutlook{}, fmt.Errorf("list the pods of Job %s: %w", job.Name, err)
	}
	var events corev1.EventList
	about := job.UID
	waiting := waitsFor(pods.Items)
	if waiting != nil {
		about = waiting.UID
	}
	if len(pods.Items) == 0 || waiting != nil {
		err := reader.List(ctx, &events, client.InNamespace(job.Namespace), client.MatchingFields{"involvedObject.uid": string(about)})
		if apierrors.IsForbidden(err) { // they have words only, and the work goes on without
			outlook := jobState(job, pods.Items, nil, now)
			outlook.Message += "; " + short(err.Error())
			return outlook, nil
		}
		if err != nil {
			return jobOutlook{}, fmt.Errorf("list the events of Job %s: %w", job.Name, err)
		}
	}
	return jobState(job, pods.Items, events.Items, now), nil
}
