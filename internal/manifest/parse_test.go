package manifest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// clinic is a small valid file.
const clinic = `apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic, namespace: shop}
spec:
  version: 7
  tables:
  - name: todos
    columns:
    - {name: id, type: integer}
    - {name: tenant, type: string}
    - {name: title, type: string}
    - {name: title_norm, type: string, nullable: true}
    primaryKey: [id]
    partition: {column: tenant}
  checkpoints:
  - name: title-norm
    version: 7
    sources: [{table: todos, changes: CommitLog}]
    backfill: {update: {table: todos, set: {title_norm: lower(title)}}}
`

// late is a standalone checkpoint of the clinic.
const late = `apiVersion: syncbarrier.dev/v1alpha1
kind: BackfillCheckpoint
metadata: {name: clinic-late, namespace: shop}
spec:
  schemaRef: {name: clinic}
  name: late
  version: 7
  sources: [{table: todos, changes: CommitLog}]
  backfill: {statement: {table: todos, apply: "UPDATE todos SET title_norm = lower(title) FROM batch WHERE todos.id = batch.id"}}
`

// edit replaces one part of a text, which must be there.
func edit(t *testing.T, text, old, replacement string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("the text does not hold %q", old)
	}
	return strings.Replace(text, old, replacement, 1)
}

