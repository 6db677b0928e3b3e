package storage

import (
	"fmt"
	"slices"
	"strings"
)

// checkNames: a checkpoint name belongs to its version for ever.
func (d *decider) checkNames() error {
	for _, c := range d.target.Checkpoints {
		if c.Version <= d.facts.stored() {
			continue
		}
		known, ok := d.facts.Known[c.Name]
		switch {
		case !ok:
		case known.Abandoned:
			return Refuse(CodeContentDrift, "checkpoints: the name %q was used by version %d and abandoned", c.Name, known.Version).
				WithHint("give it a new name")
		case known.Version != c.Version || known.Hash != "" && known.Hash != c.Hash():
			return Refuse(CodeContentDrift, "checkpoints: the name %q belongs to version %d", c.Name, known.Version).WithHint("give it a new name")
		}
	}
	return nil
}

// planCheckpoints declares every entry above the marker, so that a jump skips nothing.
func (d *decider) planCheckpoints() error {
	for _, c := range d.target.Checkpoints {
		if c.Version <= d.facts.stored() || c.Version > d.target.Version {
			continue
		}
		if err := CheckDeclaration(c, d.target.Tables); err != nil {
			return err
		}
		if err := d.checkCaptured(c); err != nil {
			return err
		}
		if err := d.checkKeyOf(c); err != nil {
			return err
		}
		if listed := len(c.Partitions); listed > manyPartitions {
			d.decision.Warnings = append(d.decision.Warnings, fmt.Sprintf(
				"checkpoint %q lists %d partitions: the lock is held about %d ms longer for their rows; leave partitions out to cover all with one row",
				c.Name, listed, listed*24/1000))
		}
		d.decision.Declare = append(d.decision.Declare, c)
	}
	slices.SortStableFunc(d.decision.Declare, func(a, b Checkpoint) int { return int(a.Version - b.Version) })
	d.decision.LockPartitions = d.protocolInUse()
	return CheckColumnsApart(d.openAfter())
}

// checkCaptured: a captured change has to carry the version of the program that made it, or the fence could refuse nobody. A session of
// SQLite has no setting in which a program could give it and that a trigger could read.
func (d *decider) checkCaptured(c Checkpoint) error {
	i := slices.IndexFunc(c.Sources, func(s Source) bool { return s.Changes == Capture })
	if i < 0 || d.facts.Dialect != SQLite {
		return nil
	}
	return Refuse(CodeInvalidSpec, "checkpoint %q: source %q: changes: Capture is for PostgreSQL: a SQLite session has no setting that tells a trigger "+
		"the version of its program, so no fence could tell old writers from new", c.Name, c.Sources[i].Table).
		WithHint("let the program append its own commits, and declare changes: CommitLog")
}

// openAfter lists the target's checkpoints that are open once the barrier is done: those it declares, and those that still are.
func (d *decider) openAfter() []Checkpoint {
	open := slices.Clone(d.decision.Declare)
	for _, c := range d.target.Checkpoints {
		isOpen := slices.ContainsFunc(d.facts.Open, func(o OpenCheckpoint) bool { return o.Name == c.Name })
		if c.Version <= d.facts.stored() && isOpen {
			open = append(open, c)
		}
	}
	return open
}

// manyPartitions is the number of listed partitions from which a plan warns: their rows and fences cost about 2.4 s under the
// lock for each 100,000 (measured).
const manyPartitions = 10000

// checkKeyOf: paging needs a key that is unique and never NULL, or rows would be skipped in silence.
func (d *decider) checkKeyOf(c Checkpoint) error {
	table, _ := findTable(d.target.Tables, c.Backfill.Table())
	physical, exists := d.facts.Tables[table.Name]
	if !exists {
		return nil // an external backfill, or a table that this barrier creates with its key
	}
	isKey := slices.Equal(physical.Key, table.Key()) || slices.ContainsFunc(physical.Unique, func(u []string) bool { return slices.Equal(u, table.Key()) })
	if !isKey {
		return Refuse(CodeInvalidSpec, "tables: %q: (%s) is no primary key or unique NOT NULL key of the table, so checkpoint %q cannot go over it",
			table.Name, strings.Join(table.Key(), ", "), c.Name)
	}
	if physical.NullKey {
		return Refuse(CodeInvalidSpec, "tables: %q has rows whose key (%s) is NULL, so checkpoint %q cannot go over it",
			table.Name, strings.Join(table.Key(), ", "), c.Name)
	}
	return nil
}
