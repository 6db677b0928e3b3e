package main

import (
	"strings"
	"sync"
	"testing"
)

func TestEightAppliesAtOnceAllEndWithAnOpenGate(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 2000)
		results := make([]result, 8)
		var done sync.WaitGroup
		for i := range results {
			done.Go(func() { results[i] = run(t, d, schemaV7, "apply", "-f", "-") })
		}
		done.Wait()
		for i, r := range results {
			if r.code != 0 || !strings.HasSuffix(r.out, "gate open: clinic version 7\n") {
				t.Errorf("apply %d ended with %d:\n%s%s", i, r.code, r.out, r.errors)
			}
		}
		if wrong := d.number(t, wrongRows); wrong != 0 {
			t.Errorf("%d rows are wrong", wrong)
		}
	})
}

func TestAnAddressInTheWrongPlaceIsNotRepeated(t *testing.T) {
	const address = "postgres://op:S3 CR'ET@db/x"
	for _, args := range [][]string{
		{"status", address}, {"fence", address}, {"checkpoint", "list", address}, {"--database", "sqlite:x", "backfill", "c", address},
		{"--timeout", address, "status"}, {"gate", "--version", address}, {"--database", "sqlite:x", "status", "-o", address},
		{"--database", "sqlite:x", "apply", "-f", address}, {"--database-file", address, "status"},
	} {
		for _, output := range []string{"text", "json"} {
			r := runProgram(t, "", append([]string{"-o", output}, args...)...)
			if r.code != 2 {
				t.Errorf("syncbarrier %q: exit code %d", args, r.code)
			}
			for _, secret := range []string{"S3", "CR'ET"} {
				if strings.Contains(r.out+r.errors, secret) {
					t.Errorf("syncbarrier %q repeats the password: %s%s", args, r.out, r.errors)
				}
			}
		}
	}
}

func TestCaptureOnSQLiteIsRefusedWithTheReason(t *testing.T) {
	d := sqliteTarget(t)
	clinicAtV6(t, d, 10)
	file := strings.Replace(schemaV7, "changes: CommitLog", "changes: Capture", 1)
	for _, verb := range []string{"plan", "apply"} {
		r := run(t, d, file, verb, "-f", "-").must(t, 20)
		for _, word := range []string{"title-norm", "Capture", "PostgreSQL", "no setting"} {
			if !strings.Contains(r.errors, word) {
				t.Errorf("%s does not say %q: %s", verb, word, r.errors)
			}
		}
	}
}

func TestABackfillOfAProgramOfYourOwnIsLeftToIt(t *testing.T) {
	job := strings.Replace(schemaV7, "backfill: {update: {table: todos, set: {title_norm: lower(title)}}, batchRows: 100}", "backfill: {job: {template: {}}}", 1)
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 10)
		refused := run(t, d, job, "apply", "-f", "-").must(t, 20)
		if !strings.Contains(refused.errors, "verify") {
			t.Errorf("a check that nobody would run is refused with: %s", refused.errors)
		}
		file := strings.Replace(job, "    verify: [{name: none-missing, query: SELECT id FROM todos WHERE title_norm IS NULL}]\n", "", 1)
		run(t, d, file, "apply", "-f", "-").must(t, 3)
		claim := run(t, d, "", "checkpoint", "claim", "title-norm", "-o", "json").must(t, 0).json(t)
		if rows, ok := claim["rows"].([]any); !ok || len(rows) != 1 || rows[0].(map[string]any)["ownerEpoch"] != float64(1) {
			t.Fatalf("the claim says %v", claim)
		}
		run(t, d, "", "backfill", "title-norm").must(t, 20)
		token, _ := claim["claim"].(string)
		d.exec(t, `UPDATE todos SET title_norm = lower(title)`)
		run(t, d, "", "checkpoint", "activate", "title-norm", "--epoch", "1", "--claim", token, "--watermark", "0").must(t, 0)
		run(t, d, "", "gate", "--version", "7").must(t, 0)
	})
}
