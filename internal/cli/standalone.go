package cli

import (
	"context"
	"slices"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// checkStandalone looks at the file's standalone checkpoints before a barrier does anything for it. Those that were abandoned are left out:
// the gate does not need them, and nothing can declare them again. One that only an earlier version could have declared is refused
// now, not once the barrier is done.
//
// Errors: storage.CodeConflict.
func (p *Program) checkStandalone(ctx context.Context, s *session) error {
	if !slices.ContainsFunc(s.target.Checkpoints, func(c storage.Checkpoint) bool { return c.Standalone }) {
		return nil
	}
	status, err := s.store.Status(ctx)
	if storage.ClassOf(err).Retryable() {
		return nil // the barrier waits for what passes; what is refused later is refused too
	}
	if err != nil {
		return err
	}
	var late error
	s.target.Checkpoints = slices.DeleteFunc(s.target.Checkpoints, func(c storage.Checkpoint) bool {
		if !c.Standalone || c.Version > status.StoredVersion {
			return false // the barrier's to declare
		}
		recorded, known := recordedIn(status, c)
		switch {
		case known && recorded.Abandoned != "":
			p.say("checkpoint %q of version %d was abandoned; it can go from the file", c.Name, c.Version)
			return true
		case !known && late == nil && (c.Version < status.StoredVersion || s.target.Version > status.StoredVersion):
			late = storage.Refuse(storage.CodeConflict,
				"standalone checkpoint %q of version %d was not declared, and the database is at version %d: outside a barrier only that version's can be, while its gate is closed",
				c.Name, c.Version, status.StoredVersion).WithHint("give it a higher version, or take it from the file")
		}
		return false
	})
	return late
}

// recordedIn finds what a database knows of a checkpoint, in the history of its version or among the rows that stand.
func recordedIn(status storage.Status, c storage.Checkpoint) (recorded storage.HistoryCheckpoint, known bool) {
	for _, row := range status.History {
		if row.Version == c.Version {
			recorded, known = row.Entries.Checkpoints[c.Name]
		}
	}
	if !known {
		known = slices.ContainsFunc(status.Checkpoints, func(p storage.CheckpointProgress) bool { return p.Definition.Name == c.Name })
	}
	return recorded, known
}
