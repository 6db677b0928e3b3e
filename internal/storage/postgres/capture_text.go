package postgres

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"
)

//go:embed capture_function.sql
var captureFunctionSQL string

// body renders the body of the table's function. The same description gives the same text, so that it can be compared with what a
// database has.
func (s *Store) captureBody(c captured) (string, error) {
	var b strings.Builder
	t, err := template.New("capture_function.sql").Funcs(s.captureActions(c)).Parse(captureFunctionSQL)
	if err == nil {
		err = t.Execute(&b, nil)
	}
	if err != nil {
		return "", fmt.Errorf("render the capture function of table %q: %w", c.table, err)
	}
	return b.String(), nil
}

// captureActions are what capture_function.sql calls.
func (s *Store) captureActions(c captured) template.FuncMap {
	return template.FuncMap{
		"schema":    func() string { return s.schema },
		"sequence":  func() string { return quoteText(s.schema + "." + captureSequence) },
		"table":     func() string { return quoteText(c.table) },
		"prefix":    func() string { return quoteText(c.prefix()) },
		"most":      func() int { return captureMost },
		"plain":     func() bool { return !c.partitioned },
		"byColumn":  func() bool { return c.partition.column != nil },
		"partition": c.partitionOf,
		"key":       c.keyOf,
		"value":     c.valueOf,
		"parts":     c.parts,
		"names":     c.names,
		"same":      c.sameKey,
		"present":   c.present,
		"differs":   func(before, after string) string { return differs(c.counting, before, after) },
		"ranges":    c.ranges,
		"listedIn":  c.listedIn,
		"list":      c.list,
		"ends":      c.ends,
	}
}

// present says whether an outer join found a row behind the alias: its key is never NULL. A value of several fields counts as NULL for IS NOT
// NULL if one of them is.
func (c captured) present(alias string) string {
	first := alias + "." + quoteIdentifier(c.key[0].name)
	if c.key[0].builtin {
		return first + " IS NOT NULL"
	}
	return "num_nulls(" + first + ") = 0"
}

// changedAlias is the alias of the relation "changed", whose columns have our own names.
const changedAlias = "c"

// columnOf names a key column behind an alias.
func (c captured) columnOf(alias string, i int) string {
	switch alias {
	case "o", "n", "OLD", "NEW":
		return alias + "." + quoteIdentifier(c.key[i].name)
	default:
		return fmt.Sprintf("%s.k%d", alias, i+1)
	}
}

// text is a column's value as text. A cast to text from a type that does not come with the server can be anybody's function, and would run
// with our rights; format calls the type's own output.
func (c capturedColumn) text(value string) string {
	if c.builtin {
		return value + "::text"
	}
	return "format('%s', " + value + ")"
}

// keyOf is row_id: the key's text, or for a composite key the JSON array of its columns' texts.
func (c captured) keyOf(alias string) string {
	return c.keyText(func(i int) string { return c.columnOf(alias, i) })
}

