package postgres

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// loggedRange is a row with op 3 as a reader of the log takes it apart.
type loggedRange struct {
	partition   string
	first, last string
	gone        []string // the keys in the payload
}

// ranges gives the ranges in the log by partition and first key, and fails for a change that is none.
func (s *session) ranges() []loggedRange {
	s.t.Helper()
	rows, err := s.conn.Query(testContext(s.t), `SELECT partition, op, row_id, payload FROM sync_changes WHERE op <> 4 ORDER BY partition, idx`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	var ranges []loggedRange
	for rows.Next() {
		var r loggedRange
		var op storage.Op
		var row string
		var payload []byte
		if err := rows.Scan(&r.partition, &op, &row, &payload); err != nil {
			s.t.Fatal(err)
		}
		ends, ok := storage.DecodeKey(row, 2)
		if op != storage.OpRange || !ok {
			s.t.Fatalf("the log has op %d, row %q, want ranges alone", op, row)
		}
		r.first, r.last = ends[0], ends[1]
		if payload != nil {
			if err := json.Unmarshal(payload, &r.gone); err != nil {
				s.t.Fatalf("the keys that are gone: %v", err)
			}
		}
		ranges = append(ranges, r)
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	return ranges
}

func (s *session) expectRanges(want ...string) {
	s.t.Helper()
	got := []string{}
	for _, r := range s.ranges() {
		got = append(got, fmt.Sprintf("%s %s..%s", r.partition, r.first, r.last))
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("the log holds the ranges %q, want %q", got, want)
	}
	s.forgetLog()
}

func TestCaptureLogsALargeStatementAsARangeOfEachPartition(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos SELECT i, CASE WHEN i % 3 > 0 THEN 't' || i % 3 END, 'x' FROM generate_series(1, 10000) AS i`)
	if single := value[int](program, `SELECT count(*) FROM sync_changes WHERE op = 1`); single != 10000 {
		t.Errorf("a statement over 10,000 rows logged %d of them one by one", single)
	}
	program.run(`TRUNCATE todos`)
	program.forgetLog()

	program.run(`INSERT INTO todos SELECT i, CASE WHEN i % 3 > 0 THEN 't' || i % 3 END, 'x' FROM generate_series(1, 100000) AS i`)
	program.expectRanges("capture:todos/=t1 1..100000", "capture:todos/=t2 2..99998", "capture:todos/null 3..99999")
	program.run(`UPDATE todos SET title = 'y' WHERE id BETWEEN 20001 AND 80000`)
	program.expectRanges("capture:todos/=t1 20002..79999", "capture:todos/=t2 20003..80000", "capture:todos/null 20001..79998")
	program.run(`UPDATE todos SET title = 'z', tenant = 'moved' WHERE tenant = 't1' AND id > 40000`)
	program.expectRanges("capture:todos/=moved 40003..100000", "capture:todos/=t1 40003..100000")
}

func TestCaptureLogsOfALargeStatementOnlyWhatCounts(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos SELECT i, 'a', 'x' FROM generate_series(1, 100000) AS i`)
	program.forgetLog()
	program.run(`UPDATE todos SET title_norm = upper(title), note = 'seen'`)
	program.expectLog()
	program.run(`UPDATE todos SET title = CASE WHEN id IN (7, 77777) THEN 'y' ELSE title END, title_norm = 'x'`)
	program.expectLog("capture:todos/=a 1 7", "capture:todos/=a 1 77777")
}

func TestCaptureListsTheKeysThatALargeDeleteTookAway(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos SELECT i, 't' || i % 2, 'x' FROM generate_series(1, 100000) AS i`)
	program.forgetLog()
	program.run(`DELETE FROM todos WHERE id <= 50000`)

	gone := map[int]string{}
	for _, r := range program.ranges() {
		var ids []int
		for _, key := range r.gone {
			id, err := strconv.Atoi(key)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
			gone[id] = r.partition
		}
		if len(ids) == 0 || len(ids) > captureMost {
			t.Fatalf("range %s..%s of partition %s lists %d keys", r.first, r.last, r.partition, len(ids))
		}
		if ends := fmt.Sprintf("%d..%d", slices.Min(ids), slices.Max(ids)); ends != r.first+".."+r.last {
			t.Errorf("range %s..%s of partition %s lists keys from %s", r.first, r.last, r.partition, ends)
		}
	}
	for id := 1; id <= 50000; id++ {
		if want := fmt.Sprintf("capture:todos/=t%d", id%2); gone[id] != want {
			t.Fatalf("key %d is listed in partition %q, want %q", id, gone[id], want)
		}
	}
	if len(gone) != 50000 {
		t.Errorf("%d keys are listed, want 50,000", len(gone))
	}
}

func TestCaptureLogsRangesOfEveryKindOfKey(t *testing.T) {
	for _, c := range []struct {
		name, sql, first, last string
		key                    []string
		partition              storage.Partition
		want                   []string
	}{
		{name: "composite, one partition", sql: `CREATE TABLE todos (a text, b int, tenant text, title text, PRIMARY KEY (a, b));
			INSERT INTO todos SELECT 'r' || i % 3, i, 'a', 'x' FROM generate_series(1, 30000) AS i`, key: []string{"a", "b"},
			want: []string{`capture:todos/ ["r0","3"]..["r2","29999"]`}},
		{name: "composite, by column", sql: `CREATE TABLE todos (tenant text, b int, title text, PRIMARY KEY (tenant, b));
			INSERT INTO todos SELECT 'r' || i % 2, i, 'x' FROM generate_series(1, 30000) AS i`, key: []string{"tenant", "b"}, partition: byTenant,
			want: []string{`capture:todos/=r0 ["r0","2"]..["r0","30000"]`, `capture:todos/=r1 ["r1","1"]..["r1","29999"]`}},
		{name: "slices", sql: `CREATE TABLE todos (id numeric PRIMARY KEY, title text);
			INSERT INTO todos SELECT i, 'x' FROM generate_series(1, 30000) AS i`, key: []string{"id"}, partition: storage.Partition{Hash: 2},
			want: []string{`capture:todos/#0 1..30000`, `capture:todos/#1 1..30000`}},
		{name: "uuid by column", sql: `CREATE TABLE todos (id uuid PRIMARY KEY, tenant text, title text);
			INSERT INTO todos SELECT lpad(i::text, 32, '0')::uuid, 'a', 'x' FROM generate_series(1, 30000) AS i`, key: []string{"id"}, partition: byTenant,
			want: []string{`capture:todos/=a 00000000-0000-0000-0000-000000000001..00000000-0000-0000-0000-000000030000`}},
		{name: "timestamps", sql: `CREATE TABLE todos (id timestamptz PRIMARY KEY, tenant text, title text);
			INSERT INTO todos SELECT '2026-01-01 00:00+00'::timestamptz + i * interval '1 minute', 'a', 'x' FROM generate_series(1, 20000) AS i`,
			key: []string{"id"}, partition: byTenant, want: []string{`capture:todos/=a 2026-01-01 00:01:00+00..2026-01-14 21:20:00+00`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store, program := newSource(t, c.sql)
			capture(t, store, captureSpec{table: "todos", key: c.key, partition: c.partition})
			program.run(`UPDATE todos SET title = 'y'`)
			program.expectRanges(c.want...)
			program.run(`CREATE TABLE copied AS SELECT * FROM todos`)
			program.run(`TRUNCATE todos`)
			program.forgetLog()
			program.run(`INSERT INTO todos SELECT * FROM copied`)
			program.expectRanges(c.want...)

			keys := value[int](program, `SELECT count(*) FROM todos`)
			program.run(`DELETE FROM todos`)
			gone := map[string]bool{}
			for _, r := range program.ranges() {
				for _, key := range r.gone {
					if _, ok := storage.DecodeKey(key, len(c.key)); !ok {
						t.Fatalf("the payload lists %q, which is no key of %d columns", key, len(c.key))
					}
					gone[key] = true
				}
				if !gone[r.first] || !gone[r.last] {
					t.Errorf("the ends %q and %q of a range are not among its keys", r.first, r.last)
				}
			}
			if len(gone) != keys {
				t.Errorf("%d keys are listed of %d that are gone", len(gone), keys)
			}
		})
	}
}

