package sqlite

import (
	"errors"
	"regexp"
	"strings"

	modernc "modernc.org/sqlite"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// What SQLite says names tables, columns and what the statement itself says, and holds a row in two cases: what a trigger raises, which may be
// made of one, and what functions say of a value that they cannot read (docs/decisions/0010-what-is-repeated.md).

const codeRaised = codeConstraint | 7<<8 // SQLITE_CONSTRAINT_TRIGGER: by RAISE

var (
	raisedCode = regexp.MustCompile(`sync\.storage\.[a-z_]+`)
	// ofValues are the messages of functions about a value, up to it (json.c, fts5_expr.c, fts3_expr.c of SQLite).
	ofValues = regexp.MustCompile(`(?s)(bad JSON path:|JSON path error near|fts5:|malformed MATCH expression:|unknown special query:|unable to parse|unrecognized [a-z ]+:).*`)
)

// raisedByUs gives the error of our own triggers, which raise the bare code as message. Other codes than theirs would decide what happens next.
func raisedByUs(err error, what string) error {
	if extendedCode(err) != codeRaised {
		return nil
	}
	raised := &storage.Error{Code: storage.Code(raisedCode.FindString(err.Error())), Message: what + ": the database refused it"}
	if class := raised.Class(); class != storage.ClassFenced && class != storage.ClassGuarded {
		return nil
	}
	return raised
}

// ofScan is what database/sql says of a value that it cannot read into a variable.
var ofScan = regexp.MustCompile(`(?s)(converting driver\.Value type [^ ]+) .*`)

// withoutValues keeps what SQLite says and drops what in it can be of a row.
func withoutValues(err error) error {
	var result *modernc.Error
	if !errors.As(err, &result) {
		if text := err.Error(); ofScan.MatchString(text) {
			return &toldError{message: ofScan.ReplaceAllString(text, "$1"), err: err}
		}
		return err
	}
	said, repeatable := result.Error(), ofValues.ReplaceAllString(result.Error(), "$1 ...")
	if result.Code() == codeRaised && raisedByUs(result, "") == nil {
		repeatable = "a trigger raised an error of its own; its words are not repeated, since they may hold rows (1811)"
	}
	if repeatable == said {
		return err
	}
	return &toldError{message: strings.Replace(err.Error(), said, repeatable, 1), err: err}
}

// toldError says an error of SQLite in other words.
type toldError struct {
	message string
	err     error
}

func (e *toldError) Error() string { return e.message }
func (e *toldError) Unwrap() error { return e.err }
