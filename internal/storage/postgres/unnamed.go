package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// A connection whose address comes from Secrets is called by a name, and why it was not made is said in words of our own: those of the resolver,
// the driver and the server name host, port, user and database, and whoever says which key of which Secret they are would read it back
// (docs/decisions/0011-secrets-are-used-not-shown.md).

// withoutNames says why a connection was not made, each reason once, without a word of where it was to go.
func withoutNames(err error) error {
	return &toldError{message: strings.Join(reasons(err), "; "), err: err}
}

// reasons looks into each of the attempts that the driver made.
func reasons(err error) []string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		joined, ok := inner.(interface{ Unwrap() []error })
		if !ok {
			continue
		}
		var all []string
		for _, each := range joined.Unwrap() {
			for _, reason := range reasons(each) {
				if !slices.Contains(all, reason) {
					all = append(all, reason)
				}
			}
		}
		return all
	}
	return []string{reason(err)}
}

// reason is that of one attempt.
func reason(err error) string {
	var pgErr *pgconn.PgError
	var lookup *net.DNSError
	var number syscall.Errno
	switch {
	case errors.As(err, &pgErr):
		return whyRefused(pgErr.Code)
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return "its host is not known"
	case errors.As(err, &lookup):
		return "its host could not be looked up"
	case isCertificate(err):
		return certificateReason(err)
	case refusedCertificate(err) != "":
		return "the server refuses our certificate: " + refusedCertificate(err)
	case isCleartext(err):
		return "the server asks for the password in clear text"
	case errors.As(err, &number):
		return number.Error()
	case errors.Is(err, context.Canceled):
		return context.Canceled.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the server closed the connection"
	}
	return otherReason(err)
}

// refusals are what a server says when it does not let a connection in, by state (PostgreSQL manual, Appendix A).
var refusals = map[string]string{
	"28P01":          "the server does not take this user and password",
	"28000":          "the server does not let this user in from here, or the role may not log in",
	stateNoDatabase:  "the server has no such database",
	stateNoPrivilege: "the role may not connect to the database",
	stateNoParameter: "the server does not know a parameter of the connection string",
	"22023":          "the server does not take the value of a parameter of the connection string",
	"53300":          "the server has no connection left",
	"57P03":          "the server is starting, stopping or recovering",
}

func whyRefused(state string) string {
	text, known := refusals[state]
	if !known {
		text = "the server refuses the connection"
	}
	if len(state) != 5 || strings.ContainsFunc(state, func(r rune) bool { return (r < '0' || r > '9') && (r < 'A' || r > 'Z') }) {
		return text // whatever answers, it is no PostgreSQL
	}
	return fmt.Sprintf("%s (SQLSTATE %s)", text, state)
}

func certificateReason(err error) string {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &name):
		return "the server's certificate is for another name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired, or is not valid yet"
	case errors.As(err, &unknown):
		return "the server's certificate is signed by an unknown authority"
	}
	return "the server's certificate is not trusted"
}

// otherReason knows what the driver has no type for.
func otherReason(err error) string {
	text := err.Error()
	var alert tls.AlertError
	var record tls.RecordHeaderError
	switch {
	case strings.Contains(text, "server refused TLS connection"):
		return "the server takes no TLS"
	case errors.As(err, &alert), errors.As(err, &record), strings.Contains(text, "tls error"):
		return "TLS with the server failed"
	case strings.Contains(text, "failed SASL auth"):
		return "the server and the client do not agree on the password"
	case strings.Contains(text, "sslcertmode check failed"), strings.Contains(text, "channel binding check failed"), strings.Contains(text, "require_auth check failed"):
		return "the server asks for another way to log in than the connection string allows"
	}
	return "the connection could not be made"
}

// isCleartext says that the server asked for the password in clear text and did not get it.
func isCleartext(err error) bool {
	return err != nil && strings.Contains(err.Error(), "server requested password authentication")
}

const hintCleartext = "a password goes out in clear text only to a server whose certificate is verified with a CA that was given; " +
	"give the CA, use scram-sha-256, or say require_auth=password in the connection string"

// connectError is the error of a new connection to this database.
func (c *connections) connectError(err error, what string) error {
	translated := translateConnect(err, what+": connect to "+c.address)
	var refused *storage.Error
	if !c.unnamed || !errors.As(translated, &refused) {
		return translated
	}
	return &storage.Error{Code: refused.Code, Message: what + ": connect to " + c.address, Hint: refused.Hint, Err: withoutNames(err)}
}
