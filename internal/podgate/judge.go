package podgate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Pod is what is looked at of a pod.
type Pod struct {
	// Annotation is syncbarrier.dev/requires; empty: the pod has none.
	Annotation string
	// Environment has SYNCBARRIER_REQUIRES of each container that has it as plain text.
	Environment []string
	// Open says that the pod's condition is True; Message is that condition's.
	Open    bool
	Message string
	// Superseded names the SyncSchemas of which enough pods of the stored version are Ready in the pod's own workload.
	Superseded []string
}

// Facts are what is known of one SyncSchema and its database.
type Facts struct {
	// Found says that the pod's namespace has the SyncSchema.
	Found bool
	// Gate was read for storage.AllVersions, just now; nil: it could not be read, and Problem says why.
	Gate    *storage.ServeGate
	Problem string
	// Foreign names the owner of the database schema where that is another SyncSchema; empty: it is this one's, or nobody's.
	Foreign string
	Mode    v1alpha1.GateMode
	Older   v1alpha1.OlderPods
	// Bypass is a person's decision that holds now; nil: there is none.
	Bypass *Bypass
}

// Bypass opens a gate for a time.
type Bypass struct {
	Until  time.Time
	Reason string
}

// Verdict is what a pod's condition is to be.
type Verdict struct {
	Open    bool
	Reason  string
	Message string
	// Reasons has what each SyncSchema that the pod requires says of it. It is empty where nothing is required that can be judged.
	Reasons map[string]string
}

// ReasonBy gives what one SyncSchema says of the pod: a pod that waits for another one does not wait for it.
func (v Verdict) ReasonBy(schema string) string { return cmp.Or(v.Reasons[schema], v.Reason) }

// Requirements gives what a pod requires: what it was created with, where that is known. The reason is empty, or why it requires nothing that
// can be judged, or VersionEdited beside what its annotation names now.
func (p Pod) Requirements() (required []Requirement, reason, message string) {
	if len(p.Environment) == 0 && strings.TrimSpace(p.Annotation) == "" {
		return nil, v1alpha1.ReasonRequirementMissing,
			"the annotation " + v1alpha1.AnnotationRequires + " names no SyncSchema and version, as in clinic=7"
	}
	text := cmp.Or(strings.TrimSpace(p.Annotation), first(p.Environment))
	required, err := ParseRequirements(text)
	if err != nil {
		return nil, v1alpha1.ReasonRequirementMalformed, "requirement: " + err.Error()
	}
	for _, variable := range p.Environment {
		created, err := ParseRequirements(variable)
		if err != nil || !slices.Equal(created, required) {
			return required, v1alpha1.ReasonVersionEdited, fmt.Sprintf("the pod was created with %s=%q and names %s now",
				v1alpha1.EnvironmentRequires, shortened(variable), join(required))
		}
	}
	return required, "", ""
}

func first(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	return texts[0]
}

// Judge decides the condition of a pod. facts gives those of a SyncSchema of its namespace.
//
// All requirements must hold. The reason is that of the first that does not, in the order of their names; an open pod has GateOpen, unless a
// person's decision opened it.
func Judge(pod Pod, facts func(schema string) Facts) Verdict {
	required, reason, message := pod.Requirements()
	if required == nil {
		return Verdict{Reason: reason, Message: message}
	}
	proofs := map[string]proof{}
	if pod.Open {
		proofs = readProofs(pod.Message)
	}
	out := Verdict{Open: true, Reason: v1alpha1.ReasonGateOpen, Reasons: map[string]string{}}
	var open, closed []string
	for _, r := range required {
		one := requirement{Requirement: r, facts: facts(r.Schema), superseded: slices.Contains(pod.Superseded, r.Schema)}
		if known, ok := proofs[r.Schema]; ok && known.requirement == r {
			one.proof = &known
		}
		verdict := one.judge(reason, message)
		out.Reasons[r.Schema] = verdict.reason
		switch {
		case !verdict.open && out.Open:
			out.Open, out.Reason = false, verdict.reason
		case verdict.open && out.Open && verdict.reason != v1alpha1.ReasonGateOpen && out.Reason != v1alpha1.ReasonBypassed:
			out.Reason = verdict.reason
		}
		if verdict.open {
			open = append(open, verdict.text)
		} else {
			closed = append(closed, verdict.text)
		}
	}
	out.Message = strings.Join(open, partSeparator)
	if !out.Open {
		out.Message = strings.Join(closed, partSeparator)
	}
	return out
}

// requirement is one requirement with all that decides it.
type requirement struct {
	Requirement
	facts      Facts
	proof      *proof // of a pod that is True; nil: the pod is a new one
	superseded bool
}

// finding is the verdict on one requirement.
type finding struct {
	open   bool
	reason string
	text   string
	// final closes a pod that is True, too.
	final bool
}

