//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// counted is how many patients there are while workers are lost: at the rate below half a minute's work.
const counted = 3000

// counting has the backfill count in a column of its own how often it has filled a row, slowly enough to be disturbed.
const counting = `
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: add, path: /spec/tables/0/columns/-, value: {name: fills, type: integer, nullable: true}}
    - {op: add, path: /spec/checkpoints/0/backfill/update/set/fills, value: "coalesce(fills, 0) + 1"}
    - {op: add, path: /spec/checkpoints/0/backfill/batchRows, value: 50}
    - {op: add, path: /spec/checkpoints/0/backfill/maxRowsPerSecond, value: 100}
`

// countingSlowly is counting, for a minute and a quarter.
var countingSlowly = strings.Replace(counting, "maxRowsPerSecond, value: 100", "maxRowsPerSecond, value: 40", 1)

var _ = Describe("A worker that is lost", func() {
	It("evicted, killed or deleted, is replaced, and no row is lost or filled twice", func(ctx context.Context) {
		c := newClinic(ctx, counted)
		c.apply(ctx, 7, counting)
		for how, lose := range []struct {
			by   string
			lose func(context.Context, corev1.Pod)
		}{
			{"evicted", func(ctx context.Context, pod corev1.Pod) {
				Expect(evict(ctx, pod)).To(Succeed())
			}},
			{"killed", killContainer},
			{"deleted without grace", func(ctx context.Context, pod corev1.Pod) {
				Expect(suite.admin.Delete(ctx, &pod, client.GracePeriodSeconds(0))).To(Succeed())
			}},
		} {
			By(fmt.Sprintf("%d: the worker being %s", how+1, lose.by))
			pod := c.workingPod(ctx, "")
			lose.lose(ctx, pod)
			c.workingPod(ctx, pod.UID)
		}
		Expect(c.rowsDone(ctx)).To(BeNumerically("<", counted), "the backfill was over before the last worker was lost")
		c.becomes(ctx, "True GateOpen")
		Expect(c.number(ctx, `SELECT count(*) FROM patients WHERE fills = 1`)).To(BeEquivalentTo(counted),
			"the rows that were filled another number of times than once: %d", c.number(ctx, `SELECT count(*) FROM patients WHERE fills IS DISTINCT FROM 1`))
		Expect(c.jobs(ctx)).To(HaveLen(1), "a lost worker is replaced within its Job")
		c.rolledOut(ctx, "clinic")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))
})

// workingPod waits for a worker, other than the one that was lost, that has filled rows since it started.
func (c *clinic) workingPod(ctx context.Context, lost types.UID) (working corev1.Pod) {
	GinkgoHelper()
	Eventually(func() bool {
		for _, pod := range c.pods(ctx, workers) {
			if pod.UID != lost && pod.Status.Phase == corev1.PodRunning {
				working = pod
				return true
			}
		}
		return false
	}).Should(BeTrue(), "no other worker runs")
	before := c.rowsDone(ctx)
	Eventually(func() int64 { return c.rowsDone(ctx) }).Should(BeNumerically(">", before), "the worker fills nothing")
	return working
}

// killContainer sends SIGKILL to the pod's process, which only the node can.
func killContainer(ctx context.Context, pod corev1.Pod) {
	GinkgoHelper()
	containerTask(ctx, pod, "kill", "--signal", "SIGKILL")
}

// containerTask has containerd do something to the pod's container.
func containerTask(ctx context.Context, pod corev1.Pod, arguments ...string) {
	GinkgoHelper()
	output, err := tryContainerTask(ctx, pod, arguments...)
	Expect(err).NotTo(HaveOccurred(), output)
}

// tryContainerTask is containerTask, which may fail: CONTAINER_TASKS is containerd's command on the node.
func tryContainerTask(ctx context.Context, pod corev1.Pod, arguments ...string) (string, error) {
	GinkgoHelper()
	container := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	tasks := os.Getenv("CONTAINER_TASKS")
	Expect(tasks).NotTo(BeEmpty(), "CONTAINER_TASKS names no command for the containers of this cluster")
	command := append(strings.Fields(tasks), append(arguments, container)...)
	output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	return string(output), err
}
