package gitops

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

func TestOnARealAPIServer(t *testing.T) {
	cluster := testcluster.Start(t)
	cluster.InstallCRDs()
	if _, err := cluster.Kubectl("", "create", "namespace", "shop"); err != nil {
		t.Fatal(err)
	}
	server, err := client.New(cluster.Admin(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("every state is judged the same", func(t *testing.T) { judged(t, server) })
	t.Run("what Argo CD applied is in sync", func(t *testing.T) { inSync(t, cluster, server) })
}

// judged: the files of testdata are what we think that an API server gives. Here it gives them: each object is made, its status is
// written as the operator writes it, what happened to it since then happens, and what is read back is judged.
func judged(t *testing.T, server client.Client) {
	everyState(t, func(t *testing.T, written *unstructured.Unstructured, want verdicts) {
		object := through(t, server, written)
		computed, err := status.Compute(object)
		if err != nil {
			t.Fatal(err)
		}
		if computed.Status != want.kstatus {
			t.Errorf("kstatus says %s (%s), want %s", computed.Status, computed.Message, want.kstatus)
		}
		must(t, Disagreement(t.Context(), object))
	})
}

// through brings an object of testdata into its state on an API server, and reads it.
func through(t *testing.T, server client.Client, written *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	made := written.DeepCopy()
	unstructured.RemoveNestedField(made.Object, "status")
	made.SetGeneration(0)
	made.SetDeletionTimestamp(nil)
	must(t, server.Create(t.Context(), made))

	observed, _, _ := unstructured.NestedInt64(written.Object, "status", "observedGeneration")
	if observed > 0 { // the operator was there
		applied := &unstructured.Unstructured{Object: map[string]any{"status": written.DeepCopy().Object["status"]}}
		applied.SetGroupVersionKind(written.GroupVersionKind())
		applied.SetNamespace(written.GetNamespace())
		applied.SetName(written.GetName())
		must(t, server.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("syncbarrier"), client.ForceOwnership))
	}
	switch {
	case written.GetDeletionTimestamp() != nil: // held by its finalizer
		must(t, server.Delete(t.Context(), made))
	case written.GetGeneration() > 1: // edited since then
		edit := `{"spec": {"suspend": true}}`
		if written.GetKind() == "BackfillCheckpoint" {
			edit = `{"spec": {"backfill": {"batchRows": 500}}}`
		}
		must(t, server.Patch(t.Context(), made, client.RawPatch("application/merge-patch+json", []byte(edit))))
	}
	read := &unstructured.Unstructured{}
	read.SetGroupVersionKind(written.GroupVersionKind())
	must(t, server.Get(t.Context(), client.ObjectKeyFromObject(made), read))
	if read.GetGeneration() != written.GetGeneration() {
		t.Errorf("the API server gives generation %d, testdata %d", read.GetGeneration(), written.GetGeneration())
	}
	return read
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
