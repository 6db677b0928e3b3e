package controllers

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// world is what one spec works in: a namespace, a database, and reconcilers that act as the operator's ServiceAccount and are called
// directly, so that nothing has to be waited for.
type world struct {
	ctx         context.Context
	namespace   string
	dsn         string
	db          *pgx.Conn
	clock       *stillClock
	databases   *Databases
	schemas     *SyncSchemaReconciler
	checkpoints *BackfillCheckpointReconciler
	events      *heardEvents
	opened      atomic.Int32 // Stores opened
}

// newWorld makes one with a table of patients and a Secret with the database's URL.
func newWorld() *world {
	w := &world{ctx: context.Background(), clock: newStillClock(), events: &heardEvents{}}
	w.namespace = newNamespace(w.ctx)
	w.dsn = testdb.Postgres(GinkgoTB())
	w.db = connectTo(w.ctx, w.dsn)
	w.makePatients()
	w.secret("clinic-app", map[string]string{"uri": w.dsn})
	w.newOperator()
	return w
}

func (w *world) makePatients() {
	GinkgoHelper()
	w.sql(`CREATE TABLE patients (id bigint PRIMARY KEY, ward text NOT NULL, name text NOT NULL)`)
	w.sql(`INSERT INTO patients SELECT n, 'ward-' || n % 3, 'Name ' || n FROM generate_series(1, 300) n`)
}

// newOperator makes reconcilers that remember nothing, as after a restart of the operator.
func (w *world) newOperator() {
	if w.databases != nil {
		w.databases.Close()
	}
	w.databases = NewDatabases(func(ctx context.Context, c Connection) (Database, error) {
		w.opened.Add(1)
		return openDatabase(ctx, c)
	}, w.clock)
	DeferCleanup(w.databases.Close)
	middle := func() float64 { return 0.5 }
	w.schemas = &SyncSchemaReconciler{
		Client: suite.operator, Live: suite.operator, Databases: w.databases, Events: w.events, Clock: w.clock,
		Cluster: suite.identity, Image: "syncbarrier:test", Jitter: middle,
	}
	w.checkpoints = &BackfillCheckpointReconciler{
		Client: suite.operator, Live: suite.operator, Databases: w.databases, Events: w.events, Clock: w.clock,
		Cluster: suite.identity, Image: "syncbarrier:test", Jitter: middle,
	}
}

func connectTo(ctx context.Context, dsn string) *pgx.Conn {
	connection, err := pgx.Connect(ctx, dsn)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(connection.Close(context.Background())).To(Succeed()) })
	return connection
}

func (w *world) sql(statement string, arguments ...any) {
	GinkgoHelper()
	_, err := w.db.Exec(w.ctx, statement, arguments...)
	Expect(err).NotTo(HaveOccurred())
}

func (w *world) number(query string, arguments ...any) int64 {
	GinkgoHelper()
	var n int64
	Expect(w.db.QueryRow(w.ctx, query, arguments...).Scan(&n)).To(Succeed())
	return n
}

func (w *world) secret(name string, data map[string]string) {
	GinkgoHelper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, StringData: data}
	err := suite.admin.Create(w.ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		err = suite.admin.Update(w.ctx, secret)
	}
	Expect(err).NotTo(HaveOccurred())
}

// clinic is version 6 of a schema without a backfill, or a later one with a column that has to be filled.
func (w *world) clinic(version int32, change ...func(*v1alpha1.SyncSchema)) *v1alpha1.SyncSchema {
	schema := &v1alpha1.SyncSchema{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "clinic"}}
	schema.Spec.Version = version
	schema.Spec.Database.Postgres = &v1alpha1.PostgresDatabase{
		URLFrom: &v1alpha1.SecretValue{SecretKeyRef: v1alpha1.KeyReference{Name: "clinic-app", Key: "uri"}},
	}
	patients := v1alpha1.Table{Name: "patients", PrimaryKey: []string{"id"}, Partition: &v1alpha1.TablePartition{Column: "ward"}}
	patients.Columns = []v1alpha1.Column{{Name: "id", Type: "integer"}, {Name: "ward", Type: "string"}, {Name: "name", Type: "string"}}
	if version >= 7 {
		patients.Columns = append(patients.Columns, v1alpha1.Column{Name: "name_search", Type: "string", Nullable: true})
		schema.Spec.Checkpoints = []v1alpha1.Checkpoint{nameSearch()}
	}
	schema.Spec.Tables = []v1alpha1.Table{patients}
	for _, apply := range change {
		apply(schema)
	}
	return schema
}

func nameSearch() v1alpha1.Checkpoint {
	checkpoint := v1alpha1.Checkpoint{Name: "name-search", Version: 7}
	checkpoint.Sources = []v1alpha1.Source{{Table: "patients", Changes: v1alpha1.ChangesCommitLog}}
	checkpoint.Backfill.Update = &v1alpha1.Update{Table: "patients", Set: map[string]v1alpha1.Expression{"name_search": "lower(name)"}}
	checkpoint.Verify = []v1alpha1.Verify{{Name: "none-missing", Query: "SELECT id FROM patients WHERE name_search IS NULL"}}
	return checkpoint
}

