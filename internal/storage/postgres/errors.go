package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// SQLSTATEs that decide something (PostgreSQL manual, Appendix A).
const (
	stateRaised        = "P0001"
	stateAssertion     = "P0004"
	stateReadOnly      = "25006"
	stateNotSupported  = "0A000"
	stateActiveTx      = "25001"
	stateTxTermination = "2D000"
	stateNoPrivilege   = "42501"
	stateNoParameter   = "42704"
	stateLockTimeout   = "55P03"
	stateCancelled     = "57014"
	stateNoDatabase    = "3D000"
	stateNoSchema      = "3F000"
	stateNoEquivalent  = "22P05"
)

const hintRight = "grant the right to the role that Syncbarrier connects as"

// codeOfState maps states that mean the same wherever they appear.
var codeOfState = map[string]storage.Code{
	stateLockTimeout: storage.CodeLockTimeout,
	"40P01":          storage.CodeDeadlock,
	"40001":          storage.CodeSerialization,
	"40003":          storage.CodeCommitUnknown,
	stateCancelled:   storage.CodeCancelled,
	"57P01":          storage.CodeConnectionLost, // the administrator ended the session or the server
	"57P02":          storage.CodeConnectionLost,
	"57P03":          storage.CodeConnectionLost,
	"57P04":          storage.CodeConnectionLost,
	"57P05":          storage.CodeConnectionLost,
	"25P03":          storage.CodeConnectionLost, // idle in transaction for too long
	"25P04":          storage.CodeConnectionLost, // transaction_timeout
	"53300":          storage.CodeConnectionLost, // too many connections
	"53100":          storage.CodeConnectionLost, // disk full: whoever's SQL meets it, it is not what is wrong
	"53200":          storage.CodeConnectionLost, // out of memory
	"58030":          storage.CodeConnectionLost, // an I/O error
	stateReadOnly:    storage.CodeReadOnly,
	stateNoDatabase:  storage.CodeInvalidSpec,
	stateNoSchema:    storage.CodeInvalidSpec,
	stateNoPrivilege: storage.CodeRightMissing,
}

// translate is the one place where what PostgreSQL and the network say becomes a *storage.Error. what says what was being
// done to what. An error that has a *storage.Error in its chain is returned as it is; nil stays nil.
func translate(err error, what string) error {
	var known *storage.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == stateNoEquivalent { // of SQL of the user's it is said otherwise
		return &storage.Error{Code: storage.CodeInvalidSpec, Message: what, Err: withoutValues(pgErr),
			Hint: "a name or key holds a letter that the encoding of this database does not have"}
	}
	if pgErr != nil {
		return translateState(pgErr, what)
	}
	code := storage.CodeInternal
	switch {
	case isConnectError(err):
		code = storage.CodeConnectionLost
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = storage.CodeCancelled
	case isNetwork(err):
		code = storage.CodeConnectionLost
	}
	return &storage.Error{Code: code, Message: what, Err: withoutDetail(err)}
}

func translateState(pgErr *pgconn.PgError, what string) error {
	if raised := raisedByUs(pgErr, what); raised != nil {
		return raised
	}
	code, ok := codeOfState[pgErr.Code]
	switch {
	case ok:
	case strings.HasPrefix(pgErr.Code, "28"):
		code = storage.CodeAuthenticationFailed
	case strings.HasPrefix(pgErr.Code, "08"):
		code = storage.CodeConnectionLost
	default:
		code = storage.CodeInternal
	}
	translated := &storage.Error{Code: code, Message: what, Err: withoutValues(pgErr)}
	if pgErr.Code == stateNoPrivilege {
		translated.Hint = hintRight
	}
	return translated
}

