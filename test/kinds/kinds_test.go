package kinds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// TestOnARealAPIServer runs everything on one API server; each part has a namespace of its own.
func TestOnARealAPIServer(t *testing.T) {
	cluster := testcluster.Start(t)
	// By kubectl apply as people call it, which keeps a copy of the object in an annotation of 256 KiB at most.
	kubectl(t, cluster, "", "apply", "-f", "config/crd/bases")
	cluster.AwaitCRDs()

	t.Run("every sample is accepted from a client and from a server", func(t *testing.T) { samples(t, cluster) })
	t.Run("the commands of the runbook are those of kubectl", func(t *testing.T) { runbook(t, cluster) })
	t.Run("kubectl shows both kinds with their columns", func(t *testing.T) { columns(t, cluster) })
	t.Run("every integer is bounded so that typed clients can list it", func(t *testing.T) { integers(t, cluster) })
	t.Run("an object without a status has one that says so", func(t *testing.T) { emptyStatus(t, cluster) })
}

func kubectl(t *testing.T, cluster *testcluster.Cluster, stdin string, arguments ...string) string {
	t.Helper()
	output, err := cluster.Kubectl(stdin, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// typed is a client that knows our kinds.
func typed(t *testing.T, cluster *testcluster.Cluster) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	made, err := client.New(cluster.Admin(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// samples applies config/samples, and what the kustomize example builds, as a client does and as a server does.
func samples(t *testing.T, cluster *testcluster.Cluster) {
	kubectl(t, cluster, "", "create", "namespace", "shop")
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("found the samples %v: %v", files, err)
	}
	applied := 0
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		applied++
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, cluster, string(text), "apply", "-f", "-")
		if unchanged := kubectl(t, cluster, string(text), "diff", "-f", "-"); unchanged != "" {
			t.Errorf("%s is applied and differs all the same:\n%s", file, unchanged)
		}
		kubectl(t, cluster, string(text), "delete", "-f", "-")
		// A tool that applies the same again and again writes nothing. The write after the creation alone adds something: the default
		// of status, which the creation of an object does not store.
		kubectl(t, cluster, string(text), "apply", "--server-side", "-f", "-")
		first := kubectl(t, cluster, string(text), "apply", "--server-side", "-f", "-", "-o", "jsonpath={.metadata.resourceVersion}{.items[*].metadata.resourceVersion}")
		again := kubectl(t, cluster, string(text), "apply", "--server-side", "-f", "-", "-o", "jsonpath={.metadata.resourceVersion}{.items[*].metadata.resourceVersion}")
		if first == "" || first != again {
			t.Errorf("%s, applied twice, is written twice: %s, %s", file, first, again)
		}
	}
	kubectl(t, cluster, "", "apply", "--server-side", "-k", "config/gitops/kustomize")
	var schemas v1alpha1.SyncSchemaList
	if err := typed(t, cluster).List(t.Context(), &schemas, client.InNamespace("shop")); err != nil {
		t.Fatal(err)
	}
	if len(schemas.Items) < 5 || applied < 3 {
		t.Errorf("%d samples gave %d SyncSchemas", applied, len(schemas.Items))
	}
}

func columns(t *testing.T, cluster *testcluster.Cluster) {
	kubectl(t, cluster, "", "create", "namespace", "columns")
	for _, file := range []string{"syncschema.yaml", "backfillcheckpoint.yaml"} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, cluster, string(text), "apply", "-n", "columns", "-f", "-")
		kubectl(t, cluster, string(text), "apply", "--server-side", "--subresource=status", "-n", "columns", "-f", "-")
	}
	shown := func(resource string) [2][]string {
		lines := strings.Split(strings.TrimSpace(kubectl(t, cluster, "", "get", resource, "-n", "columns")), "\n")
		if len(lines) != 2 {
			t.Fatalf("kubectl get %s shows %q", resource, lines)
		}
		return [2][]string{strings.Fields(lines[0]), strings.Fields(lines[1])}
	}
	for resource, want := range map[string][2]string{
		"ssch": {"NAME VERSION STORED GATE READY REASON AGE", "full 7 6 False Migrating"},
		"bfc": {
			"NAME SCHEMA CHECKPOINT VERSION STATE PARTITIONS ACTIVATED ROWS ESTIMATED READY REASON AGE",
			"full clinic title-norm 7 backfilling 1 1 1 1 False Backfilling",
		},
	} {
		got := shown(resource)
		if header := strings.Join(got[0], " "); header != want[0] {
			t.Errorf("kubectl get %s has the columns %q, want %q", resource, header, want[0])
		}
		if row := strings.Join(got[1], " "); !strings.HasPrefix(row, want[1]) {
			t.Errorf("kubectl get %s shows %q, want %q", resource, row, want[1])
		}
	}
	both := kubectl(t, cluster, "", "get", "syncbarrier", "-n", "columns", "-o", "name")
	if want := "backfillcheckpoint.syncbarrier.dev/full\nsyncschema.syncbarrier.dev/full\n"; both != want {
		t.Errorf("kubectl get syncbarrier shows %q, want %q", both, want)
	}
}

// emptyStatus: tools take an object without a status for one that is done (kstatus does), so there must be none.
func emptyStatus(t *testing.T, cluster *testcluster.Cluster) {
	kubectl(t, cluster, "", "create", "namespace", "empty")
	for _, kind := range []string{"syncschema", "backfillcheckpoint"} {
		text, err := os.ReadFile("testdata/" + kind + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, cluster, string(text), "apply", "-n", "empty", "-f", "-")
		if got := kubectl(t, cluster, "", "get", kind, "full", "-n", "empty", "-o", "jsonpath={.status}"); got != `{"observedGeneration":-1}` {
			t.Errorf("a new %s has the status %s", kind, got)
		}
	}
}
