package controllers

import (
	"context"
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const child = "clinic-name-search"

var _ = Describe("A BackfillCheckpoint", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	// begin brings the schema to version 7 and makes the checkpoint's first Job.
	begin := func(change ...func(*v1alpha1.SyncSchema)) {
		w.apply(w.clinic(7, change...))
		w.pass()
		w.passCheckpoint(child)
		Expect(w.jobs()).To(HaveLen(1))
	}
	epoch := func() int64 { return w.number(`SELECT max(owner_epoch) FROM sync_backfill_checkpoints`) }

	It("makes one Job, however often it is looked at", func() {
		begin()
		for range 10 {
			w.newOperator()
			w.passCheckpoint(child)
		}
		Expect(w.jobs()).To(HaveLen(1))
		Expect(epoch()).To(BeEquivalentTo(1))
	})

	It("makes another Job with another claim when its Job is deleted, and none once it is activated", func() {
		begin()
		first := w.jobs()[0]
		Expect(suite.admin.Delete(w.ctx, &first, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		w.passCheckpoint(child)
		Expect(w.jobs()).To(HaveLen(1))
		Expect(w.jobs()[0].Name).NotTo(Equal(first.Name))
		Expect(epoch()).To(BeEquivalentTo(2))
		w.runWorkers()
		w.passCheckpoint(child)
		for _, job := range w.jobs() {
			Expect(suite.admin.Delete(w.ctx, &job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		}
		w.newOperator()
		w.clock.advance(DefaultResync)
		object, _ := w.passCheckpoint(child)
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated))
		Expect(w.jobs()).To(BeEmpty())
		Expect(epoch()).To(BeEquivalentTo(2))
	})

	It("is activated when the database says so, whatever the Job says", func() {
		begin()
		job := w.jobs()[0]
		Expect(w.runWorker(&job)).To(Succeed())
		w.failJob(&job, 1)
		object, _ := w.passCheckpoint(child)
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated))
	})

	It("replaces a Job that used up its retries, after a pause that grows, and never gives up", func() {
		begin()
		var last time.Duration
		for failure := range 4 {
			w.clock.advance(statusEvery)
			jobs := w.jobs()
			for i := range jobs {
				if !finished(&jobs[i]) {
					w.failJob(&jobs[i], 137)
				}
			}
			object, again := w.passCheckpoint(child)
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "137")
			Expect(again.RequeueAfter).To(BeNumerically(">", last))
			Expect(epoch()).To(BeEquivalentTo(failure + 1))
			last = again.RequeueAfter
			w.clock.advance(last - time.Second)
			w.passCheckpoint(child)
			Expect(epoch()).To(BeEquivalentTo(failure + 1))
			w.clock.advance(time.Second)
			w.passCheckpoint(child)
			Expect(epoch()).To(BeEquivalentTo(failure + 2))
		}
		w.bring()
	})

	It("waits for the barrier of its version, and says what its SyncSchema is stalled for", func() {
		w.apply(w.clinic(6))
		w.bring()
		w.apply(w.clinic(7, withSQL(7, "CREATE TABLE t (id nonsense)")))
		mine := standaloneOf(w, "mine", "of-my-own")
		w.apply(mine)
		object, _ := w.passCheckpoint("mine")
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonPreviousVersionOpen, "the barrier of version 7, which declares it, has not been made yet")
		Expect(readyMessage(object.Status.Conditions)).NotTo(ContainSubstring("stalled"))
		before := w.schema()
		after, _ := w.pass()
		expectStalled(after.Status.Conditions, v1alpha1.ReasonInvalidSQL, "nonsense")
		Expect(schemaMoved().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeTrue())
		w.clock.advance(statusEvery)
		object, _ = w.passCheckpoint("mine")
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonPreviousVersionOpen, "; SyncSchema clinic is stalled: InvalidSQL")
	})

	It("is Stalled when a check finds wrong rows, names them, and tries again at the next resync or when asked", func() {
		wrong := func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints[0].Verify = []v1alpha1.Verify{{Name: "no-seven", Query: "SELECT id FROM patients WHERE name_search = 'name 7'"}}
		}
		begin(wrong)
		w.runWorkers()
		object, again := w.passCheckpoint(child)
		expectStalled(object.Status.Conditions, v1alpha1.ReasonVerificationFailed, "no-seven")
		Expect(readyMessage(object.Status.Conditions)).To(ContainSubstring("7"))
		Expect(meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionActivated).Reason).To(Equal(v1alpha1.ReasonVerificationFailed))
		Expect(again.RequeueAfter).To(BeNumerically("~", DefaultResync, time.Second))
		schema, _ := w.pass()
		expectStalled(schema.Status.Conditions, v1alpha1.ReasonVerificationFailed, child)
		Expect(*schema.Status.GateOpen).To(BeFalse())
		since := time.UnixMilli(w.number(`SELECT applied_at_ms FROM sync_barrier_history WHERE version = 7`)).UTC().Format(time.RFC3339)
		outage := "programs below version 7 cannot write since the barrier of " + since + ", and version 7 does not serve: "
		Expect(readyMessage(schema.Status.Conditions)).To(HavePrefix(outage + "BackfillCheckpoint " + child))
		w.clock.advance(statusEvery)
		w.pass()
		Expect(w.events.list).To(ContainElement(HavePrefix("Warning VerificationFailed: " + outage)))
		Expect(w.events.of(v1alpha1.ReasonVerificationFailed)).To(Equal(2), "one of the checkpoint, one of the schema: %v", w.events.list)

		w.newOperator()
		object, _ = w.passCheckpoint(child)
		expectStalled(object.Status.Conditions, v1alpha1.ReasonVerificationFailed, "no-seven")
		Expect(epoch()).To(BeEquivalentTo(1))
		w.annotate(object, AnnotationRetry, w.clock.Now().Add(time.Second).UTC().Format(time.RFC3339))
		w.clock.advance(2 * time.Second)
		w.passCheckpoint(child)
		Expect(epoch()).To(BeEquivalentTo(2))
		w.runWorkers()
		object, _ = w.passCheckpoint(child)
		expectStalled(object.Status.Conditions, v1alpha1.ReasonVerificationFailed, "no-seven")

		w.sql(`UPDATE patients SET name = 'Seven' WHERE id = 7`) // a person puts the data right, and has it derived anew
		w.sql(`UPDATE patients SET name_search = 'seven' WHERE id = 7`)
		w.clock.advance(DefaultResync)
		w.bring()
	})

	It("is Stalled with the key of the row that its SQL fails on, and keeps the batches before it", func() {
		begin(func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints[0].Backfill.BatchRows = 10
			s.Spec.Checkpoints[0].Backfill.Update.Set = map[string]v1alpha1.Expression{"name_search": "lower(name) || (1 / (id - 217))::text"}
			s.Spec.Checkpoints[0].Verify = nil
		})
		w.runWorkers()
		object, _ := w.passCheckpoint(child)
		expectStalled(object.Status.Conditions, v1alpha1.ReasonInvalidSQL, "217")
		Expect(w.number(`SELECT count(*) FROM patients WHERE name_search IS NOT NULL`)).To(BeNumerically(">=", 100))
	})

	It("begins its pass again when the log cannot answer, three times, and is then Stalled", func() {
		w.apply(w.clinic(7))
		w.pass()
		w.sql(`INSERT INTO sync_partitions (partition) VALUES ('ward-0')`)
		w.passCheckpoint(child)
		for restart := range 3 {
			w.replaceLog()
			jobs := w.jobs()
			for i := range jobs {
				if !finished(&jobs[i]) {
					Expect(storage.ClassOf(w.runWorker(&jobs[i]))).To(Equal(storage.ClassUnverifiable))
					w.failJob(&jobs[i], 29)
				}
			}
			object, _ := w.passCheckpoint(child)
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonSourceChanged, "")
			Expect(epoch()).To(BeEquivalentTo(restart + 2))
			w.clock.advance(time.Second)
		}
		w.replaceLog()
		jobs := w.jobs()
		for i := range jobs {
			if !finished(&jobs[i]) {
				w.failJob(&jobs[i], 29)
			}
		}
		object, _ := w.passCheckpoint(child)
		expectStalled(object.Status.Conditions, v1alpha1.ReasonUnverifiable, "")
		epochs := epoch()
		w.annotate(object, AnnotationRetry, w.clock.Now().Add(-time.Hour).UTC().Format(time.RFC3339)) // of an earlier trouble

		// A morning later the Jobs are gone, and it is looked at as often as anything at rest.
		w.clock.advance(16 * time.Hour)
		for _, job := range w.jobs() {
			Expect(suite.admin.Delete(w.ctx, &job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		}
		Eventually(w.jobs).WithTimeout(time.Minute).Should(BeEmpty())
		object, again := w.passCheckpoint(child)
		expectStalled(object.Status.Conditions, v1alpha1.ReasonUnverifiable, "")
		Expect(readyMessage(object.Status.Conditions)).NotTo(ContainSubstring("gone"))
		Expect(again.RequeueAfter).To(BeNumerically("~", DefaultResync, DefaultResync/10))
		Expect(epoch()).To(Equal(epochs))
		w.annotate(object, AnnotationRetry, w.clock.Now().UTC().Format(time.RFC3339))
		w.passCheckpoint(child)
		Expect(epoch()).To(Equal(epochs + 1))
		w.bring()
	})

	It("goes on after another process took its claim", func() {
		begin()
		store, err := openPostgres(w.ctx, Connection{URL: Secret(w.dsn)})
		Expect(err).NotTo(HaveOccurred())
		defer store.Close()
		_, err = store.ClaimAll(w.ctx, "name-search", false)
		Expect(err).NotTo(HaveOccurred())
		w.passCheckpoint(child)
		Expect(epoch()).To(BeEquivalentTo(3))
		jobs := w.jobs()
		Expect(jobs).To(HaveLen(1), "the Job of the claim before is gone")
		w.bring()
	})

	It("says in the cluster's words why no worker starts", func() {
		begin()
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWorkerPending, "no pod")
		Expect(object.Status.HoldReason).To(ContainSubstring("no pod"))
		Expect(object.Status.Rows.SecondsLeft).To(BeNil(), "no time is told while it is held")
	})

	It("leaves the work to its Job while the API server refuses the template of the next one", func() {
		begin()
		first := w.jobs()[0]
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Worker = &v1alpha1.Worker{Template: &runtime.RawExtension{Raw: []byte(`{"spec":{"priorityClassName":"no such class!"}}`)}}
		}))
		object, again := w.passCheckpoint(child)
		expectStalled(object.Status.Conditions, v1alpha1.ReasonInvalidSpec, "spec.worker.template")
		Expect(again.RequeueAfter).To(BeNumerically("<", 2*watchEvery), "the Job still works")
		Expect(epoch()).To(BeEquivalentTo(1))
		Expect(w.jobs()).To(HaveLen(1))
		Expect(w.jobs()[0].UID).To(Equal(first.UID))
		w.runWorkers()
		object, _ = w.passCheckpoint(child)
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated))
	})

	It("makes no claim while a quota or an admission refuses its Job, and makes the Job once it is let in", func() {
		refusing := true
		w.checkpoints.Client = through(interceptor.Funcs{Create: func(
			ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption,
		) error {
			if _, job := object.(*batchv1.Job); job && refusing {
				return apierrors.NewForbidden(batchv1.Resource("jobs"), object.GetName(), errors.New("exceeded quota"))
			}
			return c.Create(ctx, object, options...)
		}})
		w.apply(w.clinic(7))
		w.pass()
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWorkerPending, "exceeded quota")
		Expect(object.Status.HoldReason).To(ContainSubstring("exceeded quota"))
		Expect(epoch()).To(BeZero())
		refusing = false
		w.passCheckpoint(child)
		Expect(w.jobs()).To(HaveLen(1))
		Expect(epoch()).To(BeEquivalentTo(1))
	})

	It("leaves a Job of its name that belongs to somebody else alone", func() {
		w.apply(w.clinic(7))
		w.pass()
		checkpoint := w.checkpoint(child)
		job, err := newWorkerJob(workerJobInput{
			Checkpoint: checkpoint, Database: w.schema().Spec.Database.Postgres, ClaimToken: "token", ClaimNumber: 9, Image: "x",
		})
		Expect(err).NotTo(HaveOccurred())
		ours := job.DeepCopy()
		job.OwnerReferences = nil
		Expect(suite.admin.Create(w.ctx, job)).To(Succeed())
		verdict, err := w.checkpoints.makeJob(w.ctx, &checkpointPass{object: checkpoint}, ours)
		Expect(err).NotTo(HaveOccurred())
		Expect(verdict.reason).To(Equal(v1alpha1.ReasonConflict))
		Expect(w.jobs()[0].UID).To(Equal(job.UID))
		Expect(w.jobs()[0].OwnerReferences).To(BeEmpty())
	})

	It("that a user wrote is declared by the barrier if it is there by then", func() {
		w.apply(w.clinic(6))
		w.bring()
		w.apply(standaloneOf(w, "mine", "of-my-own"))
		object, _ := w.passCheckpoint("mine")
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonPreviousVersionOpen, "version 7")
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints = nil }))
		w.bring()
		object, _ = w.passCheckpoint("mine")
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated))
		Expect(w.number(`SELECT count(*) FROM patients WHERE name_search = upper(name)`)).To(BeEquivalentTo(300))
	})

	It("that a user wrote later is declared while the gate of its version is closed, and is Conflict afterwards", func() {
		begin()
		late := standaloneOf(w, "late", "late")
		late.Spec.Backfill.Update.Set = map[string]v1alpha1.Expression{"name": "name"}
		w.apply(late)
		object, _ := w.passCheckpoint("late")
		Expect(w.events.of("Declared")).To(Equal(1))
		Expect(object.Status.JobName).NotTo(BeEmpty())
		w.bring()
		tooLate := standaloneOf(w, "too-late", "too-late")
		tooLate.Spec.Backfill.Update.Set = map[string]v1alpha1.Expression{"name": "name"}
		w.apply(tooLate)
		object, _ = w.passCheckpoint("too-late")
		expectStalled(object.Status.Conditions, v1alpha1.ReasonConflict, "serve already")
		schema, _ := w.pass()
		Expect(readyReason(schema.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen), "it is nobody else's trouble")
	})

	DescribeTable("that a user wrote and that cannot be is its own trouble, not the schema's:",
		func(change func(*v1alpha1.BackfillCheckpoint), reason, message string) {
			wrong := standaloneOf(w, "wrong", "wrong")
			change(wrong)
			w.apply(wrong)
			w.apply(w.clinic(7))
			w.pass()
			object, _ := w.passCheckpoint("wrong")
			expectStalled(object.Status.Conditions, reason, message)
			w.bring()
		},
		Entry("a name of the schema's own", func(c *v1alpha1.BackfillCheckpoint) { c.Spec.Name = "name-search" }, v1alpha1.ReasonConflict, "spec.checkpoints"),
		Entry("a table that is not declared", func(c *v1alpha1.BackfillCheckpoint) { c.Spec.Sources[0].Table = "absent" }, v1alpha1.ReasonInvalidSpec, "absent"),
	)

	It("that speaks of something else than what is declared under its name is ContentDrift, and makes no Job", func() {
		w.apply(standaloneOf(w, "mine", "of-my-own"))
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints = nil }))
		w.pass()
		Expect(suite.admin.Delete(w.ctx, w.checkpoint("mine"))).To(Succeed())
		other := standaloneOf(w, "mine", "of-my-own")
		other.Spec.Backfill.Update.Set = map[string]v1alpha1.Expression{"name_search": "initcap(name)"}
		w.apply(other)
		object, _ := w.passCheckpoint("mine")
		expectStalled(object.Status.Conditions, v1alpha1.ReasonContentDrift, "other content")
		Expect(w.jobs()).To(BeEmpty())
		Expect(suite.admin.Delete(w.ctx, object)).To(Succeed())
		w.apply(standaloneOf(w, "mine", "of-my-own"))
		w.bring()
	})

	It("changes nothing in a database schema that another owner has taken over", func() {
		w.apply(w.clinic(7))
		w.pass()
		w.sql(`UPDATE sync_barrier_owner SET cluster = 'elsewhere'`)
		object, _ := w.passCheckpoint(child)
		expectStalled(object.Status.Conditions, v1alpha1.ReasonConflict, "elsewhere/")
		Expect(epoch()).To(BeZero())
		Expect(w.jobs()).To(BeEmpty())
	})

	It("waits for a schema that is not there", func() {
		w.apply(standaloneOf(w, "early", "early"))
		object, _ := w.passCheckpoint("early")
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonPreviousVersionOpen, "SyncSchema clinic")
	})

	It("works through every partition that it lists and shows those that are behind", func() {
		begin(func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints[0].Partitions = []string{"ward-0", "ward-1", "ward-2"}
		})
		object, _ := w.passCheckpoint(child)
		Expect(*object.Status.Partitions).To(Equal(v1alpha1.PartitionCounts{Total: 3, Backfilling: 3}))
		Expect(object.Status.Behind).To(HaveLen(3))
		Expect(object.Status.Behind[0].Epoch).To(BeEquivalentTo(1))
		w.bring()
		object, _ = w.passCheckpoint(child)
		Expect(*object.Status.Partitions).To(Equal(v1alpha1.PartitionCounts{Total: 3, Activated: 3}))
		Expect(object.Status.Behind).To(BeEmpty())
	})

	It("never names a password in a Job", func() {
		begin()
		password := partsOf(w.dsn)["password"]
		job := w.jobs()[0]
		Expect(password).NotTo(BeEmpty())
		Expect(job.String()).NotTo(ContainSubstring(password))
		Expect(strings.Join(job.Spec.Template.Spec.Containers[0].Command, " ")).To(ContainSubstring("--database-file"))
	})
})

// replaceLog makes the log one that cannot answer for what was before: as a restore does.
func (w *world) replaceLog() {
	GinkgoHelper()
	store, err := openPostgres(w.ctx, Connection{URL: Secret(w.dsn)})
	Expect(err).NotTo(HaveOccurred())
	defer store.Close()
	Expect(store.RotateLogEpoch(w.ctx, storage.AllPartitions)).To(Succeed())
}
