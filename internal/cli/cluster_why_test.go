package cli

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gatedPod is a pod that asks for the gate, has it, and runs.
func gatedPod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "clinic-x", Labels: map[string]string{"syncbarrier.dev/gate": "enabled"},
			Annotations: map[string]string{"syncbarrier.dev/requires": "clinic=7"},
		},
		Spec: corev1.PodSpec{
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "syncbarrier.dev/serve-gate"}},
			Containers:     []corev1.Container{{Name: "app", Image: "clinic:7"}},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		}},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// says sets a condition of a pod.
func says(conditionType corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		condition := corev1.PodCondition{Type: conditionType, Status: status, Reason: reason, Message: message}
		for i := range pod.Status.Conditions {
			if pod.Status.Conditions[i].Type == conditionType {
				pod.Status.Conditions[i] = condition
				return
			}
		}
		pod.Status.Conditions = append(pod.Status.Conditions, condition)
	}
}

func ungated(pod *corev1.Pod)    { pod.Spec.ReadinessGates = nil }
func unlabelled(pod *corev1.Pod) { pod.Labels = nil }

func requiringNothing(pod *corev1.Pod) { pod.Annotations = nil }

var whyCases = map[string]struct {
	pod         *corev1.Pod
	reason      string
	held, ready bool
	message     string
}{
	"held by the gate": {
		gatedPod(says("syncbarrier.dev/serve-gate", "False", "Backfilling", "clinic=7: not activated: checkpoint \"name-search\".")), "Backfilling", true, false,
		"clinic-x is held by the serve gate: Backfilling: clinic=7: not activated: checkpoint \"name-search\"",
	},
	"let in, and Ready": {
		gatedPod(says("syncbarrier.dev/serve-gate", "True", "GateOpen", "proven"), says("Ready", "True", "", "")), "GateOpen", false, true,
		"clinic-x is let in by the serve gate: GateOpen: proven; it is Ready",
	},
	"let in, and another gate waits": {
		gatedPod(says("syncbarrier.dev/serve-gate", "True", "GateOpen", "proven"), func(p *corev1.Pod) {
			p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: "a.example/b"})
		}), "GateOpen", false, false,
		"clinic-x is let in by the serve gate: GateOpen: proven; it is not Ready for want of a.example/b",
	},
	"let in, and a container is not ready": {
		gatedPod(says("syncbarrier.dev/serve-gate", "True", "Bypassed", "a person"), says("ContainersReady", "False", "ContainersNotReady", "app")), "Bypassed", false, false,
		"clinic-x is let in by the serve gate: Bypassed: a person; it is not Ready for want of ContainersReady: ContainersNotReady: app",
	},
	"not scheduled for another reason": {
		gatedPod(ungated, unlabelled, requiringNothing, says("PodScheduled", "False", "Unschedulable", "no node"), says("ContainersReady", "False", "", "")), "NotGated", false, false,
		"clinic-x does not ask for the serve gate (label syncbarrier.dev/gate: enabled), so nothing of Syncbarrier holds it; it is not Ready for want of PodScheduled: Unschedulable: no node",
	},
	"requires a version under a label that is mistyped": {
		gatedPod(ungated, func(p *corev1.Pod) { p.Labels["syncbarrier.dev/gate"] = "true" }, says("Ready", "True", "", "")), "NotGated", false, true,
		"clinic-x has the annotation syncbarrier.dev/requires, but its label syncbarrier.dev/gate is \"true\", not \"enabled\", so the webhook left it alone",
	},
	"requires a version and has no label": {
		gatedPod(ungated, unlabelled, says("Ready", "True", "", "")), "NotGated", false, true,
		"clinic-x has the annotation syncbarrier.dev/requires, but not the label syncbarrier.dev/gate: enabled, so the webhook left it alone",
	},
	"asked and created without": {
		gatedPod(ungated, says("Ready", "True", "", "")), "PodsWithoutGate", false, true, "created without it",
	},
	"a gate that never had the label": {
		gatedPod(unlabelled), "NotJudged", true, false,
		"clinic-x carries the serve gate without the label syncbarrier.dev/gate: enabled, and was not judged yet; with the label it is, else when the operator starts",
	},
	"a label that went while it was held": {
		gatedPod(unlabelled, says("syncbarrier.dev/serve-gate", "False", "Backfilling", "clinic=7: not activated.")), "Backfilling", true, false,
		"clinic-x has lost the label syncbarrier.dev/gate: enabled and is held by the serve gate, which it keeps until it is replaced: Backfilling: clinic=7: not activated",
	},
	"a label that went after it was let in": {
		gatedPod(unlabelled, says("syncbarrier.dev/serve-gate", "True", "GateOpen", "proven"), says("Ready", "True", "", "")), "GateOpen", false, true,
		"clinic-x has lost the label syncbarrier.dev/gate: enabled and is let in by the serve gate, which it keeps until it is replaced: GateOpen: proven; it is Ready",
	},
	"not judged": {gatedPod(), "NotJudged", true, false, "waits for the operator"},
	"the start gate": {
		gatedPod(says("syncbarrier.dev/serve-gate", "False", "MigrationPending", "at 6"), func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "syncbarrier.dev/start-gate"}}
		}), "StartGate", true, false,
		"clinic-x is not scheduled: its start gate waits until the database is migrated to what it requires, clinic=7: MigrationPending: at 6",
	},
	"ended":       {gatedPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), "Ended", false, false, "has ended: Failed"},
	"terminating": {gatedPod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }), "Terminating", false, false, "being deleted"},
}

