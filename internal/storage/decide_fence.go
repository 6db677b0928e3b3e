package storage

import "slices"

// protocolInUse says whether writers of the sync protocol have to be kept out by the lock on sync_partitions.
func (d *decider) protocolInUse() bool {
	if d.facts.Marker != nil && len(d.facts.Marker.Layouts) > 0 {
		return true
	}
	if slices.ContainsFunc(d.target.Tables, func(t Table) bool { return t.Layout == Syncular }) {
		return true
	}
	return slices.ContainsFunc(d.target.Checkpoints, func(c Checkpoint) bool {
		return slices.ContainsFunc(c.Sources, func(s Source) bool { return s.Changes == CommitLog })
	})
}

// planFence computes the minimum writer versions (docs/design.md section 3, "Fence").
func (d *decider) planFence() error {
	var all int64
	var because string
	for _, c := range d.decision.Declare {
		captured := slices.ContainsFunc(c.Sources, func(s Source) bool { return s.Changes == Capture })
		if len(c.Partitions) == 0 || captured {
			if c.Version > all {
				all, because = c.Version, c.Name
			}
			continue
		}
		for _, partition := range c.Partitions {
			d.decision.Raise[partition] = max(d.decision.Raise[partition], c.Version)
		}
	}
	if explicit := d.target.MinWriterVersion; explicit != nil {
		switch {
		case *explicit < d.facts.Fence:
			return Refuse(CodeInvalidSpec, "minWriterVersion: %d is lower than the fence of this database, %d, and a fence never goes down", *explicit, d.facts.Fence)
		case *explicit < all:
			return Refuse(CodeInvalidSpec, "minWriterVersion: %d is lower than version %d of checkpoint %q, which could then never be activated", *explicit, all, because)
		}
		all = *explicit
	}
	d.decision.MinWriter = max(all, d.facts.Fence)
	if d.decision.MinWriter > d.facts.Fence {
		d.decision.Raise[AllPartitions] = d.decision.MinWriter
	}
	for partition, version := range d.decision.Raise {
		if partition != AllPartitions && version <= d.decision.MinWriter {
			delete(d.decision.Raise, partition) // the fence for all says it already
		}
	}
	return nil
}

// planReaders computes the oldest version that may serve: rewrites and SQL shut older readers out unless the spec says not.
func (d *decider) planReaders() error {
	if explicit, err := d.explicitReaders(); explicit != nil || err != nil {
		return err
	}
	minimum := d.facts.last().MinReaderVersion
	for _, step := range d.decision.Steps {
		switch step.Kind {
		case StepRunSQL:
			minimum = max(minimum, step.Version)
		case StepRewritePayload:
			minimum = max(minimum, d.target.Version)
		}
	}
	d.decision.MinReader = minimum
	return nil
}

// adoptReaders: what another program ran and rewrote on the way to this version is not known, so nothing proves that a lower version
// can still read the database, unless the spec says so.
func (d *decider) adoptReaders() error {
	explicit, err := d.explicitReaders()
	if explicit == nil {
		d.decision.MinReader = d.target.Version
	}
	return err
}

// explicitReaders takes the oldest version that may serve from the spec, nil if it says nothing.
func (d *decider) explicitReaders() (*int64, error) {
	minimum, explicit := d.facts.last().MinReaderVersion, d.target.MinReaderVersion
	if explicit == nil {
		return nil, nil
	}
	if *explicit < minimum {
		return explicit, Refuse(CodeInvalidSpec, "minReaderVersion: %d is lower than %d, which this database already needs", *explicit, minimum)
	}
	d.decision.MinReader = *explicit
	return explicit, nil
}
