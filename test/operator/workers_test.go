package operator

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// underWay is a clinic whose worker has filled some rows of version 7, slowly.
func underWay(ctx context.Context, backfill, more string) *clinic {
	GinkgoHelper()
	return underWayIn(ctx, newClinic(ctx), backfill, more)
}

func underWayIn(ctx context.Context, c *clinic, backfill, more string) *clinic {
	GinkgoHelper()
	c.startOperator()
	c.apply(c.manifest(7, backfill, more))
	Eventually(func() bool { return c.jobsThere(ctx) && c.rowsDone(ctx) > 0 }).Should(BeTrue(), func() string { return c.story(ctx) })
	return c
}

// jobsThere says that a Job was made, so that the tables of the work are there too.
func (c *clinic) jobsThere(ctx context.Context) bool { return len(c.jobs(ctx)) > 0 }

// says waits until the checkpoint is in a state of Ready, with a part of the message.
func (c *clinic) says(ctx context.Context, want, part string) {
	GinkgoHelper()
	Eventually(func() string {
		object := c.checkpoint(ctx)
		state := reason(object.Generation, object.Status.Conditions)
		for _, condition := range object.Status.Conditions {
			if condition.Type == "Ready" {
				state += ": " + condition.Message
			}
		}
		return state
	}).Should(And(HavePrefix(want), ContainSubstring(part)), func() string { return c.story(ctx) })
}

// theEnd waits for the open gate and checks that every row is right.
func (c *clinic) theEnd(ctx context.Context) {
	GinkgoHelper()
	c.unthrottle(ctx)
	c.becomes(ctx, "True GateOpen")
	Expect(c.number(ctx, activated)).To(BeEquivalentTo(1))
}

// counting adds to a column, so that a row which is applied twice shows.
const counting = "update: {table: todos, set: {title_norm: \"(coalesce(title_norm, '0')::int + 1)::text\"}}, batchRows: 50, maxRowsPerSecond: 100"

