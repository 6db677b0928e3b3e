package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

// startAll takes the start gate from the pods of a pass that may be scheduled. The right to do so comes with config/start-gate, and so no marker
// asks for it here.
func (r *PodReconciler) startAll(ctx context.Context, pass *podPass) error {
	if !r.StartGates {
		return nil
	}
	of := func(schema string) podgate.Facts { return pass.facts[schema] }
	free := slices.DeleteFunc(slices.Clone(pass.pods), func(judged judgedPod) bool {
		wanted := waitsToStart(judged.pod) && podgate.MayStart(gateFacts(judged.pod, judged.condition), judged.verdict, of)
		return !r.Refusals.wants(wanted, judged.pod.UID, writesStart, pass.now)
	})
	return eachPod(free, func(judged judgedPod) error {
		err := r.start(ctx, judged.pod)
		return r.refused(judged.pod, writesStart, err == nil, err, pass.now)
	})
}

func waitsToStart(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool { return gate.Name == v1alpha1.StartGate })
}

// start takes our gate from a pod, keyed by its name, and no other. The UID makes it this pod and none that has its name by now.
func (r *PodReconciler) start(ctx context.Context, pod *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"spec": map[string]any{"schedulingGates": []map[string]string{
			{"$patch": "delete", "name": v1alpha1.StartGate},
		}},
	})
	if err != nil {
		return err
	}
	written := &corev1.Pod{}
	written.Namespace, written.Name = pod.Namespace, pod.Name
	err = r.Client.Patch(ctx, written, client.RawPatch(types.StrategicMergePatchType, patch))
	if isAnotherPod(err) {
		return nil // it is gone
	}
	if err != nil {
		return fmt.Errorf("take the start gate from pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
