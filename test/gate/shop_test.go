package gate

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// shop is a namespace with a database at version 6, whose backfill of version 7 goes so slowly that it has to be let go.
type shop struct {
	namespace string
	db        *pgx.Conn
	more      string // of the schema that was applied last
}

func newShop(ctx context.Context) *shop {
	GinkgoHelper()
	dsn := testdb.Postgres(GinkgoTB())
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	Expect(suite.admin.Create(ctx, namespace)).To(Succeed())
	s := &shop{namespace: namespace.Name}
	var err error
	s.db, err = pgx.Connect(ctx, dsn)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx context.Context) { Expect(s.db.Close(ctx)).To(Succeed()) })
	_, err = s.db.Exec(ctx, `CREATE TABLE todos (id bigint PRIMARY KEY, title text NOT NULL)`)
	Expect(err).NotTo(HaveOccurred())
	_, err = s.db.Exec(ctx, `INSERT INTO todos SELECT n, 'Todo ' || n FROM generate_series(1, 5000) n`)
	Expect(err).NotTo(HaveOccurred())
	_, err = s.db.Exec(ctx, `ANALYZE todos`) // what is expected of the backfill is by the server's statistics
	Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "clinic-app"}, StringData: map[string]string{"uri": dsn}}
	Expect(suite.admin.Create(ctx, secret)).To(Succeed())
	s.applySchema(6, "")
	Eventually(func() string { return s.ready(ctx) }).Should(Equal("True GateOpen"))
	DeferCleanup(func(ctx context.Context) {
		// What a spec leaves would be worked on during all the others.
		Expect(suite.admin.Delete(ctx, namespace, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
	})
	return s
}

func (s *shop) apply(manifest string) {
	GinkgoHelper()
	_, err := suite.cluster.Kubectl(manifest, "apply", "--server-side", "--field-manager=argocd-controller", "--force-conflicts", "-n", s.namespace, "-f", "-")
	Expect(err).NotTo(HaveOccurred())
}

// applySchema applies a version of the schema, with lines added to its spec. Version 7 has a backfill of 20 rows a second.
func (s *shop) applySchema(version int, more string) {
	GinkgoHelper()
	s.more = more
	s.applySchemaAt(version, 20)
}

// applySchemaAt applies it with a backfill of so many rows a second; 0: as fast as it goes.
func (s *shop) applySchemaAt(version, rate int) {
	GinkgoHelper()
	text := fmt.Sprintf(`
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic}
spec:
  database: {postgres: {urlFrom: {secretKeyRef: {name: clinic-app, key: uri}}}}
  version: %d
%s
  tables:
  - name: todos
    columns:
    - {name: id, type: integer}
    - {name: title, type: string}
`, version, s.more)
	if version >= 7 {
		text += "    - {name: title_norm, type: string, nullable: true}\n"
	}
	text += "    primaryKey: [id]\n"
	if version >= 7 {
		text += fmt.Sprintf(`
  checkpoints:
  - name: title-norm
    version: 7
    sources: [{table: todos, changes: CommitLog}]
    backfill: {update: {table: todos, set: {title_norm: lower(title)}}, batchRows: 10, maxRowsPerSecond: %d}
`, rate)
	}
	s.apply(text)
}

// letGo has the backfill go as fast as it can, by the setting that may change at any time, and waits until the gate is open.
func (s *shop) letGo(ctx context.Context) {
	GinkgoHelper()
	s.applySchemaAt(7, 0)
	Eventually(func() string { return s.ready(ctx) }).Should(Equal("True GateOpen"))
}

// workload is a manifest of a version of the program, with lines that say how it rolls out.
func workload(kind, name string, replicas, version int, rollout string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: %[1]s
metadata: {name: %[2]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  %[5]s
  template:
    metadata:
      labels: {app: %[2]s, version: "%[4]d", syncbarrier.dev/gate: enabled}
      annotations: {syncbarrier.dev/requires: clinic=%[4]d}
    spec:
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      readinessGates: [{conditionType: syncbarrier.dev/serve-gate}]
      containers:
      - {name: program, image: "registry.example/clinic:%[4]d", command: [/program, "86400"], env: [{name: SYNCBARRIER_REQUIRES, value: clinic=%[4]d}]}
`, kind, name, replicas, version, rollout)
}

func (s *shop) schema(ctx context.Context) *v1alpha1.SyncSchema {
	GinkgoHelper()
	var object v1alpha1.SyncSchema
	Expect(suite.admin.Get(ctx, types.NamespacedName{Namespace: s.namespace, Name: "clinic"}, &object)).To(Succeed())
	return &object
}

// ready is "<status of Ready> <its reason>", and nothing while the status is of another generation.
func (s *shop) ready(ctx context.Context) string {
	GinkgoHelper()
	object := s.schema(ctx)
	found := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionReady)
	if found == nil || found.ObservedGeneration != object.Generation {
		return ""
	}
	return string(found.Status) + " " + found.Reason
}

// migrated says that the barrier of version 7 is done, by the database.
func (s *shop) migrated(ctx context.Context) bool {
	GinkgoHelper()
	var version int64
	Expect(s.db.QueryRow(ctx, `SELECT schema_version FROM sync_schema_meta`).Scan(&version)).To(Succeed())
	return version == 7
}

// counts is how many pods of a program there are.
type counts struct {
	serving int            // Ready and not on their way out
	ready   map[string]int // of them by version
	held    map[string]int // that run and are held by the gate alone, by version
}

func (s *shop) count(ctx context.Context, app string) (counts, error) {
	var list corev1.PodList
	out := counts{ready: map[string]int{}, held: map[string]int{}}
	if err := suite.admin.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{"app": app}); err != nil {
		return out, err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		conditions := map[corev1.PodConditionType]bool{}
		for _, condition := range pod.Status.Conditions {
			conditions[condition.Type] = condition.Status == corev1.ConditionTrue
		}
		switch {
		case pod.DeletionTimestamp != nil:
		case conditions[corev1.PodReady]:
			out.serving++
			out.ready[pod.Labels["version"]]++
		case conditions[corev1.ContainersReady]:
			out.held[pod.Labels["version"]]++
		}
	}
	return out, nil
}

// eventually waits until the pods of a program are as described.
func (s *shop) eventually(ctx context.Context, app string, holds func(counts) bool, what string) {
	GinkgoHelper()
	var last counts
	Eventually(func(g Gomega) {
		var err error
		last, err = s.count(ctx, app)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(holds(last)).To(BeTrue(), "%s: %+v", what, last)
	}).Should(Succeed())
}

// sampler counts the pods that serve every 200 ms.
type sampler struct {
	mu      sync.Mutex
	lowest  int
	samples int
	failure error
	end     func()
}

const sampleEvery = 200 * time.Millisecond

// sample begins to count. What it finds is asked for by lowestSince.
func (s *shop) sample(ctx context.Context, app string) *sampler {
	GinkgoHelper()
	now, err := s.count(ctx, app)
	Expect(err).NotTo(HaveOccurred())
	out := &sampler{lowest: now.serving}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var done sync.WaitGroup
	out.end = sync.OnceFunc(func() { stop(); done.Wait() })
	DeferCleanup(out.end)
	done.Go(func() {
		ticker := time.NewTicker(sampleEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			found, err := s.count(ctx, app)
			out.note(ctx, found.serving, err)
		}
	})
	return out
}

func (s *sampler) note(ctx context.Context, serving int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.failure = err
	default:
		s.lowest = min(s.lowest, serving)
		s.samples++
	}
}

// lowestSoFar gives the lowest count since the beginning, or since it was asked last, and begins anew. It waits for a count that was begun after
// it was asked.
func (s *sampler) lowestSoFar() int {
	GinkgoHelper()
	s.mu.Lock()
	enough := s.samples + 2 // the one under way may have begun before
	s.mu.Unlock()
	Eventually(func(g Gomega) {
		s.mu.Lock()
		defer s.mu.Unlock()
		g.Expect(s.failure).NotTo(HaveOccurred())
		g.Expect(s.samples).To(BeNumerically(">=", enough))
	}).Should(Succeed())
	s.mu.Lock()
	defer s.mu.Unlock()
	lowest := s.lowest
	s.lowest, s.samples = 1<<30, 0
	return lowest
}

// hold waits for twice the longest time in which the operator looks at everything, and then for the samples of it.
func hold(ctx context.Context) {
	GinkgoHelper()
	select {
	case <-time.After(2 * resync):
	case <-ctx.Done():
		Fail("the spec ended during the hold")
	}
}

// answer asks the gate by HTTP.
func (s *shop) answer(ctx context.Context, version int) string {
	GinkgoHelper()
	url := fmt.Sprintf("http://%s/v1/gate/%s/clinic?version=%d", suite.gate, s.namespace, version)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	response, err := http.DefaultClient.Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(string(text))
}

// warnings gives the kinds of the objects that have a Warning event with a reason.
func (s *shop) warnings(ctx context.Context, reason string) []string {
	GinkgoHelper()
	var list corev1.EventList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(s.namespace))).To(Succeed())
	var kinds []string
	for _, event := range list.Items {
		if event.Reason == reason && event.Type == corev1.EventTypeWarning {
			kinds = append(kinds, event.InvolvedObject.Kind)
		}
	}
	return kinds
}

// lose removes one serving pod of a version at once, as a node that dies does.
func (s *shop) lose(ctx context.Context, app, version string) {
	GinkgoHelper()
	var list corev1.PodList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{"app": app, "version": version})).To(Succeed())
	Expect(list.Items).NotTo(BeEmpty())
	Expect(suite.admin.Delete(ctx, &list.Items[0], client.GracePeriodSeconds(0))).To(Succeed())
}

func (s *shop) deployment(ctx context.Context, name string) *appsv1.Deployment {
	GinkgoHelper()
	var found appsv1.Deployment
	Expect(suite.admin.Get(ctx, types.NamespacedName{Namespace: s.namespace, Name: name}, &found)).To(Succeed())
	return &found
}

// progress is "<status> <reason>" of a Deployment's condition Progressing.
func (s *shop) progress(ctx context.Context, name string) string {
	GinkgoHelper()
	for _, condition := range s.deployment(ctx, name).Status.Conditions {
		if condition.Type == appsv1.DeploymentProgressing {
			return string(condition.Status) + " " + condition.Reason
		}
	}
	return ""
}

// evict asks for the eviction of every pod of a version, and says how many the budget let go. That budget must have been reckoned. Meanwhile
// no pod is made: one that takes the place of the first could serve before the last is asked for, and the budget would let that go too.
func (s *shop) evict(ctx context.Context, app, version string) (evicted, refused int) {
	GinkgoHelper()
	defer s.noNewPods(ctx)()
	Eventually(func(g Gomega) {
		var budget policyv1.PodDisruptionBudget
		g.Expect(suite.admin.Get(ctx, types.NamespacedName{Namespace: s.namespace, Name: app}, &budget)).To(Succeed())
		g.Expect(budget.Status.DisruptionsAllowed).To(BeEquivalentTo(1))
	}).Should(Succeed())
	var list corev1.PodList
	Expect(suite.admin.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{"app": app, "version": version})).To(Succeed())
	for i := range list.Items {
		err := suite.admin.SubResource("eviction").Create(ctx, &list.Items[i], &policyv1.Eviction{})
		switch {
		case err == nil:
			evicted++
		case apierrors.IsTooManyRequests(err):
			refused++
		default:
			Expect(err).NotTo(HaveOccurred())
		}
	}
	return evicted, refused
}

// noNewPods has a quota refuse every pod, until it is told to end.
func (s *shop) noNewPods(ctx context.Context) (end func()) {
	GinkgoHelper()
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "no-pods"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}
	Expect(suite.admin.Create(ctx, quota)).To(Succeed())
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard} // for the controller of quotas, which does not run here
	Expect(suite.admin.Status().Update(ctx, quota)).To(Succeed())
	Eventually(func() error {
		one := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, GenerateName: "refused-"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "one", Image: "one"}}},
		}
		return suite.admin.Create(ctx, one, client.DryRunAll)
	}).Should(MatchError(ContainSubstring("exceeded quota")))
	return func() { Expect(suite.admin.Delete(ctx, quota)).To(Succeed()) }
}
