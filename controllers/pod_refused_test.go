package controllers

import (
	"cmp"
	"context"
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("A pod that the API server does not let us write", func() {
	It("keeps no other pod waiting, is named by the SyncSchema, and is opened once it may be", func() {
		g := newGate()
		g.apply(g.clinic(7))
		g.pass()
		names := []string{"first", "protected", "second"}
		pods := map[string]*corev1.Pod{}
		for _, name := range names {
			pods[name] = g.pod(name, "clinic=7")
		}
		g.look()
		lift := protectPod(g, "protected")
		for len(g.changed) > 0 {
			<-g.changed
		}
		g.bring()
		Expect(g.look().RequeueAfter).To(Equal(firstRefusalPause), "it is tried again, and no error sends the others into a pause")
		Expect(g.state(pods["first"])).To(Equal(open))
		Expect(g.state(pods["second"])).To(Equal(open))
		Expect(g.state(pods["protected"])).To(Equal(backfilling))
		Expect(g.changed).To(HaveLen(1), "the SyncSchema is to be looked at")

		object, _ := g.pass()
		refused := condition(object, v1alpha1.ConditionPodsRefused)
		Expect(refused).NotTo(BeNil(), describeConditions(object.Status.Conditions))
		Expect(refused.Message).To(And(ContainSubstring("condition of pod protected"), ContainSubstring("nobody writes here"), Not(ContainSubstring("first"))))
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen), "Ready is not touched")

		By("the refusal going on, at a pace of its own")
		tries := 0
		for range 40 {
			g.clock.advance(time.Second)
			if g.pods.Refusals.due(pods["protected"].UID, writesCondition, g.clock.Now().Add(hotGate)) {
				tries++
			}
			g.look()
		}
		Expect(tries).To(And(BeNumerically(">=", 3), BeNumerically("<=", 8)))
		Expect(g.events.heard(v1alpha1.ReasonWriteRefused)).To(HaveLen(2), "once on the pod, once on the SyncSchema")

		lift()
		g.clock.advance(mostRefusalPause)
		g.look()
		Expect(g.state(pods["protected"])).To(Equal(open))
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionPodsRefused)).To(BeNil())
	})

	It("is named where the right to take a start gate away is missing, and forgotten when it is gone", func() {
		g := newGate()
		g.serving()
		held := g.pod("held", "clinic=7", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.StartGate}}
		})
		g.pods.StartGates = true
		g.look()
		Expect(g.state(held)).To(Equal(open), "the condition needs no such right")
		object, _ := g.pass()
		refused := condition(object, v1alpha1.ConditionPodsRefused)
		Expect(refused).NotTo(BeNil(), describeConditions(object.Status.Conditions))
		Expect(refused.Message).To(And(ContainSubstring("start gate of pod held"), ContainSubstring("forbidden")))

		Expect(suite.admin.Delete(g.ctx, held, client.GracePeriodSeconds(0))).To(Succeed())
		g.look()
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionPodsRefused)).To(BeNil())
	})

	It("is another pod where its UID is, and that is no refusal", func() {
		g := newGate()
		g.serving()
		pod := g.pod("program", "clinic=7", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.StartGate}}
		})
		stale := pod.DeepCopy()
		Expect(suite.admin.Delete(g.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		Expect(g.pods.start(g.ctx, stale)).NotTo(BeNil(), "the account has no right to patch pods here, whatever their UID")
		g.pods.Client = suite.admin // as with config/start-gate
		Expect(g.pods.start(g.ctx, stale)).To(Succeed(), "gone")
		g.pod("program", "clinic=7", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.StartGate}}
		})
		Expect(g.pods.start(g.ctx, stale)).To(Succeed(), "422")
		Expect(g.read(stale).Spec.SchedulingGates).To(HaveLen(1))
	})

	It("is forgotten where the write was made all the same, or nobody wants it any more, and brings about no passes", func() {
		g := newGate()
		g.serving()
		g.pods.StartGates = true
		answer := func(err error) error {
			return cmp.Or(err, error(apierrors.NewTimeoutError("the answer came too late", 1)))
		}
		slow := interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				return answer(c.SubResource(sub).Patch(ctx, o, p, opts...))
			},
			Patch: func(ctx context.Context, _ client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				return answer(suite.admin.Patch(ctx, o, p, opts...)) // that right comes with config/start-gate
			},
		}
		g.pods.Client = interceptor.NewClient(suite.operator, slow)
		pod := g.pod("program", "clinic=7", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.StartGate}}
		})
		Expect(g.look().RequeueAfter).To(Equal(firstRefusalPause), "the condition and the start gate are tried again")
		Expect(g.state(pod)).To(Equal(open), "the write was made")
		Expect(g.read(pod).Spec.SchedulingGates).To(BeEmpty())
		g.clock.advance(mostRefusalPause)
		Expect(g.look().RequeueAfter).To(BeNumerically(">", mostRefusalPause/2), "nothing waits")
		Expect(g.pods.Refusals.of).To(BeEmpty())

		By("a write that is due for as long as somebody else is about it")
		pass := &podPass{name: request(g.namespace, "clinic").NamespacedName, now: g.clock.Now(), retry: g.clock.Now().Add(-time.Hour)}
		Expect(g.pods.lookAgain(pass)).To(Equal(hotGate))
	})

	It("for want of a way to the API server is an error, which loses nothing and ends with it", func() {
		g := newGate()
		g.serving()
		pods := []*corev1.Pod{g.pod("first", "clinic=7"), g.pod("second", "clinic=7")}
		away := true
		g.pods.Client = interceptor.NewClient(suite.operator, interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if away {
					return errors.New("connection refused")
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		})
		g.clock.advance(hotGate)
		_, err := g.pods.Reconcile(g.ctx, request(g.namespace, "clinic"))
		Expect(err).To(MatchError(ContainSubstring("connection refused")))
		object, _ := g.pass()
		Expect(condition(object, v1alpha1.ConditionPodsRefused)).To(BeNil(), "no answer is no refusal")
		away = false
		g.look()
		for _, pod := range pods {
			Expect(g.state(pod)).To(Equal(open))
		}
	})
})

// protectPod has the API server refuse every write of the status of a pod, by a rule of its own, until lift is called.
func protectPod(g *gate, pod string) (lift func()) {
	GinkgoHelper()
	name := "protect-" + pod + "-" + g.namespace
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec.MatchConstraints = &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: g.namespace}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"pods/status"}},
		}}},
	}
	policy.Spec.Validations = []admissionv1.Validation{{Expression: "object.metadata.name != '" + pod + "'", Message: "nobody writes here"}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	binding.Spec.PolicyName, binding.Spec.ValidationActions = name, []admissionv1.ValidationAction{admissionv1.Deny}
	for _, object := range []client.Object{policy, binding} {
		Expect(suite.admin.Create(g.ctx, object)).To(Succeed())
		DeferCleanup(func(ctx context.Context) {
			Expect(client.IgnoreNotFound(suite.admin.Delete(ctx, object))).To(Succeed())
		})
	}
	try := func() error {
		target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: pod}}
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"message":"x"}}`))
		return suite.admin.Status().Patch(g.ctx, target, patch, client.DryRunAll)
	}
	Eventually(try, "90s", "100ms").Should(MatchError(ContainSubstring("nobody writes here")))
	return func() {
		GinkgoHelper()
		Expect(suite.admin.Delete(g.ctx, binding)).To(Succeed())
		Eventually(try, "90s", "100ms").Should(Succeed())
	}
}
