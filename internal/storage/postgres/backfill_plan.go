package postgres

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// backfillPlan is what a batch needs to know of a checkpoint. It is read once for each claim: the definition of a name never
// changes, and a table that changes under the claim is found by its fingerprint.
type backfillPlan struct {
	definition storage.Definition
	table      keyTable
	sources    []planSource
	path       string // search_path under which the user's SQL runs
	lock       string // how rows are locked before they are filled
	deferrable bool   // the user's SQL may leave checks to COMMIT

	// Of an update:
	set     string // SET list
	differs string // condition that a row does not have its values; "": they are other ones each time they are computed
	ownRow  bool   // its expressions read nothing but their own row
}

// planSource is a source with its key.
type planSource struct {
	storage.Source
	table keyTable
}

// name is the checkpoint's.
func (p *backfillPlan) name() string { return p.definition.Name }

func (p *backfillPlan) statement() *storage.Statement {
	return p.definition.Checkpoint.Backfill.Statement
}

// sourceTables are the names of the sources, sorted.
func (p *backfillPlan) sourceTables() []string {
	names := make([]string, len(p.sources))
	for i, source := range p.sources {
		names[i] = source.Table
	}
	slices.Sort(names)
	return names
}

// source finds a source by its table.
func (p *backfillPlan) source(table string) (planSource, bool) {
	for _, source := range p.sources {
		if source.Table == table {
			return source, true
		}
	}
	return planSource{}, false
}

// plan gives the plan of a claim, from memory if this process has read it before.
func (s *Store) plan(ctx context.Context, claim storage.Claim) (*backfillPlan, error) {
	if plan := s.backfills.plan(claim.Token); plan != nil {
		return plan, nil
	}
	var plan *backfillPlan
	what := fmt.Sprintf("read what checkpoint %q has to do", claim.Name)
	err := s.inTx(ctx, what, txOptions{}, func(ctx context.Context, tx pgx.Tx) (err error) {
		plan, err = s.readPlan(ctx, tx, claim.Name)
		return err
	})
	if storage.CodeOf(err) == storage.CodeCheckpointNotDeclared {
		return nil, storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q is not there any more: it was abandoned", claim.Name)
	}
	if err != nil {
		return nil, err
	}
	s.backfills.keep(claim.Token, plan)
	return plan, nil
}

// readPlan reads a plan inside a transaction. CodeInvalidSpec for a backfill that a program of the user's own does.
func (s *Store) readPlan(ctx context.Context, tx pgx.Tx, name string) (*backfillPlan, error) {
	definition, err := s.definitionIn(ctx, tx, name)
	if err != nil {
		return nil, err
	}
	if definition.Checkpoint.Backfill.External() {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "checkpoint %q is filled by a program of your own, not by SQL", name)
	}
	plan, err := s.readTables(ctx, tx, definition)
	if err != nil {
		return nil, err
	}
	plan.path = s.pathFor(plan)
	if update := definition.Checkpoint.Backfill.Update; update != nil {
		return plan, s.planUpdate(ctx, tx, plan, *update)
	}
	return plan, nil
}

// readExternalPlan is the plan of a backfill that a program of the user's own does: what its sources are, and no more.
func (s *Store) readExternalPlan(ctx context.Context, tx pgx.Tx, definition storage.Definition) (*backfillPlan, error) {
	plan := &backfillPlan{definition: definition}
	for _, source := range definition.Checkpoint.Sources {
		table, err := s.readSource(ctx, tx, plan, source)
		if err != nil {
			return nil, err
		}
		plan.sources = append(plan.sources, planSource{Source: source, table: table})
	}
	return plan, nil
}

// readTables begins a plan with the tables of a definition.
func (s *Store) readTables(ctx context.Context, tx pgx.Tx, definition storage.Definition) (plan *backfillPlan, err error) {
	plan = &backfillPlan{definition: definition, lock: "FOR NO KEY UPDATE", deferrable: true}
	if plan.table, err = s.readKeyTable(ctx, tx, definition.Table); err != nil {
		return nil, err
	}
	for _, source := range definition.Checkpoint.Sources {
		table, err := s.readSource(ctx, tx, plan, source)
		if err != nil {
			return nil, err
		}
		plan.sources = append(plan.sources, planSource{Source: source, table: table})
	}
	return plan, nil
}

