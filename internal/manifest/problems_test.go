package manifest

import (
	"fmt"
	"strings"
	"testing"
)

func TestALongValueIsCutInAnError(t *testing.T) {
	name := strings.Repeat("ä", 60)
	_, err := Parse(strings.NewReader(edit(t, clinic, "changes: CommitLog", "changes: "+name)), "clinic.yaml")
	wantInvalid(t, err, "spec.checkpoints[0].sources[0].changes: Unsupported value: ", strings.Repeat("ä", 40)+"...")
	if strings.Contains(err.Error(), name) {
		t.Errorf("the error repeats all of the value: %v", err)
	}
}

func TestAVeryWrongFileIsNotListedInFull(t *testing.T) {
	var columns strings.Builder
	for i := range 50 {
		fmt.Fprintf(&columns, "    - {name: c%d, type: text}\n", i)
	}
	_, err := Parse(strings.NewReader(edit(t, clinic, "    columns:\n", "    columns:\n"+columns.String())), "clinic.yaml")
	wantInvalid(t, err, "clinic.yaml: 50 problems\n", "columns[19].type", "\n  and 30 more")
	if strings.Contains(err.Error(), "columns[20]") {
		t.Errorf("more than %d problems are listed: %v", maxShown, err)
	}
}
