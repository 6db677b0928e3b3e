package podgate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

var (
	home      = storage.DatabaseIdentity{System: "739", Database: "app", Schema: "public"}
	elsewhere = storage.DatabaseIdentity{System: "740", Database: "app", Schema: "public"}
)

// read is what a read of a database at version 7 shows, whose fence is 7 and whose oldest reader is 6, with every checkpoint activated.
func read(change ...func(*storage.ServeGate)) *storage.ServeGate {
	gate := &storage.ServeGate{
		Running: storage.AllVersions, Catalog: true, Marker: true, StoredVersion: 7, HistoryKnown: true,
		MinReaderVersion: 6, MinWriterVersion: 7, Database: home,
	}
	for _, apply := range change {
		apply(gate)
	}
	return gate
}

func stored(version int64) func(*storage.ServeGate) {
	return func(g *storage.ServeGate) {
		g.StoredVersion, g.MinWriterVersion, g.MinReaderVersion = version, version, min(version, g.MinReaderVersion)
	}
}

func pending(version int64) func(*storage.ServeGate) {
	return func(g *storage.ServeGate) {
		g.PendingTotal = 1
		g.Pending = []storage.PendingCheckpoint{{Partition: "*", Name: "name-search", Version: version, State: storage.Backfilling}}
	}
}

func missing(version int64) func(*storage.ServeGate) {
	return func(g *storage.ServeGate) { g.Missing = []storage.PendingCheckpoint{{Name: "gone", Version: version}} }
}

func fence(version int64) func(*storage.ServeGate) {
	return func(g *storage.ServeGate) { g.MinWriterVersion = version }
}

func reader(version int64) func(*storage.ServeGate) {
	return func(g *storage.ServeGate) { g.MinReaderVersion = version }
}

func standby(g *storage.ServeGate)   { g.Standby = true }
func moved(g *storage.ServeGate)     { g.Database = elsewhere }
func emptied(g *storage.ServeGate)   { g.Marker, g.StoredVersion, g.HistoryKnown = false, 0, false }
func noCatalog(g *storage.ServeGate) { *g = storage.ServeGate{Running: storage.AllVersions} }
func noHistory(g *storage.ServeGate) { g.HistoryKnown = false }

// proven is the message of a pod of clinic that is True.
func proven(version string) string {
	return "clinic=" + version + " GateOpen on 739/app/public: version " + version + " may serve"
}

