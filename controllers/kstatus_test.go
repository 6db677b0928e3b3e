package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/test/gitops"
)

// Reasons that Ready may have, by what a tool makes of them (docs/design.md section 7).
var (
	doneReasons       = []string{"GateOpen", "Activated"}
	inProgressReasons = []string{
		"LockTimeout", "Deadlock", "Serialization", "Cancelled", "ConnectionLost", "CommitUnknown", "ReadOnly", "AuthenticationFailed",
		"SecretMissing", "Throttled", "WorkerPending", "WaitingForPods", "PreviousVersionOpen", "Migrating", "Preparing", "Backfilling",
		"CatchingUp", "SourceChanged", "Activating", "Finishing", "ApprovalPending", "Suspended",
	}
	failedReasons = []string{
		"InvalidSpec", "InvalidSQL", "NotTransactional", "VersionRegression", "ContentDrift", "LayoutMismatch", "Conflict", "FenceBroken",
		"VerificationFailed", "NotConverging", "Unverifiable", "CheckpointOrphaned", "Internal",
	}
)

// checkStatus holds the status of an object, as it is in the API server, against the rules of kstatus and against what the real library
// computes from it. Every pass of every spec goes through it.
func checkStatus(ctx context.Context, kind string, object client.Object) {
	GinkgoHelper()
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	Expect(suite.admin.Get(ctx, client.ObjectKeyFromObject(object), found)).To(Succeed())
	conditions := conditionsOf(object)
	all := describeConditions(conditions)

	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	Expect(ready).NotTo(BeNil(), "Ready is always there")
	reconciles := meta.FindStatusCondition(conditions, v1alpha1.ConditionReconciling)
	stalls := meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	Expect(reconciles == nil || stalls == nil).To(BeTrue(), "Reconciling and Stalled exclude each other: %s", all)
	Expect(ready.Status == metav1.ConditionTrue).To(Equal(reconciles == nil && stalls == nil), all)
	for _, condition := range []*metav1.Condition{reconciles, stalls} {
		if condition != nil {
			Expect(condition.Status).To(Equal(metav1.ConditionTrue), "%s is there only while true", condition.Type)
			Expect(condition.Reason).To(Equal(ready.Reason), all)
		}
	}
	for _, condition := range conditions {
		Expect(condition.ObservedGeneration).To(Equal(object.GetGeneration()), "observedGeneration of %s", condition.Type)
		Expect(condition.LastTransitionTime.IsZero()).To(BeFalse())
	}
	observed, _, err := unstructured.NestedInt64(found.Object, "status", "observedGeneration")
	Expect(err).NotTo(HaveOccurred())
	Expect(observed).To(Equal(object.GetGeneration()))

	computed, err := status.Compute(found)
	Expect(err).NotTo(HaveOccurred())
	switch {
	case ready.Status == metav1.ConditionTrue:
		Expect(doneReasons).To(ContainElement(ready.Reason))
		Expect(computed.Status).To(Equal(status.CurrentStatus), all)
	case stalls != nil:
		Expect(failedReasons).To(ContainElement(ready.Reason))
		Expect(computed.Status).To(Equal(status.FailedStatus), all)
	default:
		Expect(inProgressReasons).To(ContainElement(ready.Reason))
		Expect(computed.Status).To(Equal(status.InProgressStatus), all)
	}
	Expect(gitops.Disagreement(ctx, found)).To(Succeed(), all)
}

func conditionsOf(object client.Object) []metav1.Condition {
	GinkgoHelper()
	switch typed := object.(type) {
	case *v1alpha1.SyncSchema:
		return typed.Status.Conditions
	case *v1alpha1.BackfillCheckpoint:
		return typed.Status.Conditions
	}
	Fail(fmt.Sprintf("%T has no conditions", object))
	return nil
}

func readyReason(conditions []metav1.Condition) string {
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil {
		return ready.Reason
	}
	return ""
}

func readyMessage(conditions []metav1.Condition) string {
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil {
		return ready.Message
	}
	return ""
}

// expectStalled and expectWaiting hold an object against the reason of Ready, and by which of the two conditions goes with it.
func expectStalled(conditions []metav1.Condition, reason, message string) {
	GinkgoHelper()
	Expect(meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionStalled)).To(BeTrue(), describeConditions(conditions))
	Expect(readyReason(conditions)).To(Equal(reason), describeConditions(conditions))
	Expect(readyMessage(conditions)).To(ContainSubstring(message))
}

func expectWaiting(conditions []metav1.Condition, reason, message string) {
	GinkgoHelper()
	Expect(meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReconciling)).To(BeTrue(), describeConditions(conditions))
	Expect(readyReason(conditions)).To(Equal(reason), describeConditions(conditions))
	Expect(readyMessage(conditions)).To(ContainSubstring(message))
}

func describeConditions(conditions []metav1.Condition) string {
	var lines []string
	for _, c := range conditions {
		lines = append(lines, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
