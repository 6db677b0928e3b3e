package controllers

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

const (
	// hostileTable needs every kind of care at once.
	hostileTable = "Pat\"ient's %s $1 \\ {schema}\n\x1b[2J\u202e"
	hostileQuery = `"Pat""ient's %s $1 \ {schema}` + "\n\x1b[2J\u202e\""
)

// hostileKeys are what the column that is the partition holds; empty is one that no checkpoint can list.
var hostileKeys = []string{"p'); DROP TABLE sync_commits;--", "%s", "$1", "new\nline", "\x1b[2J", "*", "capture:x", "E", "e", strings.Repeat("日", 4000), ""}

// hostile is a version of a schema in "Order Data", whose two checkpoints of version 7 have names that are the same but for their last character.
func (w *world) hostile(version int32) *v1alpha1.SyncSchema {
	schema := w.clinic(version)
	schema.Spec.Database.Postgres.Schema = "Order Data"
	table := v1alpha1.Table{Name: hostileTable, PrimaryKey: []string{"user"}, Partition: &v1alpha1.TablePartition{Column: "select"}}
	table.Columns = []v1alpha1.Column{{Name: "user", Type: "integer"}, {Name: "select", Type: "string"}}
	schema.Spec.Tables, schema.Spec.Checkpoints = []v1alpha1.Table{table}, nil
	if version < 7 {
		return schema
	}
	for _, last := range []string{"a", "A"} {
		column := strings.Repeat("é", 31) + last // 63 bytes
		schema.Spec.Tables[0].Columns = append(schema.Spec.Tables[0].Columns, v1alpha1.Column{Name: column, Type: "string", Nullable: true})
		checkpoint := v1alpha1.Checkpoint{Name: strings.Repeat("c", 62) + last, Version: 7}
		checkpoint.Sources = []v1alpha1.Source{{Table: hostileTable, Changes: v1alpha1.ChangesCapture}}
		checkpoint.Backfill.Update = &v1alpha1.Update{Table: hostileTable, Set: map[string]v1alpha1.Expression{column: `upper("select")`}}
		checkpoint.Verify = []v1alpha1.Verify{{Name: hostileTable[:20], Query: fmt.Sprintf(`SELECT "user" FROM %s WHERE "%s" IS NULL`, hostileQuery, column)}}
		schema.Spec.Checkpoints = append(schema.Spec.Checkpoints, checkpoint)
	}
	return schema
}

// legibleText holds for what people read: every character shows, and what is cut is cut between two.
func legibleText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' })
}

// expectLegible looks at everything that was said of the objects of the namespace up to now.
func (w *world) expectLegible() {
	GinkgoHelper()
	conditions := slices.Clone(w.schema().Status.Conditions)
	for _, checkpoint := range w.children() {
		conditions = append(conditions, checkpoint.Status.Conditions...)
		Expect(checkpoint.Status.HoldReason).To(Satisfy(legibleText))
	}
	for _, condition := range conditions {
		Expect(condition.Message).To(Satisfy(legibleText), condition.Type)
	}
	w.events.mu.Lock()
	defer w.events.mu.Unlock()
	for _, event := range w.events.list {
		_, note, _ := strings.Cut(event, ": ")
		Expect(note).To(Satisfy(legibleText))
		Expect(len(note)).To(BeNumerically("<=", 1024), "what the API server takes: %s", note)
	}
}

func (w *world) children() []v1alpha1.BackfillCheckpoint {
	GinkgoHelper()
	var all v1alpha1.BackfillCheckpointList
	Expect(suite.admin.List(w.ctx, &all, client.InNamespace(w.namespace))).To(Succeed())
	return all.Items
}