// TestTheTableOfPodConditions has a row for each cell of the table of docs/design.md section 8, for a pod that is new and for one that is True
// already, and one for each thing that must not close a pod that is True.
func TestTheTableOfPodConditions(t *testing.T) {
	const no = "" // the pod is not to be open
	type row struct {
		version    string
		gate       *storage.ServeGate // nil: unreachable
		change     func(*Facts)
		superseded bool
		fresh      string // reason of a pod that is new; it is open where that is GateOpen, ReportOnly or Bypassed
		open       string // reason of a pod that is True; empty: it stays open with the proof it has
	}
	for name, c := range map[string]row{
		// Before the barrier: the database is at 6.
		"the version's own pods wait for its barrier":                {version: "7", gate: read(stored(6)), fresh: v1alpha1.ReasonMigrationPending, open: v1alpha1.ReasonMigrationPending},
		"older pods go by the gate of the stored version":            {version: "6", gate: read(stored(6)), fresh: v1alpha1.ReasonGateOpen},
		"older pods wait where the stored version's gate is closed":  {version: "6", gate: read(stored(6), pending(6)), fresh: v1alpha1.ReasonBackfilling},
		"a checkpoint prepared for a later version closes nothing":   {version: "6", gate: read(stored(6), pending(7)), fresh: v1alpha1.ReasonGateOpen},
		"what cannot read the stored version is closed before it":    {version: "5", gate: read(stored(6)), fresh: v1alpha1.ReasonReaderTooOld, open: v1alpha1.ReasonReaderTooOld},
		"without any version there is nothing to serve on":           {version: "7", gate: read(emptied), fresh: v1alpha1.ReasonMigrationPending},
		"without our catalog there is nothing to serve on":           {version: "7", gate: read(noCatalog), fresh: v1alpha1.ReasonMigrationPending},
		"a version that history does not know proves nothing":        {version: "7", gate: read(noHistory), fresh: v1alpha1.ReasonCheckpointMissing},
		"an old pod is not let in by a version without history":      {version: "6", gate: read(noHistory), fresh: v1alpha1.ReasonCheckpointMissing},
		"an older pod stays out where every version may read":        {version: "6", gate: read(reader(0)), fresh: v1alpha1.ReasonWriterBelowFence},
		"a pod of a version beyond the stored one is not proven yet": {version: "8", gate: read(), fresh: v1alpha1.ReasonMigrationPending, open: v1alpha1.ReasonMigrationPending},

		// The barrier is done, the gate of 7 is closed.
		"the version's own pods wait for its backfill":             {version: "7", gate: read(pending(7)), fresh: v1alpha1.ReasonBackfilling},
		"a checkpoint of an earlier version counts too":            {version: "7", gate: read(pending(6)), fresh: v1alpha1.ReasonBackfilling},
		"the version's own pods wait for a checkpoint that is not": {version: "7", gate: read(missing(7)), fresh: v1alpha1.ReasonCheckpointMissing},
		"older pods read meanwhile, those created now too":         {version: "6", gate: read(pending(7)), fresh: v1alpha1.ReasonGateOpen},
		"older pods read while a recorded checkpoint is missing":   {version: "6", gate: read(missing(7)), fresh: v1alpha1.ReasonGateOpen},
		"too old readers leave at that commit":                     {version: "5", gate: read(pending(7)), fresh: v1alpha1.ReasonReaderTooOld, open: v1alpha1.ReasonReaderTooOld},

		// The gate of 7 is open.
		"the version's own pods serve":                  {version: "7", gate: read(), fresh: v1alpha1.ReasonGateOpen},
		"older pods that serve stay, new ones stay out": {version: "6", gate: read(), fresh: v1alpha1.ReasonWriterBelowFence},
		"too old readers stay out":                      {version: "5", gate: read(), fresh: v1alpha1.ReasonReaderTooOld, open: v1alpha1.ReasonReaderTooOld},

		// Enough pods of 7 are Ready.
		"older pods are withdrawn":                         {version: "6", gate: read(), superseded: true, fresh: v1alpha1.ReasonSuperseded, open: v1alpha1.ReasonSuperseded},
		"older pods are kept where that is asked for":      {version: "6", gate: read(), superseded: true, change: keep, fresh: v1alpha1.ReasonWriterBelowFence},
		"none is withdrawn while the newest gate is shut":  {version: "6", gate: read(pending(7)), superseded: true, fresh: v1alpha1.ReasonGateOpen},
		"too old readers are closed for that reason":       {version: "5", gate: read(), superseded: true, fresh: v1alpha1.ReasonReaderTooOld, open: v1alpha1.ReasonReaderTooOld},
		"the version's own pods are not withdrawn":         {version: "7", gate: read(), superseded: true, fresh: v1alpha1.ReasonGateOpen},
		"pods that may write are not withdrawn":            {version: "6", gate: read(fence(6)), superseded: true, fresh: v1alpha1.ReasonGateOpen},
		"pods that may write are open, new ones included":  {version: "6", gate: read(fence(6)), fresh: v1alpha1.ReasonGateOpen},
		"pods that may write are open during the backfill": {version: "6", gate: read(fence(6), pending(7)), fresh: v1alpha1.ReasonGateOpen},
		"pods that may write still have to be able to read": {
			version: "6", gate: read(fence(6), reader(7)), fresh: v1alpha1.ReasonReaderTooOld, open: v1alpha1.ReasonReaderTooOld},

		// What never opens a new pod, and never closes one that is True.
		"a database that cannot be read":          {version: "7", fresh: v1alpha1.ReasonUnreachable},
		"a standby":                               {version: "7", gate: read(standby), fresh: v1alpha1.ReasonStandby},
		"a standby that is behind":                {version: "7", gate: read(standby, stored(6)), fresh: v1alpha1.ReasonStandby},
		"a standby that says it is too old":       {version: "5", gate: read(standby), fresh: v1alpha1.ReasonStandby},
		"another database, still empty":           {version: "7", gate: read(moved, emptied), fresh: v1alpha1.ReasonMigrationPending},
		"another database, behind":                {version: "7", gate: read(moved, stored(6)), fresh: v1alpha1.ReasonMigrationPending},
		"another database that it cannot read":    {version: "6", gate: read(moved, reader(7)), fresh: v1alpha1.ReasonReaderTooOld},
		"a SyncSchema that is gone":               {version: "7", gate: read(), change: notFound, fresh: v1alpha1.ReasonSchemaNotFound},
		"a SyncSchema that is gone, and too old":  {version: "5", gate: read(), change: notFound, fresh: v1alpha1.ReasonSchemaNotFound},
		"a checkpoint that is declared later":     {version: "7", gate: read(pending(7)), fresh: v1alpha1.ReasonBackfilling},
		"an emptied table of versions":            {version: "7", gate: read(emptied), fresh: v1alpha1.ReasonMigrationPending},
		"a catalog that is gone":                  {version: "7", gate: read(noCatalog), fresh: v1alpha1.ReasonMigrationPending},
		"a reader limit without a known history":  {version: "5", gate: read(noHistory), fresh: v1alpha1.ReasonCheckpointMissing},
		"another owner's database":                {version: "7", gate: read(), change: foreign, fresh: v1alpha1.ReasonConflict},
		"another owner's, for an older pod":       {version: "6", gate: read(fence(6)), change: foreign, fresh: v1alpha1.ReasonConflict},
		"another owner's, which may be elsewhere": {version: "7", gate: read(moved, stored(6)), change: foreign, fresh: v1alpha1.ReasonConflict},
		"another owner's withdraws nothing":       {version: "6", gate: read(), superseded: true, change: foreign, fresh: v1alpha1.ReasonConflict},
		"another owner's standby":                 {version: "7", gate: read(standby), change: foreign, fresh: v1alpha1.ReasonConflict},
		"another owner's backfill":                {version: "7", gate: read(pending(7)), change: foreign, fresh: v1alpha1.ReasonConflict},
		"the same database, which went to another owner and on to what the pod cannot read": {
			version: "6", gate: read(reader(7)), change: foreign, fresh: v1alpha1.ReasonConflict, open: v1alpha1.ReasonReaderTooOld},
		"a fence without a row lets nobody write": {version: "7", gate: read(fence(1 << 31)), fresh: v1alpha1.ReasonGateOpen},

		// A person's decision.
		"Report holds nothing":                       {version: "7", gate: read(pending(7)), change: report, fresh: v1alpha1.ReasonReportOnly, open: v1alpha1.ReasonReportOnly},
		"Report holds nothing for another's":         {version: "7", gate: read(), change: func(f *Facts) { foreign(f); report(f) }, fresh: v1alpha1.ReasonReportOnly, open: v1alpha1.ReasonReportOnly},
		"a bypass opens on another's":                {version: "7", gate: read(), change: func(f *Facts) { foreign(f); bypass(f) }, fresh: v1alpha1.ReasonBypassed, open: v1alpha1.ReasonBypassed},
		"Report withdraws nothing":                   {version: "6", gate: read(), superseded: true, change: report, fresh: v1alpha1.ReasonReportOnly, open: v1alpha1.ReasonReportOnly},
		"Report holds nothing without a database":    {version: "7", change: report, fresh: v1alpha1.ReasonReportOnly, open: v1alpha1.ReasonReportOnly},
		"a bypass opens":                             {version: "7", gate: read(pending(7)), change: bypass, fresh: v1alpha1.ReasonBypassed, open: v1alpha1.ReasonBypassed},
		"a bypass opens without a database":          {version: "7", change: bypass, fresh: v1alpha1.ReasonBypassed, open: v1alpha1.ReasonBypassed},
		"a bypass of an object that is gone is none": {version: "7", gate: read(), change: func(f *Facts) { bypass(f); notFound(f) }, fresh: v1alpha1.ReasonSchemaNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			facts := Facts{Found: true, Gate: c.gate, Problem: "no route"}
			if c.change != nil {
				c.change(&facts)
			}
			pod := Pod{Annotation: "clinic=" + c.version}
			if c.superseded {
				pod.Superseded = []string{"clinic"}
			}
			of := func(string) Facts { return facts }
			expect(t, "a new pod", Judge(pod, of), c.fresh)

			pod.Open, pod.Message = true, proven(c.version)
			got := Judge(pod, of)
			if c.open != no {
				expect(t, "a pod that is True", got, c.open)
				return
			}
			expect(t, "a pod that is True", got, v1alpha1.ReasonGateOpen)
			if c.fresh != v1alpha1.ReasonGateOpen && got.Message != pod.Message {
				t.Errorf("the proof of a pod that stays open was changed: %q", got.Message)
			}
		})
	}
}

