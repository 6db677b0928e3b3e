package gitops

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// Reasons that Ready may have, by what a tool makes of them (docs/design.md section 7).
var (
	DoneReasons       = []string{"GateOpen", "Activated"}
	InProgressReasons = []string{
		"LockTimeout", "Deadlock", "Serialization", "Cancelled", "ConnectionLost", "CommitUnknown", "ReadOnly", "AuthenticationFailed",
		"SecretMissing", "Throttled", "WorkerPending", "WaitingForPods", "PreviousVersionOpen", "Migrating", "Preparing", "Backfilling",
		"CatchingUp", "SourceChanged", "Activating", "Finishing", "ApprovalPending", "Suspended",
	}
	FailedReasons = []string{
		"InvalidSpec", "InvalidSQL", "NotTransactional", "VersionRegression", "ContentDrift", "LayoutMismatch", "Conflict", "FenceBroken",
		"VerificationFailed", "NotConverging", "Unverifiable", "CheckpointOrphaned", "Internal",
	}
)

// Check holds the status of a SyncSchema or a BackfillCheckpoint, as an API server gave it at one moment, against the rules of its
// conditions, and against what kstatus, Argo CD and Flux make of it. An object whose last generation the operator has not looked at yet, or
// whose status was taken away, must be in progress for all of them. It returns everything that is wrong, or nil.
func Check(ctx context.Context, object client.Object) error {
	found, conditions, observed, err := take(object)
	if err != nil {
		return err
	}
	computed, err := status.Compute(found)
	if err != nil {
		return fmt.Errorf("compute kstatus: %w", err)
	}
	want := status.InProgressStatus
	if observed == object.GetGeneration() {
		want, err = rules(conditions, observed)
	}
	if object.GetDeletionTimestamp() != nil {
		want = status.TerminatingStatus
	}
	if computed.Status != want {
		err = errors.Join(err, fmt.Errorf("kstatus says %s (%s), its conditions mean %s", computed.Status, computed.Message, want))
	}
	if err = errors.Join(err, Disagreement(ctx, found)); err != nil {
		return fmt.Errorf("%s %s, generation %d, observed %d: %w: %+v", found.GetKind(), found.GetName(), found.GetGeneration(), observed, err, conditions)
	}
	return nil
}

// take gives an object of ours as tools read it, its conditions, and the generation that the operator looked at.
func take(object client.Object) (found *unstructured.Unstructured, conditions []metav1.Condition, observed int64, err error) {
	kind := ""
	switch typed := object.(type) {
	case *v1alpha1.SyncSchema:
		kind, conditions, observed = v1alpha1.KindSyncSchema, typed.Status.Conditions, typed.Status.ObservedGeneration
	case *v1alpha1.BackfillCheckpoint:
		kind, conditions, observed = v1alpha1.KindBackfillCheckpoint, typed.Status.Conditions, typed.Status.ObservedGeneration
	default:
		return nil, nil, 0, fmt.Errorf("%T is not ours", object)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("encode %s %s: %w", kind, object.GetName(), err)
	}
	found = &unstructured.Unstructured{Object: content}
	found.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	return found, conditions, observed, nil
}

// rules holds conditions against each other, and gives what they mean to kstatus.
func rules(conditions []metav1.Condition, generation int64) (want status.Status, wrong error) {
	complain := func(format string, arguments ...any) { wrong = errors.Join(wrong, fmt.Errorf(format, arguments...)) }
	for _, condition := range conditions {
		if condition.ObservedGeneration != generation {
			complain("%s is of generation %d", condition.Type, condition.ObservedGeneration)
		}
		if condition.LastTransitionTime.IsZero() {
			complain("%s has no time", condition.Type)
		}
	}
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return status.InProgressStatus, errors.Join(wrong, errors.New("there is no condition Ready"))
	}
	reconciles := meta.FindStatusCondition(conditions, v1alpha1.ConditionReconciling)
	stalls := meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	if reconciles != nil && stalls != nil {
		complain("Reconciling and Stalled exclude each other")
	}
	if (ready.Status == metav1.ConditionTrue) != (reconciles == nil && stalls == nil) {
		complain("Ready is %s", ready.Status)
	}
	for _, condition := range []*metav1.Condition{reconciles, stalls} {
		if condition != nil && (condition.Status != metav1.ConditionTrue || condition.Reason != ready.Reason) {
			complain("%s is there only while true, and with the reason of Ready", condition.Type)
		}
	}
	want, known := status.InProgressStatus, InProgressReasons
	switch {
	case ready.Status == metav1.ConditionTrue:
		want, known = status.CurrentStatus, DoneReasons
	case stalls != nil:
		want, known = status.FailedStatus, FailedReasons
	}
	if !slices.Contains(known, ready.Reason) {
		complain("the reason %s does not go with %s", ready.Reason, want)
	}
	return want, wrong
}
