package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// TestWhatTheServerSaysOfRowsIsNotRepeated makes errors of every kind about rows that hold a marker.
func TestWhatTheServerSaysOfRowsIsNotRepeated(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	admin.run(`
CREATE TABLE people(name text PRIMARY KEY, age integer NOT NULL, CHECK (age < 200));
INSERT INTO people VALUES ('S3CRET', 1);
CREATE TABLE child(name text REFERENCES people);
CREATE TABLE parted(k text) PARTITION BY LIST (k);
CREATE TYPE mood AS ENUM ('glad');
CREATE FUNCTION row_of() RETURNS text LANGUAGE sql AS 'SELECT name FROM people';
CREATE FUNCTION tells() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'there is %', row_of() USING DETAIL = row_of(), HINT = row_of(); END $$;
CREATE FUNCTION tells_as(_code text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = _code, MESSAGE = row_of(); END $$;
CREATE FUNCTION asserts() RETURNS void LANGUAGE plpgsql AS $$ BEGIN ASSERT false, row_of(); END $$;
CREATE FUNCTION builds() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'SELECT ' || row_of(); END $$;
CREATE FUNCTION claims(_code text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = _code, DETAIL = row_of(); END $$;`)
	store := openStore(t, Config{URL: dsn})
	cases := []struct {
		name, sql, state string
		says             string // beside the state
	}{
		{"an equal key", "INSERT INTO people VALUES ('S3CRET', 2)", "23505", `"people_pkey"`},
		{"a missing value", "INSERT INTO people VALUES ('S3CRET-2', NULL)", "23502", `"age"`},
		{"a check", "INSERT INTO people VALUES ('S3CRET-2', 201)", "23514", `"people_age_check"`},
		{"a check of rows that are there", "ALTER TABLE people ADD CONSTRAINT short CHECK (length(name) < 2)", "23514", `"short"`},
		{"a unique index over rows", "INSERT INTO child VALUES ('S3CRET'), ('S3CRET'); CREATE UNIQUE INDEX one ON child(name)", "23505", `"one"`},
		{"a missing row", "INSERT INTO child VALUES ('S3CRET-2')", "23503", `"child_name_fkey"`},
		{"no partition", "INSERT INTO parted VALUES ('S3CRET')", "23514", `"parted"`},
		{"a cast", "SELECT name::integer FROM people", "22P02", "invalid input syntax for type integer"},
		{"a cast of a text with quotes", `SELECT ('a"' || name || '"b')::uuid FROM people`, "22P02", "type uuid"},
		{"a date", "SELECT name::date FROM people", "22007", "type date"},
		{"an enum", "SELECT name::mood FROM people", "22P02", "mood"},
		{"an array", "SELECT ('{' || name)::text[] FROM people", "22P02", "array"},
		{"JSON", "SELECT name::json FROM people", "22P02", "json"},
		{"a number out of range", "SELECT '53537353535353'::integer", "22003", "integer"},
		{"a number at the end", "SELECT set_masklen('10.0.0.1'::inet, 53537)", "22023", "mask"},
		{"bytes that are no text", `SELECT convert_from('\x533343524554ff', 'UTF8')`, "22021", "encoding"},
		{"a character that is not there", "SELECT convert_to(name || U&'\\2603', 'LATIN1') FROM people", "22P05", "encoding"},
		{"a regular expression", "SELECT 'a' ~ ('(' || name) FROM people", "2201B", "regular expression"},
		{"a function's own words", "SELECT tells()", "P0001", "in tells()"},
		{"its words under another state", "SELECT tells_as('23505')", "23505", "in tells_as(text)"},
		{"under a state of its own", "SELECT tells_as('AB123')", "AB123", "in tells_as(text)"},
		{"an assertion", "SELECT asserts()", "P0004", "in asserts()"},
		{"a statement that is made of a row", "SELECT builds()", "42703", "does not exist"},
		{"two rows for one", "SELECT (SELECT 1 FROM people, generate_series(1, 2))", "21000", "more than one row"},
		{"a code that only a Store uses", "SELECT claims('sync.storage.deadlock')", "P0001", "in claims(text)"},
		{"a code that nobody uses", "SELECT claims('sync.storage.S3CRET')", "P0001", "in claims(text)"},
		{"the words of a block", "DO $$ BEGIN RAISE EXCEPTION 'rows without a tenant: %', 7; END $$", "P0001", "rows without a tenant: 7"},
		{"a name that is misspelt", "SELECT nmae FROM people", "42703", `"nmae"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := store.inTx(testContext(t), "try", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, c.sql)
				expectCode(t, translateUserSQL(err, "run it"), storage.CodeInvalidSQL)
				for _, text := range []error{translateUserSQL(err, "run it"), translate(err, "run it")} {
					if !strings.Contains(text.Error(), "(SQLSTATE "+c.state+")") || !strings.Contains(text.Error(), c.says) {
						t.Errorf("%v: want %q and %s", text, c.says, c.state)
					}
					for _, of := range []string{"S3CRET", "5353", "0x", "☃"} {
						if strings.Contains(text.Error(), of) {
							t.Errorf("%v: it holds row data", text)
						}
					}
				}
				return err
			})
			if err == nil {
				t.Error("there was no error")
			}
		})
	}
}

func TestAValueThatTheDriverCannotEncodeOrReadIsNotRepeated(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	for name, step := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"to the server": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT $1::integer", struct{ Card int }{5353})
			return err
		},
		"from the server": func(ctx context.Context, tx pgx.Tx) error {
			var number int64
			return fmt.Errorf("read it: %w", tx.QueryRow(ctx, "SELECT 5353.35::numeric").Scan(&number))
		},
	} {
		err := store.inTx(testContext(t), "try", txOptions{}, step)
		if err == nil || strings.Contains(err.Error(), "5353") || !strings.Contains(err.Error(), "[0]") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACodeOfOursIsTakenFromAnyTriggerAndItsDetailFromOursAlone(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	admin.run(`CREATE FUNCTION claims() RETURNS void LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION USING MESSAGE = 'sync.storage.writer_fence_rejected', DETAIL = 'S3CRET'; END $$`)
	store := openStore(t, Config{URL: dsn})
	installCatalog(t, store)
	raise(t, store, map[string]int64{storage.AllPartitions: 6})
	for name, c := range map[string]struct{ sql, says string }{
		"another program's": {"SELECT claims()", ""},
		"ours":              {"INSERT INTO sync_commits SELECT 'p', 1, 'c', '1', 'a', 0, 5", `partition 'p': writer version 5, required 6`},
	} {
		t.Run(name, func(t *testing.T) {
			err := store.inTx(testContext(t), "try", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, c.sql)
				return err
			})
			expectCode(t, err, storage.CodeWriterFenceRejected)
			if err != nil && (strings.Contains(err.Error(), "S3CRET") || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}

// What no server at hand says: other languages, other servers.
func TestMessagesOfOtherServersAreRepeatedWithoutValues(t *testing.T) {
	for name, c := range map[string]struct {
		err  pgconn.PgError
		want string
	}{
		"German": {pgconn.PgError{Code: "22P02", Message: "ungültige Eingabesyntax für Typ integer: »S3CRET«"}, `ungültige Eingabesyntax für Typ integer: "..."`},
		"Polish": {pgconn.PgError{Code: "22P02", Message: "nieprawidłowa składnia dla typu integer: „S3CRET”"}, `nieprawidłowa składnia dla typu integer: "..."`},
		"French": {pgconn.PgError{Code: "22P02", Message: "syntaxe invalide : « S3CRET »"}, `syntaxe invalide : "..."`},
		"a function's, German": {pgconn.PgError{Code: "P0001", Message: "S3CRET", Where: "PL/pgSQL-Funktion public.melde(integer) Zeile 3 bei RAISE", Routine: "exec_stmt_raise"},
			"a function of the database raised an error of its own in public.melde(integer)" + notRepeated},
		"a block's, German":          {pgconn.PgError{Code: "P0001", Message: "meins", Where: "PL/pgSQL-Funktion inline_code_block Zeile 1 bei RAISE", Routine: "exec_stmt_raise"}, "meins"},
		"a proxy that keeps nothing": {pgconn.PgError{Code: "P0001", Message: "S3CRET"}, "a function of the database raised an error of its own" + notRepeated},
		"Python":                     {pgconn.PgError{Code: "38000", Message: "KeyError: 'S3CRET'"}, "the database raised an error" + notRepeated},
		"another server":             {pgconn.PgError{Code: "HV000", Message: "remote: S3CRET"}, "the database raised an error" + notRepeated},
		"a short state":              {pgconn.PgError{Code: "4", Message: "S3CRET"}, "the database raised an error" + notRepeated},
		"no state":                   {pgconn.PgError{Message: "S3CRET"}, "the database raised an error" + notRepeated},
		"a defect":                   {pgconn.PgError{Code: "XX000", Message: `tuple "S3CRET" concurrently updated`}, `tuple "..." concurrently updated`},
	} {
		if got := repeatable(&c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if err := translate(&c.err, "try"); errors.As(err, new(*pgconn.PgError)) {
			t.Errorf("%s: the server's own error is in the chain of %v", name, err)
		}
	}
}
