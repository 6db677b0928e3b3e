package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
)

var _ = Describe("The gate by HTTP", func() {
	var g *gate
	var server *httptest.Server
	BeforeEach(func() {
		g = newGate()
		databases := NewDatabases(openDatabase, clock.Real{})
		DeferCleanup(databases.Close)
		gates := &Gates{Live: suite.operator, Databases: databases, Clock: clock.Real{}}
		server = httptest.NewServer((&GateServer{Client: suite.operator, Gates: gates, Clock: clock.Real{}, Cluster: suite.identity}).Handler())
		DeferCleanup(server.Close)
	})

	ask := func(method, path, body string) (int, string) {
		GinkgoHelper()
		request, err := http.NewRequestWithContext(g.ctx, method, server.URL+path, strings.NewReader(body))
		Expect(err).NotTo(HaveOccurred())
		response, err := http.DefaultClient.Do(request)
		Expect(err).NotTo(HaveOccurred())
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		Expect(err).NotTo(HaveOccurred())
		return response.StatusCode, strings.TrimSpace(string(text))
	}
	says := func(version string) gateAnswer {
		GinkgoHelper()
		code, text := ask(http.MethodGet, "/v1/gate/"+g.namespace+"/clinic?version="+version, "")
		Expect(code).To(Equal(http.StatusOK), "always")
		var answer gateAnswer
		Expect(json.Unmarshal([]byte(text), &answer)).To(Succeed())
		return answer
	}
	// asked is the other address: it may have a newer answer, and its own code and reason fit each other.
	asked := func(version string) string {
		GinkgoHelper()
		code, reason := ask(http.MethodPost, "/gate/"+g.namespace+"/clinic?version="+version, `{"name": "clinic", "phase": "Progressing"}`)
		want := http.StatusServiceUnavailable
		if reason == "GateOpen" || reason == "Bypassed" {
			want = http.StatusOK
		}
		Expect(code).To(Equal(want))
		return reason
	}
	soon := func(version, reason string, isOpen, writable bool) {
		GinkgoHelper()
		Eventually(func() gateAnswer { return says(version) }, answerAge, "20ms").
			Should(Equal(gateAnswer{Open: isOpen, Writable: writable, Reason: reason}))
		Expect(asked(version)).To(Equal(reason))
	}

	It("says of every version whether it may serve, and write", func() {
		Expect(says("7")).To(Equal(gateAnswer{Reason: "SchemaNotFound"}))
		g.apply(g.clinic(6))
		soon("6", "MigrationPending", false, false)
		g.bring()
		soon("6", "GateOpen", true, true)
		soon("7", "MigrationPending", false, false)
		g.apply(g.clinic(7))
		g.pass()
		soon("7", "Backfilling", false, false)
		soon("6", "GateOpen", true, false)
		g.bring()
		soon("7", "GateOpen", true, true)
		for _, wrong := range []string{"0", "-1", "x", "7.0", "2147483648", "7;8"} {
			Expect(says(wrong)).To(Equal(gateAnswer{Reason: asked(wrong)}), wrong)
			Expect(asked(wrong)).To(BeElementOf("RequirementMalformed", "RequirementMissing"), wrong)
		}
		Expect(says("")).To(Equal(gateAnswer{Reason: "RequirementMissing"}))
		code, _ := ask(http.MethodDelete, "/gate/"+g.namespace+"/clinic?version=7", "")
		Expect(code).To(Equal(http.StatusMethodNotAllowed))

		g.annotate(g.schema(), v1alpha1.AnnotationBypass, time.Now().Add(time.Hour).Format(time.RFC3339)+";a test")
		Expect(says("9")).To(Equal(gateAnswer{Open: true, Reason: "Bypassed"}))
		Expect(asked("9")).To(Equal("Bypassed"))
		g.annotate(g.schema(), v1alpha1.AnnotationBypass, time.Now().Add(-time.Second).Format(time.RFC3339)+";a test")
		g.secret("clinic-app", map[string]string{"uri": "postgres://nobody:x@127.0.0.1:1/nothing"})
		Eventually(func() gateAnswer { return says("7") }, addressKept+2*time.Second, "200ms").Should(Equal(gateAnswer{Reason: "Unreachable"}))
	})

	It("follows a marker flipped in SQL within a second while no status can be written", func() {
		g.serving()
		soon("7", "GateOpen", true, true)
		blockStatus(g)
		before := g.schema().ResourceVersion
		g.sql(`ALTER TABLE sync_schema_meta DISABLE TRIGGER ALL`)
		g.sql(`UPDATE sync_schema_meta SET schema_version = 6`)
		soon("7", "MigrationPending", false, false)
		g.clock.advance(time.Minute)
		_, err := g.schemas.Reconcile(g.ctx, request(g.namespace, "clinic"))
		Expect(err).To(MatchError(ContainSubstring("no status for a while")))
		Expect(g.schema().ResourceVersion).To(Equal(before))
		g.sql(`UPDATE sync_schema_meta SET schema_version = 7`)
		soon("7", "GateOpen", true, true)
	})
})

