package syncprogram

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

var allTypes = []string{"string", "integer", "float", "boolean", "json", "bytes", "blob_ref", "crdt"}

// wideTable has so many columns of all types in turn; every second one is nullable.
func wideTable(name string, columns int) Table {
	t := Table{Name: name, Materialize: columns%3 != 0}
	for i := range columns {
		t.Columns = append(t.Columns, Column{Name: fmt.Sprintf("c%d", i), Type: allTypes[i%len(allTypes)], Nullable: i%2 == 1})
	}
	return t
}

// grown is the table with nullable columns appended.
func (t Table) grown(more int) Table {
	t.Columns = slices.Clone(t.Columns)
	for i := range more {
		place := len(t.Columns)
		t.Columns = append(t.Columns, Column{Name: fmt.Sprintf("n%d", i), Type: allTypes[place%len(allTypes)], Nullable: true})
	}
	return t
}

// randomRow gives values that a careless rewrite would damage: bytes of all kinds, empty ones, texts that are no ASCII.
func randomRow(random *rand.Rand, columns []Column) []any {
	values := make([]any, len(columns))
	for i, column := range columns {
		if column.Nullable && random.IntN(2) == 0 {
			continue
		}
		content := make([]byte, random.IntN(12))
		for j := range content {
			content[j] = byte(random.Uint32())
		}
		switch column.Type {
		case "integer":
			values[i] = int64(random.Uint64())
		case "float":
			values[i] = random.NormFloat64()
		case "boolean":
			values[i] = random.IntN(2) == 0
		case "bytes", "crdt":
			values[i] = content
		case "json":
			values[i] = fmt.Sprintf(`{"n": %d}`, random.IntN(1000))
		default:
			values[i] = fmt.Sprintf("ä%x", content)
		}
	}
	return values
}

const rowsOfWideTable = 250

// rewriteCase is a table before and after columns were appended.
type rewriteCase struct{ before, after Table }

// rewriteCases go over every place of the boundary between two bytes of the bitmap.
func rewriteCases() []rewriteCase {
	var cases []rewriteCase
	for _, shape := range [][2]int{{1, 1}, {3, 7}, {7, 1}, {7, 2}, {8, 1}, {8, 9}, {9, 7}, {12, 4}, {15, 1}, {15, 9}, {16, 8}, {17, 9}, {20, 5}} {
		before := wideTable(fmt.Sprintf("wide_%d_%d", shape[0], shape[1]), shape[0])
		cases = append(cases, rewriteCase{before, before.grown(shape[1])})
	}
	return cases
}

func TestOurRewriteOfPayloadsIsThatOfTheProgramByteForByte(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := newScene(t, db)
		cases := rewriteCases()
		schema, target := Schema{Version: 6}, storage.Target{Version: 7, Owner: storage.Owner{Namespace: "default", Name: "clinic"}}
		for _, c := range cases {
			schema.Tables = append(schema.Tables, c.before)
			target.Tables = append(target.Tables, ours(c.after))
		}
		program := s.started(Options{Age: Newer, Schema: schema})
		want := s.fillWideTables(program, cases)

		result := s.apply(target)
		same(s, "outcome", result.Outcome, storage.Migrate)
		rows := 0
		for _, c := range cases {
			rows += s.compareWideTable(c, want[c.before.Name])
		}
		same(s, "rows compared", rows, len(cases)*rowsOfWideTable)

		next := Schema{Version: 7}
		for _, c := range cases {
			next.Tables = append(next.Tables, c.after)
		}
		s.started(Options{Age: Newer, Schema: next})
		same(s, "the gate of readers of the old payloads", s.gate(6).Reason, storage.GateReaderTooOld)
		same(s, "the gate", s.gate(7).Open, true)
	})
}

// fillWideTables writes random rows and gives, by table and row, the payload that the program's own migration would make of each.
func (s *scene) fillWideTables(program Process, cases []rewriteCase) map[string]map[string][]byte {
	s.Helper()
	random := rand.New(rand.NewPCG(20, 26))
	want := map[string]map[string][]byte{}
	tx, err := program.Begin(s.ctx, "a")
	s.must(err, "begin")
	defer tx.Rollback(s.ctx)
	s.must(tx.LockPartition(s.ctx), "lock the partition")
	for _, c := range cases {
		want[c.before.Name] = map[string][]byte{}
		for i := range rowsOfWideTable {
			id := fmt.Sprintf("row-%03d", i)
			payload, err := EncodeRow(c.before.Columns, randomRow(random, c.before.Columns))
			s.must(err, "encode")
			s.must(tx.UpsertRow(s.ctx, c.before.Name, Row{RowID: id, ServerVersion: 1, Scopes: `{"tenant":"t"}`, Payload: payload}), "write a row")
			want[c.before.Name][id], err = c.after.migratePayload(c.before.Columns, payload)
			s.must(err, "migrate as the program does")
		}
	}
	s.must(tx.Commit(s.ctx), "commit")
	return want
}

func (s *scene) compareWideTable(c rewriteCase, want map[string][]byte) int {
	s.Helper()
	found := s.observer.Rows(`SELECT _sync_row_id, _sync_payload FROM ` + c.after.Name)
	wrong := 0
	for _, row := range found {
		payload, _ := row[1].([]byte)
		if !bytes.Equal(payload, want[row[0].(string)]) {
			wrong++
		}
		if _, err := DecodeRow(c.after.Columns, payload); err != nil {
			s.Errorf("table %s: %v", c.after.Name, err)
			break
		}
	}
	same(s, "payloads of "+c.after.Name+" that the program would have written otherwise", wrong, 0)
	return len(found)
}

