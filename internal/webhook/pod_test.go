package webhook

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// newPod is a pod that asks for the gate, with a container that runs first and one that serves.
func newPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "clinic-",
			Labels:       map[string]string{"syncbarrier.dev/gate": "enabled"},
			Annotations:  map[string]string{"syncbarrier.dev/requires": "clinic=7"},
		},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "first"}},
			Containers:     []corev1.Container{{Name: "app", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func annotate(name, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[name] = value }
}

func owner(apiVersion, kind string) func(*corev1.Pod) {
	yes := true
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "o", UID: "u", Controller: &yes})
	}
}

func variable(container, name, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, c := range containers(pod) {
			if c.Name == container {
				c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
			}
		}
	}
}

func fromElsewhere(pod *corev1.Pod) {
	pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{}}}
}

func start(pod *corev1.Pod)  { pod.Annotations["syncbarrier.dev/start"] = "AfterMigration" }
func inject(pod *corev1.Pod) { pod.Annotations["syncbarrier.dev/inject"] = "PGOPTIONS" }
func onNode(pod *corev1.Pod) { pod.Spec.NodeName = "n1" }
func mirror(pod *corev1.Pod) { pod.Annotations["kubernetes.io/config.mirror"] = "hash" }

func gates(types ...corev1.PodConditionType) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, t := range types {
			pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: t})
		}
	}
}

// outcome is what is looked at of a result, in short.
type outcome struct {
	gates, startGates, first, app string
	warning                       string // a part of the one warning; empty: none
}

const serve, requires = "syncbarrier.dev/serve-gate", "SYNCBARRIER_REQUIRES="

