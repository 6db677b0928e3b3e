package main

import (
	"strings"
	"testing"
)

// laterCheckpoint is a checkpoint that somebody wrote beside the schema, for a program of his own to fill.
const laterCheckpoint = `
---
apiVersion: syncbarrier.dev/v1alpha1
kind: BackfillCheckpoint
metadata: {name: clinic-later}
spec:
  schemaRef: {name: clinic}
  name: later
  version: 7
  sources: [{table: todos, changes: CommitLog}]
  backfill: {job: {template: {}}}
`

// atV8 is a file of version 7 brought to version 8, with all that it had.
func atV8(file string) string {
	return strings.Replace(file, "version: 7\n  tables", "version: 8\n  tables", 1)
}

func TestAnAbandonedStandaloneCheckpointKeepsNobodyFromApplyingItsFile(t *testing.T) {
	d := sqliteTarget(t)
	clinicAtV6(t, d, 5)
	run(t, d, schemaV7+laterCheckpoint, "apply", "-f", "-").must(t, 3)
	run(t, d, "", "abandon", "later", "--version", "7", "--reason", "it was not needed", "--yes").must(t, 0)
	again := run(t, d, schemaV7+laterCheckpoint, "apply", "-f", "-").must(t, 0)
	if !strings.Contains(again.out, "abandoned") {
		t.Errorf("it does not say why the checkpoint is left out:\n%s", again.out)
	}
	next := atV8(schemaV7+laterCheckpoint) + strings.NewReplacer("later", "next", "version: 7", "version: 8").Replace(laterCheckpoint)
	run(t, d, next, "apply", "-f", "-").must(t, 3)
	if state := d.number(t, "SELECT count(*) FROM sync_backfill_checkpoints WHERE name = 'next'"); state != 1 {
		t.Errorf("the checkpoint of version 8 has %d rows, want 1", state)
	}
}

func TestAStandaloneCheckpointThatIsTooLateIsRefusedBeforeTheBarrier(t *testing.T) {
	d := sqliteTarget(t)
	clinicAtV6(t, d, 5)
	run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
	before := d.contents(t)
	for _, verb := range []string{"plan", "apply"} {
		r := run(t, d, atV8(schemaV7+laterCheckpoint), verb, "-f", "-").must(t, 26)
		if !strings.Contains(r.errors, "later") {
			t.Errorf("%s does not name the checkpoint: %s", verb, r.errors)
		}
	}
	if d.contents(t) != before {
		t.Error("something was changed")
	}
}