// The other way round: the program rewrites what we wrote and rewrote, and we take its version over.
func TestWeAndTheProgramMigrateTheSameDatabaseInTurn(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := sceneMadeBy(t, db, madeByNewer)
		s.apply(targetAt(7, noteWords(7)))
		s.fill("note-words")
		newer := s.started(Options{Age: Newer, Schema: schemaAt(8)})
		s.push(newer, 8, "a", "at-eight", "Written At Eight")
		s.promisesKept()
		same(s, "our outcome at its version", s.apply(targetAt(8, noteWords(7))).Outcome, storage.Adopt)

		again := noteWords(9)
		again.Name = "note-words-again"
		s.apply(targetAt(9, noteWords(7), again))
		s.fill(again.Name)
		s.started(Options{Age: Newer, Schema: schemaAt(9)})
		s.promisesKept()
		s.wordsRight()
		same(s, "the gate", s.gate(9).Reason, storage.GateOpen)
	})
}

func labelsTable() Table {
	return Table{Name: "labels", Columns: []Column{{Name: "text", Type: "string"}}, Materialize: true}
}

func TestARetiredTableGoesWithAllThatTheProgramKeptOfIt(t *testing.T) {
	for _, age := range []Age{Older, Newer} {
		t.Run(age.String(), func(t *testing.T) {
			databases.Each(t, func(t *testing.T, db databases.Database) {
				s := newScene(t, db)
				schema := Schema{Version: 6, Tables: []Table{notesAt(6), labelsTable()}}
				program := s.started(Options{Age: age, Schema: schema})
				s.push(program, 6, "a", "note", "A note")
				for _, id := range []string{"one", "two"} {
					_, err := Push(s.ctx, program, labelsTable(), "a", id, []any{"a label"})
					s.must(err, "push a label")
				}
				_, err := PushDelete(s.ctx, program, "labels", "a", "two")
				s.must(err, "delete a label")
				for _, table := range []string{"labels", "notes"} {
					s.observer.Exec(`INSERT INTO sync_blob_refs(partition, tbl, row_id, blob_id) VALUES ('a', $1, 'one', 'blob')`, table)
				}

				undecided := targetAt(7, noteWords(7))
				s.wantCode(s.attempt(undecided), storage.CodeLayoutMismatch)
				same(s, "labels after the refusal", s.observer.Number(`SELECT count(*) FROM labels`), 1)
				undecided.RetiredTables = []string{"labels"}
				s.apply(undecided)
				s.fill("note-words")
				s.labelsAreGone()
				s.started(Options{Age: Newer, Schema: schemaAt(7)})
				s.promisesKept()
				s.wordsRight()
			})
		})
	}
}

func (s *scene) labelsAreGone() {
	s.Helper()
	exists := `SELECT count(*) FROM pg_class WHERE oid = to_regclass('labels')`
	if s.db.Dialect == storage.SQLite {
		exists = `SELECT count(*) FROM sqlite_master WHERE name = 'labels'`
	}
	same(s, "tables called labels", s.observer.Number(exists), 0)
	for _, table := range []string{"sync_row_scopes", "sync_blob_refs", "sync_tombstones"} {
		same(s, "rows of labels in "+table, s.observer.Number(`SELECT count(*) FROM `+table+` WHERE tbl = 'labels'`), 0)
	}
	for table, want := range map[string]int64{"sync_row_scopes": 1, "sync_blob_refs": 1} {
		same(s, "rows of notes in "+table, s.observer.Number(`SELECT count(*) FROM `+table+` WHERE tbl = 'notes'`), want)
	}
}

func TestAdoptionRefusesADatabaseThatIsNotAsDeclared(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := sceneMadeBy(t, db, madeByNewer)
		grown := targetAt(6)
		grown.Tables[0] = ours(notesAt(7))
		s.wantCode(s.attempt(grown), storage.CodeLayoutMismatch)

		elsewhere := targetAt(6)
		elsewhere.Tables = append(elsewhere.Tables, ours(labelsTable()))
		s.wantCode(s.attempt(elsewhere), storage.CodeLayoutMismatch)

		s.observer.Exec(`ALTER TABLE notes DROP COLUMN done`)
		s.wantCode(s.attempt(targetAt(6)), storage.CodeLayoutMismatch)
		s.wantCode(s.attempt(targetAt(7, noteWords(7))), storage.CodeLayoutMismatch)
		same(s, "the marker", s.marker(), 6)
		same(s, "our gate", s.gate(6).Open, false)
	})
}

func TestReservedPartitionsOfAProgramAreRefused(t *testing.T) {
	for _, partition := range []string{"*", "capture:notes/"} {
		t.Run(partition, func(t *testing.T) {
			databases.Each(t, func(t *testing.T, db databases.Database) {
				s := sceneMadeBy(t, db, madeByOlder)
				program := s.started(Options{Age: Older, Schema: schemaAt(6)})
				s.push(program, 6, partition, "odd", "In a reserved partition")
				s.wantCode(s.attempt(targetAt(7, noteWords(7))), storage.CodeInvalidSpec)
				same(s, "the marker", s.marker(), 6)
			})
		})
	}
}
