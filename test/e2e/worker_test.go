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
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// A worker that is asked to end rolls its batch back and ends at once, so a grace period is of no use to it. Here it cannot: it stands
// still, as on a node that swaps, and wakes up when nobody counts on it any more.
var _ = Describe("A worker that stands still", Label("all"), func() {
	It("in the grace of its eviction, is waited for: its Job makes no second pod beside it, and the node may be drained", func(ctx context.Context) {
		c := newClinic(ctx, counted)
		c.apply(ctx, 7, countingSlowly+patiently)
		first := c.workingPod(ctx, "")
		Expect(first.Spec.TerminationGracePeriodSeconds).To(HaveValue(BeEquivalentTo(60)))
		standStill(ctx, first)
		Expect(evict(ctx, first)).To(Succeed())
		done := c.settledRows(ctx)
		Consistently(func(g Gomega) {
			g.Expect(c.workerPods(ctx)).To(HaveExactElements(HaveField("UID", first.UID)), "a second worker beside one that is not at its end")
			g.Expect(c.rowsDone(ctx)).To(Equal(done))
		}, 15*time.Second).Should(Succeed())

		By("the node being drained, and the worker waking up")
		kubectl(ctx, "", "cordon", first.Spec.NodeName)
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "", "uncordon", first.Spec.NodeName) })
		goOn(ctx, first)
		Eventually(func() []corev1.Pod { return c.workerPods(ctx) }).Should(HaveExactElements(HaveField("UID", Not(Equal(first.UID)))))
		kubectl(ctx, "", "uncordon", first.Spec.NodeName)
		c.workingPod(ctx, first.UID)
		c.countedOnce(ctx)
		Expect(c.jobs(ctx)).To(HaveLen(1))
	}, SpecTimeout(6*time.Minute))

	It("while another takes its claim over, writes nothing when it wakes up, and ends by saying so", func(ctx context.Context) {
		c := newClinic(ctx, counted)
		c.noteWhoFills(ctx)
		c.apply(ctx, 7, countingSlowly)
		first := c.workingPod(ctx, "")
		standStill(ctx, first)
		done := c.settledRows(ctx)
		epoch := c.number(ctx, `SELECT owner_epoch FROM sync_backfill_checkpoints`)
		byFirst := `SELECT count(*) FROM filled WHERE pid IN (SELECT pid FROM filled ORDER BY n LIMIT $1)`
		Expect(c.number(ctx, byFirst, done)).To(Equal(done), "who filled what is not noted")

		By("its Job being taken away: Kubernetes itself makes no second pod beside it")
		job := c.jobs(ctx)[0]
		both := job.DeepCopy()
		*both.Spec.PodReplacementPolicy = batchv1.TerminatingOrFailed
		Expect(suite.admin.Patch(ctx, both, client.MergeFrom(&job))).To(MatchError(ContainSubstring("podReplacementPolicy")))
		Expect(suite.admin.Delete(ctx, &job, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
		c.workingPod(ctx, first.UID)
		Expect(c.number(ctx, `SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeNumerically(">", epoch))

		By("the first waking up beside the second")
		goOn(ctx, first)
		Eventually(func() *corev1.ContainerStateTerminated {
			var now corev1.Pod
			Expect(suite.admin.Get(ctx, c.key(first.Name), &now)).To(Succeed())
			return now.Status.ContainerStatuses[0].State.Terminated
		}).Should(HaveField("ExitCode", BeEquivalentTo(10)), "it does not say that it lost its claim")
		c.countedOnce(ctx)
		Expect(c.number(ctx, byFirst, done)).To(Equal(done), "the first filled rows that were the second's")
	}, SpecTimeout(6*time.Minute))
})

// patiently gives a worker a minute to end.
const patiently = `
- target: {kind: SyncSchema, name: clinic}
  patch: |
    - {op: add, path: /spec/worker, value: {template: {spec: {terminationGracePeriodSeconds: 60}}}}
`

// standStill stops the pod's process, which then is told of nothing until goOn.
func standStill(ctx context.Context, pod corev1.Pod) {
	GinkgoHelper()
	containerTask(ctx, pod, "kill", "--signal", "SIGSTOP")
}

func goOn(ctx context.Context, pod corev1.Pod) {
	GinkgoHelper()
	containerTask(ctx, pod, "kill", "--signal", "SIGCONT")
}

// settledRows is rowsDone once nothing of a worker that stands still is under way in the database any more.
func (c *clinic) settledRows(ctx context.Context) int64 {
	GinkgoHelper()
	Eventually(func() int64 { return c.number(ctx, workerSessions+` AND state = 'active'`) }).Should(BeZero())
	return c.rowsDone(ctx)
}

// workerPods are all pods of workers that are not at their end, those on their way out included.
func (c *clinic) workerPods(ctx context.Context) (found []corev1.Pod) {
	GinkgoHelper()
	var list corev1.PodList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(c.namespace), workers)).To(Succeed())
	for _, pod := range list.Items {
		if pod.Status.Phase == corev1.PodPending || pod.Status.Phase == corev1.PodRunning {
			found = append(found, pod)
		}
	}
	return found
}

// noteWhoFills has the database note, in the order of time, which session filled a row.
func (c *clinic) noteWhoFills(ctx context.Context) {
	GinkgoHelper()
	_, err := c.db.Exec(ctx, `
		CREATE TABLE filled(n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, pid INTEGER NOT NULL);
		CREATE FUNCTION note_who_fills() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF to_jsonb(NEW) ->> 'fills' IS DISTINCT FROM to_jsonb(OLD) ->> 'fills' THEN
		    INSERT INTO public.filled(pid) VALUES (pg_backend_pid());
		  END IF;
		  RETURN NULL;
		END $$;
		CREATE TRIGGER note_who_fills AFTER UPDATE ON patients FOR EACH ROW EXECUTE FUNCTION note_who_fills()`)
	Expect(err).NotTo(HaveOccurred())
}

// countedOnce has the rest of a backfill done without a throttle, and checks that each row was filled exactly once.
func (c *clinic) countedOnce(ctx context.Context) {
	GinkgoHelper()
	kubectl(ctx, "", "patch", "syncschema/clinic", "-n", c.namespace, "--type=json", `--patch=[
		{"op": "replace", "path": "/spec/checkpoints/0/backfill/maxRowsPerSecond", "value": 0}]`)
	c.becomes(ctx, "True GateOpen")
	Expect(c.number(ctx, `SELECT count(*) FROM patients WHERE fills = 1`)).To(BeEquivalentTo(counted))
	c.rolledOut(ctx, "clinic")
	c.holds(ctx, 7)
}

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
