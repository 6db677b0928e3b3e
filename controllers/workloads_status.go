package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// Bounds of what a status says of pods.
const (
	maxWorkloads  = 32
	maxNamedPods  = 5
	maxNamedWorks = 5
)

// schemaPods is what a pass knows of the pods that require its SyncSchema.
type schemaPods struct {
	groups  []podGroup // by workload and version, in the order of the status
	ungated []string   // pods that ask for the gate and do not carry it
}

// podGroup is the pods of one workload at one version.
type podGroup struct {
	workload workload
	version  int64
	gated    int32 // carry the gate
	ready    int32
	started  int32 // carry the gate and have all containers ready: only the gate holds them, if anything does
}

// seePods looks at the pods that require the SyncSchema, and at who made them.
func (r *SyncSchemaReconciler) seePods(ctx context.Context, pass *schemaPass) (*verdict, error) {
	if pass.status != nil {
		pass.advice = pass.advice.countRefused(pass.status.Refused, pass.now)
	}
	pass.refused = r.Refusals.shown(client.ObjectKeyFromObject(pass.object))
	if r.Pods == nil {
		return nil, nil
	}
	pods, err := listPods(ctx, r.Pods, pass.object.Namespace)
	if err != nil {
		return nil, err
	}
	type key struct {
		uid     types.UID
		version int64
	}
	groups := map[key]*podGroup{}
	seen := &schemaPods{}
	for i := range pods {
		pod := &pods[i]
		version := requiredVersion(pod, pass.object.Name)
		if version == 0 || ofJob(pod) {
			continue
		}
		// How one rolls out that cannot be read is not known, which stands in the way of nothing but a barrier that is to wait for its pods.
		made, _ := r.Workloads.of(ctx, pod)
		group := groups[key{made.uid, version}]
		if group == nil {
			group = &podGroup{workload: made, version: version}
			groups[key{made.uid, version}] = group
		}
		group.count(pod)
		if !carriesGate(pod) {
			seen.ungated = append(seen.ungated, pod.Name)
		}
	}
	for _, group := range groups {
		seen.groups = append(seen.groups, *group)
	}
	slices.SortFunc(seen.groups, func(a, b podGroup) int {
		return cmp.Or(cmp.Compare(a.workload.kind, b.workload.kind), cmp.Compare(a.workload.name, b.workload.name), cmp.Compare(a.version, b.version))
	})
	slices.Sort(seen.ungated)
	pass.pods = seen
	r.seeMislabelled(ctx, pass)
	return nil, nil
}

func (g *podGroup) count(pod *corev1.Pod) {
	if isTrue(podCondition(pod, corev1.PodReady)) {
		g.ready++
	}
	if !carriesGate(pod) {
		return
	}
	g.gated++
	if isTrue(podCondition(pod, corev1.ContainersReady)) {
		g.started++
	}
}

// workloads gives each workload once, as it was read if that could be done for one of its pods.
func (p *schemaPods) workloads() []workload {
	var out []workload
	for _, group := range p.groups {
		at := slices.IndexFunc(out, func(w workload) bool { return w.uid == group.workload.uid })
		switch {
		case at < 0:
			out = append(out, group.workload)
		case out[at].unread != nil:
			out[at] = group.workload
		}
	}
	return out
}

// unread names the workloads of which it is not known what holding new pods costs, for they could not be read.
func (p *schemaPods) unread() []string {
	var out []string
	for _, w := range p.workloads() {
		if w.unread != nil {
			out = append(out, w.unreadText())
		}
	}
	return out
}

func (w workload) unreadText() string {
	return fmt.Sprintf("%s %s could not be read: %s", w.kind, w.name, w.unread)
}

// unsafe gives the workloads that holding new pods costs something.
func (p *schemaPods) unsafe() []workload {
	return slices.DeleteFunc(p.workloads(), func(w workload) bool { return w.hold == "" || w.hold == v1alpha1.HoldLossless })
}

// statusOfPods gives the list of the status, and how long it would be without its bound.
func (p *schemaPods) statusOfPods() (list []v1alpha1.WorkloadStatus, total int32) {
	for _, group := range p.groups[:min(len(p.groups), maxWorkloads)] {
		list = append(list, v1alpha1.WorkloadStatus{
			Kind: cut(group.workload.kind, 63), Name: group.workload.name, Version: int32(group.version),
			Gated: group.gated, Ready: group.ready, Hold: group.workload.hold,
		})
	}
	return list, int32(len(p.groups))
}

