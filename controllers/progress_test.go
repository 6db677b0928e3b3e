package controllers

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

var _ = Describe("The progress of a checkpoint", func() {
	It("is the database's own count at each moment, with rate, time left and what is behind", func() {
		w := newWorld()
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Backfill.BatchRows = 100 }))
		w.pass()
		w.sql(`INSERT INTO sync_partitions (partition) VALUES ('ward-1')`)
		w.passCheckpoint(child)
		job := w.jobs()[0]
		w.startPod(&job)
		store, claim, lease := w.claimOf(&job)

		w.passCheckpoint(child)
		for batch := 1; batch <= 2; batch++ {
			_, err := store.ScanBatch(w.ctx, claim, lease)
			Expect(err).NotTo(HaveOccurred())
			w.clock.advance(20 * time.Second)
			object, _ := w.passCheckpoint(child)
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "1 of 1 workers")
			Expect(object.Status.HoldReason).To(BeEmpty())
			Expect(object.Status.JobName).To(Equal(job.Name))
			filled := w.number(`SELECT count(*) FROM patients WHERE name_search IS NOT NULL`)
			Expect(filled).To(BeEquivalentTo(100 * batch))
			Expect(object.Status.Rows.Done).To(Equal(filled))
			Expect(*object.Status.Rows.PerSecond).To(BeEquivalentTo(5))
			Expect(*object.Status.Rows.SecondsLeft).To(BeEquivalentTo((*object.Status.Rows.Estimated - filled) / 5))
		}
		for !lease.Done {
			batch, err := store.ScanBatch(w.ctx, claim, lease)
			Expect(err).NotTo(HaveOccurred())
			lease.Done = batch.Done
		}
		w.commitAsProgram("ward-1")
		w.clock.advance(statusEvery)
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonCatchingUp, "")
		Expect(object.Status.Behind[0].Verdict).To(Equal("changed"))
		Expect(meta.IsStatusConditionFalse(object.Status.Conditions, v1alpha1.ConditionBackfillComplete)).To(BeTrue())

		_, err := store.TailBatch(w.ctx, claim, storage.AllPartitions, 1000)
		Expect(err).NotTo(HaveOccurred())
		object, _ = w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonActivating, "")
		Expect(meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionBackfillComplete)).To(BeTrue())
		Expect(meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionActivated).Reason).To(Equal(v1alpha1.ReasonActivating))
		w.bring()
		Expect(w.number(`SELECT count(*) FROM patients WHERE name_search = lower(name)`)).To(BeEquivalentTo(300))
	})

	It("is looked at once the gate opens, whoever sees the last activation first, and is written at once", func() {
		w := newWorld()
		w.apply(w.clinic(7))
		w.pass()
		w.passCheckpoint(child)
		before := w.schema()
		job := w.jobs()[0]
		Expect(w.runWorker(&job)).To(Succeed(), "its Job has said nothing yet")
		after, _ := w.pass()
		Expect(readyReason(after.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen))
		Expect(schemaMoved().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})).To(BeTrue())
		other := after.DeepCopy()
		other.Status.Conditions[0].Message = "other words"
		Expect(schemaMoved().Update(event.UpdateEvent{ObjectOld: after, ObjectNew: other})).To(BeFalse())
		object, _ := w.passCheckpoint(child)
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated))
		Expect(object.Status.State).To(Equal(v1alpha1.StateActivated))
	})

	It("is held, and says where to look, while workers run and commit nothing", func() {
		w := newWorld()
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Backfill.BatchRows = 100 }))
		w.pass()
		w.passCheckpoint(child)
		after := func(pause time.Duration) string {
			GinkgoHelper()
			w.clock.advance(pause)
			object, _ := w.passCheckpoint(child)
			return object.Status.HoldReason
		}
		Expect(after(2*quietWork)).To(ContainSubstring("has no pod"), "none runs")
		job := w.jobs()[0]
		w.startPod(&job)
		store, claim, lease := w.claimOf(&job)
		Expect(after(2*quietWork)).To(BeEmpty(), "it has only just begun")
		Expect(after(quietWork - statusEvery)).To(BeEmpty())
		silent := after(statusEvery)
		Expect(silent).To(And(ContainSubstring("committed nothing for over 2 minutes"), ContainSubstring("kubectl logs -n "+w.namespace+" job/"+job.Name)))
		Expect(after(time.Hour)).To(Equal(silent), "at rest the words stay")
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "committed nothing")
		Expect(object.Status.Rows).To(Or(BeNil(), HaveField("SecondsLeft", BeNil())))

		By("a batch that is committed")
		_, err := store.ScanBatch(w.ctx, claim, lease)
		Expect(err).NotTo(HaveOccurred())
		Expect(after(statusEvery)).To(BeEmpty())
		Expect(after(quietWork)).To(Equal(silent))
	})

	It("stands still while a standby is too far behind, and says so", func() {
		server := testdb.PostgresServer(GinkgoTB(), testdb.ServerOptions{})
		w := newWorld()
		w.useDatabase(server.Database(GinkgoTB()))
		standby := server.Standby(GinkgoTB())
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Backfill.MaxReplicationLagSeconds = 1 }))
		w.pass()
		w.passCheckpoint(child)
		job := w.jobs()[0]
		w.startPod(&job)
		replay := connectTo(w.ctx, standby.DSN("postgres"))
		_, err := replay.Exec(w.ctx, `SELECT pg_wal_replay_pause()`)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() int64 {
			w.sql(`UPDATE patients SET name = name WHERE id = 1`)
			return w.number(`SELECT coalesce(max(extract(epoch FROM replay_lag)), 0)::bigint FROM pg_stat_replication`)
		}, time.Minute, 200*time.Millisecond).Should(BeNumerically(">", 1))
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonThrottled, "standby")
		Expect(object.Status.HoldReason).To(ContainSubstring("maxReplicationLagSeconds"))
		Expect(object.Status.Rows.SecondsLeft).To(BeNil())
		_, err = replay.Exec(w.ctx, `SELECT pg_wal_replay_resume()`)
		Expect(err).NotTo(HaveOccurred())
	})
})

