package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// kubectlTimeout bounds one call of kubectl.
const kubectlTimeout = 2 * time.Minute

// Kubectl runs the real kubectl as the administrator, in the folder of this
// checkout, with stdin, and returns what it printed.
func (c *Cluster) Kubectl(stdin string, args ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), kubectlTimeout)
	defer cancel()
	kubectl := exec.CommandContext(ctx, c.programs["kubectl"], append([]string{"--kubeconfig", c.AdminKubeconfig()}, args...)...)
	kubectl.Dir = root
	kubectl.Stdin = strings.NewReader(stdin)
	var output, problems bytes.Buffer
	kubectl.Stdout, kubectl.Stderr = &output, &problems
	if err := kubectl.Run(); err != nil {
		return output.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(problems.String()))
	}
	return output.String(), nil
}

// KubectlFolder returns the folder of the real kubectl, for the search path of
// programs that run it.
func (c *Cluster) KubectlFolder() string { return filepath.Dir(c.programs["kubectl"]) }

// InstallCRDs applies the project's CustomResourceDefinitions and returns once
// the API server serves them.
func (c *Cluster) InstallCRDs() {
	c.t.Helper()
	c.kubectl("apply", "--server-side", "-f", "config/crd/bases")
	c.AwaitCRDs()
}

// AwaitCRDs returns once the API server serves our CustomResourceDefinitions,
// whoever applied them. kubectl wait fails on a definition that has no status yet,
// so what is served is asked for.
func (c *Cluster) AwaitCRDs() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		served, err := c.Kubectl("", "get", "--raw", "/apis/syncbarrier.dev/v1alpha1")
		if err == nil && strings.Contains(served, `"syncschemas/status"`) && strings.Contains(served, `"backfillcheckpoints/status"`) {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("the API server does not serve the custom resources: %v: %s", err, served)
		case <-ticker.C:
		}
	}
}

// InstallOperator applies everything of the operator but its Deployment: the
// CustomResourceDefinitions, its namespace, its ServiceAccount and its roles.
func (c *Cluster) InstallOperator() {
	c.t.Helper()
	c.InstallCRDs()
	c.kubectl("apply", "--server-side", "-f", "config/manager/namespace.yaml")
	c.kubectl("apply", "--server-side", "-k", "config/rbac")
}

func (c *Cluster) kubectl(args ...string) {
	c.t.Helper()
	if _, err := c.Kubectl("", args...); err != nil {
		c.t.Fatal(err)
	}
}

// KubectlPath returns the path of kubectl, for tests that call it in their own
// way, such as with a plugin.
func (c *Cluster) KubectlPath() string { return c.programs["kubectl"] }
