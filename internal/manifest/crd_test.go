package manifest

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/config/crd"
)

// definitions reads the generated CustomResourceDefinitions, by plural.
func definitions(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	entries, err := crd.Bases.ReadDir("bases")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, entry := range entries {
		text, err := crd.Bases.ReadFile("bases/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := sigsyaml.UnmarshalStrict(text, &definition); err != nil {
			t.Fatalf("%s: %v", entry.Name(), err)
		}
		found[definition.Spec.Names.Plural] = &definition
	}
	if len(found) != 2 {
		t.Fatalf("found %d CustomResourceDefinitions, want 2", len(found))
	}
	return found
}

// The API server refuses a definition whose CEL rules could cost more than its budget; this is its own check.
func TestDefinitionsAreAcceptedByTheAPIServersOwnValidation(t *testing.T) {
	for plural, definition := range definitions(t) {
		t.Run(plural, func(t *testing.T) {
			apiextensionsv1.SetDefaults_CustomResourceDefinition(definition)
			apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&definition.Spec)
			definition.Status.StoredVersions = []string{"v1alpha1"}
			var internal apiextensions.CustomResourceDefinition
			if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(definition, &internal, nil); err != nil {
				t.Fatal(err)
			}
			for _, err := range crdvalidation.ValidateCustomResourceDefinition(context.Background(), &internal) {
				t.Error(err)
			}
		})
	}
}

// kubectl apply keeps a copy of the object in an annotation, which ends at 256 KiB.
func TestDefinitionsAreSmallEnoughToBeAppliedFromAClient(t *testing.T) {
	for plural, definition := range definitions(t) {
		text, err := json.Marshal(definition)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) >= 200_000 {
			t.Errorf("%s has %d bytes as JSON, want less than 200,000", plural, len(text))
		}
	}
}

func TestDefinitionsHaveNamesColumnsAndStatus(t *testing.T) {
	want := map[string]struct {
		short   string
		columns []string
	}{
		"syncschemas":         {"ssch", []string{"Version", "Stored", "Gate", "Ready", "Reason", "Fence", "Message", "Age"}},
		"backfillcheckpoints": {"bfc", []string{"Schema", "Checkpoint", "Version", "State", "Partitions", "Activated", "Rows", "Estimated", "Verdict", "Ready", "Reason", "Message", "Age"}},
	}
	for plural, definition := range definitions(t) {
		names, version := definition.Spec.Names, definition.Spec.Versions[0]
		if got := fmt.Sprint(names.ShortNames, names.Categories); got != fmt.Sprintf("[%s] [syncbarrier]", want[plural].short) {
			t.Errorf("%s: short names and categories are %s", plural, got)
		}
		var columns []string
		for _, column := range version.AdditionalPrinterColumns {
			columns = append(columns, column.Name)
		}
		if fmt.Sprint(columns) != fmt.Sprint(want[plural].columns) {
			t.Errorf("%s: columns are %v, want %v", plural, columns, want[plural].columns)
		}
		if version.Subresources == nil || version.Subresources.Status == nil {
			t.Errorf("%s has no status subresource", plural)
		}
		status := version.Schema.OpenAPIV3Schema.Properties["status"]
		if status.Default == nil || string(status.Default.Raw) != `{"observedGeneration":-1}` {
			t.Errorf("%s: the default of status is %v", plural, status.Default)
		}
	}
}

// goIntegers are the Go types that the formats stand for. One value beyond its type would stop every typed informer, in every
// namespace, and the API server does not enforce the format.
var goIntegers = map[string][2]float64{
	"int32": {math.MinInt32, math.MaxInt32},
	"int64": {-(1 << 53) + 1, (1 << 53) - 1}, // JSON numbers are exact up to here
}

func TestEveryIntegerStringListAndMapIsBounded(t *testing.T) {
	for plural, definition := range definitions(t) {
		root := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
		for _, part := range []string{"spec", "status"} {
			property := root.Properties[part]
			walk(part, &property, func(path string, s *apiextensionsv1.JSONSchemaProps) {
				if problem := unbounded(s); problem != "" && !boundedByARule(path) {
					t.Errorf("%s: %s %s", plural, path, problem)
				}
			})
		}
	}
}

func unbounded(s *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case s.Type == "integer":
		limits, ok := goIntegers[s.Format]
		if !ok || s.Minimum == nil || s.Maximum == nil || *s.Minimum < limits[0] || *s.Maximum > limits[1] {
			return "has no minimum and maximum inside " + s.Format
		}
	case s.Type == "string" && len(s.Enum) == 0 && s.MaxLength == nil && s.Format != "date-time":
		return "has no maxLength"
	case s.Type == "array" && s.MaxItems == nil:
		return "has no maxItems"
	case s.Type == "array" && s.XListType == nil:
		return "does not say how its entries are merged"
	case s.AdditionalProperties != nil && s.MaxProperties == nil:
		return "has no maxProperties"
	}
	return ""
}

// boundedByARule: the type of conditions is apimachinery's, which has no maximum; the list has a rule for it.
func boundedByARule(path string) bool { return path == "status.conditions[].observedGeneration" }

func walk(path string, s *apiextensionsv1.JSONSchemaProps, visit func(string, *apiextensionsv1.JSONSchemaProps)) {
	visit(path, s)
	for name, property := range s.Properties {
		walk(path+"."+name, &property, visit)
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(path+"[]", s.Items.Schema, visit)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		walk(path+"{}", s.AdditionalProperties.Schema, visit)
	}
}

// Order is meaning in atomic lists; entries of maps are merged by their key, so that two managers do not interleave columns.
func TestListsAreMergedAsTheirMeaningAsks(t *testing.T) {
	want := map[string]string{
		"spec.tables":                          "map [name]",
		"spec.tables[].columns":                "atomic []",
		"spec.tables[].primaryKey":             "atomic []",
		"spec.tables[].indexes":                "map [name]",
		"spec.tables[].indexes[].columns":      "atomic []",
		"spec.retiredTables":                   "set []",
		"spec.migrations":                      "map [version]",
		"spec.migrations[].sqlFrom":            "atomic []",
		"spec.checkpoints":                     "map [name]",
		"spec.checkpoints[].partitions":        "set []",
		"spec.checkpoints[].sources":           "map [table]",
		"spec.checkpoints[].sources[].columns": "set []",
		"spec.checkpoints[].verify":            "map [name]",
	}
	spec := definitions(t)["syncschemas"].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	walk("spec", &spec, func(path string, s *apiextensionsv1.JSONSchemaProps) {
		if s.Type != "array" {
			return
		}
		got := "none"
		if s.XListType != nil {
			got = fmt.Sprintf("%s %v", *s.XListType, s.XListMapKeys)
		}
		if got != want[path] {
			t.Errorf("%s is %q, want %q", path, got, want[path])
		}
		delete(want, path)
	})
	if len(want) > 0 {
		t.Errorf("lists that are missing: %v", want)
	}
}
