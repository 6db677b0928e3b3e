package sqlite

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// spelling gives a name as the target declares it: SQLite does not tell the case of ASCII letters apart, decisions do.
type spelling map[string]string

func spellingOf(t storage.Table) spelling {
	s := spelling{}
	for _, c := range t.Columns {
		s[fold(c.Name)] = c.Name
	}
	for _, name := range t.PrimaryKey {
		s[fold(name)] = name
	}
	return s
}

func (s spelling) of(name string) string {
	if declared, ok := s[fold(name)]; ok {
		return declared
	}
	return name
}

// readTable reads a table as it is. SQLite's own view of it (PRAGMA table_xinfo, index_list, index_xinfo) is asked, not its text.
func readTable(ctx context.Context, q querier, objects schemaObjects, name string, declared storage.Table) (storage.PhysicalTable, error) {
	physical := storage.PhysicalTable{}
	if kind := objects.kinds[fold(name)]; kind != "table" {
		return physical, storage.Refuse(storage.CodeInvalidSpec, "tables: %q is a %s in this database, not a table", name, kind)
	}
	columns, err := readColumns(ctx, q, name)
	if err != nil {
		return physical, err
	}
	indexes, err := readIndexes(ctx, q, objects, name)
	if err != nil {
		return physical, err
	}
	spelled := spellingOf(declared)
	alias := rowidAlias(columns, indexes)
	for i := range columns {
		// An INTEGER PRIMARY KEY is the row's number: never NULL, whatever the table's text says.
		columns[i].notNull = columns[i].notNull || i == alias
		columns[i].name = spelled.of(columns[i].name)
	}
	physical.Key = keyOf(columns)
	for _, c := range columns {
		physical.Columns = append(physical.Columns, storage.PhysicalColumn{
			Name: c.name, Type: canonicalType(c.declared), Fits: familiesOf(c.declared), NotNull: c.notNull, Generated: c.generated,
		})
	}
	for _, index := range indexes {
		index.respell(spelled)
		physical.Indexes = append(physical.Indexes, index.PhysicalIndex)
		if index.isKey(columns) {
			physical.Unique = append(physical.Unique, index.Columns)
		}
	}
	return physical, readContent(ctx, q, name, columns, &physical)
}

// column is a row of PRAGMA table_xinfo.
type column struct {
	name      string
	declared  string // the type as it stands in the table's text
	notNull   bool
	position  int // in the primary key, from 1; 0: not part of it
	generated bool
}

func readColumns(ctx context.Context, q querier, table string) ([]column, error) {
	what := "read the columns of " + table
	rows, err := q.QueryContext(ctx, `
		SELECT name, type, "notnull", pk, hidden
		FROM pragma_table_xinfo(?)
		ORDER BY cid`, table)
	if err != nil {
		return nil, translate(err, what)
	}
	defer func() { _ = rows.Close() }()
	var columns []column
	for rows.Next() {
		var c column
		var hidden int
		if err := rows.Scan(&c.name, &c.declared, &c.notNull, &c.position, &hidden); err != nil {
			return nil, translate(err, what)
		}
		c.generated = hidden == 2 || hidden == 3 // virtual, stored
		columns = append(columns, c)
	}
	return columns, translate(rows.Err(), what)
}

// keyOf gives the primary key's columns in its order.
func keyOf(columns []column) []string {
	var key []column
	for _, c := range columns {
		if c.position > 0 {
			key = append(key, c)
		}
	}
	slices.SortFunc(key, func(a, b column) int { return a.position - b.position })
	var names []string
	for _, c := range key {
		names = append(names, c.name)
	}
	return names
}

// rowidAlias is the place of the column that stands for the row's number, -1 if there is none: a key of one column whose type is
// INTEGER and which has no index of its own (INTEGER PRIMARY KEY DESC has one, by an old mistake of SQLite's).
func rowidAlias(columns []column, indexes []index) int {
	place := -1
	for i, c := range columns {
		switch {
		case c.position == 0:
		case place >= 0:
			return -1
		default:
			place = i
		}
	}
	if place < 0 || fold(columns[place].declared) != "integer" {
		return -1
	}
	if slices.ContainsFunc(indexes, func(i index) bool { return i.origin == "pk" }) {
		return -1
	}
	return place
}

// index is an index as PRAGMA index_list and index_xinfo show it.
type index struct {
	storage.PhysicalIndex
	origin  string // c: CREATE INDEX, u: UNIQUE, pk: PRIMARY KEY
	partial bool
}

func readIndexes(ctx context.Context, q querier, objects schemaObjects, table string) ([]index, error) {
	what := "read the indexes of " + table
	rows, err := q.QueryContext(ctx, `
		SELECT l.name, l."unique", l.origin, l.partial, x.cid, coalesce(x.name, ''), x."desc"
		FROM pragma_index_list(?) AS l
		JOIN pragma_index_xinfo(l.name) AS x
		WHERE x.key = 1
		ORDER BY l.name, x.seqno`, table)
	if err != nil {
		return nil, translate(err, what)
	}
	defer func() { _ = rows.Close() }()
	var indexes []index
	for rows.Next() {
		var read index
		var cid int
		var column string
		var descending bool
		if err := rows.Scan(&read.Name, &read.Unique, &read.origin, &read.partial, &cid, &column, &descending); err != nil {
			return nil, translate(err, what)
		}
		if len(indexes) == 0 || indexes[len(indexes)-1].Name != read.Name {
			read.Valid, read.Constraint = true, read.origin != "c"
			read.Plain = !read.partial && !hasCollation(objects.sql[fold(read.Name)])
			indexes = append(indexes, read)
		}
		last := &indexes[len(indexes)-1]
		last.Columns = append(last.Columns, column)
		last.Plain = last.Plain && cid >= 0 && !descending
	}
	for i := range indexes {
		if slices.Contains(indexes[i].Columns, "") {
			indexes[i].Columns = nil // over expressions
		}
	}
	return indexes, translate(rows.Err(), what)
}

