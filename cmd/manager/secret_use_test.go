package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

const (
	jobOf = `
  checkpoints:
  - name: own
    version: 2
    sources: [{table: todos, changes: CommitLog}]
    backfill: {job: {template: {spec: {containers: [{name: worker, image: "own:%d"}]}}}}
`
	// useOf is a SyncSchema whose database comes of a Secret.
	useOf = `
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic, namespace: %s}
spec:
  suspend: true
  database: {postgres: {%s}}
  version: %d
  tables: [{name: todos, columns: [{name: id, type: integer}], primaryKey: [id]}]
%s`
	standaloneJob = `
apiVersion: syncbarrier.dev/v1alpha1
kind: BackfillCheckpoint
metadata: {name: mine, namespace: %s}
spec:
  schemaRef: {name: clinic}
  name: mine
  version: 2
  sources: [{table: todos, changes: CommitLog}]
  backfill: {job: {template: {spec: {containers: [{name: worker, image: "own:1"}]}}}}
`
)

// testSecretUse installs config/secret-use, and writes as an editor who may read one Secret and no other.
func (e *environment) testSecretUse(t *testing.T) {
	namespace := e.namespace(t)
	manifests := kustomize(t, "config/secret-use")
	e.kubectl(t, manifests, "apply", "-f", "-")
	t.Cleanup(func() { e.kubectl(t, manifests, "delete", "-f", "-") })
	e.kubectl(t, "", "create", "serviceaccount", "editor", "-n", namespace)
	e.kubectl(t, "", "create", "rolebinding", "editor", "-n", namespace, "--clusterrole=syncbarrier-editor", "--serviceaccount="+namespace+":editor")
	e.kubectl(t, "", "create", "role", "reader", "-n", namespace, "--verb=get", "--resource=secrets", "--resource-name=mine")
	e.kubectl(t, "", "create", "rolebinding", "reader", "-n", namespace, "--role=reader", "--serviceaccount="+namespace+":editor")
	write := func(object string, more ...string) error {
		_, err := e.cluster.Kubectl(object, append([]string{"apply", "--server-side", "-f", "-", "--as=system:serviceaccount:" + namespace + ":editor"}, more...)...)
		return err
	}
	from := func(secret, key string) string {
		return fmt.Sprintf("{secretKeyRef: {name: %s, key: %s}}", secret, key)
	}
	mine := "urlFrom: " + from("mine", "uri")
	const refused = "you must be allowed to get"
	var last error
	said := func() string { return fmt.Sprint(last) }
	waitFor(t, "the policy to be in force", func(context.Context) (bool, error) {
		last = write(fmt.Sprintf(useOf, namespace, "urlFrom: "+from("other", "uri"), 1, ""), "--dry-run=server")
		return last != nil && strings.Contains(last.Error(), refused), nil
	}, said)
	parts := "connection: {host: db, database: app, userFrom: " + from("mine", "user") + ", passwordFrom: "
	for _, c := range []struct {
		name, object string
		allowed      bool
	}{
		{"a Secret that is not his", fmt.Sprintf(useOf, namespace, "urlFrom: "+from("other", "uri"), 1, ""), false},
		{"a password that is not his", fmt.Sprintf(useOf, namespace, parts+from("other", "password")+"}", 1, ""), false},
		{"a key that is not his", fmt.Sprintf(useOf, namespace, mine+", tls: {certFrom: "+from("mine", "crt")+", keyFrom: "+from("other", "key")+"}", 1, ""), false},
		{"one that he may read", fmt.Sprintf(useOf, namespace, mine, 1, ""), true},
		{"a job with one that he may read", fmt.Sprintf(useOf, namespace, mine, 2, fmt.Sprintf(jobOf, 1)), true},
		{"a checkpoint of its own with a job", fmt.Sprintf(standaloneJob, namespace), false},
	} {
		if err := write(c.object); (err == nil) != c.allowed || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("%s: allowed %v, %v", c.name, c.allowed, err)
		}
	}
	e.kubectl(t, "", "delete", "rolebinding", "reader", "-n", namespace)
	waitFor(t, "the right to be gone", func(context.Context) (bool, error) {
		last = write(fmt.Sprintf(useOf, namespace, mine+", schema: x", 2, fmt.Sprintf(jobOf, 1)), "--dry-run=server")
		return last != nil && strings.Contains(last.Error(), refused), nil
	}, said)
	if err := write(fmt.Sprintf(useOf, namespace, mine, 3, fmt.Sprintf(jobOf, 1))); err != nil {
		t.Errorf("another version of what stands there: %v", err)
	}
	if err := write(fmt.Sprintf(useOf, namespace, mine, 3, fmt.Sprintf(jobOf, 2))); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("another container for a Secret that is not his any more: %v", err)
	}
}
