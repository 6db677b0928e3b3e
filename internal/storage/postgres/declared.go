package postgres

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

//go:embed fence.sql
var fenceSQL string

//go:embed guards.sql
var guardsSQL string

//go:embed capture.sql
var captureSQL string

//go:embed catalog.sql
var catalogSQL string

// What we install is declared once, in the SQL files, and read from there: the same text makes the objects and is compared with
// what the database has.

// declaredFunction is a trigger function.
type declaredFunction struct {
	name string
	body sqlText // pg_proc.prosrc
	sql  sqlText // with {body}
}

// declaredTrigger is a trigger. All are installed ENABLE ALWAYS, or a session with session_replication_role = replica would pass them.
type declaredTrigger struct {
	name, table, function string
	kind                  int16  // pg_trigger.tgtype
	when                  string // the condition, normalised; "": none
	arguments             []string
	sql                   sqlText
}

// The bits of pg_trigger.tgtype (PostgreSQL source, catalog/pg_trigger.h).
const (
	triggerRow      = 1 << 0
	triggerBefore   = 1 << 1
	triggerInsert   = 1 << 2
	triggerDelete   = 1 << 3
	triggerUpdate   = 1 << 4
	triggerTruncate = 1 << 5
)

// fenceTrigger is the name of the fence's trigger and function. The trigger's argument is the minimum writer version.
const fenceTrigger = "syncbarrier_fence"

// minimumPlace is where the argument stands in the declaration.
const minimumPlace = "{minimum}"

var (
	declaredFunctions = parseFunctions(fenceSQL + guardsSQL + captureSQL)
	declaredTriggers  = parseTriggers(fenceSQL + guardsSQL)
	// catalogRevision names what this build installs. It is written down in the database with it: where it is the same, a difference is
	// somebody's doing, and where it is not, an upgrade is due.
	catalogRevision = revisionOf(fenceSQL, guardsSQL, captureSQL, catalogSQL, coverageIndexSQL)
)

var functionPattern = regexp.MustCompile(`(?s)CREATE OR REPLACE FUNCTION \{schema\}\.(\w+)\(\)\n.*?\$syncbarrier\$(.*?)\$syncbarrier\$;`)

func parseFunctions(text string) []declaredFunction {
	var functions []declaredFunction
	for _, match := range functionPattern.FindAllStringSubmatch(text, -1) {
		// The body stands in a literal of its own once it is complete: between the dollar quotes of the file it would end at a database schema
		// with their name.
		sql := strings.Replace(match[0], "$syncbarrier$"+match[2]+"$syncbarrier$", "{body}", 1)
		functions = append(functions, declaredFunction{name: match[1], body: sqlText(match[2]), sql: sqlText(sql)})
	}
	return functions
}

var triggerPattern = regexp.MustCompile(`(?m)^CREATE OR REPLACE TRIGGER (\w+)
(BEFORE|AFTER) ([A-Z ]+) ON \{schema\}\.(\w+)
FOR EACH (ROW|STATEMENT)
(?:WHEN \((.*)\)
)?EXECUTE FUNCTION \{schema\}\.(\w+)\((.*)\);$`)

func parseTriggers(text string) []declaredTrigger {
	bits := map[string]int16{
		"BEFORE": triggerBefore, "AFTER": 0, "ROW": triggerRow, "STATEMENT": 0,
		"INSERT": triggerInsert, "UPDATE": triggerUpdate, "DELETE": triggerDelete, "TRUNCATE": triggerTruncate,
	}
	var triggers []declaredTrigger
	for _, match := range triggerPattern.FindAllStringSubmatch(text, -1) {
		t := declaredTrigger{name: match[1], table: match[4], function: match[7], when: normaliseCondition(match[6]), sql: sqlText(match[0])}
		t.kind = bits[match[2]] | bits[match[5]]
		for _, event := range strings.Split(match[3], " OR ") {
			t.kind |= bits[event]
		}
		if match[8] != "" {
			t.arguments = []string{strings.Trim(match[8], "'")}
		}
		triggers = append(triggers, t)
	}
	return triggers
}