// addPodConditions adds what is there only where it applies.
func (p *schemaPass) addPodConditions(set *conditionSet) {
	if p.bypass != nil {
		by := ""
		if p.bypassedBy != "" {
			by = ", by " + p.bypassedBy
		}
		set.add(v1alpha1.ConditionGateBypassed, "True", v1alpha1.ReasonBypassed,
			fmt.Sprintf("opened until %s%s: %s. The fence is as it was", p.bypass.Until.UTC().Format("2006-01-02T15:04:05Z"), by, p.bypass.Reason))
	}
	if text := p.advice.unversionedWriters(p.now); text != "" {
		set.add(v1alpha1.ConditionUnversionedWriters, "True", v1alpha1.ReasonVersionMissing, text)
	}
	if n := len(p.refused); n > 0 {
		set.add(v1alpha1.ConditionPodsRefused, "True", v1alpha1.ReasonWriteRefused, fmt.Sprintf(
			"the API server refuses %d writes, and those pods are held: %s", n, someOf(p.refused, maxNamedPods)))
	}
	if p.pods == nil {
		return
	}
	if text := p.ungatedText(); text != "" {
		set.add(v1alpha1.ConditionPodsUngated, "True", v1alpha1.ReasonPodsWithoutGate, text)
	}
	p.addWorkloadsSafe(set)
}

func (p *schemaPass) addWorkloadsSafe(set *conditionSet) {
	unsafe, unread := p.pods.unsafe(), p.pods.unread()
	switch {
	case len(p.pods.groups) == 0:
	case len(unsafe) == 0 && len(unread) > 0:
		set.add(v1alpha1.ConditionWorkloadsSafe, metav1.ConditionUnknown, v1alpha1.ReasonUnreachable, someOf(unread, maxNamedWorks))
	case len(unsafe) == 0:
		set.add(v1alpha1.ConditionWorkloadsSafe, "True", v1alpha1.ReasonLossless, "every gated workload makes new pods beside its old ones")
	default:
		reason := v1alpha1.ReasonLosesCapacity
		var each []string
		for _, w := range unsafe {
			if w.hold == v1alpha1.HoldOutage {
				reason = v1alpha1.ReasonOutage
			}
			each = append(each, w.holdText())
		}
		set.add(v1alpha1.ConditionWorkloadsSafe, "False", reason, someOf(append(each, unread...), maxNamedWorks)+
			". Change their pod templates only after the gate is open, or let them surge with maxUnavailable 0")
	}
}

// holdText says in a clause what holding a workload's new pods costs.
func (w workload) holdText() string {
	cost := "loses capacity while new pods are held"
	if w.hold == v1alpha1.HoldOutage {
		cost = "does not serve while new pods are held"
	}
	return fmt.Sprintf("%s %s %s: %s", w.kind, w.name, cost, w.why)
}

func someOf(list []string, most int) string {
	text := strings.Join(list[:min(len(list), most)], ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// podEvents tells of conditions that became true, or were withdrawn, with this pass.
func (p *schemaPass) podEvents(after []metav1.Condition) []notice {
	var out []notice
	for _, kind := range []string{v1alpha1.ConditionPodsUngated, v1alpha1.ConditionPodsRefused, v1alpha1.ConditionGateBypassed, v1alpha1.ConditionUnversionedWriters} {
		now, was := meta.FindStatusCondition(after, kind), meta.FindStatusCondition(p.before.Conditions, kind)
		if now != nil && was == nil {
			out = append(out, notice{warning: true, reason: now.Reason, action: "Gate", note: now.Message})
		}
	}
	if p.bypassProblem != "" && !p.advice.bypassTold {
		p.advice.bypassTold = true
		out = append(out, notice{warning: true, reason: v1alpha1.ReasonBypassed, action: "Gate", note: p.bypassProblem})
	}
	return out
}

// seeBypass reads what a person decided. named says that the webhook writes who did.
func (p *schemaPass) seeBypass(named bool) {
	bypass, err := bypassOf(p.object, p.now)
	if err != nil {
		p.bypassProblem = err.Error()
		return
	}
	p.advice.bypassTold = false
	if p.bypass = bypass; bypass != nil {
		p.bypassedBy = bypassedBy(p.object, named)
	}
}
