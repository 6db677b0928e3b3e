package sqlite

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// TestWhatSQLiteSaysOfRowsIsNotRepeated makes errors of every kind about rows that hold a marker.
func TestWhatSQLiteSaysOfRowsIsNotRepeated(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	p.exec(`CREATE TABLE people(name TEXT PRIMARY KEY, age INTEGER NOT NULL CHECK (age < 200)) STRICT`)
	p.exec(`INSERT INTO people VALUES ('S3CRET', 1)`)
	p.exec(`CREATE VIRTUAL TABLE words USING fts5(word)`)
	p.exec(`CREATE TABLE refused(id INTEGER)`)
	p.exec(`CREATE TRIGGER refuse BEFORE INSERT ON refused WHEN NEW.id = 1 BEGIN SELECT RAISE(ABORT, 'not beside ' || name) FROM people; END`)
	p.exec(`CREATE TRIGGER claim BEFORE INSERT ON refused WHEN NEW.id = 2 BEGIN SELECT RAISE(ABORT, 'sync.storage.deadlock'); END`)
	p.exec(`CREATE TRIGGER guard BEFORE INSERT ON refused WHEN NEW.id = 3 BEGIN SELECT RAISE(ABORT, 'sync.storage.marker_guard'); END`)
	err := store.inTx(testContext(t), "do something", false, func(ctx context.Context, tx *sql.Conn) error {
		var age int64
		return tx.QueryRowContext(ctx, `SELECT name FROM people`).Scan(&age)
	})
	wantText(t, err, "converting driver.Value type string")
	if err != nil && strings.Contains(err.Error(), "S3CRET") {
		t.Errorf("%v: it holds row data", err)
	}
	for name, c := range map[string]struct {
		sql  string
		code storage.Code
		says string
	}{
		"an equal key":            {`INSERT INTO people VALUES ('S3CRET', 2)`, storage.CodeInternal, "people.name"},
		"a missing value":         {`INSERT INTO people VALUES ('S3CRET-2', NULL)`, storage.CodeInternal, "people.age"},
		"a check":                 {`INSERT INTO people VALUES ('S3CRET-2', 201)`, storage.CodeInternal, "age < 200"},
		"a value of another type": {`UPDATE people SET age = name`, storage.CodeInternal, "people.age"},
		"JSON":                    {`SELECT json(name) FROM people`, storage.CodeInternal, "malformed JSON"},
		"a path":                  {`SELECT json_extract('{}', name) FROM people`, storage.CodeInternal, "JSON path"},
		"a search":                {`SELECT word FROM words WHERE words MATCH (SELECT '"' || name || '" AND' FROM people)`, storage.CodeInternal, "fts5"},
		"a trigger's own words":   {`INSERT INTO refused VALUES (1)`, storage.CodeInternal, "its words are not repeated"},
		"a code of a Store alone": {`INSERT INTO refused VALUES (2)`, storage.CodeInternal, "its words are not repeated"},
		"a code of triggers":      {`INSERT INTO refused VALUES (3)`, storage.CodeMarkerGuard, "refused it"},
		"a name that is misspelt": {`SELECT nmae FROM people`, storage.CodeInternal, "nmae"},
	} {
		t.Run(name, func(t *testing.T) {
			err := store.inTx(testContext(t), "do something", true, func(ctx context.Context, tx *sql.Conn) error {
				err := readAll(ctx, tx, c.sql)
				if text := translateUserSQL(err, "run it"); err != nil && strings.Contains(text.Error(), "S3CRET") {
					t.Errorf("%v: it holds row data", text)
				}
				return err
			})
			wantCode(t, err, c.code)
			wantText(t, err, c.says)
			if err != nil && strings.Contains(err.Error(), "S3CRET") {
				t.Errorf("%v: it holds row data", err)
			}
		})
	}
}

func readAll(ctx context.Context, tx *sql.Conn, query string) error {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to the end
	for rows.Next() {
		continue
	}
	return rows.Err()
}
