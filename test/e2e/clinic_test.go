//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// password is of a database that lives as long as its story.
const password = "kept-out-of-git"

// clinic is the sample application in a namespace of its own, with its database.
type clinic struct {
	namespace string
	db        *pgx.Conn
	patients  int
	patches   string
}

// newClinic brings the clinic up at version 6, with so many patients, and returns when it serves and its schema is Ready.
// What is different about its manifests, in every version, is said by patches.
func newClinic(ctx context.Context, patients int, patches ...string) *clinic {
	GinkgoHelper()
	c := startClinic(ctx, patients, patches...)
	c.serves(ctx)
	return c
}

// startClinic is newClinic, which does not wait for it to serve.
func startClinic(ctx context.Context, patients int, patches ...string) *clinic {
	GinkgoHelper()
	c := newDatabase(ctx, patients, patches...)
	c.apply(ctx, 6, c.filled())
	return c
}

// serves waits until it does.
func (c *clinic) serves(ctx context.Context) {
	GinkgoHelper()
	c.becomes(ctx, "True GateOpen")
	c.rolledOut(ctx, "clinic")
	Expect(c.number(ctx, `SELECT count(*) FROM patients`)).To(BeEquivalentTo(c.patients))
}

// filled has the first program fill the database.
func (c *clinic) filled() string {
	return fmt.Sprintf(`
- target: {kind: Deployment, name: clinic}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: PATIENTS, value: "%d"}}
`, c.patients)
}

// newDatabase is a clinic of which there is the database and nothing else, in a namespace of its own.
func newDatabase(ctx context.Context, patients int, patches ...string) *clinic {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "clinic-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	Expect(suite.admin.Create(ctx, namespace)).To(Succeed())
	c := &clinic{namespace: namespace.Name, patients: patients, patches: strings.Join(patches, "")}
	DeferCleanup(func(ctx context.Context) { c.remove(ctx) }, NodeTimeout(2*time.Minute))

	// The database first: its address is a part of the Secret that everything else reads.
	kubectl(ctx, "", "apply", "-k", overlay(c.namespace+"/base", "examples/clinic/app/deploy/base", c.namespace, ""))
	var service corev1.Service
	Expect(suite.admin.Get(ctx, c.key("clinic-db"), &service)).To(Succeed())
	Expect(suite.admin.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "clinic-app"},
		StringData: map[string]string{
			"password": password,
			"uri":      fmt.Sprintf("postgres://postgres:%s@%s:5432/clinic?sslmode=disable", password, service.Spec.ClusterIP),
		},
	})).To(Succeed())
	c.rolledOut(ctx, "clinic-db")
	c.connect(Default, ctx)
	return c
}

// remove deletes the namespace, after it was written down what was in it if the story failed.
func (c *clinic) remove(ctx context.Context) {
	GinkgoHelper()
	if CurrentSpecReport().Failed() {
		for _, args := range [][]string{
			{"get", "ssch,bfc,jobs,pods", "-n", c.namespace, "-o", "wide"},
			{"get", "ssch,bfc", "-n", c.namespace, "-o", "yaml"},
			{"get", "events", "-n", c.namespace, "--sort-by=.lastTimestamp"},
			{"logs", "-n", ownNamespace, "-l", "app.kubernetes.io/component=manager", "--tail=40"},
			{"logs", "-n", c.namespace, "-l", "app.kubernetes.io/component=worker", "--tail=20"},
		} {
			output, err := tryKubectl(ctx, "", args...)
			GinkgoWriter.Printf("kubectl %s: %v\n%s\n", strings.Join(args, " "), err, output)
		}
	}
	if c.db != nil {
		// The connection goes with the database.
		_ = c.db.Close(ctx)
	}
	kubectl(ctx, "", "delete", "namespace", c.namespace, "--wait=false")
}

// apply does what a GitOps tool does with the folder of a version.
func (c *clinic) apply(ctx context.Context, version int, patches string) {
	GinkgoHelper()
	if patches += c.patches; patches != "" {
		patches = "patches:" + patches
	}
	name := fmt.Sprintf("%s/v%d", c.namespace, version)
	kubectl(ctx, "", "apply", "-k", overlay(name, fmt.Sprintf("examples/clinic/app/deploy/v%d", version), c.namespace, patches))
}

