//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

const (
	// additive makes of version 6 a version 7 that only adds a column that may be empty. The program stays that of version 6.
	additive = `
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: replace, path: /spec/version, value: 7}
    - {op: add, path: /spec/tables/0/columns/-, value: {name: remark, type: string, nullable: true}}
`
	// asksForSeven has the program of version 6 ask the gate for version 7.
	asksForSeven = `
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: replace, path: /spec/template/metadata/annotations/syncbarrier.dev~1requires, value: clinic=7}
`
	// readersToo shuts old readers out with the barrier, as a version does that rewrites what they read.
	readersToo = `
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: add, path: /spec/minReaderVersion, value: 7}
`
)

var _ = Describe("A version that only adds", Label("all"), func() {
	It("shuts nobody out: old pods go on writing and restarting, and the program may go back without a lost request", func(ctx context.Context) {
		c := newClinic(ctx, 1000)
		c.startLoad(ctx, 6)
		c.apply(ctx, 6, additive)
		c.becomes(ctx, "True GateOpen")
		Expect(c.number(ctx, `SELECT schema_version FROM sync_schema_meta`)).To(BeEquivalentTo(7))
		Expect(c.number(ctx, `SELECT count(*) FROM patients WHERE remark IS NULL`)).To(BeNumerically(">=", 1000))

		By("an old pod being replaced")
		lost := c.pods(ctx, programs)[0]
		Expect(suite.admin.Delete(ctx, &lost)).To(Succeed())
		Eventually(func() int { return count(c.pods(ctx, programs), "6", corev1.PodReady) }).Should(Equal(3))

		By("the program of version 7 coming, and going again")
		c.apply(ctx, 6, additive+asksForSeven)
		c.rolledOut(ctx, "clinic")
		c.apply(ctx, 6, additive)
		c.rolledOut(ctx, "clinic")
		Expect(c.gates(ctx, "6")).To(HaveEach("GateOpen"))
		c.allowLoad(ctx, "read 6 200", "write 6 204")

		By("the fence, which nothing raised")
		schema := c.schema(ctx)
		Expect(meta.IsStatusConditionTrue(schema.Status.Conditions, v1alpha1.ConditionStalled)).To(BeFalse())
		Expect(schema.Status.MinWriterVersion).To(HaveValue(BeNumerically("<", 7)))
	}, SpecTimeout(5*time.Minute))
})

var _ = Describe("A version that old readers do not understand", Label("all"), func() {
	It("takes them out of the service at the commit of the barrier, and lets the new ones in at the activation", func(ctx context.Context) {
		c := newClinic(ctx, 3000)
		c.startLoad(ctx, 6)
		c.apply(ctx, 7, slowly+readersToo)
		Eventually(func() int64 { return c.number(ctx, `SELECT schema_version FROM sync_schema_meta`) }).Should(BeEquivalentTo(7))
		Eventually(func() int { return count(c.pods(ctx, programs), "6", corev1.PodReady) }).Should(BeZero())
		Eventually(func() []string { return c.gates(ctx, "6") }).Should(HaveExactElements("ReaderTooOld", "ReaderTooOld", "ReaderTooOld"))
		Expect(count(c.pods(ctx, programs), "7", corev1.PodReady)).To(BeZero())

		By("the activation letting the new readers in")
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		Eventually(func() int { return c.load(ctx)["read 7 200"] }).Should(BeNumerically(">", 60))
		c.seenOff(ctx, "6")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})
