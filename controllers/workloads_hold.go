package controllers

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// What it costs to hold the new pods of a workload back by their readiness (docs/design.md section 8, "Rollouts"): nothing where the rollout
// makes new pods beside the old ones and takes no old one before a new one is Ready.

// holdOfDeployment reads a Deployment.
func holdOfDeployment(d *appsv1.Deployment) workload {
	replicas := valueOr(d.Spec.Replicas, 1)
	out := workload{replicas: replicas, deadline: valueOr(d.Spec.ProgressDeadlineSeconds, 0)}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		out.hold, out.why, out.atOnce = v1alpha1.HoldOutage, "strategy Recreate ends all old pods first", replicas
		return out
	}
	var surge, unavailable *intstr.IntOrString
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil {
		surge, unavailable = rolling.MaxSurge, rolling.MaxUnavailable
	}
	out.hold, out.why, out.atOnce = holdOfRolling(replicas, surge, unavailable, intstr.FromString("25%"))
	return out
}

// holdOfRolling judges maxSurge and maxUnavailable as the Deployment controller resolves them: a share of surging pods is rounded up, one of
// unavailable pods down, and if both come to nothing one pod may be unavailable (Kubernetes API, RollingUpdateDeployment).
func holdOfRolling(replicas int32, maxSurge, maxUnavailable *intstr.IntOrString, otherwise intstr.IntOrString) (v1alpha1.WorkloadHold, string, int32) {
	surge := share(maxSurge, otherwise, replicas, true)
	unavailable := share(maxUnavailable, otherwise, replicas, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	unavailable = min(unavailable, replicas)
	atOnce := min(replicas, surge+unavailable)
	switch {
	case replicas == 0 || unavailable == 0:
		return v1alpha1.HoldLossless, "", atOnce
	case unavailable == replicas:
		return v1alpha1.HoldOutage, fmt.Sprintf("maxUnavailable is %d of %d replicas", unavailable, replicas), atOnce
	default:
		return v1alpha1.HoldLosesCapacity, fmt.Sprintf("maxUnavailable is %d of %d replicas", unavailable, replicas), atOnce
	}
}

func share(value *intstr.IntOrString, otherwise intstr.IntOrString, of int32, up bool) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(value, otherwise), int(of), up)
	if err != nil || n < 0 {
		return 0 // the API server lets no such value in
	}
	return int32(min(n, 1<<30))
}

// holdOfStatefulSet reads a StatefulSet: it deletes a pod to make the new one in its place.
func holdOfStatefulSet(s *appsv1.StatefulSet) workload {
	replicas := valueOr(s.Spec.Replicas, 1)
	out := workload{replicas: replicas, hold: v1alpha1.HoldLossless, atOnce: 1}
	if s.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType || replicas == 0 {
		return out // a person deletes, or there is nothing to lose
	}
	unavailable := int32(1)
	if rolling := s.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		if valueOr(rolling.Partition, 0) >= replicas {
			return out // nothing is replaced before the partition is moved
		}
		unavailable = max(1, share(rolling.MaxUnavailable, intstr.FromInt32(1), replicas, true))
	}
	out.atOnce = min(unavailable, replicas)
	out.hold, out.why = v1alpha1.HoldLosesCapacity, fmt.Sprintf("a StatefulSet replaces its pods in place, %d of %d at a time", out.atOnce, replicas)
	if out.atOnce == replicas {
		out.hold = v1alpha1.HoldOutage
	}
	return out
}

// holdOfDaemonSet reads a DaemonSet: it replaces the pod of a node in place, unless it may surge.
func holdOfDaemonSet(d *appsv1.DaemonSet) workload {
	nodes := d.Status.DesiredNumberScheduled
	out := workload{replicas: nodes, hold: v1alpha1.HoldLossless, atOnce: 1}
	if d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType || nodes == 0 {
		return out
	}
	var surge, unavailable *intstr.IntOrString
	if rolling := d.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		surge, unavailable = rolling.MaxSurge, rolling.MaxUnavailable
	}
	if most := share(surge, intstr.FromInt32(0), nodes, true); most > 0 { // then maxUnavailable is 0 (Kubernetes API, RollingUpdateDaemonSet)
		out.atOnce = min(most, nodes)
		return out
	}
	out.atOnce = min(nodes, max(1, share(unavailable, intstr.FromInt32(1), nodes, true)))
	out.hold, out.why = v1alpha1.HoldLosesCapacity, fmt.Sprintf("a DaemonSet replaces its pods in place, %d of %d nodes at a time", out.atOnce, nodes)
	if out.atOnce == nodes {
		out.hold = v1alpha1.HoldOutage
	}
	return out
}

// holdOfRollout reads an Argo Rollout: blueGreen makes all new pods beside the old ones, canary goes by maxSurge and maxUnavailable, with a
// default of 25 % each (Argo Rollouts documentation, "Rollout Specification").
func holdOfRollout(r *unstructured.Unstructured) workload {
	replicas := int32(1)
	if n, found, err := unstructured.NestedInt64(r.Object, "spec", "replicas"); err == nil && found {
		replicas = int32(min(max(n, 0), 1<<30))
	}
	out := workload{replicas: replicas}
	if n, found, err := unstructured.NestedInt64(r.Object, "spec", "progressDeadlineSeconds"); err == nil && found {
		out.deadline = int32(min(max(n, 0), 1<<30))
	}
	if _, blueGreen, _ := unstructured.NestedMap(r.Object, "spec", "strategy", "blueGreen"); blueGreen {
		out.hold, out.atOnce = v1alpha1.HoldLossless, replicas
		return out
	}
	out.hold, out.why, out.atOnce = holdOfRolling(replicas, rolloutValue(r, "maxSurge"), rolloutValue(r, "maxUnavailable"), intstr.FromString("25%"))
	out.atOnce = min(out.atOnce, 1) // the steps of a canary may begin with one pod
	return out
}

func rolloutValue(r *unstructured.Unstructured, name string) *intstr.IntOrString {
	found, ok, err := unstructured.NestedFieldNoCopy(r.Object, "spec", "strategy", "canary", name)
	if err != nil || !ok {
		return nil
	}
	var value intstr.IntOrString
	switch v := found.(type) {
	case int64:
		value = intstr.FromInt32(int32(min(max(v, 0), 1<<30)))
	case string:
		value = intstr.Parse(v)
	default:
		return nil
	}
	return &value
}

func valueOr(value *int32, otherwise int32) int32 {
	if value == nil {
		return otherwise
	}
	return *value
}
