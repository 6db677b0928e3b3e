package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestTheSQLFilesAreReadWhole: a statement that the patterns do not match would be installed by nobody.
func TestTheSQLFilesAreReadWhole(t *testing.T) {
	text := fenceSQL + guardsSQL + captureSQL
	if n := strings.Count(text, "CREATE OR REPLACE FUNCTION"); n != len(declaredFunctions) || n == 0 {
		t.Errorf("%d functions are written, %d are read", n, len(declaredFunctions))
	}
	if n := strings.Count(text, "CREATE OR REPLACE TRIGGER"); n != len(declaredTriggers) || n == 0 {
		t.Errorf("%d triggers are written, %d are read", n, len(declaredTriggers))
	}
	if n := strings.Count(catalogSQL, "IF NOT EXISTS"); n != len(declaredRelations) || n == 0 {
		t.Errorf("%d relations are written, %d are read", n, len(declaredRelations))
	}
	for _, trigger := range declaredTriggers {
		if !slices.ContainsFunc(declaredFunctions, func(f declaredFunction) bool { return f.name == trigger.function }) {
			t.Errorf("trigger %s calls %s, which is not declared", trigger.name, trigger.function)
		}
	}
	for _, name := range ownTables {
		if !slices.ContainsFunc(declaredRelations, func(r declaredRelation) bool { return r.kind == "TABLE" && r.name == name }) {
			t.Errorf("%s is not declared", name)
		}
	}
}

// TestEveryFunctionIsHardened: what SECURITY DEFINER needs, in each of them.
func TestEveryFunctionIsHardened(t *testing.T) {
	for _, function := range declaredFunctions {
		header, _, _ := strings.Cut(string(function.sql), "{body}")
		body := string(function.body)
		for _, need := range []string{"RETURNS trigger", "LANGUAGE plpgsql", "VOLATILE", "SECURITY DEFINER", "SET search_path = pg_catalog, pg_temp", "SET row_security = off"} {
			if !strings.Contains(header, need) {
				t.Errorf("%s lacks %s", function.name, need)
			}
		}
		if !strings.Contains(body, "#variable_conflict use_column") {
			t.Errorf("%s does not say whether a name is a column or a variable", function.name)
		}
		if strings.Contains(body, "EXCEPTION\n") {
			t.Errorf("%s has an exception block, a subtransaction for each row", function.name)
		}
		for _, table := range append(syncTables(), ownTables...) {
			for _, before := range []string{"FROM ", "INTO ", "UPDATE ", "JOIN "} {
				if strings.Contains(body, before+table) {
					t.Errorf("%s does not name %s in full", function.name, table)
				}
			}
		}
	}
}

func TestTriggersAreReadAsTheyAreWritten(t *testing.T) {
	want := map[string]string{
		"syncbarrier_fence":                     "sync_commits syncbarrier_fence 21 [{minimum}] ",
		"syncbarrier_guard_marker":              "sync_schema_meta syncbarrier_guard_marker 31 [0] ",
		"syncbarrier_guard_marker_truncate":     "sync_schema_meta syncbarrier_guard_marker 34 [0] ",
		"syncbarrier_guard_fence":               "sync_writer_fence syncbarrier_guard_fence 31 [] ",
		"syncbarrier_guard_fence_truncate":      "sync_writer_fence syncbarrier_guard_fence 34 [] ",
		"syncbarrier_guard_partition":           "sync_partitions syncbarrier_guard_partition 19 [] new.horizon_seq<old.horizon_seqornew.max_commit_seq<old.max_commit_seqornew.partition<>old.partition",
		"syncbarrier_guard_partition_delete":    "sync_partitions syncbarrier_guard_partition 11 [] ",
		"syncbarrier_guard_partition_truncate":  "sync_partitions syncbarrier_guard_partition 34 [] ",
		"syncbarrier_guard_checkpoint":          "sync_backfill_checkpoints syncbarrier_guard_checkpoint 31 [] ",
		"syncbarrier_guard_checkpoint_truncate": "sync_backfill_checkpoints syncbarrier_guard_checkpoint 34 [] ",
		"syncbarrier_guard_definition":          "sync_backfill_definitions syncbarrier_guard_definition 5 [] ",
		"syncbarrier_guard_definition_kept":     "sync_backfill_definitions syncbarrier_guard_definition_kept 27 [] ",
		"syncbarrier_guard_definition_truncate": "sync_backfill_definitions syncbarrier_guard_definition_kept 34 [] ",
		"syncbarrier_guard_commits":             "sync_commits syncbarrier_guard_log 11 [] starts_withold.partition,'capture:'",
		"syncbarrier_guard_changes":             "sync_changes syncbarrier_guard_log 11 [] starts_withold.partition,'capture:'",
	}
	got := map[string]string{}
	for _, trigger := range declaredTriggers {
		got[trigger.name] = fmt.Sprintf("%s %s %d %v %s", trigger.table, trigger.function, trigger.kind, trigger.arguments, trigger.when)
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s reads %q, want %q", name, got[name], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d triggers, want %d: %v", len(got), len(want), got)
	}
	if fence := fenceDeclaration().withMinimum(7); !strings.Contains(string(fence.sql), "syncbarrier_fence('7')") || strings.Contains(string(fenceDeclaration().sql), "'7'") {
		t.Errorf("with a minimum: %s", fence.sql)
	}
}

func TestConditionsCompareAsTheServerRendersThem(t *testing.T) {
	for definition, want := range map[string]string{
		"CREATE TRIGGER x BEFORE UPDATE ON public.t FOR EACH ROW WHEN (((new.a < old.a) OR (new.b <> old.b))) EXECUTE FUNCTION f()": normaliseCondition("NEW.a < OLD.a OR NEW.b <> OLD.b"),
		"CREATE TRIGGER x BEFORE DELETE ON public.t FOR EACH ROW WHEN (starts_with(old.p, 'capture:'::text)) EXECUTE FUNCTION f()":  normaliseCondition("starts_with(OLD.p, 'capture:')"),
		"CREATE TRIGGER x BEFORE DELETE ON public.t FOR EACH ROW EXECUTE FUNCTION f()":                                              "",
	} {
		if got := conditionOf(definition); got != want {
			t.Errorf("%s: %q, want %q", definition, got, want)
		}
	}
}
