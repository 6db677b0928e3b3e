package main

import (
	"context"
	"database/sql"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

const (
	// restDatabases databases with restSchemas SyncSchemas each; every SyncSchema has a pool of its own.
	restDatabases, restSchemas = 4, 5
	// mostMemory and mostConnections bound the manager: docs/design.md section 12, and 64 pools of 4 connections.
	mostMemory      = 200 << 20
	mostConnections = 64 * 4
)

// testRest looks at a manager with many SyncSchemas that are done: it reads their databases at every resync, and writes nothing.
func (e *environment) testRest(t *testing.T) {
	namespace := e.namespace(t)
	m := e.startManager(t, 0, "--leader-election-name=rest", "--namespaces="+namespace)
	var db *sql.DB
	for n := range restDatabases { // one after the other: barriers on one server wait for each other
		db = e.applySome(t, namespace, n)
		e.awaitOpen(t, namespace, n)
	}

	e.awaitLooks(t, namespace) // events follow the status, and so does the first look at it
	before := e.writes(namespace)
	e.awaitLooks(t, namespace)
	if written := e.writes(namespace)[len(before):]; len(written) > 0 {
		t.Errorf("at rest it wrote %d times, first %+v", len(written), written[0])
	}
	memory := m.memory(t)
	connections := number(t, db, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'syncbarrier-manager'`)
	t.Logf("%d SyncSchemas at rest: %d MiB of memory, %d database connections", restDatabases*restSchemas, memory>>20, connections)
	if memory > mostMemory {
		t.Errorf("the manager takes %d bytes of memory, more than %d", memory, mostMemory)
	}
	if connections > mostConnections {
		t.Errorf("the manager has %d connections, more than %d", connections, mostConnections)
	}
}

// applySome makes a database of a number, its schemas and their SyncSchemas.
func (e *environment) applySome(t *testing.T, namespace string, n int) *sql.DB {
	t.Helper()
	url := testdb.Postgres(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // the database goes anyway
	secret := fmt.Sprintf("database-%d", n)
	made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secret}, StringData: map[string]string{"uri": url}}
	if err := e.client.Create(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	var objects strings.Builder
	for i := range restSchemas {
		if _, err := db.ExecContext(t.Context(), fmt.Sprintf(`CREATE SCHEMA s%d`, i)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&objects, `
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic-%d-%d, namespace: %s}
spec:
  database: {postgres: {schema: s%d, urlFrom: {secretKeyRef: {name: %s, key: uri}}}}
  version: 1
  tables:
  - {name: todos, columns: [{name: id, type: integer}, {name: title, type: string}], primaryKey: [id]}
---
`, n, i, namespace, i, secret)
	}
	e.kubectl(t, objects.String(), "apply", "--server-side", "-f", "-")
	return db
}

// awaitOpen waits until the gates of all SyncSchemas of one database are open.
func (e *environment) awaitOpen(t *testing.T, namespace string, database int) {
	t.Helper()
	var closed []string
	waitFor(t, fmt.Sprintf("the gates of database %d to be open", database), func(ctx context.Context) (bool, error) {
		var schemas v1alpha1.SyncSchemaList
		if err := e.client.List(ctx, &schemas, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		closed = nil
		for _, schema := range schemas.Items {
			open := schema.Status.GateOpen != nil && *schema.Status.GateOpen
			if strings.HasPrefix(schema.Name, fmt.Sprintf("clinic-%d-", database)) && !open {
				closed = append(closed, fmt.Sprintf("%s: %+v", schema.Name, schema.Status.Conditions))
			}
		}
		return len(closed) == 0, nil
	}, func() string { return strings.Join(closed, "\n") })
}

// awaitLooks waits until every SyncSchema was looked at twice, as far as the number of times tells that their Secrets were read.
func (e *environment) awaitLooks(t *testing.T, namespace string) {
	t.Helper()
	looks := func() int {
		all := e.cluster.Requests(systemNamespace, account)
		return len(slices.DeleteFunc(all, func(r testcluster.Request) bool { return r.Namespace != namespace || r.Resource != "secrets" }))
	}
	begin := looks()
	waitFor(t, "two looks at all", func(context.Context) (bool, error) { return looks() >= begin+2*restDatabases*restSchemas, nil })
}

// memory is what the process has in memory, in bytes.
func (m *manager) memory(t *testing.T) int64 {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "ps", "-o", "rss=", "-p", strconv.Itoa(m.command.Process.Pid)).Output()
	if err != nil {
		t.Fatalf("ask ps for the memory of the manager: %v", err)
	}
	kibibytes, err := strconv.ParseInt(strings.TrimSpace(string(output)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kibibytes << 10
}

// writes are the requests of managers that wrote something in a namespace, in order.
func (e *environment) writes(namespace string) []testcluster.Request {
	all := e.cluster.Requests(systemNamespace, account)
	return slices.DeleteFunc(all, func(r testcluster.Request) bool {
		return r.Namespace != namespace || slices.Contains([]string{"get", "list", "watch"}, r.Verb)
	})
}