// quotedOrComment matches what is no keyword in SQL.
var quotedOrComment = regexp.MustCompile("(?s)\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'|`[^`]*`|\\[[^\\]]*\\]|--[^\n]*|/\\*.*?\\*/")

var collateWord = regexp.MustCompile(`(?i)\bcollate\b`)

// hasCollation says whether an index names a collation of its own, which makes another index of it. The collation of a column stands in the
// table's text, and SQLite tells nowhere which of the two an index has.
func hasCollation(text string) bool {
	return collateWord.MatchString(quotedOrComment.ReplaceAllString(text, " "))
}

func (i *index) respell(spelled spelling) {
	for at, name := range i.Columns {
		i.Columns[at] = spelled.of(name)
	}
}

// isKey says that the index tells every row from every other: unique, over all rows, of columns that are never NULL.
func (i *index) isKey(columns []column) bool {
	if !i.Unique || i.partial || len(i.Columns) == 0 {
		return false
	}
	for _, name := range i.Columns {
		if !slices.ContainsFunc(columns, func(c column) bool { return c.name == name && c.notNull }) {
			return false
		}
	}
	return true
}

// readContent asks whether the table has rows, and whether a key column that may be NULL is: SQLite allows NULL in a primary key.
func readContent(ctx context.Context, q querier, table string, columns []column, physical *storage.PhysicalTable) error {
	what := "look at the rows of " + table
	err := q.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+quoteIdentifier(table)+")").Scan(&physical.HasRows)
	if err != nil || !physical.HasRows {
		return translate(err, what)
	}
	var nullable []string
	for _, c := range columns {
		if c.position > 0 && !c.notNull {
			nullable = append(nullable, quoteIdentifier(c.name)+" IS NULL")
		}
	}
	if len(nullable) == 0 {
		return nil
	}
	err = q.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+quoteIdentifier(table)+" WHERE "+strings.Join(nullable, " OR ")+")").
		Scan(&physical.NullKey)
	return translate(err, what)
}

// typeName is what SQLite takes as a type: words, and one or two numbers in brackets (https://www.sqlite.org/syntax/type-name.html).
var typeName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*( [A-Za-z_][A-Za-z0-9_]*)*(\([+-]?[0-9]+(,[+-]?[0-9]+)?\))?$`)

// constraintWords end a type in the text of a column, so none of them is part of one.
var constraintWords = []string{
	"as", "check", "collate", "constraint", "default", "generated", "not", "null", "primary", "references", "unique",
}

var spaces = regexp.MustCompile(`\s+`)
var spacesAtBracket = regexp.MustCompile(`\s*([(),])\s*`)

// canonicalType is the one spelling of a type in which two are compared: capital letters, one space between words, none in brackets.
func canonicalType(declared string) string {
	text := spaces.ReplaceAllString(strings.TrimSpace(declared), " ")
	return strings.ToUpper(spacesAtBracket.ReplaceAllString(text, "$1"))
}

// isType says whether a text is a type and nothing more. SQLite knows every name, so this is all that can be asked.
func isType(text string) bool {
	canonical := canonicalType(text)
	if !typeName.MatchString(canonical) {
		return false
	}
	words, _, _ := strings.Cut(fold(canonical), "(")
	return !slices.ContainsFunc(strings.Fields(words), func(word string) bool { return slices.Contains(constraintWords, word) })
}

// familiesOf gives the declared types that a column of this type is of the family of, by SQLite's rules of affinity
// (https://www.sqlite.org/datatype3.html section 3.1) and the usual names beside them.
func familiesOf(declared string) []storage.ColumnType {
	text := fold(declared)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case text == "", text == "any":
		return []storage.ColumnType{
			storage.TypeString, storage.TypeInteger, storage.TypeFloat, storage.TypeBoolean,
			storage.TypeJSON, storage.TypeBytes, storage.TypeBlobRef, storage.TypeCRDT,
		}
	case has("json"):
		return []storage.ColumnType{storage.TypeJSON}
	case has("int"):
		return []storage.ColumnType{storage.TypeInteger, storage.TypeBoolean}
	case has("char", "clob", "text"):
		return []storage.ColumnType{storage.TypeString, storage.TypeJSON, storage.TypeBlobRef}
	case has("blob"):
		return []storage.ColumnType{storage.TypeBytes, storage.TypeCRDT}
	case has("real", "floa", "doub"):
		return []storage.ColumnType{storage.TypeFloat}
	case has("bool"):
		return []storage.ColumnType{storage.TypeBoolean, storage.TypeInteger}
	case has("uuid"):
		return []storage.ColumnType{storage.TypeString, storage.TypeBlobRef}
	}
	return []storage.ColumnType{storage.TypeInteger, storage.TypeFloat} // NUMERIC, DECIMAL and the like
}
