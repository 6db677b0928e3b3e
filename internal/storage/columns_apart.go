package storage

import "slices"

// CheckColumnsApart refuses checkpoints that would be open at once although one sets a column that another reads as a source
// column: the one's own writes would be the other's source changes (docs/design.md section 6). Only a database knows which
// ones those are: those that are open now, and those that this barrier declares. CodeInvalidSpec names both and the column.
func CheckColumnsApart(open []Checkpoint) error {
	for _, setter := range open {
		if setter.Backfill.Update == nil {
			continue
		}
		for _, reader := range open {
			if err := checkReads(setter, reader); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkReads(setter, reader Checkpoint) error {
	update := setter.Backfill.Update
	for _, source := range reader.Sources {
		if source.Table != update.Table {
			continue
		}
		for _, column := range sortedKeys(update.Set) {
			if slices.Contains(source.Columns, column) {
				return Refuse(CodeInvalidSpec, "checkpoint %q sets column %q of table %q, which checkpoint %q reads as a source column",
					setter.Name, column, update.Table, reader.Name).
					WithHint("bring the database to version %d and let %q be activated first", setter.Version, setter.Name)
			}
		}
	}
	return nil
}
