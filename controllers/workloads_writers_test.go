package controllers

import (
	"context"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// plannedStore is a real Store that counts the plans for which somebody looked at the writers.
type plannedStore struct {
	storage.Store
	plans *plans
}

type plans struct {
	mu           sync.Mutex
	all, sampled int
}

func (s *plannedStore) Plan(ctx context.Context, target storage.Target) (storage.Plan, error) {
	s.plans.mu.Lock()
	s.plans.all++
	if !target.WritersKnown {
		s.plans.sampled++
	}
	s.plans.mu.Unlock()
	return s.Store.Plan(ctx, target)
}

var _ = Describe("Who writes to the sources without a version", func() {
	captured := func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Sources[0].Changes = v1alpha1.ChangesCapture }

	It("is shown before the barrier of captured sources, also where no pod is gated", func() {
		w := newWorld()
		w.apply(w.clinic(6))
		w.bring()
		release := w.hold()
		w.apply(w.clinic(7, captured))
		object, _ := w.pass()
		writers := condition(object, v1alpha1.ConditionUnversionedWriters)
		Expect(writers).NotTo(BeNil(), describeConditions(object.Status.Conditions))
		Expect(writers.Message).To(ContainSubstring("write to patients without a version"))
		release()
		w.clock.advance(time.Minute)
		w.bring()
		object, _ = w.pass()
		Expect(condition(object, v1alpha1.ConditionUnversionedWriters)).To(BeNil())
	})

	It("is looked for once for a spec, however often its plan is made", func() {
		w := newWorld()
		counted := &plans{}
		w.schemas.Databases = NewDatabases(wrapping(func(store storage.Store) storage.Store { return &plannedStore{store, counted} }), w.clock)
		DeferCleanup(w.schemas.Databases.Close)
		w.apply(w.clinic(6))
		w.bring()
		waits := func(s *v1alpha1.SyncSchema) {
			s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverOnApproval}
		}
		release := w.hold()
		defer release()
		w.apply(w.clinic(7, waits))
		for range 4 {
			object, _ := w.pass()
			Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonApprovalPending))
			Expect(condition(object, v1alpha1.ConditionUnversionedWriters)).NotTo(BeNil(), "what was found is kept")
		}
		Expect(counted.all).To(Equal(4), "the plan itself is made each time: it must be the one that stands")
		Expect(counted.sampled).To(Equal(1))
		w.apply(w.clinic(7, waits, func(s *v1alpha1.SyncSchema) {
			s.Spec.Suspend = false
			s.Spec.Lock = &v1alpha1.Lock{TimeoutMilliseconds: 500}
		}))
		w.pass()
		Expect(counted.sampled).To(Equal(2), "another spec")
	})
})