func keep(f *Facts)     { f.Older = v1alpha1.OlderPodsKeep }
func notFound(f *Facts) { f.Found = false }
func foreign(f *Facts)  { f.Foreign = "elsewhere/shop/billing" }
func report(f *Facts)   { f.Mode = v1alpha1.GateReport }
func bypass(f *Facts) {
	f.Bypass = &Bypass{Until: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Reason: "the gate is wrong; clinic=9 GateOpen on 739/app/public: really"}
}

func expect(t *testing.T, what string, got Verdict, reason string) {
	t.Helper()
	open := reason == v1alpha1.ReasonGateOpen || reason == v1alpha1.ReasonReportOnly || reason == v1alpha1.ReasonBypassed
	if got.Reason != reason || got.Open != open {
		t.Errorf("%s: open=%v %s (%s), want %s", what, got.Open, got.Reason, got.Message, reason)
	}
}

func TestARequirementThatCannotBeJudgedClosesThePodAndSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		pod    Pod
		reason string
		words  string
	}{
		"nothing is named":                          {Pod{}, v1alpha1.ReasonRequirementMissing, v1alpha1.AnnotationRequires},
		"spaces are nothing":                        {Pod{Annotation: "  "}, v1alpha1.ReasonRequirementMissing, v1alpha1.AnnotationRequires},
		"no version":                                {Pod{Annotation: "clinic"}, v1alpha1.ReasonRequirementMalformed, `"clinic"`},
		"a version that is no number":               {Pod{Annotation: "clinic=v7"}, v1alpha1.ReasonRequirementMalformed, `"v7"`},
		"a version with a sign":                     {Pod{Annotation: "clinic=+7"}, v1alpha1.ReasonRequirementMalformed, `"+7"`},
		"version 0":                                 {Pod{Annotation: "clinic=0"}, v1alpha1.ReasonRequirementMalformed, "from 1"},
		"a version beyond the largest":              {Pod{Annotation: "clinic=2147483648"}, v1alpha1.ReasonRequirementMalformed, "2147483647"},
		"a fraction":                                {Pod{Annotation: "clinic=7.0"}, v1alpha1.ReasonRequirementMalformed, `"7.0"`},
		"a name of another namespace":               {Pod{Annotation: "shop/clinic=7"}, v1alpha1.ReasonRequirementMalformed, "shop/clinic"},
		"a name twice":                              {Pod{Annotation: "clinic=7,clinic=8"}, v1alpha1.ReasonRequirementMalformed, "twice"},
		"an empty part":                             {Pod{Annotation: "clinic=7,"}, v1alpha1.ReasonRequirementMalformed, "NAME=VERSION"},
		"the annotation was edited":                 {Pod{Annotation: "clinic=7", Environment: []string{"clinic=6"}}, v1alpha1.ReasonVersionEdited, "clinic=6"},
		"a requirement was taken away":              {Pod{Annotation: "clinic=7", Environment: []string{"billing=3,clinic=7"}}, v1alpha1.ReasonVersionEdited, "billing=3"},
		"one container of several differs":          {Pod{Annotation: "clinic=7", Environment: []string{"clinic=7", "clinic=6"}}, v1alpha1.ReasonVersionEdited, "clinic=6"},
		"the environment cannot be read":            {Pod{Annotation: "clinic=7", Environment: []string{"x"}}, v1alpha1.ReasonVersionEdited, `"x"`},
		"without annotation, the environment holds": {Pod{Environment: []string{"clinic"}}, v1alpha1.ReasonRequirementMalformed, "clinic"},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(string) Facts { return Facts{Found: true, Gate: read()} }
			c.pod.Open, c.pod.Message = true, proven("7")
			got := Judge(c.pod, of)
			if got.Open || got.Reason != c.reason || !strings.Contains(got.Message, c.words) {
				t.Errorf("open=%v %s: %s; want %s with %q", got.Open, got.Reason, got.Message, c.reason, c.words)
			}
		})
	}
}

