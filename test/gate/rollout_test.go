package gate

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

const surgeAll = `strategy: {rollingUpdate: {maxSurge: 100%, maxUnavailable: 0}}`

var _ = Describe("A rollout", func() {
	It("of a Deployment that surges is held and released without losing a serving pod", func(ctx context.Context) {
		s := newShop(ctx)
		s.apply(workload("Deployment", "api", 3, 6, surgeAll))
		s.eventually(ctx, "api", func(c counts) bool { return c.serving == 3 }, "3 of version 6 serve")
		serving := s.sample(ctx, "api")

		By("applying version 7 of the schema and of the program, as one commit does")
		s.applySchema(7, "")
		s.apply(workload("Deployment", "api", 3, 7, surgeAll))
		s.eventually(ctx, "api", func(c counts) bool { return c.held["7"] == 3 }, "3 of version 7 are held")
		hold(ctx)
		now, err := s.count(ctx, "api")
		Expect(err).NotTo(HaveOccurred())
		Expect(now.held["7"]).To(Equal(3), "still held")
		Expect(s.ready(ctx)).To(Equal("False Backfilling"))
		Expect(s.answer(ctx, 7)).To(Equal(`{"open":false,"writable":false,"reason":"Backfilling"}`))
		Expect(serving.lowestSoFar()).To(Equal(3), "serving pods while version 7 is held")

		By("losing a pod of version 6 meanwhile")
		s.lose(ctx, "api", "6")
		s.eventually(ctx, "api", func(c counts) bool { return c.ready["6"] == 3 }, "its replacement serves")
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 2))

		By("letting the backfill go")
		s.letGo(ctx)
		s.eventually(ctx, "api", func(c counts) bool { return c.ready["7"] == 3 && c.serving == 3 }, "3 of version 7 serve, and nobody else")
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 3), "serving pods while the traffic was switched")
		Expect(s.answer(ctx, 7)).To(Equal(`{"open":true,"writable":true,"reason":"GateOpen"}`))

		By("rolling back to version 6, which the database no longer lets write")
		s.apply(workload("Deployment", "api", 3, 6, surgeAll))
		s.eventually(ctx, "api", func(c counts) bool { return c.held["6"] == 3 }, "version 6 is held out")
		hold(ctx)
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 3), "serving pods while version 6 is held out")
		s.apply(workload("Deployment", "api", 3, 7, surgeAll))
		s.eventually(ctx, "api", func(c counts) bool { return c.ready["7"] == 3 && c.held["6"] == 0 }, "forward again")
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 3))
	}, SpecTimeout(3*time.Minute))

	It("of a Deployment of 4 at the default surge loses one pod while it is held, is warned of, and heals when it is reverted", func(ctx context.Context) {
		s := newShop(ctx)
		s.apply(workload("Deployment", "api", 4, 6, ""))
		s.eventually(ctx, "api", func(c counts) bool { return c.serving == 4 }, "4 of version 6 serve")
		serving := s.sample(ctx, "api")
		s.applySchema(7, "")
		Eventually(func() bool { return s.migrated(ctx) }).Should(BeTrue())
		s.apply(workload("Deployment", "api", 4, 7, ""))
		s.eventually(ctx, "api", func(c counts) bool { return c.held["7"] == 2 }, "2 of version 7 are held")
		hold(ctx)
		Expect(serving.lowestSoFar()).To(Equal(3), "serving pods while version 7 is held")
		Eventually(func() []string { return s.warnings(ctx, "LosesCapacity") }).Should(ConsistOf("Deployment", "SyncSchema"))
		safety := meta.FindStatusCondition(s.schema(ctx).Status.Conditions, v1alpha1.ConditionWorkloadsSafe)
		Expect(safety).NotTo(BeNil())
		Expect(safety.Reason).To(Equal(v1alpha1.ReasonLosesCapacity))

		s.lose(ctx, "api", "6")
		s.eventually(ctx, "api", func(c counts) bool { return c.ready["6"] == 3 }, "its replacement serves")
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 2))

		By("reverting the program during the hold")
		s.apply(workload("Deployment", "api", 4, 6, ""))
		s.eventually(ctx, "api", func(c counts) bool { return c.ready["6"] == 4 && c.held["7"] == 0 }, "all 4 of version 6 serve")
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 3))
	}, SpecTimeout(3*time.Minute))

	DescribeTable("of a StatefulSet replaces pods in place, is warned of before the barrier, and goes on once the gate opens:",
		func(ctx context.Context, replicas, left int, reason string) {
			s := newShop(ctx)
			s.apply(workload("StatefulSet", "db", replicas, 6, "serviceName: db"))
			s.eventually(ctx, "db", func(c counts) bool { return c.serving == replicas }, "version 6 serves")
			serving := s.sample(ctx, "db")
			s.applySchema(7, "")
			Eventually(func() bool { return s.migrated(ctx) }).Should(BeTrue())
			Eventually(func() []string { return s.warnings(ctx, reason) }).Should(ConsistOf("StatefulSet", "SyncSchema"))
			Expect(serving.lowestSoFar()).To(Equal(replicas), "the barrier itself costs no pod")
			s.apply(workload("StatefulSet", "db", replicas, 7, "serviceName: db"))
			s.eventually(ctx, "db", func(c counts) bool { return c.held["7"] == 1 }, "one of version 7 is held")
			serving.lowestSoFar()
			hold(ctx)
			Expect(serving.lowestSoFar()).To(Equal(left), "serving pods while version 7 is held")
			now, err := s.count(ctx, "db")
			Expect(err).NotTo(HaveOccurred())
			Expect(now.serving).To(Equal(left), "not one less, and not one more")
			s.letGo(ctx)
			s.eventually(ctx, "db", func(c counts) bool { return c.ready["7"] == replicas }, "version 7 serves")
		},
		Entry("of 1, none serves meanwhile", SpecTimeout(3*time.Minute), 1, 0, "Outage"),
		Entry("of 3, two serve meanwhile", SpecTimeout(3*time.Minute), 3, 2, "LosesCapacity"),
	)

	It("of a StatefulSet changed after the gate is open never has one less than its controller takes", func(ctx context.Context) {
		s := newShop(ctx)
		s.apply(workload("StatefulSet", "db", 3, 6, "serviceName: db"))
		s.eventually(ctx, "db", func(c counts) bool { return c.serving == 3 }, "version 6 serves")
		serving := s.sample(ctx, "db")
		s.applySchema(7, `  gate: {mode: Enforce, olderPods: Keep}`)
		Eventually(func() bool { return s.migrated(ctx) }).Should(BeTrue())
		s.letGo(ctx)
		Expect(serving.lowestSoFar()).To(Equal(3))
		s.apply(workload("StatefulSet", "db", 3, 7, "serviceName: db"))
		s.eventually(ctx, "db", func(c counts) bool { return c.ready["7"] == 3 }, "version 7 serves")
		// A pod that is replaced between two samples is not seen to be away.
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 2))
	}, SpecTimeout(3*time.Minute))

	It("outlasts its progress deadline, of which there was a warning: a drain takes one serving pod at a time, and it ends by itself", func(ctx context.Context) {
		const rolling = `progressDeadlineSeconds: 5
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}`
		s := newShop(ctx)
		s.apply(workload("Deployment", "api", 3, 6, rolling))
		s.apply(`
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: api}
spec: {minAvailable: 2, unhealthyPodEvictionPolicy: AlwaysAllow, selector: {matchLabels: {app: api}}}
`)
		s.eventually(ctx, "api", func(c counts) bool { return c.serving == 3 }, "3 of version 6 serve")
		serving := s.sample(ctx, "api")
		s.applySchema(7, "")
		s.apply(workload("Deployment", "api", 3, 7, rolling))
		asked := s.deployment(ctx, "api").Generation
		s.eventually(ctx, "api", func(c counts) bool { return c.held["7"] == 1 }, "one of version 7 is held")
		Eventually(func() []string { return s.warnings(ctx, "ProgressDeadline") }).Should(ConsistOf("Deployment", "SyncSchema"))
		Eventually(func() string { return s.progress(ctx, "api") }).Should(Equal("False ProgressDeadlineExceeded"))
		hold(ctx)
		Expect(s.ready(ctx)).To(Equal("False Backfilling"))
		Expect(meta.FindStatusCondition(s.schema(ctx).Status.Conditions, v1alpha1.ConditionStalled)).To(BeNil(), "it waits, and has not failed")
		Expect(serving.lowestSoFar()).To(Equal(3), "serving pods long after the deadline")

		By("draining the nodes of serving pods")
		evicted, refused := s.evict(ctx, "api", "6")
		Expect(evicted).To(Equal(1))
		Expect(refused).To(Equal(2), "the budget lets one go at a time")
		s.eventually(ctx, "api", func(c counts) bool { return c.ready["6"] == 3 }, "the replacement of version 6 serves")
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 2))

		s.letGo(ctx)
		s.eventually(ctx, "api", func(c counts) bool { return c.ready["7"] == 3 && c.serving == 3 }, "version 7 serves, and nobody did anything")
		Eventually(func() string { return s.progress(ctx, "api") }).Should(Equal("True NewReplicaSetAvailable"))
		Expect(s.deployment(ctx, "api").Generation).To(Equal(asked), "nobody changed the Deployment")
	}, SpecTimeout(4*time.Minute))

	It("comes before the barrier with cutover WhenPodsWait: nobody is shut out until the new pods only wait for the gate", func(ctx context.Context) {
		s := newShop(ctx)
		s.apply(workload("Deployment", "api", 2, 6, surgeAll))
		s.eventually(ctx, "api", func(c counts) bool { return c.serving == 2 }, "version 6 serves")
		serving := s.sample(ctx, "api")
		s.applySchema(7, `  strategy: {cutover: WhenPodsWait}`)
		Eventually(func() string { return s.ready(ctx) }).Should(Equal("False WaitingForPods"))
		hold(ctx)
		Expect(s.migrated(ctx)).To(BeFalse(), "no pod of version 7 exists")
		s.apply(workload("Deployment", "api", 2, 7, surgeAll))
		Eventually(func() bool { return s.migrated(ctx) }).Should(BeTrue())
		now, err := s.count(ctx, "api")
		Expect(err).NotTo(HaveOccurred())
		Expect(now.held["7"]).To(Equal(2), "both were waiting when the barrier began")
		s.letGo(ctx)
		s.eventually(ctx, "api", func(c counts) bool { return c.ready["7"] == 2 && c.serving == 2 }, "version 7 serves")
		Expect(serving.lowestSoFar()).To(BeNumerically(">=", 2))
	}, SpecTimeout(3*time.Minute))
})
