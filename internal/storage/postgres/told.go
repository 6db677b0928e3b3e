package postgres

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// What of a server's error is repeated (docs/decisions/0010-what-is-repeated.md). Never its detail, hint and context, which quote rows, but for
// the names in what our own functions raise; and of its message what cannot hold a row.

// raisedByUs gives the error of our own triggers: they raise the bare code as message, and what a person needs as detail. A program that
// follows the sync protocol may raise such a code too; what it says beside it is its own.
func raisedByUs(pgErr *pgconn.PgError, what string) error {
	raised := &storage.Error{Code: storage.Code(pgErr.Message), Message: what}
	// Others than these are of no trigger. Taken from anybody they would decide what happens next: some are tried again for ever.
	if class := raised.Class(); pgErr.Code != stateRaised || class != storage.ClassFenced && class != storage.ClassGuarded {
		return nil
	}
	if pgErr.Detail != "" && ourFunction.MatchString(firstLine(pgErr.Where)) {
		raised.Message += ": " + pgErr.Detail
	}
	return raised
}

var (
	// ourFunction is a function of ours that raises, as the context of an error names it, in whatever language.
	ourFunction = regexp.MustCompile(`\bsyncbarrier_(fence|fence_source|log_truncate|guard_[a-z_]+)\(\)`)
	// signature is a function as the context of an error names it.
	signature = regexp.MustCompile(`((?:"[^"]+"|[\pL\d_$]+)\.)?("[^"]+"|[\pL\d_$]+)\([^()"]*\)`)
	// dynamic is a function in whose EXECUTE something went wrong: what it executed may be made of rows.
	dynamic = regexp.MustCompile(`(?m)\(.*\).* EXECUTE$`)
	// quoted goes from the first quotation mark, of whatever language the server speaks, to the last: a value can hold some itself.
	quoted = regexp.MustCompile(`(?s)["«»„“”‘’‹›「」『』].*["«»„“”‘’‹›「」『』]`)
	// numbers are what a message of class 22 ends with, or holds as bytes.
	numbers = regexp.MustCompile(`0x[0-9a-fA-F]+(?:[ ,]+0x[0-9a-fA-F]+)*|: -?[0-9].*$`)
)

// block is how the context of an error calls a DO block, in every language.
const block = "inline_code_block"

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// withoutValues keeps of a server's error what cannot hold a row.
func withoutValues(pgErr *pgconn.PgError) error {
	return &serverError{message: repeatable(pgErr), state: pgErr.Code, routine: pgErr.Routine}
}

// repeatable gives the server's message without what in it could be of a row, or other words for it.
func repeatable(pgErr *pgconn.PgError) string {
	if isRaised(pgErr) {
		// Whoever wrote the block chose its words for the reader of this message. Those of a function were written for somebody else.
		if line := firstLine(pgErr.Where); strings.Contains(line, block) {
			return pgErr.Message
		}
		return "a function of the database raised an error of its own" + raisedIn(pgErr.Where) + notRepeated
	}
	message := pgErr.Message
	switch class := pgErr.Code[:min(2, len(pgErr.Code))]; {
	case class == "22": // data exceptions
		message = numbers.ReplaceAllStringFunc(quoted.ReplaceAllString(message, `"..."`), func(found string) string {
			if strings.HasPrefix(found, "0x") {
				return "..."
			}
			return ": ..."
		})
	case class == "42" && dynamic.MatchString(pgErr.Where), class == "XX":
		message = quoted.ReplaceAllString(message, `"..."`)
	case slices.Contains(ofNames, class):
	default: // of another language's functions, another server, or nobody knows whose
		return "the database raised an error" + raisedIn(pgErr.Where) + notRepeated
	}
	return message
}

const notRepeated = "; its words are not repeated, since they may hold rows"

// ofNames are the classes whose messages name objects, settings and users at most (PostgreSQL manual, Appendix A). Values of a row that breaks a
// constraint stand in the detail alone.
var ofNames = strings.Fields("08 09 0A 0B 0P 20 21 23 24 25 26 27 28 2B 2D 2F 34 3B 3D 3F 40 42 44 53 54 55 57 58 72 F0 P0")

// isRaised says that the words are a program's, whatever state it gave them. Routines are those of the server's source, which no language changes.
func isRaised(pgErr *pgconn.PgError) bool {
	switch pgErr.Routine {
	case "exec_stmt_raise", "exec_stmt_assert":
		return true
	}
	return pgErr.Code == stateRaised || pgErr.Code == stateAssertion
}

// raisedIn names the function in which an error came up, as " in f(integer)".
func raisedIn(where string) string {
	if name := signature.FindString(firstLine(where)); name != "" {
		return " in " + name
	}
	return ""
}

// ofDriver are the driver's words about a value on its way to the server or from it.
var ofDriver = regexp.MustCompile(`(?s)(failed to encode args\[\d+\]|can't scan into dest\[\d+\](?: \(col: [^)]*\))?).*`)

// withoutArguments keeps which value the driver could not encode or read, and drops the value.
func withoutArguments(err error) error {
	if err == nil {
		return nil
	}
	if text := err.Error(); ofDriver.MatchString(text) {
		return &toldError{message: ofDriver.ReplaceAllString(text, "$1"), err: err}
	}
	return err
}

// toldError is an error in other words.
type toldError struct {
	message string
	err     error
}

func (e *toldError) Error() string { return e.message }
func (e *toldError) Unwrap() error { return e.err }

// serverError is what is kept of a server's error.
type serverError struct{ message, state, routine string }

func (e *serverError) Error() string { return fmt.Sprintf("%s (SQLSTATE %s)", e.message, e.state) }
