package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

// StripPod keeps of a pod what the gate looks at, so that a cache of all gated pods stays small. It is a transform of a cache.
func StripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	return stripped(pod), nil
}

func stripped(pod *corev1.Pod) *corev1.Pod {
	small := &corev1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		DeletionTimestamp: pod.DeletionTimestamp, Labels: pod.Labels, OwnerReferences: pod.OwnerReferences,
	}}
	if value, ok := pod.Annotations[v1alpha1.AnnotationRequires]; ok {
		small.Annotations = map[string]string{v1alpha1.AnnotationRequires: value}
	}
	small.Spec.ReadinessGates, small.Spec.SchedulingGates = pod.Spec.ReadinessGates, pod.Spec.SchedulingGates
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, variable := range container.Env {
			if variable.Name == v1alpha1.EnvironmentRequires {
				small.Spec.Containers = append(small.Spec.Containers, corev1.Container{Name: container.Name, Env: []corev1.EnvVar{variable}})
			}
		}
	}
	small.Status.Phase = pod.Status.Phase
	for _, condition := range pod.Status.Conditions {
		switch condition.Type {
		case v1alpha1.ReadinessGate, corev1.PodReady, corev1.ContainersReady:
			small.Status.Conditions = append(small.Status.Conditions, condition)
		}
	}
	return small
}

// listPods lists the pods of a namespace that ask for the gate and are not at their end.
func listPods(ctx context.Context, reader client.Reader, namespace string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := reader.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelGate: v1alpha1.GateEnabled})
	if err != nil {
		return nil, fmt.Errorf("list the gated pods of namespace %s: %w", namespace, err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return atEnd(&pod) }), nil
}

// atEnd says that a pod is being deleted, or has done what it was for.
func atEnd(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// podCondition finds a condition of a pod; nil: it has none of that type.
func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func isTrue(condition *corev1.PodCondition) bool {
	return condition != nil && condition.Status == corev1.ConditionTrue
}

// carriesGate says whether the kubelet waits for our condition.
func carriesGate(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.ReadinessGates, func(gate corev1.PodReadinessGate) bool {
		return gate.ConditionType == v1alpha1.ReadinessGate
	})
}

// ofJob says that a Job made the pod: it does its work and ends, and is never gated.
func ofJob(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Job" && isGroup(owner.APIVersion, "batch")
}

// gateFacts gives what is judged of a pod.
func gateFacts(pod *corev1.Pod, condition *corev1.PodCondition) podgate.Pod {
	out := podgate.Pod{Annotation: pod.Annotations[v1alpha1.AnnotationRequires], Open: isTrue(condition)}
	if condition != nil {
		out.Message = condition.Message
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, variable := range container.Env {
			if variable.Name == v1alpha1.EnvironmentRequires && variable.ValueFrom == nil {
				out.Environment = append(out.Environment, variable.Value)
			}
		}
	}
	return out
}

// requiredVersion gives the version that a pod requires of a SyncSchema; 0: none.
func requiredVersion(pod *corev1.Pod, schema string) int64 {
	required, _, _ := gateFacts(pod, nil).Requirements()
	for _, r := range required {
		if r.Schema == schema {
			return r.Version
		}
	}
	return 0
}

// schemasOfPod names the SyncSchemas that a pod requires. One that requires nothing that can be judged belongs to the empty name.
func schemasOfPod(pod *corev1.Pod) []types.NamespacedName {
	required, _, _ := gateFacts(pod, nil).Requirements()
	names := make([]types.NamespacedName, 0, len(required))
	for _, r := range required {
		names = append(names, types.NamespacedName{Namespace: pod.Namespace, Name: r.Schema})
	}
	if len(names) == 0 {
		names = append(names, types.NamespacedName{Namespace: pod.Namespace})
	}
	return names
}