func TestSpacesAndOrderAreNoEdit(t *testing.T) {
	pod := Pod{Annotation: " clinic = 7 , billing=3", Environment: []string{"billing=3,clinic=7"}}
	got := Judge(pod, func(schema string) Facts {
		gate := read()
		if schema == "billing" {
			gate = read(stored(3), reader(0))
		}
		return Facts{Found: true, Gate: gate}
	})
	expect(t, "the pod", got, v1alpha1.ReasonGateOpen)
	if want := "billing=3 GateOpen on 739/app/public: version 3 may serve; clinic=7 GateOpen on 739/app/public: version 7 may serve"; got.Message != want {
		t.Errorf("got %q, want %q", got.Message, want)
	}
}

func TestAVersionIsProvenForItselfOnly(t *testing.T) {
	of := func(string) Facts { return Facts{Found: true, Gate: read(pending(7))} }
	for name, message := range map[string]string{
		"proven for another version":   proven("6"),
		"proven for another schema":    strings.Replace(proven("7"), "clinic", "billing", 1),
		"set to True by another hand":  "",
		"a proof inside another part":  "clinic=6 GateOpen on 739/app/public: clinic=7 GateOpen on 739/app/public: version 7 may serve",
		"a closed part is not a proof": "clinic=7: not activated",
	} {
		t.Run(name, func(t *testing.T) {
			got := Judge(Pod{Annotation: "clinic=7", Open: true, Message: message}, of)
			expect(t, "the pod", got, v1alpha1.ReasonBackfilling)
		})
	}
}

