package storage

// DeclareDecision is what declaring one checkpoint outside a barrier does.
type DeclareDecision struct {
	// Exists: the checkpoint was declared before with the same content; what is missing of it is put back, nothing else changes.
	Exists  bool
	Raise   map[string]int64 // as Decision.Raise
	Entries HistoryEntries   // of the checkpoint's version, with the checkpoint in it
}

// DecideDeclare judges whether a checkpoint may be declared outside a barrier: only at the marker's version, and only while the gate
// of that version is closed. Afterwards programs serve on the proof that nothing of their version is open. facts hold the
// physical tables that the declaration names; gate is of the checkpoint's version, read with the facts under the marker's lock.
//
// Errors: CodeInvalidSpec, CodeConflict, CodeContentDrift.
func DecideDeclare(c Checkpoint, tables []Table, facts Facts, gate ServeGate) (DeclareDecision, error) {
	if err := CheckDeclaration(c, tables); err != nil {
		return DeclareDecision{}, err
	}
	known, used := facts.Known[c.Name]
	switch {
	case used && known.Abandoned:
		return DeclareDecision{}, Refuse(CodeContentDrift, "checkpoint %q: the name was used by version %d and abandoned", c.Name, known.Version).
			WithHint("give it a new name")
	case used && (known.Version != c.Version || known.Hash != "" && known.Hash != c.Hash()):
		return DeclareDecision{}, Refuse(CodeContentDrift, "checkpoint %q: the name belongs to version %d with other content", c.Name, known.Version).
			WithHint("give it a new name")
	}
	row, recorded := facts.historyOf(c.Version)
	decision := DeclareDecision{Exists: used && known.Hash != "", Entries: row.Entries}
	if !decision.Exists {
		if err := mayDeclare(c, facts, gate, recorded); err != nil {
			return DeclareDecision{}, err
		}
	}
	d := &decider{target: Target{Version: c.Version, Tables: tables}, facts: facts}
	d.decision = Decision{Declare: []Checkpoint{c}, Raise: map[string]int64{}}
	if err := d.checkCaptured(c); err != nil {
		return DeclareDecision{}, err
	}
	if err := d.checkKeyOf(c); err != nil {
		return DeclareDecision{}, err
	}
	if err := d.planFence(); err != nil {
		return DeclareDecision{}, err
	}
	decision.Raise = d.decision.Raise
	checkpoints := map[string]HistoryCheckpoint{c.Name: {Hash: c.Hash(), Rows: len(c.Rows())}}
	for name, entry := range row.Entries.Checkpoints {
		if _, present := checkpoints[name]; !present {
			checkpoints[name] = entry
		}
	}
	decision.Entries.Checkpoints = checkpoints
	return decision, nil
}

func mayDeclare(c Checkpoint, facts Facts, gate ServeGate, recorded bool) error {
	switch {
	case facts.Marker == nil:
		return Refuse(CodeConflict, "checkpoint %q of version %d: the database has no schema version yet", c.Name, c.Version).
			WithHint("apply the version; its barrier declares what the schema lists")
	case facts.Marker.Version != c.Version:
		return Refuse(CodeConflict, "checkpoint %q of version %d: the database is at version %d, and outside a barrier only that version's can be declared",
			c.Name, c.Version, facts.Marker.Version)
	case !recorded:
		return Refuse(CodeConflict, "checkpoint %q of version %d: the history has no record of that version", c.Name, c.Version).
			WithHint("apply the version first")
	case gate.Verdict().Open:
		return Refuse(CodeConflict, "checkpoint %q of version %d: the gate of that version is open, so its programs serve already", c.Name, c.Version).
			WithHint("give it a higher version")
	}
	return nil
}
