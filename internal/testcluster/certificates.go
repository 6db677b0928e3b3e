package testcluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of one cluster.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	// pem is the certificate as clients get it.
	pem []byte
}

// pair is a certificate and its key, PEM.
type pair struct {
	certificate, key []byte
}

// newAuthority makes an authority that lives for a day.
func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := lifetime(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "syncbarrier-testcluster"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{certificate: certificate, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// server returns a certificate for 127.0.0.1.
func (a *authority) server() (pair, error) {
	return a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// client returns a certificate that makes its holder a user of some groups.
func (a *authority) client(user string, groups ...string) (pair, error) {
	return a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) sign(template *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, lifetime(template), a.certificate, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	encoded, err := encodeKey(key)
	return pair{certificate: encode("CERTIFICATE", der), key: encoded}, err
}

// tokenKey returns the private and the public key of ServiceAccount tokens.
func tokenKey() (pair, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return pair{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return pair{}, err
	}
	encoded, err := encodeKey(key)
	return pair{certificate: encode("PUBLIC KEY", public), key: encoded}, err
}

// lifetime makes a certificate valid for a day from a minute ago.
func lifetime(template *x509.Certificate) *x509.Certificate {
	now := time.Now()
	template.NotBefore = now.Add(-time.Minute)
	template.NotAfter = now.Add(24 * time.Hour)
	return template
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return encode("PRIVATE KEY", der), err
}

// write saves a pair as NAME.crt and NAME.key, readable by this user alone.
func (p pair) write(folder, name string) error {
	if err := os.WriteFile(filepath.Join(folder, name+".crt"), p.certificate, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name+".key"), p.key, 0o600)
}
