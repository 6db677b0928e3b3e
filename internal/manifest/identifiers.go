package manifest

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// checkIdentifier: a name that the database would cut or refuse is found before any lock is taken.
func (r *relations) checkIdentifier(path *field.Path, name string) {
	if name == "" {
		r.errs = append(r.errs, field.Required(path, "a name must not be empty"))
	} else if problem := problemOfName(name); problem != "" {
		r.invalid(path, name, "%s", problem)
	}
}

// problemOfName says what keeps a name from being a name in a database; "": nothing. Everything else is legal, since names are always quoted.
// The schema bounds characters; the database counts bytes.
func problemOfName(name string) string {
	switch {
	case len(name) > storage.MaxIdentifierBytes:
		return fmt.Sprintf("a name has at most %d bytes, this one has %d", storage.MaxIdentifierBytes, len(name))
	case strings.ContainsRune(name, 0):
		return "a name cannot hold the character NUL"
	case !utf8.ValidString(name):
		return "a name must be valid UTF-8"
	}
	return ""
}

// ProblemOfSchema says what keeps a name from being that of a database schema which Syncbarrier works in; "": nothing.
func ProblemOfSchema(name string) string {
	if isSystemSchema(name) {
		return "it is one of PostgreSQL's own schemas"
	}
	return problemOfName(name)
}

// checkTableName: also, the tables of the sync protocol and our own are no application's.
func (r *relations) checkTableName(path *field.Path, name string) {
	r.checkIdentifier(path, name)
	if isReservedName(name) {
		r.invalid(path, name, "names that begin with sync_ or syncbarrier_ are reserved for Syncbarrier's own tables")
	}
}

// isReservedName tells the names of our tables, triggers and indexes. SQLite does not tell case apart, so neither do we.
func isReservedName(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, "sync_") || strings.HasPrefix(lower, "syncbarrier_")
}

// isReservedColumn tells the columns of a Syncular table that are not the application's.
func isReservedColumn(name string) bool {
	return strings.HasPrefix(strings.ToLower(name), "_sync_")
}

// isSystemSchema tells the schemas that PostgreSQL keeps for itself.
func isSystemSchema(name string) bool {
	return strings.HasPrefix(name, "pg_") || name == "information_schema"
}

// isBatchRelation tells the names that a backfill's SQL knows as relations of ours: they would hide a table of that name.
func isBatchRelation(name string) bool {
	return name == "batch" || name == "changed"
}

// checkText: a name of our own, which no database has but as data.
func (r *relations) checkText(path *field.Path, name string) {
	if strings.ContainsRune(name, 0) || !utf8.ValidString(name) {
		r.invalid(path, name, "a name must be UTF-8 text without the character NUL")
	}
}

// checkSQL: SQL that says nothing, or that no database takes. What it says is for the database to judge.
func (r *relations) checkSQL(path *field.Path, sql string) {
	switch {
	case strings.TrimSpace(sql) == "":
		r.errs = append(r.errs, field.Required(path, "the SQL must not be empty"))
	case strings.ContainsRune(sql, 0):
		r.forbidden(path, "SQL cannot hold the character NUL")
	}
}

// checkPartition: a partition key is data, so anything goes but what is ours or cannot be stored.
func (r *relations) checkPartition(path *field.Path, key string) {
	switch {
	case key == "":
		r.errs = append(r.errs, field.Required(path, "a partition key must not be empty"))
	case key == storage.AllPartitions:
		r.invalid(path, key, "the key %q is reserved; leave partitions out to cover all", storage.AllPartitions)
	case strings.HasPrefix(key, storage.CapturePrefix):
		r.invalid(path, key, "keys that begin with %q are reserved; write the bare value", storage.CapturePrefix)
	case len(key) > maxPartitionBytes:
		r.invalid(path, key, "a partition key has at most %d bytes, this one has %d", maxPartitionBytes, len(key))
	case strings.ContainsRune(key, 0) || !utf8.ValidString(key):
		r.invalid(path, key, "a partition key must be UTF-8 text without the character NUL")
	}
}

const maxPartitionBytes = 256
