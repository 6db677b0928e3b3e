package legible

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// hostile names and keys, and how they are shown.
var hostile = []struct{ name, shown, line string }{
	{"todos", "todos", "todos"},
	{"commitLog", "commitLog", "commitLog"},
	{"Order Data", "Order Data", "Order Data"},
	{"🏥 é 日本", "🏥 é 日本", "🏥 é 日本"},
	{`back\slash`, `back\slash`, `back\slash`},
	{"p'); DROP TABLE sync_commits;--", "p'); DROP TABLE sync_commits;--", "p'); DROP TABLE sync_commits;--"},
	{"", `""`, ""},
	{`"quoted"`, `"\"quoted\""`, `"quoted"`},
	{" spaced", `" spaced"`, " spaced"},
	{"two  columns", `"two  columns"`, "two  columns"},
	{"\x1b[2J", `"\x1b[2J"`, `\u001b[2J`},
	{"\u009b2J", `"\u009b2J"`, `\u009b2J`},
	{"line\nend", `"line\nend"`, `line\nend`},
	{"over\rwritten", `"over\rwritten"`, `over\u000dwritten`},
	{"tab\tbed", `"tab\tbed"`, `tab\tbed`},
	{"\u202etxt.exe", `"\u202etxt.exe"`, `\u202etxt.exe`},
	{"zero\u200bwidth", `"zero\u200bwidth"`, `zero\u200bwidth`},
	{"no\u00a0break", `"no\u00a0break"`, `no\u00a0break`},
	{"tag\U000e0001", `"tag\U000e0001"`, `tag\udb40\udc01`},
	{"\xff\xfe", `"\xff\xfe"`, `\xff\xfe`},
	{"replaced \ufffd", "replaced \ufffd", "replaced \ufffd"},
}

func TestANameShowsEveryCharacterAndIsNoOther(t *testing.T) {
	seen := map[string]string{}
	for _, h := range hostile {
		got := Name(h.name)
		if got != h.shown {
			t.Errorf("Name(%q) = %s, want %s", h.name, got, h.shown)
		}
		if other, twice := seen[got]; twice {
			t.Errorf("%q and %q are both shown as %s", h.name, other, got)
		}
		seen[got] = h.name
		if got := Line(h.name); got != h.line {
			t.Errorf("Line(%q) = %s, want %s", h.name, got, h.line)
		}
	}
}

func TestATextKeepsItsLines(t *testing.T) {
	if got := Text("two problems\n\tone\x1b[1A\r\n"); got != "two problems\n\tone\\u001b[1A\\u000d\n" {
		t.Errorf("%q", got)
	}
}

func TestAWriterLeavesJSONWhatItIs(t *testing.T) {
	for _, h := range hostile {
		if !utf8.ValidString(h.name) {
			continue // JSON has no such bytes
		}
		var shown bytes.Buffer
		want := map[string]string{h.name: "of " + h.name}
		encoder := json.NewEncoder(Writer(&shown))
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(want); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(shown.String(), "\x1b\u202e\u009b\u200b") {
			t.Errorf("%q reaches the terminal: %q", h.name, shown.String())
		}
		got := map[string]string{}
		if err := json.Unmarshal(shown.Bytes(), &got); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q is read back as %q: %v", want, got, err)
		}
	}
}

func TestATextIsCutBetweenCharacters(t *testing.T) {
	for most := range 40 {
		got := Cut("ééé🏥🏥é\xff日本日本", most)
		if !utf8.ValidString(got) || len(got) > max(most, 3) || strings.ContainsRune(got, utf8.RuneError) {
			t.Errorf("cut to %d: %q", most, got)
		}
	}
	if got := Cut("short", 5); got != "short" {
		t.Errorf("%q", got)
	}
}
