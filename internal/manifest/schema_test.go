package manifest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// repeat makes a list of n numbered entries in flow style.
func repeat(n int, format string) string {
	entries := make([]string, n)
	for i := range entries {
		entries[i] = fmt.Sprintf(format, i)
	}
	return "[" + strings.Join(entries, ", ") + "]"
}

// Every case puts one line into a valid file, or changes one, and names the field that must be reported.
func TestTheSchemaRefuses(t *testing.T) {
	const (
		version    = "  version: 7\n"
		sources    = "sources: [{table: todos, changes: CommitLog}]"
		set        = "set: {title_norm: lower(title)}"
		update     = "backfill: {update: {table: todos, " + set + "}}"
		partition  = "partition: {column: tenant}"
		primaryKey = "primaryKey: [id]"
		tenant     = "{name: tenant, type: string}"
	)
	spec := func(lines string) [2]string { return [2]string{version, version + lines} }
	for name, test := range map[string]struct {
		change [2]string
		parts  []string
	}{
		"an unknown field":                  {spec("  colour: red\n"), []string{"line 6: spec.colour: Forbidden: there is no such field"}},
		"an unknown field in a list":        {[2]string{tenant, "{name: tenant, type: string, length: 3}"}, []string{"spec.tables[0].columns[1].length: Forbidden"}},
		"an unknown field in metadata":      {[2]string{"namespace: shop", "namespace: shop, colour: red"}, []string{"metadata.colour: Forbidden"}},
		"an unknown field at the top":       {[2]string{"spec:\n", "colour: red\nspec:\n"}, []string{"line 4: colour: Forbidden"}},
		"a namespace in a reference":        {spec("  database: {postgres: {urlFrom: {secretKeyRef: {name: a, key: b, namespace: c}}}}\n"), []string{"spec.database.postgres.urlFrom.secretKeyRef.namespace: Forbidden"}},
		"no name":                           {[2]string{"name: clinic, ", ""}, []string{"line 3: metadata.name: Required value"}},
		"a name with capitals":              {[2]string{"name: clinic,", "name: Clinic,"}, []string{`metadata.name: Invalid value: "Clinic"`}},
		"a name of 64 characters":           {[2]string{"name: clinic,", "name: " + strings.Repeat("c", 64) + ","}, []string{"line 3: metadata.name: Invalid value", "metadata.name must be at most 63 characters"}},
		"metadata that is a list":           {[2]string{"{name: clinic, namespace: shop}", "[a]"}, []string{"line 3: metadata: "}},
		"no spec":                           {[2]string{clinic[strings.Index(clinic, "spec:"):], ""}, []string{"spec: Required value"}},
		"a spec that is a text":             {[2]string{clinic[strings.Index(clinic, "spec:"):], "spec: hello\n"}, []string{"line 4: spec: Invalid value", "must be of type object"}},
		"no version":                        {[2]string{version, ""}, []string{"spec.version: Required value"}},
		"version 0":                         {[2]string{version, "  version: 0\n"}, []string{"spec.version: Invalid value", "greater than or equal to 1"}},
		"a negative version":                {[2]string{version, "  version: -1\n"}, []string{"spec.version: Invalid value", "greater than or equal to 1"}},
		"a version beyond 31 bits":          {[2]string{version, "  version: 2147483648\n"}, []string{"spec.version: Invalid value", "less than or equal to 2147483647"}},
		"a version beyond 63 bits":          {[2]string{version, "  version: 9223372036854775808\n"}, []string{"spec.version: Invalid value"}},
		"a version beyond every number":     {[2]string{version, "  version: 1e300\n"}, []string{"spec.version: Invalid value"}},
		"a version that is a text":          {[2]string{version, "  version: \"6\"\n"}, []string{"spec.version: Invalid value", "must be of type integer"}},
		"a version with a fraction":         {[2]string{version, "  version: 6.5\n"}, []string{"spec.version: Invalid value", "must be of type int32"}},
		"a minWriterVersion of 0":           {spec("  minWriterVersion: 0\n"), []string{"spec.minWriterVersion: Invalid value"}},
		"a minReaderVersion beyond 31 bits": {spec("  minReaderVersion: 2147483648\n"), []string{"spec.minReaderVersion: Invalid value"}},
		"an unknown strategy":               {spec("  strategy: {type: Offline}\n"), []string{`spec.strategy.type: Unsupported value: "Offline"`}},
		"an unknown cutover":                {spec("  strategy: {cutover: Never}\n"), []string{`spec.strategy.cutover: Unsupported value: "Never"`}},
		"a negative wait for pods":          {spec("  strategy: {waitForPodsSeconds: -1}\n"), []string{"spec.strategy.waitForPodsSeconds: Invalid value"}},
		"a lock timeout of 0":               {spec("  lock: {timeoutMilliseconds: 0}\n"), []string{"spec.lock.timeoutMilliseconds: Invalid value"}},
		"a lock timeout of an hour":         {spec("  lock: {timeoutMilliseconds: 3600000}\n"), []string{"spec.lock.timeoutMilliseconds: Invalid value"}},
		"a statement timeout of 0":          {spec("  lock: {statementTimeoutSeconds: 0}\n"), []string{"spec.lock.statementTimeoutSeconds: Invalid value"}},
		"a hold budget of 0":                {spec("  lock: {holdBudgetMilliseconds: 0}\n"), []string{"spec.lock.holdBudgetMilliseconds: Invalid value"}},
		"an unknown gate mode":              {spec("  gate: {mode: Off}\n"), []string{"spec.gate.mode: "}},
		"an unknown fate of older pods":     {spec("  gate: {olderPods: Evict}\n"), []string{`spec.gate.olderPods: Unsupported value: "Evict"`}},
		"a withdrawal at 0 per cent":        {spec("  gate: {withdrawAtPercent: 0}\n"), []string{"spec.gate.withdrawAtPercent: Invalid value"}},
		"a suspend that is a text":          {spec("  suspend: \"yes\"\n"), []string{"spec.suspend: Invalid value", "must be of type boolean"}},

		"a database that is not PostgreSQL": {spec("  database: {sqlite: {path: /data/clinic.db}}\n"), []string{"spec.database.sqlite: Forbidden", "a SQLite file is served by the command line (--database sqlite:PATH)"}},
		"two addresses":                     {spec("  database: {postgres: {urlFrom: {secretKeyRef: {name: a, key: b}}, connection: {host: a, database: b, userFrom: {secretKeyRef: {name: a, key: b}}}}}\n"), []string{"exactly one of urlFrom and connection must be set"}},
		"a host and hostFrom":               {spec("  database: {postgres: {connection: {host: a, hostFrom: {secretKeyRef: {name: a, key: b}}, database: b, userFrom: {secretKeyRef: {name: a, key: b}}}}}\n"), []string{"exactly one of host and hostFrom must be set"}},
		"a port and portFrom":               {spec("  database: {postgres: {connection: {host: a, port: 1, portFrom: {secretKeyRef: {name: a, key: b}}, database: b, userFrom: {secretKeyRef: {name: a, key: b}}}}}\n"), []string{"at most one of port and portFrom may be set"}},
		"no database name":                  {spec("  database: {postgres: {connection: {host: a, userFrom: {secretKeyRef: {name: a, key: b}}}}}\n"), []string{"exactly one of database and databaseFrom must be set"}},
		"no user":                           {spec("  database: {postgres: {connection: {host: a, database: b}}}\n"), []string{"spec.database.postgres.connection.userFrom: Required value"}},
		"a port beyond 16 bits":             {spec("  database: {postgres: {connection: {host: a, port: 65536, database: b, userFrom: {secretKeyRef: {name: a, key: b}}}}}\n"), []string{"spec.database.postgres.connection.port: Invalid value"}},
		"an unknown sslMode":                {spec("  database: {postgres: {connection: {host: a, sslMode: maybe, database: b, userFrom: {secretKeyRef: {name: a, key: b}}}}}\n"), []string{"spec.database.postgres.connection.sslMode: Unsupported value"}},
		"a certificate without its key":     {spec("  database: {postgres: {tls: {certFrom: {secretKeyRef: {name: a, key: b}}}}}\n"), []string{"certFrom and keyFrom must be set together"}},
		"an unknown pooler":                 {spec("  database: {postgres: {pooler: Session}}\n"), []string{"spec.database.postgres.pooler: Unsupported value"}},
		"an empty Secret name":              {spec("  database: {postgres: {urlFrom: {secretKeyRef: {name: \"\", key: b}}}}\n"), []string{"spec.database.postgres.urlFrom.secretKeyRef.name: Invalid value"}},

		"one table twice":                    {[2]string{"  checkpoints:", "  - {name: todos, columns: [{name: id, type: integer}]}\n  checkpoints:"}, []string{`line 15: spec.tables[1]: Duplicate value`}},
		"65 tables":                          {[2]string{"tables:\n", "tables:\n" + strings.Repeat("  - {name: x, columns: [{name: id, type: integer}]}\n", 64)}, []string{"spec.tables: Too many: 65"}},
		"a table without a name":             {[2]string{"- name: todos\n    columns:", "- columns:"}, []string{"spec.tables[0].name: Required value"}},
		"a table name of 64 characters":      {[2]string{"- name: todos\n", "- name: " + strings.Repeat("t", 64) + "\n"}, []string{"spec.tables[0].name: Too long"}},
		"an unknown layout":                  {[2]string{primaryKey, primaryKey + "\n    layout: Wide"}, []string{`spec.tables[0].layout: Unsupported value: "Wide"`}},
		"materialize for a Plain table":      {[2]string{primaryKey, primaryKey + "\n    materialize: false"}, []string{"spec.tables[0]: Invalid value", "materialize is for layout Syncular only"}},
		"no columns":                         {[2]string{"  checkpoints:", "  - {name: owners}\n  checkpoints:"}, []string{"spec.tables[1].columns: Required value"}},
		"an empty list of columns":           {[2]string{"  checkpoints:", "  - {name: owners, columns: []}\n  checkpoints:"}, []string{"spec.tables[1].columns: Invalid value"}},
		"1,601 columns":                      {[2]string{"  checkpoints:", "  - {name: owners, columns: " + repeat(1601, "{name: c%d, type: json}") + "}\n  checkpoints:"}, []string{"spec.tables[1].columns: Too many: 1601"}},
		"an unknown type":                    {[2]string{tenant, "{name: tenant, type: varchar}"}, []string{`line 10: spec.tables[0].columns[1].type: Unsupported value: "varchar"`}},
		"a type and a sqlType":               {[2]string{tenant, "{name: tenant, type: string, sqlType: text}"}, []string{"spec.tables[0].columns[1]: Invalid value", "exactly one of type and sqlType must be set"}},
		"neither type nor sqlType":           {[2]string{tenant, "{name: tenant}"}, []string{"exactly one of type and sqlType must be set"}},
		"a nullable that is a text":          {[2]string{tenant, "{name: tenant, type: string, nullable: \"no\"}"}, []string{"spec.tables[0].columns[1].nullable: Invalid value"}},
		"a partition by column and hash":     {[2]string{partition, "partition: {column: tenant, hash: 16}"}, []string{"spec.tables[0].partition: Invalid value", "exactly one of column and hash must be set"}},
		"a partition by nothing":             {[2]string{partition, "partition: {}"}, []string{"exactly one of column and hash must be set"}},
		"a hash into one":                    {[2]string{partition, "partition: {hash: 1}"}, []string{"spec.tables[0].partition.hash: Invalid value"}},
		"one index twice":                    {[2]string{partition, partition + "\n    indexes: [{name: a, columns: [id]}, {name: a, columns: [title]}]"}, []string{"spec.tables[0].indexes[1]: Duplicate value"}},
		"an index without columns":           {[2]string{partition, partition + "\n    indexes: [{name: a, columns: []}]"}, []string{"spec.tables[0].indexes[0].columns: Invalid value"}},
		"an empty key":                       {[2]string{primaryKey, "primaryKey: []"}, []string{"spec.tables[0].primaryKey: Invalid value"}},
		"one table retired twice":            {spec("  retiredTables: [old, old]\n"), []string{"spec.retiredTables[1]: Duplicate value"}},
		"two migrations of one version":      {spec("  migrations: [{version: 7, sql: SELECT 1}, {version: 7, sql: SELECT 2}]\n"), []string{"spec.migrations[1]: Duplicate value"}},
		"a migration of sql and sqlFrom":     {spec("  migrations: [{version: 7, sql: SELECT 1, sqlFrom: [{configMapKeyRef: {name: a, key: b}}]}]\n"), []string{"spec.migrations[0]: Invalid value", "exactly one of sql and sqlFrom must be set"}},
		"a migration of nothing":             {spec("  migrations: [{version: 7}]\n"), []string{"exactly one of sql and sqlFrom must be set"}},
		"an unknown phase":                   {spec("  migrations: [{version: 7, sql: SELECT 1, phase: Later}]\n"), []string{`spec.migrations[0].phase: Unsupported value: "Later"`}},
		"SQL of more than 256 KiB":           {spec("  migrations: [{version: 7, sql: \"" + strings.Repeat("x", 262145) + "\"}]\n"), []string{"spec.migrations[0].sql: Too long"}},
		"one checkpoint twice":               {[2]string{update, update + "\n  - {name: title-norm, version: 7, " + sources + ", " + update + "}"}, []string{"line 20: spec.checkpoints[1]: Duplicate value"}},
		"a checkpoint name with a space":     {[2]string{"name: title-norm", "name: title norm"}, []string{`spec.checkpoints[0].name: Invalid value: "title norm"`}},
		"a checkpoint without a version":     {[2]string{"title-norm\n    version: 7", "title-norm"}, []string{"spec.checkpoints[0].version: Required value"}},
		"no sources":                         {[2]string{sources, "sources: []"}, []string{"spec.checkpoints[0].sources: Invalid value"}},
		"one source twice":                   {[2]string{sources, "sources: [{table: todos, changes: CommitLog}, {table: todos, changes: CommitLog}]"}, []string{"spec.checkpoints[0].sources[1]: Duplicate value"}},
		"33 sources":                         {[2]string{sources, "sources: " + repeat(33, "{table: t%d, changes: CommitLog}")}, []string{"spec.checkpoints[0].sources: Too many: 33"}},
		"a source without changes":           {[2]string{sources, "sources: [{table: todos}]"}, []string{"spec.checkpoints[0].sources[0].changes: Required value"}},
		"a source of unknown changes":        {[2]string{sources, "sources: [{table: todos, changes: Polling}]"}, []string{"spec.checkpoints[0].sources[0].changes: Unsupported value"}},
		"an empty list of partitions":        {[2]string{sources, sources + "\n    partitions: []"}, []string{"spec.checkpoints[0].partitions: Invalid value"}},
		"one partition twice":                {[2]string{sources, sources + "\n    partitions: [a, a]"}, []string{"spec.checkpoints[0].partitions[1]: Duplicate value"}},
		"an empty partition":                 {[2]string{sources, sources + "\n    partitions: [\"\"]"}, []string{"spec.checkpoints[0].partitions[0]: Invalid value"}},
		"a partition of 257 characters":      {[2]string{sources, sources + "\n    partitions: [" + strings.Repeat("p", 257) + "]"}, []string{"spec.checkpoints[0].partitions[0]: Too long"}},
		"1,001 partitions":                   {[2]string{sources, sources + "\n    partitions: " + repeat(1001, "p%d")}, []string{"spec.checkpoints[0].partitions: Too many: 1001"}},
		"a backfill of nothing":              {[2]string{update, "backfill: {}"}, []string{"spec.checkpoints[0].backfill: Invalid value", "exactly one of update, statement and job must be set"}},
		"a backfill of two kinds":            {[2]string{update, "backfill: {update: {table: todos, " + set + "}, job: {template: {}}}"}, []string{"exactly one of update, statement and job must be set"}},
		"an update that sets nothing":        {[2]string{set, "set: {}"}, []string{"spec.checkpoints[0].backfill.update.set: Invalid value"}},
		"an update of an empty expression":   {[2]string{set, "set: {title_norm: \"\"}"}, []string{"spec.checkpoints[0].backfill.update.set.title_norm: Invalid value"}},
		"an update of an empty column":       {[2]string{set, "set: {\"\": lower(title)}"}, []string{"a column name must have 1 to 63 characters"}},
		"an update of a column too long":     {[2]string{set, "set: {" + strings.Repeat("c", 64) + ": lower(title)}"}, []string{"a column name must have 1 to 63 characters"}},
		"a batch of 0 rows":                  {[2]string{update, "backfill: {batchRows: 0, update: {table: todos, " + set + "}}"}, []string{"spec.checkpoints[0].backfill.batchRows: Invalid value"}},
		"a batch of a million rows":          {[2]string{update, "backfill: {batchRows: 1000000, update: {table: todos, " + set + "}}"}, []string{"spec.checkpoints[0].backfill.batchRows: Invalid value"}},
		"a negative rate":                    {[2]string{update, "backfill: {maxRowsPerSecond: -1, update: {table: todos, " + set + "}}"}, []string{"spec.checkpoints[0].backfill.maxRowsPerSecond: Invalid value"}},
		"a parallelism of 65":                {[2]string{update, "backfill: {parallelism: 65, update: {table: todos, " + set + "}}"}, []string{"spec.checkpoints[0].backfill.parallelism: Invalid value"}},
		"one verify twice":                   {[2]string{update, update + "\n    verify: [{name: a, query: SELECT 1}, {name: a, query: SELECT 2}]"}, []string{"spec.checkpoints[0].verify[1]: Duplicate value"}},
		"a verify without a query":           {[2]string{update, update + "\n    verify: [{name: a}]"}, []string{"spec.checkpoints[0].verify[0].query: Required value"}},
		"a worker template that is a text":   {spec("  worker: {template: hello}\n"), []string{"spec.worker.template: Invalid value", "must be of type object"}},
		"a worker field beside the template": {spec("  worker: {image: hello}\n"), []string{"spec.worker.image: Forbidden"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(edit(t, clinic, test.change[0], test.change[1])), "clinic.yaml")
			wantInvalid(t, err, test.parts...)
		})
	}
}

