package postgres

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// TestTheFenceOfOnePartitionIsFoundAndPutBack takes it away or lowers it where its guard does not fire.
func TestTheFenceOfOnePartitionIsFoundAndPutBack(t *testing.T) {
	for name, test := range map[string]struct{ change, find string }{
		"missing": {"DELETE FROM sync_writer_fence WHERE partition = 'p'", `row "p" of public.sync_writer_fence is missing, required is version 7`},
		"lower":   {"UPDATE sync_writer_fence SET required_writer_version = 6 WHERE partition = 'p'", `row "p" of public.sync_writer_fence says version 6, required is 7`},
	} {
		t.Run(name, func(t *testing.T) {
			store, dsn := newCatalog(t)
			admin := connect(t, dsn)
			for checkpoint, definition := range map[string]string{
				"low":      `{"checkpoint":{"partitions":["p","q"],"sources":[{"table":"t","changes":"CommitLog"}]}}`,
				"captured": `{"checkpoint":{"partitions":["r"],"sources":[{"table":"t","changes":"Capture"}]}}`,
			} {
				admin.run("INSERT INTO sync_backfill_definitions VALUES ($1, 6, 'h', $2, '{}')", checkpoint, definition)
			}
			admin.run(`INSERT INTO sync_backfill_definitions VALUES ('high', 7, 'h', '{"checkpoint":{"partitions":["p"]}}', '{}')`)
			raise(t, store, map[string]int64{storage.AllPartitions: 6, "p": 7})
			if report, err := store.CheckFence(testContext(t)); err != nil || !report.Intact() {
				t.Fatalf("before: %+v, %v", report, err)
			}
			admin.run("ALTER TABLE sync_writer_fence DISABLE TRIGGER syncbarrier_guard_fence")
			admin.run(test.change)
			admin.run("ALTER TABLE sync_writer_fence ENABLE ALWAYS TRIGGER syncbarrier_guard_fence")
			expectFinding(t, store, test.find, true)
			expectBarrierRefuses(t, store, test.find)
			report, err := store.RepairFence(testContext(t))
			if err != nil || !report.Intact() || len(report.Repaired) != 1 || !strings.Contains(report.Repaired[0], `row "p"`) {
				t.Fatalf("repair: %+v, %v", report, err)
			}
			expectFenced(t, admin.append("p", 6))
		})
	}
}

// TestAVersionColumnThatIsGoneOrHoldsNoNumbersIsAFinding and no failure of the check.
func TestAVersionColumnThatIsGoneOrHoldsNoNumbersIsAFinding(t *testing.T) {
	for sql, find := range map[string]string{
		"ALTER TABLE sync_commits RENAME writer_version TO wv":              "column writer_version of public.sync_commits is missing",
		"ALTER TABLE sync_commits ALTER COLUMN writer_version TYPE text":    "column writer_version of public.sync_commits is of another type",
		"ALTER TABLE sync_commits ALTER COLUMN writer_version TYPE numeric": "column writer_version of public.sync_commits is of another type",
	} {
		t.Run(sql, func(t *testing.T) {
			store, dsn := newCatalog(t)
			admin := connect(t, dsn)
			record(t, store, admin, 6, 6, forAll(6))
			admin.run(sql)
			expectFinding(t, store, find, false)
			if report, err := store.RepairFence(testContext(t)); err != nil || report.Intact() {
				t.Errorf("repair: %+v, %v", report, err)
			}
		})
	}
}

func TestAMarkerThatWasTakenBackIsFoundAndRefused(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(5))
	db.mustApply(target(6))
	db.exec("ALTER TABLE sync_schema_meta DISABLE TRIGGER syncbarrier_guard_marker")
	db.exec("UPDATE sync_schema_meta SET schema_version = 5")
	db.exec("ALTER TABLE sync_schema_meta ENABLE ALWAYS TRIGGER syncbarrier_guard_marker")
	expectFinding(t, db.store, "says version 5, but the barrier of version 6 was committed", false)
	db.refuses(target(6), storage.CodeFenceBroken, "version 5", "version 6")
	db.refuses(target(7), storage.CodeFenceBroken, "version 5", "version 6")
}
