package gitops

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// verdicts are what the three readers of our conditions say of one state.
type verdicts struct {
	kstatus status.Status // kubectl wait, Flux without expressions, cli-utils
	argo    string
	// approval is what the second variant for Flux says, where it differs from kstatus.
	approval status.Status
}

// expected says how each state of testdata is judged. deleted and edited are states that a tool meets while the operator is away.
var expected = map[string]map[string]verdicts{
	"SyncSchema": {
		"created":                     {kstatus: status.InProgressStatus, argo: "Progressing"},
		"applying":                    {kstatus: status.InProgressStatus, argo: "Progressing"},
		"backfilling":                 {kstatus: status.InProgressStatus, argo: "Progressing"},
		"retrying":                    {kstatus: status.InProgressStatus, argo: "Progressing"},
		"stalled":                     {kstatus: status.FailedStatus, argo: "Degraded"},
		"regressed":                   {kstatus: status.FailedStatus, argo: "Degraded"},
		"applied":                     {kstatus: status.CurrentStatus, argo: "Healthy"},
		"deleted":                     {kstatus: status.TerminatingStatus, argo: "Progressing"},
		"edited":                      {kstatus: status.InProgressStatus, argo: "Progressing"},
		"edited-while-stalled":        {kstatus: status.InProgressStatus, argo: "Progressing"},
		"suspended":                   {kstatus: status.InProgressStatus, argo: "Suspended"},
		"suspended-with-nothing-left": {kstatus: status.CurrentStatus, argo: "Healthy"},
		"approval-pending":            {kstatus: status.InProgressStatus, argo: "Suspended", approval: status.CurrentStatus},
		"pods-ungated":                {kstatus: status.CurrentStatus, argo: "Healthy"},
	},
	"BackfillCheckpoint": {
		"created":                         {kstatus: status.InProgressStatus, argo: "Progressing"},
		"waiting-for-its-version":         {kstatus: status.InProgressStatus, argo: "Progressing"},
		"applying":                        {kstatus: status.InProgressStatus, argo: "Progressing"},
		"retrying":                        {kstatus: status.InProgressStatus, argo: "Progressing"},
		"worker-pending":                  {kstatus: status.InProgressStatus, argo: "Progressing"},
		"changed":                         {kstatus: status.InProgressStatus, argo: "Progressing"},
		"unverifiable-and-starting-again": {kstatus: status.InProgressStatus, argo: "Progressing"},
		"unverifiable":                    {kstatus: status.FailedStatus, argo: "Degraded"},
		"stalled":                         {kstatus: status.FailedStatus, argo: "Degraded"},
		"applied":                         {kstatus: status.CurrentStatus, argo: "Healthy"},
		"deleted":                         {kstatus: status.TerminatingStatus, argo: "Progressing"},
		"edited":                          {kstatus: status.InProgressStatus, argo: "Progressing"},
		"suspended":                       {kstatus: status.InProgressStatus, argo: "Suspended"},
	},
}

// objects reads the objects of testdata, and fails if they are not those that expected speaks of.
func objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for file, kind := range map[string]string{"syncschemas.yaml": "SyncSchema", "backfillcheckpoints.yaml": "BackfillCheckpoint"} {
		named := documents(t, "testdata/"+file)
		for _, object := range named {
			if _, known := expected[kind][object.GetName()]; !known || object.GetKind() != kind {
				t.Errorf("%s: nothing is expected of %s %s", file, object.GetKind(), object.GetName())
			}
		}
		if len(named) != len(expected[kind]) {
			t.Errorf("%s has %d objects, %d are expected", file, len(named), len(expected[kind]))
		}
		found = append(found, named...)
	}
	return found
}

// documents reads the YAML documents of a file as the objects that an API server would give.
func documents(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var found []*unstructured.Unstructured
	for reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		asJSON, err := yaml.ToJSON(document)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if bytes.Equal(asJSON, []byte("null")) {
			continue // a comment alone
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(asJSON); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		found = append(found, object)
	}
}

// everyState runs a check on each object of testdata.
func everyState(t *testing.T, check func(t *testing.T, object *unstructured.Unstructured, want verdicts)) {
	t.Helper()
	for _, object := range objects(t) {
		t.Run(object.GetKind()+"/"+object.GetName(), func(t *testing.T) {
			check(t, object, expected[object.GetKind()][object.GetName()])
		})
	}
}

func TestEveryStateIsWhatKstatusSays(t *testing.T) {
	everyState(t, func(t *testing.T, object *unstructured.Unstructured, want verdicts) {
		got, err := status.Compute(object)
		if err != nil {
			t.Fatal(err)
		}
		if got.Status != want.kstatus {
			t.Errorf("kstatus says %s (%s), want %s", got.Status, got.Message, want.kstatus)
		}
	})
}