// connectAgain is connect, for a database that was killed: until it is back.
func (c *clinic) connectAgain(ctx context.Context) {
	GinkgoHelper()
	_ = c.db.Close(ctx) // it is broken
	Eventually(c.connect).WithContext(ctx).Should(Succeed())
}

// connect opens the connection that the story asks the database on.
func (c *clinic) connect(g Gomega, ctx context.Context) {
	c.db = c.dial(g, ctx)
}

// dial opens a connection to the database from here, through a forwarded port of its own.
func (c *clinic) dial(g Gomega, ctx context.Context) *pgx.Conn {
	forward := exec.Command(suite.kubectl, "port-forward", "-n", c.namespace, "service/clinic-db", ":5432")
	output, err := forward.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(forward.Start()).To(Succeed())
	DeferCleanup(func() {
		Expect(forward.Process.Kill()).To(Succeed())
		_ = forward.Wait() // it was killed
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	g.Expect(err).NotTo(HaveOccurred())
	var port int
	_, err = fmt.Sscanf(line, "Forwarding from 127.0.0.1:%d", &port)
	g.Expect(err).NotTo(HaveOccurred(), "kubectl port-forward says: %s", line)
	address := fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/clinic?sslmode=disable&application_name=story", password, port)
	connection, err := pgx.Connect(ctx, address)
	g.Expect(err).NotTo(HaveOccurred())
	return connection
}

func (c *clinic) number(ctx context.Context, query string, arguments ...any) int64 {
	GinkgoHelper()
	var n int64
	Expect(c.db.QueryRow(ctx, query, arguments...).Scan(&n)).To(Succeed())
	return n
}

// rowsDone is how many rows the workers have filled, by the database's own count.
func (c *clinic) rowsDone(ctx context.Context) int64 {
	return c.number(ctx, `SELECT coalesce(sum(rows_done), 0)::bigint FROM sync_backfill_progress`)
}

func (c *clinic) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.namespace, Name: name}
}

func (c *clinic) rolledOut(ctx context.Context, deployment string) {
	GinkgoHelper()
	kubectl(ctx, "", "rollout", "status", "deployment/"+deployment, "-n", c.namespace, "--timeout=120s")
}

func (c *clinic) schema(ctx context.Context) *v1alpha1.SyncSchema {
	GinkgoHelper()
	var object v1alpha1.SyncSchema
	Expect(suite.admin.Get(ctx, c.key("clinic"), &object)).To(Succeed())
	return &object
}

// becomes waits for "<status of Ready> <its reason>" of the schema as it is now.
func (c *clinic) becomes(ctx context.Context, want string) {
	GinkgoHelper()
	Eventually(func() string {
		object := c.schema(ctx)
		return reason(object.Generation, object.Status.Conditions)
	}).Should(Equal(want))
}

// reason is "<status of Ready> <its reason>", and nothing while the status is of another generation.
func reason(generation int64, conditions []metav1.Condition) string {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.ObservedGeneration != generation {
		return ""
	}
	return string(ready.Status) + " " + ready.Reason
}

func (c *clinic) checkpoints(ctx context.Context) []v1alpha1.BackfillCheckpoint {
	GinkgoHelper()
	var list v1alpha1.BackfillCheckpointList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(c.namespace))).To(Succeed())
	return list.Items
}

func (c *clinic) jobs(ctx context.Context) []batchv1.Job {
	GinkgoHelper()
	var list batchv1.JobList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(c.namespace))).To(Succeed())
	return list.Items
}

// pods are those of the application, or of the workers, that are not on their way out.
func (c *clinic) pods(ctx context.Context, labels client.MatchingLabels) (found []corev1.Pod) {
	GinkgoHelper()
	var list corev1.PodList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(c.namespace), labels)).To(Succeed())
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			found = append(found, pod)
		}
	}
	return found
}

var (
	workers  = client.MatchingLabels{"app.kubernetes.io/component": "worker"}
	programs = client.MatchingLabels{"app": "clinic"}
)

// deployment is that of the application.
func (c *clinic) deployment(ctx context.Context) *appsv1.Deployment {
	GinkgoHelper()
	var object appsv1.Deployment
	Expect(suite.admin.Get(ctx, c.key("clinic"), &object)).To(Succeed())
	return &object
}
