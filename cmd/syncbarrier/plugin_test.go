package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// kubectl finds a program called kubectl-syncbarrier on PATH and makes `kubectl syncbarrier` of it. Here the program is this test binary.
func TestTheProgramIsAPluginOfKubectl(t *testing.T) {
	cluster := testcluster.Start(t)
	cluster.InstallCRDs()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.Symlink(program, filepath.Join(folder, "kubectl-syncbarrier")); err != nil {
		t.Fatal(err)
	}
	kubectl := func(arguments ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), cluster.KubectlPath(), append([]string{"syncbarrier"}, arguments...)...)
		command.Env = append(os.Environ(),
			asProgram+"=1", "KUBECONFIG="+cluster.AdminKubeconfig(), "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"),
			"SYNCBARRIER_DATABASE=sqlite:"+filepath.Join(folder, "not-asked.db"),
		)
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl syncbarrier %s: %v\n%s", strings.Join(arguments, " "), err, output)
		}
		return string(output)
	}
	if got := kubectl("status"); !strings.Contains(got, "no SyncSchemas in namespace default") {
		t.Errorf("kubectl syncbarrier status says %q", got)
	}
	if help := kubectl("approve", "--help"); !strings.Contains(help, "kubectl syncbarrier approve NAME [flags]") {
		t.Errorf("the help does not say how it is called by kubectl:\n%s", help)
	}
	manifest, err := os.ReadFile("../../config/samples/syncschema.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Kubectl("", "create", "namespace", "shop"); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Kubectl(string(manifest), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	kubectl("suspend", "clinic", "-n", "shop")
	if got := kubectl("status", "clinic", "-n", "shop"); !strings.Contains(got, "suspended yes") {
		t.Errorf("after kubectl syncbarrier suspend, status says:\n%s", got)
	}
}
