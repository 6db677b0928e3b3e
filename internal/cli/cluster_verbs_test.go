package cli

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

func statusLists(t *testing.T, u *person) {
	u.create(t, waiting)
	got := u.run(t, "status")
	got.exits(t, exitDone)
	line := strings.Fields(strings.Split(got.out, "\n")[1])
	want := []string{u.namespace, "clinic", "7", "6", "closed", "False", "ApprovalPending"}
	if strings.Join(line, " ") != strings.Join(want, " ") {
		t.Errorf("status shows %q, want %q", line, want)
	}
	other := *u
	other.namespace = "default"
	other.run(t, "status").has(t, "no SyncSchemas in namespace default")
	other.run(t, "status", "--all-namespaces").has(t, u.namespace)
	schemas := parseJSON(t, u.run(t, "status", "-o", "json").out)["schemas"].([]any)
	first := schemas[0].(map[string]any)
	if len(schemas) != 1 || first["reason"] != "ApprovalPending" || first["storedVersion"] != 6.0 || first["gateOpen"] != false {
		t.Errorf("status -o json shows %v", schemas)
	}
}

func statusShowsOne(t *testing.T, u *person) {
	u.create(t, waiting)
	for schema, state := range map[string]string{"clinic": "backfilling", "billing": "activated"} {
		checkpoint := &v1alpha1.BackfillCheckpoint{}
		parse(t, `
metadata: {name: title-norm-of-`+schema+`}
spec:
  schemaRef: {name: `+schema+`}
  name: title-norm
  version: 7
  sources: [{table: todos, changes: CommitLog}]
  backfill: {update: {table: todos, set: {title_norm: lower(title)}}}
`, checkpoint)
		checkpoint.Namespace = u.namespace
		if err := u.admin.Create(t.Context(), checkpoint); err != nil {
			t.Fatal(err)
		}
		checkpoint.Status = v1alpha1.BackfillCheckpointStatus{}
		parse(t, `
observedGeneration: 1
state: `+state+`
partitions: {total: 3, activated: 1, backfilling: 2}
rows: {done: 2000, estimated: 20000, secondsLeft: 90}
jobName: clinic-title-norm-1
holdReason: replica is 12 s behind
conditions: [{type: Ready, status: "False", reason: Throttled, message: A replica is behind., lastTransitionTime: "2026-11-29T12:00:00Z"}]
`, &checkpoint.Status)
		if err := u.admin.Status().Update(t.Context(), checkpoint); err != nil {
			t.Fatal(err)
		}
	}
	got := u.run(t, "status", "clinic")
	got.exits(t, exitDone)
	got.has(t,
		"asks for version 7", "False: ApprovalPending: The plan waits.", "version 6", "writers from version 6 on",
		"PodsUngated=True: PodsWithoutGate: 2 pods run without the gate.",
		"12 held the locks", "4711", "report", "boss", "90 s",
		"plan 0123456789ab to version 7", "kubectl syncbarrier approve clinic", "sync_partitions EXCLUSIVE, todos ACCESS EXCLUSIVE", "about 1m5s",
		"title-norm", "backfilling", "1/3", "2000 of about 20000, 1m30s left", "Throttled", "clinic-title-norm-1 (held: replica is 12 s behind)",
	)
	if strings.Contains(got.out, "activated") {
		t.Errorf("status shows the checkpoint of another schema:\n%s", got.out)
	}
	asJSON := parseJSON(t, u.run(t, "status", "clinic", "-o", "json").out)
	checkpoints := asJSON["checkpoints"].([]any)
	if len(checkpoints) != 1 || asJSON["message"] != "The plan waits." || asJSON["plan"].(map[string]any)["hash"] != "0123456789ab" {
		t.Errorf("status -o json shows %v", asJSON)
	}
}

