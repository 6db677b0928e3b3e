//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

var _ = Describe("From version 6 to 7", Label("all"), func() {
	It("is one commit: a barrier, a worker in a pod, activation, and the rollout ends by itself", func(ctx context.Context) {
		c := newClinic(ctx, 1000)
		Expect(c.number(ctx, `SELECT schema_version FROM sync_schema_meta`)).To(BeEquivalentTo(6))

		c.apply(ctx, 7, "")
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")

		By("the work having been done by a pod of one Job")
		jobs, pods := c.jobs(ctx), c.pods(ctx, workers)
		Expect(jobs).To(HaveLen(1))
		Expect(pods).To(HaveLen(1))
		Expect(pods[0].Spec.Containers[0].Image).To(Equal(suite.images["operator"]))
		Expect(pods[0].Spec.AutomountServiceAccountToken).To(HaveValue(BeFalse()))
		Eventually(func() []batchv1.JobCondition { return c.jobs(ctx)[0].Status.Conditions }).Should(
			ContainElement(HaveField("Type", batchv1.JobComplete)))
		Expect(kubectl(ctx, "", "logs", "-n", c.namespace, pods[0].Name)).To(ContainSubstring("the checkpoint is activated"))
		for _, pod := range c.pods(ctx, programs) {
			Expect(pod.Spec.Containers[0].Env).To(ContainElement(corev1.EnvVar{Name: "APP_VERSION", Value: "7"}))
		}
		c.holds(ctx, 7)
	}, SpecTimeout(5*time.Minute))
})
