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

// fault is what goes wrong in the middle of upgrades.
type fault struct {
	prepare func(ctx context.Context)                     // before they begin; may be nil
	happens func(ctx context.Context, upgraded []*clinic) // returns when it is over
}

var faults = map[string]fault{
	"the operator is killed, both replicas": {happens: func(ctx context.Context, _ []*clinic) { killOperator(ctx) }},
	"the operator that leads stands still":  {prepare: installPatiently, happens: func(ctx context.Context, _ []*clinic) { freezeLeader(ctx) }},
	"the API server stands still":           {happens: func(ctx context.Context, _ []*clinic) { freezeAPIServer(ctx) }},
	"the database is killed":                {happens: killDatabases},
	"the database stands still":             {happens: freezeDatabases},
}

// phase is a part of an upgrade in which a fault comes.
type phase struct {
	name string
	// begin applies version 7, and returns what lets it go on from the phase.
	begin func(*clinic, context.Context) (release func())
	// reached returns when the upgrade is in the phase.
	reached func(*clinic, context.Context)
}

// The last of them passes soonest, so it is begun last and waited for last.
var phases = []phase{{
	name: "while its rows are filled",
	begin: func(c *clinic, ctx context.Context) func() {
		c.apply(ctx, 7, countingSlowly)
		return func() {}
	},
	reached: func(c *clinic, ctx context.Context) { c.workingPod(ctx, "") },
}, {
	name: "while its barrier waits for a writer",
	begin: func(c *clinic, ctx context.Context) func() {
		release := c.writer(ctx)
		c.apply(ctx, 7, counting)
		return release
	},
	reached: func(c *clinic, ctx context.Context) { c.becomes(ctx, "False LockTimeout") },
}, {
	name: "as soon as its gate is open",
	begin: func(c *clinic, ctx context.Context) func() {
		c.apply(ctx, 7, counting)
		return func() {}
	},
	reached: func(c *clinic, ctx context.Context) {
		Eventually(func() int64 {
			return c.number(ctx, `SELECT count(*) FROM sync_backfill_checkpoints WHERE state = 'activated'`)
		}).Should(BeEquivalentTo(1))
	},
}}

// One fault in one phase, by the seed that ginkgo prints; with E2E_ALL every fault in every phase: three clinics are upgraded at once, and
// each is in another phase when it comes.
var _ = Describe("A fault in the middle of an upgrade", func() {
	if os.Getenv("E2E_ALL") != "" {
		for _, what := range sorted(faults) {
			It(what+", in every phase: nothing is lost or done twice", func(ctx context.Context) {
				disturbed(ctx, faults[what], phases...)
			}, SpecTimeout(10*time.Minute))
		}
		return
	}
	configuration, _ := GinkgoConfiguration()
	chosen := int(configuration.RandomSeed % int64(len(faults)*len(phases)))
	what, when := sorted(faults)[chosen/len(phases)], phases[chosen%len(phases)]
	It(what+" "+when.name+": nothing is lost or done twice", func(ctx context.Context) {
		disturbed(ctx, faults[what], when)
	}, SpecTimeout(6*time.Minute))
})

// disturbed upgrades a clinic for each of the phases, has the fault come when each is in its own, and sees all of them through.
func disturbed(ctx context.Context, f fault, when ...phase) {
	GinkgoHelper()
	if f.prepare != nil {
		f.prepare(ctx)
	}
	upgraded := make([]*clinic, len(when))
	for i := range when {
		upgraded[i] = startClinic(ctx, counted)
	}
	releases := make([]func(), len(when))
	for i, c := range upgraded {
		c.serves(ctx)
		releases[i] = when[i].begin(c, ctx)
	}
	for i, c := range upgraded {
		By(c.namespace + ": " + when[i].name)
		when[i].reached(c, ctx)
	}
	By("the fault")
	f.happens(ctx, upgraded)
	for i, c := range upgraded {
		By(c.namespace + " becoming Ready")
		releases[i]()
		c.becomes(ctx, "True GateOpen")
		Expect(c.number(ctx, `SELECT count(*) FROM patients WHERE fills = 1`)).To(BeEquivalentTo(counted))
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}
}

// writer is one that has written and does not end until it is told to. No barrier gets past it.
func (c *clinic) writer(ctx context.Context) (end func()) {
	GinkgoHelper()
	connection := c.dial(Default, ctx)
	tx, err := connection.Begin(ctx)
	Expect(err).NotTo(HaveOccurred())
	_, err = tx.Exec(ctx, `UPDATE patients SET ward = ward WHERE id = 1`)
	Expect(err).NotTo(HaveOccurred())
	end = func() { _ = connection.Close(ctx) } // which it may be already, with its database
	DeferCleanup(end)
	return end
}

// standstill is for how long something stands still: longer than a lease of the operator lasts, and with E2E_ALL a minute.
func standstill() time.Duration {
	if os.Getenv("E2E_ALL") != "" {
		return time.Minute
	}
	return 20 * time.Second
}

func killDatabases(ctx context.Context, upgraded []*clinic) {
	GinkgoHelper()
	for _, c := range upgraded {
		killContainer(ctx, c.databasePod(ctx))
	}
	for _, c := range upgraded {
		c.connectAgain(ctx)
	}
}

func freezeDatabases(ctx context.Context, upgraded []*clinic) {
	GinkgoHelper()
	var databases []corev1.Pod
	for _, c := range upgraded {
		databases = append(databases, c.databasePod(ctx))
	}
	frozen(ctx, standstill(), databases...)
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

// freezeLeader has the replica that leads stand still until another one leads, and for a standstill in all, and go on as if nothing had
// been: it has to see that it leads no more, and end.
func freezeLeader(ctx context.Context) {
	GinkgoHelper()
	leader := leaderPod(ctx)
	frozen(ctx, standstill(), leader)
	Expect(leaderName(ctx)).NotTo(Equal(leader.Name), "nobody else has led")
	Eventually(func() int32 {
		var now corev1.Pod
		Expect(suite.admin.Get(ctx, client.ObjectKeyFromObject(&leader), &now)).To(Succeed())
		return now.Status.ContainerStatuses[0].RestartCount
	}).Should(Equal(leader.Status.ContainerStatuses[0].RestartCount+1), "it has not ended after another one led")
}

// installPatiently installs the operator with a probe that lets it stand still for ten minutes.
func installPatiently(ctx context.Context) {
	GinkgoHelper()
	DeferCleanup(installOperator)
	applyOperator(ctx, overlay("operator-patient", "config/default", "", `patches:
- target: {kind: Deployment, name: syncbarrier-manager}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/livenessProbe/failureThreshold, value: 60}
`))
}

// leaderPod waits for one of the operator's pods to hold its lease, and returns it.
func leaderPod(ctx context.Context) (leader corev1.Pod) {
	GinkgoHelper()
	Eventually(func() bool {
		name := leaderName(ctx)
		for _, pod := range operatorPods(ctx) {
			if leader = pod; pod.Name == name {
				return true
			}
		}
		return false
	}).Should(BeTrue(), "no pod of the operator leads")
	return leader
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

// frozen has the processes of pods stand still for a time. They go on in any case.
func frozen(ctx context.Context, period time.Duration, pods ...corev1.Pod) {
	GinkgoHelper()
	for _, pod := range pods {
		containerTask(ctx, pod, "pause")
		defer containerTask(context.WithoutCancel(ctx), pod, "resume")
	}
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
