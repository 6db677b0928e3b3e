package controllers

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("The checkpoints of a SyncSchema", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	named := func(name string, change ...func(*v1alpha1.SyncSchema)) *v1alpha1.SyncSchema {
		return w.clinic(7, append(change, func(s *v1alpha1.SyncSchema) { s.Name = name })...)
	}
	look := func(name string) *v1alpha1.SyncSchema {
		GinkgoHelper()
		_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, name))
		Expect(err).NotTo(HaveOccurred())
		var object v1alpha1.SyncSchema
		Expect(suite.admin.Get(w.ctx, types.NamespacedName{Namespace: w.namespace, Name: name}, &object)).To(Succeed())
		checkStatus(w.ctx, &object)
		return &object
	}

	It("have objects of their own also where schema and checkpoint of another one make the same name", func() {
		w.sql(`CREATE SCHEMA other`)
		w.sql(`CREATE TABLE other.patients (LIKE public.patients INCLUDING ALL)`)
		w.apply(w.clinic(7))
		w.bring()
		w.apply(named("clinic-name", func(s *v1alpha1.SyncSchema) {
			s.Spec.Database.Postgres.Schema, s.Spec.Checkpoints[0].Name = "other", "search"
		}))
		for range 2 {
			object := look("clinic-name")
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "search")
			w.clock.advance(statusEvery)
		}
		var all v1alpha1.BackfillCheckpointList
		Expect(suite.admin.List(w.ctx, &all, client.InNamespace(w.namespace))).To(Succeed())
		Expect(all.Items).To(ConsistOf(
			And(HaveField("Name", child), HaveField("Spec.SchemaRef.Name", "clinic")),
			And(HaveField("Name", MatchRegexp(`^clinic-name-search-[0-9a-f]{8}$`)), HaveField("Spec.SchemaRef.Name", "clinic-name")),
		))
	})

	It("claim nothing of what another SyncSchema brought about in the same database", func() {
		w.apply(named("rival", func(s *v1alpha1.SyncSchema) {
			s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverOnApproval}
		}))
		look("rival") // its checkpoint is there before the database belongs to the other
		w.apply(w.clinic(7))
		w.pass()
		w.passCheckpoint(child)
		w.runWorkers()
		for range 2 {
			object, _ := w.passCheckpoint("rival-name-search")
			expectStalled(object.Status.Conditions, v1alpha1.ReasonConflict, "managed by "+suite.identity+"/"+w.namespace+"/clinic")
			w.clock.advance(statusEvery)
		}
		Expect(look("rival").Status.Conditions).To(ContainElement(HaveField("Reason", v1alpha1.ReasonConflict)))
		object, _ := w.passCheckpoint(child)
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated))
	})

	It("that are being deleted and kept by somebody's finalizer are named", func() {
		w.apply(w.clinic(7))
		w.pass()
		kept := w.checkpoint(child)
		kept.Finalizers = []string{"example.com/keep"}
		Expect(suite.admin.Update(w.ctx, kept)).To(Succeed())
		Expect(suite.admin.Delete(w.ctx, kept)).To(Succeed())
		w.clock.advance(statusEvery)
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "BackfillCheckpoint "+child+" is being deleted and kept by its finalizers (example.com/keep)")
		kept = w.checkpoint(child)
		kept.Finalizers = nil
		Expect(suite.admin.Update(w.ctx, kept)).To(Succeed())
		w.bring()
	})

	It("are not made anew again and again where the API server keeps something else than their entry", func() {
		changing, made := true, 0
		w.schemas.Client = through(interceptor.Funcs{Create: func(
			ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption,
		) error {
			if checkpoint, ok := object.(*v1alpha1.BackfillCheckpoint); ok && changing { // as a policy, or a definition without the field, does
				checkpoint.Spec.Verify = nil
			}
			if !isDryRun(options) {
				made++
			}
			return c.Create(ctx, object, options...)
		}})
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Suspend = true }))
		w.pass()
		for range 3 {
			w.clock.advance(statusEvery)
			object, _ := w.pass()
			expectStalled(object.Status.Conditions, v1alpha1.ReasonInvalidSpec, `does not keep BackfillCheckpoint `+child+` as the entry says`)
		}
		Expect(made).To(Equal(1))
		changing = false
		w.apply(w.clinic(7))
		w.bring()
	})
})