func (s *Store) readSource(ctx context.Context, tx pgx.Tx, plan *backfillPlan, source storage.Source) (keyTable, error) {
	for _, declared := range plan.definition.SourceTables {
		if declared.Name == source.Table {
			return s.readKeyTable(ctx, tx, declared)
		}
	}
	return keyTable{}, storage.Refuse(storage.CodeContentDrift, "the stored definition of checkpoint %q does not know its source %q", plan.name(), source.Table)
}

// pathFor is where names in the user's SQL are looked for. The relation `batch` is a temporary table, so pg_temp comes first where
// there is one; schemas of key types come last, for their operators.
func (s *Store) pathFor(plan *backfillPlan) string {
	path := []string{s.schema}
	if plan.statement() != nil {
		path = []string{"pg_temp", s.schema}
	}
	known := map[string]bool{}
	tables := []keyTable{plan.table}
	for _, source := range plan.sources {
		tables = append(tables, source.table)
	}
	for _, table := range tables {
		for _, namespace := range table.namespace {
			if !known[namespace] {
				path = append(path, quoteIdentifier(namespace))
			}
			known[namespace] = true
		}
	}
	if plan.statement() == nil {
		path = append(path, "pg_temp")
	}
	return strings.Join(path, ", ")
}

// planUpdate prepares the SET list and learns what decides how the update may run.
func (s *Store) planUpdate(ctx context.Context, tx pgx.Tx, plan *backfillPlan, update storage.Update) error {
	columns := slices.Sorted(maps.Keys(update.Set))
	assignments := make([]string, len(columns))
	for i, column := range columns {
		assignments[i] = quoteIdentifier(column) + " = " + enclosed(update.Set[column])
	}
	plan.set = strings.Join(assignments, ",\n       ")

	// A column that a foreign key may point to is changed under the stronger row lock. Without it the row would be locked, and the
	// update would still wait for whoever refers to it.
	var referable bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = $1::oid AND tgdeferrable)
		       OR EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = $1::oid AND NOT indimmediate),
		EXISTS (
		  SELECT
		    FROM pg_catalog.pg_index i
		    JOIN pg_catalog.pg_attribute a
		      ON a.attrelid = i.indrelid
		     AND a.attnum = ANY (i.indkey::int2[])
		   WHERE i.indrelid = $1::oid
		     AND i.indisunique
		     AND i.indimmediate
		     AND i.indpred IS NULL
		     AND i.indexprs IS NULL
		     AND a.attname = ANY ($2::text[]))`, plan.table.oid, columns).Scan(&plan.deferrable, &referable)
	if err != nil {
		return fmt.Errorf("read the constraints of table %q: %w", update.Table, err)
	}
	if referable {
		plan.lock = "FOR UPDATE"
	}
	if plan.differs, err = s.planDifference(ctx, tx, plan, update); err != nil {
		return err
	}
	plan.ownRow, err = s.readsOwnRowOnly(ctx, tx, plan, update)
	return err
}

// unfilled is the end of a WHERE clause that leaves out rows which have their values.
func (p *backfillPlan) unfilled() string {
	if p.differs == "" {
		return ""
	}
	return "\n   AND " + p.differs
}

// planDifference gives the condition that a row does not have the values of an update, byte by byte: types without an operator for
// equality have one in this way too. "" if an expression is volatile, which the planner tells: it keeps the sub-query of such a
// one apart.
func (s *Store) planDifference(ctx context.Context, tx pgx.Tx, plan *backfillPlan, update storage.Update) (string, error) {
	types, err := targetTypes(ctx, tx, plan, update)
	if err != nil {
		return "", err
	}
	var have, want, aliased []string
	for i, column := range slices.Sorted(maps.Keys(update.Set)) {
		value := fmt.Sprintf("CAST(%s AS %s)", enclosed(update.Set[column]), types[column])
		have, want = append(have, quoteIdentifier(column)), append(want, value)
		aliased = append(aliased, fmt.Sprintf("%s AS c%d", value, i))
	}
	probe, err := tx.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer rollback(ctx, probe)
	if err := usePath(ctx, probe, plan.path); err != nil {
		return "", err
	}
	// By the extended protocol, where the text can be no more than one statement.
	explained := probe.Conn().PgConn().ExecParams(ctx, fmt.Sprintf("EXPLAIN (FORMAT JSON) SELECT FROM (SELECT %s FROM %s) AS filled WHERE c0 IS NULL",
		strings.Join(aliased, ", "), plan.table.sql), nil, nil, nil, nil).Read()
	switch err := explained.Err; {
	case sqlState(err) != "" && !isConnectionState(sqlState(err)):
		return "", nil // whoever runs the update says what is wrong with it
	case err != nil:
		return "", err
	case len(explained.Rows) != 1 || strings.Contains(string(explained.Rows[0][0]), `"Subquery Scan"`):
		return "", nil
	}
	return fmt.Sprintf("record_image_ne(ROW(%s), ROW(%s))", strings.Join(have, ", "), strings.Join(want, ", ")), nil
}

// targetTypes reads the types of the columns that an update sets.
func targetTypes(ctx context.Context, tx pgx.Tx, plan *backfillPlan, update storage.Update) (map[string]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod)
		  FROM pg_catalog.pg_attribute a
		 WHERE a.attrelid = $1::oid
		   AND a.attname = ANY ($2::text[])
		   AND a.attnum > 0
		   AND NOT a.attisdropped`, plan.table.oid, slices.Sorted(maps.Keys(update.Set)))
	if err != nil {
		return nil, fmt.Errorf("read the columns of table %q: %w", update.Table, err)
	}
	types := map[string]string{}
	var column, kind string
	_, err = pgx.ForEachRow(rows, []any{&column, &kind}, func() error {
		types[column] = kind
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the columns of table %q: %w", update.Table, err)
	}
	return types, nil
}