func statusOfAnEditedObject(t *testing.T, u *person) {
	schema := u.create(t, open)
	u.run(t, "status").has(t, "GateOpen")
	schema.Spec.Version = 8
	if err := u.admin.Update(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	got := u.run(t, "status", "clinic")
	got.has(t, "Unknown: NotObserved")
	got = u.run(t, "approve", "clinic", "-o", "json")
	got.exits(t, exitOther)
	got.has(t, `"reason": "NotObserved"`)
}

func approveReleases(t *testing.T, u *person) {
	schema := u.create(t, waiting)
	got := u.run(t, "approve", "clinic", "--hash", "0123456789ab")
	got.exits(t, exitDone)
	got.has(t, "todos ACCESS EXCLUSIVE", "plan 0123456789ab of clinic to version 7 is approved")
	found := u.again(t, schema)
	if value := found.Annotations["syncbarrier.dev/approve"]; value != "7@0123456789ab" {
		t.Errorf("the annotation is %q", value)
	}
	if found.Generation != schema.Generation {
		t.Error("approving changed the spec")
	}
}

func approveRefuses(t *testing.T, u *person) {
	schema := u.create(t, waiting)
	got := u.run(t, "approve", "clinic", "--hash", "ba9876543210", "-o", "json")
	got.exits(t, exitOther)
	got.has(t, `"reason": "OtherPlan"`, "0123456789ab")
	u.says(t, schema, open)
	got = u.run(t, "approve", "clinic", "-o", "json")
	got.exits(t, exitOther)
	got.has(t, `"reason": "NothingToApprove"`, "GateOpen")
	if annotations := u.again(t, schema).Annotations; len(annotations) != 0 {
		t.Errorf("a refusal left %v", annotations)
	}
}

func suspendAndResume(t *testing.T, u *person) {
	schema := u.create(t, waiting)
	u.run(t, "suspend", "clinic").has(t, "clinic is suspended; kubectl syncbarrier resume clinic")
	if !u.again(t, schema).Spec.Suspend {
		t.Error("suspend did not suspend")
	}
	u.run(t, "suspend", "clinic").has(t, "is suspended already")
	u.run(t, "status", "clinic").has(t, "NotObserved", "suspended yes")
	u.run(t, "resume", "clinic").has(t, "clinic goes on")
	found := u.again(t, schema)
	if found.Spec.Suspend {
		t.Error("resume did not resume")
	}
	if !reflect.DeepEqual(found.Spec, schema.Spec) || len(found.Annotations) != 0 {
		t.Errorf("after suspend and resume the object is %+v, %v", found.Spec, found.Annotations)
	}
	u.run(t, "resume", "clinic").has(t, "is not suspended")
}

func suspendWarns(t *testing.T, u *person) {
	u.create(t, waiting)
	if got := u.run(t, "suspend", "clinic"); strings.Contains(got.problems, "warning") {
		t.Errorf("a warning where nobody applies the field: %s", got.problems)
	}
	manifest := "apiVersion: syncbarrier.dev/v1alpha1\nkind: SyncSchema" + strings.Replace(clinic, "spec:", "spec:\n  suspend: false", 1)
	if _, err := u.cluster.Kubectl(manifest, "apply", "--server-side", "--force-conflicts", "--field-manager=argocd", "-n", u.namespace, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	u.run(t, "suspend", "clinic").has(t, `warning: "argocd" applies spec.suspend too`)
}

func retryWrites(t *testing.T, u *person) {
	schema := u.create(t, stalled)
	u.run(t, "retry", "clinic").exits(t, exitDone)
	value := u.again(t, schema).Annotations["syncbarrier.dev/retry"]
	at, err := time.Parse(time.RFC3339, value)
	if err != nil {
		t.Fatalf("the annotation is %q", value)
	}
	// The clock of this person's machine stands still; that of the API server is ours.
	if off := time.Since(at).Abs(); off > time.Minute {
		t.Errorf("the annotation is %s, %s off the time of the cluster", value, off)
	}
}

// steps is a clock on which each pause is what happens meanwhile.
type steps struct {
	frozen
	next []func()
}

func (s *steps) Sleep(ctx context.Context, d time.Duration) error {
	if len(s.next) == 0 {
		return s.frozen.Sleep(ctx, d)
	}
	step := s.next[0]
	s.next = s.next[1:]
	step()
	return context.Cause(ctx)
}

func watchEndsReady(t *testing.T, u *person) {
	schema := u.create(t, waiting)
	clock := &steps{next: []func(){
		func() {}, // nothing happens, so nothing is said
		func() {
			u.says(t, schema, strings.ReplaceAll(strings.ReplaceAll(waiting, "ApprovalPending", "Migrating"), "The plan waits.", "The barrier is being made."))
		},
		func() { u.says(t, schema, open) },
	}}
	u.clock = clock
	got := u.run(t, "watch", "clinic")
	got.exits(t, exitDone)
	want := "12:00:00  ApprovalPending: The plan waits.\n12:00:00  Migrating: The barrier is being made.\n12:00:00  GateOpen: Version 7 may serve.\n"
	if got.out != want || len(clock.next) != 0 {
		t.Errorf("watch said\n%swant\n%s", got.out, want)
	}
}

func watchEndsStalled(t *testing.T, u *person) {
	u.create(t, stalled)
	got := u.run(t, "watch", "clinic", "-o", "json")
	got.exits(t, 24)
	if line := parseJSON(t, got.out); line["reason"] != "ContentDrift" || line["message"] != "The content of version 6 was edited." {
		t.Errorf("watch said %v", line)
	}
}

func watchAfterRetry(t *testing.T, u *person) {
	schema := u.create(t, stalled)
	u.run(t, "retry", "clinic").exits(t, exitDone)
	u.clock = &steps{next: []func(){func() { u.says(t, u.again(t, schema), open) }}}
	got := u.run(t, "watch", "clinic")
	got.exits(t, exitDone)
	got.has(t, "of before: ContentDrift", "GateOpen")

	u.annotate(t, schema, time.Now().Add(-time.Hour)) // a request of long ago hides no verdict
	u.says(t, u.again(t, schema), stalled)
	u.run(t, "watch", "clinic").exits(t, 24)
}

// annotate asks for another attempt, at a time.
func (u *person) annotate(t *testing.T, schema *v1alpha1.SyncSchema, at time.Time) {
	t.Helper()
	found := u.again(t, schema)
	found.Annotations[v1alpha1.AnnotationRetry] = at.UTC().Format(time.RFC3339)
	if err := u.admin.Update(t.Context(), found); err != nil {
		t.Fatal(err)
	}
}

func watchGivesUp(t *testing.T, u *person) {
	u.create(t, waiting)
	got := u.run(t, "watch", "clinic", "--timeout", "300ms")
	got.exits(t, exitGaveUp)
	got.has(t, "gave up after 300ms (--timeout)")
}

func forbidden(t *testing.T, u *person) {
	u.create(t, waiting)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: "visitor"}}
	if err := u.admin.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	visitor := *u
	visitor.kubeconfig = u.cluster.Kubeconfig("visitor", u.cluster.ServiceAccount(u.namespace, "visitor"))
	got := visitor.run(t, "status", "clinic", "-o", "json")
	got.exits(t, exitOther)
	got.has(t, `"reason": "Forbidden"`, `cannot get resource \"syncschemas\"`)
}

func wrongCalls(t *testing.T, u *person) {
	got := u.run(t, "status", "nobody", "-o", "json")
	got.exits(t, exitOther)
	got.has(t, `"reason": "NotFound"`, "kubectl syncbarrier status --all-namespaces")
	u.run(t, "approve").exits(t, exitUsage)
	u.run(t, "status", "one", "two").exits(t, exitUsage)
	got = u.run(t, "status", "clinic", "--database", "sqlite:x")
	got.exits(t, exitUsage)
	got.has(t, "a database was given, and a cluster too")
	got = u.run(t, "suspend", "clinic", "-o", "yaml")
	got.exits(t, exitUsage)
	if err := u.admin.DeleteAllOf(t.Context(), &v1alpha1.SyncSchema{}, client.InNamespace(u.namespace)); err != nil {
		t.Fatal(err)
	}
}
