package kinds

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// what the runbook's example is about, beside the sample SyncSchema.
const example = `
{apiVersion: v1, kind: Secret, metadata: {name: clinic-app, namespace: shop}, stringData: {uri: "postgres://app@clinic-rw/clinic"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: clinic, namespace: shop}
spec:
  selector: {matchLabels: {app: clinic}}
  template:
    metadata: {labels: {app: clinic}}
    spec: {containers: [{name: clinic, image: "clinic:7"}]}
---
{apiVersion: v1, kind: Pod, metadata: {name: clinic-6f9c7d-abcde, namespace: shop}, spec: {containers: [{name: clinic, image: "clinic:7"}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: clinic-name-search-1c2d3e4f-1, namespace: shop}
spec:
  suspend: true
  template: {spec: {restartPolicy: Never, containers: [{name: worker, image: "syncbarrier:dev"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: clinic-name-search-0-abcde, namespace: shop}, spec: {containers: [{name: worker, image: "syncbarrier:dev"}]}}
`

// runbook runs every command of docs/runbook.md that calls kubectl, by the shell, as who follows it would. Those of our own plugin are
// checked where the program is (internal/cli). Logs need a kubelet.
func runbook(t *testing.T, cluster *testcluster.Cluster) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	sample, err := os.ReadFile("../../config/samples/syncschema.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The rights of the operator, which a command asks for.
	kubectl(t, cluster, "{apiVersion: v1, kind: Namespace, metadata: {name: syncbarrier-system}}", "apply", "-f", "-")
	kubectl(t, cluster, "", "apply", "-k", "config/rbac")
	fixtures := func() { kubectl(t, cluster, example+"---\n"+string(sample), "apply", "-f", "-") }
	fixtures()
	ran := 0
	for _, block := range regexp.MustCompile("(?ms)^```\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		for _, command := range strings.Split(strings.ReplaceAll(block[1], "\\\n", " "), "\n") {
			if !strings.Contains(command, "kubectl ") || strings.HasPrefix(command, "kubectl syncbarrier ") || strings.HasPrefix(command, "kubectl logs ") {
				continue
			}
			ran++
			shell := exec.CommandContext(t.Context(), "bash", "-eo", "pipefail", "-c", command)
			shell.Env = append(os.Environ(), "KUBECONFIG="+cluster.AdminKubeconfig(),
				"PATH="+filepath.Dir(cluster.KubectlPath())+string(os.PathListSeparator)+os.Getenv("PATH"))
			if output, err := shell.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", command, err, output)
			}
			if strings.Contains(command, " delete ") {
				fixtures() // a later command needs it
			}
		}
	}
	if ran < 15 {
		t.Errorf("ran %d commands, so this test looks at the wrong place", ran)
	}
}