// apply writes an object as a GitOps tool would.
func (w *world) apply(object client.Object) {
	GinkgoHelper()
	existing, ok := object.DeepCopyObject().(client.Object)
	Expect(ok).To(BeTrue())
	err := suite.admin.Get(w.ctx, client.ObjectKeyFromObject(object), existing)
	if apierrors.IsNotFound(err) {
		Expect(suite.admin.Create(w.ctx, object, client.FieldOwner("argocd"))).To(Succeed())
		return
	}
	Expect(err).NotTo(HaveOccurred())
	object.SetResourceVersion(existing.GetResourceVersion())
	Expect(suite.admin.Update(w.ctx, object, client.FieldOwner("argocd"))).To(Succeed())
}

func (w *world) annotate(object client.Object, key, value string) {
	GinkgoHelper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	Expect(suite.admin.Patch(w.ctx, object, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

func (w *world) schema() *v1alpha1.SyncSchema {
	GinkgoHelper()
	var object v1alpha1.SyncSchema
	Expect(suite.admin.Get(w.ctx, types.NamespacedName{Namespace: w.namespace, Name: "clinic"}, &object)).To(Succeed())
	return &object
}

func (w *world) checkpoint(name string) *v1alpha1.BackfillCheckpoint {
	GinkgoHelper()
	var object v1alpha1.BackfillCheckpoint
	Expect(suite.admin.Get(w.ctx, types.NamespacedName{Namespace: w.namespace, Name: name}, &object)).To(Succeed())
	return &object
}

// pass makes one pass over the schema, checks its status, and returns it with what the pass asked for.
func (w *world) pass() (*v1alpha1.SyncSchema, ctrl.Result) {
	GinkgoHelper()
	result, err := w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
	Expect(err).NotTo(HaveOccurred())
	object := w.schema()
	checkStatus(w.ctx, object)
	return object, result
}

// passCheckpoint does the same with a checkpoint.
func (w *world) passCheckpoint(name string) (*v1alpha1.BackfillCheckpoint, ctrl.Result) {
	GinkgoHelper()
	result, err := w.checkpoints.Reconcile(w.ctx, request(w.namespace, name))
	Expect(err).NotTo(HaveOccurred())
	object := w.checkpoint(name)
	checkStatus(w.ctx, object)
	return object, result
}

func request(namespace, name string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// bring goes on until the schema is Ready: passes, workers, and time in between. Between two steps it calls between, if that is given.
func (w *world) bring(between ...func()) *v1alpha1.SyncSchema {
	GinkgoHelper()
	const mostRounds = 12
	var object *v1alpha1.SyncSchema
	for range mostRounds {
		object, _ = w.pass()
		for _, do := range between {
			do()
		}
		var all v1alpha1.BackfillCheckpointList
		Expect(suite.admin.List(w.ctx, &all, client.InNamespace(w.namespace))).To(Succeed())
		for i := range all.Items {
			w.passCheckpoint(all.Items[i].Name)
			for _, do := range between {
				do()
			}
		}
		w.runWorkers()
		w.clock.advance(watchEvery)
		if readyReason(object.Status.Conditions) == v1alpha1.ReasonGateOpen {
			return object
		}
	}
	Fail("not Ready: " + describeConditions(object.Status.Conditions))
	return nil
}

// runWorkers runs the share of each Job that is not done, as its pods would, and returns how they ended.
func (w *world) runWorkers() map[string]error {
	GinkgoHelper()
	ended := map[string]error{}
	for _, job := range w.jobs() {
		if finished(&job) || isSuspended(&job) {
			continue
		}
		err := w.runWorker(&job)
		ended[job.Name] = err
		if err != nil {
			w.failJob(&job, exitCodeOf(err))
		} else {
			w.completeJob(&job)
		}
	}
	return ended
}

func (w *world) runWorker(job *batchv1.Job) error {
	GinkgoHelper()
	_, token, ok := jobClaim(job)
	Expect(ok).To(BeTrue())
	store, err := postgres.Open(w.ctx, postgres.Config{URL: w.dsn, Schema: w.schema().Spec.Database.Postgres.Schema})
	Expect(err).NotTo(HaveOccurred())
	defer store.Close()
	name := w.checkpoint(job.Labels[labelCheckpoint]).Spec.Name
	claim, err := store.ReadClaim(w.ctx, name, token)
	if err != nil {
		return err
	}
	of := int(wantedPods(job))
	for index := range of {
		if err := (&backfill.Runner{Store: store}).Run(w.ctx, claim, backfill.Share{Index: index, Of: of}); err != nil {
			return err
		}
	}
	return nil
}

func exitCodeOf(err error) int32 {
	for code, class := range classOfExit {
		if class == storage.ClassOf(err) {
			return code
		}
	}
	return 1
}

// completeJob and failJob write into a Job's status what the Job controller would.
func (w *world) completeJob(job *batchv1.Job) {
	GinkgoHelper()
	now := metav1.NewTime(w.clock.Now())
	job.Status.StartTime, job.Status.CompletionTime = &now, &now
	job.Status.Succeeded = wantedPods(job)
	job.Status.CompletedIndexes = "0"
	if n := wantedPods(job); n > 1 {
		job.Status.CompletedIndexes = fmt.Sprintf("0-%d", n-1)
	}
	w.endJob(job, batchv1.JobSuccessCriteriaMet, batchv1.JobComplete, "CompletionsReached", "")
}

func (w *world) failJob(job *batchv1.Job, code int32) {
	GinkgoHelper()
	now := metav1.NewTime(w.clock.Now())
	job.Status.StartTime = &now
	w.endJob(job, batchv1.JobFailureTarget, batchv1.JobFailed, "PodFailurePolicy",
		fmt.Sprintf("Container worker for pod %s/%s-0-x failed with exit code %d matching FailJob rule at index 1", job.Namespace, job.Name, code))
}

func (w *world) endJob(job *batchv1.Job, first, last batchv1.JobConditionType, reason, message string) {
	GinkgoHelper()
	for _, kind := range []batchv1.JobConditionType{first, last} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(w.clock.Now()), LastProbeTime: metav1.NewTime(w.clock.Now()),
		})
	}
	Expect(suite.admin.Status().Update(w.ctx, job)).To(Succeed())
}

// jobs are those of the namespace, by age.
func (w *world) jobs() []batchv1.Job {
	GinkgoHelper()
	var list batchv1.JobList
	Expect(suite.admin.List(w.ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
	var live []batchv1.Job
	for _, job := range list.Items {
		if job.DeletionTimestamp == nil {
			live = append(live, job)
		}
	}
	return live
}

// wipe takes the status of every object away, by hand.
func (w *world) wipe() {
	GinkgoHelper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":null}`))
	Expect(suite.admin.Status().Patch(w.ctx, w.schema(), patch)).To(Succeed())
	var all v1alpha1.BackfillCheckpointList
	Expect(suite.admin.List(w.ctx, &all, client.InNamespace(w.namespace))).To(Succeed())
	for i := range all.Items {
		Expect(suite.admin.Status().Patch(w.ctx, &all.Items[i], patch)).To(Succeed())
	}
}

// stillClock stands still until a spec moves it.
type stillClock struct {
	mu  sync.Mutex
	now time.Time
}

func newStillClock() *stillClock { return &stillClock{now: time.Now().Truncate(time.Second)} }

func (c *stillClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Sleep ends with the context: no reconciler sleeps, and the sweep of idle pools is called by hand.
func (c *stillClock) Sleep(ctx context.Context, _ time.Duration) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (c *stillClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// heardEvents keeps events.
type heardEvents struct {
	mu   sync.Mutex
	list []string
}

func (h *heardEvents) Eventf(_, _ runtime.Object, kind, reason, _, note string, arguments ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, kind+" "+reason+": "+fmt.Sprintf(note, arguments...))
}

// of counts the events with a reason.
func (h *heardEvents) of(reason string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	count := 0
	for _, line := range h.list {
		if strings.Contains(line, " "+reason+": ") {
			count++
		}
	}
	return count
}

// hold keeps a lock on the log, as a program with an open transaction does, until release is called.
func (w *world) hold() (release func()) {
	GinkgoHelper()
	other := connectTo(w.ctx, w.dsn)
	transaction, err := other.Begin(w.ctx)
	Expect(err).NotTo(HaveOccurred())
	_, err = transaction.Exec(w.ctx, `UPDATE patients SET name = name WHERE id = 1`)
	Expect(err).NotTo(HaveOccurred())
	return func() { Expect(transaction.Rollback(w.ctx)).To(Succeed()) }
}

// partsOf takes a URL apart into the keys that database operators write into Secrets.
func partsOf(dsn string) map[string]string {
	GinkgoHelper()
	config, err := pgx.ParseConfig(dsn)
	Expect(err).NotTo(HaveOccurred())
	return map[string]string{
		"host": config.Host, "port": decimal(int64(config.Port)), "dbname": config.Database, "username": config.User, "password": config.Password,
	}
}

func databaseOf(dsn string) string { return pgx.Identifier{partsOf(dsn)["dbname"]}.Sanitize() }

func withParts(schema *v1alpha1.SyncSchema) {
	from := func(key string) *v1alpha1.SecretValue {
		return &v1alpha1.SecretValue{SecretKeyRef: v1alpha1.KeyReference{Name: "clinic-parts", Key: key}}
	}
	schema.Spec.Database.Postgres = &v1alpha1.PostgresDatabase{Connection: &v1alpha1.PostgresConnection{
		HostFrom: from("host"), PortFrom: from("port"), DatabaseFrom: from("dbname"), UserFrom: *from("username"), PasswordFrom: from("password"),
		SSLMode: "disable",
	}}
}