var _ = Describe("The metrics", func() {
	It("all move in the life of a schema", func() {
		w := newWorld()
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Lock = &v1alpha1.Lock{TimeoutMilliseconds: 100} }))
		release := w.hold()
		w.pass()
		release()
		w.clock.advance(time.Minute)
		w.bring()
		w.passCheckpoint(child)
		of := prometheus.Labels{"namespace": w.namespace}
		Expect(w.metric("syncbarrier_barrier_attempts_total", with(of, "outcome", "LockTimeout"))).To(BeEquivalentTo(1))
		Expect(w.metric("syncbarrier_barrier_attempts_total", with(of, "outcome", "migrate"))).To(BeEquivalentTo(1))
		Expect(w.metric("syncbarrier_barrier_lock_wait_seconds", of)).To(BeEquivalentTo(1))
		Expect(w.metric("syncbarrier_barrier_lock_hold_seconds", of)).To(BeEquivalentTo(1))
		Expect(w.metric("syncbarrier_gate_open", of)).To(BeEquivalentTo(1))
		Expect(w.metric("syncbarrier_stored_version", of)).To(BeEquivalentTo(7))
		Expect(w.metric("syncbarrier_backfill_rows_done", of)).To(BeEquivalentTo(300))
		Expect(w.metric("syncbarrier_checkpoint_partitions", with(of, "state", "activated"))).To(BeEquivalentTo(1))
		Expect(w.metric("syncbarrier_checkpoint_partitions", with(of, "state", "declared"))).To(BeEquivalentTo(0))
		Expect(w.metric("syncbarrier_object_ready", with(of, "kind", "SyncSchema"))).To(BeEquivalentTo(1))
		Expect(w.metric("syncbarrier_database_pools", nil)).To(BeNumerically(">=", 1))

		Expect(suite.admin.Delete(w.ctx, w.schema())).To(Succeed())
		_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
		Expect(err).NotTo(HaveOccurred())
		Expect(w.metric("syncbarrier_gate_open", of)).To(BeEquivalentTo(-1), "no series is left of what is gone")
	})
})

