package operator

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/test/gitops"
)

var _ = Describe("A status that is taken away by hand whenever it says something new", func() {
	It("is rebuilt each time from the database and the Job, nothing is run twice, and then nothing is written any more", func(ctx context.Context) {
		c := newClinic(ctx)
		c.startOperator()
		wipers, stop := context.WithCancel(ctx)
		var all sync.WaitGroup
		var schema, checkpoint wiped
		all.Go(func() {
			defer GinkgoRecover()
			schema.wipe(wipers, &v1alpha1.SyncSchema{}, types.NamespacedName{Namespace: c.namespace, Name: "clinic"})
		})
		all.Go(func() {
			defer GinkgoRecover()
			checkpoint.wipe(wipers, &v1alpha1.BackfillCheckpoint{}, types.NamespacedName{Namespace: c.namespace, Name: "clinic-title-norm"})
		})
		c.apply(c.manifest(7, counting, ""))
		Eventually(func() bool { return c.jobsThere(ctx) && c.rowsDone(ctx) > 100 }).Should(BeTrue(), func() string { return c.story(ctx) })
		c.unthrottle(ctx)
		Eventually(func() int64 { return c.number(ctx, activated) }).Should(BeEquivalentTo(1), func() string { return c.story(ctx) })
		Eventually(schema.seen).Should(ContainElement("True GateOpen"))
		Eventually(checkpoint.seen).Should(ContainElement("True Activated"))
		stop()
		all.Wait()
		c.becomes(ctx, "True GateOpen")
		c.says(ctx, "True Activated", "")
		Expect(schema.seen()).To(ContainElement("False Backfilling"))
		Expect(len(checkpoint.seen())).To(BeNumerically(">=", 3), "%v", checkpoint.seen())
		Expect(c.number(ctx, `SELECT count(*) FROM todos WHERE title_norm = '1'`)).To(BeEquivalentTo(rows), "a row was lost or applied twice")
		Expect(c.number(ctx, `SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1))
		Expect(c.number(ctx, `SELECT count(*) FROM sync_barrier_history`)).To(BeEquivalentTo(1))
		Expect(c.jobs(ctx)).To(HaveLen(1))
		Expect(c.pods(ctx)).To(HaveLen(1))

		By("everything being at rest over some resyncs")
		Eventually(func() int32 { return c.jobs(ctx)[0].Status.Succeeded }).Should(BeEquivalentTo(1))
		version := func() string {
			return fmt.Sprint(c.schema(ctx).ResourceVersion, c.checkpoint(ctx).ResourceVersion, c.jobs(ctx)[0].ResourceVersion, c.text(ctx, rowVersions))
		}
		before := version()
		Consistently(version, 3*resync).Should(Equal(before))
	}, SpecTimeout(6*time.Minute))
})

// rowVersions changes with every write to one of our tables.
const rowVersions = `SELECT string_agg(t, ' ' ORDER BY t) FROM (
	SELECT 'checkpoint ' || xmin || ctid FROM sync_backfill_checkpoints
	UNION ALL SELECT 'progress ' || xmin || ctid FROM sync_backfill_progress
	UNION ALL SELECT 'definition ' || xmin || ctid FROM sync_backfill_definitions
	UNION ALL SELECT 'history ' || xmin || ctid FROM sync_barrier_history
	UNION ALL SELECT 'owner ' || xmin || ctid FROM sync_barrier_owner
	UNION ALL SELECT 'meta ' || xmin || ctid FROM sync_schema_meta
	UNION ALL SELECT 'fence ' || xmin || ctid FROM sync_writer_fence) AS rows(t)`

// wiped is what statuses said before they were taken away.
type wiped struct {
	mu    sync.Mutex
	kinds []string
}

func (w *wiped) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.kinds...)
}

// wipe takes the status of an object away each time that it says something else than before.
func (w *wiped) wipe(ctx context.Context, object client.Object, name types.NamespacedName) {
	last := ""
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if suite.admin.Get(ctx, name, object) != nil {
			continue // not made yet
		}
		Expect(gitops.Check(context.WithoutCancel(ctx), object)).To(Succeed())
		state := ""
		switch o := object.(type) {
		case *v1alpha1.SyncSchema:
			state = reason(o.Generation, o.Status.Conditions)
		case *v1alpha1.BackfillCheckpoint:
			state = reason(o.Generation, o.Status.Conditions)
		}
		if state == "" || state == last {
			continue
		}
		if suite.admin.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(`{"status":null}`))) == nil {
			last = state
			w.mu.Lock()
			w.kinds = append(w.kinds, state)
			w.mu.Unlock()
		}
	}
}
