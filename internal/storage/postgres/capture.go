package postgres

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// captured is a source table whose changes triggers write into the log (docs/design.md section 5, "Capture").
type captured struct {
	table       string
	partitioned bool
	child       bool // it is a partition of another table or inherits from one: it can be fenced, but not captured
	key         []capturedColumn
	deferrable  bool // two rows may have one key until a statement, or the transaction, ends
	partition   capturedPartition
	// counting are the columns that decide whether an UPDATE is a change: the key, the partition column and the source columns, in the
	// table's own order.
	counting []capturedColumn
	// relations are the table itself, first, and all its partitions, at every level.
	relations []capturedRelation
}

// capturedColumn is a column as far as its triggers depend on it.
type capturedColumn struct {
	name string
	// builtin: the type, or the type under a domain, comes with the server. Its cast to text is nobody else's function.
	builtin bool
	// exact: values that are equal have the same bytes, so the server's own comparison tells whether a value changed. It does not where 1.0
	// equals 1.00, 'a' equals 'A' or '24:00' equals '1 day': what is derived from them can differ.
	exact bool
	// ordered: the server has min and max for it.
	ordered bool
	// settled: its text is the same under all settings of a session.
	settled bool
}

// capturedPartition is the rule by which a row belongs to a captured partition: a column's text, a hash of the key into slices, or,
// without both, one partition for all.
type capturedPartition struct {
	column *capturedColumn
	slices int
}

// capturedRelation is a table that triggers stand on.
type capturedRelation struct {
	oid  uint32
	name string // named in full and quoted
}

// captureMost is the largest number of rows of a statement that are logged one by one; above it ranges of keys are (docs/design.md
// section 5).
const captureMost = 10000

// writerVersionSetting is the session setting in which a program gives its writer version.
const writerVersionSetting = "syncbarrier.writer_version"

// captureFunction is the name of the function that writes the changes of a table. Where it does not fit into the length of an
// identifier, the table's name is cut and its hash stands behind it; so it does where the table is called like what that gives for another.
func captureFunction(table string) string {
	const prefix = "syncbarrier_capture_"
	switch length := len(prefix) + len(table); {
	case length <= storage.MaxIdentifierBytes-utf8.UTFMax, length <= storage.MaxIdentifierBytes && !hashed.MatchString(table):
		return prefix + table
	}
	sum := sha256.Sum256([]byte(table))
	hash := "_" + hex.EncodeToString(sum[:8])
	cut := storage.MaxIdentifierBytes - len(prefix) - len(hash)
	for !utf8.RuneStart(table[cut]) {
		cut--
	}
	return prefix + table[:cut] + hash
}

// hashed matches a name with a hash of ours behind it.
var hashed = regexp.MustCompile(`_[0-9a-f]{16}$`)

// Captured partition keys (docs/design.md section 5): capture:<table>/=<text>, capture:<table>/null, capture:<table>/md5:<hex> for a text of
// more than 200 bytes, which an index might not hold, capture:<table>/#<n> for a slice, capture:<table>/ for all.
const maxCapturedText = 200

// prefix begins the keys of the table's partitions. Where the rule gives one partition, it is the key. A slash in a table's name is written as
// in a URL: else the partitions of a table "a/=b" would be some of table "a", which would prune them and wait for them.
func (c captured) prefix() string { return storage.CapturePrefix + slashes.Replace(c.table) + "/" }

var slashes = strings.NewReplacer("%", "%25", "/", "%2F")

// partitionsSQL gives the condition that a captured partition's key, as SQL, belongs to a row of a checkpoint whose partition is given as
// SQL too: for AllPartitions and DefaultPartition those of the whole table, else the one of the bare value. Only a
// table with a partition column can tell its rows apart.
func (c captured) partitionsSQL(key, bare string) string {
	whole := "starts_with(" + key + ", " + quoteText(c.prefix()) + ")"
	if c.partition.column == nil {
		return whole
	}
	return "CASE WHEN " + bare + " = " + quoteText(storage.AllPartitions) + " THEN " + whole +
		" ELSE " + key + " = " + c.keyOfText(bare) + " END"
}

// keyOfText is the key of the partition that a text, given as SQL, stands for. The database computes it for triggers and readers alike, in
// its own encoding.
func (c captured) keyOfText(text string) string {
	return "CASE WHEN " + text + " IS NULL THEN " + quoteText(c.prefix()+"null") +
		" WHEN octet_length(" + text + ") > " + strconv.Itoa(maxCapturedText) + " THEN " + quoteText(c.prefix()+"md5:") + " || md5(" + text + ")" +
		" ELSE " + quoteText(c.prefix()+"=") + " || " + text + " END"
}

// quoteText quotes a text for a function's body, which is read under the settings of whoever makes it run: with
// standard_conforming_strings off, a backslash in a plain literal would begin an escape.
func quoteText(text string) string {
	if !strings.Contains(text, `\`) {
		return quoteLiteral(text)
	}
	return " E" + strings.ReplaceAll(quoteLiteral(text), `\`, `\\`)
}
