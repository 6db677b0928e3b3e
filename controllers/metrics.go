package controllers

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Labels of the metrics.
const (
	labelNamespace      = "namespace"
	labelSchemaName     = "schema"
	labelCheckpointName = "checkpoint" // name of a BackfillCheckpoint
	labelName           = "name"       // of an object whose kind stands beside it
	labelState          = "state"
	labelOutcome        = "outcome"
	labelKind           = "kind"
	labelReason         = "reason"
)

// Metrics of the operator, beside those that controller-runtime has of queues and reconciles. Names of objects are labels, names of
// databases, partitions and keys are not.
var (
	barrierLockWait = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "syncbarrier_barrier_lock_wait_seconds",
		Help:    "How long the attempt that made a barrier waited for its locks.",
		Buckets: []float64{.001, .005, .01, .05, .1, .25, .5, 1, 2, 5, 10, 30, 60},
	}, []string{labelNamespace, labelSchemaName})
	barrierLockHold = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "syncbarrier_barrier_lock_hold_seconds",
		Help:    "How long a barrier held its locks.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 300},
	}, []string{labelNamespace, labelSchemaName})
	barrierAttempts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "syncbarrier_barrier_attempts_total",
		Help: "Attempts at a barrier by what became of them: migrate, adopt, or the class of the failure.",
	}, []string{labelNamespace, labelSchemaName, labelOutcome})
	gateOpen = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_gate_open",
		Help: "1 if programs of the SyncSchema's version may serve, by the last read of the database.",
	}, []string{labelNamespace, labelSchemaName})
	storedVersion = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_stored_version",
		Help: "The version that the database holds.",
	}, []string{labelNamespace, labelSchemaName})
	logBytes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_log_bytes",
		Help: "Size of the commit log in the database, with its indexes, in bytes.",
	}, []string{labelNamespace, labelSchemaName})
	fenceBroken = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_fence_broken",
		Help: "1 while fence or guards in the database are not what they should be, as the condition Fenced says, whatever Ready is about.",
	}, []string{labelNamespace, labelSchemaName})
	backfillRows = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_backfill_rows_done",
		Help: "Rows that a backfill has filled, by the database's own count. It falls to 0 where the backfill begins again.",
	}, []string{labelNamespace, labelCheckpointName})
	backfillRate = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_backfill_rows_per_second",
		Help: "Rate of a backfill over the last minute, in rows per second, as status.rows.perSecond shows it; 0 while it is held.",
	}, []string{labelNamespace, labelCheckpointName})
	backfillLag = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_backfill_lag_seconds",
		Help: "Seconds since the slowest checkpoint row last made progress; 0 once activated.",
	}, []string{labelNamespace, labelCheckpointName})
	backfillProgress = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_backfill_last_progress_timestamp_seconds",
		Help: "Unix time, in seconds, at which a batch or anything else of a backfill was committed last; absent once it is activated.",
	}, []string{labelNamespace, labelCheckpointName})
	checkpointPartitions = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "syncbarrier_checkpoint_partitions",
		Help: "Partitions of a checkpoint by state: declared, backfilling or activated.",
	}, []string{labelNamespace, labelCheckpointName, labelState})
	objectReady = newReasonGauge(prometheus.GaugeOpts{
		Name: "syncbarrier_object_ready",
		Help: "1 for an object that is Ready, else 0, with the reason of its condition Ready.",
	}, []string{labelNamespace, labelKind, labelName, labelReason})
	databasePools = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "syncbarrier_database_pools",
		Help: "Database pools that are open; each has at most four connections.",
	})
	serverFailures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "syncbarrier_database_failures_total",
		Help: "Servers and credentials that were left alone for a while after a failure, by its class.",
	}, []string{labelReason})
)

// Collectors are all metrics of this package, each registered; docs/metrics.md is made of them.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		barrierLockWait, barrierLockHold, barrierAttempts, gateOpen, storedVersion, logBytes, fenceBroken, backfillRows, backfillRate, backfillLag, backfillProgress,
		checkpointPartitions, objectReady, databasePools, serverFailures,
		gatePods, gateOrphans, gateUngated, gateRefused, gateBypassed, gateReads,
	}
}

func init() { metrics.Registry.MustRegister(Collectors()...) }

// countBarrier notes a successful attempt. One that only agreed is none.
func countBarrier(namespace, schema string, result storage.BarrierResult) {
	if result.Outcome == storage.Agreed {
		return
	}
	barrierAttempts.WithLabelValues(namespace, schema, string(result.Outcome)).Inc()
	barrierLockWait.WithLabelValues(namespace, schema).Observe(result.LockWait.Seconds())
	barrierLockHold.WithLabelValues(namespace, schema).Observe(result.LockHold.Seconds())
}

// showReady keeps one series for each object: that of its present reason.
func showReady(namespace, kind, name string, v verdict) {
	objectReady.replace(map[string]float64{v.reason: number(v.state == stateDone)}, namespace, kind, name)
}

// forgetSchema and forgetCheckpoint drop the series of an object that is gone.
func forgetSchema(namespace, name, kind string) {
	of := prometheus.Labels{labelNamespace: namespace, labelSchemaName: name}
	for _, vector := range []interface {
		DeletePartialMatch(labels prometheus.Labels) int
	}{barrierLockWait, barrierLockHold, barrierAttempts, gateOpen, storedVersion, logBytes, fenceBroken} {
		vector.DeletePartialMatch(of)
	}
	objectReady.replace(nil, namespace, kind, name)
}

func forgetCheckpoint(namespace, name, kind string) {
	of := prometheus.Labels{labelNamespace: namespace, labelCheckpointName: name}
	for _, vector := range []*prometheus.GaugeVec{backfillRows, backfillRate, backfillLag, backfillProgress, checkpointPartitions} {
		vector.DeletePartialMatch(of)
	}
	objectReady.replace(nil, namespace, kind, name)
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
