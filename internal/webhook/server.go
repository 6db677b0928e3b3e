package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Paths that the webhook configurations of config/webhook name.
const (
	pathPods      = "/mutate-pods"
	pathDecisions = "/mutate-syncschemas"
	pathApprovals = "/validate-syncschemas"
)

// lookAgain is the pause before what is not there yet is looked for again.
const lookAgain = 2 * time.Second

// Options say how the webhook is served.
type Options struct {
	// Address is HOST:PORT to listen at; the host may be empty.
	Address string
	// Namespace is that of the manager, in which the Service and the Secret of the certificate are.
	Namespace string
	// StartGate says that this installation takes start gates away again (config/start-gate).
	StartGate bool
}

// Server serves the webhooks of this package, on every replica, with a certificate that it makes, keeps in a Secret and rotates (package
// cert-controller). What else the manager does never waits for it.
//
// Names are not configured but found: the webhook configurations are those that point at a Service in the manager's namespace, and the Secret
// has the Service's name. So an installation under other names needs no other options.
type Server struct {
	mgr     ctrl.Manager
	options Options
	host    string
	port    int
	pair    keyPair
	mu      sync.Mutex
	// absent says that no configuration points here, so that nobody can miss the webhook.
	absent bool
	// started answers once the server does, nil before; written is closed once the configurations have the caBundle.
	started func(*http.Request) error
	written <-chan struct{}
}

// Add has the manager serve the webhooks. It is ready only once they are, or if no webhook configuration points at it: a person may have taken
// that away, and what else the manager does is wanted all the same.
func Add(mgr ctrl.Manager, o Options) error {
	host, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		return fmt.Errorf("serve the webhook at %s: %w", o.Address, err)
	}
	s := &Server{mgr: mgr, options: o, host: host}
	if s.port, err = strconv.Atoi(port); err != nil || s.port < 1 {
		return fmt.Errorf("serve the webhook at %s: %q is no port", o.Address, port)
	}
	return errors.Join(mgr.Add(s), mgr.AddReadyzCheck("webhook", s.check))
}

// NeedLeaderElection is false: every replica serves.
func (*Server) NeedLeaderElection() bool { return false }

func (s *Server) check(request *http.Request) error {
	s.mu.Lock()
	absent, started, written := s.absent, s.started, s.written
	s.mu.Unlock()
	if absent {
		return nil
	}
	if started == nil {
		return errors.New("the webhook waits for its Secret or its certificate")
	}
	select {
	case <-written:
		return started(request)
	default:
		return errors.New("the webhook's configuration does not have the caBundle yet")
	}
}

// Start serves until ctx ends, or until it fails.
func (s *Server) Start(ctx context.Context) error {
	names := s.find(ctx)
	if ctx.Err() != nil {
		return nil // a manager that ends has nothing to serve
	}
	folder, err := os.MkdirTemp("", "syncbarrier-webhook-")
	if err != nil {
		return fmt.Errorf("make a folder for the certificate: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }() // it holds the certificate and no key
	secret := types.NamespacedName{Namespace: s.options.Namespace, Name: names.service}
	keeper := s.rotator(names, secret, folder)
	if err := rotator.AddRotator(s.mgr, keeper); err != nil {
		return fmt.Errorf("keep the certificate in Secret %s: %w", secret, err)
	}
	if err := s.follow(ctx, secret, folder); err != nil || ctx.Err() != nil {
		return err
	}
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host: s.host, Port: s.port,
		TLSOpts: []func(*tls.Config){func(config *tls.Config) {
			config.MinVersion = tls.VersionTLS12
			config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.pair.current() }
		}},
	})
	server.Register(pathPods, &admission.Webhook{Handler: NewPodHandler(s.mgr.GetScheme(), s.options.StartGate)})
	server.Register(pathDecisions, &admission.Webhook{Handler: DecisionRecorder{}})
	server.Register(pathApprovals, &admission.Webhook{Handler: ApprovalChecker{Client: s.mgr.GetClient()}})
	s.mu.Lock()
	s.started, s.written = server.StartedChecker(), keeper.IsReady
	s.mu.Unlock()
	return server.Start(ctx)
}

// rotator keeps certificate and caBundles. The API server asks for the name of the Service.
func (s *Server) rotator(names found, secret types.NamespacedName, folder string) *rotator.CertRotator {
	name := fmt.Sprintf("%s.%s.svc", names.service, s.options.Namespace)
	return &rotator.CertRotator{
		SecretKey: secret, CertDir: folder, CAName: "syncbarrier-webhook-ca", CAOrganization: "syncbarrier",
		DNSName: name, ExtraDNSNames: []string{name + ".cluster.local"},
		IsReady: make(chan struct{}), Webhooks: names.webhooks, FieldOwner: "syncbarrier-webhook",
		// Every replica has to have it, and one that restarts for each new certificate would be away just then.
		RequireLeaderElection: false, RestartOnSecretRefresh: false,
		ControllerName: "webhook-certificate",
	}
}
