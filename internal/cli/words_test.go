package cli

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestOneIsNotMany(t *testing.T) {
	for got, want := range map[string]string{
		abandonedWord("c", 7, 1): `checkpoint "c" of version 7 is given up: 1 record of its progress deleted, no row of yours was touched`,
		abandonedWord("c", 7, 2): `checkpoint "c" of version 7 is given up: 2 records of its progress deleted, no row of yours was touched`,
		rowsWord(0):              "all partitions",
		rowsWord(1):              "1 partition",
		rowsWord(2):              "2 partitions",
	} {
		if got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}

func TestAReasonIsSaidOnce(t *testing.T) {
	for got, want := range map[string]string{
		sentence(corev1.PodCondition{Reason: "GateOpen", Message: "clinic=7 GateOpen on 77/clinic/public: version 7 may serve"}): ": clinic=7 GateOpen on 77/clinic/public: version 7 may serve",
		sentence(corev1.PodCondition{Reason: "Unschedulable", Message: "no node."}):                                              ": Unschedulable: no node",
		unsaid("2 rows are wrong.", "checkpoint c: 2 rows are wrong; mend them"):                                                 "",
		unsaid("paused", "2 rows are wrong"):                                                                                     "paused",
	} {
		if got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	line := newWatchLine(schemaOutput{Reason: "VerificationFailed", Message: "c: 2 rows are wrong",
		Checkpoints: []clusterCheckpointOut{{Checkpoint: "c", Reason: "VerificationFailed", HoldReason: "2 rows are wrong"}}})
	if strings.Count(line.text, "2 rows are wrong") != 1 {
		t.Errorf("watch says %q", line.text)
	}
}

func TestAVerbThatThereIsNotNamesTheOneThatIsNear(t *testing.T) {
	var out, problems bytes.Buffer
	p := Program{Out: &out, Err: &problems, In: strings.NewReader("")}
	if code := p.Run(t.Context(), []string{"aply"}); code != exitUsage || !strings.Contains(problems.String(), "did you mean apply?") {
		t.Errorf("exit code %d: %s", code, problems.String())
	}
}
