package kinds

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/config/crd"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// integer is a field that holds one, with its bounds.
type integer struct {
	path     []string // "[]" stands for the first entry of a list
	min, max int64
}

func (i integer) String() string { return strings.Join(i.path, ".") }

// integers makes objects at every bound and beyond it. The API server does not enforce the format of an integer, so a field without a
// maximum could take a value that Go's type cannot: then no typed client could list the kind any more, in any namespace.
func integers(t *testing.T, cluster *testcluster.Cluster) {
	kubectl(t, cluster, "", "create", "namespace", "bounds")
	server := typed(t, cluster)
	for _, file := range []string{"syncschema.yaml", "backfillcheckpoint.yaml"} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		base := &unstructured.Unstructured{}
		if asJSON, err := yaml.ToJSON(text); err != nil {
			t.Fatal(err)
		} else if err := base.UnmarshalJSON(asJSON); err != nil {
			t.Fatal(err)
		}
		base.SetNamespace("bounds")
		fields := integersOf(t, base.GetKind())
		if len(fields) < 15 {
			t.Errorf("found %d integers in a %s, so this test looks at the wrong place", len(fields), base.GetKind())
		}
		for number, field := range fields {
			for side, value := range map[string]int64{"min": field.min, "max": field.max} {
				at := fmt.Sprintf("f%d-%s", number, side)
				if err := with(t, server, base, at, field, value); err != nil {
					t.Errorf("%s: %s = %d, its %simum, is refused: %v", base.GetKind(), field, value, side, err)
				}
				beyond := value + 1
				if side == "min" {
					beyond = value - 1
				}
				if err := with(t, server, base, at+"-beyond", field, beyond); !apierrors.IsInvalid(err) {
					t.Errorf("%s: %s = %d, beyond its %simum, gives %v", base.GetKind(), field, beyond, side, err)
				}
			}
		}
	}
	for _, list := range []client.ObjectList{&v1alpha1.SyncSchemaList{}, &v1alpha1.BackfillCheckpointList{}} {
		if err := server.List(t.Context(), list); err != nil {
			t.Errorf("a typed client cannot list %T: %v", list, err)
		}
	}
}

// with makes an object that has a value in a field of its spec or status.
func with(t *testing.T, server client.Client, base *unstructured.Unstructured, name string, field integer, value int64) error {
	t.Helper()
	object := base.DeepCopy()
	object.SetName(name)
	set(t, object.Object, field.path, value)
	status := object.Object["status"]
	unstructured.RemoveNestedField(object.Object, "status")
	if err := server.Create(t.Context(), object); err != nil {
		return err
	}
	object.Object["status"] = status
	return server.Status().Update(t.Context(), object)
}

// set sets a field that is there: testdata has every integer.
func set(t *testing.T, object map[string]any, path []string, value int64) {
	t.Helper()
	for i, name := range path {
		last := i == len(path)-1
		child, there := object[name]
		if !there {
			t.Fatalf("testdata has no %s", strings.Join(path[:i+1], "."))
		}
		if last {
			object[name] = value
			return
		}
		if path[i+1] == "[]" {
			set(t, child.([]any)[0].(map[string]any), path[i+2:], value)
			return
		}
		object = child.(map[string]any)
	}
}

// integersOf lists the integers of a kind from its definition.
func integersOf(t *testing.T, kind string) []integer {
	t.Helper()
	entries, err := crd.Bases.ReadDir("bases")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		text, err := crd.Bases.ReadFile("bases/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &definition); err != nil {
			t.Fatal(err)
		}
		if definition.Spec.Names.Kind != kind {
			continue
		}
		root := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
		var found []integer
		for _, part := range []string{"spec", "status"} {
			found = append(found, walk(t, root.Properties[part], []string{part})...)
		}
		return found
	}
	t.Fatalf("there is no definition of %s", kind)
	return nil
}

func walk(t *testing.T, schema apiextensionsv1.JSONSchemaProps, path []string) []integer {
	t.Helper()
	switch schema.Type {
	case "integer":
		if isConditions(path) {
			return nil // bounded by a CEL rule, since the type is not ours: the API server's own minimum, and 53 bits
		}
		if schema.Minimum == nil || schema.Maximum == nil {
			t.Errorf("%s has no bounds", strings.Join(path, "."))
			return nil
		}
		return []integer{{slices.Clone(path), int64(*schema.Minimum), int64(*schema.Maximum)}}
	case "array":
		return walk(t, *schema.Items.Schema, append(slices.Clone(path), "[]"))
	}
	var found []integer
	for name, property := range schema.Properties {
		found = append(found, walk(t, property, append(slices.Clone(path), name))...)
	}
	slices.SortFunc(found, func(a, b integer) int { return strings.Compare(a.String(), b.String()) })
	return found
}

func isConditions(path []string) bool { return slices.Contains(path, "conditions") }
