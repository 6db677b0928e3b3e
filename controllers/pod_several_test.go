package controllers

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("Pods that several hands reach for", func() {
	var g *gate
	BeforeEach(func() { g = newGate() })

	billing := func() {
		GinkgoHelper()
		g.sql(`CREATE SCHEMA billing`)
		g.sql(`CREATE TABLE billing.patients (LIKE public.patients INCLUDING ALL)`)
		g.apply(g.clinic(6, func(s *v1alpha1.SyncSchema) {
			s.Name = "billing"
			s.Spec.Database.Postgres.Schema = "billing"
		}))
		_, err := g.schemas.Reconcile(g.ctx, request(g.namespace, "billing"))
		Expect(err).NotTo(HaveOccurred())
	}

	It("are written once by the passes of two SyncSchemas, open or closed, and never taken out by the slower one", func() {
		g.apply(g.clinic(6))
		g.bring()
		billing()
		both := g.pod("both", "clinic=7,billing=6")
		passes := func() string {
			GinkgoHelper()
			for range 5 {
				for _, name := range []string{"clinic", "billing"} {
					g.clock.advance(hotGate)
					_, err := g.pods.Reconcile(g.ctx, request(g.namespace, name))
					Expect(err).NotTo(HaveOccurred())
				}
			}
			return g.read(both).ResourceVersion
		}
		version := passes()
		Expect(g.state(both)).To(Equal(unmigrated))
		Expect(passes()).To(Equal(version), "nothing is written while it waits")

		By("the SyncSchema that it does not wait for being at rest")
		g.clock.advance(hotGate)
		result, err := g.pods.Reconcile(g.ctx, request(g.namespace, "billing"))
		Expect(err).NotTo(HaveOccurred())
		Expect(result.RequeueAfter).To(BeNumerically("~", coldGate, coldGate/4))
		of := prometheus.Labels{"namespace": g.namespace, "schema": "billing"}
		Expect(g.metric("syncbarrier_gate_pods", of)).To(BeEquivalentTo(1))
		Expect(g.metric("syncbarrier_gate_pods", with(of, "reason", v1alpha1.ReasonGateOpen))).To(BeEquivalentTo(1))
		Expect(g.look().RequeueAfter).To(Equal(hotGate))
		of["schema"] = "clinic"
		Expect(g.metric("syncbarrier_gate_pods", with(of, "reason", v1alpha1.ReasonMigrationPending))).To(BeEquivalentTo(1))

		By("a pass that has read the gate and is slow to write")
		g.apply(g.clinic(7))
		g.pass()
		slow := &podPass{name: request(g.namespace, "billing").NamespacedName, now: g.clock.Now()}
		g.clock.advance(hotGate)
		Expect(g.pods.find(g.ctx, slow)).To(Succeed())
		Expect(g.pods.learn(g.ctx, slow)).To(Succeed())
		g.pods.judge(g.ctx, slow)
		Expect(slow.pods[0].verdict.Reason).To(Equal(v1alpha1.ReasonBackfilling))
		g.bring()
		g.look()
		Expect(g.state(both)).To(Equal(open))
		Expect(g.pods.writeAll(g.ctx, slow)).To(Succeed())
		Expect(g.state(both)).To(Equal(open), "what the slower pass had read is older")
		version = passes()
		Expect(passes()).To(Equal(version), "nothing is written while it serves")
	})

	It("are left alone where a Job made them, whatever they carry", func() {
		g.serving()
		worker := g.pod("worker-0", "clinic=7", func(p *corev1.Pod) {
			yes := true
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "nightly", UID: "1", Controller: &yes}}
		})
		Expect(schemasOfObject(g.ctx, worker)).To(BeEmpty(), "it brings about no pass")
		program := g.pod("program", "clinic=7")
		g.look()
		Expect(g.state(program)).To(Equal(open))
		Expect(g.state(worker)).To(Equal("none"))
	})

	It("have the SyncSchema looked at when the last of them goes, once, and again when one comes", func() {
		g.serving()
		told := func() int {
			count := 0
			for len(g.changed) > 0 {
				<-g.changed
				count++
			}
			return count
		}
		for range 2 {
			pod := g.pod("program", "clinic=7")
			g.look()
			Expect(told()).To(Equal(1))
			object, _ := g.pass()
			Expect(object.Status.Workloads).To(HaveLen(1))
			Expect(suite.admin.Delete(g.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
			Expect(g.look().RequeueAfter).To(BeZero(), "nobody asks")
			Expect(told()).To(Equal(1), "the last pod went")
			g.look()
			Expect(told()).To(BeZero())
			g.clock.advance(statusEvery)
			object, _ = g.pass()
			Expect(object.Status.Workloads).To(BeEmpty())
		}
		g.pod("program", "clinic=7")
		g.look()
		told()
		Expect(suite.admin.Delete(g.ctx, g.schema())).To(Succeed())
		g.look()
		Expect(g.pods.told).To(BeEmpty(), "nothing is remembered of an object that is gone")
	})
})

var _ = Describe("A pod that carries the gate and loses the label", func() {
	It("is opened when the gate opens, also by an operator that starts only then, and is looked after until it goes", func() {
		g := newGate()
		g.apply(g.clinic(6))
		g.bring()
		first, second := g.pod("first", "clinic=7"), g.pod("second", "clinic=7")
		unlabel := func(pod *corev1.Pod) {
			GinkgoHelper()
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+v1alpha1.LabelGate+`":null}}}`))
			Expect(suite.admin.Patch(g.ctx, pod.DeepCopy(), patch)).To(Succeed())
		}
		stop := managePods(g)
		for _, pod := range []*corev1.Pod{first, second} {
			Eventually(func() string { return g.state(pod) }, "90s", "100ms").Should(Equal(unmigrated))
		}
		By("taking the label away while the operator watches")
		unlabel(first)
		g.apply(g.clinic(7))
		g.bring()
		for _, pod := range []*corev1.Pod{first, second} {
			Eventually(func() string { return g.state(pod) }, "90s", "100ms").Should(Equal(open))
		}
		By("taking it away while no operator is there")
		stop()
		third := g.pod("third", "clinic=7")
		unlabel(third)
		managePods(g)
		Eventually(func() string { return g.state(third) }, "90s", "100ms").Should(Equal(open))
	})
})
