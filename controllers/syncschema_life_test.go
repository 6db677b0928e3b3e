package controllers

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

	It("comes to the same end, with nothing run twice, when its status is wiped between every two steps", func() {
		w.apply(w.clinic(6))
		w.bring(w.wipe)
		w.apply(w.clinic(7))
		object := w.bring(func() { w.wipe(); w.newOperator() })
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(7))
		Expect(w.number(`SELECT count(*) FROM sync_barrier_history`)).To(BeEquivalentTo(2))
		Expect(w.number(`SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1), "one claim")
		Expect(w.number(`SELECT sum(rows_done) FROM sync_backfill_progress WHERE kind = 'range'`)).To(BeEquivalentTo(300))
		Expect(w.jobs()).To(HaveLen(1))

		w.wipe()
		w.newOperator()
		again, _ := w.pass()
		Expect(again.Status.ContentHash).To(Equal(object.Status.ContentHash))
		child, _ := w.passCheckpoint("clinic-name-search")
		Expect(child.Status.State).To(Equal(v1alpha1.StateActivated))
		Expect(*child.Status.Partitions).To(Equal(v1alpha1.PartitionCounts{Total: 1, Activated: 1}))
		Expect(w.jobs()).To(HaveLen(1))
	})

	It("writes nothing at rest", func() {
		w.apply(w.clinic(6))
		w.bring()
		w.apply(w.clinic(7))
		w.bring()
		w.passCheckpoint("clinic-name-search")
		schema, child, jobs := w.schema().ResourceVersion, w.checkpoint("clinic-name-search").ResourceVersion, w.jobs()
		events := len(w.events.list)
		before := w.rowVersions()
		for range 4 {
			w.clock.advance(DefaultResync)
			w.pass()
			w.passCheckpoint("clinic-name-search")
		}
		w.newOperator() // a restart is no reason to write either
		w.pass()
		w.passCheckpoint("clinic-name-search")
		Expect(w.schema().ResourceVersion).To(Equal(schema))
		Expect(w.checkpoint("clinic-name-search").ResourceVersion).To(Equal(child))
		Expect(w.jobs()).To(HaveLen(len(jobs)))
		Expect(w.events.list).To(HaveLen(events))
		Expect(w.rowVersions()).To(Equal(before))
	})

	It("finds its state in the database when it is deleted and made again", func() {
		w.apply(w.clinic(7))
		w.bring()
		first := w.schema()
		Expect(suite.admin.Delete(w.ctx, first)).To(Succeed())
		child := w.checkpoint("clinic-name-search")
		Expect(suite.admin.Delete(w.ctx, child)).To(Succeed())
		_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
		Expect(err).NotTo(HaveOccurred())
		_, err = w.checkpoints.Reconcile(w.ctx, request(w.namespace, "clinic-name-search"))
		Expect(err).NotTo(HaveOccurred())
		Expect(w.number(`SELECT schema_version FROM sync_schema_meta`)).To(BeEquivalentTo(7), "deleting removes nothing")

		w.apply(w.clinic(7))
		second := w.bring()
		Expect(second.UID).NotTo(Equal(first.UID))
		w.passCheckpoint("clinic-name-search")
		Expect(w.number(`SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1))
		Expect(w.number(`SELECT count(*) FROM sync_barrier_history`)).To(BeEquivalentTo(1))
		Expect(w.number(`SELECT count(*) FROM sync_barrier_owner WHERE uid = $1`, string(second.UID))).To(BeEquivalentTo(1))
	})

	It("takes the claim from the workers of a checkpoint that is deleted, and another object goes on where they stopped", func() {
		w.apply(w.clinic(7))
		w.pass()
		w.passCheckpoint("clinic-name-search")
		epoch := `SELECT owner_epoch FROM sync_backfill_checkpoints`
		Expect(w.number(epoch)).To(BeEquivalentTo(1))
		job := w.jobs()[0]
		Expect(suite.admin.Delete(w.ctx, w.checkpoint("clinic-name-search"))).To(Succeed())
		_, err := w.checkpoints.Reconcile(w.ctx, request(w.namespace, "clinic-name-search"))
		Expect(err).NotTo(HaveOccurred())
		Expect(w.number(epoch)).To(BeEquivalentTo(2))
		Expect(suite.admin.Delete(w.ctx, &job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		w.bring()
		Expect(w.number(`SELECT count(*) FROM patients WHERE name_search IS NULL`)).To(BeEquivalentTo(0))
	})

	It("makes the object of an entry anew that was put right before the barrier", func() {
		onApproval := func(s *v1alpha1.SyncSchema) {
			s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverOnApproval}
		}
		w.apply(w.clinic(7, onApproval, func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints[0].Backfill.Update.Set = map[string]v1alpha1.Expression{"name_search": "upper(name)"}
		}))
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonApprovalPending, "")
		wrong := w.checkpoint("clinic-name-search")

		w.apply(w.clinic(7))
		w.bring()
		right := w.checkpoint("clinic-name-search")
		Expect(right.UID).NotTo(Equal(wrong.UID))
		Expect(right.Spec.Checkpoint).To(Equal(w.schema().Spec.Checkpoints[0]))
		Expect(w.number(`SELECT count(*) FROM patients WHERE name_search = lower(name)`)).To(BeEquivalentTo(300))
	})

	It("makes an object anew that is not what the barrier declared, where the entry is", func() {
		w.apply(w.clinic(7))
		w.pass()
		other := w.checkpoint("clinic-name-search")
		Expect(suite.admin.Delete(w.ctx, other)).To(Succeed())
		other.ResourceVersion, other.UID = "", ""
		other.Spec.Backfill.Update.Set = map[string]v1alpha1.Expression{"name_search": "upper(name)"}
		Expect(suite.admin.Create(w.ctx, other)).To(Succeed())
		w.bring()
		Expect(w.checkpoint("clinic-name-search").UID).NotTo(Equal(other.UID))
	})

	It("keeps the object of an entry that was edited after the barrier", func() {
		w.apply(w.clinic(7))
		w.pass()
		before := w.checkpoint("clinic-name-search")
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints[0].Backfill.Update.Set = map[string]v1alpha1.Expression{"name_search": "upper(name)"}
		}))
		object, _ := w.pass()
		expectStalled(object.Status.Conditions, v1alpha1.ReasonContentDrift, "")
		Expect(w.checkpoint("clinic-name-search").UID).To(Equal(before.UID))
	})

	It("runs the backfills of every version that a jump passes", func() {
		w.apply(w.clinic(6))
		w.bring()
		w.apply(w.clinic(8))
		object := w.bring()
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(8))
		Expect(w.number(`SELECT count(*) FROM patients WHERE name_search = lower(name)`)).To(BeEquivalentTo(300))
	})

	It("removes the object of an entry that is gone once its work is done, and not before", func() {
		w.apply(w.clinic(7))
		w.pass()
		w.passCheckpoint("clinic-name-search")
		eight := w.clinic(8, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints = nil })
		w.apply(eight)
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonPreviousVersionOpen, "name-search")
		w.runWorkers()
		w.passCheckpoint("clinic-name-search")
		object = w.bring()
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(8))
		var all v1alpha1.BackfillCheckpointList
		Expect(suite.admin.List(w.ctx, &all, client.InNamespace(w.namespace))).To(Succeed())
		Expect(all.Items).To(BeEmpty())
	})

	It("says that a checkpoint is orphaned when nobody speaks of it any more, and goes on when its entry is back", func() {
		w.apply(w.clinic(7))
		w.pass()
		w.apply(w.clinic(8, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints = nil }))
		Expect(suite.admin.Delete(w.ctx, w.checkpoint("clinic-name-search"))).To(Succeed())
		object, _ := w.pass()
		expectStalled(object.Status.Conditions, v1alpha1.ReasonCheckpointOrphaned, "name-search")
		w.apply(w.clinic(8))
		Expect(*w.bring().Status.StoredVersion).To(BeEquivalentTo(8))
	})

	It("writes a status in which nothing flips at most every ten seconds", func() {
		w.apply(w.clinic(7))
		w.pass()
		w.passCheckpoint("clinic-name-search")
		version := w.checkpoint("clinic-name-search").ResourceVersion
		w.sql(`UPDATE sync_backfill_progress SET rows_done = rows_done + 10 WHERE kind = 'range'`)
		w.clock.advance(4 * time.Second)
		child, again := w.passCheckpoint("clinic-name-search")
		if child.ResourceVersion != version { // the Job that has no pods yet is a reason of its own, once
			version = child.ResourceVersion
			w.sql(`UPDATE sync_backfill_progress SET rows_done = rows_done + 10 WHERE kind = 'range'`)
			w.clock.advance(4 * time.Second)
			child, again = w.passCheckpoint("clinic-name-search")
		}
		Expect(child.ResourceVersion).To(Equal(version))
		Expect(again.RequeueAfter).To(BeNumerically("<=", 6*time.Second))
		w.clock.advance(6 * time.Second)
		child, _ = w.passCheckpoint("clinic-name-search")
		Expect(child.ResourceVersion).NotTo(Equal(version))
		Expect(child.Status.Rows.Done).To(BeNumerically(">=", 20))
	})
})

// rowVersions tells every version of every row of the database: any write shows in it, whether or not it changed a value.
func (w *world) rowVersions() string {
	GinkgoHelper()
	tables := w.text(`SELECT string_agg(quote_ident(tablename), ' ' ORDER BY tablename) FROM pg_tables WHERE schemaname = 'public'`)
	Expect(tables).To(ContainSubstring("sync_barrier_history"))
	all := ""
	for _, table := range strings.Fields(tables) {
		all += table + w.text(`SELECT string_agg(concat(ctid, ' ', xmin), ',' ORDER BY ctid) FROM `+table) + "\n"
	}
	return all
}
