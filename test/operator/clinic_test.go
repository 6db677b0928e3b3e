package operator

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
	"github.com/syncbarrier/syncbarrier/test/gitops"
)

// rows is how many rows the table has.
const rows = 3000

// resync is how often the operator looks at an object at rest.
const resync = 5 * time.Second

// clinic is a namespace with a database, its Secret in the form that other operators write, and an operator that watches it.
type clinic struct {
	namespace string
	dsn       string
	db        *pgx.Conn
	operator  *exec.Cmd
	log       *gbytes.Buffer
	exited    chan struct{}
}

func newClinic(ctx context.Context) *clinic {
	GinkgoHelper()
	return newClinicAt(ctx, testdb.Postgres(GinkgoTB()))
}

// newClinicAt has an empty database of the spec's own.
func newClinicAt(ctx context.Context, dsn string) *clinic {
	GinkgoHelper()
	c := &clinic{dsn: dsn, log: gbytes.NewBuffer()}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "clinic-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	Expect(suite.admin.Create(ctx, namespace)).To(Succeed())
	c.namespace = namespace.Name
	var err error
	c.db, err = pgx.Connect(ctx, c.dsn)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx context.Context) { Expect(c.db.Close(ctx)).To(Succeed()) })
	c.sql(ctx, `CREATE TABLE todos(id BIGINT PRIMARY KEY, tenant TEXT NOT NULL, title TEXT NOT NULL)`)
	c.sql(ctx, `INSERT INTO todos SELECT n, 'tenant-' || n % 4, 'Todo Nr. ' || n FROM generate_series(1, $1::int) n`, rows)
	c.writeSecret(ctx, c.dsn)
	DeferCleanup(c.stopOperator)
	return c
}

// writeSecret writes the parts of an address as CloudNativePG names them.
func (c *clinic) writeSecret(ctx context.Context, dsn string) {
	GinkgoHelper()
	at, err := url.Parse(dsn)
	Expect(err).NotTo(HaveOccurred())
	password, _ := at.User.Password()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "clinic-app"}, StringData: map[string]string{
		"host": at.Hostname(), "port": at.Port(), "dbname": strings.TrimPrefix(at.Path, "/"), "username": at.User.Username(), "password": password,
	}}
	if err := suite.admin.Create(ctx, secret); err != nil {
		Expect(suite.admin.Update(ctx, secret)).To(Succeed())
	}
}

func (c *clinic) sql(ctx context.Context, statement string, arguments ...any) {
	GinkgoHelper()
	_, err := c.db.Exec(ctx, statement, arguments...)
	Expect(err).NotTo(HaveOccurred())
}

func (c *clinic) number(ctx context.Context, query string, arguments ...any) int64 {
	GinkgoHelper()
	var n int64
	Expect(c.db.QueryRow(ctx, query, arguments...).Scan(&n)).To(Succeed())
	return n
}

func (c *clinic) text(ctx context.Context, query string) string {
	GinkgoHelper()
	var text string
	Expect(c.db.QueryRow(ctx, query).Scan(&text)).To(Succeed())
	return text
}

// rowsDone is how many rows the workers have filled, by the database's own count.
func (c *clinic) rowsDone(ctx context.Context) int64 {
	if c.number(ctx, `SELECT count(*) FROM pg_tables WHERE tablename = 'sync_backfill_progress'`) == 0 {
		return 0
	}
	return c.number(ctx, `SELECT coalesce(sum(rows_done), 0)::bigint FROM sync_backfill_progress`)
}

// unthrottle lets workers go as fast as they can: settings are read from the database with each batch.
func (c *clinic) unthrottle(ctx context.Context) {
	GinkgoHelper()
	c.sql(ctx, `UPDATE sync_backfill_definitions SET settings = '{}'`)
}

// commit writes a row and its commit as a program of a version.
func (c *clinic) commit(ctx context.Context, version, id int) error {
	tx, err := c.db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // committed or not, it is over
	tenant := fmt.Sprintf("tenant-%d", id%4)
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO sync_partitions(partition) VALUES ($1) ON CONFLICT (partition) DO NOTHING`, tenant)
	batch.Queue(`UPDATE sync_partitions SET max_commit_seq = max_commit_seq + 1 WHERE partition = $1`, tenant)
	batch.Queue(`UPDATE todos SET title = $1::text WHERE id = $2`, fmt.Sprintf("Written by %d", version), id)
	batch.Queue(`INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		SELECT partition, max_commit_seq, 'c', max_commit_seq::text, 'a', 0, $2 FROM sync_partitions WHERE partition = $1`, tenant, version)
	batch.Queue(`INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
		SELECT partition, max_commit_seq, 0, 'todos', $2::text, 1, '{}' FROM sync_partitions WHERE partition = $1`, tenant, fmt.Sprint(id))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// manifest is a version of the schema as it stands in Git. %s is what a spec changes about the backfill.
func (c *clinic) manifest(version int, backfill, more string) string {
	text := fmt.Sprintf(`
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic, namespace: %s}
spec:
  version: %d
  database:
    postgres:
      connection:
        hostFrom: {secretKeyRef: {name: clinic-app, key: host}}
        portFrom: {secretKeyRef: {name: clinic-app, key: port}}
        databaseFrom: {secretKeyRef: {name: clinic-app, key: dbname}}
        userFrom: {secretKeyRef: {name: clinic-app, key: username}}
        passwordFrom: {secretKeyRef: {name: clinic-app, key: password}}
        sslMode: disable
  tables:
  - name: todos
    columns:
    - {name: id, type: integer}
    - {name: tenant, type: string}
    - {name: title, type: string}
