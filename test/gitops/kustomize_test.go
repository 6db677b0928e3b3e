package gitops

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func TestKustomizeFollowsNamesIntoOurKinds(t *testing.T) {
	built := build(t, filesys.MakeFsOnDisk(), "../../config/gitops/kustomize")
	schema, checkpoint, deployment := only(t, built, "SyncSchema"), only(t, built, "BackfillCheckpoint"), only(t, built, "Deployment")
	configMap, secret := only(t, built, "ConfigMap").GetName(), only(t, built, "Secret").GetName()
	if !strings.HasPrefix(configMap, "north-clinic-migrations-") || !strings.HasPrefix(secret, "north-clinic-app-") {
		t.Fatalf("kustomize named ConfigMap and Secret %s and %s, so nothing was to be followed", configMap, secret)
	}
	migrations, _, _ := unstructured.NestedSlice(schema.Object, "spec", "migrations")
	sqlFrom, _, _ := unstructured.NestedSlice(migrations[0].(map[string]any), "sqlFrom")
	name, _, _ := unstructured.NestedString(sqlFrom[0].(map[string]any), "configMapKeyRef", "name")
	is(t, "the ConfigMap of the migration", name, configMap)
	name, _, _ = unstructured.NestedString(schema.Object, "spec", "database", "postgres", "urlFrom", "secretKeyRef", "name")
	is(t, "the Secret of the database", name, secret)
	name, _, _ = unstructured.NestedString(checkpoint.Object, "spec", "schemaRef", "name")
	is(t, "the schema of the checkpoint", name, "north-clinic")

	requires, _, _ := unstructured.NestedString(deployment.Object, "spec", "template", "metadata", "annotations", "syncbarrier.dev/requires")
	is(t, "what the pods ask for", requires, "north-clinic=7")
}

// The recipes of docs/gitops.md, which a story on a real cluster applies. What is read here is what decides about order and waiting.
func TestTheRecipesAreWhatTheirPageSays(t *testing.T) {
	const recipes = "../../examples/clinic/gitops/"
	onDisk := filesys.MakeFsOnDisk()
	for folder, wave := range map[string]string{"together": "", "schema-first": "-1"} {
		built := build(t, onDisk, recipes+folder)
		schema, deployment := only(t, built, "SyncSchema"), only(t, built, "Deployment")
		is(t, "the wave of the schema in "+folder, schema.GetAnnotations()["argocd.argoproj.io/sync-wave"], wave)
		is(t, "the wave of the program in "+folder, deployment.GetAnnotations()["argocd.argoproj.io/sync-wave"], "")
		version, _, _ := unstructured.NestedInt64(schema.Object, "spec", "version")
		requires, _, _ := unstructured.NestedString(deployment.Object, "spec", "template", "metadata", "annotations", "syncbarrier.dev/requires")
		is(t, "what the pods in "+folder+" ask for", requires, fmt.Sprintf("%s=%d", schema.GetName(), version))
		containers, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
		is(t, "the image in "+folder, fmt.Sprint(containers[0].(map[string]any)["image"]), fmt.Sprintf("clinic:%d", version))
		if _, found, _ := unstructured.NestedString(deployment.Object, "spec", "selector", "matchLabels", "syncbarrier.dev/gate"); found {
			t.Errorf("%s: the gate's label stands in the selector, where it can never be changed", folder)
		}
		deadline, _, _ := unstructured.NestedInt64(deployment.Object, "spec", "progressDeadlineSeconds")
		if waits := folder == "together"; waits != (deadline > 600) {
			t.Errorf("%s: the Deployment's deadline is %d s", folder, deadline)
		}
		known(t, onDisk, recipes+folder)
	}
}

