package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// watchEvery is how often the database is looked at while a backfill is under way.
const watchEvery = 5 * time.Second

// openGate says whether programs of spec.version may serve: the last phase, and the only one that makes an object Ready.
func (r *SyncSchemaReconciler) openGate(_ context.Context, pass *schemaPass) (*verdict, error) {
	if pass.fenceBroken != "" {
		return stalled(v1alpha1.ReasonFenceBroken, "%s", pass.fenceBroken), nil
	}
	gate := pass.gate.Verdict()
	if gate.Open {
		return done(v1alpha1.ReasonGateOpen, "%s", gate.Message), nil
	}
	if orphan := pass.orphan(); orphan != "" {
		return stalled(v1alpha1.ReasonCheckpointOrphaned,
			"checkpoint %q is declared in the database and not activated, but no object and no entry of the spec speaks of it", orphan), nil
	}
	if v := pass.stalledChild(); v != nil {
		v.message = pass.outage() + v.message // first, for an event is cut sooner than a condition
		return v, nil
	}
	switch gate.Reason {
	case storage.GateBackfilling:
		if pass.leaving != "" {
			return reconciling(watchEvery, v1alpha1.ReasonBackfilling, "%s; %s", gate.Message, pass.leaving), nil
		}
		return reconciling(watchEvery, v1alpha1.ReasonBackfilling, "%s", gate.Message), nil
	case storage.GateStandby:
		return reconciling(watchEvery, v1alpha1.ReasonReadOnly, "%s", gate.Message), nil
	case storage.GateCheckpointMissing:
		// The guards let no checkpoint be deleted, so they were not there.
		return stalled(v1alpha1.ReasonFenceBroken, "%s", gate.Message), nil
	default:
		return reconciling(watchEvery, v1alpha1.ReasonMigrating, "%s", gate.Message), nil
	}
}

// outage says, before a sentence on what is to be put right, who cannot write until then; empty: the fence accepts every version. Its time is that of
// the barrier that raised the fence, so the words do not change while it lasts.
func (p *schemaPass) outage() string {
	version := p.status.MinWriterVersion
	if version == 0 {
		return ""
	}
	since := ""
	for _, row := range slices.Backward(p.status.History) {
		if row.MinWriterVersion == version { // the first that did
			since = " since the barrier of " + row.AppliedAt.UTC().Format(time.RFC3339)
		}
	}
	return fmt.Sprintf("programs below version %d cannot write%s, and version %d does not serve: ", version, since, p.gate.Running)
}
