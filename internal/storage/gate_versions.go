package storage

import (
	"context"
	"math"
)

// AllVersions asks ReadServeGate for everything that is open in the database, so that the gate of any version can be had from one read by
// ServeGate.For.
const AllVersions = math.MaxInt32

// For gives the gate of one version from a read that was made for AllVersions. Whether that gate is open is exact. The lists hold the lowest
// versions first, so what concerns a lower version is never among what was cut off; only the total of more than ten open checkpoints may count
// some of higher versions.
func (g ServeGate) For(running int64) ServeGate {
	out := g
	out.Running = running
	out.Pending = upTo(g.Pending, running)
	if len(out.Pending) < len(g.Pending) {
		out.PendingTotal = int64(len(out.Pending))
	}
	out.Missing = upTo(g.Missing, running)
	return out
}

func upTo(checkpoints []PendingCheckpoint, version int64) []PendingCheckpoint {
	var kept []PendingCheckpoint
	for _, checkpoint := range checkpoints {
		if checkpoint.Version <= version {
			kept = append(kept, checkpoint)
		}
	}
	return kept
}

// ServeGatesOf is what a Store can do that reads the gates of several schemas of its database at once.
type ServeGatesOf interface {
	// ReadServeGates reads the gates of database schemas for AllVersions, in one statement and one snapshot, and gives them in the order
	// of their names in schemas. One schema that cannot be read fails them all. An error never means open.
	//
	// Errors: those of Gates.ReadServeGate; a schema without our catalog is one here.
	ReadServeGates(ctx context.Context, schemas []string) ([]ServeGate, error)
}