// Flux takes the halves apart: each path has to be there, and the second waits for the first.
func TestTheKustomizationsOfTheRecipesFindTheirFolders(t *testing.T) {
	onDisk := filesys.MakeFsOnDisk()
	want := map[string]map[string][]string{
		"together":     {"clinic": {"Deployment", "Service", "SyncSchema"}},
		"schema-first": {"clinic-schema": {"SyncSchema"}, "clinic": {"Deployment", "Service"}},
	}
	for folder, kustomizations := range want {
		text, err := onDisk.ReadFile("../../examples/clinic/gitops/" + folder + "/flux.yaml")
		must(t, err)
		for _, document := range strings.Split(string(text), "\n---\n") {
			var object unstructured.Unstructured
			must(t, yaml.Unmarshal([]byte(document), &object.Object))
			path, _, _ := unstructured.NestedString(object.Object, "spec", "path")
			var kinds []string
			for _, resource := range build(t, onDisk, "../../"+path).Resources() {
				kinds = append(kinds, resource.GetKind())
			}
			slices.Sort(kinds)
			if !slices.Equal(kinds, kustomizations[object.GetName()]) {
				t.Errorf("%s: the Kustomization %s applies %v", folder, object.GetName(), kinds)
			}
			if waits, _, _ := unstructured.NestedBool(object.Object, "spec", "wait"); !waits {
				t.Errorf("%s: the Kustomization %s waits for nothing", folder, object.GetName())
			}
			on, _, _ := unstructured.NestedSlice(object.Object, "spec", "dependsOn")
			if second := folder == "schema-first" && object.GetName() == "clinic"; second != (len(on) == 1 && on[0].(map[string]any)["name"] == "clinic-schema") {
				t.Errorf("%s: the Kustomization %s depends on %v", folder, object.GetName(), on)
			}
			delete(kustomizations, object.GetName())
		}
		if len(kustomizations) > 0 {
			t.Errorf("%s: flux.yaml lacks %v", folder, kustomizations)
		}
	}
}

