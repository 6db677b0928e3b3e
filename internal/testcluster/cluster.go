package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// auditPolicy logs who asked what, without contents, once a request was
// answered, or a watch was begun. The control plane's own requests would bury
// those of a test.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver", "system:kube-controller-manager"]
- level: None
  userGroups: ["system:serviceaccounts:kube-system"]
- level: Metadata
`

// Cluster is a control plane without nodes. Its methods fail the test that
// started it if they cannot do what they say. Those that stop and start programs
// are for one goroutine.
type Cluster struct {
	t        testing.TB
	folder   string
	programs map[string]string
	guard    *guard

	authority *authority
	// host is the API server's URL, store that of etcd.
	host, store string
	// etcd, apiServer and controllers are the programs; controllers is nil until
	// StartControllers.
	etcd, apiServer, controllers *process
	admin                        *rest.Config
}

// Start starts etcd and an API server and returns once it is ready. They are
// stopped, and everything they stored is removed, when the test ends.
func Start(t testing.TB) *Cluster {
	t.Helper()
	programs, err := findPrograms("etcd", "kube-apiserver", "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "syncbarrier-testcluster-")
	if err != nil {
		t.Fatalf("make a folder for a cluster: %v", err)
	}
	c := &Cluster{t: t, folder: folder, programs: programs}
	if c.guard, err = startGuard(folder); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.stop(), c.guard.dismiss()); err != nil {
			t.Errorf("stop the cluster in %s: %v", folder, err)
		}
	})
	if err := c.startEtcd(); err != nil {
		t.Fatal(err)
	}
	if err := c.startAPIServer(); err != nil {
		t.Fatal(err)
	}
	return c
}

// stop stops the programs, those that use others first.
func (c *Cluster) stop() error {
	var failures []error
	for _, program := range []*process{c.controllers, c.apiServer, c.etcd} {
		if program != nil {
			failures = append(failures, program.kill())
		}
	}
	return errors.Join(failures...)
}

// Admin returns the configuration of a user who may do everything. It has no
// limit of requests a second on the client's side.
func (c *Cluster) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// Clientset returns a typed client of the administrator.
func (c *Cluster) Clientset() *kubernetes.Clientset {
	c.t.Helper()
	clients, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		c.t.Fatalf("make a client: %v", err)
	}
	return clients
}

// FreezeAPIServer stops the API server as SIGSTOP does: connections stay open and
// nothing is answered, until ContinueAPIServer.
func (c *Cluster) FreezeAPIServer() { c.must(c.apiServer.freeze()) }

// ContinueAPIServer lets a frozen API server go on, and returns once it is ready.
func (c *Cluster) ContinueAPIServer() {
	c.must(c.apiServer.signal(syscall.SIGCONT))
	c.must(c.apiServer.awaitReady())
}

// KillAPIServer ends the API server as SIGKILL does: connections are refused
// until RestartAPIServer. What it stored stays.
func (c *Cluster) KillAPIServer() { c.must(c.apiServer.kill()) }

// RestartAPIServer starts a killed API server again, at the same address and with
// the same keys, and returns once it is ready.
func (c *Cluster) RestartAPIServer() { c.must(c.apiServer.start()) }

func (c *Cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// startEtcd starts the store of the API server. It keeps nothing for longer than
// the test, so it may be fast instead of safe.
func (c *Cluster) startEtcd() error {
	client, err := FreePort()
	if err != nil {
		return err
	}
	peer, err := FreePort()
	if err != nil {
		return err
	}
	c.store = "http://" + address(client)
	peerURL := "http://" + address(peer)
	c.etcd = &process{
		name: "etcd", program: c.programs["etcd"], folder: c.folder,
		args: []string{
			"--data-dir=" + filepath.Join(c.folder, "etcd"),
			"--listen-client-urls=" + c.store, "--advertise-client-urls=" + c.store,
			"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL,
			"--initial-cluster=default=" + peerURL,
			"--unsafe-no-fsync", "--log-level=warn",
		},
		ready: func(ctx context.Context) error { return get(ctx, c.store+"/health") },
	}
	return c.etcd.start()
}

// startAPIServer makes the keys and starts the API server.
func (c *Cluster) startAPIServer() error {
	port, err := FreePort()
	if err != nil {
		return err
	}
	c.host = "https://" + address(port)
	if err := c.makeKeys(); err != nil {
		return fmt.Errorf("make the keys of the API server: %w", err)
	}
	if err := os.WriteFile(c.file("audit-policy.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	c.apiServer = &process{
		name: "kube-apiserver", program: c.programs["kube-apiserver"], folder: c.folder,
		args: []string{
			"--etcd-servers=" + c.store,
			"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
			"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
			"--authorization-mode=RBAC", "--client-ca-file=" + c.file("ca.crt"),
			"--tls-cert-file=" + c.file("server.crt"), "--tls-private-key-file=" + c.file("server.key"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + c.file("tokens.crt"), "--service-account-signing-key-file=" + c.file("tokens.key"),
			// There may be no controller that makes the ServiceAccounts that this plugin asks for.
			"--disable-admission-plugins=ServiceAccount",
			"--allow-privileged=true",
			"--audit-policy-file=" + c.file("audit-policy.yaml"), "--audit-log-path=" + c.auditLog(), "--audit-log-mode=blocking",
		},
		ready: c.answers,
	}
	return c.apiServer.start()
}

// makeKeys writes the keys of the servers, and sets the administrator's.
func (c *Cluster) makeKeys() error {
	made, err := newAuthority()
	if err != nil {
		return err
	}
	c.authority = made
	server, err := made.server()
	if err != nil {
		return err
	}
	tokens, err := tokenKey()
	if err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(c.file("ca.crt"), made.pem, 0o600), server.write(c.folder, "server"), tokens.write(c.folder, "tokens"))
	if err != nil {
		return err
	}
	c.admin, err = c.user("admin", "system:masters")
	if err != nil {
		return err
	}
	return c.writeKubeconfig(adminKubeconfig, c.admin)
}

// user returns the configuration of a user with a certificate.
func (c *Cluster) user(name string, groups ...string) (*rest.Config, error) {
	signed, err := c.authority.client(name, groups...)
	if err != nil {
		return nil, err
	}
	config := c.anonymous()
	config.CertData, config.KeyData = signed.certificate, signed.key
	return config, nil
}

// anonymous returns the configuration of nobody yet.
func (c *Cluster) anonymous() *rest.Config {
	return &rest.Config{
		Host: c.host, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem},
	}
}

// answers returns nil once the API server says that it is ready.
func (c *Cluster) answers(ctx context.Context) error {
	config := c.Admin()
	config.Timeout = 5 * time.Second
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return clients.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func (c *Cluster) file(name string) string { return filepath.Join(c.folder, name) }
