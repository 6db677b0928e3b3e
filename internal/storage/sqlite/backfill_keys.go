package sqlite

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// tableKey is the key that a backfill goes over a table by. In SQLite a column may hold values of several storage classes, and which
// values are equal or follow one another depends on the collation (https://www.sqlite.org/datatype3.html section 4). So the key
// is read from the database, and values keep their storage class wherever they are kept.
type tableKey struct {
	table   string
	columns []keyColumn
}

// keyColumn is one column of a key.
type keyColumn struct {
	name      string
	affinity  string // INTEGER, TEXT, REAL, NUMERIC or BLOB, which converts nothing
	collation string // BINARY, NOCASE or RTRIM: the one under which the key is unique
	// explicit says that the column itself compares by another collation, so ours has to be written out. Ranges over several columns
	// then do not use the index in full.
	explicit bool
	nullable bool // SQLite allows NULL in most primary keys
}

// readKey reads the key that a table's declaration names.
//
// Errors: CodeInvalidSpec where the table does not exist or the columns are no key of it.
func readKey(ctx context.Context, q querier, declared storage.Table) (tableKey, error) {
	what := fmt.Sprintf("read the key of table %q", declared.Name)
	key := tableKey{table: declared.Name}
	columns, err := readColumns(ctx, q, declared.Name)
	if err != nil {
		return key, err
	}
	strict, err := isStrict(ctx, q, declared.Name)
	if err != nil {
		return key, translate(err, what)
	}
	for _, name := range declared.Key() {
		i := slices.IndexFunc(columns, func(c column) bool { return fold(c.name) == fold(name) })
		if i < 0 {
			return key, storage.Refuse(storage.CodeInvalidSpec, "table %q has no key column %q", declared.Name, name)
		}
		key.columns = append(key.columns, keyColumn{
			name: name, affinity: affinityOf(columns[i].declared, strict), collation: "BINARY", nullable: !columns[i].notNull,
		})
	}
	collations, found, err := uniqueCollations(ctx, q, key)
	if err != nil {
		return key, translate(err, what)
	}
	if !found {
		if len(key.columns) != 1 || fold(strings.Join(keyOf(columns), "")) != fold(key.columns[0].name) {
			return key, storage.Refuse(storage.CodeInvalidSpec, "table %q: (%s) is no primary or unique key of it", declared.Name, key.list(""))
		}
		key.columns[0].nullable = false // an INTEGER PRIMARY KEY is the row's number
		return key, nil
	}
	for i, collation := range collations {
		if err := key.collate(ctx, q, i, collation); err != nil {
			return key, err
		}
	}
	return key, nil
}

// isStrict says whether the table is STRICT, where ANY converts nothing.
func isStrict(ctx context.Context, q querier, table string) (strict bool, err error) {
	err = q.QueryRowContext(ctx, `
		SELECT coalesce((
		  SELECT strict
		    FROM pragma_table_list
		   WHERE schema = 'main'
		     AND name = ?1 COLLATE NOCASE), 0)`, table).Scan(&strict)
	return strict, err
}

// affinityOf gives the affinity of a declared type (https://www.sqlite.org/datatype3.html section 3.1).
func affinityOf(declared string, strict bool) string {
	text := fold(declared)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case has("int"):
		return "INTEGER"
	case has("char", "clob", "text"):
		return "TEXT"
	case text == "", has("blob"), strict && text == "any":
		return "BLOB"
	case has("real", "floa", "doub"):
		return "REAL"
	default:
		return "NUMERIC"
	}
}

// uniqueCollations gives the collations of the unique index over exactly these columns. Without one the key can only be the row's number.
func uniqueCollations(ctx context.Context, q querier, key tableKey) (collations []string, found bool, err error) {
	type indexColumn struct{ index, column, collation string }
	listed, err := collect(ctx, q, func(row interface{ Scan(...any) error }) (c indexColumn, err error) {
		return c, row.Scan(&c.index, &c.column, &c.collation)
	}, `
		SELECT l.name, coalesce(x.name, ''), x.coll
		  FROM pragma_index_list(?1, 'main') AS l
		  JOIN pragma_index_xinfo(l.name, 'main') AS x
		 WHERE l."unique" = 1
		   AND l.partial = 0
		   AND x.key = 1
		 ORDER BY l.origin = 'pk' DESC, l.name, x.seqno`, key.table)
	if err != nil {
		return nil, false, err
	}
	for len(listed) > 0 {
		end := slices.IndexFunc(listed, func(c indexColumn) bool { return c.index != listed[0].index })
		if end < 0 {
			end = len(listed)
		}
		index := listed[:end]
		listed = listed[end:]
		same := slices.EqualFunc(index, key.columns, func(c indexColumn, k keyColumn) bool { return fold(c.column) == fold(k.name) })
		if !same {
			continue
		}
		for _, c := range index {
			collations = append(collations, strings.ToUpper(c.collation))
		}
		return collations, true, nil
	}
	return nil, false, nil
}

