//go:build e2e

package e2e

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("A workload that cannot be held without loss", func() {
	It("a StatefulSet of one: is warned about before the barrier, comes back by the runbook's commands, and loses nothing if it changes after the gate", func(ctx context.Context) {
		c := newClinic(ctx, 3000)
		desk := workload{kind: "StatefulSet", name: "desk", replicas: 1, version: "6"}
		c.applyWorkload(ctx, desk)
		Eventually(c.running).WithContext(ctx).WithArguments("desk").Should(Equal("6 serves"))
		Eventually(c.safety).WithContext(ctx).Should(Equal("False Outage"))

		By("version 7 being applied: the warning is there before the barrier")
		c.apply(ctx, 7, verySlowly)
		Eventually(func() int64 { return c.number(ctx, `SELECT schema_version FROM sync_schema_meta`) }).Should(BeEquivalentTo(7))
		for _, object := range []string{"StatefulSet/desk", "SyncSchema/clinic"} {
			Eventually(c.warnings).WithContext(ctx).Should(ContainElement("Outage "+object), "warned about it")
		}

		By("the template being changed too early: nobody serves")
		desk.version = "7"
		c.applyWorkload(ctx, desk)
		Eventually(c.running).WithContext(ctx).WithArguments("desk").Should(Equal("7 waits"))

		By("the revert, which is not enough, and the deletion of the pod that is held")
		desk.version = "6"
		c.applyWorkload(ctx, desk)
		Consistently(c.running).WithContext(ctx).WithArguments("desk").WithTimeout(5 * time.Second).Should(Equal("7 waits"))
		kubectl(ctx, "", "delete", "pod", "desk-0", "-n", c.namespace)
		Eventually(c.running).WithContext(ctx).WithArguments("desk").Should(Equal("6 serves"))

		By("the gate being open, and then the change")
		c.apply(ctx, 7, "")
		c.becomes(ctx, "True GateOpen")
		desk.version = "7"
		c.applyWorkload(ctx, desk)
		Eventually(c.running).WithContext(ctx).WithArguments("desk").Should(Equal("7 serves"))
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))

	DescribeTable("the schema first, then the template, as docs/gitops.md says", Label("all"),
		func(ctx context.Context, desk workload, hold string) {
			c := newClinic(ctx, 1000)
			if desk.kind == "DaemonSet" { // a pod on every node, replaced node by node
				var nodes corev1.NodeList
				Expect(suite.admin.List(ctx, &nodes)).To(Succeed())
				if desk.replicas = len(nodes.Items); desk.replicas > 1 {
					hold = "LosesCapacity"
				}
			}
			each := func(state string) string {
				return strings.Join(strings.Split(strings.Repeat(state+"|", desk.replicas), "|")[:desk.replicas], ", ")
			}
			desk.name, desk.version = "desk", "6"
			c.applyWorkload(ctx, desk)
			Eventually(c.running).WithContext(ctx).WithArguments("desk").Should(Equal(each("6 serves")))
			Eventually(c.safety).WithContext(ctx).Should(Equal("False " + hold))
			c.startLoadOn(ctx, "desk", 6)

			By("the schema of version 7: the old pods go on serving, and there was a warning")
			c.apply(ctx, 7, slowly)
			c.becomes(ctx, "True GateOpen")
			Expect(c.running(ctx, "desk")).To(Equal(each("6 serves")))
			Eventually(c.warnings).WithContext(ctx).Should(ContainElement(hold + " " + desk.kind + "/desk"))

			By("the template of version 7")
			desk.version = "7"
			c.applyWorkload(ctx, desk)
			Eventually(c.running).WithContext(ctx).WithArguments("desk").Should(Equal(each("7 serves")))
			if desk.replicas > 1 {
				c.allowLoad(ctx, "read 6 200", "write 6 204", "write 6 409", "read 7 200", "write 7 204")
			}
			c.rolledOut(ctx, "clinic")
			c.holds(ctx, 7)
		},
		Entry("a StatefulSet of three: no read fails", workload{kind: "StatefulSet", replicas: 3}, "LosesCapacity", SpecTimeout(6*time.Minute)),
		Entry("a DaemonSet", workload{kind: "DaemonSet"}, "Outage", SpecTimeout(6*time.Minute)),
		Entry("a Deployment with strategy Recreate", workload{kind: "Deployment", replicas: 1, spec: "\n  strategy: {type: Recreate}"}, "Outage", SpecTimeout(6*time.Minute)),
	)
})

// safety is "<status> <reason>" of WorkloadsSafe.
func (c *clinic) safety(ctx context.Context) string {
	GinkgoHelper()
	safe := meta.FindStatusCondition(c.schema(ctx).Status.Conditions, v1alpha1.ConditionWorkloadsSafe)
	if safe == nil {
		return ""
	}
	return string(safe.Status) + " " + safe.Reason
}

// warnings are the events of type Warning, as "<reason> <kind>/<name>".
func (c *clinic) warnings(ctx context.Context) (found []string) {
	var list corev1.EventList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(c.namespace))).To(Succeed())
	for _, event := range list.Items {
		if event.Type == corev1.EventTypeWarning {
			found = append(found, event.Reason+" "+event.InvolvedObject.Kind+"/"+event.InvolvedObject.Name)
		}
	}
	return found
}
