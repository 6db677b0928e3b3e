package syncprogram

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

// testTimeout bounds one test: a wait without end fails by its name.
const testTimeout = 3 * time.Minute

// The clinic of these tests. Version by version the table notes grows by nullable columns; from version 7 on we derive note_words.
var noteColumns = []Column{
	{Name: "title", Type: "string"},
	{Name: "done", Type: "boolean", Nullable: true},
}

// columnsSince lists what a version appends.
var columnsSince = map[int64][]Column{
	7: {{Name: "title_norm", Type: "string", Nullable: true}, {Name: "extra", Type: "json", Nullable: true}},
	8: {{Name: "weight", Type: "float", Nullable: true}},
	9: {{Name: "photo", Type: "blob_ref", Nullable: true}},
}

// notesAt is the table as the program of a version knows it.
func notesAt(version int64) Table {
	columns := append([]Column{}, noteColumns...)
	for v := int64(7); v <= version; v++ {
		columns = append(columns, columnsSince[v]...)
	}
	return Table{Name: "notes", Columns: columns, Materialize: true, Indexes: []Index{{Name: "notes_title", Columns: []string{"title"}}}}
}

func schemaAt(version int64) Schema {
	return Schema{Version: version, Tables: []Table{notesAt(version)}}
}

// noteValues are the values of one note for a version.
func noteValues(version int64, title string) []any {
	values := make([]any, len(notesAt(version).Columns))
	values[0] = title
	return values
}

// ours is a table of the program as we declare it.
func ours(t Table) storage.Table {
	table := storage.Table{Name: t.Name, Layout: storage.Syncular, Materialize: t.Materialize}
	for _, c := range t.Columns {
		table.Columns = append(table.Columns, storage.Column{Name: c.Name, Type: storage.ColumnType(c.Type), Nullable: c.Nullable})
	}
	for _, i := range t.Indexes {
		table.Indexes = append(table.Indexes, storage.Index{Name: i.Name, Columns: i.Columns, Unique: i.Unique})
	}
	return table
}

var noteWordsTable = storage.Table{
	Name: "note_words", Layout: storage.Plain, PrimaryKey: []string{"tenant", "id"},
	Columns: []storage.Column{
		{Name: "tenant", Type: storage.TypeString}, {Name: "id", Type: storage.TypeString},
		{Name: "word", Type: storage.TypeString, Nullable: true},
	},
}

// targetAt is the same schema as ours, with the checkpoints given.
func targetAt(version int64, checkpoints ...storage.Checkpoint) storage.Target {
	target := storage.Target{
		Version: version, Tables: []storage.Table{ours(notesAt(version))}, Checkpoints: checkpoints,
		Owner: storage.Owner{Namespace: "default", Name: "clinic"},
	}
	if version >= 7 {
		target.Tables = append(target.Tables, noteWordsTable)
	}
	return target
}

// noteWords derives note_words from notes.
func noteWords(version int64, partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "note-words", Version: version, Partitions: partitions,
		Sources: []storage.Source{{Table: "notes", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Statement: &storage.Statement{
			Table: "notes",
			Apply: `INSERT INTO note_words(tenant, id, word)
				SELECT n._sync_partition, n._sync_row_id, lower(n.title)
				  FROM notes AS n
				  JOIN batch ON batch._sync_partition = n._sync_partition AND batch._sync_row_id = n._sync_row_id
				 WHERE true
				ON CONFLICT (tenant, id) DO UPDATE SET word = excluded.word`,
			Remove: `DELETE FROM note_words
				WHERE EXISTS (SELECT 1 FROM batch WHERE batch._sync_partition = tenant AND batch._sync_row_id = id)`,
		}},
		Verify: []storage.Verify{{Name: "all-there", Query: wrongWordsOf("n._sync_partition, n._sync_row_id")}},
	}
}

func wrongWordsOf(columns string) string {
	return `SELECT ` + columns + `
		FROM notes AS n
		LEFT JOIN note_words AS w ON w.tenant = n._sync_partition AND w.id = n._sync_row_id
		WHERE w.word IS NULL OR w.word <> lower(n.title)`
}

// scene is a database with a Store of ours, an observer, and the programs that a test starts.
type scene struct {
	*testing.T
	ctx      context.Context
	db       databases.Database
	store    storage.Store
	observer *databases.Session
}

func newScene(t *testing.T, db databases.Database) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return &scene{T: t, ctx: ctx, db: db, store: db.Store(t), observer: db.Session(t)}
}

// maker is who made the database of a scene.
type maker string

const (
	madeByUs    maker = "made by us"
	madeByOlder maker = "made by an older program"
	madeByNewer maker = "made by a newer program"
)

// eachScene runs a test on databases at version 6 of both products and of every maker, with some notes in partitions a and b.
func eachScene(t *testing.T, run func(s *scene)) {
	t.Helper()
	for _, by := range []maker{madeByUs, madeByOlder, madeByNewer} {
		t.Run(string(by), func(t *testing.T) {
			databases.Each(t, func(t *testing.T, db databases.Database) {
				run(sceneMadeBy(t, db, by))
			})
		})
	}
}

// ourScene runs a test on databases of both products that we made.
func ourScene(t *testing.T, run func(s *scene)) {
	t.Helper()
	databases.Each(t, func(t *testing.T, db databases.Database) { run(sceneMadeBy(t, db, madeByUs)) })
}

