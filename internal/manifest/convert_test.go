package manifest

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func mustConvert(t *testing.T, text string) storage.Target {
	t.Helper()
	target, _, err := Convert(mustParse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestConvertCarriesEverythingOver(t *testing.T) {
	text, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	target, waiting, err := Convert(mustParse(t, string(text)))
	if err != nil {
		t.Fatal(err)
	}
	want := storage.Target{
		Version: 8, MinWriterVersion: pointer(int64(7)), MinReaderVersion: pointer(int64(6)),
		Tables: []storage.Table{
			{
				Name: "todos", Layout: storage.Plain,
				Columns: []storage.Column{
					{Name: "id", Type: storage.TypeInteger},
					{Name: "tenant", Type: storage.TypeString},
					{Name: "title", SQLType: "varchar(80)"},
					{Name: "title_norm", Type: storage.TypeString, Nullable: true},
				},
				PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "tenant"},
				Indexes: []storage.Index{{Name: "todos_norm", Columns: []string{"tenant", "title_norm"}, Unique: true}},
			},
			{
				Name: "notes", Layout: storage.Syncular, Materialize: true,
				Columns: []storage.Column{{Name: "body", Type: storage.TypeString}, {Name: "mark", Type: storage.TypeCRDT, Nullable: true}},
			},
			{Name: "secrets", Layout: storage.Syncular, Columns: []storage.Column{{Name: "body", Type: storage.TypeBytes}}},
			{Name: "events", Layout: storage.Plain, Columns: []storage.Column{{Name: "at", SQLType: "timestamptz"}}, Partition: storage.Partition{Hash: 16}},
		},
		RetiredTables: []string{"old_todos"},
		Migrations:    []storage.Migration{{Version: 7, SQL: "CREATE TABLE a(i int)"}, {Version: 8, SQL: "DROP TABLE a"}},
		Checkpoints: []storage.Checkpoint{
			{
				Name: "title-norm", Version: 7, Partitions: []string{"b", "a"},
				Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog, Columns: []string{"title"}}},
				Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{"title_norm": "lower(title)"}}},
				Verify:   []storage.Verify{{Name: "none-missing", Query: "SELECT id FROM todos WHERE title_norm IS NULL"}},
				Settings: storage.Settings{BatchRows: 500, MaxRowsPerSecond: 2000, MaxReplicationLagSeconds: 5, Parallelism: 2},
			},
			{
				Name: "words", Version: 8,
				Sources: []storage.Source{
					{Table: "todos", Changes: storage.CommitLog},
					{Table: "notes", Changes: storage.CommitLog, Keys: "SELECT todos.id FROM todos JOIN changed ON true"},
				},
				Backfill: storage.Backfill{Statement: &storage.Statement{Table: "todos", Apply: "INSERT INTO words SELECT 1", Remove: "DELETE FROM words"}},
				Settings: storage.Settings{BatchRows: 1000, Parallelism: 1},
			},
			{
				Name: "outside", Version: 8,
				Sources:  []storage.Source{{Table: "notes", Changes: storage.CommitLog}},
				Backfill: storage.Backfill{Job: true},
				Settings: storage.Settings{BatchRows: 1000, Parallelism: 1},
			},
			{
				Name: "late", Version: 8, Standalone: true,
				Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
				Backfill: storage.Backfill{Statement: &storage.Statement{Table: "todos", Apply: "SELECT 1"}},
				Settings: storage.Settings{BatchRows: 1000, Parallelism: 1},
			},
		},
		Owner: storage.Owner{Namespace: "shop", Name: "clinic", UID: "3f1e"},
		Lock:  storage.LockLimits{TimeoutMilliseconds: 500, StatementTimeoutSeconds: 60},
	}
	if !reflect.DeepEqual(target, want) {
		t.Errorf("the target is\n%+v\nwant\n%+v", target, want)
	}
	if len(waiting) != 1 || waiting[0].Spec.Name != "later" {
		t.Errorf("waiting are %+v, want the one of version 9", waiting)
	}
}

func TestConvertMeansTheSameByWhatIsLeftOutAndWhatIsTheDefault(t *testing.T) {
	target := mustConvert(t, clinic)
	want := storage.Owner{Namespace: "shop", Name: "clinic"}
	if target.Owner != want {
		t.Errorf("the owner is %+v", target.Owner)
	}
	if target.Lock != (storage.LockLimits{}).WithDefaults() {
		t.Errorf("the lock limits are %+v", target.Lock)
	}
	if target.Checkpoints[0].Settings != (storage.Settings{}).WithDefaults() {
		t.Errorf("the live settings are %+v", target.Checkpoints[0].Settings)
	}
	if owner := mustConvert(t, edit(t, clinic, ", namespace: shop", "")).Owner; owner.Namespace != "default" {
		t.Errorf("without a namespace the owner is %+v", owner)
	}
}