func TestNoErrorRepeatsWhatCouldBeASecret(t *testing.T) {
	const secret = "S3CRET"
	for name, database := range map[string]string{
		"an address where a reference belongs":  "{postgres: {urlFrom: 'postgres://op:S3CRET@db/x'}}",
		"an address where a group belongs":      "{postgres: 'postgres://op:S3CRET@db/x'}",
		"an address where a database belongs":   "'postgres://op:S3CRET@db/x'",
		"a password where a reference belongs":  "{postgres: {connection: {host: a, database: b, userFrom: {secretKeyRef: {name: a, key: b}}, passwordFrom: S3CRET}}}",
		"a field for a password":                "{postgres: {connection: {host: a, database: b, userFrom: {secretKeyRef: {name: a, key: b}}, password: S3CRET}}}",
		"a field for an address":                "{postgres: {url: 'postgres://op:S3CRET@db/x'}}",
		"a list of passwords":                   "{postgres: {urlFrom: {secretKeyRef: [S3CRET]}}}",
		"a password in an address out of place": "{postgres: {urlFrom: {secretKeyRef: {name: a, key: b}}, host: 'postgres://op:S3CRET@db/x'}}",
		"malformed YAML":                        "{postgres: S3CRET",
		"a key twice":                           "{postgres: S3CRET, postgres: S3CRET}",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(clinic+"  database: "+database+"\n"), "clinic.yaml")
			wantInvalid(t, err)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestTheSchemaAcceptsWhatThisVersionCannotDoYet(t *testing.T) {
	text := edit(t, clinic, "changes: CommitLog", "changes: Capture")
	text = edit(t, text, "  version: 7\n", "  version: 7\n  strategy: {type: Online}\n  migrations: [{version: 7, phase: Finish, sqlFrom: [{configMapKeyRef: {name: a, key: b}}]}]\n")
	spec := mustParse(t, text).Schema.Spec
	if spec.Strategy.Type != v1alpha1.StrategyOnline || spec.Checkpoints[0].Sources[0].Changes != v1alpha1.ChangesCapture {
		t.Errorf("it was read as %+v", spec)
	}
}

func TestPodTemplatesAreKeptWhateverTheyHold(t *testing.T) {
	text := edit(t, clinic, "  version: 7\n", "  version: 7\n  worker: {template: {metadata: {labels: {a: b}}, spec: {future: [1, {x: z}]}}}\n")
	text = edit(t, text, "backfill: {update: {table: todos, set: {title_norm: lower(title)}}}", "backfill: {job: {template: {spec: {containers: [{name: mine}]}}}}")
	spec := mustParse(t, text).Schema.Spec
	if got := string(spec.Worker.Template.Raw); got != `{"metadata":{"labels":{"a":"b"}},"spec":{"future":[1,{"x":"z"}]}}` {
		t.Errorf("the worker's template is %s", got)
	}
	if got := string(spec.Checkpoints[0].Backfill.Job.Template.Raw); got != `{"spec":{"containers":[{"name":"mine"}]}}` {
		t.Errorf("the job's template is %s", got)
	}
}

func TestTheSchemaTakesValuesAtTheirBounds(t *testing.T) {
	columns := repeat(1600, "{name: c%d, type: integer}")
	text := edit(t, clinic, "  checkpoints:", "  - {name: "+strings.Repeat("t", 63)+", columns: "+columns+"}\n  checkpoints:")
	text = edit(t, text, "sources: [", "partitions: "+repeat(1000, strings.Repeat("p", 252)+"%04d")+"\n    sources: [")
	text = strings.ReplaceAll(text, "version: 7", "version: 2147483647")
	file := mustParse(t, text)
	if len(file.Schema.Spec.Tables[1].Columns) != 1600 || len(file.Schema.Spec.Checkpoints[0].Partitions) != 1000 {
		t.Error("something got lost")
	}
}

// update runs the rules for a change of an object, as the API server does.
func update(t *testing.T, kind, before, after string) field.ErrorList {
	t.Helper()
	made, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	var objects []map[string]any
	for _, text := range []string{before, after} {
		d := document{line: 1, text: []byte(text)}
		if err := d.decode(); err != nil {
			t.Fatal(err)
		}
		if errs := made[kind].admit(d.object); len(errs) > 0 {
			t.Fatal(errs)
		}
		objects = append(objects, d.object)
	}
	errs, _ := made[kind].rules.Validate(context.Background(), nil, made[kind].structural, objects[1], objects[0], celconfig.RuntimeCELCostBudget)
	return errs
}

func TestABackfillCheckpointIsImmutable(t *testing.T) {
	const statement = `backfill: {statement: {table: todos, apply: "UPDATE todos SET title_norm = lower(title) FROM batch WHERE todos.id = batch.id"}}`
	full := edit(t, late, "  version: 7\n", "  version: 7\n  partitions: [a, b]\n  verify: [{name: x, query: SELECT 1}]\n")
	job := edit(t, full, statement, "backfill: {job: {template: {spec: {containers: [{name: a}]}}}}")
	set := edit(t, full, statement, "backfill: {update: {table: todos, set: {title_norm: lower(title)}}}")
	for name, test := range map[string]struct {
		before, old, replacement, path string
	}{
		"another schema":              {full, "{name: clinic}", "{name: billing}", "spec.schemaRef"},
		"another name":                {full, "name: late", "name: later", "spec.name"},
		"another version":             {full, "version: 7", "version: 8", "spec.version"},
		"another partition":           {full, "[a, b]", "[a, c]", "spec.partitions"},
		"one partition more":          {full, "[a, b]", "[a, b, c]", "spec.partitions"},
		"all partitions":              {full, "  partitions: [a, b]\n", "", "spec.partitions"},
		"another source":              {full, "table: todos, changes", "table: owners, changes", "spec.sources"},
		"other source columns":        {full, "changes: CommitLog", "changes: CommitLog, columns: [title]", "spec.sources"},
		"another statement":           {full, "lower(title)", "upper(title)", "spec.backfill.statement"},
		"another kind of backfill":    {full, statement, "backfill: {update: {table: todos, set: {title_norm: lower(title)}}}", "spec.backfill.update"},
		"another expression":          {set, "lower(title)", "upper(title)", "spec.backfill.update"},
		"another column":              {set, "{title_norm: lower(title)}", "{title_norm: lower(title), a: b}", "spec.backfill.update"},
		"a job no more":               {job, "job: {template: {spec: {containers: [{name: a}]}}}", "update: {table: todos, set: {a: b}}", "spec.backfill.job"},
		"another verify query":        {full, "query: SELECT 1", "query: SELECT 2", "spec.verify"},
		"no verify":                   {full, "  verify: [{name: x, query: SELECT 1}]\n", "", "spec.verify"},
		"a job with another template": {job, "{name: a}", "{name: b}", "spec.backfill.job"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := update(t, v1alpha1.KindBackfillCheckpoint, test.before, edit(t, test.before, test.old, test.replacement))
			for _, err := range errs {
				if err.Field == test.path && strings.Contains(err.Detail, "cannot change") {
					return
				}
			}
			t.Errorf("the errors are %v, want one for %s", errs, test.path)
		})
	}
}