func mustParse(t *testing.T, text string) *File {
	t.Helper()
	file, err := Parse(strings.NewReader(text), "clinic.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// wantInvalid checks that the error is InvalidSpec and holds every part.
func wantInvalid(t *testing.T, err error, parts ...string) {
	t.Helper()
	if storage.CodeOf(err) != storage.CodeInvalidSpec {
		t.Fatalf("the error is %v, want one with code %s", err, storage.CodeInvalidSpec)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error is\n%v\nand does not hold %q", err, part)
		}
	}
}

func TestParseReadsASchemaAndItsStandaloneCheckpoints(t *testing.T) {
	other := edit(t, late, "name: clinic-late", "name: clinic-later")
	file := mustParse(t, clinic+"---\n"+late+"---\n"+edit(t, other, "name: late", "name: later"))
	if file.Schema.Name != "clinic" || file.Schema.Spec.Version != 7 || len(file.Schema.Spec.Tables[0].Columns) != 4 {
		t.Errorf("the schema was read as %+v", file.Schema)
	}
	if len(file.Checkpoints) != 2 || file.Checkpoints[0].Spec.Name != "late" || file.Checkpoints[1].Spec.Name != "later" {
		t.Errorf("the checkpoints were read as %+v", file.Checkpoints)
	}
}

func TestParseTakesEveryFormOfTheSameFile(t *testing.T) {
	want := mustParse(t, clinic).Schema.Spec
	json := `{"apiVersion": "syncbarrier.dev/v1alpha1", "kind": "SyncSchema", "metadata": {"name": "clinic", "namespace": "shop"},
	"spec": {"version": 7, "tables": [{"name": "todos", "columns": [{"name": "id", "type": "integer"}, {"name": "tenant", "type": "string"},
	{"name": "title", "type": "string"}, {"name": "title_norm", "type": "string", "nullable": true}], "primaryKey": ["id"], "partition": {"column": "tenant"}}],
	"checkpoints": [{"name": "title-norm", "version": 7, "sources": [{"table": "todos", "changes": "CommitLog"}],
	"backfill": {"update": {"table": "todos", "set": {"title_norm": "lower(title)"}}}}]}}`
	for name, text := range map[string]string{
		"with a byte order mark":                    "\ufeff" + clinic,
		"with CRLF line ends":                       strings.ReplaceAll(clinic, "\n", "\r\n"),
		"with both, and markers around":             "\ufeff---\r\n" + strings.ReplaceAll(clinic, "\n", "\r\n") + "...\r\n",
		"with empty and comment documents":          "# nothing\n---\n---\n" + clinic + "---\n# nothing either\n---\n\n",
		"without an end of line at its end":         strings.TrimSuffix(clinic, "\n"),
		"as JSON":                                   json,
		"as JSON after a marker":                    "---\n" + json,
		"as a flow mapping that only begins as one": "{apiVersion: syncbarrier.dev/v1alpha1, " + strings.TrimPrefix(json, `{"apiVersion": "syncbarrier.dev/v1alpha1",`),
		"with version 7.0":                          edit(t, clinic, "  version: 7\n", "  version: 7.0\n"),
		"with version 7.0 in JSON":                  edit(t, json, `"spec": {"version": 7,`, `"spec": {"version": 7.0,`),
		"with a null where a field may be omitted":  clinic + "  suspend: null\n  strategy:\n  database: null\n",
		"with a status, as kubectl get prints it":   clinic + "status: {observedGeneration: 3, storedVersion: 6}\n",
	} {
		t.Run(name, func(t *testing.T) {
			if got := mustParse(t, text).Schema.Spec; !reflect.DeepEqual(got, want) {
				t.Errorf("it was read as\n%+v\nwant\n%+v", got, want)
			}
		})
	}
}

func TestParseFillsDefaultsAndKeepsAbsentGroupsAbsent(t *testing.T) {
	spec := mustParse(t, edit(t, clinic, "  version: 7\n", "  version: 7\n  lock: {}\n  gate: {}\n")).Schema.Spec
	if spec.Lock.TimeoutMilliseconds != 2000 || spec.Lock.StatementTimeoutSeconds != 300 || spec.Lock.HoldBudgetMilliseconds != 1000 {
		t.Errorf("lock was filled as %+v", *spec.Lock)
	}
	if spec.Gate.Mode != "Enforce" || spec.Gate.OlderPods != "Withdraw" || spec.Gate.WithdrawAtPercent != 100 {
		t.Errorf("gate was filled as %+v", *spec.Gate)
	}
	if spec.Strategy != nil {
		t.Errorf("an omitted strategy was filled as %+v", *spec.Strategy)
	}
	if spec.Tables[0].Layout != v1alpha1.LayoutPlain || spec.Checkpoints[0].Backfill.BatchRows != 1000 || spec.Checkpoints[0].Backfill.Parallelism != 1 {
		t.Errorf("leaves of lists were not filled: %+v", spec)
	}
}

// A group that is left out and one that is empty must mean the same.
func TestDefaultsOfTheSchemaAreThoseOfTheGoCode(t *testing.T) {
	filled := mustParse(t, edit(t, clinic, "  version: 7\n", "  version: 7\n  strategy: {}\n  lock: {}\n  gate: {}\n")).Schema.Spec
	absent := mustParse(t, clinic).Schema.Spec
	if seconds := *filled.Strategy.WaitForPodsSeconds; seconds != *absent.EffectiveStrategy().WaitForPodsSeconds {
		t.Errorf("waitForPodsSeconds is %d by the schema", seconds)
	}
	filled.Strategy.WaitForPodsSeconds = absent.EffectiveStrategy().WaitForPodsSeconds
	strategy := absent.EffectiveStrategy()
	strategy.WaitForPodsSeconds = filled.Strategy.WaitForPodsSeconds
	if *filled.Strategy != strategy {
		t.Errorf("strategy is %+v by the schema and %+v by the code", *filled.Strategy, strategy)
	}
	if *filled.Lock != absent.EffectiveLock() {
		t.Errorf("lock is %+v by the schema and %+v by the code", *filled.Lock, absent.EffectiveLock())
	}
	if *filled.Gate != absent.EffectiveGate() {
		t.Errorf("gate is %+v by the schema and %+v by the code", *filled.Gate, absent.EffectiveGate())
	}
	withDefaults := Settings(&v1alpha1.Backfill{})
	if got := Settings(&filled.Checkpoints[0].Backfill); got != withDefaults {
		t.Errorf("the live settings are %+v by the schema and %+v by the code", got, withDefaults)
	}
}

func TestParseLetsAFileLeaveOutItsDatabase(t *testing.T) {
	for name, test := range map[string]struct {
		database, schema string
		pooler           v1alpha1.PoolerMode
	}{
		"all of it":                      {"", "public", "None"},
		"an empty one":                   {"  database: {}\n", "public", "None"},
		"a null":                         {"  database: {postgres: null}\n", "public", "None"},
		"the address only":               {"  database: {postgres: {schema: app, pooler: Transaction}}\n", "app", "Transaction"},
		"nothing":                        {"  database: {postgres: {urlFrom: {secretKeyRef: {name: a, key: b}}, schema: app}}\n", "app", "None"},
		"nothing, with a connection":     {"  database: {postgres: {connection: {host: a, database: b, userFrom: {secretKeyRef: {name: a, key: b}}}}}\n", "public", "None"},
		"the address, with certificates": {"  database: {postgres: {tls: {caFrom: {secretKeyRef: {name: a, key: b}}}}}\n", "public", "None"},
	} {
		t.Run(name, func(t *testing.T) {
			file := mustParse(t, clinic+test.database)
			if file.DatabaseSchema() != test.schema || file.Pooler() != test.pooler {
				t.Errorf("schema %q and pooler %q, want %q and %q", file.DatabaseSchema(), file.Pooler(), test.schema, test.pooler)
			}
			postgres := file.Schema.Spec.Database.Postgres
			if postgres != nil && postgres.URLFrom != nil && !strings.Contains(test.database, "urlFrom") {
				t.Errorf("the file has no urlFrom, but %+v was read", *postgres.URLFrom)
			}
		})
	}
}

func TestTheClusterStillRequiresTheDatabase(t *testing.T) {
	made, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	d := document{line: 1, text: []byte(clinic)}
	if err := d.decode(); err != nil {
		t.Fatal(err)
	}
	errs := made[v1alpha1.KindSyncSchema].admit(d.object)
	if len(errs) != 1 || errs[0].Field != "spec.database" {
		t.Errorf("a SyncSchema without a database has the errors %v", errs)
	}
}

func TestParseRefusesWhatIsNotOneSchemaWithItsCheckpoints(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		parts []string
	}{
		"an empty file":           {"", []string{"clinic.yaml: the file holds no SyncSchema"}},
		"a file of comments":      {"# nothing\n---\n# here\n", []string{"the file holds no SyncSchema"}},
		"checkpoints alone":       {late, []string{"the file holds no SyncSchema"}},
		"two schemas":             {clinic + "---\n" + clinic, []string{"line 22: kind: a file holds one SyncSchema", "line 2 already"}},
		"another kind":            {clinic + "---\napiVersion: apps/v1\nkind: Deployment\n", []string{`line 22: kind: a file holds one SyncSchema and any number of BackfillCheckpoints, not a "Deployment"`}},
		"no kind":                 {edit(t, clinic, "kind: SyncSchema\n", ""), []string{"kind: it must be SyncSchema or BackfillCheckpoint"}},
		"a kind that is a list":   {edit(t, clinic, "kind: SyncSchema", "kind: [SyncSchema]"), []string{"kind: it must be SyncSchema or BackfillCheckpoint"}},
		"no apiVersion":           {edit(t, clinic, "apiVersion: syncbarrier.dev/v1alpha1\n", ""), []string{"apiVersion: it must be syncbarrier.dev/v1alpha1"}},
		"another version":         {edit(t, clinic, "dev/v1alpha1", "dev/v1"), []string{`line 1: apiVersion: it must be syncbarrier.dev/v1alpha1, not "syncbarrier.dev/v1"`}},
		"a document that is text": {"hello", []string{"the document is not an object"}},
		"a document that is null": {"null", []string{"the document is not an object"}},
		"a list":                  {"- a\n- b\n", []string{"the document is not an object"}},
		"a JSON list":             {"[1, 2]", []string{"the document is not an object"}},
		"malformed YAML":          {edit(t, clinic, "  version: 7\n", "  version: 7\n version: 8\n"), []string{"malformed YAML: line 5: did not find expected key"}},
		"malformed YAML later on": {clinic + "---\na: [1\n", []string{"malformed YAML: line 2"}},
		"malformed JSON":          {`{"apiVersion": "a", "kind" "b"}`, []string{"line 1: malformed YAML: did not find expected ',' or '}'"}},
		"a tab for indentation":   {edit(t, clinic, "  version: 7\n", "\tversion: 7\n"), []string{"malformed YAML: line 5", "cannot start any token"}},
		"a number that is none":   {clinic + "  suspend: .nan\n", []string{"malformed YAML", "NaN"}},
		"a key that is a list":    {"? [a]\n: b\n", []string{"malformed YAML"}},
		"a key twice":             {edit(t, clinic, "  version: 7\n", "  version: 7\n  version: 8\n"), []string{`line 6: key "version" already set in map`}},
		"a key twice, later on":   {clinic + "---\n" + edit(t, late, "  name: late\n", "  name: late\n  name: late\n"), []string{`line 27: key "name" already set in map`}},
		"a key twice in JSON":     {`{"apiVersion": "a", "apiVersion": "b"}`, []string{`duplicate field "apiVersion"`}},
		"a merge that overrides":  {"---\na: &a {x: 1}\nb:\n  <<: *a\n  x: 2\n", []string{"line 4: merge keys (<<) that override are not supported: this one brings \"x\""}},
		"merges of the same key":  {"a: &a {x: 1}\nb: &b {x: 2}\nc: {<<: [*a, *b]}\n", []string{"line 3: merge keys (<<) that override are not supported"}},
		"aliases to itself":       {"a: &a [*a]\n", []string{"once its aliases are followed"}},

		// What the parsers would leave out in silence.
		"something behind JSON":              {`{"apiVersion": "a"} b`, []string{"there is more behind the end of the document"}},
		"a bracket too many behind JSON":     {`{"apiVersion": "a"}]`, []string{"there is more behind the end of the document"}},
		"two objects of JSON":                {`{"apiVersion": "a"}` + "\n" + `{"apiVersion": "b"}`, []string{"there is more behind the end of the document"}},
		"two documents in lines that end CR": {strings.ReplaceAll(clinic+"---\n"+late, "\n", "\r"), []string{"there is more behind the end of the document"}},
		"two documents in UTF-16":            {utf16(clinic + "---\n" + late), []string{"there is more behind the end of the document", "UTF-8"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(test.text), "clinic.yaml")
			wantInvalid(t, err, test.parts...)
		})
	}
}

