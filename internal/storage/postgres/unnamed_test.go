package postgres

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// impostor is a server that asks whoever comes for something, and keeps every answer.
type impostor struct {
	address string
	heard   chan string // what clients sent in answer, "" of one that went away instead
	serving *sync.WaitGroup
}

// newImpostor listens until the test ends. asks are what it says to a client that begins; with a configuration it speaks TLS to whoever wants.
func newImpostor(t *testing.T, config *tls.Config, asks ...pgproto3.BackendMessage) impostor {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	i := impostor{address: listener.Addr().String(), heard: make(chan string, 100), serving: &sync.WaitGroup{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			i.serving.Go(func() {
				i.heard <- serveImpostor(conn, config, asks)
				_ = conn.Close()
			})
		}
	}()
	return i
}

func serveImpostor(conn net.Conn, config *tls.Config, asks []pgproto3.BackendMessage) string {
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return ""
	}
	backend := pgproto3.NewBackend(conn, conn)
	for {
		message, err := backend.ReceiveStartupMessage()
		if err != nil {
			return ""
		}
		if _, ok := message.(*pgproto3.SSLRequest); !ok {
			break
		}
		answer := byte('S')
		if config == nil {
			answer = 'N'
		}
		if _, err := conn.Write([]byte{answer}); err != nil {
			return ""
		}
		if config != nil {
			secure := tls.Server(conn, config)
			if secure.Handshake() != nil {
				_, _ = io.Copy(io.Discard, conn) // or what was said last would be lost with what was not read
				return ""
			}
			backend = pgproto3.NewBackend(secure, secure)
		}
	}
	for _, ask := range asks {
		backend.Send(ask)
	}
	if backend.Flush() != nil || backend.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
		return ""
	}
	message, err := backend.Receive()
	if password, ok := message.(*pgproto3.PasswordMessage); ok && err == nil {
		return password.Password
	}
	return ""
}

// newCertificate makes a certificate for the address 127.0.0.1, signed by itself, and the file of a CA that is it.
func newCertificate(t *testing.T) (*tls.Config, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "impostor"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, file
}

// TestAPasswordGoesOutInClearTextToAKnownServerAlone: a server that anybody put up asks for the password as it is.
func TestAPasswordGoesOutInClearTextToAKnownServerAlone(t *testing.T) {
	certificate, ca := newCertificate(t)
	plain := newImpostor(t, nil, &pgproto3.AuthenticationCleartextPassword{})
	secure := newImpostor(t, certificate, &pgproto3.AuthenticationCleartextPassword{})
	for _, c := range []struct {
		name       string
		of         impostor
		parameters string
		ca         string
		told       bool
	}{
		{"no TLS", plain, "sslmode=disable", "", false},
		{"the driver's default", plain, "", "", false},
		{"the driver's default, with TLS", secure, "", "", false},
		{"any certificate", secure, "sslmode=require", "", false},
		{"a CA that is not asked", plain, "sslmode=disable", ca, false},
		{"a method that is not his", plain, "sslmode=disable&require_auth=scram-sha-256", "", false},
		{"the CA that was given", secure, "sslmode=verify-full", ca, true},
		{"the CA, and nothing of a mode", secure, "", ca, true},
		{"the CA, whatever the name", secure, "sslmode=verify-ca", ca, true},
		{"the CA, by the older word", secure, "sslmode=require", ca, true},
		{"the address's own word", plain, "sslmode=disable&require_auth=password", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(testContext(t), Config{URL: "postgres://app:S3CRET@" + c.of.address + "/app?" + c.parameters, TLSCA: c.ca})
			if err == nil {
				t.Fatal("it was opened")
			}
			if heard := c.of.hear(t); (heard == "S3CRET") != c.told {
				t.Errorf("it heard %q; told: %v; %v", heard, c.told, err)
			}
			if asked := strings.Contains(err.Error(), "require_auth=password"); asked == c.told && !strings.Contains(c.parameters, "require_auth") {
				t.Errorf("error %v", err)
			}
			if !c.told {
				expectCode(t, err, storage.CodeAuthenticationFailed)
			}
		})
	}
	t.Run("public authorities", func(t *testing.T) {
		config, _, err := poolConfigFor(Config{URL: "postgres://app:S3CRET@db.example.com/app?sslmode=verify-full"})
		if err != nil || config.ConnConfig.RequireAuth != "!password" {
			t.Errorf("anybody has a certificate of theirs: require_auth is %q, %v", config.ConnConfig.RequireAuth, err)
		}
	})
}

// hear gives what it was told by a client that is done, on all its connections.
func (i impostor) hear(t *testing.T) (all string) {
	t.Helper()
	i.serving.Wait()
	if len(i.heard) == 0 {
		t.Fatal("nobody came")
	}
	for len(i.heard) > 0 {
		all += <-i.heard
	}
	return all
}

