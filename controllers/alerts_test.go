package controllers

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testforeign"
)

// seen is a SyncSchema as passes of its reconcilers see it. Its zero value is one at rest: migrated, its gate open, its pods served.
type seen struct {
	ready      *verdict
	checkpoint *verdict  // Ready of its BackfillCheckpoint
	progress   time.Time // the last commit of that one's backfill; zero: it is activated
	logBytes   int64
	fence      string         // what is wrong with it
	pods       map[string]int // by the reason of their verdict; nil: three that are let in
	ungated    int
	refused    bool // by the API server: the condition of a pod
	bypassed   bool
	gone       bool // the SyncSchema that the pods require
}

// page has the reconcilers show what they see, and returns what a scrape of their registry gets then.
func (s seen) page(t *testing.T) string {
	t.Helper()
	name := types.NamespacedName{Namespace: "shop", Name: "clinic"}
	if s.ready == nil {
		s.ready = done(v1alpha1.ReasonGateOpen, "version 7 may serve")
	}
	if s.checkpoint == nil {
		s.checkpoint = done(v1alpha1.ReasonActivated, "activated")
	}
	if s.pods == nil {
		s.pods = map[string]int{v1alpha1.ReasonGateOpen: 3}
	}
	object := &v1alpha1.SyncSchema{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	(&SyncSchemaReconciler{}).showMetrics(&schemaPass{object: object, verdict: s.ready, fenceBroken: s.fence, gate: &storage.ServeGate{}, status: &storage.Status{LogBytes: s.logBytes}})
	progress := &storage.CheckpointProgress{Total: 1, LatestUpdateAt: s.progress}
	if s.progress.IsZero() {
		progress.Activated = 1
	}
	titles := &v1alpha1.BackfillCheckpoint{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: "clinic-titles"}}
	(&BackfillCheckpointReconciler{}).showMetrics(&checkpointPass{object: titles, verdict: s.checkpoint, progress: progress}, v1alpha1.BackfillCheckpointStatus{})

	facts := podgate.Facts{Found: !s.gone}
	if s.bypassed {
		facts.Bypass = &podgate.Bypass{Reason: "INC-4711"}
	}
	pass := &podPass{name: name, facts: map[string]podgate.Facts{name.Name: facts}}
	add := func(count int, reason string, gates ...corev1.PodReadinessGate) {
		for range count {
			pass.pods = append(pass.pods, judgedPod{pod: &corev1.Pod{Spec: corev1.PodSpec{ReadinessGates: gates}}, verdict: podgate.Verdict{Reason: reason}})
		}
	}
	for reason, count := range s.pods {
		add(count, reason, corev1.PodReadinessGate{ConditionType: v1alpha1.ReadinessGate})
	}
	add(s.ungated, v1alpha1.ReasonGateOpen)
	refusals := &PodRefusals{}
	if s.refused {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: "clinic-0", Annotations: map[string]string{v1alpha1.AnnotationRequires: "clinic=7"},
		}}
		refusals.note(pod, writesCondition, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod.Name, errors.New("a policy")), time.Now())
	}
	(&PodReconciler{Refusals: refusals}).show(pass)
	return scrape(t)
}

func scrape(t *testing.T) string {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "syncbarrier_") {
			if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
				t.Fatal(err)
			}
		}
	}
	return text.String()
}

// lockless is an hour of attempts that do not get their locks, counted and paced as the reconciler does, with the longest lock timeout.
func lockless(t *testing.T) []testforeign.Page {
	t.Helper()
	const timeout = time.Minute
	refused := storage.Refuse(storage.CodeLockTimeout, "table todos")
	var pages []testforeign.Page
	attempt := 1
	for at := time.Duration(0); at < time.Hour; attempt++ {
		_, err := (&SyncSchemaReconciler{}).attemptFailed(t.Context(), &schemaPass{
			object:  &v1alpha1.SyncSchema{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "clinic"}},
			attempt: attemptState{next: storage.Attempt{Number: attempt}}, lease: &Lease{},
		}, refused, timeout, 0)
		if err != nil {
			t.Fatal(err)
		}
		ready := reconciling(0, v1alpha1.ReasonLockTimeout, "waits for its locks")
		pages = append(pages, testforeign.Page{Minute: int(at / time.Minute), Text: seen{ready: ready}.page(t)})
		at += timeout + barrier.Pause(attempt, timeout, 0, refused, 1)
	}
	return pages
}

