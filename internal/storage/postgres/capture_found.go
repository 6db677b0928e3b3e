package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// foundSource is what a database has of the triggers of one source.
type foundSource struct {
	table     string
	relations []foundSourceRelation // the table first, then its partitions
	function  *foundCaptureFunction // nil: none
}

// foundSourceRelation is a source or a partition of it, with those of its triggers that have names of ours.
type foundSourceRelation struct {
	capturedRelation
	kind     string
	child    bool     // it is a partition of another table, or inherits from one: statements on that fire only its row triggers
	heirs    []string // tables that inherit from it and are no partitions
	triggers map[string]foundSourceTrigger
}

type foundSourceTrigger struct {
	name       string
	kind       int16
	enabled    string
	function   string // of our schema; of others "schema.name"
	arguments  []string
	when       string
	columns    bool // limited to some columns
	constraint bool
	copied     bool // from the table that its own is a partition of
	oldTable   string
	newTable   string
	change     string // the transaction that last changed it
}

// foundCaptureFunction is the function of one table, with what its comment says of it.
type foundCaptureFunction struct {
	foundFunction
	name        string
	installed   string // hash of the body that was installed; "": it has no comment of ours
	description captureDescription
}

// captureDescription stands in the comment on a function: for people, and to tell which table and columns it is for.
type captureDescription struct {
	Table   string   `json:"table"`
	Key     []string `json:"key"`
	Columns []string `json:"columns"` // those whose change counts
	Column  string   `json:"partitionColumn,omitempty"`
	Slices  int      `json:"slices,omitempty"`
}

const describeComment = ", capture "

func (c captured) description() captureDescription {
	d := captureDescription{Table: c.table, Key: namesOf(c.key), Columns: namesOf(c.counting), Slices: c.partition.slices}
	if c.partition.column != nil {
		d.Column = c.partition.column.name
	}
	return d
}

func namesOf(columns []capturedColumn) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return names
}

func (d captureDescription) comment(body string) string {
	text, _ := json.Marshal(d) // strings and numbers always encode
	return revisionComment + catalogRevision + bodyComment + revisionOf(body) + describeComment + string(text)
}

// describe takes the comment apart.
func (f *foundCaptureFunction) describe() {
	_, body := f.foundFunction.installed()
	body, description, ok := strings.Cut(body, describeComment)
	if !ok || json.Unmarshal([]byte(description), &f.description) != nil {
		return
	}
	f.installed = body
}

// readCaptureFunctions reads the functions that write the log of tables, by the names of the tables. One whose comment was taken away is
// found by its name.
func (s *Store) readCaptureFunctions(ctx context.Context, q querier, tables []string) (map[string]*foundCaptureFunction, error) {
	const what = "read the functions of captured tables"
	rows, err := q.Query(ctx, `
		SELECT p.proname::text, p.prosrc, pg_catalog.pg_get_userbyid(p.proowner)::text, l.lanname::text, p.provolatile::text,
		       coalesce(pg_catalog.obj_description(p.oid, 'pg_proc'), ''), p.prosecdef, coalesce(p.proconfig, '{}'),
		       ARRAY(
		         SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(a.grantee)::text END
		           FROM pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) AS a
		          WHERE a.grantee <> p.proowner
		          ORDER BY 1)
		  FROM pg_catalog.pg_proc AS p
		  JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
		  JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
		 WHERE n.nspname = $1::text
		   AND p.proname LIKE 'syncbarrier\_capture\_%'
		   AND p.pronargs = 0`, s.schemaName)
	if err != nil {
		return nil, translate(err, what)
	}
	functions, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*foundCaptureFunction, error) {
		f := &foundCaptureFunction{}
		err := row.Scan(&f.name, &f.body, &f.owner, &f.language, &f.volatility, &f.comment, &f.definer, &f.settings, &f.grantees)
		f.describe()
		return f, err
	})
	if err != nil {
		return nil, translate(err, what)
	}
	byTable := map[string]*foundCaptureFunction{}
	for _, f := range functions {
		if f.installed != "" {
			byTable[f.description.Table] = f
			continue
		}
		for _, table := range tables {
			if captureFunction(table) == f.name && byTable[table] == nil {
				byTable[table] = f
			}
		}
	}
	return byTable, nil
}

// heirsSQL gives the tables that inherit from c and are no partitions of it.
const heirsSQL = `ARRAY(
		         SELECT pg_catalog.format('%I.%I', hn.nspname, h.relname)
		           FROM pg_catalog.pg_inherits i
		           JOIN pg_catalog.pg_class h ON h.oid = i.inhrelid
		           JOIN pg_catalog.pg_namespace hn ON hn.oid = h.relnamespace
		          WHERE i.inhparent = c.oid
		            AND NOT h.relispartition
		          ORDER BY 1)`

