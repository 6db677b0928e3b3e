package controllers

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// through gives the operator's client with something in between.
func through(funcs interceptor.Funcs) client.Client {
	return interceptor.NewClient(suite.operator, funcs)
}

func isDryRun(options []client.CreateOption) bool {
	return len((&client.CreateOptions{}).ApplyOptions(options).DryRun) > 0
}

var _ = Describe("Trouble with the API server", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	counting := func(s *v1alpha1.SyncSchema) {
		s.Spec.Migrations = []v1alpha1.Migration{{Version: 7, SQL: "CREATE TABLE once (i int)"}}
	}

	DescribeTable("after the database committed runs nothing twice, and the status catches up:",
		func(failures int, failure error) {
			left := failures
			w.schemas.Client = through(interceptor.Funcs{SubResourceApply: func(
				ctx context.Context, c client.Client, sub string, object runtime.ApplyConfiguration, options ...client.SubResourceApplyOption,
			) error {
				if left > 0 {
					left--
					return failure
				}
				return c.SubResource(sub).Apply(ctx, object, options...)
			}})
			w.apply(w.clinic(7, counting))
			for range failures {
				result, err := w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
				Expect(err != nil || result.RequeueAfter == conflictRetry).To(BeTrue(), "it is looked at again soon")
			}
			Expect(w.number(`SELECT schema_version FROM sync_schema_meta`)).To(BeEquivalentTo(7))
			object, _ := w.pass()
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "")
			w.bring()
			Expect(w.number(`SELECT count(*) FROM sync_barrier_history`)).To(BeEquivalentTo(1))
		},
		Entry("a conflict", 1, apierrors.NewConflict(schema.GroupResource{Resource: "syncschemas"}, "clinic", errors.New("changed"))),
		Entry("an API server that is not there for a while", 5, apierrors.NewServiceUnavailable("away")),
	)

	It("between a claim and its Job takes the same claim up again", func() {
		failing := true
		w.checkpoints.Client = through(interceptor.Funcs{Create: func(
			ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption,
		) error {
			if _, job := object.(*batchv1.Job); job && failing && !isDryRun(options) {
				return apierrors.NewServiceUnavailable("away")
			}
			return c.Create(ctx, object, options...)
		}})
		w.apply(w.clinic(7))
		w.pass()
		for range 3 {
			_, err := w.checkpoints.Reconcile(w.ctx, request(w.namespace, child))
			Expect(err).To(HaveOccurred())
		}
		failing = false
		w.bring()
		Expect(w.number(`SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1))
	})

	It("a cache that lags behind makes no second Job, no second child and no second event", func() {
		stale := &lagging{}
		w.schemas.Client, w.checkpoints.Client = stale.client(), stale.client()
		w.apply(w.clinic(7))
		for range 5 {
			_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
			Expect(err).NotTo(HaveOccurred())
		}
		stale.refresh()
		for range 10 {
			_, err := w.checkpoints.Reconcile(w.ctx, request(w.namespace, child))
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(w.jobs()).To(HaveLen(1))
		Expect(w.number(`SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1))
		Expect(w.events.of("JobCreated")).To(Equal(1))
		Expect(w.events.of(v1alpha1.ReasonMigrated)).To(Equal(1))
		Expect(w.events.of(v1alpha1.ReasonBackfilling)).To(Equal(2), "one of the schema, one of the checkpoint: %v", w.events.list)
	})

	It("that is killed while the barrier's SQL runs costs no work: the next pass agrees with what was committed", func() {
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Migrations = []v1alpha1.Migration{{Version: 7, SQL: "CREATE TABLE once (i int); SELECT pg_sleep(2)"}}
		}))
		ended := make(chan error, 1)
		go func() {
			_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
			ended <- err
		}()
		w.awaitSleeper()
		suite.cluster.KillAPIServer()
		var err error
		Eventually(ended, time.Minute).Should(Receive(&err))
		suite.cluster.RestartAPIServer()
		Expect(err).To(HaveOccurred())
		w.bring()
		Expect(w.number(`SELECT count(*) FROM sync_barrier_history`)).To(BeEquivalentTo(1))
	})
})

