//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

// roundLimit is how long one round of the soak may take.
const roundLimit = 90 * time.Second

// disturbances are what happens to a round while its backfill is under way. Users must not notice any of them.
var disturbances = map[string]func(context.Context, corev1.Pod){
	"nothing":            func(context.Context, corev1.Pod) {},
	"the worker killed":  killContainer,
	"the worker deleted": func(ctx context.Context, pod corev1.Pod) { Expect(suite.admin.Delete(ctx, &pod)).To(Succeed()) },
	"one operator deleted": func(ctx context.Context, _ corev1.Pod) {
		Expect(suite.admin.Delete(ctx, operatorPod(ctx))).To(Succeed())
	},
	"one operator killed":   func(ctx context.Context, _ corev1.Pod) { killContainer(ctx, *operatorPod(ctx)) },
	"both operators killed": func(ctx context.Context, _ corev1.Pod) { killOperator(ctx) },
}

// `make soak` sets the number of rounds.
var _ = Describe("Soak", func() {
	rounds, err := strconv.Atoi(os.Getenv("SOAK_ROUNDS"))
	if err != nil {
		return // these are not asked for
	}
	It("goes from version to version under load, disturbed in each, and every promise holds after each", func(ctx context.Context) {
		random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
		c := newClinic(ctx, 2000)
		c.startLoad(ctx, 6)
		allowed := []string{"read 6 200", "write 6 204", "write 6 409"}
		for version := 7; version < 7+rounds; version++ {
			start := time.Now()
			what := sorted(disturbances)[random.IntN(len(disturbances))]
			c.apply(ctx, 7, later(version))
			disturbances[what](ctx, c.workingPod(ctx, ""))
			c.becomes(ctx, "True GateOpen")
			c.rolledOut(ctx, "clinic")
			taken := time.Since(start)
			c.holds(ctx, int64(version))
			Expect(c.number(ctx, wrong(version))).To(BeZero(), "rows whose derived values of some version are not what they are defined as")
			allowed = append(allowed, fmt.Sprintf("read %d 200", version), fmt.Sprintf("write %d 204", version), fmt.Sprintf("write %d 409", version))
			c.allowLoad(ctx, allowed...)
			GinkgoWriter.Printf("| %d | %s | %.1f s |\n", version, what, taken.Seconds())
			Expect(taken).To(BeNumerically("<", roundLimit))
		}
	}, SpecTimeout(time.Duration(rounds+2)*2*time.Minute))
})

// operatorPod is one of the operator's.
func operatorPod(ctx context.Context) *corev1.Pod {
	GinkgoHelper()
	pods := operatorPods(ctx)
	return &pods[rand.IntN(len(pods))]
}

// later makes of the manifests of version 7 those of a later one: each adds a column and a checkpoint, slow enough to be disturbed.
func later(version int) string {
	var schema strings.Builder
	for added := 8; added <= version; added++ {
		fmt.Fprintf(&schema, `
    - {op: add, path: /spec/tables/0/columns/-, value: {name: %[1]s, type: string, nullable: true}}
    - op: add
      path: /spec/checkpoints/-
      value:
        name: name-search-%[2]d
        version: %[2]d
        sources: [{table: patients, changes: Capture}]
        backfill: {update: {table: patients, set: {%[1]s: "%[3]s"}}}
        verify: [{name: none-missing, query: SELECT id FROM patients WHERE %[1]s IS NULL}]`, column(added), added, definition(added))
	}
	last := version - 7
	return fmt.Sprintf(`
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: replace, path: /spec/template/metadata/annotations/syncbarrier.dev~1requires, value: clinic=%[1]d}
    - {op: replace, path: /spec/template/spec/containers/0/env/0/value, value: "%[1]d"}
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: replace, path: /spec/version, value: %[1]d}%[2]s
    - {op: add, path: /spec/checkpoints/%[3]d/backfill/batchRows, value: 50}
    - {op: add, path: /spec/checkpoints/%[3]d/backfill/maxRowsPerSecond, value: 200}
`, version, schema.String(), last)
}

// column is what a version of the clinic derives, and definition what is in it.
func column(version int) string {
	if version == 7 {
		return "name_search"
	}
	return fmt.Sprintf("name_search_%d", version)
}

func definition(version int) string {
	if version == 7 {
		return "lower(name)"
	}
	return fmt.Sprintf("lower(name) || ' %d'", version)
}

// wrong counts the rows in which a derived value of any version so far is not what it is defined as.
func wrong(version int) string {
	var each []string
	for added := 7; added <= version; added++ {
		each = append(each, fmt.Sprintf("%s IS DISTINCT FROM %s", column(added), definition(added)))
	}
	return `SELECT count(*) FROM patients WHERE ` + strings.Join(each, ` OR `)
}
