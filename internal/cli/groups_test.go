package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestHelpTeachesEachVerbWhatItTakes(t *testing.T) {
	for verb, want := range map[string]struct{ shows, hides []string }{
		"--help":       {[]string{"On a database:", "In a cluster, through the operator:", "--database-file"}, nil},
		"why --help":   {[]string{"--namespace", "--timeout"}, []string{"--database", "--tls-ca", "--file"}},
		"plan --help":  {[]string{"--database", "--full", "Examples:"}, []string{"--namespace"}},
		"gate --help":  {[]string{"--wait", "Exit code 0", "Examples:"}, []string{"--namespace"}},
		"apply --help": {[]string{"--barrier-only ", "stop after the barrier; syncbarrier backfill does the rest"}, []string{"--barrier-only syncbarrier"}},
	} {
		var out bytes.Buffer
		p := &Program{Out: &out, Err: &out}
		if code := p.Run(t.Context(), strings.Fields(verb)); code != exitDone {
			t.Errorf("%s ends with %d", verb, code)
		}
		for _, word := range want.shows {
			if !strings.Contains(out.String(), word) {
				t.Errorf("%s does not show %q", verb, word)
			}
		}
		for _, word := range want.hides {
			if strings.Contains(out.String(), word) {
				t.Errorf("%s shows %q", verb, word)
			}
		}
	}
}

func TestADatabaseForAVerbOfTheClusterIsRefused(t *testing.T) {
	var problems bytes.Buffer
	p := &Program{Out: &problems, Err: &problems}
	if code := p.Run(t.Context(), []string{"why", "a-pod", "--database", "postgres://app:hidden@db/x"}); code != exitUsage {
		t.Errorf("it ends with %d, want %d", code, exitUsage)
	}
	if text := problems.String(); !strings.Contains(text, "--database has no meaning here") || strings.Contains(text, "hidden") {
		t.Errorf("it says %q", text)
	}
}

func TestAPlanIsReadableWithCapture(t *testing.T) {
	body := `CREATE OR REPLACE FUNCTION "public"."syncbarrier_capture_todos"()` + "\n  RETURNS trigger\n  AS '...'"
	users := "CREATE OR REPLACE FUNCTION words()\n  RETURNS text"
	plan := storage.Plan{Statements: []string{body, users}}
	for full, want := range map[bool]string{false: "... 2 lines more, shown by --full", true: "RETURNS trigger"} {
		var out bytes.Buffer
		writePlan(&out, plan, storage.Target{}, full)
		if text := out.String(); !strings.Contains(text, want) || !strings.Contains(text, "RETURNS text") || strings.Contains(text, "RETURNS trigger") != full {
			t.Errorf("full %v: %s", full, text)
		}
	}
}

func TestStatusSpeaksOfAnEstimateOnlyWhileThereIsSomethingToEstimate(t *testing.T) {
	for want, c := range map[string]checkpointOutput{
		"20 of about 50": {State: string(storage.Backfilling), RowsDone: 20, RowsTotal: 50},
		"20":             {State: string(storage.Activated), RowsDone: 20, RowsTotal: 50},
	} {
		if got := rowsOf(c); got != want {
			t.Errorf("%s: %q, want %q", c.State, got, want)
		}
	}
}

func TestAFolderIsNoFile(t *testing.T) {
	var problems bytes.Buffer
	p := &Program{Out: &problems, Err: &problems}
	if code := p.Run(t.Context(), []string{"plan", "-f", t.TempDir(), "--database", "sqlite:x.db"}); code != exitUsage || !strings.Contains(problems.String(), "is a folder") {
		t.Errorf("it ends with %d and says %q", code, problems.String())
	}
}

func TestStatusOfADatabaseBeforeItsFirstVersionAsksForNone(t *testing.T) {
	empty := storage.Status{Protocol: storage.CatalogProtocol}
	out := newStatusOutput(empty, storage.GateVerdict{Reason: storage.GateMigrationPending, Message: "version 0 is wanted"})
	var text bytes.Buffer
	writeStatus(&text, empty, out)
	if !strings.Contains(text.String(), "no schema version has been applied yet") || strings.Contains(text.String(), "wanted") {
		t.Errorf("it says %s", text.String())
	}
}
