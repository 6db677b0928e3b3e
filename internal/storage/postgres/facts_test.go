package postgres

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (db *barrierDB) physical(table string) storage.PhysicalTable {
	db.t.Helper()
	tables, err := db.store.physicalTables(db.ctx, db.conn, []string{table})
	if err != nil {
		db.t.Fatal(err)
	}
	return tables[table]
}

func TestColumnsAreReadWithTheirFamilies(t *testing.T) {
	db := newBarrierDB(t)
	db.exec("CREATE DOMAIN short AS varchar(10)")
	db.exec("CREATE DOMAIN shorter AS short CHECK (length(VALUE) < 5)")
	db.exec("CREATE TYPE text AS ENUM ('not', 'text')") // in our schema, not in the catalog's
	db.exec(`CREATE TABLE t(
		"String" pg_catalog.text NOT NULL, v varchar(10), c char(3), u uuid, i2 smallint, i4 int, i8 bigint, f4 real, f8 double precision, b boolean,
		j json, jb jsonb, x bytea, d shorter, n numeric(12,2), e public.text, ts timestamptz(3), a int[], g bigint GENERATED ALWAYS AS (i8 + 1) STORED, gone int)`)
	db.exec("ALTER TABLE t DROP COLUMN gone")
	want := map[string]storage.PhysicalColumn{
		"String": {Type: "text", Fits: familyOf["text"], NotNull: true}, "v": {Type: "character varying(10)", Fits: familyOf["varchar"]},
		"c": {Type: "character(3)", Fits: familyOf["bpchar"]}, "u": {Type: "uuid", Fits: familyOf["uuid"]}, "i2": {Type: "smallint", Fits: familyOf["int2"]},
		"i4": {Type: "integer", Fits: familyOf["int4"]}, "i8": {Type: "bigint", Fits: familyOf["int8"]}, "f4": {Type: "real", Fits: familyOf["float4"]},
		"f8": {Type: "double precision", Fits: familyOf["float8"]}, "b": {Type: "boolean", Fits: familyOf["bool"]}, "j": {Type: "json", Fits: familyOf["json"]},
		"jb": {Type: "jsonb", Fits: familyOf["jsonb"]}, "x": {Type: "bytea", Fits: familyOf["bytea"]}, "d": {Type: "shorter", Fits: familyOf["varchar"]},
		"n": {Type: "numeric(12,2)"}, "e": {Type: "public.text"}, "ts": {Type: "timestamp(3) with time zone"}, "a": {Type: "integer[]"},
		"g": {Type: "bigint", Fits: familyOf["int8"], Generated: true},
	}
	got := db.physical("t")
	if len(got.Columns) != len(want) {
		t.Errorf("%d columns, want %d", len(got.Columns), len(want))
	}
	for _, column := range got.Columns {
		expected := want[column.Name]
		expected.Name = column.Name
		if !reflect.DeepEqual(column, expected) {
			t.Errorf("got %+v, want %+v", column, expected)
		}
	}
}

func TestKeysAreReadInTheirOrder(t *testing.T) {
	db := newBarrierDB(t)
	db.exec(`CREATE TABLE t(a int NOT NULL, b int NOT NULL, c int, d int NOT NULL, PRIMARY KEY (b, a), UNIQUE (d, b), UNIQUE (c),
		UNIQUE (d) DEFERRABLE, UNIQUE (a) INCLUDE (c))`)
	db.exec("CREATE UNIQUE INDEX partial ON t(a, d) WHERE a > 0")
	db.exec("CREATE UNIQUE INDEX expression ON t((a + 1), d)")
	got := db.physical("t")
	if !slices.Equal(got.Key, []string{"b", "a"}) {
		t.Errorf("key %v", got.Key)
	}
	want := [][]string{{"a"}, {"d", "b"}} // of columns that may be NULL, deferrable, partial or over expressions: no key to page by
	slices.SortFunc(got.Unique, slices.Compare[[]string])
	if !reflect.DeepEqual(got.Unique, want) {
		t.Errorf("unique %v, want %v", got.Unique, want)
	}
}