func TestConvertNamesTheFileAndTheLineOfARelation(t *testing.T) {
	text := edit(t, clinic, "sources: [{table: todos,", "sources: [{table: owners, keys: SELECT 1,") +
		"---\n" + edit(t, late, "  version: 7\n", "  version: 7\n  partitions: ['*']\n")
	_, _, err := Convert(mustParse(t, text))
	wantInvalid(t, err, "clinic.yaml: 2 problems",
		`line 18: spec.checkpoints[0].sources[0].table: Invalid value: "owners"`,
		"line 28: BackfillCheckpoint[clinic-late].spec.partitions[0]: ")
}

func TestConvertRefusesSQLThatOnlyAClusterCanRead(t *testing.T) {
	text := edit(t, clinic, "  version: 7\n", "  version: 7\n  migrations:\n  - {version: 7, sqlFrom: [{configMapKeyRef: {name: clinic-sql, key: seven.sql}}]}\n")
	_, _, err := Convert(mustParse(t, text))
	wantInvalid(t, err, "clinic.yaml: line 7: spec.migrations[0].sqlFrom: Forbidden: a ConfigMap can be read in a cluster only")
}

func TestTargetTakesSQLThatAControllerHasRead(t *testing.T) {
	text := edit(t, clinic, "  version: 7\n", "  version: 7\n  migrations:\n  - {version: 7, sqlFrom: [{configMapKeyRef: {name: clinic-sql, key: seven.sql}}]}\n")
	target := Target(&mustParse(t, text).Schema, map[int32]string{7: "SELECT 7"})
	if want := []storage.Migration{{Version: 7, SQL: "SELECT 7"}}; !slices.Equal(target.Migrations, want) {
		t.Errorf("the migrations are %+v", target.Migrations)
	}
}

func TestAJobsTemplateCountsByItsContent(t *testing.T) {
	template := func(raw string) string {
		return convertBackfill(&v1alpha1.Backfill{Job: &v1alpha1.JobBackfill{Template: runtime.RawExtension{Raw: []byte(raw)}}}).JobTemplate
	}
	if got := template(`{"spec": {"b": 1, "a": [2.5, 9007199254740993]}, "metadata": {}}`); got != `{"metadata":{},"spec":{"a":[2.5,9007199254740993],"b":1}}` {
		t.Errorf("the template is %s", got)
	}
	if got := template(`{}`); got != "" {
		t.Errorf("an empty template is %s", got)
	}
}

// What was applied is known by its hash for ever, so none of these may change.
func TestContentHashesOfFilesArePinned(t *testing.T) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pin := func(name, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("the hash of %s is %s, pinned is %s", name, got, want)
		}
	}
	target := mustConvert(t, clinic)
	pin("the clinic's version 7", target.ContentHash(7), "c717284498451c7e53a82a74981dea6a39fb82907ce1228226b82c0bb5393bdc")
	pin("the clinic's title-norm", target.Checkpoints[0].Hash(), "eed554888e2fc5c1338263c33c0d961c998567e7f3a039236b62cc36b23c26d4")
	target = mustConvert(t, string(full))
	pin("version 7 of the full file", target.ContentHash(7), "fdae977c3e06243247bdda5702a39f01758dd5973a679faea0aa7d68ced8d19a")
	pin("version 8 of the full file", target.ContentHash(8), "3a25a65675d7031c68e88e18745eab97b61bb1915afcd4650936064e8de152cc")
	pin("the full file's migration", target.Migrations[0].Hash(), "a59e20e3a6cfa3592652bdf4fbffa6b7b7a651c9818cc9dccc65b81d48b18f03")
	pin("the full file's title-norm", target.Checkpoints[0].Hash(), "021b18186b09572be0f9082002284f1f32a980e07646e58a228826b5dc0f6368")
	pin("the full file's words", target.Checkpoints[1].Hash(), "af48c35cce83e5831cd99e079855d2d3e3aa17e3aefefee810bcd701db4ac80b")
	pin("the full file's outside", target.Checkpoints[2].Hash(), "25081fe769c8baea63195387ccd9c7548a1bf4bfc636f0529def8c9cfd20f6a9")
}

