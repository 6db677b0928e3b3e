//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// slowly has the backfill of 3,000 patients take 15 seconds at least.
const slowly = `
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: add, path: /spec/checkpoints/0/backfill/batchRows, value: 50}
    - {op: add, path: /spec/checkpoints/0/backfill/maxRowsPerSecond, value: 200}
`

var _ = Describe("A rollout that is held", func() {
	It("waits beside the old pods until activation, then takes the traffic over; no read fails, and no write but by the fence", func(ctx context.Context) {
		c := newClinic(ctx, 3000)
		c.startLoad(ctx, 6)

		By("version 7 being applied under load")
		c.apply(ctx, 7, slowly)
		c.heldUntilActivated(ctx)

		By("the rollout ending by itself")
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		Eventually(func() int { return c.load(ctx)["write 7 204"] }).Should(BeNumerically(">", 20))
		c.seenOff(ctx, "6")
		c.allowLoad(ctx, "read 6 200", "write 6 204", "write 6 409", "read 7 200", "write 7 204")
		Expect(c.load(ctx)["write 6 409"]).To(BeNumerically(">", 0), "nobody saw the fence")
		for _, pod := range c.pods(ctx, programs) {
			Expect(versionOf(pod)).To(Equal("7"))
		}
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})

const (
	// defaults is a Deployment that says nothing about how it is rolled out: a quarter of its pods may be missing.
	defaults = `
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: replace, path: /spec/replicas, value: 4}
    - {op: remove, path: /spec/strategy}
`
	// verySlowly has the backfill of 3,000 patients take 75 seconds at least.
	verySlowly = `
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: add, path: /spec/checkpoints/0/backfill/batchRows, value: 20}
    - {op: add, path: /spec/checkpoints/0/backfill/maxRowsPerSecond, value: 40}
`
)

var _ = Describe("A rollout that is held at the default surge", Label("all"), func() {
	It("has a lost pod replaced and a revert healed while it waits, and goes on", func(ctx context.Context) {
		c := newClinic(ctx, 3000, defaults)
		c.apply(ctx, 7, verySlowly)
		serving := func() []int {
			pods := c.pods(ctx, programs)
			return []int{count(pods, "6", corev1.PodReady), count(pods, "7", corev1.PodReady), count(pods, "7", corev1.ContainersReady)}
		}
		Eventually(serving).Should(Equal([]int{3, 0, 2}), "of version 6 serve, of version 7 serve, of version 7 run")
		c.workingPod(ctx, "") // so the barrier is behind us

		By("a pod of version 6 being lost")
		for _, pod := range c.pods(ctx, programs) {
			if versionOf(pod) == "6" {
				Expect(suite.admin.Delete(ctx, &pod)).To(Succeed())
				break
			}
		}
		Eventually(serving).Should(Equal([]int{3, 0, 2}), "the pod that replaces it is let in: it reads as the others do")
		Eventually(c.gates).WithContext(ctx).WithArguments("7").Should(HaveExactElements("Backfilling", "Backfilling"))

		By("the commit being reverted")
		c.apply(ctx, 6, "")
		c.becomes(ctx, "False VersionRegression")
		Eventually(serving).Should(Equal([]int{4, 0, 0}))

		By("the commit being made again, without the throttle")
		c.apply(ctx, 7, "")
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}, SpecTimeout(5*time.Minute))
})

// heldUntilActivated watches the rollout until the checkpoint is activated: all the time three pods of version 6 are Ready and none of
// version 7 is, and at the last look three of those run and only the gate holds them.
func (c *clinic) heldUntilActivated(ctx context.Context) {
	GinkgoHelper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for looks, held := 0, 0; ; looks++ {
		pods := c.pods(ctx, programs)
		// Read after the pods were: a gate that is open by now may have been open then.
		if c.number(ctx, `SELECT count(*) FROM sync_backfill_checkpoints WHERE state = 'activated'`) > 0 {
			Expect(held).To(Equal(3), "at the last of %d looks before the activation this many pods of version 7 ran and waited", looks)
			Expect(looks).To(BeNumerically(">", 20))
			return
		}
		Expect(count(pods, "7", corev1.PodReady)).To(BeZero(), "look %d: version 7 is Ready before its activation", looks)
		Expect(count(pods, "6", corev1.PodReady)).To(BeNumerically(">=", 3), "look %d: version 6 lost capacity", looks)
		held = count(pods, "7", corev1.ContainersReady)
		select {
		case <-ctx.Done():
			Fail("the checkpoint was not activated")
		case <-ticker.C:
		}
	}
}

// seenOff waits until the last pod of a version is gone, those on their way out included: what users lose by its end they have lost by then.
func (c *clinic) seenOff(ctx context.Context, version string) {
	GinkgoHelper()
	Eventually(func() (left int) {
		var list corev1.PodList
		Expect(suite.admin.List(ctx, &list, client.InNamespace(c.namespace), programs)).To(Succeed())
		for _, pod := range list.Items {
			if versionOf(pod) == version {
				left++
			}
		}
		return left
	}).Should(BeZero(), "pods of version %s are still there", version)
}

// count is how many pods of a version have a condition that is True.
func count(pods []corev1.Pod, version string, condition corev1.PodConditionType) (found int) {
	for _, pod := range pods {
		if versionOf(pod) == version && is(pod, condition) {
			found++
		}
	}
	return found
}

func is(pod corev1.Pod, condition corev1.PodConditionType) bool {
	for _, found := range pod.Status.Conditions {
		if found.Type == condition {
			return found.Status == corev1.ConditionTrue
		}
	}
	return false
}

// versionOf is the version of the program in a pod.
func versionOf(pod corev1.Pod) string {
	for _, variable := range pod.Spec.Containers[0].Env {
		if variable.Name == "APP_VERSION" {
			return variable.Value
		}
	}
	return ""
}
