//go:build e2e

package e2e

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// faults are what goes wrong in the middle of an upgrade. Each returns when it is over.
var faults = map[string]func(*clinic, context.Context){
	"the operator is killed, both replicas": func(_ *clinic, ctx context.Context) { killOperator(ctx) },
	"the operator that leads stands still":  func(_ *clinic, ctx context.Context) { freezeLeader(ctx) },
	"the API server stands still":           func(_ *clinic, ctx context.Context) { freezeAPIServer(ctx) },
	"the database is killed": func(c *clinic, ctx context.Context) {
		killContainer(ctx, c.databasePod(ctx))
		c.connectAgain(ctx)
	},
	"the database stands still": func(c *clinic, ctx context.Context) { frozen(ctx, c.databasePod(ctx), standstill()) },
}

// phases are when.
var phases = map[string]func(*clinic, context.Context){
	"as soon as version 7 is applied": func(*clinic, context.Context) {},
	"during the backfill":             func(c *clinic, ctx context.Context) { c.workingPod(ctx, "") },
	"as soon as the gate is open": func(c *clinic, ctx context.Context) {
		Eventually(func() int64 {
			return c.number(ctx, `SELECT count(*) FROM sync_backfill_checkpoints WHERE state = 'activated'`)
		}).Should(BeEquivalentTo(1))
	},
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

// standstill is for how long something stands still: longer than a lease of the operator lasts, and with E2E_ALL a minute.
func standstill() time.Duration {
	if os.Getenv("E2E_ALL") != "" {
		return time.Minute
	}
	return 20 * time.Second
}

// killOperator kills both replicas.
func killOperator(ctx context.Context) {
	GinkgoHelper()
	for _, pod := range operatorPods(ctx) {
		if is(pod, corev1.ContainersReady) {
			killContainer(ctx, pod)
		}
	}
}

// freezeLeader has the replica that leads stand still until another one leads, and go on as if nothing had been. A kubelet that has lost its
// patience with it by then has killed it, which is as good.
func freezeLeader(ctx context.Context) {
	GinkgoHelper()
	leader := leaderName(ctx)
	for _, pod := range operatorPods(ctx) {
		if pod.Name != leader {
			continue
		}
		containerTask(ctx, pod, "pause")
		Eventually(leaderName).WithContext(ctx).ShouldNot(Equal(leader), "nobody else leads")
		if output, err := tryContainerTask(ctx, pod, "resume"); err != nil {
			Expect(output).To(ContainSubstring("not found"))
		}
		return
	}
	Fail("no pod of the operator is called " + leader + ", which leads")
}

// leaderName is the pod that holds the operator's lease.
func leaderName(ctx context.Context) string {
	GinkgoHelper()
	var lease coordinationv1.Lease
	Expect(suite.admin.Get(ctx, types.NamespacedName{Namespace: ownNamespace, Name: "syncbarrier-manager"}, &lease)).To(Succeed())
	Expect(lease.Spec.HolderIdentity).NotTo(BeNil())
	name, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	return name
}

// frozen has a pod's processes stand still for a time. They go on in any case.
func frozen(ctx context.Context, pod corev1.Pod, period time.Duration) {
	GinkgoHelper()
	containerTask(ctx, pod, "pause")
	defer containerTask(context.WithoutCancel(ctx), pod, "resume")
	select {
	case <-ctx.Done():
	case <-time.After(period):
	}
}

// freezeAPIServer has the API server stand still: FREEZE_APISERVER is the command that does it.
func freezeAPIServer(ctx context.Context) {
	GinkgoHelper()
	command := strings.Fields(os.Getenv("FREEZE_APISERVER"))
	Expect(command).NotTo(BeEmpty(), "FREEZE_APISERVER names no command that freezes the API server of this cluster")
	command = append(command, strconv.Itoa(int(standstill().Seconds())))
	output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(output))
}

// operatorPods are the operator's replicas.
func operatorPods(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	var pods corev1.PodList
	Expect(suite.admin.List(ctx, &pods, client.InNamespace(ownNamespace), client.MatchingLabels{"app.kubernetes.io/component": "manager"})).To(Succeed())
	Expect(pods.Items).NotTo(BeEmpty())
	return pods.Items
}

// databasePod is the one that the clinic's database runs in.
func (c *clinic) databasePod(ctx context.Context) corev1.Pod {
	GinkgoHelper()
	pods := c.pods(ctx, client.MatchingLabels{"app": "clinic-db"})
	Expect(pods).To(HaveLen(1))
	return pods[0]
}

// sorted are a table's names in order, so that a seed chooses the same one every time.
func sorted[V any](table map[string]V) []string {
	return slices.Sorted(maps.Keys(table))
}