func TestCaptureLogsOneRangeOfKeysThatMoveOntoEachOther(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos SELECT i, 'a', 'x' FROM generate_series(1, 30000) AS i`)
	program.forgetLog()
	program.run(`UPDATE todos SET id = id - 1`)
	gone := map[string]bool{}
	var rest []string
	for _, r := range program.ranges() {
		for _, key := range r.gone {
			gone[key] = true
		}
		if r.gone == nil {
			rest = append(rest, r.first+".."+r.last)
		}
	}
	if !slices.Equal(rest, []string{"0..29999"}) || len(gone) != 30000 || !gone["30000"] {
		t.Errorf("the log has the ranges %q and lists %d old keys", rest, len(gone))
	}
}

// A plan that was made for a statement of two rows is kept by the session. With a nested loop it would compare 100,000 rows with 100,000.
func TestCaptureOfALargeStatementIsNotSlowAfterASmallOne(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	capture(t, store, todosBy(byTenant))
	program.run(`INSERT INTO todos SELECT i, 'a', 'x' FROM generate_series(1, 100000) AS i`)
	program.run(`SET plan_cache_mode = force_generic_plan`)
	for range 10 {
		program.run(`UPDATE todos SET title = title || '!' WHERE id IN (1, 2)`)
	}
	program.forgetLog()
	const bound = 30 * time.Second // it takes about one; the other way it takes many minutes
	program.run(fmt.Sprintf(`SET statement_timeout = %d`, bound.Milliseconds()))
	program.run(`UPDATE todos SET title = 'y'`)
	program.expectRanges("capture:todos/=a 1..100000")
}
