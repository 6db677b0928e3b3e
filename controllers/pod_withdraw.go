package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

// superseded names, for each pod of a pass, the SyncSchemas of which enough pods of the stored version are Ready in the pod's own workload: the
// traffic can go to them alone. A workload that cannot be looked at withdraws nothing.
func (r *PodReconciler) superseded(ctx context.Context, pass *podPass) map[types.UID][]string {
	out := map[types.UID][]string{}
	for schema, facts := range pass.facts {
		if !withdraws(facts) {
			continue
		}
		stored := facts.Gate.StoredVersion
		var ready map[types.UID]int64 // of the stored version, by workload
		for _, judged := range pass.pods {
			version := requiredVersion(judged.pod, schema)
			if version == 0 || version >= stored || version >= facts.Gate.MinWriterVersion {
				continue
			}
			if ready == nil {
				ready = r.readyPods(ctx, pass.all, schema, stored)
			}
			made, err := r.Workloads.of(ctx, judged.pod)
			if err != nil || made.replicas == 0 {
				continue
			}
			if ready[made.uid]*100 >= int64(made.replicas)*int64(pass.percent[schema]) {
				out[judged.pod.UID] = append(out[judged.pod.UID], schema)
			}
		}
	}
	return out
}

// withdraws says whether older pods of a SyncSchema can be withdrawn at all.
func withdraws(facts podgate.Facts) bool {
	return facts.Found && facts.Gate != nil && facts.Foreign == "" && facts.Older == v1alpha1.OlderPodsWithdraw &&
		facts.Gate.For(facts.Gate.StoredVersion).Verdict().Open
}

// readyPods counts the Ready pods of one version by the workload that made them.
func (r *PodReconciler) readyPods(ctx context.Context, pods []corev1.Pod, schema string, version int64) map[types.UID]int64 {
	ready := map[types.UID]int64{}
	for i := range pods {
		pod := &pods[i]
		if requiredVersion(pod, schema) != version || !isTrue(podCondition(pod, corev1.PodReady)) {
			continue
		}
		if made, err := r.Workloads.of(ctx, pod); err == nil {
			ready[made.uid]++
		}
	}
	return ready
}
