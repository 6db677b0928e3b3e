package webhook

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

const (
	// pgOptions is the variable that libpq, and what follows it, read settings of a session from.
	pgOptions = "PGOPTIONS"
	// writerVersion is the setting that the triggers of captured tables read (docs/design.md section 5).
	writerVersion = "syncbarrier.writer_version"
)

// GatePod changes a pod that asks for the gate, in place, to what it is created as, and returns what to warn its creator of. It is
// idempotent: its own result it leaves as it is, so that it may be called again after other webhooks.
//
//   - The readiness gate is added, once, behind those that are there. Pods of Jobs get none: nothing sends them traffic.
//   - The requirement is written into the environment of every container, as it is: one that is missing or cannot be read is for the
//     pod's condition to say. A variable of that name that is there stays; where it differs the condition is False.
//   - The start gate is added where the pod asks for it and startGate says that this installation takes it away again; never to a pod
//     that has its node already, one of a DaemonSet, or one of a Job.
//   - PGOPTIONS is set where the pod asks for it, in containers that neither have it nor take variables from elsewhere, where it may
//     be.
//
// A pod that does not ask, and a mirror pod, which runs as the file on its node says, are left alone.
func GatePod(pod *corev1.Pod, startGate bool) (warnings []string) {
	if pod.Labels[v1alpha1.LabelGate] != v1alpha1.GateEnabled || isMirror(pod) {
		return nil
	}
	if !ownedBy(pod, "Job") {
		addReadinessGate(pod)
	}
	if requires, given := pod.Annotations[v1alpha1.AnnotationRequires]; given {
		addVariable(pod, v1alpha1.EnvironmentRequires, requires)
	}
	warnings = append(warnings, addStartGate(pod, startGate)...)
	return append(warnings, addPGOptions(pod)...)
}

func isMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// ownedBy says that the pod's controller is of a kind of Kubernetes itself: Job or DaemonSet.
func ownedBy(pod *corev1.Pod, kind string) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != kind {
		return false
	}
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	return group == "batch" || group == "apps"
}

func addReadinessGate(pod *corev1.Pod) {
	for _, gate := range pod.Spec.ReadinessGates {
		if gate.ConditionType == v1alpha1.ReadinessGate {
			return
		}
	}
	pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: v1alpha1.ReadinessGate})
}

// addVariable sets a variable in every container that has none of that name.
func addVariable(pod *corev1.Pod, name, value string) {
	for _, container := range containers(pod) {
		if !hasVariable(container, name) {
			container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
		}
	}
}

// containers are all that a pod is created with, those that run first, and beside the others, included.
func containers(pod *corev1.Pod) (all []*corev1.Container) {
	for i := range pod.Spec.InitContainers {
		all = append(all, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		all = append(all, &pod.Spec.Containers[i])
	}
	return all
}

func hasVariable(container *corev1.Container, name string) bool {
	return slices.ContainsFunc(container.Env, func(variable corev1.EnvVar) bool { return variable.Name == name })
}

func addStartGate(pod *corev1.Pod, takenAway bool) (warnings []string) {
	asked := pod.Annotations[v1alpha1.AnnotationStart]
	has := slices.ContainsFunc(pod.Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool { return gate.Name == v1alpha1.StartGate })
	ignored := func(why string) []string {
		return []string{fmt.Sprintf("%s: %s is ignored: %s", v1alpha1.AnnotationStart, asked, why)}
	}
	switch {
	case asked == "" || has:
		return nil
	case asked != v1alpha1.StartAfterMigration:
		return ignored("only " + v1alpha1.StartAfterMigration + " is known")
	case !takenAway:
		return ignored("this installation has no start gate (config/start-gate)")
	case pod.Spec.NodeName != "":
		return ignored("the pod has its node already")
	case ownedBy(pod, "DaemonSet"):
		return ignored("the pods of a DaemonSet belong to their nodes")
	case ownedBy(pod, "Job"):
		return ignored("pods of Jobs are never gated")
	}
	pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.StartGate})
	return nil
}

func addPGOptions(pod *corev1.Pod) (warnings []string) {
	asked := pod.Annotations[v1alpha1.AnnotationInject]
	if asked == "" {
		return nil
	}
	if asked != v1alpha1.InjectPGOptions {
		return []string{fmt.Sprintf("%s: %s is ignored: only %s is known", v1alpha1.AnnotationInject, asked, v1alpha1.InjectPGOptions)}
	}
	version, why := versionOf(pod)
	if why != "" {
		return []string{fmt.Sprintf("%s: %s is ignored: %s", v1alpha1.AnnotationInject, asked, why)}
	}
	value := "-c " + writerVersion + "=" + strconv.FormatInt(version, 10)
	for _, container := range containers(pod) {
		switch {
		case setBefore(container, value):
		case hasVariable(container, pgOptions):
			warnings = append(warnings, fmt.Sprintf("container %s: %s is left as it is; it must set %s=%d itself",
				container.Name, pgOptions, writerVersion, version))
		case len(container.EnvFrom) > 0:
			warnings = append(warnings, fmt.Sprintf("container %s: %s is not set, because envFrom may have it; it must set %s=%d itself",
				container.Name, pgOptions, writerVersion, version))
		default:
			container.Env = append(container.Env, corev1.EnvVar{Name: pgOptions, Value: value})
		}
	}
	return warnings
}

// setBefore says that an earlier call has set the variable.
func setBefore(container *corev1.Container, value string) bool {
	return slices.Contains(container.Env, corev1.EnvVar{Name: pgOptions, Value: value})
}

// versionOf is the one version that the pod requires, or why there is none.
func versionOf(pod *corev1.Pod) (version int64, why string) {
	required, err := podgate.ParseRequirements(pod.Annotations[v1alpha1.AnnotationRequires])
	if err != nil {
		return 0, v1alpha1.AnnotationRequires + ": " + err.Error()
	}
	for _, r := range required[1:] {
		if r.Version != required[0].Version {
			return 0, "the pod requires several versions, and the variable has room for one"
		}
	}
	return required[0].Version, ""
}
