package controllers

import (
	"context"
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("A Job that others lay hands on", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	epoch := func() int64 { return w.number(`SELECT max(owner_epoch) FROM sync_backfill_checkpoints`) }
	begin := func(change ...func(*v1alpha1.SyncSchema)) *batchv1.Job {
		GinkgoHelper()
		w.apply(w.clinic(7, change...))
		w.pass()
		w.passCheckpoint(child)
		Expect(w.jobs()).To(HaveLen(1))
		return &w.jobs()[0]
	}
	remove := func(object client.Object) {
		GinkgoHelper()
		Expect(suite.admin.Delete(w.ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
	}
	patch := func(object client.Object, text string) {
		GinkgoHelper()
		Expect(suite.admin.Patch(w.ctx, object, client.RawPatch(types.MergePatchType, []byte(text)), client.FieldOwner("another"))).To(Succeed())
	}
	wrong := func(s *v1alpha1.SyncSchema) {
		s.Spec.Checkpoints[0].Verify = []v1alpha1.Verify{{Name: "no-seven", Query: "SELECT id FROM patients WHERE name_search = 'name 7'"}}
	}

	It("and delete, while a finalizer of theirs keeps it, is replaced by one with another claim", func() {
		job := begin()
		patch(job, `{"metadata":{"finalizers":["example.com/keep"]}}`)
		remove(job)
		w.passCheckpoint(child)
		Expect(epoch()).To(BeEquivalentTo(2))
		w.bring()
		Expect(epoch()).To(BeEquivalentTo(2))
		patch(job, `{"metadata":{"finalizers":null}}`)
	})

	It("is replaced where its pod was to end and does not, as on a node that is lost, and not before", func() {
		pod := w.podOf(begin())
		remove(pod)
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWorkerPending, "it is being ended, and replaced once it has ended")
		w.clock.advance(30*time.Second + endingBound - 10*time.Second)
		w.passCheckpoint(child)
		Expect(epoch()).To(BeEquivalentTo(1), "it has its time to end")
		w.clock.advance(time.Minute)
		w.passCheckpoint(child)
		Expect(epoch()).To(BeEquivalentTo(2))
		Expect(w.jobs()).To(HaveLen(1))
		w.bring()
		Expect(epoch()).To(BeEquivalentTo(2))
	})

	It("and suspend is theirs to resume, and says so", func() {
		job := begin()
		patch(job, `{"spec":{"suspend":true}}`)
		for range 3 {
			object, _ := w.passCheckpoint(child)
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonWorkerPending, "is suspended, and not by spec.suspend")
			w.clock.advance(statusEvery)
		}
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Suspend = true }))
		w.passCheckpoint(child)
		w.apply(w.clinic(7))
		w.passCheckpoint(child)
		Expect(*w.jobs()[0].Spec.Suspend).To(BeTrue(), "spec.suspend did not stop it, so its end does not resume it")
		patch(job, `{"spec":{"suspend":false}}`)
		w.bring()
		Expect(epoch()).To(BeEquivalentTo(1))
	})

	It("and let work with fewer pods at a time keeps its claim", func() {
		w.checkpoints.Client = through(interceptor.Funcs{Create: func(
			ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption,
		) error {
			if job, ok := object.(*batchv1.Job); ok { // as a mutating policy does
				one := int32(1)
				job.Spec.Parallelism = &one
			}
			return c.Create(ctx, object, options...)
		}})
		begin(func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Backfill.Parallelism = 3 })
		for range 3 {
			w.clock.advance(watchEvery)
			w.passCheckpoint(child)
		}
		Expect(epoch()).To(BeEquivalentTo(1))
		patch(&w.jobs()[0], `{"spec":{"parallelism":0}}`)
		w.clock.advance(statusEvery)
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWorkerPending, "parallelism to 0")
	})

	It("and clear away as soon as it has ended is made again with a pause that grows, and says what the worker said", func() {
		begin(wrong)
		const passes = 20
		for range passes {
			for _, job := range w.jobs() {
				Expect(w.runWorker(&job)).To(MatchError(ContainSubstring("no-seven")))
				remove(&job)
			}
			w.clock.advance(watchEvery)
			w.passCheckpoint(child)
		}
		Expect(epoch()).To(BeNumerically("<=", 5), "at once, then after 10, 20 and 40 s")
		object, again := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, `verify "no-seven" finds 1 wrong rows`)
		Expect(again.RequeueAfter).To(BeNumerically(">", watchEvery))

		before := epoch()
		w.annotate(w.checkpoint(child), AnnotationRetry, w.clock.Now().UTC().Format(time.RFC3339))
		w.passCheckpoint(child)
		Expect(epoch()).To(Equal(before+1), "a person does not wait")
		w.clock.advance(watchEvery)
		w.sql(`UPDATE patients SET name_search = 'somebody' WHERE id = 7`)
		w.bring()
	})

	It("is replaced after its pause, and no later, where the cluster's clock is an hour ahead", func() {
		job := begin()
		w.clock.advance(time.Hour)
		w.failJob(job, 137)
		w.clock.advance(-time.Hour)
		_, again := w.passCheckpoint(child)
		Expect(again.RequeueAfter).To(Equal(shortestReplace))
		w.clock.advance(shortestReplace)
		w.passCheckpoint(child)
		Expect(epoch()).To(BeEquivalentTo(2))
	})

	It("is tried again once for each request of a person whose clock is behind, or who writes no time, and not again for the same one", func() {
		begin(wrong)
		w.runWorkers()
		behind := func(hours time.Duration) string {
			return w.clock.Now().Add(-hours * time.Hour).UTC().Format(time.RFC3339)
		}
		for n, request := range []string{behind(1), behind(2), "now; please", strings.Repeat("é", 50_000)} {
			w.passCheckpoint(child)
			w.clock.advance(statusEvery)
			w.annotate(w.schema(), AnnotationRetry, request)
			w.passCheckpoint(child)
			Expect(epoch()).To(BeEquivalentTo(n + 2))
			w.runWorkers()
			object, _ := w.passCheckpoint(child)
			expectStalled(object.Status.Conditions, v1alpha1.ReasonVerificationFailed, "no-seven")
			Expect(epoch()).To(BeEquivalentTo(n + 2))
		}
		Expect(suite.admin.Patch(w.ctx, w.schema(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`)))).To(Succeed())
		w.passCheckpoint(child)
		Expect(epoch()).To(BeEquivalentTo(5), "a request that is taken back is none")
	})

	It("is looked after where the events that explain it may not be read", func() {
		lacking := func() {
			w.newOperator()
			w.checkpoints.Live, w.schemas.Live = withoutEvents{suite.operator}, withoutEvents{suite.operator}
		}
		lacking()
		begin()
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWorkerPending, `cannot list resource "events"`)
		w.wipe()
		lacking() // it asks whether the events of barrier and Job were told
		w.bring()
	})
})

// podOf makes a Job's pod, at work, as Job controller and kubelet do.
func (w *world) podOf(job *batchv1.Job) *corev1.Pod {
	GinkgoHelper()
	controls := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.namespace, Name: job.Name + "-0-abcde",
		Labels: map[string]string{batchv1.ControllerUidLabel: string(job.UID)}, Finalizers: []string{batchv1.JobTrackingFinalizer},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID, Controller: &controls}},
	}}
	pod.Spec = job.Spec.Template.Spec
	pod.Spec.NodeName = "lost"
	Expect(suite.admin.Create(w.ctx, pod)).To(Succeed())
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: workerContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	Expect(suite.admin.Status().Update(w.ctx, pod)).To(Succeed())
	return pod
}

// withoutEvents is a reader that lacks a right.
type withoutEvents struct{ client.Reader }

func (r withoutEvents) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, events := list.(*corev1.EventList); events {
		return apierrors.NewForbidden(corev1.Resource("events"), "", errors.New(`User "manager" cannot list resource "events"`))
	}
	return r.Reader.List(ctx, list, options...)
}

var _ = Describe("What keeps the API server from doing what it is asked", func() {
	long := strings.Repeat("wörds ", 20_000)

	DescribeTable("stands in the status once it lasts, in its own words, and goes with it:",
		func(failure error, says string) {
			w := newWorld()
			failing := true
			refusing := through(interceptor.Funcs{Create: func(
				ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption,
			) error {
				if failing {
					return failure
				}
				return c.Create(ctx, object, options...)
			}})
			w.schemas.Client, w.checkpoints.Client = refusing, refusing
			w.apply(w.clinic(7))
			_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
			Expect(err).To(HaveOccurred(), "one failure is nothing to tell")
			Expect(readyReason(w.schema().Status.Conditions)).To(BeEmpty())
			w.clock.advance(troubleShown)
			object, again := w.pass()
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonMigrating, says)
			Expect(again.RequeueAfter).To(BeNumerically("<=", troubleRetry))

			failing = false
			w.pass()
			failing = true
			_, err = w.checkpoints.Reconcile(w.ctx, request(w.namespace, child))
			Expect(err).To(HaveOccurred())
			w.clock.advance(troubleShown)
			checkpoint, _ := w.passCheckpoint(child)
			expectWaiting(checkpoint.Status.Conditions, v1alpha1.ReasonBackfilling, says)

			failing = false
			w.bring()
			failing = true
			_, err = w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
			Expect(err).NotTo(HaveOccurred(), "at rest it is asked for nothing")
		},
		Entry("a webhook that is down",
			apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": `+long)), `failed calling webhook "policy.example.com"`),
		Entry("storage that is full", apierrors.NewRequestEntityTooLargeError("etcdserver: request is too large"), "request is too large"),
	)

	It("is asked again within half a minute, however long it lasted", func() {
		for longest, limiter := range map[time.Duration]interface {
			When(ctrl.Request) time.Duration
		}{
			longestRetry: retries(firstRetry, longestRetry), longestPodRetry: retries(hotGate, longestPodRetry),
		} {
			var last time.Duration
			for range 100 {
				last = limiter.When(request("shop", "clinic"))
			}
			Expect(last).To(Equal(longest))
			Expect(last).To(BeNumerically("<=", 30*time.Second))
		}
	})
})