// enclosed puts an expression in parentheses of its own, whatever comment it ends with.
func enclosed(expression string) string { return "(" + expression + "\n)" }

// readsOthers are built-in functions that run a query or read large objects.
var readsOthers = regexp.MustCompile(`(?i)_to_xml|ts_stat|ts_rewrite|\blo_|\bloread`)

// readsOwnRowOnly asks the database what the expressions of an update depend on: a view of them knows each table, function and
// operator. Only if there is no sub-query and nothing but what PostgreSQL itself brings may one statement lock and fill
// rows at once: where a row had to be waited for, or was changed meanwhile, PostgreSQL computes the expression again from the row as
// it is now, but sees all other rows as they were when the statement began.
func (s *Store) readsOwnRowOnly(ctx context.Context, tx pgx.Tx, plan *backfillPlan, update storage.Update) (bool, error) {
	var expressions []string
	for i, column := range slices.Sorted(maps.Keys(update.Set)) {
		if readsOthers.MatchString(update.Set[column]) {
			return false, nil
		}
		expressions = append(expressions, fmt.Sprintf("%s AS c%d", enclosed(update.Set[column]), i))
	}
	probe, err := tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer rollback(ctx, probe)
	if err := usePath(ctx, probe, plan.path); err != nil {
		return false, err
	}
	_, err = probe.Exec(ctx, fmt.Sprintf("CREATE TEMPORARY VIEW syncbarrier_probe AS SELECT %s FROM %s",
		strings.Join(expressions, ", "), plan.table.sql))
	if sqlState(err) != "" && !isConnectionState(sqlState(err)) {
		return false, nil // no right to make one, or no expression for a view: then rows are locked first
	}
	if err != nil {
		return false, err
	}
	var ownRow bool
	err = probe.QueryRow(ctx, `
		SELECT bool_and(r.ev_action::text NOT LIKE '%{SUBLINK%')
		       AND NOT EXISTS (
		         SELECT
		           FROM pg_catalog.pg_depend d
		           JOIN pg_catalog.pg_rewrite v
		             ON v.oid = d.objid
		          WHERE d.classid = 'pg_catalog.pg_rewrite'::regclass
		            AND v.ev_class = 'pg_temp.syncbarrier_probe'::regclass
		            AND (d.refclassid IN ('pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass)
		                 OR d.refclassid = 'pg_catalog.pg_class'::regclass
		                    AND d.refobjid NOT IN ($1::oid, v.ev_class)))
		  FROM pg_catalog.pg_rewrite r
		 WHERE r.ev_class = 'pg_temp.syncbarrier_probe'::regclass`, plan.table.oid).Scan(&ownRow)
	return ownRow, err
}

func usePath(ctx context.Context, q querier, path string) error {
	_, err := q.Exec(ctx, "SELECT set_config('search_path', $1::text, true)", path)
	return err
}
