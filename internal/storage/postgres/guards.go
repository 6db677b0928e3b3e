package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The comment on a function of ours says which revision it is of and what its body was, so that another release of Syncbarrier can tell
// a function that is merely older from one that somebody changed.
const (
	revisionComment = "Installed by Syncbarrier, revision "
	bodyComment     = ", body "
)

func (s *Store) commentOn(function declaredFunction) string {
	return revisionComment + catalogRevision + bodyComment + revisionOf(s.sql(function.body))
}

// installed takes a function's comment apart.
func (f foundFunction) installed() (revision, body string) {
	text, ok := strings.CutPrefix(f.comment, revisionComment)
	if !ok {
		return "", ""
	}
	revision, body, _ = strings.Cut(text, bodyComment)
	return revision, body
}

// ofOtherRelease says whether another release of Syncbarrier installed what is there.
func (f foundCatalog) ofOtherRelease() bool { return f.revision != "" && f.revision != catalogRevision }

// installFunctions makes or replaces the functions that are not exactly as this build declares them. Others are left alone: replacing a
// function that is right would only make every session compile it again.
func (s *Store) installFunctions(ctx context.Context, tx pgx.Tx, found foundCatalog) ([]string, error) {
	var installed []string
	for _, declared := range declaredFunctions {
		function, exists := found.functions[declared.name]
		if exists && len(s.functionProblems(found, declared)) == 0 && function.body == s.sql(declared.body) && function.comment == s.commentOn(declared) {
			continue
		}
		if err := s.installFunction(ctx, tx, declared, found); err != nil {
			return nil, err
		}
		installed = append(installed, s.named(declared.name))
	}
	return installed, nil
}

// declarationOf is the statement that makes a function.
func (s *Store) declarationOf(function declaredFunction) string {
	return s.sql(function.sql, "body", quoteLiteral(s.sql(function.body)))
}

// installFunction makes one function and takes the right to execute it from everybody: whoever may execute it could attach it to a table of
// their own and write into the log by our rights.
func (s *Store) installFunction(ctx context.Context, tx pgx.Tx, function declaredFunction, found foundCatalog) error {
	what := "install the function " + s.functionName(function.name)
	if _, err := tx.Exec(ctx, s.declarationOf(function)); err != nil {
		return translate(err, what)
	}
	comment := fmt.Sprintf("COMMENT ON FUNCTION %s() IS %s", s.functionName(function.name), quoteLiteral(s.commentOn(function)))
	if _, err := tx.Exec(ctx, comment); err != nil {
		return translate(err, what)
	}
	owner := found.role
	if before, existed := found.functions[function.name]; existed {
		owner = before.owner // replacing leaves it
	}
	return s.secureFunction(ctx, tx, function.name, owner, found.owner)
}

