package storage

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// The content hash of a version (docs/design.md section 7) covers what cannot change once the version is applied: tables,
// retired tables, the two minimum versions, and the migration and checkpoints of exactly that version. Everything
// that may change at any time (settings, locks, owner) is left out.

// The hashed forms name every field themselves, so that a renamed Go field never changes a hash.
type hashedContent struct {
	Tables           []hashedTable      `json:"tables,omitempty"`
	RetiredTables    []string           `json:"retiredTables,omitempty"`
	MinWriterVersion *int64             `json:"minWriterVersion,omitempty"`
	MinReaderVersion *int64             `json:"minReaderVersion,omitempty"`
	Migration        string             `json:"migration,omitempty"`
	Checkpoints      []hashedCheckpoint `json:"checkpoints,omitempty"`
}

type hashedTable struct {
	Name            string         `json:"name"`
	Layout          Layout         `json:"layout"`
	Materialize     bool           `json:"materialize,omitempty"`
	Columns         []hashedColumn `json:"columns,omitempty"`
	PrimaryKey      []string       `json:"primaryKey,omitempty"`
	PartitionColumn string         `json:"partitionColumn,omitempty"`
	PartitionHash   int            `json:"partitionHash,omitempty"`
	Indexes         []hashedIndex  `json:"indexes,omitempty"`
}

type hashedColumn struct {
	Name     string     `json:"name"`
	Type     ColumnType `json:"type,omitempty"`
	SQLType  string     `json:"sqlType,omitempty"`
	Nullable bool       `json:"nullable,omitempty"`
}

type hashedIndex struct {
	Name    string   `json:"name"`
	Columns []string `json:"columns"`
	Unique  bool     `json:"unique,omitempty"`
}

type hashedCheckpoint struct {
	Name       string         `json:"name"`
	Version    int64          `json:"version"`
	Partitions []string       `json:"partitions,omitempty"`
	Sources    []hashedSource `json:"sources"`
	Update     *hashedUpdate  `json:"update,omitempty"`
	Statement  *hashedApply   `json:"statement,omitempty"`
	Job        bool           `json:"job,omitempty"`
	Template   string         `json:"jobTemplate,omitempty"`
	Verify     []hashedVerify `json:"verify,omitempty"`
}

type hashedSource struct {
	Table   string   `json:"table"`
	Changes Changes  `json:"changes"`
	Columns []string `json:"columns,omitempty"`
	Keys    string   `json:"keys,omitempty"`
}

type hashedUpdate struct {
	Table string            `json:"table"`
	Set   map[string]string `json:"set"`
}

type hashedApply struct {
	Table  string `json:"table"`
	Apply  string `json:"apply"`
	Remove string `json:"remove,omitempty"`
}

type hashedVerify struct {
	Name  string `json:"name"`
	Query string `json:"query"`
}

// ContentHash is the hash of one version of the target, in hex. Lists keyed by name (tables, checkpoints, sources, indexes, verify) are
// hashed in order of their names, since their order means nothing. Standalone checkpoints are not part of it.
func (t Target) ContentHash(version int64) string {
	content := hashedContent{
		RetiredTables:    sorted(t.RetiredTables),
		MinWriterVersion: t.MinWriterVersion,
		MinReaderVersion: t.MinReaderVersion,
	}
	for _, table := range sortedBy(t.Tables, func(t Table) string { return t.Name }) {
		content.Tables = append(content.Tables, hashTable(table))
	}
	for _, m := range t.Migrations {
		if m.Version == version {
			content.Migration = m.Hash()
		}
	}
	for _, c := range sortedBy(t.Checkpoints, func(c Checkpoint) string { return c.Name }) {
		if c.Version == version && !c.Standalone {
			content.Checkpoints = append(content.Checkpoints, hashCheckpoint(c))
		}
	}
	return digest(content)
}

// Hash identifies the SQL of a migration, whatever its line ends and trailing white space.
func (m Migration) Hash() string { return digest(NormaliseSQL(m.SQL)) }

// Hash identifies the definition of a checkpoint; its live settings take no part.
func (c Checkpoint) Hash() string { return digest(hashCheckpoint(c)) }

// NormaliseSQL brings line ends to LF and drops a byte order mark and white space at the ends of lines and of the text.
func NormaliseSQL(sql string) string {
	sql = strings.TrimPrefix(sql, "\ufeff")
	sql = strings.ReplaceAll(sql, "\r\n", "\n")
	sql = strings.ReplaceAll(sql, "\r", "\n")
	lines := strings.Split(sql, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t\f\v")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

func hashTable(t Table) hashedTable {
	h := hashedTable{
		Name: t.Name, Layout: t.Layout, Materialize: t.Layout == Syncular && t.Materialize,
		PrimaryKey: t.PrimaryKey, PartitionColumn: t.Partition.Column, PartitionHash: t.Partition.Hash,
	}
	for _, c := range t.Columns {
		h.Columns = append(h.Columns, hashedColumn{Name: c.Name, Type: c.Type, SQLType: c.SQLType, Nullable: c.Nullable})
	}
	for _, i := range sortedBy(t.Indexes, func(i Index) string { return i.Name }) {
		h.Indexes = append(h.Indexes, hashedIndex{Name: i.Name, Columns: i.Columns, Unique: i.Unique})
	}
	return h
}

func hashCheckpoint(c Checkpoint) hashedCheckpoint {
	h := hashedCheckpoint{
		Name: c.Name, Version: c.Version, Partitions: sorted(c.Partitions), Job: c.Backfill.Job, Template: c.Backfill.JobTemplate,
	}
	for _, s := range sortedBy(c.Sources, func(s Source) string { return s.Table }) {
		h.Sources = append(h.Sources, hashedSource{Table: s.Table, Changes: s.Changes, Columns: sorted(s.Columns), Keys: NormaliseSQL(s.Keys)})
	}
	if u := c.Backfill.Update; u != nil {
		h.Update = &hashedUpdate{Table: u.Table, Set: map[string]string{}}
		for column, expression := range u.Set {
			h.Update.Set[column] = NormaliseSQL(expression)
		}
	}
	if s := c.Backfill.Statement; s != nil {
		h.Statement = &hashedApply{Table: s.Table, Apply: NormaliseSQL(s.Apply), Remove: NormaliseSQL(s.Remove)}
	}
	for _, v := range sortedBy(c.Verify, func(v Verify) string { return v.Name }) {
		h.Verify = append(h.Verify, hashedVerify{Name: v.Name, Query: NormaliseSQL(v.Query)})
	}
	return h
}

// PlanHash is the first 12 hex digits of the hash over content hash, stored version, strategy, locks and statements: what a
// person approves. Counts and times take no part.
func PlanHash(contentHash string, stored int64, strategy string, locks []LockNote, statements []string) string {
	plan := struct {
		Content    string     `json:"content"`
		Stored     int64      `json:"stored"`
		Strategy   string     `json:"strategy"`
		Locks      []LockNote `json:"locks"`
		Statements []string   `json:"statements"`
	}{contentHash, stored, strategy, locks, statements}
	return digest(plan)[:12]
}

// digest is the SHA-256 of the canonical JSON of a value: object keys in order, no white space, nothing escaped beyond need.
func digest(value any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(fmt.Sprintf("hash: %v", err)) // only strings, numbers and maps of strings are ever hashed
	}
	sum := sha256.Sum256([]byte(strings.TrimSuffix(b.String(), "\n")))
	return hex.EncodeToString(sum[:])
}
