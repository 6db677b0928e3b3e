package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (p *Program) json() bool { return p.flags.output == "json" }

// asksForJSON finds -o json among arguments that were not read to their end.
func asksForJSON(args []string) bool {
	for i, arg := range args {
		switch arg {
		case "-o=json", "-ojson", "--output=json":
			return true
		case "-o", "--output":
			if i+1 < len(args) && args[i+1] == "json" {
				return true
			}
		}
	}
	return false
}

// print writes a value as JSON, one object, or has text written for people.
func (p *Program) print(value any, text func(w io.Writer)) error {
	if !p.json() {
		text(p.Out)
		return nil
	}
	encoder := json.NewEncoder(p.Out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(withLists(value)); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// withLists gives the value with an empty list wherever a list of it is nil: a script that goes over one must not meet null.
func withLists(value any) any {
	in := reflect.ValueOf(value)
	switch in.Kind() {
	case reflect.Struct:
		out := reflect.New(in.Type()).Elem()
		out.Set(in)
		for i := range out.NumField() {
			if field := out.Field(i); field.Kind() == reflect.Slice && field.IsNil() && field.CanSet() {
				field.Set(reflect.MakeSlice(field.Type(), 0, 0))
			}
		}
		return out.Interface()
	case reflect.Map:
		if in.Type().Elem().Kind() != reflect.Interface {
			return value
		}
		for _, key := range in.MapKeys() {
			if element := in.MapIndex(key).Elem(); element.Kind() == reflect.Slice && element.IsNil() {
				in.SetMapIndex(key, reflect.MakeSlice(element.Type(), 0, 0))
			}
		}
	}
	return value
}

// say writes a line for people, to standard error when the output is JSON.
func (p *Program) say(format string, args ...any) {
	w := p.Out
	if p.json() {
		w = p.Err
	}
	writeLine(w, format, args...)
}

// writeLine writes one line, whatever the names and messages in it hold: a partition key may end a line, and write one of ours after it.
func writeLine(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintln(w, legible.Line(fmt.Sprintf(format, args...))) // a closed terminal is no reason to stop a migration
}

// indented gives a text of several lines, such as the problems of a file, in which no line but the first stands at the left, where ours begin.
func indented(text string) string {
	return endOfLine.ReplaceAllString(text, "\n  $1")
}

var endOfLine = regexp.MustCompile(`\n *(\S)`)

// failure is the JSON of an error.
type failure struct {
	Reason   string            `json:"reason"`
	Message  string            `json:"message"`
	Code     string            `json:"code,omitempty"`
	Hint     string            `json:"hint,omitempty"`
	Blockers []storage.Blocker `json:"blockers,omitempty"`
	ExitCode int               `json:"exitCode"`
}

// An address that was written where it does not belong comes back in the message about it, and it may hold a password.
var addresses = regexp.MustCompile(`(?i)(postgres(?:ql)?:/*)[^\n]*|(password\s*=)[^\n]*`)

// withoutSecrets cuts a message off where an address or a password begins. Secrets may hold spaces and quotes, so the rest of the line goes.
func withoutSecrets(message string) string { return addresses.ReplaceAllString(message, "$1$2...") }

func (p *Program) printError(err error, code int) {
	message := err.Error()
	if code == exitUsage {
		message = withoutSecrets(message)
	}
	if p.json() {
		f := failure{Reason: reasonOf(err, code), Message: message, ExitCode: code}
		var refused *storage.Error
		if errors.As(err, &refused) {
			f.Code, f.Hint, f.Blockers = string(refused.Code), refused.Hint, refused.Blocked
		}
		_ = p.print(f, nil)
		return
	}
	_, _ = fmt.Fprintf(p.Err, "syncbarrier: %s: %s\n", reasonOf(err, code), indented(message))
	switch code {
	case exitUsage:
		writeLine(p.Err, "syncbarrier --help shows how it is called")
	case exitInterrupted, exitTerminated:
		writeLine(p.Err, "what was under way is rolled back, what was done stays; the same command goes on from there")
	}
}

func reasonOf(err error, code int) string {
	switch code {
	case exitUsage:
		return "Usage"
	case exitInterrupted, exitTerminated:
		return "Interrupted"
	}
	var cluster *clusterError
	if errors.As(err, &cluster) {
		return cluster.reason
	}
	if class := storage.ClassOf(err); class != storage.ClassInternal {
		return string(class)
	}
	if code == exitGaveUp {
		return "GaveUp"
	}
	return "Error"
}

// cell is a name as it stands in a table, where there may be none.
func cell(name string) string {
	const widest = 100 // another program's key may have 2000 bytes, and every row would be as wide; -o json has it whole
	if name == "" {
		return ""
	}
	return legible.Cut(legible.Name(name), widest)
}

// table writes aligned columns.
func table(w io.Writer, header []string, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i := range row {
			cells[i] = legible.Line(row[i])
		}
		_, _ = fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	_ = t.Flush()
}
