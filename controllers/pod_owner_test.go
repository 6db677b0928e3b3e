package controllers

import (
	"net/http"
	"net/http/httptest"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// owned writes who manages the database.
func (g *gate) owned(cluster, namespace, name string) {
	GinkgoHelper()
	g.sql(`UPDATE sync_barrier_owner SET cluster = $1, namespace = $2, name = $3`, cluster, namespace, name)
}

var _ = Describe("The gate of a database that another SyncSchema manages", func() {
	const conflict = "False Conflict"
	var g *gate
	var serving *corev1.Pod
	BeforeEach(func() {
		g = newGate()
		g.serving()
		serving = g.pod("serving", "clinic=7")
		g.look()
		Expect(g.state(serving)).To(Equal(open))
	})

	It("opens no new pod, takes nothing from those that serve, and opens again with a take-over", func() {
		fresh := map[string]*corev1.Pod{}
		for _, c := range []struct{ name, cluster, namespace, owner string }{
			{"of-another-cluster", "elsewhere", g.namespace, "clinic"},
			{"of-another-namespace", suite.identity, "other", "clinic"},
			{"of-another-name", suite.identity, g.namespace, "billing"},
			{"of-another-command-line", "", g.namespace, "billing"},
		} {
			g.owned(c.cluster, c.namespace, c.owner)
			fresh[c.name] = g.pod(c.name, "clinic=7")
			older := g.pod(c.name+"-6", "clinic=6")
			Expect(g.look().RequeueAfter).To(Equal(hotGate), "a pod waits")
			Expect(g.state(fresh[c.name])).To(Equal(conflict))
			Expect(g.state(older)).To(Equal(conflict))
			Expect(g.condition(fresh[c.name]).Message).To(ContainSubstring(c.cluster + "/" + c.namespace + "/" + c.owner))
			Expect(g.state(serving)).To(Equal(open), c.name)
		}
		By("a take-over that names another owner")
		g.annotate(g.schema(), v1alpha1.AnnotationTakeOver, "elsewhere/shop/clinic")
		g.look()
		Expect(g.state(fresh["of-another-name"])).To(Equal(conflict))
		By("one that names this one")
		g.annotate(g.schema(), v1alpha1.AnnotationTakeOver, "/"+g.namespace+"/billing")
		g.look()
		for name, pod := range fresh {
			Expect(g.state(pod)).To(Equal(open), name)
		}
		By("what a command line of the same namespace and name had brought")
		g.annotate(g.schema(), v1alpha1.AnnotationTakeOver, "")
		g.owned("", g.namespace, "clinic")
		last := g.pod("last", "clinic=7")
		g.look()
		Expect(g.state(last)).To(Equal(open))
	})

	It("withdraws no pod, and starts none", func() {
		g.apply(g.clinic(8))
		_, of := g.deployment("clinic", 1)
		older := g.pod("older", "clinic=7", of("7"))
		g.look()
		g.started(older)
		g.bring()
		newer := g.pod("newer", "clinic=8", of("8"))
		g.look()
		g.started(newer)
		g.sql(`ALTER TABLE sync_writer_fence DISABLE TRIGGER ALL`)
		g.sql(`UPDATE sync_writer_fence SET required_writer_version = 8`)
		g.owned("elsewhere", g.namespace, "clinic")
		g.pods.StartGates = true
		held := g.pod("held", "clinic=8", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.StartGate}}
		})
		g.look()
		Expect(g.state(held)).To(Equal(conflict))
		Expect(g.read(held).Spec.SchedulingGates).To(HaveLen(1))
		Expect(g.state(older)).To(Equal(open))

		By("the database being this one's again")
		g.owned(suite.identity, g.namespace, "clinic")
		g.look()
		Expect(g.pods.Refusals.shown(request(g.namespace, "clinic").NamespacedName)).To(ConsistOf(ContainSubstring("start gate of pod held")),
			"it was tried now, without the rights of config/start-gate")
		Expect(g.state(older)).To(Equal("False Superseded"))
	})

	It("is closed by HTTP", func() {
		databases := NewDatabases(openDatabase, g.clock)
		DeferCleanup(databases.Close)
		gates := &Gates{Live: suite.operator, Databases: databases, Clock: g.clock}
		handler := (&GateServer{Client: suite.operator, Gates: gates, Clock: g.clock, Cluster: suite.identity}).Handler()
		answer := func(address string) (int, string) {
			g.clock.advance(answerAge)
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, address+"/"+g.namespace+"/clinic?version=7", http.NoBody))
			return recorder.Code, recorder.Body.String()
		}
		code, _ := answer("/gate")
		Expect(code).To(Equal(http.StatusOK))
		g.owned("elsewhere", "shop", "mine")
		code, text := answer("/gate")
		Expect(code).To(Equal(http.StatusServiceUnavailable))
		Expect(text).To(Equal("Conflict\n"))
		code, text = answer("/v1/gate")
		Expect(code).To(Equal(http.StatusOK))
		Expect(text).To(MatchJSON(`{"open": false, "writable": false, "reason": "Conflict"}`))
		g.annotate(g.schema(), v1alpha1.AnnotationBypass, g.clock.Now().Add(time.Hour).UTC().Format(time.RFC3339)+";wrong owner, right data")
		_, text = answer("/v1/gate")
		Expect(text).To(MatchJSON(`{"open": true, "writable": false, "reason": "Bypassed"}`))
	})

	It("has the SyncSchema looked at when the owner changes", func() {
		for len(g.changed) > 0 {
			<-g.changed
		}
		g.owned("elsewhere", "shop", "mine")
		g.look()
		Expect(g.changed).To(HaveLen(1))
	})
})
