package main

import (
	"context"
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// TestManager runs the program in a cluster that config/default was installed into. Its parts share the cluster, and each has managers,
// a lease, a namespace and a database of its own.
func TestManager(t *testing.T) {
	e := newEnvironment(t)
	t.Run("it works on what it finds, with its own pod's image for the workers", e.testWork)
	t.Run("metrics are for those whom the API server knows and allows", e.testMetrics)
	t.Run("of two managers one works, and the other takes over when the lease is taken away in the middle of a migration", e.testLeaseTakenAway)
	t.Run("SIGTERM in the middle of a migration rolls it back and gives the lease up", e.testTerminated)
	t.Run("SIGKILL in the middle of a migration leaves nothing that holds the next one up", e.testKilled)
	t.Run("SIGKILL after the commit and before a status could be written runs nothing twice", e.testKilledAfterCommit)
	t.Run("for one namespace it works with rights in that namespace alone", e.testNamespaced)
	t.Run("with many SyncSchemas at rest it writes nothing, and its memory and connections are bounded", e.testRest)
	t.Run("each right in its own namespace was needed", e.testRights)
}

// held is a migration that goes on for as long as somebody has the advisory lock 42 of its database.
const held = `
  migrations:
  - version: 2
    sql: |
      DO $$ BEGIN
        WHILE EXISTS (
          SELECT FROM pg_locks
          WHERE locktype = 'advisory' AND objid = 42 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
        LOOP PERFORM pg_sleep(0.05); END LOOP;
      END $$
`

// holdMigrations makes migrations with held stay in their transaction until release.
func holdMigrations(t *testing.T, db *sql.DB) (release func()) {
	t.Helper()
	holder, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run := func(statement string) {
		t.Helper()
		if _, err := holder.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	run(`SELECT pg_advisory_lock(42)`)
	return func() {
		t.Helper()
		run(`SELECT pg_advisory_unlock(42)`)
	}
}

// migrating is the server process of the session that is in a held migration, 0 for none. It asks nothing of the tables that a barrier
// locks.
const migrating = `
	SELECT coalesce(max(pid), 0)
	FROM pg_stat_activity
	WHERE datname = current_database()
	AND application_name = 'syncbarrier-manager'
	AND wait_event = 'PgSleep'`

// awaitMigrating returns the server process of a held migration once it is under way, other than one that is known.
func awaitMigrating(t *testing.T, db *sql.DB, other int64) (pid int64) {
	t.Helper()
	waitFor(t, "a migration to be under way", func(context.Context) (bool, error) {
		pid = number(t, db, migrating)
		return pid != 0 && pid != other, nil
	})
	return pid
}

// inTransaction is 1 if a server process is in a transaction, else 0.
func inTransaction(t *testing.T, db *sql.DB, pid int64) int64 {
	t.Helper()
	return number(t, db, fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND xact_start IS NOT NULL`, pid))
}

// expectRolledBack looks at the session of a manager that has ended.
func expectRolledBack(t *testing.T, db *sql.DB, pid int64) {
	t.Helper()
	if inTransaction(t, db, pid) != 0 {
		t.Errorf("the session %d of the manager that has ended is still in its transaction", pid)
	}
}

func (e *environment) testWork(t *testing.T) {
	namespace := e.namespace(t)
	db := e.database(t, namespace)
	m := e.startManager(t, 0, "--leader-election-name=work")
	m.awaitReady(t)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	if stored := number(t, db, `SELECT schema_version FROM sync_schema_meta`); stored != 1 {
		t.Errorf("the database is at version %d, want 1", stored)
	}

	e.apply(t, namespace, 2, `
  checkpoints:
  - name: titles
    version: 2
    sources: [{table: todos, changes: CommitLog}]
    backfill: {update: {table: todos, set: {title: lower(title)}}}
`)
	e.status(t, namespace, "Backfilling")
	var jobs batchv1.JobList
	waitFor(t, "the Job of the checkpoint", func(ctx context.Context) (bool, error) {
		return len(jobs.Items) == 1, e.client.List(ctx, &jobs, client.InNamespace(namespace))
	})
	if image := jobs.Items[0].Spec.Template.Spec.Containers[0].Image; image != imageDigest {
		t.Errorf("the worker's image is %s, want that of the manager's pod, %s", image, imageDigest)
	}
	for line := range strings.Lines(m.output(t)) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry["msg"] == nil || entry["time"] == nil || entry["level"] == nil {
			t.Fatalf("a line of the log is no JSON object with time, level and msg: %s", line)
		}
	}
}

func (e *environment) testMetrics(t *testing.T) {
	m := e.startManager(t, 0, "--leader-election-name=metrics")
	m.awaitMetrics(t)
	e.kubectl(t, "", "create", "serviceaccount", "stranger", "-n", "default")
	e.kubectl(t, "", "create", "serviceaccount", "prometheus", "-n", "default")
	e.kubectl(t, "", "create", "clusterrolebinding", "prometheus", "--clusterrole=syncbarrier-metrics-reader", "--serviceaccount=default:prometheus")

	if code, _ := m.scrape(t, ""); code != http.StatusUnauthorized {
		t.Errorf("without a token the answer is %d, want 401", code)
	}
	if code, _ := m.scrape(t, e.cluster.ServiceAccount("default", "stranger").BearerToken); code != http.StatusForbidden {
		t.Errorf("with a token that no role is bound to it is %d, want 403", code)
	}
	code, page := m.scrape(t, e.cluster.ServiceAccount("default", "prometheus").BearerToken)
	if code != http.StatusOK {
		t.Fatalf("with the role syncbarrier-metrics-reader it is %d, want 200: %s", code, page)
	}
	for _, metric := range []string{"syncbarrier_database_pools", "controller_runtime_reconcile_total", "leader_election_master_status"} {
		if !strings.Contains(page, metric) {
			t.Errorf("the metrics have no %s", metric)
		}
	}
}

// scrape asks for the metrics with a token and returns the answer's status and body.
func (m *manager) scrape(t *testing.T, token string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+m.metrics+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	// The manager makes its certificate at its start, and nobody signs it.
	scraper := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := scraper.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func (e *environment) testLeaseTakenAway(t *testing.T) {
	namespace := e.namespace(t)
	db := e.database(t, namespace)
	const name = "taken"
	first := e.startManager(t, 0, "--leader-election-name="+name)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	second := e.startManager(t, 1, "--leader-election-name="+name)
	second.awaitReady(t)
	release := holdMigrations(t, db)
	e.apply(t, namespace, 2, held)
	pid := awaitMigrating(t, db, 0)

	e.takeLease(t, name)
	// Lost after the renew deadline of 4 s at the latest; then 2 s to roll back.
	if code := first.awaitExit(t, 8*time.Second); code != 1 {
		t.Errorf("the manager that lost its lease ended with %d, want 1", code)
	}
	expectRolledBack(t, db, pid)
	awaitMigrating(t, db, pid) // by the second manager
	release()
	e.status(t, namespace, "GateOpen")
	if runs := number(t, db, `SELECT count(*) FROM sync_barrier_history WHERE version = 2`); runs != 1 {
		t.Errorf("version 2 was recorded %d times, want once", runs)
	}
}

// takeLease makes somebody else the holder of a lease, who never renews it.
func (e *environment) takeLease(t *testing.T, name string) {
	t.Helper()
	var lease coordinationv1.Lease
	if err := e.client.Get(t.Context(), types.NamespacedName{Namespace: systemNamespace, Name: name}, &lease); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"spec": {"holderIdentity": "somebody-else"}}`)
	if err := e.client.Patch(t.Context(), &lease, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

func (e *environment) testTerminated(t *testing.T) {
	namespace := e.namespace(t)
	db := e.database(t, namespace)
	const name = "terminated"
	first := e.startManager(t, 0, "--leader-election-name="+name)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	release := holdMigrations(t, db)
	e.apply(t, namespace, 2, held)
	pid := awaitMigrating(t, db, 0)

	if err := first.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := first.awaitExit(t, shutdownTimeout); code != 0 {
		t.Errorf("it ended with %d, want 0", code)
	}
	expectRolledBack(t, db, pid)
	var lease coordinationv1.Lease
	if err := e.client.Get(t.Context(), types.NamespacedName{Namespace: systemNamespace, Name: name}, &lease); err != nil {
		t.Fatal(err)
	}
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("the lease is still held by %q", *holder)
	}
	release()
	e.startManager(t, 1, "--leader-election-name="+name)
	e.status(t, namespace, "GateOpen")
}

func (e *environment) testKilled(t *testing.T) {
	namespace := e.namespace(t)
	db := e.database(t, namespace)
	const name = "killed"
	first := e.startManager(t, 0, "--leader-election-name="+name)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	release := holdMigrations(t, db)
	e.apply(t, namespace, 2, held)
	pid := awaitMigrating(t, db, 0)
	if err := first.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first.awaitExit(t, 10*time.Second)
	// Nobody tells the server: it looks for its client, and lets go of the locks by itself.
	waitFor(t, "the server to notice", func(context.Context) (bool, error) { return inTransaction(t, db, pid) == 0, nil })
	release()
	e.startManager(t, 1, "--leader-election-name="+name)
	e.status(t, namespace, "GateOpen")
	if runs := number(t, db, `SELECT count(*) FROM sync_barrier_history WHERE version = 2`); runs != 1 {
		t.Errorf("version 2 was recorded %d times, want once", runs)
	}
}

// testKilledAfterCommit stops the API server while a migration is under way, so that nothing of it is known outside the database.
func (e *environment) testKilledAfterCommit(t *testing.T) {
	namespace := e.namespace(t)
	db := e.database(t, namespace)
	const name = "killed-after-commit"
	first := e.startManager(t, 0, "--leader-election-name="+name, "--namespaces="+namespace)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	release := holdMigrations(t, db)
	e.apply(t, namespace, 2, held)
	awaitMigrating(t, db, 0)

	e.cluster.FreezeAPIServer()
	release()
	waitFor(t, "the commit", func(context.Context) (bool, error) {
		return number(t, db, `SELECT schema_version FROM sync_schema_meta`) == 2, nil
	})
	if err := first.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first.awaitExit(t, 10*time.Second)
	e.cluster.ContinueAPIServer()
	if known := e.kubectl(t, "", "get", "syncschema", "clinic", "-n", namespace, "-o", "jsonpath={.status.storedVersion}"); known != "1" {
		t.Fatalf("the status says version %s: the manager was killed too late for this test", known)
	}
	e.startManager(t, 1, "--leader-election-name="+name, "--namespaces="+namespace)
	e.status(t, namespace, "GateOpen")
	if runs := number(t, db, `SELECT count(*) FROM sync_barrier_history WHERE version = 2`); runs != 1 {
		t.Errorf("version 2 was recorded %d times, want once", runs)
	}
}

func (e *environment) testNamespaced(t *testing.T) {
	const own = "shop" // that of config/namespaced
	e.kubectl(t, "", "create", "namespace", own)
	e.kubectl(t, kustomize(t, "config/namespaced"), "apply", "--server-side", "-f", "-")
	other := e.namespace(t)
	e.database(t, own)
	e.database(t, other)
	e.apply(t, own, 1, "")
	e.apply(t, other, 1, "")

	kubeconfig := e.cluster.Kubeconfig("namespaced", e.cluster.ServiceAccount(own, account))
	e.startManager(t, 0, "--kubeconfig="+kubeconfig, "--namespaces="+own, "--metrics-bind-address=127.0.0.1:0", "--metrics-open",
		"--leader-election-namespace="+own, "--worker-image=none")
	e.status(t, own, "GateOpen")
	requests := e.cluster.Requests(own, account)
	for _, request := range requests {
		if !request.Allowed {
			t.Errorf("it asked for what it may not: %+v", request)
		}
	}
	if !slices.ContainsFunc(requests, func(r testcluster.Request) bool { return r.Verb == "watch" && r.Namespace == own }) {
		t.Error("the audit log has no watch of its namespace: this looked at nothing")
	}
	untouched := e.kubectl(t, "", "get", "syncschema", "clinic", "-n", other, "-o", "jsonpath={.status.conditions}")
	if untouched != "" {
		t.Errorf("it wrote a status into another namespace: %s", untouched)
	}
	e.kubectl(t, "", "delete", "syncschemas", "--all", "-n", own, "--timeout=60s")
}

// testRights comes last: it looks at what all the others asked for. The rules for the objects are those of the controllers, whose specs
// look at them.
func (e *environment) testRights(t *testing.T) {
	requests := e.cluster.Requests(systemNamespace, account)
	var self rbacv1.Role
	if err := e.client.Get(t.Context(), types.NamespacedName{Namespace: systemNamespace, Name: "syncbarrier-self"}, &self); err != nil {
		t.Fatal(err)
	}
	var metrics rbacv1.ClusterRole
	if err := e.client.Get(t.Context(), types.NamespacedName{Name: "syncbarrier-metrics-auth"}, &metrics); err != nil {
		t.Fatal(err)
	}
	if unused := testcluster.Unused(append(self.Rules, metrics.Rules...), requests); len(unused) > 0 {
		t.Errorf("rights that no manager needed: %q", unused)
	}
	for _, request := range requests {
		if !request.Allowed {
			t.Errorf("a manager asked for what it may not: %+v", request)
		}
	}
}
