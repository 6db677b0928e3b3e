package controllers

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

func TestWhatHoldingTheNewPodsOfAWorkloadCosts(t *testing.T) {
	deployment := func(replicas int32, surge, unavailable string) workload {
		d := &appsv1.Deployment{}
		d.Spec.Replicas = &replicas
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: value(surge), MaxUnavailable: value(unavailable)}
		return holdOfDeployment(d)
	}
	recreate := &appsv1.Deployment{}
	recreate.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	set := func(replicas int32, strategy appsv1.StatefulSetUpdateStrategy) workload {
		s := &appsv1.StatefulSet{}
		s.Spec.Replicas, s.Spec.UpdateStrategy = &replicas, strategy
		return holdOfStatefulSet(s)
	}
	partition := func(n int32) appsv1.StatefulSetUpdateStrategy {
		return appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &n}}
	}
	daemons := func(nodes int32, surge, unavailable string) workload {
		d := &appsv1.DaemonSet{}
		d.Status.DesiredNumberScheduled = nodes
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: value(surge), MaxUnavailable: value(unavailable)}
		return holdOfDaemonSet(d)
	}
	onDelete := &appsv1.DaemonSet{}
	onDelete.Spec.UpdateStrategy.Type, onDelete.Status.DesiredNumberScheduled = appsv1.OnDeleteDaemonSetStrategyType, 3

	for name, c := range map[string]struct {
		got    workload
		hold   v1alpha1.WorkloadHold
		atOnce int32
	}{
		"a Deployment that surges by all its replicas":         {deployment(3, "100%", "0"), v1alpha1.HoldLossless, 3},
		"a Deployment that surges by one":                      {deployment(3, "1", "0"), v1alpha1.HoldLossless, 1},
		"a Deployment of 1 at the defaults":                    {deployment(1, "", ""), v1alpha1.HoldLossless, 1},
		"a Deployment of 3 at the defaults":                    {deployment(3, "", ""), v1alpha1.HoldLossless, 1},
		"a Deployment of 4 at the defaults":                    {deployment(4, "", ""), v1alpha1.HoldLosesCapacity, 2},
		"a Deployment that does not surge":                     {deployment(3, "0", "1"), v1alpha1.HoldLosesCapacity, 1},
		"a Deployment of 1 that does not surge":                {deployment(1, "0", "1"), v1alpha1.HoldOutage, 1},
		"a Deployment whose percentages come to nothing":       {deployment(1, "0%", "1%"), v1alpha1.HoldOutage, 1},
		"a Deployment of which all may be unavailable":         {deployment(3, "1", "100%"), v1alpha1.HoldOutage, 3},
		"a Deployment of which more than all may be":           {deployment(2, "0", "5"), v1alpha1.HoldOutage, 2},
		"a Deployment scaled to nothing":                       {deployment(0, "", ""), v1alpha1.HoldLossless, 0},
		"a Deployment that recreates":                          {holdOfDeployment(recreate), v1alpha1.HoldOutage, 1},
		"a StatefulSet of 1":                                   {set(1, appsv1.StatefulSetUpdateStrategy{}), v1alpha1.HoldOutage, 1},
		"a StatefulSet of 3":                                   {set(3, appsv1.StatefulSetUpdateStrategy{}), v1alpha1.HoldLosesCapacity, 1},
		"a StatefulSet that a person updates":                  {set(1, appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}), v1alpha1.HoldLossless, 1},
		"a StatefulSet behind a partition":                     {set(3, partition(3)), v1alpha1.HoldLossless, 1},
		"a StatefulSet with a partition below its replicas":    {set(3, partition(2)), v1alpha1.HoldLosesCapacity, 1},
		"a DaemonSet at its defaults on 3 nodes":               {daemons(3, "", ""), v1alpha1.HoldLosesCapacity, 1},
		"a DaemonSet on one node":                              {daemons(1, "", ""), v1alpha1.HoldOutage, 1},
		"a DaemonSet that surges":                              {daemons(3, "1", "0"), v1alpha1.HoldLossless, 1},
		"a DaemonSet of which all may be unavailable":          {daemons(3, "0", "100%"), v1alpha1.HoldOutage, 3},
		"a DaemonSet that a person updates":                    {holdOfDaemonSet(onDelete), v1alpha1.HoldLossless, 1},
		"a Rollout that switches between two sets":             {rollout(t, `{replicas: 4, strategy: {blueGreen: {activeService: a}}}`), v1alpha1.HoldLossless, 4},
		"a canary at the defaults":                             {rollout(t, `{replicas: 4, strategy: {canary: {}}}`), v1alpha1.HoldLosesCapacity, 1},
		"a canary that surges":                                 {rollout(t, `{replicas: 4, strategy: {canary: {maxSurge: "50%", maxUnavailable: 0}}}`), v1alpha1.HoldLossless, 1},
		"a canary of one that does not surge":                  {rollout(t, `{strategy: {canary: {maxSurge: 0, maxUnavailable: 1}}}`), v1alpha1.HoldOutage, 1},
		"a canary of which the numbers are written as a text ": {rollout(t, `{replicas: 4, strategy: {canary: {maxSurge: "1", maxUnavailable: "0"}}}`), v1alpha1.HoldLossless, 1},
	} {
		if c.got.hold != c.hold || c.got.atOnce != c.atOnce {
			t.Errorf("%s: %s, %d at once; want %s, %d", name, c.got.hold, c.got.atOnce, c.hold, c.atOnce)
		}
		if (c.got.why == "") != (c.hold == v1alpha1.HoldLossless) {
			t.Errorf("%s: says %q", name, c.got.why)
		}
	}
}

func value(text string) *intstr.IntOrString {
	if text == "" {
		return nil
	}
	parsed := intstr.Parse(text)
	return &parsed
}

func rollout(t *testing.T, spec string) workload {
	t.Helper()
	object := &unstructured.Unstructured{}
	text, err := yaml.YAMLToJSON([]byte(`{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: r}, spec: ` + spec + `}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := object.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	return holdOfRollout(object)
}
