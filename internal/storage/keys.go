package storage

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// MaxPartitionBytes is the longest partition key a writer may use: longer ones do not fit into the index of the log.
const MaxPartitionBytes = 2000

// CheckPartition refuses keys that are empty, reserved or cannot be stored. CodeInvalidSpec.
func CheckPartition(partition string) error {
	switch {
	case partition == "":
		return Refuse(CodeInvalidSpec, "the partition key is empty")
	case partition == AllPartitions || strings.HasPrefix(partition, CapturePrefix):
		return Refuse(CodeInvalidSpec, "partition key %.40q is reserved: %q and keys beginning with %q are Syncbarrier's own", partition, AllPartitions, CapturePrefix)
	case len(partition) > MaxPartitionBytes:
		return Refuse(CodeInvalidSpec, "the partition key %.40q... has %d bytes, at most %d are possible", partition, len(partition), MaxPartitionBytes)
	case !utf8.ValidString(partition) || strings.ContainsRune(partition, 0):
		return Refuse(CodeInvalidSpec, "the partition key is not UTF-8 text without NUL")
	}
	return nil
}

// EncodeKey writes a key as row_id does (docs/design.md section 3): the text of the one column, or for a composite key the JSON array
// of its columns' texts.
func EncodeKey(columns []string) string {
	if len(columns) == 1 {
		return columns[0]
	}
	text, _ := json.Marshal(columns) // strings always encode
	return string(text)
}

// DecodeKey reads what EncodeKey wrote, for a key of so many columns. ok is false if the text is no such key.
func DecodeKey(rowID string, columns int) (key []string, ok bool) {
	if columns == 1 {
		return []string{rowID}, true
	}
	if err := json.Unmarshal([]byte(rowID), &key); err != nil || len(key) != columns {
		return nil, false
	}
	return key, true
}
