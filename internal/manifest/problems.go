package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// problem is one thing that is wrong with a file.
type problem struct {
	line    int    // of the file; 0: not known, or part of the message
	message string // begins with the field's path where there is one
}

// problems is all that was found. It is an error, which Parse and Convert turn into a storage.Error.
type problems []problem

func (p problems) Error() string {
	parts := make([]string, len(p))
	for i, one := range p {
		parts[i] = one.message
		if one.line > 0 {
			parts[i] = fmt.Sprintf("line %d: %s", one.line, one.message)
		}
	}
	return strings.Join(parts, "; ")
}

func (p problems) orNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// maxShown bounds the problems of one message.
const maxShown = 20

// invalid makes the error that the caller gets: the file's name and every problem, in the file's order.
func (p problems) invalid(name string) error {
	slices.SortStableFunc(p, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	if len(p) == 1 {
		return storage.Refuse(storage.CodeInvalidSpec, "%s: %s", name, p.Error())
	}
	shown := p[:min(len(p), maxShown)]
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d problems", name, len(p))
	for _, one := range shown {
		b.WriteString("\n  ")
		b.WriteString(problems{one}.Error())
	}
	if rest := len(p) - len(shown); rest > 0 {
		fmt.Fprintf(&b, "\n  and %d more", rest)
	}
	return storage.Refuse(storage.CodeInvalidSpec, "%s", b.String())
}

// fieldProblems gives each field error the line of the file that it speaks of.
func fieldProblems(errs field.ErrorList, lineOf func(path string) int) problems {
	found := make(problems, len(errs))
	for i, err := range errs {
		found[i] = problem{line: lineOf(err.Field), message: describe(err)}
	}
	return found
}

// schemaProblems are those that the schema found in a document.
func (d *document) schemaProblems(errs field.ErrorList) problems {
	found := fieldProblems(errs, d.lineOf)
	for i, err := range errs {
		found[i].message += d.quoteHint(err)
	}
	return found
}

// maxValueBytes bounds how much of a wrong value is repeated.
const maxValueBytes = 80

// describe is the error's text in one line, with a long value cut: a value may be SQL, and people know their file.
func describe(err *field.Error) string {
	if value, ok := err.BadValue.(string); ok && len(value) > maxValueBytes {
		short := *err
		short.BadValue = legible.Cut(value, maxValueBytes+len("..."))
		err = &short
	}
	return legible.Line(err.Error()) // paths hold names of columns as they are
}
