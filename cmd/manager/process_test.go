package main

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
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

// TestManager runs the program in a cluster that config/no-webhook was installed into. Its parts share the cluster, and each has managers,
// a lease, a namespace and a database of its own.
func TestManager(t *testing.T) {
	e := newEnvironment(t, "config/no-webhook")
	t.Run("it works on what it finds, with its own pod's image for the workers", e.testWork)
	t.Run("what stands in a Secret or a row is shown nowhere, whatever part of an address it is taken for", e.testNothingShown)
	t.Run("with config/secret-use an editor uses the Secrets that he may read, and no others", e.testSecretUse)
	t.Run("metrics are for those whom the API server knows and allows", e.testMetrics)
	t.Run("of two managers one works, and the other takes over when the lease is taken away in the middle of a migration", e.testLeaseTakenAway)
	t.Run("SIGTERM in the middle of a migration rolls it back and gives the lease up", e.testTerminated)
	t.Run("SIGKILL in the middle of a migration leaves nothing that holds the next one up", e.testKilled)
	t.Run("SIGKILL after the commit and before a status could be written runs nothing twice", e.testKilledAfterCommit)
	t.Run("a COMMIT whose answer is lost, with and without the manager, runs nothing twice", e.testCommitLost)
	t.Run("pods with a gate that was written by hand are held without a webhook", e.testHandWritten)
	t.Run("a namespace that is deleted under it is no error", e.testNamespaceGone)
	t.Run("for one namespace it works with rights in that namespace alone", e.testNamespaced)
	t.Run("with many SyncSchemas at rest it writes nothing, and its memory and connections are bounded", e.testRest)
	t.Run("each right of its own roles was needed", e.testRights)
	t.Run("its two pods are restricted, and never both evicted", e.testPods)
	t.Run("what make does with a cluster is what it says", e.testMake)
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

	first.troubled = true
	e.takeLease(t, name)
	// Lost after the renew deadline of 8 s at the latest; then 2 s to roll back, and more for a machine that is busy.
	if code := first.awaitExit(t, 20*time.Second); code != 1 {
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

	first.troubled = true
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
	e.kubectl(t, "", "create", "namespace", "ward") // another one beside it takes nothing away
	e.kubectl(t, overlay(t, "namespace: ward\nresources: [CONFIG/namespaced]\n"), "apply", "--server-side", "-f", "-")
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

// testRights comes after all that asked for something, and looks at that. The rules for the objects are those of the controllers, whose specs
// look at them.
func (e *environment) testRights(t *testing.T) {
	e.expectRightsUsed(t, "syncbarrier-manager")
}

// expectRightsUsed wants every rule of every role that is bound to the manager's account to have been needed, but for roles that others look at.
func (e *environment) expectRightsUsed(t *testing.T, others ...string) {
	t.Helper()
	requests := e.cluster.Requests(systemNamespace, account)
	rules, names := e.rulesOf(t, others)
	if len(names) < 2 {
		t.Fatalf("the account has the roles %q: this looks at nothing", names)
	}
	unused := testcluster.Unused(rules, requests)
	// An API server that streams what there is to watch is not asked for a list before; an older one is.
	unused = slices.DeleteFunc(unused, func(right string) bool { return right == "list core/secrets" })
	if len(unused) > 0 {
		t.Errorf("rights of %q that no manager needed: %q", names, unused)
	}
	for _, request := range requests {
		if !request.Allowed {
			t.Errorf("a manager asked for what it may not: %+v", request)
		}
	}
}

// rulesOf are the rules of all roles that are bound to the manager's account, but for some, and the roles' names.
func (e *environment) rulesOf(t *testing.T, but []string) (rules []rbacv1.PolicyRule, names []string) {
	t.Helper()
	var bindings rbacv1.RoleBindingList
	var clusterBindings rbacv1.ClusterRoleBindingList
	if err := errors.Join(e.client.List(t.Context(), &bindings), e.client.List(t.Context(), &clusterBindings)); err != nil {
		t.Fatal(err)
	}
	take := func(namespace string, subjects []rbacv1.Subject, ref rbacv1.RoleRef) {
		its := slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool { return s.Name == account && s.Namespace == systemNamespace })
		if !its || slices.Contains(but, ref.Name) {
			return
		}
		names = append(names, ref.Name)
		var role rbacv1.Role
		var clusterRole rbacv1.ClusterRole
		var err error
		if ref.Kind == "Role" {
			err = e.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: ref.Name}, &role)
		} else {
			err = e.client.Get(t.Context(), types.NamespacedName{Name: ref.Name}, &clusterRole)
		}
		if err != nil {
			t.Fatal(err)
		}
		rules = append(append(rules, role.Rules...), clusterRole.Rules...)
	}
	for _, binding := range bindings.Items {
		take(binding.Namespace, binding.Subjects, binding.RoleRef)
	}
	for _, binding := range clusterBindings.Items {
		take("", binding.Subjects, binding.RoleRef)
	}
	return rules, names
}
