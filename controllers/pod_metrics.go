package controllers

import "github.com/prometheus/client_golang/prometheus"

// Metrics of the gate.
var (
	gatePods = newReasonGauge(prometheus.GaugeOpts{
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

// show keeps the series of a SyncSchema at what a pass saw. Each is set anew, and only what is not there any more is deleted: see reasonGauge.
func (r *PodReconciler) show(pass *podPass) {
	namespace, name := pass.name.Namespace, pass.name.Name
	facts := pass.facts[name]
	reasons, ungated := map[string]float64{}, 0
	for _, judged := range pass.pods {
		reasons[judged.verdict.ReasonBy(name)]++
		if !carriesGate(judged.pod) && !ofJob(judged.pod) {
			ungated++
		}
	}
	known := len(pass.pods) > 0 || facts.Found
	gatePods.replace(reasons, namespace, name)
	showWhile(known, gateUngated, float64(ungated), namespace, name)
	showWhile(known, gateRefused, float64(len(r.Refusals.shown(pass.name))), namespace, name)
	showWhile(known, gateBypassed, number(facts.Bypass != nil), namespace, name)
	showWhile(len(pass.pods) > 0 && !facts.Found && name != "", gateOrphans, float64(len(pass.pods)), namespace, name)
}

// showWhile sets a series, or deletes it.
func showWhile(known bool, gauge *prometheus.GaugeVec, value float64, labels ...string) {
	if !known {
		gauge.DeleteLabelValues(labels...)
		return
	}
	gauge.WithLabelValues(labels...).Set(value)
}
