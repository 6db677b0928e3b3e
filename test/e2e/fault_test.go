//go:build e2e

package e2e

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// faults are what is killed, as SIGKILL does, in the middle of an upgrade.
var faults = map[string]func(*clinic, context.Context){
	"the operator is killed, both replicas": func(_ *clinic, ctx context.Context) { killOperator(ctx) },
	"the database is killed": func(c *clinic, ctx context.Context) {
		pods := c.pods(ctx, client.MatchingLabels{"app": "clinic-db"})
		Expect(pods).To(HaveLen(1))
		killContainer(ctx, pods[0])
		c.connectAgain(ctx)
	},
}

// phases are when.
var phases = map[string]func(*clinic, context.Context){
	"as soon as version 7 is applied": func(*clinic, context.Context) {},
	"during the backfill":             func(c *clinic, ctx context.Context) { c.workingPod(ctx, "") },
}

// One fault in one phase, by the seed that ginkgo prints; with E2E_ALL every fault in every phase.
var _ = Describe("A fault in the middle of an upgrade", func() {
	configuration, _ := GinkgoConfiguration()
	chosen, number := configuration.RandomSeed%int64(len(faults)*len(phases)), int64(0)
	for _, when := range sorted(phases) {
		for _, what := range sorted(faults) {
			if os.Getenv("E2E_ALL") == "" && number != chosen {
				number++
				continue
			}
			number++
			It(what+" "+when+": nothing is lost or done twice", func(ctx context.Context) {
				c := newClinic(ctx, counted)
				c.apply(ctx, 7, counting)
				phases[when](c, ctx)
				faults[what](c, ctx)
				c.becomes(ctx, "True GateOpen")
				Expect(c.number(ctx, `SELECT count(*) FROM patients WHERE fills = 1`)).To(BeEquivalentTo(counted))
				c.rolledOut(ctx, "clinic")
				c.holds(ctx, 7)
			}, SpecTimeout(6*time.Minute))
		}
	}
})

// killOperator kills both replicas.
func killOperator(ctx context.Context) {
	GinkgoHelper()
	var pods corev1.PodList
	Expect(suite.admin.List(ctx, &pods, client.InNamespace(ownNamespace), client.MatchingLabels{"app.kubernetes.io/component": "manager"})).To(Succeed())
	for _, pod := range pods.Items {
		if is(pod, corev1.ContainersReady) {
			killContainer(ctx, pod)
		}
	}
}

// sorted are a table's names in order, so that a seed chooses the same one every time.
func sorted[V any](table map[string]V) []string {
	return slices.Sorted(maps.Keys(table))
}
