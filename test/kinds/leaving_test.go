package kinds

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// docs/uninstall.md says: the operator goes with everything of it that is not an object of a user, and nothing stands in the way of
// pods afterwards.
func TestLeavingTakesTheOperatorAndLeavesTheObjects(t *testing.T) {
	cluster := testcluster.Start(t)
	cluster.StartControllers() // they finish the deletion of the operator's namespace
	kubectl(t, cluster, "", "apply", "--server-side", "-k", "config/start-gate")
	cluster.AwaitCRDs()
	kubectl(t, cluster, "", "create", "namespace", "shop")
	sample, err := os.ReadFile("../../config/samples/syncschema.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, cluster, string(sample), "apply", "-f", "-")
	const ours = "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings," +
		"clusterroles,clusterrolebindings"
	if before := kubectl(t, cluster, "", "get", ours, "-l", "app.kubernetes.io/name=syncbarrier", "-o", "name"); before == "" {
		t.Fatal("the operator brought nothing that is the whole cluster's, so this test shows nothing")
	}
	gated := `{apiVersion: v1, kind: Pod, metadata: {name: gated, namespace: shop, labels: {syncbarrier.dev/gate: enabled}},
		spec: {containers: [{name: clinic, image: "clinic:7"}]}}`
	if _, err := cluster.Kubectl(gated, "create", "-f", "-"); err == nil {
		t.Fatal("a pod that asks for the gate was created though nobody answers the webhook, so this test shows nothing")
	}

	undeploy := exec.CommandContext(t.Context(), "make", "undeploy")
	undeploy.Dir = "../.."
	undeploy.Env = append(os.Environ(), "KUBECONFIG="+cluster.AdminKubeconfig(),
		"PATH="+filepath.Dir(cluster.KubectlPath())+string(os.PathListSeparator)+os.Getenv("PATH"))
	if output, err := undeploy.CombinedOutput(); err != nil {
		t.Fatalf("make undeploy: %v\n%s", err, output)
	}

	if left := kubectl(t, cluster, "", "get", ours, "-o", "name", "-l", "app.kubernetes.io/name=syncbarrier"); left != "" {
		t.Errorf("the operator left\n%s", left)
	}
	for _, gone := range []string{"namespace/syncbarrier-system", "clusterrole/syncbarrier-manager", "clusterrolebinding/syncbarrier-manager"} {
		if _, err := cluster.Kubectl("", "get", gone); err == nil {
			t.Errorf("the operator left %s", gone)
		}
	}
	kubectl(t, cluster, "", "get", "syncschema/clinic", "-n", "shop")
	kubectl(t, cluster, gated, "create", "-f", "-")
}
