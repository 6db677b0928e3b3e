package storage

import (
	"strings"
	"testing"
)

func TestKeysInAMessageAreToldApartAndAreNoLongerThanASentence(t *testing.T) {
	got := ShownKeys([]string{"7", `["a","b"]`, "", " ", "a, b", "line\nend", "\x1b[2J", strings.Repeat("日", 900)})
	want := `7, ["a","b"], "", " ", "a, b", "line\nend", "\x1b[2J", ` + strings.Repeat("日", 25) + "..."
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