func sceneMadeBy(t *testing.T, db databases.Database, by maker) *scene {
	t.Helper()
	s := newScene(t, db)
	age := Older
	switch by {
	case madeByUs:
		s.apply(targetAt(6))
	case madeByNewer:
		age = Newer
	}
	writer := s.started(Options{Age: age, Schema: schemaAt(6)})
	for i := range 12 {
		s.push(writer, 6, []string{"a", "b"}[i%2], fmt.Sprintf("note-%02d", i), fmt.Sprintf("Title %d", i))
	}
	return s
}

// process opens a process without starting it.
func (s *scene) process(options Options) Process {
	s.Helper()
	open := OpenPostgres
	if s.db.Dialect == storage.SQLite {
		open = OpenSQLite
	}
	p, err := open(s.ctx, s.db.Address, options)
	s.must(err, "open a process")
	s.Cleanup(p.Close)
	return p
}

// started opens a process and starts it, which must succeed.
func (s *scene) started(options Options, checkpoints ...Declaration) Process {
	s.Helper()
	p := s.process(options)
	s.must(p.EnsureSchema(s.ctx, checkpoints...), fmt.Sprintf("start the %s program of version %d", options.Age, options.Schema.Version))
	return p
}

func (s *scene) must(err error, doing string) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", doing, err)
	}
}

// push writes a note that must be accepted.
func (s *scene) push(p Process, version int64, partition, id, title string) int64 {
	s.Helper()
	seq, err := Push(s.ctx, p, notesAt(version), partition, id, noteValues(version, title))
	s.must(err, fmt.Sprintf("push %s to partition %s", id, partition))
	return seq
}

// refusedBy checks that the database refused with the bare code.
func (s *scene) refusedBy(err error, code storage.Code, doing string) {
	s.Helper()
	if err == nil || !strings.Contains(err.Error(), string(code)) {
		s.Errorf("%s: got %v, want %s", doing, err, code)
	}
}

// apply runs our barrier to its end.
func (s *scene) apply(target storage.Target) storage.BarrierResult {
	s.Helper()
	result, err := (&barrier.Engine{Store: s.store}).Apply(s.ctx, target)
	s.must(err, fmt.Sprintf("apply version %d", target.Version))
	return result
}

// attempt makes one attempt of our barrier.
func (s *scene) attempt(target storage.Target) error {
	_, err := s.store.EnsureSchema(s.ctx, target, storage.Attempt{Number: 1})
	return err
}

// fill runs a backfill of ours to its activation.
func (s *scene) fill(name string) {
	s.Helper()
	s.must((&backfill.Runner{Store: s.store}).RunAll(s.ctx, name), "run the backfill "+name)
}

// wantCode checks the code of our own refusal.
func (s *scene) wantCode(err error, code storage.Code) {
	s.Helper()
	if storage.CodeOf(err) != code {
		s.Errorf("got %v, want %s", err, code)
	}
}

// gate gives our verdict for a version.
func (s *scene) gate(running int64) storage.GateVerdict {
	s.Helper()
	gate, err := s.store.ReadServeGate(s.ctx, running)
	s.must(err, "read the gate")
	return gate.Verdict()
}

func same[T comparable](s *scene, what string, got, want T) {
	s.Helper()
	if got != want {
		s.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (s *scene) marker() int64 {
	s.Helper()
	return s.observer.Number(`SELECT schema_version FROM sync_schema_meta WHERE id = 1`)
}

// promisesKept checks what holds at every moment of every test: the fence is whole, the log is dense, and all stored payloads can be read
// by a program of the stored version.
func (s *scene) promisesKept() {
	s.Helper()
	report, err := s.store.CheckFence(s.ctx)
	s.must(err, "check the fence")
	if !report.Intact() {
		s.Errorf("the fence is not whole: %+v", report.Findings)
	}
	holes := s.observer.Number(`
		SELECT count(*) FROM sync_partitions AS p
		WHERE p.max_commit_seq - p.horizon_seq <> (SELECT count(*) FROM sync_commits AS c WHERE c.partition = p.partition)`)
	same(s, "partitions whose log has holes", holes, 0)
	s.payloadsReadable(s.marker())
}

func (s *scene) payloadsReadable(version int64) {
	s.Helper()
	for _, row := range s.observer.Rows(`SELECT _sync_row_id, _sync_payload, title FROM notes`) {
		payload, _ := row[1].([]byte)
		values, err := DecodeRow(notesAt(version).Columns, payload)
		if err != nil {
			s.Errorf("note %v cannot be read at version %d: %v", row[0], version, err)
			continue
		}
		if values[0] != row[2] {
			s.Errorf("note %v: the payload says %v, the column %v", row[0], values[0], row[2])
		}
	}
}

// wordsRight checks the derived data against its definition.
func (s *scene) wordsRight() {
	s.Helper()
	same(s, "notes without their word", s.observer.Number(wrongWordsOf("count(*)")), 0)
	same(s, "words without their note", s.observer.Number(`
		SELECT count(*) FROM note_words AS w
		WHERE NOT EXISTS (SELECT 1 FROM notes AS n WHERE n._sync_partition = w.tenant AND n._sync_row_id = w.id)`), 0)
}

// storedBelow counts commits of a writer below a version, those without one included, above a position of the log.
func (s *scene) storedBelow(partition string, version, above int64) int64 {
	s.Helper()
	return s.observer.Number(`
		SELECT count(*) FROM sync_commits
		WHERE partition = $1 AND commit_seq > $2 AND (writer_version IS NULL OR writer_version < $3)`, partition, above, version)
}
