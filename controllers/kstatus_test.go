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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/test/gitops"
)

// checkStatus holds an object that a pass has just looked at against what every object must be (test/gitops.Check).
func checkStatus(ctx context.Context, object client.Object) {
	GinkgoHelper()
	observed := int64(0)
	switch typed := object.(type) {
	case *v1alpha1.SyncSchema:
		observed = typed.Status.ObservedGeneration
	case *v1alpha1.BackfillCheckpoint:
		observed = typed.Status.ObservedGeneration
	}
	Expect(observed).To(Equal(object.GetGeneration()))
	Expect(gitops.Check(ctx, object)).To(Succeed())
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