// judge puts a person's decision before the database's answer, and the proof that a pod has before an answer that is not final.
func (r requirement) judge(editedReason, editedMessage string) finding {
	found := r.byDatabase()
	if editedReason != "" {
		found = finding{reason: editedReason, text: editedMessage, final: true}
	}
	switch {
	case r.facts.Found && r.facts.Bypass != nil:
		return r.decided(v1alpha1.ReasonBypassed, fmt.Sprintf("a person opened the gate until %s: %s",
			r.facts.Bypass.Until.UTC().Format(time.RFC3339), r.facts.Bypass.Reason))
	case r.facts.Found && r.facts.Mode == v1alpha1.GateReport:
		word := "closed"
		if found.open {
			word = "open"
		}
		return r.decided(v1alpha1.ReasonReportOnly, fmt.Sprintf("gate.mode is Report, else it would be %s: %s: %s", word, found.reason, found.text))
	case found.open:
		found.text = openText(r.Requirement, found.reason, r.database(), found.text)
		return found
	case r.proof != nil && !found.final:
		return finding{open: true, reason: r.proof.reason, text: r.proof.part}
	default:
		found.text = closedText(r.Requirement, found.text)
		return found
	}
}

// decided is open by a person's decision. It says which database it would have been about, so that later reads of it count.
func (r requirement) decided(reason, text string) finding {
	return finding{open: true, reason: reason, text: openText(r.Requirement, reason, r.database(), text)}
}

func (r requirement) database() string {
	switch {
	case r.facts.Gate != nil && r.facts.Gate.Catalog:
		return DatabaseName(r.facts.Gate.Database)
	case r.proof != nil:
		return r.proof.database
	default:
		return unknownDatabase
	}
}

// byDatabase is the table of docs/design.md section 8. The newest version is the stored one: before its barrier a version does not exist for
// anybody but the pods that wait for it.
func (r requirement) byDatabase() finding {
	if !r.facts.Found {
		return finding{reason: v1alpha1.ReasonSchemaNotFound, text: "this namespace has no SyncSchema of that name"}
	}
	if r.facts.Gate == nil {
		return finding{reason: v1alpha1.ReasonUnreachable, text: "the database could not be read: " + r.facts.Problem}
	}
	gate := r.facts.Gate.For(r.Version)
	verdict := gate.Verdict()
	final := r.sameDatabase() && shutsOut(gate)
	if r.facts.Foreign != "" && !final { // what another's database holds proves nothing, and takes nothing away
		return finding{reason: v1alpha1.ReasonConflict, text: "the database schema is managed by " + r.facts.Foreign + ", not by this SyncSchema"}
	}
	if !verdict.Open {
		return finding{reason: ReasonOf(verdict.Reason), text: verdict.Message, final: final}
	}
	if verdict.Writable || r.Version >= gate.StoredVersion {
		return finding{open: true, reason: v1alpha1.ReasonGateOpen, text: verdict.Message}
	}
	return r.older(gate, verdict)
}

// older judges a pod of an older version that can read and whose writes the fence refuses.
func (r requirement) older(gate storage.ServeGate, verdict storage.GateVerdict) finding {
	if !r.facts.Gate.For(gate.StoredVersion).Verdict().Open {
		return finding{open: true, reason: v1alpha1.ReasonGateOpen, text: verdict.Message}
	}
	refused := fmt.Sprintf("the fence accepts writers from version %d on, this pod is of version %d", gate.MinWriterVersion, r.Version)
	if r.superseded && r.facts.Older != v1alpha1.OlderPodsKeep {
		return finding{reason: v1alpha1.ReasonSuperseded, final: true,
			text: fmt.Sprintf("enough pods of version %d are Ready, and %s", gate.StoredVersion, refused)}
	}
	return finding{reason: v1alpha1.ReasonWriterBelowFence, text: refused}
}

// sameDatabase says that the read was of the database for which the pod was proven.
func (r requirement) sameDatabase() bool {
	return r.proof != nil && r.proof.database == DatabaseName(r.facts.Gate.Database)
}

// shutsOut says that a read showed what ends a program: the database is not at its version, or the program cannot read it any more. A
// standby, and a table that is missing or empty, show nothing.
func shutsOut(gate storage.ServeGate) bool {
	if gate.Standby || !gate.Catalog || !gate.Marker {
		return false
	}
	return gate.StoredVersion < gate.Running || gate.HistoryKnown && gate.Running < gate.MinReaderVersion
}

// ReasonOf gives the reason of a pod condition for a verdict of the database.
func ReasonOf(reason storage.GateReason) string {
	if reason == storage.GateSchemaNotFound { // the database has no catalog yet: its barrier is still to come
		return v1alpha1.ReasonMigrationPending
	}
	return string(reason)
}
