package controllers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Labels and annotations of Jobs and their pods. The claim number decides which Job is meant, whatever its image or template: a Job made
// by an older operator is ours and finishes its work.
const (
	labelPrefix     = "syncbarrier.dev/"
	labelSchema     = labelPrefix + "schema"
	labelCheckpoint = labelPrefix + "checkpoint"
	labelClaim      = labelPrefix + "claim"
	annotationToken = labelPrefix + "claim-token"
	annotationAsked = labelPrefix + "asked-by"
	// annotationWorkers is the number of workers that each of them was told, whatever a policy makes of the Job's parallelism.
	annotationWorkers = labelPrefix + "workers"
	// annotationRetried has the requests of a person that the Job answers (retriesDone).
	annotationRetried = labelPrefix + "retried"
	// annotationSuspended marks a Job that spec.suspend stopped.
	annotationSuspended = labelPrefix + "suspended"
	labelAppName        = "app.kubernetes.io/name"
	labelComponent      = "app.kubernetes.io/component"
	labelManagedBy      = "app.kubernetes.io/managed-by"
	programName         = "syncbarrier"
	componentWorker     = "worker"
	workerContainer     = "worker"
	workerProgram       = "/syncbarrier" // in the operator's image
	databaseFolder      = "/var/run/syncbarrier/database"
	programFolder       = "/var/run/syncbarrier/bin"
	installContainer    = "install-syncbarrier"
)

const (
	// jobNameLimit leaves room for what the Job controller appends: the pods of an Indexed Job are called <job>-<index>, which has to be
	// a DNS label, and get five characters more (Kubernetes documentation, "Jobs", completion mode).
	jobNameLimit = 52
	// retriesPerIndex is how often a worker that ended otherwise than by a code of the failure policy is started again.
	retriesPerIndex = 3
	// failedIndexes is how many workers may use up their retries before the Job fails: none. The share of such a worker is nobody else's, and
	// only another Job takes it up, so others are not waited for (Kubernetes API, JobSpec.maxFailedIndexes).
	failedIndexes = 0
	// finishedSeconds keeps a finished Job and its logs for an hour. What became of the work stands in the database.
	finishedSeconds = 3600
)

// Exit codes of a worker (docs/design.md section 9). Lost ownership and what is permanent end its Job; every other code counts against the
// retries of its index, as does that of a worker whose program is older than the catalog.
const (
	exitNewerCatalog   = 11
	exitOwnershipLost  = 10
	exitFirstPermanent = 20
	exitLastPermanent  = 29
)

// workerJobInput is all that a Job depends on.
type workerJobInput struct {
	Checkpoint  *v1alpha1.BackfillCheckpoint // owner; its spec says what is run
	Database    *v1alpha1.PostgresDatabase   // of its SyncSchema
	Worker      *v1alpha1.Worker             // of its SyncSchema; nil: the operator's own template
	ClaimToken  string
	ClaimNumber int64 // the highest owner epoch among the claimed rows
	Parallelism int32 // 0 counts as 1
	Image       string
	PullPolicy  corev1.PullPolicy // of the operator's own pod; empty: the cluster's default
	Suspended   bool
	Retried     string // the requests of a person that it answers
}

// newWorkerJob gives the Job that works on one claim: Indexed, so many pods as parallelism says, each for its share of the key ranges
// (docs/design.md section 7). It is a pure function.
//
// Errors: CodeInvalidSpec naming the field of the template that is wrong or takes something away that the work depends on.
func newWorkerJob(in workerJobInput) (*batchv1.Job, error) {
	template, err := workerTemplate(in)
	if err != nil {
		return nil, err
	}
	workers, keep, suspended := max(1, in.Parallelism), int32(finishedSeconds), in.Suspended
	retries, failed := int32(retriesPerIndex), int32(failedIndexes)
	mode, replacement := batchv1.IndexedCompletion, batchv1.Failed
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            jobName(in),
			Namespace:       in.Checkpoint.Namespace,
			Labels:          jobLabels(in),
			Annotations:     jobAnnotations(in),
			OwnerReferences: ownedBy(in.Checkpoint),
		},
		Spec: batchv1.JobSpec{
			CompletionMode:          &mode,
			Completions:             &workers,
			Parallelism:             &workers,
			BackoffLimitPerIndex:    &retries,
			MaxFailedIndexes:        &failed,
			PodReplacementPolicy:    &replacement,
			PodFailurePolicy:        failurePolicy(),
			TTLSecondsAfterFinished: &keep,
			Suspend:                 &suspended,
			Template:                *template,
		},
	}, nil
}

