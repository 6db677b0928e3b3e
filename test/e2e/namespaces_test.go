//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("Two applications on three databases, one of them broken", Label("all"), func() {
	It("the one that needs the broken one waits, and nobody else does", func(ctx context.Context) {
		c := newClinic(ctx, 1000)
		var service corev1.Service
		Expect(suite.admin.Get(ctx, c.key("clinic-db"), &service)).To(Succeed())
		_, err := c.db.Exec(ctx, `CREATE DATABASE billing`)
		Expect(err).NotTo(HaveOccurred())
		// Nothing listens on that port of the database's address.
		c.applySchema(ctx, "billing", fmt.Sprintf("postgres://postgres:%s@%s:5432/billing?sslmode=disable", password, service.Spec.ClusterIP))
		c.applySchema(ctx, "archive", fmt.Sprintf("postgres://postgres:%s@%s:5433/archive?sslmode=disable", password, service.Spec.ClusterIP))

		By("an application on two that are well, and one on one that is not")
		c.applyWorkload(ctx, workload{kind: "Deployment", name: "desk", replicas: 2, version: "6", requires: "clinic=6,billing=1"})
		c.applyWorkload(ctx, workload{kind: "Deployment", name: "reports", replicas: 1, version: "6", requires: "billing=1,archive=1"})
		Eventually(c.running).WithContext(ctx).WithArguments("desk").Should(Equal("6 serves, 6 serves"))
		Eventually(c.running).WithContext(ctx).WithArguments("reports").Should(Equal("6 waits"))
		Eventually(c.gatesOf).WithContext(ctx).WithArguments("reports").Should(HaveExactElements("Unreachable"))

		By("the clinic going to its next version beside it")
		c.startLoad(ctx, 6)
		c.apply(ctx, 7, "")
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		c.seenOff(ctx, "6")
		c.allowLoad(ctx, "read 6 200", "write 6 204", "write 6 409", "read 7 200", "write 7 204")
		Expect(c.running(ctx, "reports")).To(Equal("6 waits"))

		By("the broken one being mended")
		_, err = c.db.Exec(ctx, `CREATE DATABASE archive`)
		Expect(err).NotTo(HaveOccurred())
		c.applySchema(ctx, "archive", fmt.Sprintf("postgres://postgres:%s@%s:5432/archive?sslmode=disable", password, service.Spec.ClusterIP))
		Eventually(c.running).WithContext(ctx).WithArguments("reports").Should(Equal("6 serves"))
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})

// applySchema applies a schema of one table, at version 1, of the database at an address.
func (c *clinic) applySchema(ctx context.Context, name, address string) {
	GinkgoHelper()
	kubectl(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %[1]s, namespace: %[2]s}
stringData: {uri: "%[3]s"}
---
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  database: {postgres: {urlFrom: {secretKeyRef: {name: %[1]s, key: uri}}}}
  version: 1
  tables:
  - name: records
    columns: [{name: id, type: integer}, {name: ward, type: string}]
    primaryKey: [id]
    partition: {column: ward}
`, name, c.namespace, address), "apply", "-f", "-")
}

var _ = Describe("A namespace with a quota and bounds, restricted", Label("all"), func() {
	It("refuses the worker while the quota is used up, which is said, and has it work as soon as there is room", func(ctx context.Context) {
		c := newDatabase(ctx, 1000)
		Expect(suite.admin.Create(ctx, &corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "bounds"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type:           corev1.LimitTypeContainer,
				Default:        corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
				DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			}}},
		})).To(Succeed())
		quota := &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "quota"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
				"limits.cpu": resource.MustParse("10"), "limits.memory": resource.MustParse("4Gi"), "pods": resource.MustParse("7"),
			}},
		}
		Expect(suite.admin.Create(ctx, quota)).To(Succeed())
		c.apply(ctx, 6, c.filled())
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")

		By("version 7: three pods of it take what room was left, and the worker has none")
		c.apply(ctx, 7, withoutSchema)
		Eventually(func() int { return count(c.pods(ctx, programs), "7", corev1.ContainersReady) }).Should(Equal(3))
		c.apply(ctx, 7, "")
		Eventually(func() *metav1.Condition {
			for _, checkpoint := range c.checkpoints(ctx) {
				return meta.FindStatusCondition(checkpoint.Status.Conditions, v1alpha1.ConditionReady)
			}
			return nil
		}).Should(And(Not(BeNil()), HaveField("Reason", "WorkerPending"), HaveField("Message", ContainSubstring("exceeded quota"))))

		By("there being room")
		small := quota.DeepCopy() // the API server counts in it all the time, so only what is other is sent
		quota.Spec.Hard[corev1.ResourcePods] = resource.MustParse("12")
		Expect(suite.admin.Patch(ctx, quota, client.MergeFrom(small))).To(Succeed())
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})
