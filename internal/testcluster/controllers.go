package testcluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// workloadControllers are those of kube-controller-manager that StartControllers
// runs: workloads, what follows from owner references and deletion, and what is
// made in every new namespace.
var workloadControllers = []string{
	"job-controller", "deployment-controller", "replicaset-controller", "statefulset-controller", "disruption-controller",
	"garbage-collector-controller", "namespace-controller", "serviceaccount-controller", "ttl-after-finished-controller",
}

// StartControllers starts kube-controller-manager with the controllers of
// workloads, and returns once they run. Nothing runs the pods that they make:
// a test says in the pods' status what became of them.
func (c *Cluster) StartControllers() {
	c.t.Helper()
	if c.controllers != nil {
		return
	}
	if err := c.startControllers(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) startControllers() error {
	found, err := findPrograms("kube-controller-manager")
	if err != nil {
		return err
	}
	user, err := c.user("system:kube-controller-manager")
	if err != nil {
		return err
	}
	const kubeconfig = "controllers.kubeconfig"
	if err := c.writeKubeconfig(kubeconfig, user); err != nil {
		return err
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	c.controllers = &process{
		name: "kube-controller-manager", program: found["kube-controller-manager"], folder: c.folder,
		args: []string{
			"--kubeconfig=" + c.file(kubeconfig), "--leader-elect=false", "--use-service-account-credentials",
			"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--cert-dir=" + c.folder,
			"--controllers=" + strings.Join(workloadControllers, ","),
			"--service-account-private-key-file=" + c.file("tokens.key"), "--root-ca-file=" + c.file("ca.crt"),
		},
		ready: func(ctx context.Context) error { return get(ctx, "https://"+address(port)+"/healthz") },
	}
	return c.controllers.start()
}

// get asks for a page that says whether a program of this cluster is well.
func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	// Some of these programs sign their certificate themselves, and only whether
	// they are well is asked.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}
