package storage

import (
	"strconv"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/legible"
)

// ShownKeys names the rows of some keys, for a message: each key shows every character, and a long one is cut, so that ten of them stay a
// sentence.
func ShownKeys(rowIDs []string) string {
	const longest = 80 // bytes
	shown := make([]string, len(rowIDs))
	for i, id := range rowIDs {
		shown[i] = legible.Name(id)
		if shown[i] == id && strings.Contains(id, ", ") {
			shown[i] = strconv.Quote(id) // it would be taken for two
		}
		shown[i] = legible.Cut(shown[i], longest)
	}
	return strings.Join(shown, ", ")
}
