package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// A status is a mirror, whoever wrote to it: a person with an editor, a backup that is restored, a tool that takes the records of field managers
// away. An apply takes away only what was applied before under the same name (Kubernetes documentation, "Server-Side Apply"), and would leave
// another hand's Stalled beside our Ready for ever. So what is left over after it is removed.

// foreign says whether a type of condition is another program's: those have its domain before them.
func foreign(conditionType string) bool { return strings.Contains(conditionType, "/") }

// ownConditions are those of a list that the operator writes.
func ownConditions(all []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c metav1.Condition) bool { return foreign(c.Type) })
}

// mirror applies a status and removes what else is there, but for the conditions of other programs. It leaves in applied what the API server
// answered last.
func mirror(ctx context.Context, c client.Client, applied *unstructured.Unstructured) error {
	wanted := runtime.DeepCopyJSON(applied.Object)
	err := applyStatus(ctx, c, applied)
	if apierrors.HasStatusCause(err, metav1.CauseTypeTooMany) {
		// The conditions of others leave no room for it: it is begun anew.
		if err := replaceStatus(ctx, c, applied, "", map[string]any{"observedGeneration": int64(-1)}); err != nil {
			return err
		}
		applied.Object = runtime.DeepCopyJSON(wanted)
		err = applyStatus(ctx, c, applied)
	}
	if err != nil {
		return err
	}
	live, _ := applied.Object["status"].(map[string]any)
	of, _ := wanted["status"].(map[string]any)
	if !removeSurplus(live, of) {
		return nil
	}
	return replaceStatus(ctx, c, applied, applied.GetResourceVersion(), live)
}

// applyStatus applies a status, without what the definition in the cluster has no field for: one that is older than this operator, as after an
// upgrade that left the definitions behind, must not keep the rest from being shown.
func applyStatus(ctx context.Context, c client.Client, applied *unstructured.Unstructured) error {
	for {
		asked := runtime.DeepCopyJSON(applied.Object)
		err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(FieldManager), client.ForceOwnership)
		unknown := withoutField(err)
		status, _ := asked["status"].(map[string]any)
		if len(unknown) == 0 || !takeOut(status, unknown) {
			return err
		}
		log.FromContext(ctx).Info("the CustomResourceDefinition in the cluster is older than this operator, so parts of a status are not shown; apply those of this version",
			"object", applied.GetName(), "fields", unknown)
		applied.Object = asked
	}
}

// notDeclared reads what an API server says of an apply with a field that its definition does not have (Kubernetes source, structured-merge-diff).
var notDeclared = regexp.MustCompile(`\.status\.([A-Za-z]+)[^:\s]*: field not declared in schema`)

// withoutField names the fields of the status that an error says there are none of.
func withoutField(err error) (names []string) {
	if err == nil {
		return nil
	}
	for _, found := range notDeclared.FindAllStringSubmatch(err.Error(), -1) {
		names = append(names, found[1])
	}
	return names
}

// takeOut removes fields, and says whether one of them was there. Conditions are what a status is for.
func takeOut(status map[string]any, names []string) (found bool) {
	for _, name := range names {
		if _, ok := status[name]; ok && name != "conditions" {
			delete(status, name)
			found = true
		}
	}
	return found
}

// replaceStatus replaces the status of this very object, and of this very version of it if one is given. Taking something away makes nobody the
// manager of a field, so the next apply can take its own away as before.
func replaceStatus(ctx context.Context, c client.Client, object *unstructured.Unstructured, version string, status map[string]any) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	patch := []operation{{"replace", "/metadata/uid", string(object.GetUID())}, {"add", "/status", status}}
	if version != "" {
		patch = append(patch, operation{"replace", "/metadata/resourceVersion", version})
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode a status: %w", err)
	}
	return c.Status().Patch(ctx, object, client.RawPatch(types.JSONPatchType, text), client.FieldOwner(FieldManager))
}

// removeSurplus takes out of a status what is not wanted, and says whether there was something. What the definition in the cluster does not know
// yet, and therefore lost, is none of it.
func removeSurplus(live, wanted map[string]any) (found bool) {
	for key, value := range live {
		want, ok := wanted[key]
		if !ok {
			delete(live, key)
			found = true
			continue
		}
		switch value := value.(type) {
		case map[string]any:
			if of, ok := want.(map[string]any); ok && removeSurplus(value, of) {
				found = true
			}
		case []any:
			if key == "conditions" {
				kept := keptConditions(value, want)
				found = found || len(kept) < len(value)
				live[key] = kept
			}
		}
	}
	return found
}

func keptConditions(live []any, wanted any) []any {
	typeOf := func(condition any) string {
		fields, _ := condition.(map[string]any)
		text, _ := fields["type"].(string)
		return text
	}
	list, _ := wanted.([]any)
	return slices.DeleteFunc(slices.Clone(live), func(condition any) bool {
		return !foreign(typeOf(condition)) && !slices.ContainsFunc(list, func(w any) bool { return typeOf(w) == typeOf(condition) })
	})
}
