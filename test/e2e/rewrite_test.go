//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/syncbarrier/syncbarrier/test/syncprogram"
)

// vitalSigns are the columns of the clinic's packed rows. The ninth is version 7's, and makes the bitmap in front of each row longer.
var vitalSigns = []string{"pulse", "systolic", "diastolic", "temperature", "breaths", "oxygen", "weight", "height", "pain"}

// vitalsOf has the clinic of a version keep vital signs. Of readers it says nothing.
func vitalsOf(version int) string {
	columns := vitalSigns
	if version < 7 {
		columns = vitalSigns[:8]
	}
	var table strings.Builder
	for _, name := range columns {
		fmt.Fprintf(&table, "\n          - {name: %s, type: integer, nullable: true}", name)
	}
	return `
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - op: add
      path: /spec/tables/-
      value:
        name: vitals
        layout: Syncular
        materialize: false
        columns:` + table.String() + `
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: VITALS, value: "kept"}}
`
}

var _ = Describe("A version that packs rows anew", Label("all"), func() {
	It("takes old readers out at the commit of its barrier, without being told to: none answers after it, and no row is ever misread", func(ctx context.Context) {
		c := newClinic(ctx, 3000, vitalsOf(6))
		c.startLoadOn(ctx, "clinic", 6, "\n    - {name: VITALS, value: asked}")
		Eventually(func() int { return c.load(ctx)["vitals read 6 200"] }).Should(BeNumerically(">", 60))
		Eventually(func() int { return c.load(ctx)["vitals write 6 204"] }).Should(BeNumerically(">", 20))

		By("the barrier of version 7, whose manifest says nothing of readers")
		c.patches = vitalsOf(7)
		c.apply(ctx, 7, verySlowly)
		Eventually(func() int64 { return c.number(ctx, `SELECT schema_version FROM sync_schema_meta`) }).Should(BeEquivalentTo(7))
		Expect(c.schema(ctx).Spec.MinReaderVersion).To(BeNil())
		old := c.programsOf(ctx, "6")
		Expect(old).To(HaveLen(3))
		for _, pod := range old {
			// Asked directly: what the Service knows by then does not matter. kubectl shows the status of an answer, 503, and not its text.
			_, err := tryKubectl(ctx, "", "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy/vitals/1", c.namespace, pod.Name))
			Expect(err).To(MatchError(ContainSubstring("currently unable to handle the request")), "%s answers who asks it directly", pod.Name)
		}

		By("the old pods being out, for kept connections too, while the new ones wait")
		Eventually(func() int { return count(c.pods(ctx, programs), "6", corev1.PodReady) }).Should(BeZero())
		Eventually(func() []string { return c.gates(ctx, "6") }).Should(HaveExactElements("ReaderTooOld", "ReaderTooOld", "ReaderTooOld"))
		Eventually(func() *int64 { return c.schema(ctx).Status.MinReaderVersion }).Should(HaveValue(BeEquivalentTo(7)))
		last := c.silent(ctx, "6")
		Expect(count(c.pods(ctx, programs), "7", corev1.PodReady)).To(BeZero())

		By("the activation letting the new readers in, which read every row packed anew")
		c.apply(ctx, 7, "")
		c.becomes(ctx, "True GateOpen")
		c.rolledOut(ctx, "clinic")
		Eventually(func() int { return c.load(ctx)["vitals read 7 200"] }).Should(BeNumerically(">", 60))
		Eventually(func() int { return c.load(ctx)["vitals write 7 204"] }).Should(BeNumerically(">", 20))
		c.seenOff(ctx, "6")
		c.allowLoad(ctx, "read 6 200", "write 6 204", "write 6 409", "read 7 200", "write 7 204", "read none error", "write none error",
			"vitals read 6 200", "vitals read 6 503", "vitals write 6 204", "vitals write 6 409",
			"vitals read 7 200", "vitals write 7 204", "vitals read none error", "vitals write none error")
		Expect(answersOf(c.load(ctx), "6")).To(Equal(last), "a pod of version 6 answered after it was out")
		for line := range strings.Lines(kubectl(ctx, "", "logs", "-n", c.namespace, "load")) {
			if strings.Contains(line, "answers 503") {
				Expect(line).To(ContainSubstring("ReaderTooOld"))
			}
		}
		c.vitalsAre(ctx, 3000)
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})

// silent waits until users have made 120 requests without an answer by a version, and returns how many it gave before.
func (c *clinic) silent(ctx context.Context, version string) (answered int) {
	GinkgoHelper()
	before := c.load(ctx)
	Eventually(func() bool {
		now := c.load(ctx)
		if total(now) < total(before)+120 {
			return false
		}
		answered = answersOf(now, version)
		quiet := answersOf(before, version) == answered
		before = now
		return quiet
	}).Should(BeTrue(), "pods of version %s go on answering", version)
	return answered
}

// answersOf is how many answers users got of a version.
func answersOf(load map[string]int, version string) (answers int) {
	for outcome, times := range load {
		if strings.Contains(outcome, " "+version+" ") {
			answers += times
		}
	}
	return answers
}

// vitalsAre checks every packed row as it lies in the database, by the protocol's own codec: it has the columns of version 7, and each
// sign is one more than the one before.
func (c *clinic) vitalsAre(ctx context.Context, rows int) {
	GinkgoHelper()
	var columns []syncprogram.Column
	for _, name := range vitalSigns {
		columns = append(columns, syncprogram.Column{Name: name, Type: "integer", Nullable: true})
	}
	found, err := c.db.Query(ctx, `SELECT _sync_payload FROM vitals`)
	Expect(err).NotTo(HaveOccurred())
	packed, err := pgx.CollectRows(found, pgx.RowTo[[]byte])
	Expect(err).NotTo(HaveOccurred())
	Expect(packed).To(HaveLen(rows))
	anew := 0
	for _, row := range packed {
		values, err := syncprogram.DecodeRow(columns, row)
		Expect(err).NotTo(HaveOccurred())
		first, ok := values[0].(int64)
		Expect(ok).To(BeTrue(), "a row without a pulse: %v", values)
		for i, value := range values {
			if i == 8 && value == nil {
				anew++ // by the barrier
				continue
			}
			Expect(value).To(Equal(first+int64(i)), "%s in %v", vitalSigns[i], values)
		}
	}
	Expect(anew).To(BeNumerically(">", 0), "no row is left that the barrier packed")
}
