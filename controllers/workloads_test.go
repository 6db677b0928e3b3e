package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("The workloads of a SyncSchema", func() {
	var g *gate
	BeforeEach(func() {
		g = newGate()
		g.apply(g.clinic(6))
		g.bring()
	})

	whenPodsWait := func(s *v1alpha1.SyncSchema) {
		s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverWhenPodsWait}
	}

	It("are listed by version, with what holding them costs, and warned of on both objects before the barrier", func() {
		recreate := func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }
		_, safe := g.deployment("front", 3)
		_, lossy := g.deployment("api", 4)
		_, outage := g.deployment("batch", 1, recreate)
		for i := range 2 {
			pod := g.pod(fmt.Sprintf("front-%d", i), "clinic=6", safe("6"))
			if i == 0 {
				g.started(pod)
				g.look()
				g.started(pod)
			}
		}
		g.pod("front-new", "clinic=7", safe("7"))
		g.pod("api-0", "clinic=6", lossy("6"))
		g.pod("batch-0", "clinic=6", outage("6"))
		g.pod("db-0", "clinic=6", g.statefulSet("db", 3))
		g.pod("agent-x", "clinic=6", g.daemonSet("agent", 1))
		g.pod("canary-x", "clinic=6", g.rollout("canary", "{replicas: 4, strategy: {canary: {}}}"))
		g.pod("alone", "clinic=6")
		g.pod("another", "billing=6")

		object, _ := g.pass()
		Expect(object.Status.Workloads).To(Equal([]v1alpha1.WorkloadStatus{
			{Kind: "DaemonSet", Name: "agent", Version: 6, Gated: 1, Hold: v1alpha1.HoldOutage},
			{Kind: "Deployment", Name: "api", Version: 6, Gated: 1, Hold: v1alpha1.HoldLosesCapacity},
			{Kind: "Deployment", Name: "batch", Version: 6, Gated: 1, Hold: v1alpha1.HoldOutage},
			{Kind: "Deployment", Name: "front", Version: 6, Gated: 2, Ready: 1, Hold: v1alpha1.HoldLossless},
			{Kind: "Deployment", Name: "front", Version: 7, Gated: 1, Hold: v1alpha1.HoldLossless},
			{Kind: "Pod", Name: "alone", Version: 6, Gated: 1},
			{Kind: "Rollout", Name: "canary", Version: 6, Gated: 1, Hold: v1alpha1.HoldLosesCapacity},
			{Kind: "StatefulSet", Name: "db", Version: 6, Gated: 1, Hold: v1alpha1.HoldLosesCapacity},
		}))
		Expect(object.Status.WorkloadsTotal).To(BeEquivalentTo(8))
		safety := condition(object, v1alpha1.ConditionWorkloadsSafe)
		Expect(safety.Status).To(Equal(metav1.ConditionFalse))
		Expect(safety.Reason).To(Equal(v1alpha1.ReasonOutage))
		Expect(safety.Message).To(And(ContainSubstring("Deployment batch"), ContainSubstring("StatefulSet db"), Not(ContainSubstring("front"))))
		Expect(g.events.of("Outage")+g.events.of("LosesCapacity")).To(BeZero(), "no barrier is ahead")

		By("a version whose barrier waits for approval")
		g.apply(g.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverOnApproval}
		}))
		object, _ = g.pass()
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonApprovalPending))
		Expect(g.events.heard("Outage")).To(HaveLen(4), "two workloads, on both objects, before anybody approves")
		Expect(g.events.heard("LosesCapacity")).To(HaveLen(6))
		By("its approval")
		g.apply(g.clinic(7))
		g.pass()
		g.pass()
		Expect(g.events.of(v1alpha1.ReasonMigrated)).To(Equal(2))
		Expect(g.events.heard("Outage")).To(HaveLen(4), "once")
	})

	It("say that no pod is lost when every one of them surges", func() {
		_, safe := g.deployment("front", 3)
		g.pod("front-0", "clinic=6", safe("6"))
		object, _ := g.pass()
		Expect(condition(object, v1alpha1.ConditionWorkloadsSafe).Status).To(Equal(metav1.ConditionTrue))
		Expect(suite.admin.DeleteAllOf(g.ctx, &corev1.Pod{}, client.InNamespace(g.namespace), client.GracePeriodSeconds(0))).To(Succeed())
		g.clock.advance(time.Minute)
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionWorkloadsSafe)).To(BeNil())
		Expect(object.Status.Workloads).To(BeEmpty())
	})

	It("are named where their pods run without the gate, and the pods are left alone", func() {
		bare := func(p *corev1.Pod) { p.Spec.ReadinessGates = nil }
		first, second := g.pod("before", "clinic=6", bare), g.pod("slipped-in", "clinic=6", bare)
		g.pod("normal", "clinic=6")
		g.pod("of-a-job", "clinic=6", bare, func(p *corev1.Pod) {
			yes := true
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "nightly", UID: "1", Controller: &yes}}
		})
		object, _ := g.pass()
		ungated := condition(object, v1alpha1.ConditionPodsUngated)
		Expect(ungated.Status).To(Equal(metav1.ConditionTrue))
		Expect(ungated.Message).To(ContainSubstring("2 pods ask for the gate and run without it: before, slipped-in"))
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen), "Ready is not touched")
		g.pass()
		Expect(g.events.of(v1alpha1.ReasonPodsWithoutGate)).To(Equal(1))
		Expect(g.read(first).DeletionTimestamp).To(BeNil())

		Expect(suite.admin.Delete(g.ctx, first, client.GracePeriodSeconds(0))).To(Succeed())
		Expect(suite.admin.Delete(g.ctx, second, client.GracePeriodSeconds(0))).To(Succeed())
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionPodsUngated)).To(BeNil())
	})

	It("are warned of a deadline that is shorter than the expected wait", func() {
		deadline := func(seconds int32) func(*appsv1.Deployment) {
			return func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = &seconds; d.Spec.MinReadySeconds = 0 }
		}
		_, short := g.deployment("short", 1, deadline(1))
		_, long := g.deployment("long", 1, deadline(86400))
		g.pod("short-0", "clinic=6", short("6"))
		g.pod("long-0", "clinic=6", long("6"))
		g.sql(`INSERT INTO patients SELECT n, 'ward-0', 'Name ' || n FROM generate_series(1000, 600000) n`)
		g.sql(`ANALYZE patients`)
		g.apply(g.clinic(7))
		g.pass()
		Expect(g.events.heard("ProgressDeadline")).To(HaveLen(2), "on the Deployment and on the SyncSchema")
		Expect(g.events.heard("ProgressDeadline")[0]).To(ContainSubstring("Deployment short has progressDeadlineSeconds 1"))
	})

	It("are named where the label that asks for the gate is mistyped: nobody else is asked about them", func() {
		labelled := func(value string) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.Spec.ReadinessGates, p.Labels[v1alpha1.LabelGate] = nil, value }
		}
		g.pod("opted-out", "billing=6", labelled("true"))
		g.apply(g.clinic(6))
		object, _ := g.pass()
		Expect(condition(object, v1alpha1.ConditionPodsUngated)).To(BeNil(), "another SyncSchema's")
		wrong := g.pod("mistyped", "clinic=6", labelled("true"))
		g.clock.advance(DefaultResync)
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionPodsUngated).Message).To(And(
			ContainSubstring(`1 pods name this SyncSchema in syncbarrier.dev/requires, and their label syncbarrier.dev/gate is not "enabled"`),
			ContainSubstring("nothing holds them: mistyped. Put the label right")))
		Expect(g.events.of(v1alpha1.ReasonPodsWithoutGate)).To(Equal(1))
		Expect(suite.admin.Delete(g.ctx, wrong, client.GracePeriodSeconds(0))).To(Succeed())
		g.clock.advance(DefaultResync)
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionPodsUngated)).To(BeNil())
	})

	It("show who writes without a version, before the barrier by a sample and after it by what the fence refused", func() {
		_, of := g.deployment("front", 1)
		g.pod("front-0", "clinic=6", of("6"))
		release := g.hold()
		g.apply(g.clinic(7))
		object, _ := g.pass()
		writers := condition(object, v1alpha1.ConditionUnversionedWriters)
		Expect(writers).NotTo(BeNil(), describeConditions(object.Status.Conditions))
		Expect(writers.Message).To(And(ContainSubstring("user "+partsOf(g.dsn)["username"]), ContainSubstring("write to patients without a version")))
		release()
		g.clock.advance(time.Minute)
		g.bring()
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionUnversionedWriters)).To(BeNil())

		g.sql(`INSERT INTO sync_partitions(partition) VALUES ('ward-0') ON CONFLICT DO NOTHING`)
		_, err := g.db.Exec(g.ctx, `INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms)
			VALUES ('ward-0', 1, 'c', '1', 'a', 0)`)
		Expect(err).To(HaveOccurred())
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionUnversionedWriters).Message).To(
			ContainSubstring("refused 1 writes of programs without a version, or with one that is too low"))
		g.clock.advance(refusalsShown)
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionUnversionedWriters)).To(BeNil())
	})

	It("keep the barrier back with cutover WhenPodsWait until their new pods wait for the gate alone", func() {
		_, of := g.deployment("front", 3, surging("100%"))
		old := g.pod("old", "clinic=6", of("6"))
		g.look()
		g.apply(g.clinic(7, whenPodsWait))
		object, _ := g.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWaitingForPods, "Deployment front has 0 of 3")
		first, second, third := g.pod("new-0", "clinic=7", of("7")), g.pod("new-1", "clinic=7", of("7")), g.pod("new-2", "clinic=7", of("7"))
		g.look()
		g.started(first, second)
		g.clock.advance(statusEvery)
		object, _ = g.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWaitingForPods, "Deployment front has 2 of 3")
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(6))
		Expect(g.state(old)).To(Equal(open))

		g.clock.advance(v1alpha1.DefaultWaitForPodsSeconds * time.Second)
		g.pass()
		g.pass()
		Expect(g.events.of(v1alpha1.ReasonWaitingForPods)).To(Equal(2), "that it waits, and once that it waits long")
		g.started(third)
		object, _ = g.pass()
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(7))
	})

	It("keep the barrier back with cutover WhenPodsWait while one of them would not serve meanwhile, or none runs", func() {
		g.apply(g.clinic(7, whenPodsWait))
		object, _ := g.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWaitingForPods, "no pod of it runs")
		_, safe := g.deployment("front", 1)
		fresh := g.pod("front-new", "clinic=7", safe("7"))
		g.started(fresh)
		g.pod("single-0", "clinic=6", g.statefulSet("single", 1))
		object, _ = g.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWaitingForPods, "StatefulSet single does not serve while new pods are held")
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(6))
	})

	It("keep the barrier back with cutover WhenPodsWait while it cannot be read how one of them rolls out", func() {
		_, safe := g.deployment("front", 1)
		_, outage := g.deployment("single", 1, func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType })
		g.started(g.pod("front-new", "clinic=7", safe("7")), g.pod("single-new", "clinic=7", outage("7")))
		forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "single", errors.New("no right"))
		g.schemas.Workloads = &Workloads{Clock: g.clock, Live: through(interceptor.Funcs{Get: func(
			ctx context.Context, through client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption,
		) error {
			if _, ok := object.(*appsv1.Deployment); ok && key.Name == "single" {
				return forbidden
			}
			return through.Get(ctx, key, object, options...)
		}})}
		g.apply(g.clinic(7, whenPodsWait))
		object, _ := g.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWaitingForPods, "Deployment single could not be read")
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(6))
		safety := condition(object, v1alpha1.ConditionWorkloadsSafe)
		Expect(safety.Status).To(Equal(metav1.ConditionUnknown))
		Expect(safety.Message).To(ContainSubstring("Deployment single could not be read"))
		g.apply(g.clinic(7))
		object, _ = g.pass()
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(7), "a barrier that waits for no pods goes on")
	})

	DescribeTable("are held without loss where their kind makes new pods beside the old ones, from before the barrier to the withdrawal:",
		func(kind, name string, of func() func(*corev1.Pod)) {
			owned := of()
			pods := func(version string) []*corev1.Pod {
				GinkgoHelper()
				return []*corev1.Pod{
					g.pod(name+"-"+version+"-0", "clinic="+version, owned), g.pod(name+"-"+version+"-1", "clinic="+version, owned),
				}
			}
			states := func(pods []*corev1.Pod) []string {
				GinkgoHelper()
				return []string{g.state(pods[0]), g.state(pods[1])}
			}
			old := pods("6")
			g.look()
			g.started(old...)
			g.apply(g.clinic(7, whenPodsWait))
			object, _ := g.pass()
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonWaitingForPods, kind+" "+name+" has 0 of 2")
			fresh := pods("7")
			g.look()
			g.started(fresh...)
			Expect(states(fresh)).To(HaveEach(unmigrated))

			By("the barrier, once only the gate holds them")
			object, _ = g.pass()
			Expect(*object.Status.StoredVersion).To(BeEquivalentTo(7))
			Expect(object.Status.Workloads).To(ConsistOf(
				v1alpha1.WorkloadStatus{Kind: kind, Name: name, Version: 6, Gated: 2, Ready: 2, Hold: v1alpha1.HoldLossless},
				v1alpha1.WorkloadStatus{Kind: kind, Name: name, Version: 7, Gated: 2, Hold: v1alpha1.HoldLossless},
			))
			Expect(condition(object, v1alpha1.ConditionWorkloadsSafe).Status).To(Equal(metav1.ConditionTrue))
			g.look()
			Expect(states(old)).To(HaveEach(open), "they go on reading")
			Expect(states(fresh)).To(HaveEach(backfilling))

			By("the activation, and their being Ready")
			g.bring()
			g.look()
			Expect(states(fresh)).To(HaveEach(open))
			g.started(fresh[0])
			g.look()
			Expect(states(old)).To(HaveEach(open), "one of two is not enough")
			g.started(fresh[1])
			g.look()
			Expect(states(old)).To(HaveEach("False Superseded"))
			Expect(states(fresh)).To(HaveEach(open))
		},
		Entry("a DaemonSet that surges", "DaemonSet", "agent", func() func(*corev1.Pod) {
			owned := g.daemonSet("agent", 2)
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"updateStrategy":{"rollingUpdate":{"maxSurge":"100%","maxUnavailable":0}}}}`))
			Expect(suite.admin.Patch(g.ctx, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "agent"}}, patch)).To(Succeed())
			return owned
		}),
		Entry("an Argo Rollout with a preview", "Rollout", "canary", func() func(*corev1.Pod) {
			return g.rollout("canary", "{replicas: 2, strategy: {blueGreen: {activeService: clinic}}}")
		}),
	)

	It("have the SyncSchema looked at when the gate or its pods change, and not otherwise", func() {
		told := func() int {
			count := 0
			for len(g.changed) > 0 {
				<-g.changed
				count++
			}
			return count
		}
		pod := g.pod("old", "clinic=6")
		g.look()
		Expect(told()).To(Equal(1))
		g.look()
		Expect(told()).To(BeZero())
		g.started(pod)
		g.look()
		Expect(told()).To(Equal(1))
		g.apply(g.clinic(7))
		g.pass()
		g.look()
		Expect(told()).To(Equal(1))
		g.look()
		Expect(told()).To(BeZero())
	})
})

func surging(by string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		surge, none := intstr.Parse(by), intstr.FromInt32(0)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &none}
	}
}

// statefulSet, daemonSet and rollout give what makes a pod one of theirs.
func (g *gate) statefulSet(name string, replicas int32) func(*corev1.Pod) {
	GinkgoHelper()
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
	set.Spec.Replicas = &replicas
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	set.Spec.Template.Labels, set.Spec.Template.Spec = map[string]string{"app": name}, podSpec()
	Expect(suite.admin.Create(g.ctx, set)).To(Succeed())
	return g.ownedBy(set)
}

func (g *gate) daemonSet(name string, nodes int32) func(*corev1.Pod) {
	GinkgoHelper()
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	set.Spec.Template.Labels, set.Spec.Template.Spec = map[string]string{"app": name}, podSpec()
	Expect(suite.admin.Create(g.ctx, set)).To(Succeed())
	set.Status.DesiredNumberScheduled = nodes
	Expect(suite.admin.Status().Update(g.ctx, set)).To(Succeed())
	return g.ownedBy(set)
}

func (g *gate) ownedBy(object client.Object) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { Expect(ctrl.SetControllerReference(object, pod, suite.scheme)).To(Succeed()) }
}

// rollout makes an Argo Rollout of the kind's own fields, in a cluster that knows no more of the kind than that.
func (g *gate) rollout(name, spec string) func(*corev1.Pod) {
	GinkgoHelper()
	g.installRollouts()
	object := parsed(`{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: ` + name + `, namespace: ` + g.namespace + `}, spec: ` + spec + `}`)
	Eventually(func() error { return suite.admin.Create(g.ctx, object) }, "20s", "100ms").Should(Succeed())
	return g.ownedBy(object)
}

// installRollouts gives the cluster the kind for the rest of the suite.
func (g *gate) installRollouts() {
	GinkgoHelper()
	definition := parsed(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rollouts.argoproj.io}
spec:
  group: argoproj.io
  scope: Namespaced
  names: {kind: Rollout, plural: rollouts, singular: rollout, listKind: RolloutList}
  versions:
  - {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`)
	Expect(client.IgnoreAlreadyExists(suite.admin.Create(g.ctx, definition))).To(Succeed())
}

func parsed(text string) *unstructured.Unstructured {
	GinkgoHelper()
	object := &unstructured.Unstructured{}
	json, err := yaml.YAMLToJSON([]byte(text))
	Expect(err).NotTo(HaveOccurred())
	Expect(object.UnmarshalJSON(json)).To(Succeed())
	return object
}