// secureFunction gives a function of ours to the catalog's owner, if it has another one, and takes the right to execute it from
// everybody else.
func (s *Store) secureFunction(ctx context.Context, tx pgx.Tx, name, owner, catalogOwner string) error {
	what := "install the function " + s.functionName(name)
	if catalogOwner != "" && owner != catalogOwner {
		alter := fmt.Sprintf("ALTER FUNCTION %s() OWNER TO %s", s.functionName(name), quoteIdentifier(catalogOwner))
		if _, err := tx.Exec(ctx, alter); err != nil {
			return translate(err, what+": give it to "+catalogOwner)
		}
	}
	// Default privileges may have granted at once, and replacing keeps what was granted.
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END
		  FROM pg_catalog.pg_proc AS p,
		       pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) AS a
		 WHERE p.oid = $1::text::regprocedure
		   AND a.grantee <> p.proowner`, s.functionName(name)+"()")
	if err != nil {
		return translate(err, what+": read its rights")
	}
	grantees, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return translate(err, what+": read its rights")
	}
	for _, grantee := range grantees {
		revoke := fmt.Sprintf("REVOKE ALL ON FUNCTION %s() FROM %s CASCADE", s.functionName(name), grantee)
		if _, err := tx.Exec(ctx, revoke); err != nil {
			return translate(err, what+": revoke from "+grantee)
		}
	}
	return nil
}

func (s *Store) functionName(name string) string { return s.schema + "." + quoteIdentifier(name) }

// installTriggers makes or replaces the triggers that are not as declared, the fence's with the given minimum.
func (s *Store) installTriggers(ctx context.Context, tx pgx.Tx, found foundCatalog, minimum int64) ([]string, error) {
	var installed []string
	for _, declared := range declaredTriggers {
		declared = declared.withMinimum(minimum)
		findings := s.triggerProblems(found, declared)
		if len(findings) == 0 && !found.ofOtherRelease() {
			continue
		}
		if err := s.removeConstraintTrigger(ctx, tx, found, declared); err != nil {
			return nil, err
		}
		if err := s.installTrigger(ctx, tx, declared); err != nil {
			return nil, err
		}
		for _, finding := range findings {
			installed = append(installed, finding.Object)
		}
	}
	return installed, nil
}

// removeConstraintTrigger drops what stands in the place of our trigger as a constraint trigger, which cannot be replaced. The table is
// locked until COMMIT, so nobody writes in between.
func (s *Store) removeConstraintTrigger(ctx context.Context, tx pgx.Tx, found foundCatalog, declared declaredTrigger) error {
	for _, t := range found.triggers {
		if t.isRoot && t.root == declared.table && t.name == declared.name && t.constraint {
			drop := fmt.Sprintf("DROP TRIGGER %s ON %s", quoteIdentifier(t.name), t.relation)
			if _, err := tx.Exec(ctx, drop); err != nil {
				return lockError(err, "drop the constraint trigger "+t.name, t.root)
			}
		}
	}
	return nil
}

// functionProblems says how a function differs from its declaration, or from what another release installed.
func (s *Store) functionProblems(found foundCatalog, declared declaredFunction) []string {
	function, ok := found.functions[declared.name]
	if !ok {
		return []string{"is missing"}
	}
	var problems []string
	note := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	revision, body := function.installed()
	if revision == "" || revision == catalogRevision {
		body = revisionOf(s.sql(declared.body))
	}
	note(revisionOf(function.body) != body, "has another body than was installed")
	note(function.language != "plpgsql", "is written in %s", function.language)
	note(function.volatility != "v", "is not VOLATILE, so it reads with an old snapshot")
	note(!function.definer, "is not SECURITY DEFINER, so it runs with the writer's rights")
	note(!sameSettings(function.settings), "has other settings than search_path = pg_catalog, pg_temp and row_security = off: %v", function.settings)
	note(found.owner != "" && function.owner != found.owner, "belongs to the role %s and not to %s, who owns the catalog", function.owner, found.owner)
	for _, grantee := range function.grantees {
		note(true, "may be executed by %s, who could attach it to a table of their own", grantee)
	}
	return problems
}

func sameSettings(settings []string) bool {
	want := map[string]bool{"search_path=pg_catalog, pg_temp": true, "row_security=off": true}
	for _, setting := range settings {
		if !want[setting] {
			return false
		}
	}
	return len(settings) == len(want)
}

// triggerProblems says how a trigger differs from its declaration, on its table and on each partition of it.
func (s *Store) triggerProblems(found foundCatalog, declared declaredTrigger) []storage.FenceFinding {
	var findings []storage.FenceFinding
	for _, relation := range found.relationsOf(declared.table) {
		if !relation.isRoot && !declared.perRow() {
			continue // statement triggers are on the parent alone
		}
		object := fmt.Sprintf("trigger %s on %s", declared.name, relation.name)
		for _, problem := range triggerDifferences(relation.triggers[declared.name], declared, found.ofOtherRelease()) {
			findings = append(findings, storage.FenceFinding{Object: object, Problem: problem, Repairable: true})
		}
	}
	return findings
}

// guardedRelation is a guarded table or a partition of one, with its triggers.
type guardedRelation struct {
	name     string
	isRoot   bool
	triggers map[string]*foundTrigger
}

// relationsOf gives a guarded table, first, and its partitions.
func (f foundCatalog) relationsOf(table string) []guardedRelation {
	var relations []guardedRelation
	for i := range f.triggers {
		t := &f.triggers[i]
		if t.root != table {
			continue
		}
		if len(relations) == 0 || relations[len(relations)-1].name != t.relation {
			relations = append(relations, guardedRelation{name: t.relation, isRoot: t.isRoot, triggers: map[string]*foundTrigger{}})
		}
		if t.name != "" {
			relations[len(relations)-1].triggers[t.name] = t
		}
	}
	return relations
}

// triggerDifferences says how one trigger differs. Of another release's guards only that they fire is known; the fence is always the
// same.
func triggerDifferences(found *foundTrigger, declared declaredTrigger, ofOtherRelease bool) []string {
	lenient := ofOtherRelease && declared.name != fenceTrigger
	switch {
	case found == nil && lenient:
		return nil
	case found == nil:
		return []string{"is missing"}
	}
	var problems []string
	note := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	modes := map[string]string{"D": "is disabled", "O": "does not fire for sessions with session_replication_role = replica",
		"R": "fires only for sessions with session_replication_role = replica"}
	note(found.enabled != "A", "%s", modes[found.enabled])
	note(found.constraint, "is a constraint trigger, so it can be deferred")
	if lenient {
		return problems
	}
	note(found.kind != declared.kind, "fires on other events than declared")
	note(found.function != declared.function, "calls the function %s", found.function)
	note(found.when != declared.when, "has another condition than declared")
	note(found.columns, "fires only for some columns")
	if declared.name == fenceTrigger && len(declared.arguments) == 1 {
		note(found.minimum() < 0, "has no minimum version as its argument")
		note(found.minimum() >= 0 && fmt.Sprint(found.minimum()) != declared.arguments[0], "enforces version %d, required is %s",
			found.minimum(), declared.arguments[0])
	} else {
		note(fmt.Sprint(found.arguments) != fmt.Sprint(declared.arguments), "has the arguments %v instead of %v", found.arguments, declared.arguments)
	}
	return problems
}
