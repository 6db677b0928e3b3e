package sqlite

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	modernc "modernc.org/sqlite"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Result codes that decide something (https://www.sqlite.org/rescode.html).
const (
	codeError        = 1
	codeBusy         = 5
	codeLocked       = 6
	codeNoMemory     = 7
	codeReadOnly     = 8
	codeInterrupt    = 9
	codeIO           = 10
	codeCorrupt      = 11
	codeFull         = 13
	codeCannotOpen   = 14
	codeProtocol     = 15 // the locks of a write-ahead log contradict each other
	codeConstraint   = 19
	codeNotADatabase = 26
	codeBusySnapshot = 517 // a reader that wants to write after somebody else did
)

// codeOfResult maps primary results that mean the same wherever they appear.
var codeOfResult = map[int]storage.Code{
	codeBusy:         storage.CodeLockTimeout,
	codeLocked:       storage.CodeLockTimeout,
	codeReadOnly:     storage.CodeReadOnly,
	codeInterrupt:    storage.CodeCancelled,
	codeIO:           storage.CodeConnectionLost,
	codeFull:         storage.CodeConnectionLost, // passes once there is room on the disk
	codeCannotOpen:   storage.CodeReadOnly,       // a journal cannot be made beside the file
	codeNotADatabase: storage.CodeInvalidSpec,
}

// translate is the one place where what SQLite says becomes a *storage.Error. what says what was being done to what. An error that
// has a *storage.Error in its chain is returned as it is; nil stays nil.
func translate(err error, what string) error {
	var known *storage.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if raised := raisedByUs(err, what); raised != nil {
		return raised
	}
	if isCatalogMissing(err) {
		return &storage.Error{
			Code: storage.CodeConflict, Message: what + ": the file has no Syncbarrier catalog, or a part of it was dropped", Err: withoutValues(err),
			Hint: "apply a schema version first; `syncbarrier fence check` says what was dropped",
		}
	}
	code := storage.CodeInternal
	var result *modernc.Error
	switch {
	case errors.As(err, &result):
		if mapped, ok := codeOfResult[primaryCode(err)]; ok {
			code = mapped
		}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = storage.CodeCancelled
	}
	return &storage.Error{Code: code, Message: what, Err: withoutValues(err)}
}

var catalogTable = regexp.MustCompile(`no such table: (main\.)?sync_`)

// isCatalogMissing says that a statement named a table of the catalog which is not there. SQLite says so in words only.
func isCatalogMissing(err error) bool {
	return primaryCode(err) == codeError && catalogTable.MatchString(err.Error())
}

// notTheSQL are results without a code of their own that no SQL is to blame for.
var notTheSQL = []int{codeNoMemory, codeCorrupt, codeProtocol}

// translateUserSQL is translate for a statement that holds SQL of the user: what is wrong with the statement is then theirs to mend.
// CodeNotTransactional: it cannot run inside a transaction. CodeInvalidSQL: anything else it got wrong, what a guard or the fence refuses to
// it, or to a trigger that it fires, included.
func translateUserSQL(err error, what string) error {
	var known *storage.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if isCatalogMissing(err) { // it names one by itself
		return &storage.Error{Code: storage.CodeInvalidSQL, Message: what, Err: withoutValues(err)}
	}
	translated := translate(err, what)
	switch class := storage.ClassOf(translated); {
	case class == storage.ClassGuarded, class == storage.ClassFenced:
		// They did their work; what is to be mended is the statement that ran into them.
		return &storage.Error{Code: storage.CodeInvalidSQL, Message: what, Err: withoutValues(sqliteError(err))}
	case primaryCode(err) == codeLocked:
		// Not somebody else, who could be waited for: the statement ran into its own connection.
		return &storage.Error{Code: storage.CodeInvalidSQL, Message: what, Err: withoutValues(err)}
	}
	if storage.CodeOf(translated) != storage.CodeInternal || slices.Contains(notTheSQL, primaryCode(err)) {
		return translated
	}
	code := storage.CodeInvalidSQL
	// VACUUM and its like say so in words only; their result is the general one.
	if primaryCode(err) == codeError && strings.Contains(err.Error(), "within a transaction") {
		code = storage.CodeNotTransactional
	}
	return &storage.Error{Code: code, Message: what, Err: withoutValues(err)}
}

// translateStep is translate for a declared step that the file refuses: a unique index over rows that are alike, a column too many. The
// SQL is ours, what it says is the user's. CodeInvalidSpec.
func translateStep(err error, what string) error {
	translated := translateUserSQL(err, what)
	if storage.CodeOf(translated) != storage.CodeInvalidSQL {
		return translated
	}
	return &storage.Error{Code: storage.CodeInvalidSpec, Message: what, Err: withoutValues(sqliteError(err))}
}

// sqliteError gives what SQLite said in a translated error, or the error itself.
func sqliteError(err error) error {
	var result *modernc.Error
	if errors.As(err, &result) {
		return result
	}
	return err
}

// extendedCode gives SQLite's result code of the error in the chain, 0 if there is none.
func extendedCode(err error) int {
	var result *modernc.Error
	if errors.As(err, &result) {
		return result.Code()
	}
	return 0
}

// primaryCode is the extended code without its details.
func primaryCode(err error) int { return extendedCode(err) & 0xff }
