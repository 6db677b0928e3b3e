package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// expiry is what an alert looks at: the manager renews a certificate long before it ends.
var expiry = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "syncbarrier_webhook_certificate_expiry_timestamp_seconds",
	Help: "When the certificate of the webhook ends, in seconds since 1970. Absent where no webhook is served.",
})

// Collectors are the metrics of this package; docs/metrics.md is made of them.
func Collectors() []prometheus.Collector { return []prometheus.Collector{expiry} }

// keyPair is the certificate that the server answers with.
type keyPair struct {
	served atomic.Pointer[tls.Certificate]
}

func (p *keyPair) current() (*tls.Certificate, error) {
	if pair := p.served.Load(); pair != nil {
		return pair, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// follow serves the certificate that the Secret has, at every moment, and returns once there is one, or ctx has ended. It is taken from
// the Secret and not from a volume, which the kubelet brings up to date a minute later or more.
func (s *Server) follow(ctx context.Context, name types.NamespacedName, folder string) error {
	clients, err := kubernetes.NewForConfig(s.mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("make a client for Secret %s: %w", name, err)
	}
	first := make(chan struct{})
	had := false // the handler is called by one goroutine
	take := func(object any) {
		secret, ok := object.(*corev1.Secret)
		if !ok || len(secret.Data[corev1.TLSCertKey]) == 0 {
			return // shipped empty: the certificate is about to be made
		}
		if err := s.take(secret, folder); err != nil {
			s.mgr.GetLogger().Error(err, "the webhook keeps the certificate that it has")
			return
		}
		if !had {
			had = true
			metrics.Registry.MustRegister(expiry)
			close(first)
		}
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(clients.CoreV1().RESTClient(), "secrets", name.Namespace,
			fields.OneTermEqualSelector("metadata.name", name.Name)),
		ObjectType: &corev1.Secret{},
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    take,
			UpdateFunc: func(_, object any) { take(object) },
		},
	})
	go informer.RunWithContext(ctx)
	select {
	case <-first:
	case <-ctx.Done():
	}
	return nil
}

// take serves the Secret's certificate from now on.
func (s *Server) take(secret *corev1.Secret, folder string) error {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("read the certificate in Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return fmt.Errorf("read the certificate in Secret %s/%s: %w", secret.Namespace, secret.Name, err)
		}
	}
	s.pair.served.Store(&pair)
	expiry.Set(float64(pair.Leaf.NotAfter.Unix()))
	// The rotator counts the certificate as served once this file is there.
	if err := os.WriteFile(filepath.Join(folder, corev1.TLSCertKey), secret.Data[corev1.TLSCertKey], 0o600); err != nil {
		return fmt.Errorf("note that there is a certificate: %w", err)
	}
	return nil
}