// utf16 is a text as some editors save it: UTF-16, little end first, behind a byte order mark.
func utf16(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		b.Write([]byte{c, 0})
	}
	return "\xff\xfe" + b.String()
}

func TestParseBoundsWhatItReads(t *testing.T) {
	long := strings.Repeat("x", MaxDocumentBytes)
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
	}
	for name, test := range map[string]struct {
		text string
		part string
	}{
		"a document of more than 1 MiB":           {clinic + "---\n" + "# " + long, "the document on line 20 has more than 1048576 bytes"},
		"a file of more than 16 MiB":              {strings.Repeat("# x\n", MaxFileBytes/4+1), "more than"},
		"a file of small documents":               {strings.Repeat("a: b\n---\n", MaxDocuments+2), "more than 1024 documents"},
		"aliases that ask for more than they are": {bomb.String(), "once its aliases are followed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(test.text), "clinic.yaml")
			wantInvalid(t, err, test.part)
		})
	}
}

func TestParseTakesADocumentUpToTheBound(t *testing.T) {
	padding := strings.Repeat("#", MaxDocumentBytes-len(clinic)-1)
	if file := mustParse(t, clinic+padding+"\n"); file.Schema.Name != "clinic" {
		t.Errorf("it was read as %+v", file.Schema)
	}
}