// collate sets the collation of a key column, and finds out whether the column compares by it of its own. SQLite does not tell the
// collation of a column, but it shows it: a subquery passes it on to what is compared with its result.
func (k tableKey) collate(ctx context.Context, q querier, i int, collation string) error {
	c := &k.columns[i]
	c.collation = collation
	var noCase, rightTrim bool
	err := q.QueryRowContext(ctx, fmt.Sprintf(`
		WITH probe(value) AS MATERIALIZED (
		  SELECT t.%s FROM main.%s AS t WHERE 0
		  UNION ALL
		  SELECT 'a'
		)
		SELECT value = 'A', value = 'a ' FROM probe`, quoteIdentifier(c.name), quoteIdentifier(k.table))).Scan(&noCase, &rightTrim)
	if err != nil {
		return translate(err, fmt.Sprintf("read the collation of column %q of table %q", c.name, k.table))
	}
	own := "BINARY"
	switch {
	case noCase:
		own = "NOCASE"
	case rightTrim:
		own = "RTRIM"
	}
	switch collation {
	case "BINARY", "NOCASE", "RTRIM":
	default:
		return storage.Refuse(storage.CodeInvalidSpec, "table %q: key column %q has the collation %s, which only its own program knows", k.table, c.name, collation)
	}
	c.explicit = own != collation
	return nil
}

// list gives the columns, quoted and qualified: "a", "b".
func (k tableKey) list(qualifier string) string {
	names := make([]string, len(k.columns))
	for i, c := range k.columns {
		names[i] = qualifier + quoteIdentifier(c.name)
	}
	return strings.Join(names, ", ")
}

// values gives the columns as expressions: without a declared type, by which the driver would turn dates into something else.
func (k tableKey) values(qualifier string) string {
	names := make([]string, len(k.columns))
	for i, c := range k.columns {
		names[i] = "+" + qualifier + quoteIdentifier(c.name)
	}
	return strings.Join(names, ", ")
}

// collated gives the columns as they have to be compared and sorted.
func (k tableKey) collated(qualifier string) []string {
	names := make([]string, len(k.columns))
	for i, c := range k.columns {
		names[i] = qualifier + quoteIdentifier(c.name)
		if c.explicit {
			names[i] += " COLLATE " + c.collation
		}
	}
	return names
}

// row gives the columns as one value to compare: (t."a", t."b"), or t."a".
func (k tableKey) row(qualifier string) string { return vector(k.collated(qualifier)) }

// place gives placeholders for one key: (?, ?), or ?.
func (k tableKey) place() string {
	return vector(slices.Repeat([]string{"?"}, len(k.columns)))
}