// readSources reads the sources of these names, and all others that have a trigger of ours, by name. A name that is no table is left out. A
// table that was moved to another schema stands under a name that no table has.
func (s *Store) readSources(ctx context.Context, q querier, tables []string) (map[string]*foundSource, error) {
	const what = "read the triggers of sources"
	rows, err := q.Query(ctx, `
		WITH ours AS (
		  SELECT p.oid
		    FROM pg_catalog.pg_proc p
		    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
		   WHERE n.nspname = $1::text
		     AND (p.proname LIKE 'syncbarrier\_capture\_%' OR p.proname = ANY ($3::text[]))
		), roots AS (
		  SELECT DISTINCT coalesce(pg_catalog.pg_partition_root(t.tgrelid)::oid, t.tgrelid) AS oid
		    FROM pg_catalog.pg_trigger t
		   WHERE t.tgfoid IN (SELECT oid FROM ours)
		   UNION
		  SELECT c.oid
		    FROM pg_catalog.pg_class c
		    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		   WHERE n.nspname = $1::text
		     AND c.relname = ANY ($2::text[])
		     AND c.relkind IN ('r', 'p')
		), tree AS (
		  SELECT oid AS root, oid, 0 AS level
		    FROM roots
		   UNION ALL
		  SELECT roots.oid, t.relid, t.level
		    FROM roots, pg_catalog.pg_partition_tree(roots.oid) AS t
		   WHERE t.relid <> roots.oid
		)
		SELECT CASE WHEN rn.nspname = $1::text THEN r.relname::text ELSE pg_catalog.format('%I.%I', rn.nspname, r.relname) END, rn.nspname = $1::text,
		       c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), c.relkind::text,
		       EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid), `+heirsSQL+`,
		       coalesce(t.tgname::text, ''), coalesce(t.tgtype, 0), coalesce(t.tgenabled::text, ''),
		       coalesce(CASE WHEN fn.nspname = $1::text THEN p.proname::text ELSE pg_catalog.quote_ident(fn.nspname) || '.' || pg_catalog.quote_ident(p.proname) END, ''),
		       `+argumentsSQL+`, coalesce(pg_catalog.pg_get_triggerdef(t.oid), ''),
		       coalesce(pg_catalog.cardinality(t.tgattr::int2[]) > 0, false), coalesce(t.tgconstraint <> 0, false),
		       coalesce(t.tgparentid <> 0, false), coalesce(t.tgoldtable::text, ''), coalesce(t.tgnewtable::text, ''), coalesce(t.xmin::text, '')
		  FROM tree
		  JOIN pg_catalog.pg_class r ON r.oid = tree.root
		  JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
		  JOIN pg_catalog.pg_class c ON c.oid = tree.oid
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		  LEFT JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid AND t.tgname = ANY ($4::text[])
		  LEFT JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
		  LEFT JOIN pg_catalog.pg_namespace fn ON fn.oid = p.pronamespace
		 ORDER BY 1, tree.level, 4, t.tgname`, s.schemaName, tables, []string{fenceSourceFunction, logTruncateFunction}, sourceTriggerNames)
	if err != nil {
		return nil, translate(err, what)
	}
	sources := map[string]*foundSource{}
	var table, definition string
	var local bool
	var relation foundSourceRelation
	var arguments []byte
	var t foundSourceTrigger
	_, err = pgx.ForEachRow(rows, []any{&table, &local, &relation.oid, &relation.name, &relation.kind, &relation.child, &relation.heirs, &t.name, &t.kind, &t.enabled, &t.function,
		&arguments, &definition, &t.columns, &t.constraint, &t.copied, &t.oldTable, &t.newTable, &t.change}, func() error {
		t.arguments = argumentsOf(arguments)
		t.when = settleCondition(whenOf(definition))
		name := table
		if !local {
			name = "\x00" + table // a table of ours may be called like the full name of another
		}
		source := sources[name]
		if source == nil {
			source = &foundSource{table: table}
			sources[name] = source
		}
		source.add(relation, t)
		relation.heirs = nil // the next row gets an array of its own
		return nil
	})
	if err != nil {
		return nil, translate(err, what)
	}
	functions, err := s.readCaptureFunctions(ctx, q, tables)
	for table, function := range functions {
		if source := sources[table]; source != nil {
			source.function = function
		}
	}
	return sources, err
}

