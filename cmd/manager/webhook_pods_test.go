package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/pkg/servegate"
)

// Parts of TestWebhook: what becomes of pods after they were created.

// backfilled is a checkpoint that nobody works on: these clusters have no nodes.
const backfilled = `
  checkpoints:
  - name: titles
    version: 2
    sources: [{table: todos, changes: CommitLog}]
    backfill: {update: {table: todos, set: {title: lower(title)}}}
`

func (e *environment) testStartGatePolicy(t *testing.T) {
	pod := newPod("shop", true, func(p *corev1.Pod) {
		p.Annotations["syncbarrier.dev/start"] = "AfterMigration"
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a.example/b"}}
	})
	if err := e.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.SchedulingGates) != 2 || pod.Spec.SchedulingGates[1].Name != startGate {
		t.Fatalf("the pod's scheduling gates are %v, want %s behind its own", pod.Spec.SchedulingGates, startGate)
	}
	operator, err := kubernetes.NewForConfig(e.cluster.ServiceAccount(systemNamespace, account))
	if err != nil {
		t.Fatal(err)
	}
	patch := func(patch string) error {
		_, err := operator.CoreV1().Pods("shop").Patch(t.Context(), pod.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	for name, change := range map[string]string{
		"the image":        `{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}`,
		"a label":          `{"op": "add", "path": "/metadata/labels/x", "value": "y"}`,
		"an annotation":    `{"op": "replace", "path": "/metadata/annotations/syncbarrier.dev~1requires", "value": "clinic=6"}`,
		"a finalizer":      `{"op": "add", "path": "/metadata/finalizers", "value": ["a.example/b"]}`,
		"a toleration":     `{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}`,
		"a deadline":       `{"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 1}`,
		"where it may run": `{"op": "add", "path": "/spec/nodeSelector", "value": {"a": "b"}}`,
		"another gate":     `{"op": "remove", "path": "/spec/schedulingGates/0"}`,
	} {
		if err := patch("[" + change + "]"); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "syncbarrier-start-gate") {
			t.Errorf("as the manager %s can be changed: %v", name, err)
		}
		if err := e.client.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte("["+change+"]")), client.DryRunAll); err != nil {
			t.Errorf("nobody can change %s, so this shows nothing: %v", name, err)
		}
	}
	if err := patch(`[{"op": "remove", "path": "/spec/schedulingGates/1"}]`); err != nil {
		t.Errorf("the manager cannot take the start gate away: %v", err)
	}
}

// condition returns the gate's condition of a pod.
func (e *environment) condition(ctx context.Context, pod *corev1.Pod) (found corev1.PodCondition, err error) {
	if err := e.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		return found, err
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == serveGate {
			found = condition
		}
	}
	return found, nil
}

// awaitReason waits until the gate's condition of a pod has a reason.
func (e *environment) awaitReason(t *testing.T, pod *corev1.Pod, status corev1.ConditionStatus, reason string) {
	t.Helper()
	var seen corev1.PodCondition
	waitFor(t, reason, func(ctx context.Context) (bool, error) {
		condition, err := e.condition(ctx, pod)
		seen = condition
		return condition.Status == status && condition.Reason == reason, err
	}, func() string { return fmt.Sprintf("%+v", seen) })
}

func (e *environment) testStartGate(t *testing.T) {
	namespace := e.namespace(t)
	e.database(t, namespace)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	pod := newPod(namespace, true, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"syncbarrier.dev/start": "AfterMigration", "syncbarrier.dev/requires": "clinic=2"}
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a.example/b"}}
	})
	if err := e.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	e.awaitReason(t, pod, corev1.ConditionFalse, "MigrationPending")
	if len(pod.Spec.SchedulingGates) != 2 {
		t.Errorf("before the migration its scheduling gates are %v, want the other and ours", pod.Spec.SchedulingGates)
	}
	e.apply(t, namespace, 2, backfilled)
	waitFor(t, "the start gate to be taken away", func(ctx context.Context) (bool, error) {
		_, err := e.condition(ctx, pod)
		return len(pod.Spec.SchedulingGates) == 1 && pod.Spec.SchedulingGates[0].Name == "a.example/b", err
	})
	e.awaitReason(t, pod, corev1.ConditionFalse, "Backfilling")
	e.kubectl(t, "", "annotate", "pod", pod.Name, "-n", namespace, "--overwrite", "syncbarrier.dev/requires=clinic=1")
	e.awaitReason(t, pod, corev1.ConditionFalse, "VersionEdited")
}

func (e *environment) testDecisionsAreOfPods(t *testing.T) {
	namespace := e.namespace(t)
	gate, err := servegate.ForDB(e.database(t, namespace), servegate.PostgreSQL, servegate.Options{Version: 2, Name: "clinic"})
	if err != nil {
		t.Fatal(err)
	}
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	e.apply(t, namespace, 2, backfilled)
	pod := newPod(namespace, true, func(p *corev1.Pod) { p.Annotations["syncbarrier.dev/requires"] = "clinic=2" })
	if err := e.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	e.awaitReason(t, pod, corev1.ConditionFalse, "Backfilling")
	closed := func(while string) {
		t.Helper()
		if answer, err := gate.Check(t.Context()); err != nil || answer.Open || answer.Reason != servegate.Backfilling {
			t.Errorf("%s the gate of the database is %+v, %v", while, answer, err)
		}
	}
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	e.kubectl(t, "", "annotate", "syncschema", "clinic", "-n", namespace, "syncbarrier.dev/bypass="+until+";a test")
	e.awaitReason(t, pod, corev1.ConditionTrue, "Bypassed")
	closed("while it is bypassed")
	waitFor(t, "who bypassed it", func(ctx context.Context) (bool, error) {
		message, err := e.cluster.Kubectl("", "get", "syncschema", "clinic", "-n", namespace, "-o", `jsonpath={.status.conditions[?(@.type=="GateBypassed")].message}`)
		return strings.Contains(message, ", by admin: a test"), err
	})
	e.kubectl(t, "", "annotate", "syncschema", "clinic", "-n", namespace, "syncbarrier.dev/bypass-")
	e.apply(t, namespace, 2, backfilled+"  gate: {mode: Report}\n")
	e.awaitReason(t, pod, corev1.ConditionTrue, "ReportOnly")
	closed("in mode Report")
}