// TestWhyAConnectionIsNotMadeIsSaidWithoutAWordOfItsAddress puts a marker into each part of an address that has a name of its own, as Secrets
// may hold it, and goes through what can go wrong.
func TestWhyAConnectionIsNotMadeIsSaidWithoutAWordOfItsAddress(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	server := mustURL(t, dsn)
	outsider := testdb.Role(t, dsn, "outsider")
	admin.run("REVOKE CONNECT ON DATABASE " + quoteIdentifier(value[string](admin, "SELECT current_database()")) + " FROM PUBLIC")
	certificate, ca := newCertificate(t)
	secure := newImpostor(t, certificate, &pgproto3.AuthenticationCleartextPassword{})
	_, otherCA := newCertificate(t)
	demanding, demandingCA := newCertificate(t)
	demanding.ClientAuth = tls.RequireAnyClientCert
	demands := newImpostor(t, demanding)
	says := func(state, message string) string {
		return newImpostor(t, nil, &pgproto3.ErrorResponse{Severity: "FATAL", Code: state, Message: message, Detail: "S3CRET"}).address
	}
	const off = "?sslmode=disable"
	for _, c := range []struct {
		name, url, ca string
		code          storage.Code
		want          string
	}{
		{"password", changed(t, dsn, func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "S3CRET") }), "", storage.CodeAuthenticationFailed, "28P01"},
		{"user", changed(t, dsn, func(u *url.URL) { u.User = url.UserPassword("S3CRET", "S3CRET") }), "", storage.CodeAuthenticationFailed, "28P01"},
		{"database", changed(t, dsn, func(u *url.URL) { u.Path = "/S3CRET" }), "", storage.CodeInvalidSpec, "3D000"},
		{"no right to connect", outsider, "", storage.CodeAuthenticationFailed, "may not connect to the database (SQLSTATE 42501)"},
		{"pg_hba.conf", "postgres://S3CRET:p@" + says("28000", `no pg_hba.conf entry for host "10.0.0.1", user "S3CRET", database "S3CRET", no encryption`) + "/S3CRET" + off, "",
			storage.CodeAuthenticationFailed, "28000"},
		{"a pooler", "postgres://S3CRET:p@" + says("08P01", "no such database: S3CRET") + "/S3CRET" + off, "", storage.CodeConnectionLost, "08P01"},
		{"a server's odd state", "postgres://u:p@" + says("S3CRET", "S3CRET") + "/app" + off, "", storage.CodeInternal, "refuses the connection"},
		{"a code of ours", "postgres://u:p@" + says("P0001", "sync.storage.marker_guard") + "/app" + off, "", storage.CodeMarkerGuard, "refuses the connection"},
		{"host", "postgres://u:p@S3CRET.invalid/app", "", storage.CodeConnectionLost, "host"},
		{"several hosts", "postgres://u:p@S3CRET.invalid,127.0.0.1:1/app" + off, "", storage.CodeConnectionLost, "connection refused"},
		{"port", "postgres://u:p@127.0.0.1:1/app" + off, "", storage.CodeConnectionLost, "connection refused"},
		{"a name that the certificate is not for", "postgres://u:p@" + strings.Replace(secure.address, "127.0.0.1", "localhost", 1) + "/app?sslmode=verify-full", ca,
			storage.CodeAuthenticationFailed, "for another name"},
		{"an authority that is not trusted", "postgres://u:p@" + secure.address + "/app?sslmode=verify-full", otherCA, storage.CodeAuthenticationFailed, "unknown authority"},
		{"the same without the name", "postgres://u:p@" + secure.address + "/app?sslmode=verify-ca", otherCA, storage.CodeAuthenticationFailed, "unknown authority"},
		{"a certificate that is missing", "postgres://u:p@" + demands.address + "/app?sslmode=verify-full", demandingCA, storage.CodeAuthenticationFailed,
			"refuses our certificate: tls: certificate required"},
		{"no TLS there", changed(t, dsn, func(u *url.URL) { u.RawQuery = "sslmode=require" }), "", storage.CodeConnectionLost, "takes no TLS"},
		{"clear text", "postgres://u:p@" + secure.address + "/app?sslmode=require", "", storage.CodeAuthenticationFailed, "clear text"},
		{"another method", "postgres://u:p@" + secure.address + "/app?require_auth=md5", "", storage.CodeAuthenticationFailed, "clear text"},
		{"a parameter", changed(t, dsn, func(u *url.URL) { u.RawQuery += "&S3CRET=S3CRET" }), "", storage.CodeInvalidSpec, "42704"},
		{"a parameter's value", changed(t, dsn, func(u *url.URL) { u.RawQuery += "&datestyle=S3CRET" }), "", storage.CodeInvalidSpec, "22023"},
		{"a driver's setting", changed(t, dsn, func(u *url.URL) { u.RawQuery += "&connect_timeout=S3CRET" }), "", storage.CodeInvalidSpec, "settings"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store, err := Open(testContext(t), Config{URL: c.url, TLSCA: c.ca, Name: "the database of Secret x"})
			if err == nil {
				store.Close()
				t.Fatal("it was opened")
			}
			expectCode(t, err, c.code)
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			for _, part := range []string{"S3CRET", "s3cret", "127.0.0.1", "localhost", ":1:", server.User.Username(), strings.TrimPrefix(server.Path, "/")} {
				if strings.Contains(err.Error(), part) {
					t.Errorf("%v: it says %q", err, part)
				}
			}
		})
	}
}

func TestADatabaseWithANameIsCalledByItInEveryMessage(t *testing.T) {
	dsn := testdb.Postgres(t)
	config := Config{URL: dsn, Name: "the database of Secret x", MaxConnections: 1}
	store := openStore(t, config)
	config.Schema = "nothing"
	_, noSchema := Open(testContext(t), config)
	ctx, cancel := context.WithCancelCause(testContext(t))
	cancel(errors.New("over"))
	_, cancelled := store.Identity(ctx)
	for name, err := range map[string]error{"no schema": noSchema, "cancelled": cancelled} {
		if err == nil || !strings.Contains(err.Error(), config.Name) || strings.Contains(err.Error(), mustURL(t, dsn).Host) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
