//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// forMinutes has the backfill of 3,000 patients take three minutes, beside a Deployment that calls a rollout failed after one.
const forMinutes = `
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: add, path: /spec/checkpoints/0/backfill/batchRows, value: 17}
    - {op: add, path: /spec/checkpoints/0/backfill/maxRowsPerSecond, value: 17}
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: replace, path: /spec/progressDeadlineSeconds, value: 60}
`

var _ = Describe("A backfill of minutes under an autoscaler and a deadline of one", Label("all"), func() {
	It("is scaled by the pods that serve alone, and outlasts the deadline, of which there was a warning", func(ctx context.Context) {
		c := newClinic(ctx, 3000)
		c.autoscale(ctx)
		// The autoscaler has what it goes by, and nothing to do: each pod uses half of what it asks for.
		scaling := func() []autoscalingv2.HorizontalPodAutoscalerCondition {
			var scaler autoscalingv2.HorizontalPodAutoscaler
			Expect(suite.admin.Get(ctx, c.key("clinic"), &scaler)).To(Succeed())
			return scaler.Status.Conditions
		}
		active := ContainElement(And(HaveField("Type", autoscalingv2.ScalingActive), HaveField("Status", corev1.ConditionTrue)))
		Eventually(scaling).Should(active)

		By("version 7, for three minutes")
		c.apply(ctx, 7, forMinutes+withoutSchema)
		Eventually(func() int { return count(c.pods(ctx, programs), "7", corev1.ContainersReady) }).Should(Equal(3))
		c.apply(ctx, 7, forMinutes)
		c.workingPod(ctx, "")
		Consistently(func(g Gomega) {
			pods := c.pods(ctx, programs)
			g.Expect(c.deployment(ctx).Spec.Replicas).To(HaveValue(BeEquivalentTo(3)), "scaled because of pods that wait")
			g.Expect(count(pods, "6", corev1.PodReady)).To(Equal(3))
			g.Expect(count(pods, "7", corev1.PodReady)).To(BeZero())
		}, 2*time.Minute, time.Second).Should(Succeed())
		Expect(scaling()).To(active)

		By("the deadline being long over")
		Expect(c.deployment(ctx).Status.Conditions).To(ContainElement(HaveField("Reason", "ProgressDeadlineExceeded")))
		Expect(c.warnings(ctx)).To(ContainElement("ProgressDeadline SyncSchema/clinic"))
		schema := c.schema(ctx)
		Expect(meta.IsStatusConditionTrue(schema.Status.Conditions, v1alpha1.ConditionReconciling)).To(BeTrue())
		Expect(meta.IsStatusConditionTrue(schema.Status.Conditions, v1alpha1.ConditionStalled)).To(BeFalse())

		By("the activation, after which the rollout ends without a hand")
		c.becomes(ctx, "True GateOpen")
		Eventually(func() int { return count(c.pods(ctx, programs), "7", corev1.PodReady) }).Should(Equal(3))
		Eventually(func() []appsv1.DeploymentCondition { return c.deployment(ctx).Status.Conditions }).Should(
			ContainElement(HaveField("Reason", "NewReplicaSetAvailable")))
		c.holds(ctx, 7)
	}, SpecTimeout(9*time.Minute))
})

// autoscale has the clinic's Deployment scaled by what its pods use, as the program in the folder metrics says.
func (c *clinic) autoscale(ctx context.Context) {
	GinkgoHelper()
	image := readImages(filepath.Join(suite.root, "dist", "images", "references"), "metrics")["metrics"]
	kubectl(ctx, fmt.Sprintf(metricsManifests, c.namespace, image), "apply", "-f", "-")
	DeferCleanup(func(ctx context.Context) {
		kubectl(ctx, "", "delete", "apiservice/v1beta1.metrics.k8s.io", "clusterrolebinding/"+c.namespace+"-metrics")
	})
	kubectl(ctx, "", "wait", "apiservice/v1beta1.metrics.k8s.io", "--for=condition=Available", "--timeout=120s")
	two, half := int32(2), int32(50)
	Expect(suite.admin.Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "clinic"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "clinic"},
			MinReplicas:    &two, MaxReplicas: 6,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{
					Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &half},
				},
			}},
		},
	})).To(Succeed())
}

// metricsManifests are of a namespace and an image. The right to list pods is that of the role view.
const metricsManifests = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s-metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: metrics, namespace: %[1]s}]
---
apiVersion: v1
kind: Pod
metadata: {name: metrics, namespace: %[1]s, labels: {app: metrics}}
spec:
  serviceAccountName: metrics
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: metrics
    image: %[2]s
    readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1}
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata: {name: metrics, namespace: %[1]s}
spec: {selector: {app: metrics}, ports: [{port: 443, targetPort: 8443}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics, namespace: %[1]s, port: 443}
`