var _ = Describe("A worker", func() {
	It("that is evicted is replaced once it has ended, without being counted, and no row is lost or applied twice", func(ctx context.Context) {
		c := underWay(ctx, counting, "")
		job := c.jobs(ctx)[0]
		for range 2 {
			pod, done := c.runningPod(ctx), c.rowsDone(ctx)
			Expect(suite.admin.SubResource("eviction").Create(ctx, &pod, &policyv1.Eviction{})).To(Succeed())
			next := c.runningPodAfter(ctx, pod.UID)
			Eventually(func() int64 { return c.rowsDone(ctx) }).Should(BeNumerically(">", done))
			Expect(suite.kubelet.Logs(pod.UID)).To(ContainSubstring(`"exitCode":143`))
			Expect(next.Annotations).To(HaveKeyWithValue(batchv1.JobIndexFailureCountAnnotation, "0"))
		}
		Expect(c.rowsDone(ctx)).To(BeNumerically("<", rows), "the backfill was over before the evictions were")
		c.theEnd(ctx)
		Expect(c.number(ctx, `SELECT count(*) FROM todos WHERE title_norm = '1'`)).To(BeEquivalentTo(rows))
		jobs := c.jobs(ctx)
		Expect(jobs).To(HaveLen(1))
		Expect(jobs[0].UID).To(Equal(job.UID), "the Job was replaced: evictions were counted")
	}, SpecTimeout(6*time.Minute))

	It("goes on under a new claim at the cursor when its Job is deleted, and what it had is not done again", func(ctx context.Context) {
		c := underWay(ctx, counting, "")
		job, epoch := c.jobs(ctx)[0], c.number(ctx, `SELECT owner_epoch FROM sync_backfill_checkpoints`)
		Expect(suite.admin.Delete(ctx, &job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		Eventually(func() bool {
			jobs := c.jobs(ctx)
			return len(jobs) == 1 && jobs[0].UID != job.UID
		}).Should(BeTrue())
		c.theEnd(ctx)
		Expect(c.number(ctx, `SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(Equal(epoch + 1))
		Expect(c.number(ctx, `SELECT count(*) FROM todos WHERE title_norm = '1'`)).To(BeEquivalentTo(rows))
	}, SpecTimeout(6*time.Minute))

	It("that is one of several does its share, also when their number changes while they work", func(ctx context.Context) {
		c := underWay(ctx, counting+", parallelism: 1", "")
		job := c.jobs(ctx)[0]
		c.apply(c.manifest(7, counting+", parallelism: 3", ""))
		var next batchv1.Job
		Eventually(func() bool {
			jobs := c.jobs(ctx)
			if len(jobs) == 1 {
				next = jobs[0]
			}
			return next.UID != "" && next.UID != job.UID
		}).Should(BeTrue())
		Expect(*next.Spec.Completions).To(BeEquivalentTo(3))
		Eventually(func() int { return len(c.pods(ctx)) }).Should(BeNumerically(">=", 3))
		c.theEnd(ctx)
		Expect(c.number(ctx, `SELECT count(*) FROM todos WHERE title_norm = '1'`)).To(BeEquivalentTo(rows))
		Eventually(func() int32 {
			Expect(suite.admin.Get(ctx, client.ObjectKeyFromObject(&next), &next)).To(Succeed())
			return next.Status.Succeeded
		}).Should(BeEquivalentTo(3), "each index ends well")
	}, SpecTimeout(6*time.Minute))

	It("that loses its claim ends and leaves nothing behind; the next Job has a claim of its own", func(ctx context.Context) {
		c := underWay(ctx, counting, "")
		job, pod := c.jobs(ctx)[0], c.runningPod(ctx)
		taken, err := exec.CommandContext(ctx, c.program(), "checkpoint", "claim", "title-norm", "--database", c.dsn).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(taken))
		Eventually(func() string { return suite.kubelet.Logs(pod.UID) }).Should(ContainSubstring(`"exitCode":10`))
		Eventually(func() bool {
			for _, found := range c.jobs(ctx) {
				if found.UID != job.UID {
					return true
				}
			}
			return false
		}).Should(BeTrue())
		c.theEnd(ctx)
		Expect(c.number(ctx, `SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(3))
		Expect(c.number(ctx, `SELECT count(*) FROM todos WHERE title_norm = '1'`)).To(BeEquivalentTo(rows))
		Expect(c.rowsDone(ctx)).To(BeEquivalentTo(rows))
	}, SpecTimeout(6*time.Minute))

	It("of the operator before it is left to finish its work", func(ctx context.Context) {
		c := underWay(ctx, counting, "")
		job := c.jobs(ctx)[0]
		c.stopOperator()
		c.startOperatorOf("registry.example/syncbarrier:next")
		done := c.rowsDone(ctx)
		Eventually(func() int64 { return c.rowsDone(ctx) }).Should(BeNumerically(">", done))
		c.theEnd(ctx)
		jobs := c.jobs(ctx)
		Expect(jobs).To(HaveLen(1))
		Expect(jobs[0].UID).To(Equal(job.UID))
		Expect(jobs[0].Spec.Template.Spec.Containers[0].Image).To(Equal(image))
	}, SpecTimeout(6*time.Minute))

	It("takes a rotated password from its mounted Secret and keeps its pod", func(ctx context.Context) {
		c := underWay(ctx, lower(100), "")
		role := testdb.Role(GinkgoTB(), c.dsn, "owner")
		c.sql(ctx, fmt.Sprintf(`ALTER ROLE %q SUPERUSER`, testdb.RoleName(GinkgoTB(), role)))
		c.writeSecret(ctx, role)
		pod := c.runningPod(ctx)
		c.sql(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'syncbarrier%' AND datname = current_database()`)
		Eventually(func() int64 {
			return c.number(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'syncbarrier' AND usename = $1`, testdb.RoleName(GinkgoTB(), role))
		}).Should(BeNumerically(">", 0), "the worker came back as another user:\n%s", suite.kubelet.Logs(pod.UID))
		c.theEnd(ctx)
		Expect(c.number(ctx, wrongRows)).To(BeZero())
		Expect(c.pods(ctx)).To(HaveLen(1))
		Expect(c.pods(ctx)[0].UID).To(Equal(pod.UID))
		c.expectNoPassword(ctx)
	}, SpecTimeout(6*time.Minute))

	It("whose SQL fails on a row ends its Job at once, and the key is named to a person", func(ctx context.Context) {
		c := newClinic(ctx)
		c.startOperator()
		c.apply(c.manifest(7, `update: {table: todos, set: {title_norm: "(1 / (id - 17))::text"}}, batchRows: 10`, ""))
		c.says(ctx, "False InvalidSQL", "17")
		Expect(c.jobs(ctx)).To(HaveLen(1))
		Expect(c.pods(ctx)).To(HaveLen(1), "a permanent failure was tried again")
		Expect(c.number(ctx, `SELECT count(*) FROM todos WHERE title_norm IS NOT NULL`)).To(BeNumerically(">=", 10), "earlier batches are kept")
		c.becomes(ctx, "False InvalidSQL")
	}, SpecTimeout(6*time.Minute))

	It("that cannot start says why in the cluster's own words", func(ctx context.Context) {
		c := newClinic(ctx)
		c.startOperatorOf("registry.example/missing:1")
		c.apply(c.manifest(7, lower(0), ""))
		c.says(ctx, "False WorkerPending", `ImagePullBackOff: Back-off pulling image "registry.example/missing:1"`)

		By("a quota that refuses its pods")
		c.stopOperator()
		c.startOperator()
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "small"}}
		quota.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
		quota.Status.Hard = quota.Spec.Hard
		Expect(suite.admin.Create(ctx, quota)).To(Succeed())
		quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
		Expect(suite.admin.Status().Update(ctx, quota)).To(Succeed())
		Expect(suite.admin.DeleteAllOf(ctx, &batchv1.Job{}, client.InNamespace(c.namespace), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		c.says(ctx, "False WorkerPending", "exceeded quota: small")

		By("both being put right")
		Expect(suite.admin.Delete(ctx, quota)).To(Succeed())
		c.theEnd(ctx)
	}, SpecTimeout(6*time.Minute))

	It("is refused before anything has happened where its template breaks what the work depends on", func(ctx context.Context) {
		c := newClinic(ctx)
		c.startOperator()
		c.apply(c.manifest(7, lower(0), `
  worker: {template: {spec: {restartPolicy: OnFailure}}}
`))
		c.becomes(ctx, "False InvalidSpec")
		Expect(c.number(ctx, `SELECT count(*) FROM pg_tables WHERE tablename LIKE 'sync%'`)).To(BeZero())
		c.apply(c.manifest(7, lower(0), `
  worker: {template: {spec: {volumes: [{name: node, hostPath: {path: /}}]}}}
`))
		c.becomes(ctx, "False InvalidSpec")
		Expect(strings.Join(c.messages(ctx), "\n")).To(ContainSubstring("restricted volume type \"hostPath\""))
		c.apply(c.manifest(7, lower(0), `
  worker: {template: {spec: {containers: [{name: worker, resources: {requests: {cpu: "5"}}}]}}}
`))
		c.becomes(ctx, "False InvalidSpec")
		Expect(strings.Join(c.messages(ctx), "\n")).To(And(ContainSubstring("spec.worker.template: the API server refuses"), ContainSubstring("must be less than or equal to cpu limit")))
		Expect(c.number(ctx, `SELECT count(*) FROM pg_tables WHERE tablename LIKE 'sync%'`)).To(BeZero())
	}, SpecTimeout(6*time.Minute))
})

// messages are those of the schema's conditions.
func (c *clinic) messages(ctx context.Context) (all []string) {
	for _, condition := range c.schema(ctx).Status.Conditions {
		all = append(all, condition.Message)
	}
	return all
}

// runningPod is the one pod whose container runs and that nobody is ending.
func (c *clinic) runningPod(ctx context.Context) corev1.Pod {
	GinkgoHelper()
	return c.runningPodAfter(ctx, "")
}

// runningPodAfter is the same, but for a pod that was there before. The Job controller waits before it replaces one.
func (c *clinic) runningPodAfter(ctx context.Context, before types.UID) (running corev1.Pod) {
	GinkgoHelper()
	Eventually(func() int {
		count := 0
		for _, pod := range c.pods(ctx) {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && pod.UID != before {
				running = pod
				count++
			}
		}
		return count
	}).Should(Equal(1))
	return running
}