// blockStatus has the API server refuse every write of the status of a SyncSchema in the namespace, by a rule of its own.
func blockStatus(g *gate) {
	GinkgoHelper()
	name := "no-status-" + g.namespace
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec.FailurePolicy = &fail
	policy.Spec.MatchConstraints = &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: g.namespace}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"syncschemas/status"}},
		}}},
	}
	policy.Spec.Validations = []admissionv1.Validation{{Expression: "false", Message: "no status for a while"}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	binding.Spec.PolicyName, binding.Spec.ValidationActions = name, []admissionv1.ValidationAction{admissionv1.Deny}
	for _, object := range []client.Object{policy, binding} {
		Expect(suite.admin.Create(g.ctx, object)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(suite.admin.Delete(ctx, object)).To(Succeed()) })
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"attempts":1}}`))
	Eventually(func() error {
		return suite.admin.Status().Patch(g.ctx, g.schema(), patch, client.DryRunAll)
	}, "20s", "50ms").Should(MatchError(ContainSubstring("no status for a while")))
}

var _ = Describe("The freshness of the gate", func() {
	count := func(g *gate, state string) func() int {
		return func() int {
			var list corev1.PodList
			Expect(suite.admin.List(g.ctx, &list, client.InNamespace(g.namespace))).To(Succeed())
			n := 0
			for i := range list.Items {
				if found := podCondition(&list.Items[i], v1alpha1.ReadinessGate); found != nil && string(found.Status)+" "+found.Reason == state {
					n++
				}
			}
			return n
		}
	}

	// A busy machine takes its time for a hundred writes, whoever makes them: what is ours comes on top of that.
	// How long it takes is measured by a benchmark (docs/performance.md); here a machine may be three times as slow.
	It("opens a hundred pods within a second of the activation, beside what the API server takes for as many writes", func() {
		const pods = 100
		g := newGate()
		g.apply(g.clinic(6))
		g.bring()
		g.apply(g.clinic(7))
		g.pass()
		g.passCheckpoint("clinic-name-search")
		for i := range pods {
			g.pod("program-"+decimal(int64(i)), "clinic=7")
		}
		managePods(g)
		Eventually(count(g, backfilling), "30s", "100ms").Should(Equal(pods))
		plain := writeAllPods(g)
		seen := watchOpen(g)
		g.runWorkers()
		activated := time.Now()
		Expect(g.number(`SELECT count(*) FROM sync_backfill_checkpoints WHERE state <> 'activated'`)).To(BeZero())
		var took time.Duration
		for range pods {
			var at time.Time
			Eventually(seen, "10s").Should(Receive(&at))
			took = max(took, at.Sub(activated))
		}
		AddReportEntry("the last of 100 pods was opened after", fmt.Sprintf("%v; as many plain writes took %v", took, plain))
		Expect(took).To(BeNumerically("<=", 3*(time.Second+plain)))
	})

	It("shows a marker flipped in SQL within a second while a pod waits", func() {
		g := newGate()
		g.apply(g.clinic(6))
		g.bring()
		old := g.pod("old", "clinic=6")
		g.pod("fresh", "clinic=7")
		managePods(g)
		Eventually(count(g, unmigrated), "20s", "50ms").Should(Equal(1))
		Eventually(func() string { return g.state(old) }, "20s", "50ms").Should(Equal(open))
		g.sql(`ALTER TABLE sync_schema_meta DISABLE TRIGGER ALL`)
		g.sql(`UPDATE sync_schema_meta SET schema_version = 5`)
		Eventually(func() string { return g.state(old) }, "1s", "20ms").Should(Equal(unmigrated))
	})
})

// managePods starts a manager, as the operator's account, that keeps the pods of the namespace.
func managePods(g *gate) (stop func()) {
	GinkgoHelper()
	skip, none := true, metricsserver.Options{BindAddress: "0"}
	mgr, err := ctrl.NewManager(suite.operatorConfig, ctrl.Options{
		Scheme: suite.scheme, Metrics: none, HealthProbeBindAddress: "0",
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{g.namespace: {}},
			ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {
				Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelGate: v1alpha1.GateEnabled}), Transform: StripPod,
			}},
		},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	Expect(err).NotTo(HaveOccurred())
	databases := NewDatabases(openDatabase, clock.Real{})
	pods := &PodReconciler{
		Client: mgr.GetClient(), Pods: mgr.GetCache(), Workloads: &Workloads{Live: mgr.GetAPIReader()},
		Gates: &Gates{Live: mgr.GetAPIReader(), Databases: databases}, Events: mgr.GetEventRecorder("syncbarrier"),
		Cluster: suite.identity, Live: mgr.GetAPIReader(), Namespaces: []string{g.namespace},
	}
	Expect(pods.SetupWithManager(mgr, controller.Options{SkipNameValidation: &skip, MaxConcurrentReconciles: 4})).To(Succeed())
	ctx, cancel := context.WithCancel(g.ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		Expect(<-ended).To(Succeed())
		databases.Close()
	})
	DeferCleanup(stop)
	return stop
}

// watchOpen gives the times at which pods of the namespace were seen open, each once.
func watchOpen(g *gate) <-chan time.Time {
	GinkgoHelper()
	admin, err := client.NewWithWatch(suite.cluster.Admin(), client.Options{Scheme: suite.scheme})
	Expect(err).NotTo(HaveOccurred())
	watching, err := admin.Watch(g.ctx, &corev1.PodList{}, client.InNamespace(g.namespace))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(watching.Stop)
	seen := make(chan time.Time, 1000)
	go func() {
		once := map[string]bool{}
		for change := range watching.ResultChan() {
			pod, ok := change.Object.(*corev1.Pod)
			if ok && !once[pod.Name] && isTrue(podCondition(pod, v1alpha1.ReadinessGate)) {
				once[pod.Name] = true
				seen <- time.Now()
			}
		}
	}()
	return seen
}

// writeAllPods writes a condition that nobody looks at into every pod of the namespace, as many at a time as we do, and gives how long it took.
func writeAllPods(g *gate) time.Duration {
	GinkgoHelper()
	var list corev1.PodList
	Expect(suite.admin.List(g.ctx, &list, client.InNamespace(g.namespace))).To(Succeed())
	places := make(chan struct{}, patchesAtOnce)
	var all sync.WaitGroup
	started := time.Now()
	for i := range list.Items {
		places <- struct{}{}
		all.Go(func() {
			defer GinkgoRecover()
			defer func() { <-places }()
			g.patchStatus(&list.Items[i], `{"status":{"conditions":[{"type":"other.example/plain","status":"True"}]}}`)
		})
	}
	all.Wait()
	return time.Since(started)
}
