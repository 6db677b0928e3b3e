package gitops

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/itchyny/gojq"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/config/crd"
	files "github.com/syncbarrier/syncbarrier/config/gitops"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// inSync applies the samples, which leave out what has a default, and compares as Argo CD does: it drops what is to be ignored from both
// sides and makes the three-way JSON merge patch that would bring the live object to the file.
func inSync(t *testing.T, cluster *testcluster.Cluster, server client.Client) {
	for _, file := range []string{"../../config/samples/syncschema.yaml", "../../config/samples/backfillcheckpoint.yaml", "../../config/gitops/kustomize/syncschema.yaml"} {
		desired := documents(t, file)[0]
		desired.SetNamespace("shop")
		desired.SetName("in-sync-" + desired.GetName())
		text, err := json.Marshal(desired)
		must(t, err)
		if _, err := cluster.Kubectl(string(text), "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(desired.GroupVersionKind())
		must(t, server.Get(t.Context(), client.ObjectKeyFromObject(desired), live))

		if desired.GetKind() == "SyncSchema" && difference(t, desired, live) == "{}" {
			t.Errorf("%s: there is nothing to ignore, so this test shows nothing", file)
		}
		if got := difference(t, normalised(t, desired), normalised(t, live)); got != "{}" {
			t.Errorf("%s is OutOfSync after it was applied: %s", file, got)
		}
		// Another value than the default is a difference.
		if desired.GetKind() == "SyncSchema" {
			edited := live.DeepCopy()
			tables := edited.Object["spec"].(map[string]any)["tables"].([]any)
			tables[0].(map[string]any)["columns"].([]any)[0].(map[string]any)["nullable"] = true
			if difference(t, normalised(t, desired), normalised(t, edited)) == "{}" {
				t.Errorf("%s: a column that was edited by hand is in sync", file)
			}
		}
	}
}

func difference(t *testing.T, desired, live *unstructured.Unstructured) string {
	t.Helper()
	file, err := json.Marshal(desired)
	must(t, err)
	found, err := json.Marshal(live)
	must(t, err)
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(file, file, found)
	must(t, err)
	return string(patch)
}

// normalised drops what Argo CD is told to ignore, by the interpreter that it uses.
func normalised(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	if object.GetKind() != "SyncSchema" {
		return object
	}
	// jq knows no int64.
	text, err := json.Marshal(object)
	must(t, err)
	var value any
	must(t, json.Unmarshal(text, &value))
	for _, expression := range ignored(t) {
		query, err := gojq.Parse("del(" + expression + ")")
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		result, _ := query.RunWithContext(t.Context(), value).Next()
		if err, failed := result.(error); failed {
			t.Fatalf("%s: %v", expression, err)
		}
		value = result
	}
	return &unstructured.Unstructured{Object: value.(map[string]any)}
}

func ignored(t *testing.T) []string {
	t.Helper()
	text, err := files.Files.ReadFile("argocd/ignore-differences.yaml")
	must(t, err)
	var settings struct {
		JQPathExpressions []string `json:"jqPathExpressions"`
	}
	must(t, yaml.UnmarshalStrict(text, &settings))
	return settings.JQPathExpressions
}

// A default that is added to an entry of a list has to be ignored too.
func TestEveryDefaultInsideAListIsNoDifference(t *testing.T) {
	entries, err := crd.Bases.ReadDir("bases")
	must(t, err)
	var defaults []string
	for _, entry := range entries {
		text, err := crd.Bases.ReadFile("bases/" + entry.Name())
		must(t, err)
		var definition apiextensionsv1.CustomResourceDefinition
		must(t, yaml.Unmarshal(text, &definition))
		spec := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		defaults = append(defaults, defaultsInLists(spec, ".spec", false)...)
	}
	if len(defaults) != len(ignored(t)) {
		t.Errorf("%d defaults stand inside lists, %d are ignored: %v", len(defaults), len(ignored(t)), defaults)
	}
	all := strings.Join(ignored(t), "\n")
	for _, field := range defaults {
		if !strings.Contains(all, field) {
			t.Errorf("%s is not ignored", field)
		}
	}
}

// defaultsInLists gives, for each default inside a list, how it is selected: "select(.name == value) | .name".
func defaultsInLists(schema apiextensionsv1.JSONSchemaProps, name string, inside bool) []string {
	var found []string
	if schema.Default != nil && inside {
		found = append(found, fmt.Sprintf("select(.%s == %s) | .%s", name, schema.Default.Raw, name))
	}
	if schema.Items != nil {
		found = append(found, defaultsInLists(*schema.Items.Schema, name, true)...)
	}
	for child, property := range schema.Properties {
		found = append(found, defaultsInLists(property, child, inside)...)
	}
	return found
}
