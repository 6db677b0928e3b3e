package controllers

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("A SyncSchema", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("goes from version 6 to version 7 and is Ready when the gate is open", func() {
		w.apply(w.clinic(6))
		six, _ := w.pass()
		Expect(readyReason(six.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen), describeConditions(six.Status.Conditions))
		Expect(*six.Status.StoredVersion).To(BeEquivalentTo(6))

		w.apply(w.clinic(7))
		seven, again := w.pass()
		expectWaiting(seven.Status.Conditions, v1alpha1.ReasonBackfilling, "name-search")
		Expect(meta.IsStatusConditionTrue(seven.Status.Conditions, v1alpha1.ConditionMigrated)).To(BeTrue())
		Expect(meta.IsStatusConditionTrue(seven.Status.Conditions, v1alpha1.ConditionFenced)).To(BeTrue())
		Expect(meta.IsStatusConditionFalse(seven.Status.Conditions, v1alpha1.ConditionGateOpen)).To(BeTrue())
		Expect(*seven.Status.MinWriterVersion).To(BeEquivalentTo(7))
		Expect(*seven.Status.GateOpen).To(BeFalse())
		Expect(again.RequeueAfter).To(Equal(watchEvery))

		child, _ := w.passCheckpoint("clinic-name-search")
		Expect(metav1.IsControlledBy(child, seven)).To(BeTrue())
		Expect(child.Status.State).To(Equal(v1alpha1.StateBackfilling))
		Expect(child.Status.JobName).NotTo(BeEmpty())
		Expect(w.jobs()).To(HaveLen(1))
		for _, err := range w.runWorkers() {
			Expect(err).NotTo(HaveOccurred())
		}

		child, _ = w.passCheckpoint("clinic-name-search")
		Expect(readyReason(child.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated), describeConditions(child.Status.Conditions))
		Expect(child.Status.Rows.Done).To(BeEquivalentTo(300))
		ready, again := w.pass()
		Expect(readyReason(ready.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen), describeConditions(ready.Status.Conditions))
		Expect(*ready.Status.GateOpen).To(BeTrue())
		Expect(again.RequeueAfter).To(Equal(DefaultResync))
		Expect(w.number(`SELECT count(*) FROM patients WHERE name_search = lower(name)`)).To(BeEquivalentTo(300))
		Expect(w.events.of(v1alpha1.ReasonMigrated)).To(Equal(2))
		Expect(w.events.of(v1alpha1.ReasonActivated)).To(Equal(1))
	})
})
