package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics of the gate.
var (
	gatePods = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_gate_pods",
		Help: "Pods that ask for the gate of a SyncSchema, by the reason that it gives: a pod that requires several is counted for each by that one's own.",
	}, []string{labelNamespace, labelSchemaName, labelReason})
	gateOrphans = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_gate_orphaned_pods",
		Help: "Pods that require a SyncSchema which their namespace does not have.",
	}, []string{labelNamespace, labelSchemaName})
	gateUngated = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_gate_ungated_pods",
		Help: "Pods that ask for the gate and run without it: they came while no webhook was there.",
	}, []string{labelNamespace, labelSchemaName})
	gateRefused = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_gate_refused_writes",
		Help: "Writes of pods that the API server refuses, as the condition PodsRefused says: these pods are held whatever the gate says.",
	}, []string{labelNamespace, labelSchemaName})
	gateBypassed = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_gate_bypassed",
		Help: "1 while a person has opened the gate of a SyncSchema for a time.",
	}, []string{labelNamespace, labelSchemaName})
	gateReads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "syncbarrier_gate_reads_total",
		Help: "Answers about gates by what became of them: read, or failed. One read may answer several.",
	}, []string{labelOutcome})
)

func init() {
	metrics.Registry.MustRegister(gatePods, gateOrphans, gateUngated, gateRefused, gateBypassed, gateReads)
}

// show keeps the series of a SyncSchema at what a pass saw.
func (r *PodReconciler) show(pass *podPass) {
	of := prometheus.Labels{labelNamespace: pass.name.Namespace, labelSchemaName: pass.name.Name}
	for _, vector := range []*prometheus.GaugeVec{gatePods, gateOrphans, gateUngated, gateRefused, gateBypassed} {
		vector.DeletePartialMatch(of)
	}
	facts := pass.facts[pass.name.Name]
	if len(pass.pods) == 0 && !facts.Found {
		return
	}
	ungated := 0
	for _, judged := range pass.pods {
		gatePods.WithLabelValues(pass.name.Namespace, pass.name.Name, judged.verdict.ReasonBy(pass.name.Name)).Inc()
		if !carriesGate(judged.pod) && !ofJob(judged.pod) {
			ungated++
		}
	}
	gateUngated.WithLabelValues(pass.name.Namespace, pass.name.Name).Set(float64(ungated))
	gateRefused.WithLabelValues(pass.name.Namespace, pass.name.Name).Set(float64(len(r.Refusals.shown(pass.name))))
	gateBypassed.WithLabelValues(pass.name.Namespace, pass.name.Name).Set(number(facts.Bypass != nil))
	if !facts.Found && pass.name.Name != "" {
		gateOrphans.WithLabelValues(pass.name.Namespace, pass.name.Name).Set(float64(len(pass.pods)))
	}
}
