package manifest

import (
	"strings"
	"testing"
)

func TestAColumnIsNeverSetUnderAnotherNameThanTheFileSays(t *testing.T) {
	file := func(column string) string {
		text := edit(t, clinic, "{name: title_norm, type", `{name: "true", type: string, nullable: true}`+"\n    - {name: title_norm, type")
		return edit(t, text, "{title_norm: lower(title)}", "{"+column+": lower(title)}")
	}
	for word, as := range map[string]string{
		"on": "true", "no": "false", "y": "true", "Off": "false", "~": "null", "null": "null", "0x10": "16", "1e3": "1000", "1_000": "1000", ".5": "0.5", "0o7": "7", "010": "8",
	} {
		_, err := Parse(strings.NewReader(file(word)), "clinic.yaml")
		wantInvalid(t, err, "clinic.yaml: line 20: the key "+word+" stands without quotes, and YAML reads it as "+as+`: write "`+word+`"`)
	}
	for _, word := range []string{`"on"`, "'no'", "true", `"~"`} {
		parsed := mustParse(t, file(word))
		if _, there := parsed.Schema.Spec.Checkpoints[0].Backfill.Update.Set[strings.Trim(word, `'"`)]; !there {
			t.Errorf("%s: the columns set are %v", word, parsed.Schema.Spec.Checkpoints[0].Backfill.Update.Set)
		}
	}
}

func TestANameThatYAMLTakesForNoTextIsShownWithItsQuotes(t *testing.T) {
	for word, as := range map[string]string{"on": "true", "0x10": "16", "1e3": "1000", "12": "12", ".5": "0.5"} {
		_, err := Parse(strings.NewReader(edit(t, clinic, "{name: title_norm,", "{name: "+word+",")), "clinic.yaml")
		wantInvalid(t, err, "line 12: spec.tables[0].columns[3].name: ", "without quotes YAML reads it as "+as+`: write "`+word+`"`)
	}
}

// hostileNames are names that would end a line of a message, wipe a terminal, or turn round what stands beside them.
var hostileNames = map[string]string{`"\e[2J"`: `\u001b[2J`, `"\u202E"`: `\u202e`, `"a\nb"`: `a\nb`, `"a]b.c"`: `a]b.c`, `"\u200B"`: `\u200b`}

func TestAMessageAboutANameIsOneLineInWhichEveryCharacterShows(t *testing.T) {
	for written, shown := range hostileNames {
		file := mustParse(t, edit(t, clinic, "{title_norm: lower(title)}", "{"+written+": lower(title)}"))
		_, _, err := Convert(file)
		wantInvalid(t, err, "clinic.yaml: line 19: spec.checkpoints[0].backfill.update.set["+shown+"]: ", "declares no such column")
		if strings.ContainsAny(err.Error(), "\n\x1b\u202e\u200b") {
			t.Errorf("%s: %q", written, err.Error())
		}
	}
}