// failurePolicy: a disruption is nobody's fault; lost ownership and permanent failures end the Job; the rest counts.
func failurePolicy() *batchv1.PodFailurePolicy {
	container := workerContainer
	codes := []int32{exitOwnershipLost}
	for code := int32(exitFirstPermanent); code <= exitLastPermanent; code++ {
		codes = append(codes, code)
	}
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{
			Action:          batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
		},
		{
			Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				ContainerName: &container, Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: codes,
			},
		},
	}}
}

// jobName is made of the checkpoint's name, a hash, and the claim's number. The hash tells apart names that were cut, objects of the same
// name, and claims of the same number in a database that was restored.
func jobName(in workerJobInput) string {
	sum := sha256.Sum256([]byte(in.Checkpoint.Name + "\x00" + string(in.Checkpoint.UID) + "\x00" + in.ClaimToken))
	tail := "-" + hex.EncodeToString(sum[:4]) + "-" + strconv.FormatInt(in.ClaimNumber, 10)
	name := strings.ReplaceAll(in.Checkpoint.Name, ".", "-")
	if room := jobNameLimit - len(tail); len(name) > room {
		name = strings.TrimRight(name[:room], "-")
	}
	return name + tail
}

func jobLabels(in workerJobInput) map[string]string {
	return map[string]string{
		labelAppName:    programName,
		labelComponent:  componentWorker,
		labelManagedBy:  programName,
		labelSchema:     in.Checkpoint.Spec.SchemaRef.Name,
		labelCheckpoint: in.Checkpoint.Name,
		labelClaim:      strconv.FormatInt(in.ClaimNumber, 10),
	}
}

func jobAnnotations(in workerJobInput) map[string]string {
	return map[string]string{
		annotationToken:   in.ClaimToken,
		annotationAsked:   askedBy(in.Database, in.Worker),
		annotationWorkers: strconv.Itoa(int(max(1, in.Parallelism))),
		annotationRetried: in.Retried,
	}
}

// ownedBy makes the checkpoint the controller of the Job. It does not block the checkpoint's deletion: a late worker can only do right
// things under its own claim. An object that is not in the cluster yet, of a dry run, owns nothing.
func ownedBy(checkpoint *v1alpha1.BackfillCheckpoint) []metav1.OwnerReference {
	if checkpoint.UID == "" {
		return nil
	}
	controls := true
	return []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "BackfillCheckpoint",
		Name: checkpoint.Name, UID: checkpoint.UID, Controller: &controls,
	}}
}

// jobClaim reads back for which claim a Job was made. ok is false for a Job that is not one of ours.
func jobClaim(job *batchv1.Job) (number int64, token string, ok bool) {
	number, err := strconv.ParseInt(job.Labels[labelClaim], 10, 64)
	token = job.Annotations[annotationToken]
	return number, token, err == nil && token != ""
}

// toldWorkers reads back how many workers there are to be. Parallelism is no part of it: a policy or a person may have fewer of them work at a time.
func toldWorkers(job *batchv1.Job) int32 {
	if told, err := strconv.ParseInt(job.Annotations[annotationWorkers], 10, 32); err == nil {
		return int32(told)
	}
	return wantedPods(job)
}

// refuseTemplate says what is wrong with a template of the spec.
func refuseTemplate(field, format string, args ...any) error {
	return storage.Refuse(storage.CodeInvalidSpec, "%s: %s", field, fmt.Sprintf(format, args...))
}
