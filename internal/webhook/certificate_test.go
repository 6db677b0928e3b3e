package webhook

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"

	"github.com/syncbarrier/syncbarrier/internal/testforeign"
)

// TestAnAlertFiresBeforeTheCertificateEnds takes what the server exports of a certificate that it was given, and asks Prometheus at two times.
func TestAnAlertFiresBeforeTheCertificateEnds(t *testing.T) {
	now := time.Now()
	end := now.Add(100 * 24 * time.Hour)
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	maker := &rotator.CertRotator{CAName: "authority", DNSName: "syncbarrier-webhook.syncbarrier-system.svc", ExtKeyUsages: &usages}
	authority, err := maker.CreateCACert(now, end)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := maker.CreateCertPEM(authority, now, end)
	if err != nil {
		t.Fatal(err)
	}
	server := &Server{}
	if err := server.take(&corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key}}, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(expiry, prometheus.NewGauge(prometheus.GaugeOpts{Name: "syncbarrier_database_pools"})) // a manager that is there
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
			t.Fatal(err)
		}
	}
	scenario := func(name string, begin time.Time) testforeign.Scenario {
		return testforeign.Scenario{Name: name, Begin: begin, Minutes: 120, Pages: []testforeign.Page{{Text: page.String()}}}
	}
	fired := testforeign.Alerts(t, scenario("new", now), scenario("old", end.Add(-29*24*time.Hour)))
	if len(fired["new"]) > 0 {
		t.Errorf("a new certificate: %+v", fired["new"])
	}
	if old := fired["old"]; len(old) != 1 || old[0].Alert != "SyncbarrierWebhookCertificate" {
		t.Errorf("29 days before its end: %+v", old)
	} else {
		t.Log(old[0].Annotations["summary"])
	}
}
