//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("An operator that is uninstalled in the middle of a backfill, and installed again", Label("all", "operator"), func() {
	It("is not needed by the workers, and goes on where the database stands", func(ctx context.Context) {
		c := newClinic(ctx, counted)
		c.apply(ctx, 7, counting)
		c.workingPod(ctx, "")

		By("make undeploy: the workers end their work and activate")
		DeferCleanup(installOperator)
		undeploy := exec.CommandContext(ctx, "make", "-C", suite.root, "undeploy")
		undeploy.Env = append(os.Environ(), "PATH="+filepath.Dir(suite.kubectl)+":"+os.Getenv("PATH"))
		output, err := undeploy.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(output))
		Eventually(func() int64 {
			return c.number(ctx, `SELECT count(*) FROM sync_backfill_checkpoints WHERE state = 'activated'`)
		}).Should(BeEquivalentTo(1))
		Expect(c.number(ctx, `SELECT count(*) FROM patients WHERE fills = 1`)).To(BeEquivalentTo(counted))
		pods := c.pods(ctx, programs)
		Expect(count(pods, "6", corev1.PodReady)).To(Equal(3), "who serves goes on")
		Expect(count(pods, "7", corev1.PodReady)).To(BeZero(), "who waits has nobody to let it in")

		By("the operator being installed again")
		installOperator(ctx)
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}, SpecTimeout(8*time.Minute))
})

var _ = Describe("An operator that is upgraded from an earlier commit in the middle of a backfill", Label("all", "operator"), func() {
	It("lets the worker of the earlier one finish, and takes over from there", func(ctx context.Context) {
		before := readImages(filepath.Join(suite.root, "dist", "before", "dist", "images", "references"), "operator")
		Expect(before["operator"]).NotTo(Equal(suite.images["operator"]), "the earlier commit has the same operator: name another one in E2E_BEFORE")
		DeferCleanup(installOperator)
		applyOperator(ctx, overlayWith(before, "operator-before", "dist/before/config/default", "", ""))
		c := newClinic(ctx, counted)
		c.apply(ctx, 7, countingSlowly)
		worker := c.workingPod(ctx, "")
		Expect(worker.Spec.Containers[0].Image).To(Equal(before["operator"]))

		By("the operator of this commit being installed over it")
		installOperator(ctx)
		Expect(c.rowsDone(ctx)).To(BeNumerically("<", counted), "the backfill was over before the upgrade")
		c.becomes(ctx, "True GateOpen")
		Expect(c.number(ctx, `SELECT count(*) FROM patients WHERE fills = 1`)).To(BeEquivalentTo(counted))
		Expect(c.jobs(ctx)).To(HaveLen(1), "the Job of the earlier operator is the one that did it")
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})

var _ = Describe("An operator that is away", Label("all", "operator"), func() {
	It("holds up nobody but the pods that ask for its gate; a pod that slipped in without it is told of", func(ctx context.Context) {
		c := newClinic(ctx, 1000)
		other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-"}}
		Expect(suite.admin.Create(ctx, other)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(suite.admin.Delete(ctx, other)).To(Succeed()) })
		DeferCleanup(installOperator)
		kubectl(ctx, "", "scale", "deployment/syncbarrier-manager", "-n", ownNamespace, "--replicas=0")
		Eventually(func() []corev1.Pod {
			var pods corev1.PodList
			Expect(suite.admin.List(ctx, &pods, client.InNamespace(ownNamespace))).To(Succeed())
			return pods.Items
		}).Should(BeEmpty())

		By("pods being made everywhere")
		for _, namespace := range []string{"kube-system", other.Name, c.namespace} {
			Expect(suite.admin.Create(ctx, bare(namespace, "plain", nil))).To(Succeed(), "in %s", namespace)
		}
		DeferCleanup(func(ctx context.Context) {
			Expect(suite.admin.Delete(ctx, bare("kube-system", "plain", nil))).To(Succeed())
		})
		Expect(suite.admin.Create(ctx, bare("kube-system", "gated", gated), client.DryRunAll)).To(Succeed(), "the cluster's own namespace is left alone")
		Expect(suite.admin.Create(ctx, bare(c.namespace, "gated", gated))).To(MatchError(ContainSubstring("syncbarrier")), "who asks for the gate is not made, and it is said by whom")

		By("the webhook's configuration being lost, and a pod slipping in")
		kubectl(ctx, "", "delete", "mutatingwebhookconfigurations", "-l", "app.kubernetes.io/name=syncbarrier")
		Expect(suite.admin.Create(ctx, bare(c.namespace, "gated", gated))).To(Succeed())

		By("the operator being back by itself, its webhook with it")
		installOperator(ctx)
		Eventually(func() *metav1.Condition {
			return meta.FindStatusCondition(c.schema(ctx).Status.Conditions, v1alpha1.ConditionPodsUngated)
		}).Should(And(Not(BeNil()), HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring("gated"))))
		c.becomes(ctx, "True GateOpen")
		var late *corev1.Pod
		Eventually(func() error {
			late = bare(c.namespace, "late", gated)
			return suite.admin.Create(ctx, late)
		}).Should(Succeed())
		Expect(late.Spec.ReadinessGates).To(ConsistOf(corev1.PodReadinessGate{ConditionType: serveGate}))
	}, SpecTimeout(6*time.Minute))
})

// gated is what a pod has that asks for the gate.
var gated = map[string]string{"syncbarrier.dev/gate": "enabled"}

// bare is a pod of nobody's. What it runs does not matter here.
func bare(namespace, name string, labels map[string]string) *corev1.Pod {
	no, yes := false, true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "bare", Image: suite.images["clinic"], Args: []string{"load"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	if len(labels) > 0 {
		pod.Annotations = map[string]string{"syncbarrier.dev/requires": fmt.Sprintf("clinic=%d", 6)}
	}
	return pod
}