func TestKustomizeFollowsEveryReferenceThatOurKindsHave(t *testing.T) {
	files := filesys.MakeFsInMemory()
	configuration, err := filesys.MakeFsOnDisk().ReadFile("../../config/gitops/kustomize/namereference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, files, "namereference.yaml", string(configuration))
	write(t, files, "kustomization.yaml", `
namePrefix: north-
resources: [objects.yaml]
configurations: [namereference.yaml]
`)
	write(t, files, "objects.yaml", `
{apiVersion: v1, kind: Secret, metadata: {name: credentials}}
---
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic}
spec:
  version: 7
  database:
    postgres:
      connection:
        hostFrom: {secretKeyRef: {name: credentials, key: host}}
        portFrom: {secretKeyRef: {name: credentials, key: port}}
        databaseFrom: {secretKeyRef: {name: credentials, key: dbname}}
        userFrom: {secretKeyRef: {name: credentials, key: username}}
        passwordFrom: {secretKeyRef: {name: credentials, key: password}}
      tls:
        caFrom: {secretKeyRef: {name: credentials, key: ca.crt}}
        certFrom: {secretKeyRef: {name: credentials, key: tls.crt}}
        keyFrom: {secretKeyRef: {name: credentials, key: tls.key}}
  worker:
    template: {spec: {imagePullSecrets: [{name: credentials}]}}
`)
	text, err := build(t, files, "/").AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	for name, times := range map[string]int{"north-credentials": 10} {
		if got := strings.Count(string(text), "ame: "+name); got != times {
			t.Errorf("%s stands there %d times, want %d:\n%s", name, got, times, text)
		}
	}
}

func TestTheComponentAddsTheHealthScriptToArgoCDsOwnSettings(t *testing.T) {
	files := filesys.MakeFsInMemory()
	onDisk := filesys.MakeFsOnDisk()
	for _, name := range []string{"kustomization.yaml", "health.lua", "ignore-differences.yaml"} {
		content, err := onDisk.ReadFile("../../config/gitops/argocd/" + name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, files, "component/"+name, string(content))
	}
	write(t, files, "argo/argocd-cm.yaml", `
apiVersion: v1
kind: ConfigMap
metadata: {name: argocd-cm, namespace: argocd, labels: {app.kubernetes.io/part-of: argocd}}
data: {url: https://argo.example}
`)
	write(t, files, "argo/kustomization.yaml", "resources: [argocd-cm.yaml]\ncomponents: [../component]\n")
	settings := only(t, build(t, files, "argo"), "ConfigMap")
	data, _, _ := unstructured.NestedStringMap(settings.Object, "data")
	is(t, "the name", settings.GetName(), "argocd-cm")
	is(t, "Argo CD's label", settings.GetLabels()["app.kubernetes.io/part-of"], "argocd")
	is(t, "Argo CD's own setting", data["url"], "https://argo.example")
	script, err := onDisk.ReadFile("../../config/gitops/argocd/health.lua")
	if err != nil {
		t.Fatal(err)
	}
	for kind := range expected {
		is(t, "the script for "+kind, data["resource.customizations.health.syncbarrier.dev_"+kind], string(script))
	}
	differences, err := onDisk.ReadFile("../../config/gitops/argocd/ignore-differences.yaml")
	if err != nil {
		t.Fatal(err)
	}
	is(t, "what is no difference", data["resource.customizations.ignoreDifferences.syncbarrier.dev_SyncSchema"], string(differences))
}

func TestTheHealthChecksAreAPatchForAFluxKustomization(t *testing.T) {
	for file, kinds := range map[string]int{"health.yaml": 2, "health-approval.yaml": 1} {
		files := filesys.MakeFsInMemory()
		patch, err := filesys.MakeFsOnDisk().ReadFile("../../config/gitops/flux/" + file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, files, "patch.yaml", string(patch))
		write(t, files, "kustomization.yaml", "resources: [clinic.yaml]\npatches:\n- {path: patch.yaml, target: {kind: Kustomization, name: clinic-schema}}\n")
		write(t, files, "clinic.yaml", `
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: clinic-schema, namespace: flux-system}
spec: {interval: 10m, timeout: 6h, path: ./schema, prune: true, sourceRef: {kind: GitRepository, name: shop}}
`)
		patched := only(t, build(t, files, "/"), "Kustomization")
		checks, _, _ := unstructured.NestedSlice(patched.Object, "spec", "healthCheckExprs")
		if len(checks) != kinds || patched.GetName() != "clinic-schema" {
			t.Errorf("%s: the patched Kustomization is %v", file, patched.Object)
		}
	}
}

func TestTheOperatorAnswersByHTTPWithItsComponent(t *testing.T) {
	config, err := filepath.Abs("../../config")
	must(t, err)
	folder := t.TempDir()
	up, err := filepath.Rel(folder, config)
	must(t, err)
	onDisk := filesys.MakeFsOnDisk()
	write(t, onDisk, filepath.Join(folder, "kustomization.yaml"), "resources: ["+up+"/default]\ncomponents: ["+up+"/gate-http]\n")
	built := build(t, onDisk, folder)

	containers, _, _ := unstructured.NestedSlice(only(t, built, "Deployment").Object, "spec", "template", "spec", "containers")
	manager := containers[0].(map[string]any)
	arguments, _, _ := unstructured.NestedStringSlice(manager, "args")
	if !slices.Contains(arguments, "--gate-bind-address=:8090") {
		t.Errorf("the manager is called with %v", arguments)
	}
	ports, _, _ := unstructured.NestedSlice(manager, "ports")
	offered := map[any]any{}
	for _, port := range ports {
		offered[port.(map[string]any)["name"]] = port.(map[string]any)["containerPort"]
	}
	if offered["gate"] != int64(8090) {
		t.Errorf("the manager has the ports %v", offered)
	}
	// A NetworkPolicy closes what it does not name: each other port of the manager is named.
	rules, _, _ := unstructured.NestedSlice(only(t, built, "NetworkPolicy").Object, "spec", "ingress")
	open := map[any]bool{}
	for _, rule := range rules {
		for _, port := range rule.(map[string]any)["ports"].([]any) {
			open[port.(map[string]any)["port"]] = true
		}
	}
	for name, number := range offered {
		if !open[name] && !open[number] {
			t.Errorf("the NetworkPolicy closes the port %v (%v)", name, number)
		}
	}
}

func build(t *testing.T, files filesys.FileSystem, folder string) resmap.ResMap {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, folder)
	if err != nil {
		t.Fatal(err)
	}
	return built
}

// known decodes what a folder builds as the API server does, field by field.
func known(t *testing.T, files filesys.FileSystem, folder string) {
	t.Helper()
	decoder := strictDecoder(t)
	for _, resource := range build(t, files, folder).Resources() {
		text, err := resource.AsYAML()
		must(t, err)
		if _, _, err := decoder.Decode(text, nil, nil); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
	}
}

func write(t *testing.T, files filesys.FileSystem, path, content string) {
	t.Helper()
	if err := files.WriteFile(path, []byte(content)); err != nil {
		t.Fatal(err)
	}
}

// only returns the one object of a kind.
func only(t *testing.T, built resmap.ResMap, kind string) *unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for _, resource := range built.Resources() {
		if resource.GetKind() == kind {
			text, err := resource.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			object := &unstructured.Unstructured{}
			if err := object.UnmarshalJSON(text); err != nil {
				t.Fatal(err)
			}
			found = append(found, object)
		}
	}
	if len(found) != 1 {
		t.Fatalf("kustomize built %d objects of kind %s, want 1", len(found), kind)
	}
	return found[0]
}

func is(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %q, want %q", what, got, want)
	}
}
