package webhook

import (
	"encoding/json"
	"maps"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

type names = map[string]string

const (
	approve, approvedBy = "syncbarrier.dev/approve", "syncbarrier.dev/approved-by"
	bypass, bypassedBy  = "syncbarrier.dev/bypass", "syncbarrier.dev/bypassed-by"
)

var decisionCases = map[string]struct {
	old, changed, want names
	approves           string
}{
	"no decision":                      {nil, names{"a": "1"}, names{"a": "1"}, ""},
	"an approval":                      {names{"a": "1"}, names{"a": "1", approve: "7@abc"}, names{"a": "1", approve: "7@abc", approvedBy: "ada"}, "7@abc"},
	"an approval with a new object":    {nil, names{approve: "7@abc"}, names{approve: "7@abc", approvedBy: "ada"}, "7@abc"},
	"another approval":                 {names{approve: "7@abc", approvedBy: "bob"}, names{approve: "7@def", approvedBy: "bob"}, names{approve: "7@def", approvedBy: "ada"}, "7@def"},
	"an approval that stays":           {names{approve: "7@abc", approvedBy: "bob"}, names{approve: "7@abc", approvedBy: "bob", "b": "2"}, names{approve: "7@abc", approvedBy: "bob", "b": "2"}, ""},
	"somebody else's name":             {names{approve: "7@abc", approvedBy: "bob"}, names{approve: "7@abc", approvedBy: "eve"}, names{approve: "7@abc", approvedBy: "bob"}, ""},
	"a name taken away":                {names{approve: "7@abc", approvedBy: "bob"}, names{approve: "7@abc"}, names{approve: "7@abc", approvedBy: "bob"}, ""},
	"a name given in with an approval": {nil, names{approve: "7@abc", approvedBy: "eve"}, names{approve: "7@abc", approvedBy: "ada"}, "7@abc"},
	"a name without a decision":        {nil, names{approvedBy: "eve", bypassedBy: "eve"}, names{}, ""},
	"a name for a decision that nobody saw": {
		names{approve: "7@abc"}, names{approve: "7@abc", approvedBy: "eve"}, names{approve: "7@abc"}, "",
	},
	"an approval taken back": {names{approve: "7@abc", approvedBy: "bob"}, names{approvedBy: "bob"}, names{}, ""},
	"a bypass":               {nil, names{bypass: "2026-01-01T00:00:00Z;why"}, names{bypass: "2026-01-01T00:00:00Z;why", bypassedBy: "ada"}, ""},
	"a bypass beside an old approval": {
		names{approve: "7@abc", approvedBy: "bob"}, names{approve: "7@abc", approvedBy: "bob", bypass: "x"},
		names{approve: "7@abc", approvedBy: "bob", bypass: "x", bypassedBy: "ada"}, "",
	},
}

func TestDecisionsCarryTheNameOfWhoMadeThem(t *testing.T) {
	for name, c := range decisionCases {
		t.Run(name, func(t *testing.T) {
			got := RecordDecisions(c.old, c.changed, "ada")
			if !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if again := RecordDecisions(c.old, got, "ada"); !maps.Equal(again, got) {
				t.Errorf("called again it makes %v of %v", again, got)
			}
			if got := approves(c.old, c.changed); got != c.approves {
				t.Errorf("it approves %q, want %q", got, c.approves)
			}
		})
	}
}

func TestTheRecordIsAPatchOfTheAnnotationsAlone(t *testing.T) {
	response := DecisionRecorder{}.Handle(t.Context(), change(t, nil, names{approve: "7@abc", "a": "1"}))
	if !response.Allowed || len(response.Patches) != 1 {
		t.Fatalf("the answer is %+v, want one patch", response)
	}
	if patch := response.Patches[0]; patch.Operation != "add" || patch.Path != "/metadata/annotations/syncbarrier.dev~1approved-by" || patch.Value != "ada" {
		t.Errorf("the patch is %s", patch.Json())
	}
	if response := (DecisionRecorder{}).Handle(t.Context(), change(t, names{"a": "1"}, names{"a": "2"})); !response.Allowed || len(response.Patches) != 0 {
		t.Errorf("without a decision the answer is %+v, want no patch", response)
	}
}

// change is the request of ada to change the annotations of a SyncSchema.
func change(t *testing.T, old, changed names) admission.Request {
	t.Helper()
	encoded := func(annotations names) runtime.RawExtension {
		raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": map[string]any{"future": true}})
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: raw}
	}
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UserInfo: authenticationv1.UserInfo{Username: "ada"}, Object: encoded(changed), OldObject: encoded(old),
	}}
}
