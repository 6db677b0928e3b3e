package operator

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	activated = `SELECT count(*) FROM sync_backfill_checkpoints WHERE state = 'activated'`
	wrongRows = `SELECT count(*) FROM todos WHERE title_norm IS DISTINCT FROM lower(title)`
	history   = `SELECT string_agg(h::text, E'\n' ORDER BY version) FROM sync_barrier_history h`
	everyTodo = `SELECT md5(string_agg(t::text, E'\n' ORDER BY id)) FROM todos t`
)

var _ = Describe("The whole life of a schema", func() {
	It("goes from version 6 to 7 with its backfill, back in Git, forward, away and again", func(ctx context.Context) {
		c := newClinic(ctx)
		c.startOperator()

		By("version 6 being taken on")
		c.apply(c.manifest(6, "", ""))
		c.becomes(ctx, "True GateOpen")
		Expect(*c.schema(ctx).Status.StoredVersion).To(BeEquivalentTo(6))
		c.show("version 6 is taken on")
		Expect(c.commit(ctx, 6, 1)).To(Succeed())

		By("version 7 being applied: a barrier, a Job, a worker")
		c.apply(c.manifest(7, lower(100), ""))
		Eventually(func() int64 { return c.number(ctx, `SELECT schema_version FROM sync_schema_meta`) }).Should(BeEquivalentTo(7))
		Expect(c.commit(ctx, 6, 2)).To(MatchError(ContainSubstring("writer_fence_rejected")))
		Expect(c.commit(ctx, 7, 3)).To(Succeed())
		Eventually(func() int64 { return c.rowsDone(ctx) }).Should(BeNumerically(">", 0), func() string { return c.story(ctx) })
		Expect(c.jobs(ctx)).To(HaveLen(1))
		job := c.jobs(ctx)[0]
		Expect(c.schema(ctx).Status.GateOpen).NotTo(HaveValue(BeTrue()))

		By("progress being shown as the database counts it")
		var shown int64
		Eventually(func() int64 {
			if progress := c.checkpoint(ctx).Status.Rows; progress != nil {
				shown = progress.Done
			}
			return shown
		}).Should(BeNumerically(">", 0))
		Expect(shown).To(BeNumerically("<=", c.rowsDone(ctx)))
		c.show("version 7 is applied, and its worker is at work")

		By("the operator being stopped: the backfill ends and activates all the same")
		c.stopOperator()
		Expect(c.rowsDone(ctx)).To(BeNumerically("<", rows), "the backfill was over before the operator was stopped")
		c.unthrottle(ctx)
		Eventually(func() int64 { return c.number(ctx, activated) }).Should(BeEquivalentTo(1), suite.kubelet.AllLogs())
		Expect(c.number(ctx, wrongRows)).To(BeZero())
		Eventually(func() bool {
			var found batchv1.Job
			Expect(suite.admin.Get(ctx, client.ObjectKeyFromObject(&job), &found)).To(Succeed())
			return found.Status.Succeeded == 1 && found.Status.CompletionTime != nil
		}).Should(BeTrue(), "the Job is complete")
		pods := c.pods(ctx)
		Expect(pods).To(HaveLen(1))
		Expect(pods[0].Status.Phase).To(Equal(corev1.PodSucceeded))
		Expect(suite.kubelet.Logs(pods[0].UID)).To(ContainSubstring("the checkpoint is activated"))

		By("the operator being back: the gate is open")
		c.startOperator()
		c.becomes(ctx, "True GateOpen")
		Expect(*c.schema(ctx).Status.GateOpen).To(BeTrue())
		Eventually(func() string {
			object := c.checkpoint(ctx)
			return reason(object.Generation, object.Status.Conditions)
		}).Should(Equal("True Activated"))
		c.show("the worker is done, and the gate is open")

		By("the status being wiped")
		before, rowsBefore := c.text(ctx, history), c.text(ctx, everyTodo)
		for _, what := range []string{"syncschema/clinic", "backfillcheckpoint/clinic-title-norm"} {
			_, err := suite.cluster.Kubectl("", "patch", "-n", c.namespace, what, "--subresource=status", "--type=json", `-p=[{"op":"remove","path":"/status"}]`)
			Expect(err).NotTo(HaveOccurred())
		}
		c.show("the status is taken away")
		c.becomes(ctx, "True GateOpen")
		c.show("it is rebuilt")

		By("Git going back to version 6, and forward again")
		c.apply(c.manifest(6, "", ""))
		c.becomes(ctx, "False VersionRegression")
		c.show("Git went back to version 6")
		Expect(c.number(ctx, `SELECT schema_version FROM sync_schema_meta`)).To(BeEquivalentTo(7))
		c.apply(c.manifest(7, lower(0), ""))
		c.becomes(ctx, "True GateOpen")
		c.show("Git went forward again")

		By("the Job being cleaned up: nobody makes another")
		Expect(suite.admin.Delete(ctx, &job, client.PropagationPolicy("Foreground"))).To(Succeed())
		Eventually(func() []batchv1.Job { return c.jobs(ctx) }).Should(BeEmpty())

		By("the object being deleted: the database keeps everything")
		Expect(suite.admin.Delete(ctx, c.schema(ctx), client.PropagationPolicy("Foreground"))).To(Succeed())
		Eventually(func() types.UID { return c.checkpoint(ctx).UID }).Should(BeEmpty(), "the checkpoint goes with it")
		c.show("the object is deleted")
		Expect(c.commit(ctx, 6, 4)).To(MatchError(ContainSubstring("writer_fence_rejected")))

		By("the object being made again, with an empty status")
		c.apply(c.manifest(7, lower(0), ""))
		c.becomes(ctx, "True GateOpen")
		c.show("the object is made again")
		Consistently(func() []batchv1.Job { return c.jobs(ctx) }, 2*time.Second).Should(BeEmpty(), "nothing is run twice")
		Expect(c.text(ctx, history)).To(Equal(before))
		Expect(c.text(ctx, everyTodo)).To(Equal(rowsBefore))
		Expect(c.number(ctx, wrongRows)).To(BeZero())

		By("no password being anywhere")
		c.expectNoPassword(ctx)
	}, SpecTimeout(6*time.Minute))
})

// expectNoPassword looks for the database's password in everything that people see.
func (c *clinic) expectNoPassword(ctx context.Context) {
	GinkgoHelper()
	var secret corev1.Secret
	Expect(suite.admin.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: "clinic-app"}, &secret)).To(Succeed())
	password := string(secret.Data["password"])
	Expect(password).NotTo(BeEmpty())
	seen := string(c.log.Contents()) + suite.kubelet.AllLogs()
	for _, kind := range []string{"syncschemas", "backfillcheckpoints", "jobs", "pods", "events"} {
		output, err := suite.cluster.Kubectl("", "get", kind, "-n", c.namespace, "-o", "yaml")
		Expect(err).NotTo(HaveOccurred())
		seen += output
	}
	Expect(strings.Contains(seen, password)).To(BeFalse(), "the password is in what people see")
}