func with(labels prometheus.Labels, name, value string) prometheus.Labels {
	more := prometheus.Labels{name: value}
	for k, v := range labels {
		more[k] = v
	}
	return more
}

// metric gives the value of the one series that has these labels, a histogram's count; -1: there is none.
func (w *world) metric(name string, labels prometheus.Labels) float64 {
	GinkgoHelper()
	families, err := metrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.GetMetric() {
			found := 0
			for _, pair := range series.GetLabel() {
				if value, wanted := labels[pair.GetName()]; wanted && value == pair.GetValue() {
					found++
				}
			}
			switch {
			case found < len(labels):
			case series.GetCounter() != nil:
				return series.GetCounter().GetValue()
			case series.GetGauge() != nil:
				return series.GetGauge().GetValue()
			default:
				return float64(series.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

// startPod makes a pod of a Job and says that its worker runs.
func (w *world) startPod(job *batchv1.Job) {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: job.Name + "-0-aaaaa", Labels: job.Spec.Template.Labels}}
	pod.Labels[batchv1.ControllerUidLabel] = string(job.UID)
	pod.Spec = job.Spec.Template.Spec
	Expect(suite.admin.Create(w.ctx, pod)).To(Succeed())
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: workerContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	Expect(suite.admin.Status().Update(w.ctx, pod)).To(Succeed())
}

// claimOf takes the one range of a Job's claim, as its worker does.
func (w *world) claimOf(job *batchv1.Job) (storage.Store, storage.Claim, storage.Lease) {
	GinkgoHelper()
	store, err := openPostgres(w.ctx, Connection{URL: Secret(w.dsn)})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(store.Close)
	_, token, _ := jobClaim(job)
	claim, err := store.ReadClaim(w.ctx, "name-search", token)
	Expect(err).NotTo(HaveOccurred())
	leases, err := store.TakeRanges(w.ctx, claim, 0, 1)
	Expect(err).NotTo(HaveOccurred())
	Expect(leases).To(HaveLen(1))
	return store, claim, leases[0]
}

// commitAsProgram changes a patient as a program of version 7 does that follows the sync protocol.
func (w *world) commitAsProgram(ward string) {
	GinkgoHelper()
	store, err := postgres.Open(w.ctx, postgres.Config{URL: w.dsn})
	Expect(err).NotTo(HaveOccurred())
	defer store.Close()
	tx, err := store.Begin(w.ctx, ward, 7)
	Expect(err).NotTo(HaveOccurred())
	Expect(tx.LockPartition(w.ctx)).To(Succeed())
	_, err = tx.Exec(w.ctx, `UPDATE patients SET name = 'Changed' WHERE id = 1`)
	Expect(err).NotTo(HaveOccurred())
	_, err = tx.AppendCommit(w.ctx, storage.Commit{
		ClientID: "program", ClientCommitID: "1", ActorID: "program", Changes: []storage.Change{{Table: "patients", RowID: "1", Op: storage.OpUpsert}},
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(tx.Commit(w.ctx)).To(Succeed())
}

// useDatabase moves the world to another database, before anything happened in it.
func (w *world) useDatabase(dsn string) {
	GinkgoHelper()
	w.dsn = dsn
	w.db = connectTo(w.ctx, dsn)
	w.makePatients()
	Expect(suite.admin.Delete(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "clinic-app"}},
		client.GracePeriodSeconds(0))).To(Succeed())
	w.secret("clinic-app", map[string]string{"uri": dsn})
}