func TestTheContentHashIsBlindForWhatMayChangeAtAnyTime(t *testing.T) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(full)
	want7, want8 := mustConvert(t, text).ContentHash(7), mustConvert(t, text).ContentHash(8)
	for name, change := range map[string][2]string{
		"the pooler":                        {"pooler: None", "pooler: Transaction"},
		"the database schema":               {"schema: public", "schema: app"},
		"the cutover":                       {"cutover: Automatic", "cutover: OnApproval"},
		"the lock limits":                   {"timeoutMilliseconds: 500", "timeoutMilliseconds: 700"},
		"the worker":                        {"worker: {template: {}}", "worker: {template: {spec: {priority: 1}}}"},
		"the gate":                          {"mode: Enforce", "mode: Report"},
		"suspend":                           {"suspend: false", "suspend: true"},
		"the batch":                         {"batchRows: 500", "batchRows: 5"},
		"the rate":                          {"maxRowsPerSecond: 2000", "maxRowsPerSecond: 0"},
		"the lag":                           {"maxReplicationLagSeconds: 5", "maxReplicationLagSeconds: 6"},
		"the parallelism":                   {"parallelism: 2", "parallelism: 3"},
		"the order of partitions":           {"partitions: [b, a]", "partitions: [a, b]"},
		"a default that is written out":     {"{name: title, sqlType: varchar(80)}", "{name: title, sqlType: varchar(80), nullable: false}"},
		"a layout that is written out":      {"- name: todos\n", "- name: todos\n    layout: Plain\n"},
		"a materialize that is written out": {"  - name: notes\n", "  - name: notes\n    materialize: true\n"},
		"white space at the end of SQL":     {"sql: CREATE TABLE a(i int)", `sql: "CREATE TABLE a(i int)  \r\n\r\n"`},
		"a standalone checkpoint":           {"  name: late\n", "  name: late-2\n"},
		"a job's parallelism":               {"job: {template: {}}", "job: {template: {}}\n      parallelism: 4"},
	} {
		t.Run(name, func(t *testing.T) {
			target := mustConvert(t, edit(t, text, change[0], change[1]))
			if target.ContentHash(7) != want7 || target.ContentHash(8) != want8 {
				t.Error("the content hash has changed")
			}
		})
	}
}

func TestTheContentHashSeesWhatAnAppliedVersionIs(t *testing.T) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(full)
	want7, want8 := mustConvert(t, text).ContentHash(7), mustConvert(t, text).ContentHash(8)
	for name, test := range map[string]struct {
		old, replacement string
		seven, eight     bool // which versions' hashes change
	}{
		"a column":               {"{name: tenant, type: string}", "{name: tenant, type: integer}", true, true},
		"the order of columns":   {"{name: tenant, type: string}\n    - {name: title, sqlType: varchar(80)}", "{name: title, sqlType: varchar(80)}\n    - {name: tenant, type: string}", true, true},
		"a nullable":             {"{name: tenant, type: string}", "{name: tenant, type: string, nullable: true}", true, true},
		"a key":                  {"primaryKey: [id]", "primaryKey: [id, tenant]", true, true},
		"an index":               {"unique: true", "unique: false", true, true},
		"materialize":            {"materialize: false", "materialize: true", true, true},
		"a retired table":        {"[old_todos]", "[old_todos, older_todos]", true, true},
		"the fence":              {"minWriterVersion: 7", "minWriterVersion: 8", true, true},
		"the reader minimum":     {"minReaderVersion: 6", "minReaderVersion: 7", true, true},
		"SQL of version 7":       {"CREATE TABLE a(i int)", "CREATE TABLE a(i bigint)", true, false},
		"SQL of version 8":       {"DROP TABLE a", "DROP TABLE IF EXISTS a", false, true},
		"an expression":          {"lower(title)", "upper(title)", true, false},
		"a partition":            {"[b, a]", "[b, c]", true, false},
		"source columns":         {"columns: [title]}", "columns: [title, tenant]}", true, false},
		"a verify query":         {"title_norm IS NULL", "title_norm = ''", true, false},
		"the keys of a source":   {"ON true", "ON false", false, true},
		"a job's container":      {"job: {template: {}}", "job: {template: {spec: {hostname: a}}}", false, true},
		"what a statement drops": {"DELETE FROM words", "DELETE FROM words WHERE true", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			target := mustConvert(t, edit(t, text, test.old, test.replacement))
			if got := target.ContentHash(7) != want7; got != test.seven {
				t.Errorf("version 7 changed: %t, want %t", got, test.seven)
			}
			if got := target.ContentHash(8) != want8; got != test.eight {
				t.Errorf("version 8 changed: %t, want %t", got, test.eight)
			}
		})
	}
}

// The conditions that the API documents are the classes that the engine knows.
func TestEveryClassThatAPersonSeesIsADocumentedReason(t *testing.T) {
	source, err := os.ReadFile("../../api/v1alpha1/conditions.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, class := range []storage.Class{
		storage.ClassLockTimeout, storage.ClassDeadlock, storage.ClassSerialization, storage.ClassCancelled, storage.ClassConnectionLost,
		storage.ClassCommitUnknown, storage.ClassReadOnly, storage.ClassAuthenticationFailed, storage.ClassThrottled, storage.ClassPreviousVersionOpen,
		storage.ClassInvalidSpec, storage.ClassInvalidSQL, storage.ClassNotTransactional, storage.ClassVersionRegression,
		storage.ClassContentDrift, storage.ClassLayoutMismatch, storage.ClassConflict, storage.ClassFenceBroken,
		storage.ClassVerificationFailed, storage.ClassNotConverging, storage.ClassUnverifiable,
	} {
		if !strings.Contains(string(source), `= "`+string(class)+`"`) {
			t.Errorf("api/v1alpha1 has no reason %s", class)
		}
	}
	if v1alpha1.ReasonInvalidSpec != string(storage.ClassInvalidSpec) {
		t.Error("InvalidSpec has two spellings")
	}
}
