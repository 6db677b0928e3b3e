package postgres

import (
	"fmt"
	"slices"
	"strings"
)

// The names of what capture installs on a source. One function of its own writes a table's log; the others are shared.
const (
	captureSequence     = "syncbarrier_change_idx"
	logTruncateFunction = "syncbarrier_log_truncate"
	fenceSourceFunction = "syncbarrier_fence_source"

	captureInsertTrigger    = "syncbarrier_capture_insert"
	captureUpdateTrigger    = "syncbarrier_capture_update"
	captureDeleteTrigger    = "syncbarrier_capture_delete"
	captureKeyTrigger       = "syncbarrier_capture_key"
	captureRowTrigger       = "syncbarrier_capture_row"
	captureRowUpdateTrigger = "syncbarrier_capture_row_update"
	captureTruncateTrigger  = "syncbarrier_capture_truncate"
	fenceSourceTrigger      = "syncbarrier_fence_source"
	fenceRowTrigger         = "syncbarrier_fence_row"
)

// sourceTrigger is a trigger on a source or on one of its partitions.
type sourceTrigger struct {
	name     string
	kind     int16  // pg_trigger.tgtype
	mode     string // pg_trigger.tgenabled: firesAlways, firesInReplica
	function string // of our schema
	argument *string
	when     string // "": none
	oldTable bool   // it reads the rows before the change
	newTable bool   // it reads the rows after it
	capture  bool   // it writes the log; else it is a fence
	// everywhere: it has to be put on each partition. Row triggers are on the table alone, and the server copies them to its partitions,
	// later ones too.
	everywhere bool
}

// Firing modes (pg_trigger.tgenabled).
const (
	firesAlways    = "A"
	firesInReplica = "R"
	firesNever     = "D"
)

// The names of the transition tables. A function names them instead of a table, so no table of that name can stand in for them.
const (
	oldTableName = "_sb_old"
	newTableName = "_sb_new"
)

const anyChange = triggerInsert | triggerUpdate | triggerDelete

// sourceTriggers are the triggers of a captured table, in the order in which they are installed: the fence first.
//
// A plain table has statement triggers, which cost a program's large statements a fraction of what row triggers do. But the workers of
// logical replication fire row triggers only (PostgreSQL manual, "Logical Replication: Architecture"), so a row trigger that
// fires for session_replication_role = replica alone stands beside them; a session in that role that is no such worker logs its
// changes twice, which only costs. A partitioned table has row triggers, because a new partition gets copies of those and of no others.
//
// The row triggers come AFTER: a BEFORE trigger for each row, even one that does not fire, makes COPY insert row by row. On plain tables
// none has a condition, since a column in a condition can no longer change its type.
func (c captured) sourceTriggers(minimum int64) []sourceTrigger {
	function, table, required := captureFunction(c.table), c.table, fmt.Sprint(minimum)
	rows := firesInReplica
	if c.partitioned {
		rows = firesAlways
	}
	fenceRows := rows
	if c.child {
		fenceRows = firesAlways // statements on the table above it do not fire the fence for each statement
	}
	triggers := []sourceTrigger{
		{name: fenceSourceTrigger, kind: triggerBefore | anyChange | triggerTruncate, mode: firesAlways, function: fenceSourceFunction,
			argument: &required, everywhere: true},
		{name: fenceRowTrigger, kind: triggerRow | anyChange, mode: fenceRows, function: fenceSourceFunction, argument: &required},
		{name: captureTruncateTrigger, kind: triggerTruncate, mode: firesAlways, function: logTruncateFunction, argument: &table,
			capture: true, everywhere: true},
	}
	if c.partitioned {
		return append(triggers,
			sourceTrigger{name: captureRowTrigger, kind: triggerRow | triggerInsert | triggerDelete, mode: rows, function: function, capture: true},
			sourceTrigger{name: captureRowUpdateTrigger, kind: triggerRow | triggerUpdate, mode: rows, function: function, capture: true,
				when: differs(c.counting, "OLD", "NEW")})
	}
	if c.deferrable {
		// Until the end of a statement two rows may have one key, so rows may change places: no key is then without a partner.
		triggers = append(triggers, sourceTrigger{name: captureKeyTrigger, kind: triggerRow | triggerUpdate, mode: firesAlways, function: function,
			capture: true, when: differs(c.key, "OLD", "NEW")})
	}
	return append(triggers,
		sourceTrigger{name: captureRowTrigger, kind: triggerRow | anyChange, mode: rows, function: function, capture: true},
		sourceTrigger{name: captureInsertTrigger, kind: triggerInsert, mode: firesAlways, function: function, capture: true, newTable: true},
		sourceTrigger{name: captureUpdateTrigger, kind: triggerUpdate, mode: firesAlways, function: function, capture: true, oldTable: true, newTable: true},
		sourceTrigger{name: captureDeleteTrigger, kind: triggerDelete, mode: firesAlways, function: function, capture: true, oldTable: true},
	)
}

// truncateTrigger is the one trigger of a source whose program writes the log itself: no program logs a TRUNCATE.
func (c captured) truncateTrigger() sourceTrigger {
	i := slices.IndexFunc(c.sourceTriggers(0), func(t sourceTrigger) bool { return t.name == captureTruncateTrigger })
	return c.sourceTriggers(0)[i]
}

// perRow says whether it fires for each row.
func (t sourceTrigger) perRow() bool { return t.kind&triggerRow != 0 }

// sql makes or replaces the trigger on a relation, which is never without it.
func (t sourceTrigger) sql(s *Store, relation string) string {
	var events []string
	for _, event := range []struct {
		bit  int16
		name string
	}{{triggerInsert, "INSERT"}, {triggerUpdate, "UPDATE"}, {triggerDelete, "DELETE"}, {triggerTruncate, "TRUNCATE"}} {
		if t.kind&event.bit != 0 {
			events = append(events, event.name)
		}
	}
	time, level := "AFTER", "STATEMENT"
	if t.kind&triggerBefore != 0 {
		time = "BEFORE"
	}
	if t.perRow() {
		level = "ROW"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE OR REPLACE TRIGGER %s\n%s %s ON %s\n", quoteIdentifier(t.name), time, strings.Join(events, " OR "), relation)
	if tables := t.transitionTables(); tables != "" {
		fmt.Fprintf(&b, "REFERENCING %s\n", tables)
	}
	fmt.Fprintf(&b, "FOR EACH %s\n", level)
	if t.when != "" {
		fmt.Fprintf(&b, "WHEN (%s)\n", t.when)
	}
	argument := ""
	if t.argument != nil {
		argument = quoteLiteral(*t.argument)
	}
	fmt.Fprintf(&b, "EXECUTE FUNCTION %s(%s)", s.functionName(t.function), argument)
	return b.String()
}

func (t sourceTrigger) transitionTables() string {
	var tables []string
	if t.oldTable {
		tables = append(tables, "OLD TABLE AS "+oldTableName)
	}
	if t.newTable {
		tables = append(tables, "NEW TABLE AS "+newTableName)
	}
	return strings.Join(tables, " ")
}

// firingSQL sets when the trigger of a relation fires.
func firingSQL(relation, trigger, mode string) string {
	words := map[string]string{firesAlways: "ENABLE ALWAYS", firesInReplica: "ENABLE REPLICA", firesNever: "DISABLE"}
	return fmt.Sprintf("ALTER TABLE ONLY %s %s TRIGGER %s", relation, words[mode], quoteIdentifier(trigger))
}