func (c captured) keyText(column func(i int) string) string {
	texts := make([]string, len(c.key))
	for i, k := range c.key {
		texts[i] = k.text(column(i))
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "to_json(ARRAY[" + strings.Join(texts, ", ") + "])::text"
}

// valueOf is the text of the partition column. The collation makes it compare byte by byte, whatever the column's own one is.
func (c captured) valueOf(alias string) string {
	column := c.partition.column
	if alias != "o" && alias != "n" && alias != "OLD" && alias != "NEW" {
		return alias + ".v"
	}
	value := alias + "." + quoteIdentifier(column.name)
	text := column.text(value)
	if !column.builtin {
		text = "CASE WHEN num_nulls(" + value + ") = 0 THEN " + text + " END"
	}
	return `(` + text + `) COLLATE "C"`
}

// partitionOf is the key of the captured partition of a row.
func (c captured) partitionOf(alias string) string {
	switch {
	case c.partition.column != nil:
		return "(" + c.keyOfText(c.valueOf(alias)) + ")"
	case c.partition.slices > 0:
		// hashtext may change between releases of the server; md5 does not.
		return fmt.Sprintf("(%s || ('x' || left(md5(%s), 8))::bit(32)::bigint %% %d)", quoteText(c.prefix()+"#"), c.keyOf(alias), c.partition.slices)
	default:
		return quoteText(c.prefix()) + "::text"
	}
}

// parts are the columns of "changed" out of a row of the table.
func (c captured) parts(alias string) string {
	var parts []string
	if c.partition.column != nil {
		parts = append(parts, c.valueOf(alias)+" AS v")
	}
	for i := range c.key {
		parts = append(parts, fmt.Sprintf("%s AS k%d", c.columnOf(alias, i), i+1))
	}
	return strings.Join(parts, ", ")
}

// names are the columns of "changed" out of a relation that has them, with another column in the place of v if one is given.
func (c captured) names(alias string, value ...string) string {
	var names []string
	if c.partition.column != nil {
		v := "v"
		if len(value) > 0 {
			v = value[0]
		}
		names = append(names, alias+"."+v)
	}
	for i := range c.key {
		names = append(names, c.columnOf(alias, i))
	}
	return strings.Join(names, ", ")
}

// order is the order of the key.
func (c captured) order(alias, direction string) string {
	columns := make([]string, len(c.key))
	for i := range c.key {
		columns[i] = strings.TrimSpace(c.columnOf(alias, i) + " " + direction)
	}
	return strings.Join(columns, ", ")
}

// sameKey joins a row before and after a change. Where equal keys can have different texts, the texts are compared: such a change is a
// change of the key.
func (c captured) sameKey(before, after string) string {
	conditions := make([]string, len(c.key))
	for i, k := range c.key {
		was, is := c.columnOf(before, i), c.columnOf(after, i)
		if !k.exact {
			was, is = k.text(was)+` COLLATE "C"`, k.text(is)+` COLLATE "C"`
		}
		conditions[i] = was + " = " + is
	}
	return strings.Join(conditions, " AND ")
}

// differs says whether any of the columns changed.
func differs(columns []capturedColumn, before, after string) string {
	conditions := make([]string, len(columns))
	for i, c := range columns {
		was, is := before+"."+quoteIdentifier(c.name), after+"."+quoteIdentifier(c.name)
		if c.exact {
			conditions[i] = was + " IS DISTINCT FROM " + is
		} else {
			// Not the operator *<>, which the server writes down in a way that it does not read again.
			conditions[i] = "record_image_ne(ROW(" + was + "), ROW(" + is + "))"
		}
	}
	return strings.Join(conditions, " OR ")
}

// ranges gives, for each captured partition with rows in "changed", its key as p and, as k, the JSON array of the smallest and the largest
// key text. The hash is not computed for so many rows: the range is logged for all slices, which a reader then looks
// through for nothing.
func (c captured) ranges() string {
	switch {
	case c.partition.column == nil:
		return c.rangeOfAll()
	case c.ordered():
		return fmt.Sprintf(`
          SELECT %s AS p, to_json(ARRAY[min(c.k1)::text, max(c.k1)::text])::text AS k
            FROM changed AS c
           GROUP BY c.v
        `, c.partitionOf(changedAlias))
	default:
		return c.rangeBySorting()
	}
}

// ordered says that the server has min and max for the key.
func (c captured) ordered() bool { return len(c.key) == 1 && c.key[0].ordered }

// list is the list of the keys of a group of "changed", sorted unless min and max give its ends anyway.
func (c captured) list() string {
	if c.ordered() {
		return "array_agg(" + c.keyOf(changedAlias) + ")"
	}
	return "array_agg(" + c.keyOf(changedAlias) + " ORDER BY " + c.order(changedAlias, "") + ")"
}

// ends are the texts of the smallest and the largest key of a group of "changed".
func (c captured) ends() string {
	if c.ordered() {
		return "ARRAY[min(c.k1)::text, max(c.k1)::text]"
	}
	return "ARRAY[(" + c.list() + ")[1], (" + c.list() + ")[count(*)]]"
}

// listedIn is the partition that a list of keys is logged in. Slices are read together, so any will do, and no hash is computed.
func (c captured) listedIn() string {
	if c.partition.slices > 0 {
		return fmt.Sprintf("%s || c.place %% %d", quoteText(c.prefix()+"#"), c.partition.slices)
	}
	return c.partitionOf(changedAlias)
}

func (c captured) rangeOfAll() string {
	partition, slices := c.partitionOf(changedAlias), ""
	if c.partition.slices > 0 {
		partition = quoteText(c.prefix()+"#") + " || slice.number"
		slices = fmt.Sprintf("\n           CROSS JOIN generate_series(0, %d) AS slice(number)", c.partition.slices-1)
	}
	return fmt.Sprintf(`
          SELECT %s AS p, to_json(ARRAY[%s, %s])::text AS k
            FROM (SELECT c.* FROM changed AS c ORDER BY %s LIMIT 1) AS a
           CROSS JOIN (SELECT c.* FROM changed AS c ORDER BY %s LIMIT 1) AS z%s
        `, partition, c.keyOf("a"), c.keyOf("z"), c.order(changedAlias, ""), c.order(changedAlias, "DESC"), slices)
}

func (c captured) rangeBySorting() string {
	key := c.keyOf(changedAlias)
	return fmt.Sprintf(`
          SELECT %s AS p, to_json(ARRAY[(array_agg(%s ORDER BY c.place))[1], (array_agg(%s ORDER BY c.place DESC))[1]])::text AS k
            FROM (
              SELECT c.*, row_number() OVER (PARTITION BY c.v ORDER BY %s) AS place, count(*) OVER (PARTITION BY c.v) AS places
                FROM changed AS c
            ) AS c
           WHERE c.place IN (1, c.places)
           GROUP BY c.v
        `, c.partitionOf(changedAlias), key, key, c.order(changedAlias, ""))
}
