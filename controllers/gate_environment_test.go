package controllers

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// gate adds to a world what keeps the condition of pods, as the operator's account.
type gate struct {
	*world
	pods    *PodReconciler
	changed chan event.GenericEvent
}

func newGate() *gate {
	g := &gate{world: newWorld(), changed: make(chan event.GenericEvent, 100)}
	g.restart()
	return g
}

// restart makes an operator that remembers nothing.
func (g *gate) restart() {
	g.newOperator()
	workloads := &Workloads{Live: suite.operator, Clock: g.clock}
	refusals := &PodRefusals{}
	g.schemas.Pods, g.schemas.Workloads, g.schemas.Refusals = suite.operator, workloads, refusals
	g.pods = &PodReconciler{
		Client: suite.operator, Pods: suite.operator, Workloads: workloads, Events: g.events, Clock: g.clock, Changed: g.changed,
		Live: suite.operator, Refusals: refusals,
		Cluster: suite.identity,
		Gates:   &Gates{Live: suite.operator, Databases: g.databases, Clock: g.clock},
		Jitter:  func() float64 { return 0.5 },
	}
}

// look makes a pass over the pods of the schema, as old as any answer may be after the last one.
func (g *gate) look() ctrl.Result {
	GinkgoHelper()
	g.clock.advance(hotGate)
	result, err := g.pods.Reconcile(g.ctx, request(g.namespace, "clinic"))
	Expect(err).NotTo(HaveOccurred())
	return result
}

// pod makes a pod that asks for the gate and requires something.
func (g *gate) pod(name, requires string, change ...func(*corev1.Pod)) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: g.namespace, Name: name, Labels: map[string]string{v1alpha1.LabelGate: v1alpha1.GateEnabled},
		Annotations: map[string]string{v1alpha1.AnnotationRequires: requires},
	}}
	pod.Spec = podSpec()
	for _, apply := range change {
		apply(pod)
	}
	Expect(suite.admin.Create(g.ctx, pod)).To(Succeed())
	return pod
}

// podSpec is that of a pod which carries the gate, in a namespace that lets restricted pods in only.
func podSpec() corev1.PodSpec {
	yes, no := true, false
	return corev1.PodSpec{
		ReadinessGates:               []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}},
		AutomountServiceAccountToken: &no,
		SecurityContext:              &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{Name: "program", Image: "clinic", SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}}},
	}
}

// started says of a pod what a kubelet would once its containers are ready: it is Ready if its readiness gate is True.
func (g *gate) started(pods ...*corev1.Pod) {
	GinkgoHelper()
	for _, pod := range pods {
		ready := "False"
		if isTrue(g.condition(pod)) || !carriesGate(pod) {
			ready = "True"
		}
		g.patchStatus(pod, fmt.Sprintf(`{"status":{"phase":"Running","conditions":[
			{"type":"ContainersReady","status":"True"},{"type":"Ready","status":%q}]}}`, ready))
	}
}

func (g *gate) patchStatus(pod *corev1.Pod, patch string) {
	GinkgoHelper()
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	Expect(suite.admin.Status().Patch(g.ctx, target, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))).To(Succeed())
}

func (g *gate) read(pod *corev1.Pod) *corev1.Pod {
	GinkgoHelper()
	var found corev1.Pod
	Expect(suite.admin.Get(g.ctx, client.ObjectKeyFromObject(pod), &found)).To(Succeed())
	return &found
}

func (g *gate) condition(pod *corev1.Pod) *corev1.PodCondition {
	GinkgoHelper()
	return podCondition(g.read(pod), v1alpha1.ReadinessGate)
}

// state is a pod's condition in a few words.
func (g *gate) state(pod *corev1.Pod) string {
	GinkgoHelper()
	condition := g.condition(pod)
	if condition == nil {
		return "none"
	}
	return string(condition.Status) + " " + condition.Reason
}

const (
	open        = "True GateOpen"
	unmigrated  = "False MigrationPending"
	backfilling = "False Backfilling"
	unreachable = "False Unreachable"
)

// serving is a schema at version 7 with its gate open.
func (g *gate) serving() {
	GinkgoHelper()
	g.apply(g.clinic(6))
	g.bring()
	g.apply(g.clinic(7))
	g.bring()
}

// deployment makes a Deployment and the ReplicaSet of one version of it, and gives what makes a pod one of theirs.
func (g *gate) deployment(name string, replicas int32, change ...func(*appsv1.Deployment)) (object *appsv1.Deployment, of func(version string) func(*corev1.Pod)) {
	GinkgoHelper()
	labels := map[string]string{"app": name}
	object = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
	object.Spec.Replicas = &replicas
	object.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	object.Spec.Template.Labels = labels
	object.Spec.Template.Spec = podSpec()
	for _, apply := range change {
		apply(object)
	}
	Expect(suite.admin.Create(g.ctx, object)).To(Succeed())
	return object, func(version string) func(*corev1.Pod) {
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name + "-" + version}}
		set.Spec.Selector, set.Spec.Template = object.Spec.Selector, object.Spec.Template
		Expect(ctrl.SetControllerReference(object, set, suite.scheme)).To(Succeed())
		err := suite.admin.Create(g.ctx, set)
		if err != nil {
			Expect(suite.admin.Get(g.ctx, client.ObjectKeyFromObject(set), set)).To(Succeed())
		}
		return func(pod *corev1.Pod) {
			pod.Labels["app"] = name
			Expect(ctrl.SetControllerReference(set, pod, suite.scheme)).To(Succeed())
		}
	}
}

// heard gives the events with a reason.
func (h *heardEvents) heard(reason string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, line := range h.list {
		if strings.Contains(line, " "+reason+": ") {
			out = append(out, line)
		}
	}
	return out
}