// With several requirements all must hold, each by its own proof.
func TestEveryRequirementMustHold(t *testing.T) {
	pod := Pod{Annotation: "billing=3,clinic=7"}
	both := map[string]*storage.ServeGate{"billing": read(stored(3), reader(0), pending(3)), "clinic": read(stored(6))}
	of := func(schema string) Facts { return Facts{Found: true, Gate: both[schema], Problem: "no route"} }

	got := Judge(pod, of)
	expect(t, "both closed", got, v1alpha1.ReasonBackfilling)
	if !strings.Contains(got.Message, "billing=3: not activated") || !strings.Contains(got.Message, "clinic=7: the database is at version 6") {
		t.Errorf("the message does not speak of both: %q", got.Message)
	}
	both["billing"] = read(stored(3), reader(0))
	got = Judge(pod, of)
	expect(t, "one open", got, v1alpha1.ReasonMigrationPending)
	if by := []string{got.ReasonBy("billing"), got.ReasonBy("clinic")}; !slices.Equal(by, []string{v1alpha1.ReasonGateOpen, v1alpha1.ReasonMigrationPending}) {
		t.Errorf("billing and clinic are said to say %q", by)
	}
	both["clinic"] = read()
	got = Judge(pod, of)
	expect(t, "both open", got, v1alpha1.ReasonGateOpen)

	pod.Open, pod.Message = true, got.Message
	both["billing"] = nil
	kept := Judge(pod, of)
	expect(t, "one unreachable", kept, v1alpha1.ReasonGateOpen)
	if kept.Message != got.Message {
		t.Errorf("the proofs were changed: %q", kept.Message)
	}
	both["clinic"] = read(stored(6))
	expect(t, "one went back", Judge(pod, of), v1alpha1.ReasonMigrationPending)
}

// A bypass ends without taking its pods out: they are True, and stay so until the database shows that they cannot serve.
func TestAPodThatAPersonLetInStaysWhenTheDecisionEnds(t *testing.T) {
	facts := Facts{Found: true, Gate: read(pending(7))}
	of := func(string) Facts { return facts }
	bypass(&facts)
	pod := Pod{Annotation: "clinic=7", Open: true}
	pod.Message = Judge(pod, of).Message

	facts.Bypass = nil
	got := Judge(pod, of)
	expect(t, "after the bypass", got, v1alpha1.ReasonBypassed)
	expect(t, "a new pod after the bypass", Judge(Pod{Annotation: "clinic=7"}, of), v1alpha1.ReasonBackfilling)
	expect(t, "words of the bypass are no proof", Judge(Pod{Annotation: "clinic=9", Open: true, Message: pod.Message}, of), v1alpha1.ReasonMigrationPending)

	facts.Gate = read()
	expect(t, "once it is proven", Judge(pod, of), v1alpha1.ReasonGateOpen)
	facts.Gate = read(stored(6))
	expect(t, "the database went back", Judge(pod, of), v1alpha1.ReasonMigrationPending)
}

// A move to another database keeps pods open on the old proof, and proves them anew as soon as the new one can.
func TestAMoveToAnotherDatabaseKeepsThePodsOpen(t *testing.T) {
	gate := read(moved, stored(6))
	of := func(string) Facts { return Facts{Found: true, Gate: gate} }
	pod := Pod{Annotation: "clinic=7", Open: true, Message: proven("7")}
	pod.Message = Judge(pod, of).Message
	if pod.Message != proven("7") {
		t.Fatalf("the old proof was changed: %q", pod.Message)
	}
	gate = read(moved)
	pod.Message = Judge(pod, of).Message
	if !strings.Contains(pod.Message, "740/app/public") {
		t.Fatalf("the new proof does not name the new database: %q", pod.Message)
	}
	gate = read(moved, stored(6))
	expect(t, "the new database went back", Judge(pod, of), v1alpha1.ReasonMigrationPending)
}
