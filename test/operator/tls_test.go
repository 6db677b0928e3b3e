package operator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// issuer signs certificates.
type issuer struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         string
}

func newIssuer(name string) issuer {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	Expect(err).NotTo(HaveOccurred())
	certificate, err := x509.ParseCertificate(der)
	Expect(err).NotTo(HaveOccurred())
	return issuer{certificate: certificate, key: key, pem: block("CERTIFICATE", der)}
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// sign gives the certificate of a user, or of a server at 127.0.0.1, and its key.
func (i issuer) sign(name string, until time.Time) (certificate, key string) {
	GinkgoHelper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, i.certificate, private.Public(), i.key)
	Expect(err).NotTo(HaveOccurred())
	encoded, err := x509.MarshalECPrivateKey(private)
	Expect(err).NotTo(HaveOccurred())
	return block("CERTIFICATE", der), block("EC PRIVATE KEY", encoded)
}

// certified is the role that the server knows by its certificate alone.
const certified = "certified"

// newEncryptedClinic is a clinic whose server takes the role certified by TLS and with a certificate, and nobody else of that name.
func newEncryptedClinic(ctx context.Context, ours issuer) (*clinic, *testdb.Server) {
	GinkgoHelper()
	server := testdb.PostgresServer(GinkgoTB(), testdb.ServerOptions{})
	c := newClinicAt(ctx, server.Database(GinkgoTB()))
	certificate, key := ours.sign("server", time.Now().Add(time.Hour))
	server.WriteFile("server.crt", []byte(certificate))
	server.WriteFile("server.key", []byte(key))
	server.WriteFile("clients.crt", []byte(ours.pem))
	server.WriteFile("pg_hba.conf", []byte("hostssl all "+certified+" 127.0.0.1/32 cert\nhost all "+certified+" 127.0.0.1/32 reject\nhost all all 127.0.0.1/32 scram-sha-256\n"))
	c.sql(ctx, `ALTER SYSTEM SET ssl_ca_file = 'clients.crt'`)
	c.sql(ctx, `ALTER SYSTEM SET ssl = on`)
	c.sql(ctx, `CREATE ROLE `+certified+` LOGIN SUPERUSER`)
	c.sql(ctx, `SELECT pg_reload_conf()`)
	Eventually(func() string { return c.text(ctx, `SELECT setting FROM pg_settings WHERE name = 'ssl'`) }).Should(Equal("on"))
	at, err := url.Parse(c.dsn)
	Expect(err).NotTo(HaveOccurred())
	at.User = url.User(certified)
	c.writeSecret(ctx, at.String())
	return c, server
}

// tlsSecret writes the Secret clinic-tls.
func (c *clinic) tlsSecret(ctx context.Context, ca, certificate, key string) {
	GinkgoHelper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "clinic-tls"},
		StringData: map[string]string{"ca.crt": ca, "tls.crt": certificate, "tls.key": key},
	}
	if err := suite.admin.Create(ctx, secret); err != nil {
		Expect(suite.admin.Update(ctx, secret)).To(Succeed())
	}
}

// encrypted is the manifest with TLS instead of a password.
func encrypted(manifest string) string {
	GinkgoHelper()
	const password, mode = "        passwordFrom: {secretKeyRef: {name: clinic-app, key: password}}\n", "        sslMode: disable\n"
	Expect(manifest).To(And(ContainSubstring(password), ContainSubstring(mode)))
	manifest = strings.Replace(manifest, password, "", 1)
	return strings.Replace(manifest, mode, `        sslMode: verify-full
      tls:
        caFrom: {secretKeyRef: {name: clinic-tls, key: ca.crt}}
        certFrom: {secretKeyRef: {name: clinic-tls, key: tls.crt}}
        keyFrom: {secretKeyRef: {name: clinic-tls, key: tls.key}}
`, 1)
}

// refused waits until the SyncSchema is not Ready, with a part of the message, and looks that no key is in it.
func (c *clinic) refused(ctx context.Context, part string) {
	GinkgoHelper()
	var ready *metav1.Condition
	Eventually(func() string {
		ready = meta.FindStatusCondition(c.schema(ctx).Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status == metav1.ConditionTrue {
			return ""
		}
		return ready.Reason + ": " + ready.Message
	}).Should(And(HavePrefix(v1alpha1.ReasonAuthenticationFailed+": "), ContainSubstring(part)), func() string { return c.story(ctx) })
	Expect(ready.Message).NotTo(ContainSubstring("PRIVATE KEY"))
}

var _ = Describe("A database that is reached by TLS", func() {
	It("is migrated and backfilled with certificates from Secrets, and one that is not trusted, or has ended, is refused by name", func(ctx context.Context) {
		ours, strange := newIssuer("ours"), newIssuer("strange")
		c, server := newEncryptedClinic(ctx, ours)
		certificate, key := ours.sign(certified, time.Now().Add(time.Hour))
		c.startOperator()

		By("refusing a server whose authority is another one")
		c.tlsSecret(ctx, strange.pem, certificate, key)
		c.apply(encrypted(c.manifest(6, "", "")))
		c.refused(ctx, "unknown authority")

		By("having the server refuse a client whose certificate another authority signed")
		other, otherKey := strange.sign(certified, time.Now().Add(time.Hour))
		c.tlsSecret(ctx, ours.pem, other, otherKey)
		c.refused(ctx, "certificate")

		By("going on once the Secret is right, the worker too")
		c.tlsSecret(ctx, ours.pem, certificate, key)
		c.becomes(ctx, "True GateOpen")
		c.apply(encrypted(c.manifest(7, lower(0), "")))
		c.becomes(ctx, "True GateOpen")
		Expect(c.number(ctx, `SELECT count(*) FROM todos WHERE title_norm = lower(title)`)).To(BeEquivalentTo(rows))
		Expect(c.jobs(ctx)).To(HaveLen(1), "the worker did it")

		By("refusing a server whose certificate has ended")
		ended, endedKey := ours.sign("server", time.Now().Add(-time.Hour))
		server.WriteFile("server.crt", []byte(ended))
		server.WriteFile("server.key", []byte(endedKey))
		c.sql(ctx, `SELECT pg_reload_conf()`)
		Eventually(func() string {
			c.sql(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, certified)
			ready := meta.FindStatusCondition(c.schema(ctx).Status.Conditions, v1alpha1.ConditionReady)
			return ready.Message
		}).Should(ContainSubstring("expired"), func() string { return c.story(ctx) })
		Expect(*c.schema(ctx).Status.GateOpen).To(BeTrue(), "what was read last stands")
		Expect(string(c.log.Contents())).NotTo(ContainSubstring("PRIVATE KEY"))
	}, SpecTimeout(6*time.Minute))
})
