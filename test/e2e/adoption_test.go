//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

const (
	// withoutSchema leaves the SyncSchema out of what is applied.
	withoutSchema = `
- patch: |
    $patch: delete
    apiVersion: syncbarrier.dev/v1alpha1
    kind: SyncSchema
    metadata: {name: clinic}
`
	// withoutGate is a Deployment that has never heard of the gate.
	withoutGate = `
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: remove, path: /spec/template/metadata/labels/syncbarrier.dev~1gate}
    - {op: remove, path: /spec/template/metadata/annotations}
`
)

var _ = Describe("A first adoption", Label("all"), func() {
	It("of a database and a Deployment that serve: step by step, and no user notices before the fence", func(ctx context.Context) {
		c := newDatabase(ctx, 1000)
		c.apply(ctx, 6, c.filled()+withoutGate+withoutSchema)
		c.rolledOut(ctx, "clinic")
		c.startLoad(ctx, 6)

		By("the schema being declared as it is")
		c.apply(ctx, 6, c.filled()+withoutGate)
		c.becomes(ctx, "True GateOpen")
		Expect(c.number(ctx, `SELECT schema_version FROM sync_schema_meta`)).To(BeEquivalentTo(6))

		By("the pods asking for the gate")
		c.apply(ctx, 6, c.filled())
		c.rolledOut(ctx, "clinic")
		Expect(c.gates(ctx, "6")).To(HaveExactElements("GateOpen", "GateOpen", "GateOpen"))
		c.allowLoad(ctx, "read 6 200", "write 6 204")

		By("the first version with a backfill")
		c.apply(ctx, 7, "")
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		c.seenOff(ctx, "6")
		c.allowLoad(ctx, "read 6 200", "write 6 204", "write 6 409", "read 7 200", "write 7 204")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})

var _ = Describe("The start gate", Label("all", "operator"), func() {
	It("keeps new pods from being scheduled until the database holds their version, and the serve gate from serving until it is filled", func(ctx context.Context) {
		c := newClinic(ctx, 3000)
		DeferCleanup(installOperator)
		kubectl(ctx, "", "apply", "--server-side", "--force-conflicts", "-k", overlay("start-gate", "config/start-gate", "", ""))
		kubectl(ctx, "", "rollout", "status", "deployment/syncbarrier-manager", "-n", ownNamespace, "--timeout=180s")

		By("version 7, whose barrier waits for an approval")
		c.apply(ctx, 7, slowly+`
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: add, path: /spec/strategy, value: {cutover: OnApproval}}
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: add, path: /spec/template/metadata/annotations/syncbarrier.dev~1start, value: AfterMigration}
`)
		c.becomes(ctx, "False ApprovalPending")
		Eventually(func() []corev1.Pod { return c.programsOf(ctx, "7") }).Should(HaveLen(3))
		Consistently(func() []corev1.Pod { return c.programsOf(ctx, "7") }, 10*time.Second).Should(
			HaveEach(HaveField("Spec.NodeName", BeEmpty())), "none has a node before the barrier")

		By("the approval")
		plan := c.schema(ctx).Status.Plan
		Expect(plan).NotTo(BeNil())
		kubectl(ctx, "", "annotate", "syncschema/clinic", "-n", c.namespace, fmt.Sprintf("syncbarrier.dev/approve=7@%s", plan.Hash))
		Eventually(func() int { return count(c.pods(ctx, programs), "7", corev1.ContainersReady) }).Should(Equal(3))
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})
