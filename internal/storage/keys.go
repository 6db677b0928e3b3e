package storage

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxPartitionBytes is the longest partition key that can be stored: with the names beside it, it has to fit into an entry of an index, of which
// PostgreSQL allows 2704 bytes. A writer's keys are data, and so are those that a program lists through a Store. A file and a custom resource
// list at most 256 bytes of each (internal/manifest): a thousand of them have to fit into an object of Kubernetes, and the rules of its schema
// are budgeted by their length. Longer keys are covered by a checkpoint of all partitions.
const MaxPartitionBytes = 2000

// CheckPartition refuses keys that are empty, reserved or cannot be stored. CodeInvalidSpec.
func CheckPartition(partition string) error {
	if problem := problemOfPartition(partition); problem != "" {
		return Refuse(CodeInvalidSpec, "%s", problem)
	}
	return nil
}

func problemOfPartition(partition string) string {
	switch {
	case partition == "":
		return "the partition key is empty"
	case partition == AllPartitions || strings.HasPrefix(partition, CapturePrefix):
		return fmt.Sprintf("partition key %.40q is reserved: %q and keys beginning with %q are Syncbarrier's own", partition, AllPartitions, CapturePrefix)
	case len(partition) > MaxPartitionBytes:
		return fmt.Sprintf("the partition key %.40q... has %d bytes, at most %d are possible", partition, len(partition), MaxPartitionBytes)
	case !utf8.ValidString(partition) || strings.ContainsRune(partition, 0):
		return "the partition key is not UTF-8 text without NUL"
	}
	return ""
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