// TestEachAlertFiresOnWhatTheOperatorExports takes the pages from the reconcilers' own registry, filled by their own functions, and gives them
// to the rule engine of Prometheus: a name or label that an alert and the operator write differently would keep the alert silent.
func TestEachAlertFiresOnWhatTheOperatorExports(t *testing.T) {
	t.Cleanup(func() {
		forgetSchema("shop", "clinic", v1alpha1.KindSyncSchema)
		forgetCheckpoint("shop", "clinic-titles", v1alpha1.KindBackfillCheckpoint)
		(&PodReconciler{}).show(&podPass{name: types.NamespacedName{Namespace: "shop", Name: "clinic"}})
	})
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	rest := seen{}.page(t)
	always := func(s seen) []testforeign.Page { return []testforeign.Page{{Text: s.page(t)}} }
	held := func(reason string) []testforeign.Page { return always(seen{pods: map[string]int{reason: 2}}) }
	// What happens, and the one alert that says so; none: it is no alert.
	cases := map[string]struct {
		alert string
		pages []testforeign.Page
		says  string
	}{
		"at rest":                  {"", []testforeign.Page{{Text: rest}}, ""},
		"pods wait for a backfill": {"SyncbarrierGateClosed", held(v1alpha1.ReasonBackfilling), "Pods wait for the gate of shop/clinic"},
		"pods wait for a database": {"SyncbarrierGateClosed", held(v1alpha1.ReasonUnreachable), "shop/clinic"},
		"pods wait for two things": {"SyncbarrierGateClosed",
			always(seen{pods: map[string]int{v1alpha1.ReasonBackfilling: 2, v1alpha1.ReasonUnreachable: 3}}), "5 pods are held"},
		"pods of an old version stay out":      {"SyncbarrierOldPodsHeld", held(v1alpha1.ReasonWriterBelowFence), "2 pods of shop/clinic"},
		"pods that cannot read stay out":       {"SyncbarrierOldPodsHeld", held(v1alpha1.ReasonReaderTooOld), "2 pods of shop/clinic"},
		"old pods are replaced within an hour": {"", []testforeign.Page{held(v1alpha1.ReasonWriterBelowFence)[0], {Minute: 60, Text: rest}}, ""},
		"old pods are superseded":              {"", held(v1alpha1.ReasonSuperseded), ""},
		"pods were edited":                     {"SyncbarrierPodsHeld", held(v1alpha1.ReasonVersionEdited), "2 pods in shop are held until a person acts: VersionEdited of clinic."},
		"the database is another's":            {"SyncbarrierPodsHeld", held(v1alpha1.ReasonConflict), "Conflict of clinic"},
		"pods require what is not there":       {"SyncbarrierPodsOrphaned", always(seen{gone: true, pods: map[string]int{v1alpha1.ReasonSchemaNotFound: 2}}), "2 pods require SyncSchema shop/clinic"},
		"a backfill stands still": {"SyncbarrierBackfillStuck",
			always(seen{checkpoint: reconciling(0, v1alpha1.ReasonBackfilling, ""), progress: begin}), "for 17m 0s for BackfillCheckpoint shop/clinic-titles"},
		"a backfill gets on":                {"", gettingOn(t, begin), ""},
		"a backfill was suspended":          {"", always(seen{checkpoint: reconciling(0, v1alpha1.ReasonSuspended, ""), progress: begin}), ""},
		"a backfill that a person must see": {"SyncbarrierStalled", always(seen{checkpoint: stalled(v1alpha1.ReasonUnverifiable, ""), progress: begin}), "Unverifiable"},
		"pods waited for an hour":           {"", []testforeign.Page{held(v1alpha1.ReasonBackfilling)[0], {Minute: 60, Text: rest}}, ""},
		"the locks are never free":          {"SyncbarrierLockAttemptsFailing", lockless(t), "The barrier of shop/clinic"},
		"the locks were free in the end":    {"", append(lockless(t)[:2:2], testforeign.Page{Minute: 12, Text: rest}), ""},
		"the log is large and grows":        {"SyncbarrierLogGrowing", growing(t, 11e9, 1e8), "shop/clinic has 1"},
		"the log is large and stays so":     {"", always(seen{logBytes: 11e9}), ""},
		"the fence is broken":               {"SyncbarrierFenceBroken", always(seen{ready: stalled(v1alpha1.ReasonFenceBroken, "")}), "SyncSchema shop/clinic is broken"},
		"the fence of a suspended object breaks": {"SyncbarrierFenceBroken",
			always(seen{ready: reconciling(0, v1alpha1.ReasonSuspended, ""), fence: "the trigger is gone"}), "SyncSchema shop/clinic is broken"},
		"a checkpoint finds a broken fence": {"SyncbarrierFenceBroken", always(seen{checkpoint: stalled(v1alpha1.ReasonFenceBroken, "")}), "BackfillCheckpoint shop/clinic-titles"},
		"an object is Stalled":              {"SyncbarrierStalled", always(seen{ready: stalled(v1alpha1.ReasonContentDrift, "")}), "waits for a person: ContentDrift"},
		"a checkpoint is Stalled":           {"SyncbarrierStalled", always(seen{checkpoint: stalled(v1alpha1.ReasonVerificationFailed, "")}), "clinic-titles waits for a person: VerificationFailed"},
		"pods run without the gate":         {"SyncbarrierPodsUngated", always(seen{ungated: 2}), "2 pods of shop/clinic"},
		"the API server refuses a pod":      {"SyncbarrierPodsRefused", always(seen{refused: true}), "refuses 1 writes of pods of shop/clinic"},
		"a person opened the gate":          {"SyncbarrierGateBypassed", always(seen{bypassed: true}), "the gate of shop/clinic"},
		"no manager is seen":                {"SyncbarrierAbsent", []testforeign.Page{{Text: "up 1\n"}}, "No manager"},
	}
	var scenarios []testforeign.Scenario
	for name, c := range cases {
		scenarios = append(scenarios, testforeign.Scenario{Name: name, Begin: begin, Minutes: 480, Pages: c.pages})
	}
	fired := testforeign.Alerts(t, scenarios...)
	unseen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		want := cases[name]
		alerts := map[string]string{}
		for _, firing := range fired[name] {
			alerts[firing.Alert] = firing.Annotations["summary"] + firing.Annotations["description"]
			unseen[firing.Alert] = true
		}
		text, ok := alerts[want.alert]
		if want.alert == "" && len(alerts) > 0 || want.alert != "" && (!ok || len(alerts) != 1 || !strings.Contains(text, want.says)) {
			t.Errorf("%s: fired %q, want %q that says %q", name, alerts, want.alert, want.says)
		}
	}
	if len(unseen) < 13 {
		t.Errorf("only %d different alerts fired", len(unseen))
	}
}

// gettingOn is a backfill that commits something every ten minutes.
func gettingOn(t *testing.T, begin time.Time) (pages []testforeign.Page) {
	t.Helper()
	for minute := 0; minute < 480; minute += 10 {
		ready := reconciling(0, v1alpha1.ReasonBackfilling, "")
		pages = append(pages, testforeign.Page{Minute: minute, Text: seen{checkpoint: ready, progress: begin.Add(time.Duration(minute) * time.Minute)}.page(t)})
	}
	return pages
}

// growing is a log that grows with every ten minutes.
func growing(t *testing.T, from, by int64) (pages []testforeign.Page) {
	t.Helper()
	for step := range int64(48) {
		pages = append(pages, testforeign.Page{Minute: int(step) * 10, Text: seen{logBytes: from + step*by}.page(t)})
	}
	return pages
}