var _ = Describe("An operator that loses its lease", func() {
	It("rolls its barrier back within two seconds, and the next one applies it once", func() {
		w := newWorld()
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Migrations = []v1alpha1.Migration{{Version: 7, SQL: "CREATE TABLE once (i int); SELECT pg_sleep(20)"}}
		}))
		ctx, lose := context.WithCancel(w.ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := w.schemas.Reconcile(ctx, request(w.namespace, "clinic"))
			ended <- err
		}()
		w.awaitSleeper()
		lose()
		Eventually(ended, 2*time.Second).Should(Receive())
		Eventually(func() int64 { return w.sleepers() }, 2*time.Second).Should(BeZero())
		Expect(w.number(`SELECT count(*) FROM pg_tables WHERE tablename = 'once'`)).To(BeZero())
		Expect(w.schema().Status.Conditions).To(BeEmpty(), "a cancelled pass says nothing")

		w.newOperator()
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Migrations = []v1alpha1.Migration{{Version: 7, SQL: "CREATE TABLE once (i int)"}}
		}))
		w.bring()
	})

	It("eight operators that apply the same version at once run its SQL once", func() {
		w := newWorld()
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Migrations = []v1alpha1.Migration{{Version: 7, SQL: "CREATE TABLE once (i int)"}}
		}))
		var all sync.WaitGroup
		for range 8 {
			databases := NewDatabases(openDatabase, w.clock)
			DeferCleanup(databases.Close)
			other := &SyncSchemaReconciler{
				Client: suite.operator, Live: suite.operator, Databases: databases, Clock: w.clock, Cluster: suite.identity, Image: "x",
			}
			all.Go(func() {
				defer GinkgoRecover()
				_, err := other.Reconcile(w.ctx, request(w.namespace, "clinic"))
				Expect(err).NotTo(HaveOccurred())
			})
		}
		all.Wait()
		w.bring()
		Expect(w.number(`SELECT count(*) FROM sync_barrier_history`)).To(BeEquivalentTo(1))
		Expect(w.number(`SELECT count(*) FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1))
	})
})

// awaitSleeper waits until the barrier's SQL runs.
func (w *world) awaitSleeper() {
	GinkgoHelper()
	Eventually(w.sleepers, 30*time.Second, 20*time.Millisecond).Should(BeEquivalentTo(1))
}

func (w *world) sleepers() int64 {
	GinkgoHelper()
	return w.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`)
}

// lagging shows objects as they were when they were first read, until refresh, as a cache does that has not heard of later writes.
type lagging struct {
	mu    sync.Mutex
	gets  map[string]runtime.Object
	lists map[string]runtime.Object
}

func (l *lagging) refresh() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gets, l.lists = nil, nil
}

func (l *lagging) client() client.Client {
	return through(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			name := key.String() + kindOf(object)
			if l.gets == nil {
				l.gets = map[string]runtime.Object{}
			}
			if _, seen := l.gets[name]; !seen {
				if err := c.Get(ctx, key, object, options...); err != nil {
					return err
				}
				l.gets[name] = object.DeepCopyObject()
			}
			return copyInto(l.gets[name], object)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.lists == nil {
				l.lists = map[string]runtime.Object{}
			}
			name := kindOf(list)
			if _, seen := l.lists[name]; !seen {
				if err := c.List(ctx, list, options...); err != nil {
					return err
				}
				l.lists[name] = list.DeepCopyObject()
			}
			return copyInto(l.lists[name], list)
		},
	})
}

func kindOf(object runtime.Object) string { return reflect.TypeOf(object).String() }

func copyInto(from, to runtime.Object) error {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from.DeepCopyObject()).Elem())
	return nil
}
