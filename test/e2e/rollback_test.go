//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

// serveGate is the condition by which the operator holds a pod.
const serveGate corev1.PodConditionType = "syncbarrier.dev/serve-gate"

var _ = Describe("A rollout that is rolled back after the activation", func() {
	It("brings no old program back into service: the new ones go on without a failed request", func(ctx context.Context) {
		c := newClinic(ctx, 1000)
		c.apply(ctx, 7, "")
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		c.seenOff(ctx, "6") // one that is on its way out answers whoever has reached it
		c.startLoad(ctx, 7)

		By("kubectl rollout undo")
		kubectl(ctx, "", "rollout", "undo", "deployment/clinic", "-n", c.namespace)
		Eventually(func() int { return count(c.pods(ctx, programs), "6", corev1.ContainersReady) }).Should(Equal(3))
		Eventually(func() []string { return c.gates(ctx, "6") }).Should(HaveExactElements("Superseded", "Superseded", "Superseded"))
		Consistently(func(g Gomega) {
			pods := c.pods(ctx, programs)
			g.Expect(count(pods, "6", corev1.PodReady)).To(BeZero())
			g.Expect(count(pods, "7", corev1.PodReady)).To(Equal(3))
		}, 10*time.Second).Should(Succeed())

		By("going forward again")
		kubectl(ctx, "", "rollout", "undo", "deployment/clinic", "-n", c.namespace)
		c.rolledOut(ctx, "clinic")
		c.allowLoad(ctx, "read 7 200", "write 7 204")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})

// gates are the reasons of the gate on the pods of a version.
func (c *clinic) gates(ctx context.Context, version string) (reasons []string) {
	GinkgoHelper()
	for _, pod := range c.pods(ctx, programs) {
		for _, condition := range pod.Status.Conditions {
			if versionOf(pod) == version && condition.Type == serveGate {
				reasons = append(reasons, condition.Reason)
			}
		}
	}
	return reasons
}
