package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// now is the time of every test.
var now = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// TestInACluster runs the verbs of the command line against one real API server. Each part has a namespace of its own.
func TestInACluster(t *testing.T) {
	c := testcluster.Start(t)
	got := (&person{cluster: c, kubeconfig: c.AdminKubeconfig(), namespace: "default"}).run(t, "status", "-o", "json")
	got.exits(t, exitOther)
	got.has(t, `"reason": "NotInstalled"`, "does not know the kinds of Syncbarrier")
	c.InstallCRDs()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := client.New(c.Admin(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	for name, part := range map[string]func(*testing.T, *person){
		"status shows the SyncSchemas of a namespace and of all":                  statusLists,
		"status shows one SyncSchema with its backfills, blockers and plan":       statusShowsOne,
		"status does not take the word of an older generation":                    statusOfAnEditedObject,
		"approve releases exactly the plan that waits":                            approveReleases,
		"approve refuses where no plan waits, or another one":                     approveRefuses,
		"suspend and resume change spec.suspend and nothing else":                 suspendAndResume,
		"suspend warns where somebody applies the field too":                      suspendWarns,
		"retry writes the time of the cluster, not of a person's machine":         retryWrites,
		"why says what the pod says":                                              whyAsksThePod,
		"bypass writes until when and why, and takes it back":                     bypassDecides,
		"watch says each thing once and ends when the object is Ready":            watchEndsReady,
		"watch ends with the exit code of the reason when a person must act":      watchEndsStalled,
		"watch does not end with a verdict of before a retry":                     watchAfterRetry,
		"watch gives up after its time":                                           watchGivesUp,
		"a user without the right is told which one":                              forbidden,
		"a name that is not there, a name too many, a database and a cluster too": wrongCalls,
	} {
		t.Run(name, func(t *testing.T) {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
			if err := admin.Create(t.Context(), namespace); err != nil {
				t.Fatal(err)
			}
			part(t, &person{cluster: c, admin: admin, kubeconfig: c.AdminKubeconfig(), namespace: namespace.Name})
		})
	}
	t.Run("an API server that does not answer", func(t *testing.T) {
		c.KillAPIServer()
		defer c.RestartAPIServer()
		u := &person{cluster: c, admin: admin, kubeconfig: c.AdminKubeconfig(), namespace: "shop"}
		got := u.run(t, "status", "clinic", "-o", "json")
		got.exits(t, exitGaveUp)
		got.has(t, `"reason": "Unreachable"`, "the cluster does not answer")
	})
	t.Run("watch waits for an API server that is away for a while", func(t *testing.T) {
		u := &person{cluster: c, admin: admin, kubeconfig: c.AdminKubeconfig(), namespace: "default"}
		schema := u.create(t, waiting)
		u.clock = &steps{next: []func(){
			c.KillAPIServer,
			func() {
				c.RestartAPIServer()
				u.says(t, u.again(t, schema), open)
			},
		}}
		got := u.run(t, "watch", "clinic")
		got.exits(t, exitDone)
		got.has(t, "ApprovalPending", "Unreachable: read SyncSchema default/clinic: the cluster does not answer", "GateOpen")
	})
}

// person is a person with a kubeconfig.
type person struct {
	cluster    *testcluster.Cluster
	admin      client.Client
	kubeconfig string
	namespace  string
	clock      clock.Clock
}

// ran is what a command printed and how it ended.
type ran struct {
	out, problems string
	code          int
}

// run runs a command in the user's namespace.
func (u *person) run(t *testing.T, args ...string) ran {
	t.Helper()
	var out, problems bytes.Buffer
	if u.clock == nil {
		u.clock = frozen{}
	}
	p := &Program{
		Name: pluginName, Version: "test", In: strings.NewReader(""), Out: &out, Err: &problems, Clock: u.clock,
		Getenv: func(name string) string {
			if name == databaseVariable {
				return "sqlite:/nowhere/that-a-plugin-looks"
			}
			return os.Getenv(name)
		},
	}
	code := p.Run(t.Context(), append(args, "--kubeconfig", u.kubeconfig, "--namespace", u.namespace))
	return ran{out.String(), problems.String(), code}
}

func (r ran) exits(t *testing.T, code int) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.problems)
	}
}

// has wants texts in what was printed.
func (r ran) has(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.out+r.problems, text) {
			t.Errorf("nothing says %q:\n%s%s", text, r.out, r.problems)
		}
	}
}

// frozen is a clock that stands still; sleeping on it ends with the context alone.
type frozen struct{ clock.Real }

func (frozen) Now() time.Time { return now }

const clinic = `
metadata: {name: clinic}
spec:
  version: 7
  strategy: {cutover: OnApproval}
  database: {postgres: {urlFrom: {secretKeyRef: {name: clinic-app, key: uri}}}}
  tables:
  - name: todos
    columns: [{name: id, type: integer}, {name: title, type: string}, {name: title_norm, type: string, nullable: true}]
    primaryKey: [id]
`

// create makes the SyncSchema clinic with a status.
func (u *person) create(t *testing.T, status string) *v1alpha1.SyncSchema {
	t.Helper()
	schema := &v1alpha1.SyncSchema{}
	parse(t, clinic, schema)
	schema.Namespace = u.namespace
	if err := u.admin.Create(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	u.says(t, schema, status)
	return schema
}

// says writes what the operator would write.
func (u *person) says(t *testing.T, schema *v1alpha1.SyncSchema, status string) {
	t.Helper()
	schema.Status = v1alpha1.SyncSchemaStatus{ObservedGeneration: schema.Generation}
	parse(t, status, &schema.Status)
	for i := range schema.Status.Conditions {
		schema.Status.Conditions[i].LastTransitionTime = metav1.NewTime(now)
	}
	if err := u.admin.Status().Update(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
}

// again reads the SyncSchema.
func (u *person) again(t *testing.T, schema *v1alpha1.SyncSchema) *v1alpha1.SyncSchema {
	t.Helper()
	found := &v1alpha1.SyncSchema{}
	if err := u.admin.Get(t.Context(), client.ObjectKeyFromObject(schema), found); err != nil {
		t.Fatal(err)
	}
	return found
}

func parse(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

func parseJSON(t *testing.T, text string) map[string]any {
	t.Helper()
	found := map[string]any{}
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return found
}

const (
	open = `
storedVersion: 7
gateOpen: true
conditions:
- {type: Ready, status: "True", reason: GateOpen, message: Version 7 may serve.}
`
	waiting = `
storedVersion: 6
minWriterVersion: 6
minReaderVersion: 0
gateOpen: false
attempts: 2
blockers: [{kind: session, pid: 4711, name: report, user: boss, table: todos, heldSeconds: 90}]
blockersTotal: 12
plan:
  hash: 0123456789ab
  version: 7
  locks: [{table: sync_partitions, mode: EXCLUSIVE}, {table: todos, mode: ACCESS EXCLUSIVE}]
  rowsBackfilled: 20000
  expectedPauseMilliseconds: 65000
conditions:
- {type: Ready, status: "False", reason: ApprovalPending, message: The plan waits.}
- {type: Reconciling, status: "True", reason: ApprovalPending, message: The plan waits.}
- {type: PodsUngated, status: "True", reason: PodsWithoutGate, message: 2 pods run without the gate.}
`
	stalled = `
storedVersion: 6
conditions:
- {type: Ready, status: "False", reason: ContentDrift, message: The content of version 6 was edited.}
- {type: Stalled, status: "True", reason: ContentDrift, message: The content of version 6 was edited.}
`
)
