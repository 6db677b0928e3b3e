package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
	"github.com/syncbarrier/syncbarrier/test/gitops"
)

// asProgram makes the test binary be the program: a process that can be killed.
const asProgram = "SYNCBARRIER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const (
	systemNamespace = "syncbarrier-system"
	account         = "syncbarrier-manager"
	// image is by digest what the pods' status says.
	imageDigest = "ghcr.io/syncbarrier/syncbarrier@sha256:4b825dc642cb6eb9a060e54bf8d69288fbee49044b825dc642cb6eb9a060e54b"
	// patience bounds every wait for something that a manager does.
	patience = 90 * time.Second
)

// environment is a cluster into which a folder of config was installed, as a user does, and whose pods are processes of the tests.
type environment struct {
	cluster *testcluster.Cluster
	client  client.Client
	// passwords are those of the databases, which stand in no log.
	passwords []string
	// pods are the names of the pods that the Deployment got, args what they are started with.
	pods []string
	args []string
}

func newEnvironment(t testing.TB, folder string) *environment {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := testcluster.Start(t)
	cluster.StartControllers()
	admin, err := client.New(cluster.Admin(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	e := &environment{cluster: cluster, client: admin}
	e.kubectl(t, kustomize(t, folder), "apply", "-f", "-")
	e.cluster.AwaitCRDs()
	e.findPods(t)
	return e
}

// kustomize builds a folder of this checkout with the tool that users are told to use.
func kustomize(t testing.TB, folder string) string {
	t.Helper()
	root, err := testcluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "tool"), "kustomize", "build", filepath.Join(root, folder))
	var problems bytes.Buffer
	build.Stderr = &problems
	output, err := build.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v: %s", folder, err, problems.String())
	}
	return string(output)
}

func (e *environment) kubectl(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	output, err := e.cluster.Kubectl(stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// findPods waits until the Deployment has its pods, which the namespace's pod security let in, and says of them what a kubelet would.
func (e *environment) findPods(t testing.TB) {
	t.Helper()
	var deployment appsv1.Deployment
	name := types.NamespacedName{Namespace: systemNamespace, Name: "syncbarrier-manager"}
	if err := e.client.Get(t.Context(), name, &deployment); err != nil {
		t.Fatal(err)
	}
	e.args = deployment.Spec.Template.Spec.Containers[0].Args
	var pods corev1.PodList
	waitFor(t, "the two pods of the Deployment", func(ctx context.Context) (bool, error) {
		err := e.client.List(ctx, &pods, client.InNamespace(systemNamespace), client.MatchingLabels(deployment.Spec.Selector.MatchLabels))
		return len(pods.Items) == 2, err
	})
	for i := range pods.Items {
		pod := &pods.Items[i]
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "manager", Image: pod.Spec.Containers[0].Image, ImageID: imageDigest}}
		if err := e.client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		e.pods = append(e.pods, pod.Name)
	}
}

// namespace makes one for a test, and removes what the test put into it, so that no later manager works on it.
func (e *environment) namespace(t testing.TB) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := e.client.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// By collections: one by one, a thousand take minutes.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		for _, kind := range []client.Object{&v1alpha1.SyncSchema{}, &v1alpha1.BackfillCheckpoint{}, &batchv1.Job{}} {
			err := e.client.DeleteAllOf(ctx, kind, client.InNamespace(namespace.Name), client.PropagationPolicy(metav1.DeletePropagationBackground))
			if err != nil {
				t.Errorf("delete what is left of %T: %v", kind, err)
			}
		}
	})
	return namespace.Name
}

// database makes a database, and the Secret clinic with its address.
func (e *environment) database(t testing.TB, namespace string) *sql.DB {
	t.Helper()
	url := testdb.Postgres(t)
	e.secret(t, namespace, "clinic", url)
	return open(t, url)
}

func open(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // the database goes anyway
	return db
}

// secret makes a Secret with the address of a database.
func (e *environment) secret(t testing.TB, namespace, name, address string) {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	if password, ok := parsed.User.Password(); ok && !slices.Contains(e.passwords, password) {
		e.passwords = append(e.passwords, password)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: map[string]string{"uri": address}}
	if err := e.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// apply applies the SyncSchema clinic of a version, with lines added to its spec.
func (e *environment) apply(t testing.TB, namespace string, version int, more string) {
	t.Helper()
	object := fmt.Sprintf(`
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic, namespace: %s}
spec:
  database: {postgres: {urlFrom: {secretKeyRef: {name: clinic, key: uri}}}}
  version: %d
  tables:
  - name: todos
    columns:
    - {name: id, type: integer}
    - {name: title, type: string}
    primaryKey: [id]
%s`, namespace, version, more)
	e.kubectl(t, object, "apply", "--server-side", "-f", "-")
}

// status waits until the condition Ready of the SyncSchema clinic has a reason, and returns the status.
func (e *environment) status(t testing.TB, namespace, reason string) v1alpha1.SyncSchemaStatus {
	t.Helper()
	var schema v1alpha1.SyncSchema
	waitFor(t, "reason "+reason, func(ctx context.Context) (bool, error) {
		if err := e.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "clinic"}, &schema); err != nil {
			return false, err
		}
		if err := gitops.Check(ctx, &schema); err != nil {
			t.Fatal(err)
		}
		for _, condition := range schema.Status.Conditions {
			if condition.Type == "Ready" && condition.ObservedGeneration == schema.Generation && condition.Reason == reason {
				return true, nil
			}
		}
		return false, nil
	}, func() string { return fmt.Sprintf("%+v", schema.Status.Conditions) })
	return schema.Status
}

