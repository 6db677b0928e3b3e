// Package legible shows text that came from elsewhere: names of a file or a database, partition keys, what a database said. All of it may hold
// anything but NUL. Shown as it is, a name that ends a line can write the next one, and one with an escape sequence can wipe the screen or
// turn what stands beside it around. Nothing here is lost: what cannot be shown is written as its escape.
package legible

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Name gives a name, or a partition key, as people may read it and no other: as it is where every character shows, and otherwise quoted as Go
// quotes strings.
func Name(name string) string {
	if name == "" || name[0] == '"' || strings.TrimSpace(name) != name || strings.Contains(name, "  ") || strings.ContainsFunc(name, hidden) ||
		!utf8.ValidString(name) {
		return strconv.Quote(name)
	}
	return name
}

// Text gives a text of any number of lines in which every character shows. Line ends and tabs stay.
func Text(text string) string { return escaped(text, "\n\t") }

// Line gives a text as one line in which every character shows.
func Line(text string) string { return escaped(text, "") }

// Cut bounds a text in bytes, within no character, and says by dots that it did. It is valid UTF-8, whatever it was.
func Cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:max(0, most-3)], "") + "..."
}

// Writer passes on what is written to it as Text does, so that whatever was overlooked does no harm either. JSON stays JSON with the same
// values. Each Write must end between two characters, as those of package fmt do.
func Writer(w io.Writer) io.Writer { return writer{w} }

type writer struct{ w io.Writer }

func (w writer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.w, Text(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// hidden says of a character that it does not show, or changes how others do: control and format characters, those that turn the direction
// of writing among them, spaces that look like another, and what no standard has a meaning for.
func hidden(r rune) bool { return !strconv.IsPrint(r) }

// escaped writes hidden characters as JSON does, but for those that may stay. Bytes that are no UTF-8 become \x and two digits; in JSON
// there are none.
func escaped(text, stay string) string {
	if !strings.ContainsFunc(text, hidden) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case !hidden(r) || strings.ContainsRune(stay, r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
