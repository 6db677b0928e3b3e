package storage

import "slices"

// maxPassed bounds the history rows of one jump; beyond it only versions that brought something get a row.
const maxPassed = 1000

// planHistory writes one row per version passed, so that what a jump ran can be told later.
func (d *decider) planHistory() error {
	layouts, err := EncodeLayouts(d.target.Tables)
	if err != nil {
		return err
	}
	d.decision.Layouts = layouts
	d.decision.PlainLayouts = d.plainLayouts()
	for _, version := range d.passedVersions() {
		row := HistoryRow{
			Version: version, ContentHash: d.target.ContentHash(version), State: HistoryApplied,
			Entries:      HistoryEntries{Checkpoints: map[string]HistoryCheckpoint{}},
			PlainLayouts: d.decision.PlainLayouts, MinWriterVersion: d.decision.MinWriter, MinReaderVersion: d.decision.MinReader,
		}
		for _, m := range d.target.Migrations {
			if m.Version == version {
				row.Entries.Migration = m.Hash()
			}
		}
		for _, c := range d.target.Checkpoints {
			if c.Version == version {
				row.Entries.Checkpoints[c.Name] = HistoryCheckpoint{Hash: c.Hash(), Rows: len(c.Rows())}
			}
		}
		d.decision.Passed = append(d.decision.Passed, row)
	}
	d.decision.Passed[0].Entries.Fresh = d.decision.Outcome == Migrate && d.decision.Stored == 0
	return nil
}

func (d *decider) passedVersions() []int64 {
	stored, wanted := d.facts.stored(), d.target.Version
	passed := map[int64]bool{wanted: true}
	if d.decision.Outcome == Migrate {
		if stored > 0 && wanted-stored <= maxPassed {
			for v := stored + 1; v <= wanted; v++ {
				passed[v] = true
			}
		}
		for _, m := range d.target.Migrations {
			passed[m.Version] = passed[m.Version] || m.Version > stored && m.Version <= wanted
		}
		for _, c := range d.target.Checkpoints {
			passed[c.Version] = passed[c.Version] || c.Version > stored && c.Version <= wanted
		}
	}
	var versions []int64
	for version, yes := range passed {
		if yes {
			versions = append(versions, version)
		}
	}
	slices.Sort(versions)
	return versions
}

// plainLayouts keeps the layouts of Plain tables, of those no longer declared too, and which of their columns we made.
func (d *decider) plainLayouts() map[string][]LayoutColumn {
	layouts := map[string][]LayoutColumn{}
	for name, columns := range d.facts.last().PlainLayouts {
		if !slices.Contains(d.target.RetiredTables, name) {
			layouts[name] = columns
		}
	}
	for _, t := range d.target.Tables {
		if t.Layout != Plain {
			continue
		}
		columns := layoutOf(t)
		for i := range columns {
			columns[i].Created = d.created[t.Name][columns[i].Name]
		}
		layouts[t.Name] = columns
	}
	return layouts
}

func createdColumns(row HistoryRow) map[string]map[string]bool {
	created := map[string]map[string]bool{}
	for table, columns := range row.PlainLayouts {
		created[table] = map[string]bool{}
		for _, c := range columns {
			created[table][c.Name] = c.Created
		}
	}
	return created
}