// number reads one number from a database.
func number(t testing.TB, db *sql.DB, query string) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// manager is the program as a process.
type manager struct {
	command         *exec.Cmd
	log             string
	health, metrics string
	exited          chan struct{}
	// troubled says that the test took something away that the program needs.
	troubled bool
}

// startManager starts the program in place of the pod of a number, with the Deployment's arguments and those given.
func (e *environment) startManager(t testing.TB, pod int, args ...string) *manager {
	t.Helper()
	m := &manager{log: filepath.Join(t.TempDir(), "manager.log"), health: freeAddress(t), metrics: freeAddress(t), exited: make(chan struct{})}
	log, err := os.Create(m.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	kubeconfig := e.cluster.Kubeconfig("manager", e.cluster.ServiceAccount(systemNamespace, account))
	all := append([]string{
		"--kubeconfig=" + kubeconfig, "--health-bind-address=" + m.health, "--metrics-bind-address=" + m.metrics, "--resync=5s",
		"--leader-election-lease-duration=10s", "--leader-election-renew-deadline=8s", "--leader-election-retry-period=500ms",
	}, e.args...)
	// Two managers on one machine cannot both have the webhook's port; a test of the webhook gives it another.
	all = append(all, "--webhook-bind-address=0")
	m.command = exec.Command(os.Args[0], append(all, args...)...)
	m.command.Env = append(os.Environ(), asProgram+"=1", "POD_NAMESPACE="+systemNamespace, "POD_NAME="+e.pods[pod])
	m.command.Stdout, m.command.Stderr = log, log
	if err := m.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = m.command.Wait() // its exit code is read where it matters
		close(m.exited)
	}()
	t.Cleanup(func() {
		_ = m.command.Process.Kill() // it may have ended
		<-m.exited
		m.expectGoodLog(t, e.passwords)
		if t.Failed() {
			t.Logf("log of the manager %s:\n%s", e.pods[pod], m.output(t))
		}
	})
	return m
}

func freeAddress(t testing.TB) string {
	t.Helper()
	port, err := testcluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// expectGoodLog looks at the whole log: a JSON object a line, without a secret, and without an error if there was no trouble.
func (m *manager) expectGoodLog(t testing.TB, passwords []string) {
	t.Helper()
	lines := 0
	for line := range strings.Lines(m.output(t)) {
		lines++
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry["msg"] == nil || entry["time"] == nil || entry["level"] == nil {
			t.Errorf("a line of the log is no JSON object with time, level and msg: %s", line)
		}
		if entry["level"] == "ERROR" && !m.troubled {
			t.Errorf("an error in the log of a manager that had no trouble: %s", line)
		}
		for _, password := range passwords {
			if strings.Contains(line, password) {
				t.Error("the log shows the password of a database")
			}
		}
	}
	if lines == 0 {
		t.Error("the log is empty")
	}
}

func (m *manager) output(t testing.TB) string {
	t.Helper()
	content, err := os.ReadFile(m.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// awaitExit returns the exit code of a manager that ends within a time.
func (m *manager) awaitExit(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-m.exited:
		return m.command.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("the manager still runs after %v", limit)
		return -1
	}
}

// awaitReady returns once the manager answers its probes.
func (m *manager) awaitReady(t testing.TB) {
	t.Helper()
	waitFor(t, "readiness", func(ctx context.Context) (bool, error) {
		return status(ctx, "http://"+m.health+"/readyz") == http.StatusOK && status(ctx, "http://"+m.health+"/healthz") == http.StatusOK, nil
	})
}

// awaitMetrics returns once the manager listens for scrapes: it begins to at its own time, and its probes do not speak of it.
func (m *manager) awaitMetrics(t testing.TB) {
	t.Helper()
	waitFor(t, "the port of the metrics", func(ctx context.Context) (bool, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.metrics)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, conn.Close()
	})
}

// status asks for a page and returns the status of the answer, 0 for none.
func status(ctx context.Context, url string) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close() // only the status counts
	return response.StatusCode
}

// waitFor waits until something is so. seen, if given, says what was seen instead.
func waitFor(t testing.TB, what string, reached func(context.Context) (bool, error), seen ...func() string) {
	t.Helper()
	waitWithin(t, patience, what, reached, seen...)
}

func waitWithin(t testing.TB, limit time.Duration, what string, reached func(context.Context) (bool, error), seen ...func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, err := reached(ctx)
		if ok && err == nil {
			return
		}
		select {
		case <-ctx.Done():
			var saw strings.Builder
			for _, say := range seen {
				saw.WriteString(say())
			}
			t.Fatalf("waited %v for %s: %v %s", limit, what, err, saw.String())
		case <-ticker.C:
		}
	}
}
