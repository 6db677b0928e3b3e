package storage

import (
	"cmp"
	"fmt"
	"strings"
)

// ServeGate is what one statement, in one snapshot, showed for a program of version Running (docs/design.md sections 2 and 8).
type ServeGate struct {
	Running          int64
	Catalog          bool // our catalog is there
	Marker           bool // there is a marker row
	StoredVersion    int64
	HistoryKnown     bool // the history has a row for the stored version
	MinReaderVersion int64
	MinWriterVersion int64 // the fence for all, as mirrored in sync_writer_fence; 0: none
	PendingTotal     int64
	Pending          []PendingCheckpoint // at most ten, lowest version first
	Missing          []PendingCheckpoint // recorded in the history, but no row exists
	Standby          bool
	Owner            *Owner // who manages the database schema; nil: nobody, or there is no catalog
	LogEpoch         string // of the partition asked for, if one was
	Database         DatabaseIdentity
}

// PendingCheckpoint is a checkpoint row that keeps the gate closed.
type PendingCheckpoint struct {
	Partition string `json:"partition"`
	Name      string `json:"name"`
	Version   int64  `json:"version"`
	State     State  `json:"state"`
}

// GateReason is why a gate is open or closed. The words are those of pod conditions.
type GateReason string

// The reasons the database alone can give.
const (
	GateOpen              GateReason = "GateOpen"
	GateMigrationPending  GateReason = "MigrationPending"
	GateBackfilling       GateReason = "Backfilling"
	GateCheckpointMissing GateReason = "CheckpointMissing"
	GateReaderTooOld      GateReason = "ReaderTooOld"
	GateStandby           GateReason = "Standby"
	GateSchemaNotFound    GateReason = "SchemaNotFound"
	GateConflict          GateReason = "Conflict" // only of VerdictFor
)

// GateVerdict is the answer to: may a program of that version serve?
type GateVerdict struct {
	Open     bool
	Writable bool // the fence accepts its writes
	Reason   GateReason
	Message  string
}

// gateCheck is one reason to keep the gate closed. hit is true where it applies.
type gateCheck func(ServeGate) (reason GateReason, message string, hit bool)

// gateChecks is the specification of the gate, in the order of priority.
var gateChecks = []gateCheck{
	func(g ServeGate) (GateReason, string, bool) {
		return GateStandby, "this server is a standby: what it shows may be old, so it proves nothing", g.Standby
	},
	func(g ServeGate) (GateReason, string, bool) {
		return GateSchemaNotFound, "this database schema has no Syncbarrier catalog", !g.Catalog
	},
	func(g ServeGate) (GateReason, string, bool) {
		return GateMigrationPending, fmt.Sprintf("the database has no schema version yet, version %d is wanted", g.Running), !g.Marker
	},
	func(g ServeGate) (GateReason, string, bool) {
		return GateMigrationPending, fmt.Sprintf("the database is at version %d, version %d is wanted", g.StoredVersion, g.Running),
			g.StoredVersion < g.Running
	},
	func(g ServeGate) (GateReason, string, bool) {
		return GateCheckpointMissing, fmt.Sprintf("the history has no record of version %d, so nothing proves what it needs; apply it",
			g.StoredVersion), !g.HistoryKnown
	},
	func(g ServeGate) (GateReason, string, bool) {
		return GateReaderTooOld, fmt.Sprintf("version %d cannot read this database any more, the oldest that can is %d",
			g.Running, g.MinReaderVersion), g.Running < g.MinReaderVersion
	},
	func(g ServeGate) (GateReason, string, bool) {
		return GateCheckpointMissing, "recorded but missing: " + listPending(g.Missing, int64(len(g.Missing))), len(g.Missing) > 0
	},
	func(g ServeGate) (GateReason, string, bool) {
		return GateBackfilling, "not activated: " + listPending(g.Pending, g.PendingTotal), g.PendingTotal > 0 || len(g.Pending) > 0
	},
}

// Verdict judges the facts: the first check that hits closes the gate with its reason; none: open.
func (g ServeGate) Verdict() GateVerdict {
	writable := g.Running >= g.MinWriterVersion
	for _, check := range gateChecks {
		if reason, message, hit := check(g); hit {
			return GateVerdict{Reason: reason, Message: message, Writable: false}
		}
	}
	message := fmt.Sprintf("version %d may serve", g.Running)
	if !writable {
		message += fmt.Sprintf(", but only read: the fence accepts writers from version %d on", g.MinWriterVersion)
	}
	return GateVerdict{Open: true, Writable: writable, Reason: GateOpen, Message: message}
}

// VerdictFor is Verdict for a program of the SyncSchema that owner names, as far as it names it: an empty cluster, namespace or name is not compared.
// A database schema that is recorded as another's proves nothing about it, whatever it holds.
func (g ServeGate) VerdictFor(owner Owner) GateVerdict {
	if g.Owner == nil {
		return g.Verdict()
	}
	wanted := Owner{
		Cluster: cmp.Or(owner.Cluster, g.Owner.Cluster), Namespace: cmp.Or(owner.Namespace, g.Owner.Namespace), Name: cmp.Or(owner.Name, g.Owner.Name),
	}
	if wanted.Has(g.Owner) {
		return g.Verdict()
	}
	return GateVerdict{Reason: GateConflict, Message: fmt.Sprintf("this database schema is managed by %s, not by %s", g.Owner, wanted)}
}

func listPending(pending []PendingCheckpoint, total int64) string {
	names := make([]string, 0, len(pending))
	for _, p := range pending {
		names = append(names, fmt.Sprintf("checkpoint %q of version %d in partition %q (%s)", p.Name, p.Version, p.Partition, stateOrMissing(p.State)))
	}
	text := strings.Join(names, ", ")
	if more := total - int64(len(pending)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func stateOrMissing(state State) string {
	if state == "" {
		return "no row"
	}
	return string(state)
}