var podCases = map[string]struct {
	pod       *corev1.Pod
	startGate bool
	want      outcome
}{
	"a pod that asks": {newPod(), true, outcome{serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=7", ""}},
	"a pod that does not": {
		newPod(func(pod *corev1.Pod) { pod.Labels = nil }, start, inject), true, outcome{app: "A=1"},
	},
	"another value of the label": {
		newPod(func(pod *corev1.Pod) { pod.Labels["syncbarrier.dev/gate"] = "disabled" }), true, outcome{app: "A=1"},
	},
	"other gates stay, in their order": {
		newPod(gates("b.example/x", "a.example/y")), true,
		outcome{"b.example/x a.example/y " + serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=7", ""},
	},
	"a gate written by hand is the one gate": {
		newPod(gates(serve, "a.example/y")), true, outcome{serve + " a.example/y", "", requires + "clinic=7", "A=1 " + requires + "clinic=7", ""},
	},
	"a requirement that cannot be read is for the condition": {
		newPod(annotate("syncbarrier.dev/requires", "clinic")), true, outcome{serve, "", requires + "clinic", "A=1 " + requires + "clinic", ""},
	},
	"a requirement that is missing is for the condition": {
		newPod(func(pod *corev1.Pod) { pod.Annotations = nil }), true, outcome{serve, "", "", "A=1", ""},
	},
	"a variable of that name stays": {
		newPod(variable("app", "SYNCBARRIER_REQUIRES", "clinic=6")), true, outcome{serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=6", ""},
	},
	"a pod of a Deployment": {
		newPod(owner("apps/v1", "ReplicaSet"), start), true,
		outcome{serve, "syncbarrier.dev/start-gate", requires + "clinic=7", "A=1 " + requires + "clinic=7", ""},
	},
	"a pod of a Job is never gated": {
		newPod(owner("batch/v1", "Job"), start), true, outcome{"", "", requires + "clinic=7", "A=1 " + requires + "clinic=7", "pods of Jobs"},
	},
	"another Job is no Job": {
		newPod(owner("example.com/v1", "Job")), true, outcome{serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=7", ""},
	},
	"a pod of a DaemonSet starts": {
		newPod(owner("apps/v1", "DaemonSet"), start), true, outcome{serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=7", "DaemonSet"},
	},
	"a pod with a node starts": {
		newPod(onNode, start), true, outcome{serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=7", "has its node"},
	},
	"a mirror pod is what its file says": {newPod(mirror, start, inject), true, outcome{app: "A=1"}},
	"without the overlay there is no start gate": {
		newPod(start), false, outcome{serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=7", "config/start-gate"},
	},
	"another word for the start": {
		newPod(annotate("syncbarrier.dev/start", "Later")), true, outcome{serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=7", "only AfterMigration"},
	},
	"a start gate written by hand is the one gate": {
		newPod(start, func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "syncbarrier.dev/start-gate"}}
		}), true, outcome{serve, "syncbarrier.dev/start-gate", requires + "clinic=7", "A=1 " + requires + "clinic=7", ""},
	},
	"PGOPTIONS where it is asked for": {newPod(inject), true, outcome{
		serve, "", requires + "clinic=7 PGOPTIONS=-c syncbarrier.writer_version=7",
		"A=1 " + requires + "clinic=7 PGOPTIONS=-c syncbarrier.writer_version=7", "",
	}},
	"PGOPTIONS that is there stays": {newPod(inject, variable("app", "PGOPTIONS", "-c a=b")), true, outcome{
		serve, "", requires + "clinic=7 PGOPTIONS=-c syncbarrier.writer_version=7", "A=1 PGOPTIONS=-c a=b " + requires + "clinic=7", "container app: PGOPTIONS is left",
	}},
	"envFrom may have PGOPTIONS": {newPod(inject, fromElsewhere), true, outcome{
		serve, "", requires + "clinic=7 PGOPTIONS=-c syncbarrier.writer_version=7", "A=1 " + requires + "clinic=7", "container app: PGOPTIONS is not set, because envFrom",
	}},
	"several databases of one version": {newPod(inject, annotate("syncbarrier.dev/requires", "clinic=7, billing=7")), true, outcome{
		serve, "", requires + "clinic=7, billing=7 PGOPTIONS=-c syncbarrier.writer_version=7",
		"A=1 " + requires + "clinic=7, billing=7 PGOPTIONS=-c syncbarrier.writer_version=7", "",
	}},
	"several databases of several versions": {newPod(inject, annotate("syncbarrier.dev/requires", "clinic=7,billing=3")), true, outcome{
		serve, "", requires + "clinic=7,billing=3", "A=1 " + requires + "clinic=7,billing=3", "several versions",
	}},
	"no version to inject": {newPod(inject, annotate("syncbarrier.dev/requires", "clinic=x")), true, outcome{
		serve, "", requires + "clinic=x", "A=1 " + requires + "clinic=x", "not a version",
	}},
	"another word to inject": {newPod(annotate("syncbarrier.dev/inject", "JAVA_OPTS")), true, outcome{
		serve, "", requires + "clinic=7", "A=1 " + requires + "clinic=7", "only PGOPTIONS",
	}},
}

func TestAPodIsCreatedAsItAsks(t *testing.T) {
	for name, c := range podCases {
		t.Run(name, func(t *testing.T) {
			pod := c.pod.DeepCopy()
			warnings := GatePod(pod, c.startGate)
			if got := seen(pod, warnings); got != c.want && !(c.want.warning != "" && strings.Contains(got.warning, c.want.warning) && same(got, c.want)) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
			again := pod.DeepCopy()
			if repeated := GatePod(again, c.startGate); !reflect.DeepEqual(again, pod) || !slices.Equal(repeated, warnings) {
				t.Errorf("called again it makes %+v with %q, want no change", again.Spec, repeated)
			}
		})
	}
}

func same(a, b outcome) bool {
	a.warning, b.warning = "", ""
	return a == b
}

func seen(pod *corev1.Pod, warnings []string) outcome {
	var o outcome
	for _, gate := range pod.Spec.ReadinessGates {
		o.gates = strings.TrimSpace(o.gates + " " + string(gate.ConditionType))
	}
	for _, gate := range pod.Spec.SchedulingGates {
		o.startGates = strings.TrimSpace(o.startGates + " " + gate.Name)
	}
	o.first, o.app = environment(pod.Spec.InitContainers[0]), environment(pod.Spec.Containers[0])
	o.warning = strings.Join(warnings, "; ")
	return o
}

func environment(container corev1.Container) string {
	var parts []string
	for _, v := range container.Env {
		parts = append(parts, v.Name+"="+v.Value)
	}
	return strings.Join(parts, " ")
}

func TestThePatchOfAPodTouchesNothingElse(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	raw := []byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {
		"labels": {"syncbarrier.dev/gate": "enabled"}, "annotations": {"syncbarrier.dev/requires": "clinic=7"}},
		"spec": {"aFieldOfTheFuture": 1, "containers": [{"name": "app", "another": true}, {"name": "b", "env": [{"name": "A", "value": "1"}]}]}}`)
	response := NewPodHandler(scheme, false).Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
	}})
	if !response.Allowed {
		t.Fatalf("the pod is not let in: %v", response.Result)
	}
	var paths []string
	for _, patch := range response.Patches {
		if patch.Operation != "add" {
			t.Errorf("the patch has %s, want nothing but additions", patch.Json())
		}
		paths = append(paths, patch.Path)
	}
	slices.Sort(paths)
	if want := []string{"/spec/containers/0/env", "/spec/containers/1/env/1", "/spec/readinessGates"}; !slices.Equal(paths, want) {
		t.Errorf("it changes %q, want %q", paths, want)
	}
}

func TestWhatIsNoPodIsRefused(t *testing.T) {
	scheme := runtime.NewScheme()
	raw, err := json.Marshal("no pod")
	if err != nil {
		t.Fatal(err)
	}
	response := NewPodHandler(scheme, false).Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Object: runtime.RawExtension{Raw: raw},
	}})
	if response.Allowed || response.Result.Code != 400 {
		t.Errorf("the answer is %+v, want 400", response)
	}
}
