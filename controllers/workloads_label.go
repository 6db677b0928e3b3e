package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// seeMislabelled looks for pods that require the SyncSchema and have the label that asks for the gate with another value than it has to have, such as
// "true". The webhook is asked about the right value only, and the cache holds no others, so whoever mistyped it would take a pod that serves at once
// for one that was let in. It is one list in a resync, and one for each version: those it is for are few, and they stay as they are.
func (r *SyncSchemaReconciler) seeMislabelled(ctx context.Context, pass *schemaPass) {
	if !pass.advice.labelsAt.IsZero() && pass.now.Sub(pass.advice.labelsAt) < r.resync()*4/5 {
		return
	}
	pass.advice.labelsAt = pass.now
	found, err := mislabelledPods(ctx, r.Live, pass.object)
	if err != nil { // it is a warning, and stands in the way of nothing
		log.FromContext(ctx).Info("pods whose label is mistyped could not be looked for", "reason", err.Error())
		return
	}
	pass.advice.mislabelled = found
}

// mislabelledPods names the pods of seeMislabelled.
func mislabelledPods(ctx context.Context, live client.Reader, schema *v1alpha1.SyncSchema) ([]string, error) {
	selector := labels.NewSelector()
	for operator, values := range map[selection.Operator][]string{selection.Exists: nil, selection.NotEquals: {v1alpha1.GateEnabled}} {
		requirement, err := labels.NewRequirement(v1alpha1.LabelGate, operator, values)
		if err != nil {
			return nil, err
		}
		selector = selector.Add(*requirement)
	}
	var list corev1.PodList
	err := live.List(ctx, &list, client.InNamespace(schema.Namespace), client.Limit(strayPage), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s whose label %s is another: %w", schema.Namespace, v1alpha1.LabelGate, err)
	}
	var names []string
	for i := range list.Items {
		pod := &list.Items[i]
		if requiredVersion(pod, schema.Name) != 0 && !carriesGate(pod) && !ofJob(pod) && !atEnd(pod) {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// ungatedText says which pods run without the gate that are meant to have it; empty: none are known to.
func (p *schemaPass) ungatedText() string {
	text := ""
	if n := len(p.pods.ungated); n > 0 {
		text = fmt.Sprintf("%d pods ask for the gate and run without it: %s. They came while no webhook was there; delete them, or roll their workload out again",
			n, someOf(p.pods.ungated, maxNamedPods))
	}
	if n := len(p.advice.mislabelled); n > 0 {
		if text != "" {
			text += ". "
		}
		text += fmt.Sprintf("%d pods name this SyncSchema in %s, and their label %s is not %q, so nothing holds them: %s. Put the label right in the template of their workload",
			n, v1alpha1.AnnotationRequires, v1alpha1.LabelGate, v1alpha1.GateEnabled, someOf(p.advice.mislabelled, maxNamedPods))
	}
	return text
}