// translateUserSQL is translate for a statement that holds SQL of the user: what is wrong with the statement is then theirs to mend.
// CodeNotTransactional: it would end or split our transaction, or cannot run in one. CodeInvalidSQL: anything else it got wrong, what a guard
// or the fence refuses to it, or to a trigger that it fires, included.
func translateUserSQL(err error, what string) error {
	var known *storage.Error
	var pgErr *pgconn.PgError
	if err == nil || errors.As(err, &known) || !errors.As(err, &pgErr) {
		return translate(err, what)
	}
	translated := translateState(pgErr, what)
	code := storage.CodeOf(translated)
	if class := storage.ClassOf(translated); class == storage.ClassGuarded || class == storage.ClassFenced {
		return &storage.Error{Code: storage.CodeInvalidSQL, Message: what, Err: translated}
	}
	privilege := pgErr.Code == stateNoPrivilege || pgErr.Code == stateNoSchema || pgErr.Code == stateNoDatabase
	if code != storage.CodeInternal && !privilege {
		return translated
	}
	code = storage.CodeInvalidSQL
	// Transaction statements fail inside plpgsql's EXECUTE, CREATE INDEX CONCURRENTLY and its like inside any function, and COMMIT
	// in a DO block or a procedure inside an outer transaction.
	ofPlpgsql := pgErr.Code == stateNotSupported && pgErr.File == "pl_exec.c"
	if ofPlpgsql || pgErr.Code == stateActiveTx || pgErr.Code == stateTxTermination {
		code = storage.CodeNotTransactional
	}
	return &storage.Error{Code: code, Message: what, Err: withoutValues(pgErr)}
}

// translateConnect is translate for a new connection: what the server then says about parameters and rights is about the connection.
func translateConnect(err error, what string) error {
	switch state := sqlState(err); {
	case state == stateNoParameter, strings.HasPrefix(state, "22"):
		return &storage.Error{Code: storage.CodeInvalidSpec, Message: what, Err: withoutDetail(err)}
	case state == stateNoPrivilege:
		return &storage.Error{Code: storage.CodeAuthenticationFailed, Message: what, Err: withoutDetail(err), Hint: hintRight}
	case state != "":
		return translate(err, what)
	case isCleartext(err):
		return &storage.Error{Code: storage.CodeAuthenticationFailed, Message: what, Err: withoutDetail(err), Hint: hintCleartext}
	case isCertificate(err), refusedCertificate(err) != "":
		return &storage.Error{Code: storage.CodeAuthenticationFailed, Message: what, Err: withoutDetail(err)}
	}
	return translate(err, what)
}

// withoutDetail keeps what an error says and drops what it holds: the address, user and settings of a connection attempt, and what in a server's
// error can quote rows.
func withoutDetail(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return withoutValues(pgErr)
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return eachOnce(connect.Unwrap())
	}
	var broken *net.OpError
	if errors.As(err, &broken) { // its own words begin with both addresses
		return &toldError{message: broken.Err.Error(), err: err}
	}
	return withoutArguments(err)
}

// eachOnce says each thing once. The driver tries every address with and without TLS, and joins what it met by line ends: a server that is not
// there is told twice, with its address three times in each.
func eachOnce(err error) error {
	var parts []string
	for part := range strings.SplitSeq(err.Error(), "\n") {
		part = strings.TrimPrefix(part, "hostname resolving error: ")
		if _, dialled, ok := strings.Cut(part, ": dial error: "); ok {
			part = dialled // has the address too
		}
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return &toldError{message: strings.Join(parts, "; "), err: err}
}

// sqlState gives the state of the server's error in the chain, "" if there is none.
func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	var kept *serverError
	if errors.As(err, &kept) {
		return kept.state
	}
	return ""
}

// isStalePlan says that a prepared statement's result type changed under it. The driver prepares it anew the next time.
func isStalePlan(err error) bool {
	const routine = "RevalidateCachedQuery"
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code == stateNotSupported && pgErr.Routine == routine
	}
	var kept *serverError
	return errors.As(err, &kept) && kept.state == stateNotSupported && kept.routine == routine
}

func isConnectionState(state string) bool {
	return codeOfState[state] == storage.CodeConnectionLost || strings.HasPrefix(state, "08")
}

func isConnectError(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) && !errors.Is(err, context.Canceled)
}

// isCertificate says that the server's certificate is not one we trust.
func isCertificate(err error) bool {
	var verification *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError // the last two by themselves where the driver verifies (sslmode=verify-ca)
	return errors.As(err, &verification) || errors.As(err, &unknown) || errors.As(err, &invalid)
}

// refusedCertificate is what a server said by TLS of our certificate, in the words of the Go library; "" if it was not about that.
func refusedCertificate(err error) string {
	var remote *net.OpError
	if errors.As(err, &remote) && remote.Op == "remote error" && strings.Contains(remote.Err.Error(), "certificate") {
		return remote.Err.Error()
	}
	return ""
}

// isNetwork says that the connection broke. A closed transaction or connection that we use again by a defect of ours is none.
func isNetwork(err error) bool {
	var netErr net.Error
	return isSilent(err) || errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed) && !errors.Is(err, pgx.ErrTxClosed)
}
