package storage

import (
	"encoding/json"
	"fmt"
)

// NewDefinition gives what is kept of a checkpoint for its workers: the checkpoint and the declarations of the tables it names, taken
// from tables. Its settings stand in it, but are stored apart (EncodeSettings), since they may change.
func NewDefinition(c Checkpoint, tables []Table) Definition {
	d := Definition{Name: c.Name, Version: c.Version, Hash: c.Hash(), Checkpoint: c}
	d.Table, _ = findTable(tables, c.Backfill.Table())
	for _, source := range c.Sources {
		if table, ok := findTable(tables, source.Table); ok {
			d.SourceTables = append(d.SourceTables, table)
		}
	}
	return d
}

func findTable(tables []Table, name string) (Table, bool) {
	for _, t := range tables {
		if t.Name == name {
			return t, true
		}
	}
	return Table{}, false
}

// storedDefinition is the JSON of sync_backfill_definitions.definition. Name, version and hash have columns of their own.
type storedDefinition struct {
	Checkpoint   Checkpoint `json:"checkpoint"`
	Table        *Table     `json:"table,omitempty"`
	SourceTables []Table    `json:"sourceTables"`
}

// EncodeDefinition gives the JSON text of sync_backfill_definitions.definition. Settings are no part of it.
func EncodeDefinition(d Definition) (string, error) {
	stored := storedDefinition{Checkpoint: d.Checkpoint, SourceTables: d.SourceTables}
	if d.Table.Name != "" {
		stored.Table = &d.Table
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return "", fmt.Errorf("encode the definition of checkpoint %q: %w", d.Name, err)
	}
	return string(text), nil
}

// DecodeDefinition makes a definition from a row of sync_backfill_definitions, settings included. CodeContentDrift if a text is
// not what this program wrote.
func DecodeDefinition(name string, version int64, hash, definition, settings string) (Definition, error) {
	var stored storedDefinition
	d := Definition{Name: name, Version: version, Hash: hash}
	if err := json.Unmarshal([]byte(definition), &stored); err != nil {
		return Definition{}, &Error{Code: CodeContentDrift, Message: fmt.Sprintf("the stored definition of checkpoint %q cannot be read", name), Err: err}
	}
	d.Checkpoint, d.SourceTables = stored.Checkpoint, stored.SourceTables
	if stored.Table != nil {
		d.Table = *stored.Table
	}
	var err error
	if d.Checkpoint.Settings, err = DecodeSettings(name, settings); err != nil {
		return Definition{}, err
	}
	return d, nil
}

// EncodeSettings gives the JSON text of sync_backfill_definitions.settings.
func EncodeSettings(s Settings) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode settings: %w", err)
	}
	return string(text), nil
}

// DecodeSettings reads what EncodeSettings wrote for the checkpoint of that name. CodeContentDrift if the text is not that.
func DecodeSettings(name, text string) (Settings, error) {
	var s Settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Settings{}, &Error{Code: CodeContentDrift, Message: fmt.Sprintf("the stored settings of checkpoint %q cannot be read", name), Err: err}
	}
	return s, nil
}

// DecodeEntries reads sync_barrier_history.entries of one version.
func DecodeEntries(version int64, text string) (HistoryEntries, error) {
	entries := HistoryEntries{}
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return HistoryEntries{}, &Error{Code: CodeContentDrift, Message: fmt.Sprintf("the history of version %d cannot be read", version), Err: err}
	}
	if entries.Checkpoints == nil {
		entries.Checkpoints = map[string]HistoryCheckpoint{}
	}
	return entries, nil
}

// EncodeEntries gives the JSON text of sync_barrier_history.entries.
func EncodeEntries(entries HistoryEntries) (string, error) {
	text, err := json.Marshal(entries)
	if err != nil {
		return "", fmt.Errorf("encode history entries: %w", err)
	}
	return string(text), nil
}

// RefuseAdvance is the refusal to move the watermark of a checkpoint that SQL fills from outside: only its tail knows how far the log is
// applied, and the next claim goes on from there.
func RefuseAdvance(advance Advance) error {
	return Refuse(CodeInvalidSpec, "checkpoint %q in partition %q is filled by SQL: its own tail moves the watermark", advance.Name, advance.Partition).
		WithHint("run `syncbarrier backfill`")
}