func TestIndexesThatAreNotPlainAreTold(t *testing.T) {
	db := newBarrierDB(t)
	db.exec("CREATE TABLE t(a int, s text)")
	for name, test := range map[string]struct {
		sql   string
		plain bool
	}{
		"plain":             {"CREATE INDEX i ON t(a, s)", true},
		"plain and unique":  {"CREATE UNIQUE INDEX i ON t(a, s)", true},
		"written out":       {"CREATE INDEX i ON t USING btree (a ASC NULLS LAST, s pg_catalog.text_ops)", true},
		"falling":           {"CREATE INDEX i ON t(a DESC, s)", false},
		"NULLs first":       {"CREATE INDEX i ON t(a NULLS FIRST, s)", false},
		"partial":           {"CREATE INDEX i ON t(a, s) WHERE a > 0", false},
		"over expressions":  {"CREATE INDEX i ON t(a, lower(s))", false},
		"of another method": {"CREATE INDEX i ON t USING hash (a)", false},
		"with more columns": {"CREATE INDEX i ON t(a) INCLUDE (s)", false},
		"of another order":  {"CREATE INDEX i ON t(a, s text_pattern_ops)", false},
		"collated":          {`CREATE INDEX i ON t(a, s COLLATE "C")`, false},
	} {
		t.Run(name, func(t *testing.T) {
			db.exec("DROP INDEX IF EXISTS i")
			db.exec(test.sql)
			got := db.physical("t").Indexes
			if len(got) != 1 || got[0].Plain != test.plain || !got[0].Valid || got[0].Constraint {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("invalid", func(t *testing.T) {
		db.exec("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'i'::regclass")
		if got := db.physical("t").Indexes; got[0].Valid {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("of a constraint", func(t *testing.T) {
		db.exec("DROP INDEX i")
		db.exec("ALTER TABLE t ADD CONSTRAINT i UNIQUE (a)")
		db.exec("CREATE TABLE refers(a int REFERENCES t(a))")
		db.exec("CREATE UNIQUE INDEX other ON t(s)")
		got := db.physical("t").Indexes
		if len(got) != 2 || !got[0].Constraint || got[1].Constraint {
			t.Errorf("got %+v", got)
		}
	})
}

func TestEachNameOfATypeHasOneSpelling(t *testing.T) {
	db := newBarrierDB(t)
	db.exec(`CREATE TYPE public."Mood of all" AS ENUM ('good')`)
	for given, want := range map[string]string{
		"numeric(12, 2)": "numeric(12,2)", "DECIMAL(12,2)": "numeric(12,2)", "int": "integer", "int8": "bigint", "varchar(7)": "character varying(7)",
		"timestamptz": "timestamp with time zone", "timestamp(3)": "timestamp(3) without time zone", "text[]": "text[]", "bit(3)": "bit(3)",
		"interval day to second(3)": "interval day to second(3)", `"Mood of all"`: `"Mood of all"`, `public."Mood of all"`: `"Mood of all"`, "char(4)": "character(4)",
		"serial": "", "nothing": "", "": "", "int not null": "", "1": "", "numeric(2000)": "", "text; SELECT 1": "", "setof int": "",
	} {
		got, err := db.store.canonicalType(db.ctx, given)
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", given, got, err, want)
		}
	}
}

func TestOpenCheckpointsAreReadWithWhatTheTargetLeavesOutFirst(t *testing.T) {
	db := newBarrierDB(t)
	wanted := target(6, plainTodos(titleNorm))
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6, "a", "b")}
	db.mustApply(wanted)
	// Another program declares for more partitions than anybody lists.
	db.exec(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
		SELECT 'p' || n, 'norm', 6, 'declared', 0 FROM generate_series(1, 1500) n`)
	listed := target(7, plainTodos(titleNorm))
	many := []string{"a", "b"}
	for n := range 1499 {
		many = append(many, fmt.Sprintf("p%d", n+1))
	}
	listed.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6, many...)}
	facts, err := db.store.readFacts(db.ctx, db.conn, listed, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(facts.Open) != 1 || len(facts.Open[0].Partitions) != 1000 || facts.Open[0].Partitions[0] != "p1500" || !facts.Known["norm"].Open {
		t.Errorf("open %d, first %q", len(facts.Open), facts.Open[0].Partitions[0])
	}
	t.Run("and names without a definition are known", func(t *testing.T) {
		db.exec(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms) VALUES ('q', 'theirs', 5, 'activated', 0), ('r', 'theirs', 5, 'activated', 0)`)
		facts, err := db.store.readFacts(db.ctx, db.conn, listed, nil)
		if err != nil || facts.Known["theirs"].Version != 5 || facts.Known["theirs"].Hash != "" || facts.Known["theirs"].Open {
			t.Errorf("%+v, %v", facts.Known["theirs"], err)
		}
	})
}
