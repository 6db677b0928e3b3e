package sqlite

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// encodings are the two forms of text that a database file can have. The choice is made before its first table.
var encodings = []string{"UTF-8", "UTF-16le"}

// wideTable is a Syncular table of so many nullable integer columns.
func wideTable(name string, columns int) storage.Table {
	t := storage.Table{Name: name, Layout: storage.Syncular}
	for i := range columns {
		t.Columns = append(t.Columns, nullableColumn(fmt.Sprintf("c%d", i), storage.TypeInteger))
	}
	return t
}

// encodePayload packs columns as the sync protocol does: a bit for each NULL, least significant first, then the values. It is written
// apart from the code under test.
func encodePayload(values [][]byte) []byte {
	packed := make([]byte, (len(values)+7)/8)
	for i, value := range values {
		if value == nil {
			packed[i/8] |= 1 << (i % 8)
		}
	}
	for _, value := range values {
		packed = append(packed, value...)
	}
	return packed
}

// rowValues gives columns of which some are NULL and the others hold bytes of every kind, invalid UTF-8 and NUL among them.
func rowValues(columns, seed int) [][]byte {
	values := make([][]byte, columns)
	for i := range values {
		if (i*7+seed)%3 != 0 {
			values[i] = []byte{byte(i*37 + seed*91), 0, byte(0x80 + i), 0xff, byte(seed)}
		}
	}
	return values
}

func TestPayloadsGrowByteForByteInBothTextEncodings(t *testing.T) {
	t.Parallel()
	const rows = 3
	for _, encoding := range encodings {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			p := openProgram(t, path)
			p.exec("PRAGMA encoding = '" + encoding + "'; CREATE TABLE first(i INTEGER)")
			before := storage.Target{Version: 6, Owner: clinicOwner}
			after := storage.Target{Version: 7, Owner: clinicOwner}
			type growth struct {
				table     string
				old, more int
			}
			var growths []growth
			for old := 1; old <= 20; old++ {
				for _, more := range []int{1, 2, 5, 8, 9} {
					g := growth{fmt.Sprintf("from_%d_by_%d", old, more), old, more}
					growths = append(growths, g)
					before.Tables = append(before.Tables, wideTable(g.table, old))
					after.Tables = append(after.Tables, wideTable(g.table, old+more))
				}
			}
			store := openStore(t, path)
			apply(t, store, before)
			for _, g := range growths {
				for seed := range rows {
					p.exec("INSERT INTO "+g.table+" VALUES ('p', ?, 1, '{}', ?)", fmt.Sprint(seed), encodePayload(rowValues(g.old, seed)))
				}
			}
			apply(t, store, after)
			same(t, "outcome of the same version again", apply(t, store, after).Outcome, storage.Agreed)
			for _, g := range growths {
				for seed := range rows {
					var got []byte
					query := "SELECT _sync_payload FROM " + g.table + " WHERE _sync_row_id = ?"
					if err := p.db.QueryRow(query, fmt.Sprint(seed)).Scan(&got); err != nil {
						t.Fatal(err)
					}
					want := encodePayload(append(rowValues(g.old, seed), make([][]byte, g.more)...))
					if !bytes.Equal(got, want) {
						t.Errorf("%s, row %d: %x, want %x", g.table, seed, got, want)
					}
				}
				same(t, "payloads that are bytes", p.number("SELECT count(*) FROM "+g.table+" WHERE typeof(_sync_payload) = 'blob'"), rows)
			}
			same(t, "encoding", p.text("PRAGMA encoding"), encoding)
		})
	}
}

func TestAPayloadThatCannotBeOneIsCountedAndNothingIsRewritten(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]any{"too short": []byte{1}, "empty": []byte{}, "text": "payload"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			apply(t, store, storage.Target{Version: 6, Tables: []storage.Table{wideTable("wide", 9)}, Owner: clinicOwner})
			p := openProgram(t, path)
			p.exec("INSERT INTO wide VALUES ('p', 'good', 1, '{}', ?), ('p', 'bad', 1, '{}', ?)", encodePayload(rowValues(9, 1)), payload)
			before := p.dump()
			err := refusal(t, store, storage.Target{Version: 7, Tables: []storage.Table{wideTable("wide", 10)}, Owner: clinicOwner}, storage.CodeLayoutMismatch)
			wantText(t, err, "wide", "1 rows have a payload")
			same(t, "the file is as it was", p.dump(), before)
		})
	}
}

func TestAnAppendedColumnStandsBesideThePayloadToo(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	p.exec("INSERT INTO notes VALUES ('p', '1', 'a title', 1, '{}', ?)", encodePayload([][]byte{[]byte("a title")}))
	target := version6()
	target.Version = 7
	target.Tables[1] = notesTable(nullableColumn("body", storage.TypeString), nullableColumn("seen", storage.TypeBoolean))
	apply(t, store, target)
	same(t, "row", fmt.Sprintf("%v", p.rows("SELECT title, body, seen, hex(_sync_payload) FROM notes")),
		fmt.Sprintf("[[a title <nil> <nil> %X]]", encodePayload([][]byte{[]byte("a title"), nil, nil})))
	same(t, "oldest reader", p.number("SELECT min_reader_version FROM sync_barrier_history WHERE version = 7"), 7)
}
