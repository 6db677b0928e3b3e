//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// holds checks, at the end of a story that brought the clinic to a version, every promise that can be seen from outside.
func (c *clinic) holds(ctx context.Context, version int64) {
	GinkgoHelper()
	By("the checker: what the database says")
	Expect(c.number(ctx, `SELECT schema_version FROM sync_schema_meta`)).To(Equal(version))
	Expect(c.number(ctx, `SELECT count(*) FROM patients`)).To(BeNumerically(">=", c.patients))
	Expect(c.number(ctx, `SELECT count(*) FROM patients WHERE name_search IS DISTINCT FROM lower(name)`)).To(BeZero(),
		"rows whose derived value is not what its definition says")
	Expect(c.number(ctx, `SELECT count(*) FROM sync_backfill_checkpoints WHERE state <> 'activated'`)).To(BeZero())
	Expect(c.number(ctx, belowTheFence)).To(BeZero(), "commits behind the barrier of a program below its version")

	By("the checker: status equals database")
	schema := c.schema(ctx)
	Expect(schema.Status.StoredVersion).To(HaveValue(BeEquivalentTo(version)))
	Expect(schema.Status.GateOpen).To(HaveValue(BeTrue()))
	Expect(schema.Status.MinWriterVersion).To(HaveValue(BeEquivalentTo(c.number(ctx, `SELECT max(required_writer_version) FROM sync_writer_fence`))))
	for _, checkpoint := range c.checkpoints(ctx) {
		Eventually(func() v1alpha1.CheckpointState {
			for _, now := range c.checkpoints(ctx) {
				if now.UID == checkpoint.UID {
					return now.Status.State
				}
			}
			return ""
		}).Should(Equal(v1alpha1.StateActivated))
	}

	By("the checker: nothing is left over")
	Eventually(func() (active int32) {
		for _, job := range c.jobs(ctx) {
			active += job.Status.Active
		}
		return active
	}).Should(BeZero(), "Jobs that still work")
	for _, pod := range c.pods(ctx, workers) {
		Expect(pod.Status.Phase).To(Or(Equal(corev1.PodSucceeded), Equal(corev1.PodFailed)), pod.Name)
	}
	Expect(c.number(ctx, `SELECT count(*) FROM pg_prepared_xacts`)).To(BeZero())
	// Of the manager a pool may be open for a minute more. Of a worker nothing may be.
	Eventually(func() int64 { return c.number(ctx, workerSessions) }, time.Minute).Should(BeZero(), "sessions of workers")
	Eventually(func() int64 { return c.number(ctx, heldLocks) }).Should(BeZero(), "locks on the table of other sessions that do nothing")
}

const (
	// belowTheFence: raised in the history is the position in the log of each partition at the barrier.
	belowTheFence = `
		SELECT count(*)
		  FROM sync_commits c
		  JOIN sync_barrier_history h ON h.version = (SELECT max(version) FROM sync_barrier_history)
		 WHERE c.created_at_ms > h.applied_at_ms
		   AND coalesce(c.writer_version, 0) < h.min_writer_version`

	workerSessions = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'syncbarrier'`

	heldLocks = `
		SELECT count(*)
		  FROM pg_locks l
		  JOIN pg_stat_activity a USING (pid)
		 WHERE l.relation = 'patients'::regclass
		   AND a.pid <> pg_backend_pid()
		   AND a.state LIKE 'idle%'`
)