func TestParseFollowsAliases(t *testing.T) {
	text := edit(t, clinic, "sources: [{table: todos, changes: CommitLog}]", "sources: &sources [{table: todos, changes: CommitLog}]") +
		"  - name: again\n    version: 7\n    sources: *sources\n    backfill: {update: {table: todos, set: {title_norm: lower(title)}}}\n"
	if got := mustParse(t, text).Schema.Spec.Checkpoints[1].Sources[0].Table; got != "todos" {
		t.Errorf("the alias was read as %q", got)
	}
}

func TestParsePassesOnWhatTheReaderReturns(t *testing.T) {
	broken := errors.New("the disk is gone")
	_, err := Parse(iotest.ErrReader(broken), "clinic.yaml")
	if !errors.Is(err, broken) || storage.CodeOf(err) == storage.CodeInvalidSpec {
		t.Errorf("the error is %v", err)
	}
	if !strings.HasPrefix(err.Error(), "read clinic.yaml: ") {
		t.Errorf("the error is %q and does not say what was being done", err)
	}
	_, err = Parse(io.MultiReader(strings.NewReader(clinic), iotest.ErrReader(broken)), "clinic.yaml")
	if !errors.Is(err, broken) {
		t.Errorf("half a file was taken for a whole one: %v", err)
	}
}

func TestParseRefusesCheckpointsOfAnotherSchema(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		parts []string
	}{
		"another schema":    {edit(t, late, "{name: clinic}", "{name: billing}"), []string{`line 25: spec.schemaRef.name: Invalid value: "billing"`, `called "clinic"`}},
		"another namespace": {edit(t, late, ", namespace: shop", ""), []string{`metadata.namespace: Invalid value: "default"`, `in namespace "shop"`}},
		"one name twice":    {late + "---\n" + edit(t, late, "name: late", "name: later"), []string{`line 33: metadata.name: Duplicate value: "clinic-late"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(clinic+"---\n"+test.text), "clinic.yaml")
			wantInvalid(t, err, test.parts...)
		})
	}
}

func TestParseListsEveryProblemInTheOrderOfTheFile(t *testing.T) {
	text := edit(t, clinic, "{name: tenant, type: string}", "{name: tenant, type: text}")
	text = edit(t, text, "  version: 7\n", "  version: -1\n  colour: red\n")
	_, err := Parse(strings.NewReader(text), "clinic.yaml")
	wantInvalid(t, err, "clinic.yaml: 3 problems\n  line 5: spec.version: ", "\n  line 6: spec.colour: ", "\n  line 11: spec.tables[0].columns[1].type: ")
}

func TestSamplesAreOneValidFile(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"syncschema.yaml", "backfillcheckpoint.yaml"} {
		sample, err := os.ReadFile("../../config/samples/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("---\n")
		text.Write(sample)
	}
	target, waiting, err := Convert(mustParse(t, text.String()))
	if err != nil {
		t.Fatal(err)
	}
	if len(target.Checkpoints) != 2 || len(waiting) != 0 {
		t.Errorf("the target has the checkpoints %+v", target.Checkpoints)
	}
}