// normaliseCondition makes a condition as it was written comparable with the server's own rendering of it, which differs in parentheses,
// spaces, case, casts and the quotes around names.
func normaliseCondition(condition string) string {
	condition = strings.ReplaceAll(strings.ToLower(plainNames(condition)), "::text", "")
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(" ()\n\t", r) {
			return -1
		}
		return r
	}, condition)
}

// plainName matches a name that the server may write without quotes.
var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_$]*$`)

// plainNames takes the quotes from names. A name that needs them becomes its bytes in hex behind a character that stands in no SQL: two names
// that differ in case or a space are two, and nothing in one looks like SQL.
func plainNames(sql string) string {
	var b strings.Builder
	for i := 0; i < len(sql); i++ {
		quote := sql[i]
		if quote != '"' && quote != '\'' {
			b.WriteByte(quote)
			continue
		}
		start := i + 1
		for i++; i < len(sql); i++ {
			if sql[i] != quote {
				continue
			}
			if i+1 == len(sql) || sql[i+1] != quote {
				break
			}
			i++
		}
		switch name := sql[start:min(i, len(sql))]; {
		case quote == '\'':
			b.WriteString("'" + name + "'")
		case plainName.MatchString(name):
			b.WriteString(name)
		default:
			b.WriteString("\x00" + hex.EncodeToString([]byte(name)))
		}
	}
	return b.String()
}

func revisionOf(texts ...string) string {
	hash := sha256.New()
	for _, text := range texts {
		_, _ = fmt.Fprintf(hash, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// withMinimum is the declaration of the fence's trigger with its argument.
func (t declaredTrigger) withMinimum(minimum int64) declaredTrigger {
	if t.name == fenceTrigger {
		t.sql = sqlText(strings.ReplaceAll(string(t.sql), minimumPlace, fmt.Sprint(minimum)))
		t.arguments = []string{fmt.Sprint(minimum)}
	}
	return t
}

func (t declaredTrigger) perRow() bool { return t.kind&triggerRow != 0 }

// fenceDeclaration is the fence's trigger among the declared ones.
func fenceDeclaration() declaredTrigger {
	for _, t := range declaredTriggers {
		if t.name == fenceTrigger {
			return t
		}
	}
	panic("fence.sql declares no trigger " + fenceTrigger) // a test of this package reads the files
}

// guardedTables are the tables with triggers of ours.
func guardedTables() []string {
	var tables []string
	seen := map[string]bool{}
	for _, t := range declaredTriggers {
		if !seen[t.table] {
			seen[t.table] = true
			tables = append(tables, t.table)
		}
	}
	return tables
}

// declaredRelation is a table, index, sequence or later column of catalog.sql.
type declaredRelation struct {
	kind string // TABLE, INDEX, SEQUENCE, COLUMN
	name string // of a column: its table and name with a dot between
	sql  sqlText
}

var (
	declaredRelations = parseRelations(catalogSQL)
	relationPattern   = regexp.MustCompile(`^CREATE (TABLE|INDEX|SEQUENCE) IF NOT EXISTS (?:\{schema\}\.)?(\w+)`)
	columnPattern     = regexp.MustCompile(`^ALTER TABLE \{schema\}\.(\w+) ADD COLUMN IF NOT EXISTS (\w+) `)
	commentPattern    = regexp.MustCompile(`(?m)^\s*--.*\n`)
)

// parseRelations takes catalog.sql apart into its statements. Each is made only if it is missing: IF NOT EXISTS alone would still
// take the table's lock, for which eight starters at once would queue.
func parseRelations(text string) []declaredRelation {
	var relations []declaredRelation
	for _, statement := range strings.Split(commentPattern.ReplaceAllString(text, ""), ";\n") {
		statement = strings.TrimSpace(statement)
		if match := relationPattern.FindStringSubmatch(statement); match != nil {
			relations = append(relations, declaredRelation{kind: match[1], name: match[2], sql: sqlText(statement)})
		} else if match := columnPattern.FindStringSubmatch(statement); match != nil {
			relations = append(relations, declaredRelation{kind: "COLUMN", name: match[1] + "." + match[2], sql: sqlText(statement)})
		} else if statement != "" {
			panic("catalog.sql has a statement of unknown kind: " + statement) // a test of this package reads the file
		}
	}
	return relations
}