func TestLiveSettingsOfABackfillCheckpointMayChange(t *testing.T) {
	before := edit(t, late, "  version: 7\n", "  version: 7\n  partitions: [a, b]\n")
	after := edit(t, before, "backfill: {", "backfill: {batchRows: 10, maxRowsPerSecond: 5, maxReplicationLagSeconds: 3, parallelism: 2, ")
	after = edit(t, after, "[a, b]", "[b, a]")
	if errs := update(t, v1alpha1.KindBackfillCheckpoint, before, after); len(errs) > 0 {
		t.Error(errs)
	}
}

// A commit that is reverted must be accepted, to be reported as VersionRegression.
func TestTheVersionOfASyncSchemaMayFall(t *testing.T) {
	before := edit(t, clinic, "  version: 7\n", "  version: 7\n  database: {postgres: {urlFrom: {secretKeyRef: {name: a, key: b}}}}\n")
	after := strings.ReplaceAll(before, "version: 7", "version: 6")
	if errs := update(t, v1alpha1.KindSyncSchema, before, after); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestAProblemIsToldOnceAndWithItsPlace(t *testing.T) {
	const sound = "apiVersion: syncbarrier.dev/v1alpha1\nkind: SyncSchema\nmetadata: {name: clinic}\nspec:\n  version: %s\n  tables: []\n"
	for _, version := range []string{"2147483648", "1.5"} {
		_, err := Parse(strings.NewReader(fmt.Sprintf(sound, version)), "clinic.yaml")
		if err == nil {
			t.Fatalf("version %s was taken", version)
		}
		text := err.Error()
		if strings.Contains(text, "<nil>") || strings.Contains(text, "problems") || !strings.Contains(text, "line 5: spec.version: Invalid value") {
			t.Errorf("version %s: %s", version, text)
		}
	}
}