func (f *foundSource) add(relation foundSourceRelation, t foundSourceTrigger) {
	if last := len(f.relations) - 1; last < 0 || f.relations[last].oid != relation.oid {
		relation.triggers = map[string]foundSourceTrigger{}
		f.relations = append(f.relations, relation)
	}
	if t.name != "" {
		f.relations[len(f.relations)-1].triggers[t.name] = t
	}
}

// argumentsSQL is pg_trigger.tgargs, which is in the encoding of the database, as a session has its texts. None of ours has more than one argument.
const argumentsSQL = `CASE t.tgnargs
		         WHEN 1 THEN convert_to(convert_from(substring(t.tgargs, 1, octet_length(t.tgargs) - 1), pg_catalog.getdatabaseencoding()), 'UTF8') || '\x00'
		         ELSE coalesce(t.tgargs, ''::bytea)
		       END`

// argumentsOf takes pg_trigger.tgargs apart, in which each argument ends with a NUL.
func argumentsOf(tgargs []byte) []string {
	if len(tgargs) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(tgargs), "\x00"), "\x00")
}

// sourceTriggerNames are the names of all triggers that a source can have from us.
var sourceTriggerNames = []string{
	captureInsertTrigger, captureUpdateTrigger, captureDeleteTrigger, captureKeyTrigger, captureRowTrigger, captureRowUpdateTrigger,
	captureTruncateTrigger, fenceSourceTrigger, fenceRowTrigger,
}

// isFence says whether a trigger of this name is a fence, which stays when capture goes.
func isFence(trigger string) bool { return trigger == fenceSourceTrigger || trigger == fenceRowTrigger }

// castPattern matches the casts that the server adds to a condition when it writes it down: to a comparison's own type.
var castPattern = regexp.MustCompile(`\)::(?:character varying|timestamp with(?:out)? time zone|time without time zone|\w+)(?:\(\d+\))?`)

// settleCondition makes a condition as it was written comparable with the server's rendering of it.
func settleCondition(condition string) string {
	return normaliseCondition(castPattern.ReplaceAllString(plainNames(condition), ")"))
}

// capturing says whether some trigger that writes the table's log fires.
func (f *foundSource) capturing() bool {
	return slices.ContainsFunc(f.relations, func(r foundSourceRelation) bool {
		for name, t := range r.triggers {
			if !isFence(name) && t.enabled != firesNever {
				return true
			}
		}
		return false
	})
}

// writesRows says whether some trigger that writes the table's changes, beside TRUNCATE, fires.
func (f *foundSource) writesRows() bool {
	return slices.ContainsFunc(f.relations, func(r foundSourceRelation) bool {
		for name, t := range r.triggers {
			if !isFence(name) && name != captureTruncateTrigger && t.enabled != firesNever {
				return true
			}
		}
		return false
	})
}

// logsTruncate says whether a TRUNCATE of the table, and of each of its partitions alone, is logged as it should be.
func (f *foundSource) logsTruncate() bool {
	want := captured{table: f.table}.truncateTrigger()
	return !slices.ContainsFunc(f.relations, func(r foundSourceRelation) bool {
		t, exists := r.triggers[want.name]
		return !exists || len(want.differences(t, true)) > 0
	})
}

// fenced says whether the table has a fence of its own.
func (f *foundSource) fenced() bool {
	return slices.ContainsFunc(f.relations, func(r foundSourceRelation) bool {
		_, statement := r.triggers[fenceSourceTrigger]
		_, row := r.triggers[fenceRowTrigger]
		return statement || row
	})
}

// enforced is the highest minimum that a fence on the table has, -1 if it has none.
func (f *foundSource) enforced() int64 {
	enforced := int64(-1)
	for _, r := range f.relations {
		for name, t := range r.triggers {
			if isFence(name) {
				enforced = max(enforced, foundTrigger{arguments: t.arguments}.minimum())
			}
		}
	}
	return enforced
}

// changes describes the state of each trigger that writes the log, for the fingerprint of a source: whoever switches one off and on again
// changes it, because the transaction that last changed the trigger is part of it.
func (f *foundSource) changes() []string {
	var changes []string
	for _, r := range f.relations {
		for _, name := range sourceTriggerNames {
			if t, ok := r.triggers[name]; ok && !isFence(name) {
				changes = append(changes, fmt.Sprintf("%d %s %d %s %s %s", r.oid, name, t.kind, t.function, t.enabled, t.change))
			}
		}
	}
	return changes
}