var _ = Describe("Names that need care", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("go the whole way, and are found again", func() {
		w.sql(`CREATE SCHEMA "Order Data"`)
		w.sql(`CREATE TABLE "Order Data".` + hostileQuery + ` ("user" bigint PRIMARY KEY, "select" text NOT NULL)`)
		for i, key := range hostileKeys {
			w.sql(`INSERT INTO "Order Data".`+hostileQuery+` VALUES ($1, $2)`, i, key)
		}
		w.apply(w.hostile(6))
		w.bring()
		w.apply(w.hostile(7))
		written := false
		w.bring(func() {
			w.expectLegible()
			if !written && w.number(`SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'syncbarrier_capture%'`) > 0 {
				written = true
				w.sql(`SELECT set_config('syncbarrier.writer_version', '7', false)`)
				for i, key := range hostileKeys {
					w.sql(`UPDATE "Order Data".`+hostileQuery+` SET "select" = $2 || 'x' WHERE "user" = $1`, i, key)
				}
				Expect(w.number(`SELECT count(DISTINCT row_id) FROM "Order Data".sync_changes WHERE tbl = $1 AND op IN (1, 2)`, hostileTable)).To(BeEquivalentTo(len(hostileKeys)))
			}
		})
		Expect(written).To(BeTrue())
		for _, last := range []string{"a", "A"} {
			column := `"` + strings.Repeat("é", 31) + last + `"`
			Expect(w.number(`SELECT count(*) FROM "Order Data".` + hostileQuery + ` WHERE ` + column + ` IS DISTINCT FROM upper("select")`)).To(BeZero())
		}
		names := map[string]bool{}
		for _, checkpoint := range w.children() {
			Expect(validation.IsDNS1123Label(checkpoint.Name)).To(BeEmpty(), checkpoint.Name)
			names[checkpoint.Name] = true
		}
		for _, job := range w.jobs() {
			Expect(len(job.Name)).To(BeNumerically("<=", jobNameLimit))
			Expect(job.Spec.Template.Spec.Containers[0].Command).To(ContainElement("--schema=Order Data"))
			names[job.Name] = true
		}
		Expect(names).To(HaveLen(4), "two checkpoints, each with a Job")

		before := w.resourceVersions()
		w.clock.advance(statusEvery)
		w.pass()
		for _, checkpoint := range w.children() {
			w.passCheckpoint(checkpoint.Name)
		}
		Expect(w.resourceVersions()).To(Equal(before), "everything is found by its name, so nothing is written")
	})

	It("of another program are legible where they keep a version from being done", func() {
		w.apply(w.clinic(6))
		w.bring()
		name, key := "done\nReady True\x1b[2J", "\u202e"+strings.Repeat("日", 600)
		w.sql(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms) VALUES ($2, $1, 6, 'declared', 0)`, name, key)
		w.apply(w.clinic(7))
		object, _ := w.pass()
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonCheckpointOrphaned))
		Expect(readyMessage(object.Status.Conditions)).To(ContainSubstring(`"done\nReady True\x1b[2J"`))
		w.expectLegible()

		w.sql(`UPDATE sync_barrier_owner SET name = E'other\x1b[2J'`)
		object, _ = w.pass()
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonConflict))
		Expect(readyMessage(object.Status.Conditions)).To(ContainSubstring(`other\u001b[2J`))
		w.expectLegible()
	})

	It("that no database can have are refused by their fields, before anything is locked", func() {
		long := strings.Repeat("é", 32) // 32 characters, which the definition admits, and 64 bytes
		schema := w.clinic(7)
		schema.Spec.Database.Postgres.Schema = long
		schema.Spec.RetiredTables = []string{long}
		table := &schema.Spec.Tables[0]
		table.Columns = append(table.Columns, v1alpha1.Column{Name: long, Type: "string", Nullable: true}, v1alpha1.Column{Name: "odd", SQLType: "text\x00"})
		table.Indexes = []v1alpha1.Index{{Name: long, Columns: []string{"id"}}}
		schema.Spec.Tables = append(schema.Spec.Tables, v1alpha1.Table{Name: "nul\x00", Columns: []v1alpha1.Column{{Name: "id", Type: "integer"}}})
		checkpoint := &schema.Spec.Checkpoints[0]
		checkpoint.Partitions = []string{strings.Repeat("é", 129), "*", "capture:x", "nul\x00"}
		checkpoint.Verify[0].Name = "nul\x00"
		checkpoint.Backfill.Update.Set["\x1b[2J\nx"] = "lower(name)"
		w.apply(schema)
		object, _ := w.pass()
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonInvalidSpec))
		message := readyMessage(object.Status.Conditions)
		for _, path := range []string{
			"spec.database.postgres.schema", "spec.retiredTables[0]", "spec.tables[0].columns[4].name", "spec.tables[0].columns[5].sqlType", "spec.tables[0].indexes[0].name", "spec.tables[1].name",
			"spec.checkpoints[0].partitions[0]", "spec.checkpoints[0].partitions[1]", "spec.checkpoints[0].partitions[2]", "spec.checkpoints[0].partitions[3]", "spec.checkpoints[0].verify[0].name",
			`spec.checkpoints[0].backfill.update.set[\u001b[2J\nx]`,
		} {
			Expect(message).To(ContainSubstring(path + ": "))
		}
		Expect(strings.Split(message, "\n")).To(HaveLen(1))
		w.expectLegible()
		Expect(w.number(`SELECT count(*) FROM pg_class WHERE relname LIKE 'sync\_%'`)).To(BeZero(), "not even a catalog was made")
	})

	It("stand in a plan whole, with those of their schemas", func() {
		schema, table := strings.Repeat("s", 63), strings.Repeat("é", 31)+"t"
		w.sql(`CREATE SCHEMA "` + schema + `" CREATE TABLE "` + table + `" (i int)`)
		w.apply(w.clinic(6))
		w.bring()
		w.apply(w.clinic(7, withSQL(7, `ALTER TABLE "`+schema+`"."`+table+`" ADD COLUMN "on" int`), func(s *v1alpha1.SyncSchema) {
			s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverOnApproval}
		}))
		object, _ := w.pass()
		Expect(object.Status.Plan).NotTo(BeNil())
		Expect(object.Status.Plan.Locks).To(ContainElement(HaveField("Table", schema+"."+table)))
	})

	It("that the definition does not admit are refused by the API server, by their fields", func() {
		for path, change := range map[string]func(*v1alpha1.SyncSchema){
			"metadata.name":                      func(s *v1alpha1.SyncSchema) { s.Name = strings.Repeat("n", 64) },
			"spec.database.postgres.schema":      func(s *v1alpha1.SyncSchema) { s.Spec.Database.Postgres.Schema = strings.Repeat("é", 64) },
			"spec.tables[0].name":                func(s *v1alpha1.SyncSchema) { s.Spec.Tables[0].Name = strings.Repeat("é", 64) },
			"spec.tables[0].columns[0].name":     func(s *v1alpha1.SyncSchema) { s.Spec.Tables[0].Columns[0].Name = "" },
			"spec.checkpoints[0].name":           func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Name = "line\nend" },
			"spec.checkpoints[0].verify[0].name": func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Verify[0].Name = strings.Repeat("n", 64) },
			"spec.checkpoints[0].partitions[0]":  func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Partitions = []string{strings.Repeat("k", 257)} },
		} {
			err := suite.admin.Create(w.ctx, w.clinic(7, change))
			Expect(err).To(MatchError(ContainSubstring(path)))
		}
	})
})

// resourceVersions are those of everything of ours in the namespace.
func (w *world) resourceVersions() map[string]string {
	GinkgoHelper()
	versions := map[string]string{"schema": w.schema().ResourceVersion}
	for _, checkpoint := range w.children() {
		versions[checkpoint.Name] = checkpoint.ResourceVersion
	}
	for _, job := range w.jobs() {
		versions[job.Name] = job.ResourceVersion
	}
	return versions
}
