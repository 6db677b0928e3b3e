//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// impatient has the Deployment call a rollout failed after a quarter of a minute.
const impatient = `
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: replace, path: /spec/progressDeadlineSeconds, value: 15}
`

var _ = Describe("A node that is drained while a rollout is held", Label("all"), func() {
	It("gives up one serving pod at a time and those that wait at will; the pods that replace them serve, and no read fails", func(ctx context.Context) {
		c := newClinic(ctx, 3000)
		c.keepTwo(ctx)
		c.startLoad(ctx, 6)
		c.apply(ctx, 7, impatient+verySlowly)
		serving := func() []int {
			pods := c.pods(ctx, programs)
			return []int{count(pods, "6", corev1.PodReady), count(pods, "7", corev1.PodReady), count(pods, "7", corev1.ContainersReady)}
		}
		Eventually(serving).Should(Equal([]int{3, 0, 3}), "of version 6 serve, of version 7 serve, of version 7 run")
		c.workingPod(ctx, "")

		By("the node being drained: cordoned, and its pods evicted as far as the budget lets them")
		old, waiting := c.programsOf(ctx, "6"), c.programsOf(ctx, "7")
		node := old[0].Spec.NodeName
		kubectl(ctx, "", "cordon", node)
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "", "uncordon", node) })
		Expect(evict(ctx, old[0])).To(Succeed())
		Eventually(serving).Should(Equal([]int{2, 0, 3}))
		Expect(apierrors.IsTooManyRequests(evict(ctx, old[1]))).To(BeTrue(), "a second serving pod may not go")
		Expect(evict(ctx, waiting[0])).To(Succeed(), "a pod that only waits is no loss")
		lost := c.workingPod(ctx, "")
		Expect(evict(ctx, lost)).To(Succeed())
		Eventually(serving).Should(Equal([]int{2, 0, 2}))

		By("the node being back")
		kubectl(ctx, "", "uncordon", node)
		Eventually(serving).Should(Equal([]int{3, 0, 3}))
		Eventually(c.gates).WithContext(ctx).WithArguments("7").Should(HaveExactElements("Backfilling", "Backfilling", "Backfilling"))
		c.workingPod(ctx, lost.UID)

		By("the Deployment having lost its patience, and nobody else")
		Eventually(func() []appsv1.DeploymentCondition { return c.deployment(ctx).Status.Conditions }).Should(
			ContainElement(HaveField("Reason", "ProgressDeadlineExceeded")))
		Expect(meta.IsStatusConditionTrue(c.schema(ctx).Status.Conditions, v1alpha1.ConditionStalled)).To(BeFalse())

		By("the backfill coming to its end: the rollout does too, by itself")
		c.apply(ctx, 7, impatient)
		c.becomes(ctx, "True GateOpen")
		Eventually(func() int { return count(c.pods(ctx, programs), "7", corev1.PodReady) }).Should(Equal(3))
		c.seenOff(ctx, "6")
		c.allowLoad(ctx, "read 6 200", "write 6 204", "write 6 409", "read 7 200", "write 7 204")
		c.holds(ctx, 7)
	}, SpecTimeout(8*time.Minute))
})

// keepTwo has evictions leave two pods that serve, and take those that do not serve at will.
func (c *clinic) keepTwo(ctx context.Context) {
	GinkgoHelper()
	two, always := intstr.FromInt32(2), policyv1.AlwaysAllow
	Expect(suite.admin.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "clinic"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &two, UnhealthyPodEvictionPolicy: &always,
			Selector: &metav1.LabelSelector{MatchLabels: programs},
		},
	})).To(Succeed())
	Eventually(func() int32 {
		var budget policyv1.PodDisruptionBudget
		Expect(suite.admin.Get(ctx, c.key("clinic"), &budget)).To(Succeed())
		return budget.Status.DisruptionsAllowed
	}).Should(BeEquivalentTo(1))
}

// evict asks the API server to, as a drain does.
func evict(ctx context.Context, pod corev1.Pod) error {
	return suite.admin.SubResource("eviction").Create(ctx, &pod, &policyv1.Eviction{})
}

// programsOf are the application's pods of a version.
func (c *clinic) programsOf(ctx context.Context, version string) (found []corev1.Pod) {
	GinkgoHelper()
	for _, pod := range c.pods(ctx, programs) {
		if versionOf(pod) == version {
			found = append(found, pod)
		}
	}
	return found
}