func TestWhyAPodIsReadyOrIsNot(t *testing.T) {
	for name, c := range whyCases {
		t.Run(name, func(t *testing.T) {
			got := why(c.pod)
			if got.Reason != c.reason || got.Held != c.held || got.Ready != c.ready {
				t.Errorf("got %+v, want %s, held %t, ready %t", got, c.reason, c.held, c.ready)
			}
			if !strings.Contains(got.Message, c.message) || strings.Count(got.Message, ". ") > 0 {
				t.Errorf("it says %q, want one sentence with %q", got.Message, c.message)
			}
		})
	}
}

// whyAsksThePod and bypassDecides are parts of TestInACluster.
func whyAsksThePod(t *testing.T, u *person) {
	pod := gatedPod()
	pod.Namespace, pod.Status = u.namespace, corev1.PodStatus{}
	if err := u.admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	says("syncbarrier.dev/serve-gate", "False", "MigrationPending", "clinic=7: the database is at version 6")(pod)
	if err := u.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	got := u.run(t, "why", "pod/clinic-x")
	got.exits(t, exitDone)
	got.has(t, "clinic-x is held by the serve gate: MigrationPending: clinic=7: the database is at version 6\n")
	schema := u.create(t, stalled)
	u.run(t, "why", "clinic-x").has(t, "the database is at version 6; SyncSchema clinic is stalled: ContentDrift, a person must act")
	u.says(t, schema, waiting)
	got = u.run(t, "why", "clinic-x")
	got.has(t, "the database is at version 6\n")
	if said := parseJSON(t, u.run(t, "why", "clinic-x", "-o", "json").out); said["reason"] != "MigrationPending" || said["held"] != true {
		t.Errorf("why -o json says %v", said)
	}
	got = u.run(t, "why", "nobody", "-o", "json")
	got.exits(t, exitOther)
	got.has(t, `"reason": "NotFound"`, "kubectl get pods -n "+u.namespace)
}

func bypassDecides(t *testing.T, u *person) {
	schema := u.create(t, waiting)
	got := u.run(t, "bypass", "clinic", "--for", "1h", "--reason", "  INC-1; on call  ")
	got.exits(t, exitDone)
	found := u.again(t, schema)
	value := found.Annotations["syncbarrier.dev/bypass"]
	text, reason, _ := strings.Cut(value, ";")
	until, err := time.Parse(time.RFC3339, text)
	if err != nil || reason != "INC-1; on call" {
		t.Fatalf("the annotation is %q", value)
	}
	// An hour from the time of the cluster; the clock of this person's machine stands still.
	if off := (time.Until(until) - time.Hour).Abs(); off > time.Minute {
		t.Errorf("the bypass ends at %s, %s off an hour from now", text, off)
	}
	got.has(t, "open for pods until "+text)
	if found.Generation != schema.Generation {
		t.Error("the spec was changed")
	}
	for _, args := range [][]string{
		{}, {"--for", "1h"}, {"--reason", "x"}, {"--for", "-1h", "--reason", "x"}, {"--for", "169h", "--reason", "x"},
		{"--for", "1h", "--reason", " "}, {"--for", "1h", "--reason", "a\nb"}, {"--for", "1h", "--reason", strings.Repeat("x", 201)},
		{"--end", "--for", "1h"},
	} {
		u.run(t, append([]string{"bypass", "clinic"}, args...)...).exits(t, exitUsage)
	}
	if got := u.again(t, schema).Annotations["syncbarrier.dev/bypass"]; got != value {
		t.Errorf("a refused call made the annotation %q", got)
	}
	u.run(t, "bypass", "clinic", "--end").has(t, "is taken back")
	if value, still := u.again(t, schema).Annotations["syncbarrier.dev/bypass"]; still {
		t.Errorf("the annotation is still %q", value)
	}
	u.run(t, "bypass", "clinic", "--end", "-o", "json").has(t, `"changed": false`)
}
