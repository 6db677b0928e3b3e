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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("A workload that cannot be held without loss, a StatefulSet of one", func() {
	It("is warned about before the barrier, comes back by the runbook's commands, and loses nothing if it changes after the gate", func(ctx context.Context) {
		c := newClinic(ctx, 3000)
		c.applyDesk(ctx, "6")
		Eventually(c.desk).WithContext(ctx).Should(Equal("6 serves"))
		Eventually(func() string {
			safe := meta.FindStatusCondition(c.schema(ctx).Status.Conditions, v1alpha1.ConditionWorkloadsSafe)
			if safe == nil {
				return ""
			}
			return string(safe.Status) + " " + safe.Reason
		}).Should(Equal("False Outage"))

		By("version 7 being applied: the warning is there before the barrier")
		c.apply(ctx, 7, verySlowly)
		Eventually(func() int64 { return c.number(ctx, `SELECT schema_version FROM sync_schema_meta`) }).Should(BeEquivalentTo(7))
		for _, object := range []string{"StatefulSet/desk", "SyncSchema/clinic"} {
			Eventually(c.warnings).WithContext(ctx).Should(ContainElement("Outage "+object), "warned about it")
		}

		By("the template being changed too early: nobody serves")
		c.applyDesk(ctx, "7")
		Eventually(c.desk).WithContext(ctx).Should(Equal("7 waits"))

		By("the revert, which is not enough, and the deletion of the pod that is held")
		c.applyDesk(ctx, "6")
		Consistently(c.desk).WithContext(ctx).WithTimeout(5 * time.Second).Should(Equal("7 waits"))
		kubectl(ctx, "", "delete", "pod", "desk-0", "-n", c.namespace)
		Eventually(c.desk).WithContext(ctx).Should(Equal("6 serves"))

		By("the gate being open, and then the change")
		c.apply(ctx, 7, "")
		c.becomes(ctx, "True GateOpen")
		c.applyDesk(ctx, "7")
		Eventually(c.desk).WithContext(ctx).Should(Equal("7 serves"))
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})

// applyDesk applies a StatefulSet of one pod that needs a version of the schema.
func (c *clinic) applyDesk(ctx context.Context, version string) {
	GinkgoHelper()
	kubectl(ctx, fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: desk, namespace: %[1]s}
spec:
  replicas: 1
  serviceName: desk
  selector: {matchLabels: {app: desk}}
  template:
    metadata:
      labels: {app: desk, syncbarrier.dev/gate: enabled}
      annotations: {syncbarrier.dev/requires: clinic=%[3]s}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 2
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: desk
        image: %[2]s
        env:
        - {name: APP_VERSION, value: "%[3]s"}
        - name: DATABASE_URL
          valueFrom: {secretKeyRef: {name: clinic-app, key: uri}}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`, c.namespace, suite.images["clinic"], version), "apply", "-f", "-")
}

// desk is which version the StatefulSet's pod is of, and whether it serves; nothing while there is none.
func (c *clinic) desk(ctx context.Context) string {
	for _, pod := range c.pods(ctx, client.MatchingLabels{"app": "desk"}) {
		switch {
		case is(pod, corev1.PodReady):
			return versionOf(pod) + " serves"
		case is(pod, corev1.ContainersReady):
			return versionOf(pod) + " waits"
		}
	}
	return ""
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