func vector(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// order gives the columns to sort by.
func (k tableKey) order(qualifier, direction string) string {
	columns := k.collated(qualifier)
	for i := range columns {
		columns[i] += direction
	}
	return strings.Join(columns, ", ")
}

// matches gives the condition that two relations hold the same key: what stands left decides on affinity and collation.
func (k tableKey) matches(left, right string) string {
	columns := k.collated(left)
	for i, c := range k.columns {
		columns[i] += " = " + right + quoteIdentifier(c.name)
	}
	return strings.Join(columns, " AND ")
}

// isNull gives the condition that a key column holds NULL; ok is false if none may.
func (k tableKey) isNull(qualifier string) (condition string, ok bool) {
	var nullable []string
	for _, c := range k.columns {
		if c.nullable {
			nullable = append(nullable, qualifier+quoteIdentifier(c.name)+" IS NULL")
		}
	}
	return strings.Join(nullable, " OR "), len(nullable) > 0
}

// temporary gives the statement for a temporary table that holds keys, each once.
func (k tableKey) temporary(name string) string {
	columns := make([]string, len(k.columns))
	for i, c := range k.columns {
		columns[i] = fmt.Sprintf("%s %s COLLATE %s NOT NULL", quoteIdentifier(c.name), c.affinity, c.collation)
	}
	return fmt.Sprintf("CREATE TEMPORARY TABLE %s(%s, PRIMARY KEY(%s)) WITHOUT ROWID", name, strings.Join(columns, ", "), k.list(""))
}

// encodeCursor writes a key down with its storage classes. Text that is not UTF-8, or holds NUL, is written as its bytes.
func encodeCursor(key []any) (string, error) {
	parts := make([]string, len(key))
	for i, value := range key {
		switch v := value.(type) {
		case int64:
			parts[i] = "i" + strconv.FormatInt(v, 10)
		case float64:
			parts[i] = "r" + strconv.FormatFloat(v, 'g', -1, 64)
		case string:
			parts[i] = "t" + v
			if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
				parts[i] = "x" + hex.EncodeToString([]byte(v))
			}
		case []byte:
			parts[i] = "b" + hex.EncodeToString(v)
		default:
			return "", storage.Refuse(storage.CodeInvalidSpec, "a key column holds NULL, so its rows cannot be told apart")
		}
	}
	return storage.EncodeKey(parts), nil
}

// decodeCursor reads what encodeCursor wrote.
func decodeCursor(cursor string, columns int) ([]any, error) {
	parts, ok := storage.DecodeKey(cursor, columns)
	key := make([]any, len(parts))
	for i := 0; ok && i < len(parts); i++ {
		if parts[i] == "" {
			ok = false
			break
		}
		class, text := parts[i][0], parts[i][1:]
		var err error
		var bytes []byte
		switch class {
		case 'i':
			key[i], err = strconv.ParseInt(text, 10, 64)
		case 'r':
			key[i], err = strconv.ParseFloat(text, 64)
		case 't':
			key[i] = text
		case 'x':
			bytes, err = hex.DecodeString(text)
			key[i] = string(bytes)
		case 'b':
			bytes, err = hex.DecodeString(text)
			key[i] = bytes
		default:
			ok = false
		}
		ok = ok && err == nil
	}
	if !ok {
		return nil, storage.Refuse(storage.CodeContentDrift, "sync_backfill_progress: a cursor is not what this program wrote for a key of %d columns", columns)
	}
	return key, nil
}

// keyTexts gives a key as row_id has it: the text of each column, bytes as \x and hex.
func keyTexts(key []any) []string {
	texts := make([]string, len(key))
	for i, value := range key {
		switch v := value.(type) {
		case []byte:
			texts[i] = `\x` + hex.EncodeToString(v)
		case float64:
			texts[i] = strconv.FormatFloat(v, 'g', -1, 64)
		case nil:
			texts[i] = "NULL"
		default:
			texts[i] = fmt.Sprint(v)
		}
	}
	return texts
}

// candidates gives every key that a row_id can stand for: its text does not say whether '\x61' was text or a byte, nor, in a column
// that converts nothing, whether '5' was text or a number. One too many does no harm, since whether its row exists decides what
// is done; one too few would be a change that is missed.
func (k tableKey) candidates(texts []string) [][]any {
	keys := [][]any{{}}
	for i, text := range texts {
		var longer [][]any
		for _, value := range k.columns[i].candidates(text) {
			for _, key := range keys {
				longer = append(longer, append(slices.Clone(key), value))
			}
		}
		keys = longer
	}
	return keys
}

func (c keyColumn) candidates(text string) []any {
	values := []any{text}
	if number, ok := numberOf(text); ok {
		switch c.affinity {
		case "INTEGER", "REAL", "NUMERIC":
			values[0] = number // the column would have made a number of the text
		case "BLOB":
			values = append(values, number)
		}
	}
	if digits, ok := strings.CutPrefix(text, `\x`); ok {
		if bytes, err := hex.DecodeString(digits); err == nil {
			values = append(values, bytes)
		}
	}
	return values
}

// numberOf reads a decimal number.
func numberOf(text string) (any, bool) {
	if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
		return whole, true
	}
	if strings.ContainsAny(text, "xXpP_nN") { // what Go takes beyond decimals: hexadecimal, Inf and NaN
		return nil, false
	}
	fraction, err := strconv.ParseFloat(text, 64)
	return fraction, err == nil
}
