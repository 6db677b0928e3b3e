package controllers

import (
	"context"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// gateCalls counts what is asked of the Stores of a spec: the number of schemas of each read, in order.
type gateCalls struct {
	mu    sync.Mutex
	reads []int
}

func (c *gateCalls) note(schemas int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = append(c.reads, schemas)
}

func (c *gateCalls) take() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	reads := c.reads
	c.reads = nil
	return reads
}

// countedStore is a real Store that counts.
type countedStore struct {
	storage.Store
	calls *gateCalls
}

func (s *countedStore) ReadServeGate(ctx context.Context, running int64) (storage.ServeGate, error) {
	s.calls.note(1)
	return s.Store.ReadServeGate(ctx, running)
}

func (s *countedStore) ReadServeGates(ctx context.Context, schemas []string) ([]storage.ServeGate, error) {
	s.calls.note(len(schemas))
	return s.Store.(storage.ServeGatesOf).ReadServeGates(ctx, schemas)
}

var _ = Describe("Reading gates", func() {
	var w *world
	var gates *Gates
	calls := &gateCalls{}
	in := func(name string) *v1alpha1.SyncSchema {
		return w.clinic(6, func(s *v1alpha1.SyncSchema) {
			s.Name = name
			s.Spec.Database.Postgres.Schema = name
		})
	}
	BeforeEach(func() {
		w = newWorld()
		databases := NewDatabases(wrapping(func(store storage.Store) storage.Store { return &countedStore{store, calls} }), w.clock)
		DeferCleanup(databases.Close)
		gates = &Gates{Live: suite.operator, Databases: databases, Clock: w.clock}
		for _, name := range []string{"billing", "wards"} {
			w.sql(`CREATE SCHEMA ` + name)
			w.sql(`CREATE TABLE ` + name + `.patients (LIKE public.patients INCLUDING ALL)`)
			w.apply(in(name))
			_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, name))
			Expect(err).NotTo(HaveOccurred())
		}
		calls.take()
	})
	readBoth := func() {
		GinkgoHelper()
		for _, name := range []string{"billing", "wards"} {
			read := gates.Read(w.ctx, in(name), hotGate)
			Expect(read.Problem).To(BeEmpty())
			Expect(read.Gate.Database.Schema).To(Equal(name))
			Expect(read.Gate.For(6).Verdict().Open).To(BeTrue())
		}
	}

	It("takes one statement for all schemas of a database, and none while the last answer is young", func() {
		readBoth()
		calls.take()
		for range 3 {
			w.clock.advance(hotGate)
			readBoth()
			Expect(calls.take()).To(Equal([]int{2}))
			w.clock.advance(hotGate / 2)
			readBoth()
			Expect(calls.take()).To(BeEmpty())
		}
	})

	It("takes one statement for many that ask at the same time", func() {
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				defer GinkgoRecover()
				Expect(gates.Read(w.ctx, in("billing"), hotGate).Gate).NotTo(BeNil())
			})
		}
		all.Wait()
		Expect(calls.take()).To(Equal([]int{1}))
	})

	It("gives the others their answers when one schema cannot be read, and asks for that one alone from then on", func() {
		w.sql(`CREATE SCHEMA empty`)
		ask := func() {
			GinkgoHelper()
			readBoth()
			read := gates.Read(w.ctx, in("empty"), hotGate)
			Expect(read.Gate.Catalog).To(BeFalse())
			Expect(read.Gate.For(6).Verdict().Open).To(BeFalse())
		}
		ask()
		w.clock.advance(hotGate)
		ask()
		calls.take()
		w.clock.advance(hotGate)
		ask()
		reads := calls.take()
		slices.Sort(reads)
		Expect(reads).To(Equal([]int{1, 2}))

		By("taking the right to one of them away")
		w.sql(`ALTER TABLE wards.sync_writer_fence RENAME TO gone`)
		w.clock.advance(hotGate)
		Expect(gates.Read(w.ctx, in("billing"), hotGate).Gate).NotTo(BeNil())
		wards := gates.Read(w.ctx, in("wards"), hotGate)
		Expect(wards.Gate == nil || !wards.Gate.For(6).Verdict().Open).To(BeTrue())
		w.sql(`ALTER TABLE wards.gone RENAME TO sync_writer_fence`)
		w.clock.advance(time.Second)
		readBoth()
	})

	It("does not give an older answer for a read that failed", func() {
		readBoth()
		w.secret("clinic-app", map[string]string{"uri": "postgres://nobody:secret-word@127.0.0.1:1/nothing"})
		w.clock.advance(addressKept)
		read := gates.Read(w.ctx, in("billing"), hotGate)
		Expect(read.Gate).To(BeNil())
		Expect(read.Problem).NotTo(BeEmpty())
		Expect(read.Problem).NotTo(ContainSubstring("secret-word"))
	})
})