`, c.namespace, version)
	if version >= 7 {
		text += "    - {name: title_norm, type: string, nullable: true}\n"
	}
	text += "    primaryKey: [id]\n    partition: {column: tenant}\n"
	if version >= 7 {
		text += fmt.Sprintf(`
  checkpoints:
  - name: title-norm
    version: 7
    sources: [{table: todos, changes: CommitLog}]
    backfill: {%s}
    verify: [{name: none-missing, query: SELECT id FROM todos WHERE title_norm IS NULL}]
`, backfill)
	}
	return text + more
}

// lower is the backfill of most specs, at most so many rows a second; 0: as fast as it goes.
func lower(perSecond int) string {
	return fmt.Sprintf("update: {table: todos, set: {title_norm: lower(title)}}, batchRows: 50, maxRowsPerSecond: %d", perSecond)
}

// apply applies as a GitOps tool does.
func (c *clinic) apply(manifest string) {
	GinkgoHelper()
	_, err := suite.cluster.Kubectl(manifest, "apply", "--server-side", "--field-manager=argocd-controller", "--force-conflicts", "-f", "-")
	Expect(err).NotTo(HaveOccurred())
}

// startOperator starts the manager with the rights of its ServiceAccount.
func (c *clinic) startOperator() {
	GinkgoHelper()
	c.startOperatorOf(image)
}

// startOperatorOf starts one whose workers have a certain image, and which watches further namespaces.
func (c *clinic) startOperatorOf(image string, further ...string) {
	GinkgoHelper()
	kubeconfig := suite.cluster.Kubeconfig("manager", suite.cluster.ServiceAccount(operatorNamespace, operatorAccount))
	c.operator = exec.Command(suite.manager, "--kubeconfig", kubeconfig, "--namespaces", strings.Join(append(further, c.namespace), ","),
		"--worker-image", image, "--resync", resync.String(),
		"--leader-election-namespace", operatorNamespace, "--health-bind-address=0", "--metrics-bind-address=0")
	c.operator.Stderr, c.operator.Stdout = c.log, c.log
	Expect(c.operator.Start()).To(Succeed())
	exited, operator := make(chan struct{}), c.operator
	c.exited = exited
	go func() {
		_ = operator.Wait() // its exit code is read by stopOperator
		close(exited)
	}()
}

// stopOperator scales the operator to zero. It ends well.
func (c *clinic) stopOperator() {
	GinkgoHelper()
	if c.operator == nil {
		return
	}
	Expect(c.operator.Process.Signal(syscall.SIGTERM)).To(Succeed())
	Eventually(c.exited, 30*time.Second).Should(BeClosed(), "the operator does not end:\n%s", c.log.Contents())
	Expect(c.operator.ProcessState.ExitCode()).To(BeZero(), "the operator's log:\n%s", c.log.Contents())
	c.operator = nil
}

// schema and checkpoint read an object as it is at the moment, and check what every object must be whenever it is looked at.
func (c *clinic) schema(ctx context.Context) *v1alpha1.SyncSchema {
	GinkgoHelper()
	var object v1alpha1.SyncSchema
	Expect(suite.admin.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: "clinic"}, &object)).To(Succeed())
	Expect(gitops.Check(ctx, &object)).To(Succeed(), "at every moment, for every tool")
	return &object
}

func (c *clinic) checkpoint(ctx context.Context) *v1alpha1.BackfillCheckpoint {
	GinkgoHelper()
	var object v1alpha1.BackfillCheckpoint
	if suite.admin.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: "clinic-title-norm"}, &object) != nil {
		return &v1alpha1.BackfillCheckpoint{} // not made yet, or gone
	}
	Expect(gitops.Check(ctx, &object)).To(Succeed(), "at every moment, for every tool")
	return &object
}

func (c *clinic) jobs(ctx context.Context) []batchv1.Job {
	GinkgoHelper()
	var list batchv1.JobList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(c.namespace))).To(Succeed())
	return list.Items
}

func (c *clinic) pods(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(c.namespace))).To(Succeed())
	return list.Items
}

// reason is "<status of Ready> <its reason>", and nothing while the status is of another generation.
func reason(generation int64, conditions []metav1.Condition) string {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.ObservedGeneration != generation {
		return ""
	}
	return string(ready.Status) + " " + ready.Reason
}

func (c *clinic) becomes(ctx context.Context, want string) {
	GinkgoHelper()
	Eventually(func() string {
		object := c.schema(ctx)
		return reason(object.Generation, object.Status.Conditions)
	}).Should(Equal(want), func() string { return c.story(ctx) })
}

// show writes what a person sees of both kinds into the report of the spec.
func (c *clinic) show(moment string) {
	GinkgoHelper()
	output, err := suite.cluster.Kubectl("", "get", "syncschemas,backfillcheckpoints", "-n", c.namespace)
	Expect(err).NotTo(HaveOccurred())
	GinkgoWriter.Printf("# %s\n%s\n", moment, output)
}

// story is what is known when something does not happen.
func (c *clinic) story(ctx context.Context) string {
	text := "the operator's log:\n" + string(c.log.Contents()) + "\nthe containers' logs:\n" + suite.kubelet.AllLogs()
	output, err := suite.cluster.Kubectl("", "get", "syncschemas,backfillcheckpoints,jobs,pods", "-n", c.namespace, "-o", "yaml")
	if err != nil {
		return text + err.Error()
	}
	return text + output
}
