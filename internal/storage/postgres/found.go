package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// foundCatalog is what a database schema has of what we install.
type foundCatalog struct {
	protocol  int    // sync_barrier_owner.protocol; 0: there is no catalog
	revision  string // catalogRevision of the build that installed fence and guards; "": unknown
	role      string // who we are
	owner     string // the role that owns the catalog, and must own the functions
	relations map[string]foundRelation
	version   bool // sync_commits has its column writer_version
	countable bool // and it holds whole numbers
	functions map[string]foundFunction
	triggers  []foundTrigger
	minimum   foundMinimum
}

// foundMinimum is what says which writers are accepted.
type foundMinimum struct {
	forAll  *int64 // the row '*' of sync_writer_fence
	history int64  // the highest minimum in sync_barrier_history
}

type foundRelation struct {
	name, kind, owner string
	unlogged          bool
	policies          bool // row security applies to the functions' owner
	forced            bool // because it is forced
	rights            bool // the functions' owner may do with it what they do
	hidden            bool // row security applies to us: a read is an error
}

type foundFunction struct {
	body, owner, language, volatility, comment string
	definer                                    bool
	settings                                   []string
	grantees                                   []string // beside the owner
}

// foundTrigger is one trigger on a guarded table or on a partition of it.
type foundTrigger struct {
	root       string // the guarded table
	relation   string // the table it is on, named in full
	isRoot     bool
	name       string // "": the table has no trigger at all
	kind       int16
	enabled    string
	function   string // of our schema; of others "schema.name"
	arguments  []string
	when       string
	columns    bool // limited to some columns
	constraint bool
}

// readable says whether a table is there and no policy keeps its rows from us.
func (f foundCatalog) readable(name string) bool {
	return f.hasTable(name) && !f.relations[name].hidden
}

// hasTable says whether a table is there.
func (f foundCatalog) hasTable(name string) bool {
	relation, ok := f.relations[name]
	return ok && strings.Contains("rp", relation.kind)
}

// readCatalog reads all of it. It takes no lock that anybody could wait for.
func (s *Store) readCatalog(ctx context.Context, q querier) (foundCatalog, error) {
	var found foundCatalog
	for _, read := range []func(context.Context, querier, *foundCatalog) error{
		s.readProtocol, s.readRelations, s.readFunctions, s.readTriggers, s.readMinimum,
	} {
		if err := read(ctx, q, &found); err != nil {
			return foundCatalog{}, translate(err, "read the catalog of "+s.address+" schema "+s.schemaName)
		}
	}
	return found, nil
}

func (s *Store) readProtocol(ctx context.Context, q querier, found *foundCatalog) error {
	var err error
	if found.protocol, err = s.catalogProtocol(ctx, q); err != nil {
		return err
	}
	return q.QueryRow(ctx, `SELECT current_user::text`).Scan(&found.role)
}

// catalogProtocol reads the number of the catalog, 0 if there is none. Errors: those of the connection.
func (s *Store) catalogProtocol(ctx context.Context, q querier) (int, error) {
	const what = "read the catalog's protocol number"
	var exists bool
	err := q.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT
			  FROM pg_catalog.pg_class AS c
			  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
			 WHERE n.nspname = $1::text
			   AND c.relname = 'sync_barrier_owner'
			   AND c.relkind = 'r')`, s.schemaName).Scan(&exists)
	if err != nil || !exists {
		return 0, translate(err, what)
	}
	var protocol int
	err = q.QueryRow(ctx, s.sql(`SELECT protocol FROM {schema}.sync_barrier_owner WHERE id = 1`)).Scan(&protocol)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return protocol, translate(err, what)
}

// readRelations finds the tables, indexes and sequences of catalog.sql. The rights are those that the functions use: the fence locks
// and makes partition rows, the guards read.
func (s *Store) readRelations(ctx context.Context, q querier, found *foundCatalog) error {
	names := []string{coverageIndex}
	for _, relation := range declaredRelations {
		names = append(names, relation.name)
	}
	rows, err := q.Query(ctx, `
		WITH catalog_owner AS (
			SELECT c.relowner AS oid
			  FROM pg_catalog.pg_class AS c
			  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
			 WHERE n.nspname = $1::text
			   AND c.relname = 'sync_barrier_owner'
		), definer AS (
			SELECT r.oid, r.rolname, r.rolsuper, r.rolbypassrls
			  FROM pg_catalog.pg_roles AS r
			 WHERE r.oid = coalesce((SELECT oid FROM catalog_owner), (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user))
		)
		SELECT c.relname::text, c.relkind::text, pg_catalog.pg_get_userbyid(c.relowner)::text, c.relpersistence = 'u',
		       c.relrowsecurity AND NOT d.rolsuper AND NOT d.rolbypassrls
		         AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(d.oid, c.relowner, 'USAGE')),
		       c.relforcerowsecurity,
		       CASE
		         WHEN c.relkind = 'S' THEN pg_catalog.has_sequence_privilege(d.oid, c.oid, 'USAGE')
		         WHEN c.relkind NOT IN ('r', 'p') THEN true
		         WHEN c.relname = 'sync_partitions' THEN pg_catalog.has_table_privilege(d.oid, c.oid, 'SELECT')
		           AND pg_catalog.has_table_privilege(d.oid, c.oid, 'INSERT') AND pg_catalog.has_table_privilege(d.oid, c.oid, 'UPDATE')
		         ELSE pg_catalog.has_table_privilege(d.oid, c.oid, 'SELECT')
		       END,
		       pg_catalog.row_security_active(c.oid),
		       d.rolname::text,
		       c.relname = 'sync_commits' AND EXISTS (
		         SELECT
		           FROM pg_catalog.pg_attribute AS a
		          WHERE a.attrelid = c.oid
		            AND a.attname = 'writer_version'
		            AND NOT a.attisdropped),
		       c.relname = 'sync_commits' AND EXISTS (
		         SELECT
		           FROM pg_catalog.pg_attribute AS a
		           JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
		          WHERE a.attrelid = c.oid
		            AND a.attname = 'writer_version'
		            AND NOT a.attisdropped
		            AND coalesce(nullif(t.typbasetype, 0), t.oid)
		                IN ('pg_catalog.int2'::regtype, 'pg_catalog.int4'::regtype, 'pg_catalog.int8'::regtype))
		  FROM pg_catalog.pg_class AS c
		  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		 CROSS JOIN definer AS d
		 WHERE n.nspname = $1::text
		   AND c.relname = ANY($2::text[])`, s.schemaName, names)
	if err != nil {
		return err
	}
	found.relations = map[string]foundRelation{}
	var relation foundRelation
	var version, countable bool
	_, err = pgx.ForEachRow(rows, []any{&relation.name, &relation.kind, &relation.owner, &relation.unlogged, &relation.policies,
		&relation.forced, &relation.rights, &relation.hidden, &found.owner, &version, &countable}, func() error {
		found.relations[relation.name] = relation
		found.version = found.version || version
		found.countable = found.countable || countable
		return nil
	})
	return err
}

func (s *Store) readFunctions(ctx context.Context, q querier, found *foundCatalog) error {
	var names []string
	for _, function := range declaredFunctions {
		names = append(names, function.name)
	}
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
		   AND p.proname = ANY($2::text[])
		   AND p.pronargs = 0`, s.schemaName, names)
	if err != nil {
		return err
	}
	found.functions = map[string]foundFunction{}
	for rows.Next() {
		var name string
		var f foundFunction
		err := rows.Scan(&name, &f.body, &f.owner, &f.language, &f.volatility, &f.comment, &f.definer, &f.settings, &f.grantees)
		if err != nil {
			rows.Close()
			return err
		}
		found.functions[name] = f
	}
	for _, function := range declaredFunctions {
		if revision, _ := found.functions[function.name].installed(); revision != "" {
			found.revision = revision
			break
		}
	}
	return rows.Err()
}

// readTriggers reads all triggers on the guarded tables and their partitions, whosever they are. Those that the server makes for
// foreign keys are left out; on PostgreSQL 14 it marks the copies on partitions as its own too.
func (s *Store) readTriggers(ctx context.Context, q querier, found *foundCatalog) error {
	rows, err := q.Query(ctx, `
		WITH guarded AS (
			SELECT c.oid, c.relname
			  FROM pg_catalog.pg_class AS c
			  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
			 WHERE n.nspname = $1::text
			   AND c.relname = ANY($2::text[])
			   AND c.relkind IN ('r', 'p')
		), tree AS (
			SELECT g.relname AS root, g.oid AS relation, true AS is_root
			  FROM guarded AS g
			UNION ALL
			SELECT g.relname, t.relid, false
			  FROM guarded AS g, pg_catalog.pg_partition_tree(g.oid) AS t
			 WHERE t.relid <> g.oid
		)
		SELECT tree.root::text, pg_catalog.format('%I.%I', n.nspname, c.relname), tree.is_root, coalesce(t.tgname::text, ''),
		       coalesce(t.tgtype, 0), coalesce(t.tgenabled::text, ''),
		       CASE
		         WHEN p.oid IS NULL THEN ''
		         WHEN fn.nspname = $1::text THEN p.proname::text
		         ELSE pg_catalog.format('%I.%I', fn.nspname, p.proname)
		       END,
		       coalesce(t.tgargs, ''::bytea), coalesce(pg_catalog.pg_get_triggerdef(t.oid), ''),
		       coalesce(pg_catalog.cardinality(t.tgattr::int2[]) > 0, false),
		       coalesce(t.tgconstraint <> 0, false)
		  FROM tree
		  JOIN pg_catalog.pg_class AS c ON c.oid = tree.relation
		  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		  LEFT JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = tree.relation AND NOT (t.tgisinternal AND t.tgconstraint <> 0)
		  LEFT JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
		  LEFT JOIN pg_catalog.pg_namespace AS fn ON fn.oid = p.pronamespace
		 ORDER BY tree.root, tree.is_root DESC, 2, t.tgname`, s.schemaName, guardedTables())
	if err != nil {
		return err
	}
	for rows.Next() {
		var t foundTrigger
		var arguments []byte
		var definition string
		err := rows.Scan(&t.root, &t.relation, &t.isRoot, &t.name, &t.kind, &t.enabled, &t.function, &arguments, &definition, &t.columns, &t.constraint)
		if err != nil {
			rows.Close()
			return err
		}
		if len(arguments) > 0 {
			t.arguments = strings.Split(strings.TrimSuffix(string(arguments), "\x00"), "\x00")
		}
		t.when = conditionOf(definition)
		found.triggers = append(found.triggers, t)
	}
	return rows.Err()
}

// conditionOf finds the condition in the server's rendering of a trigger.
func conditionOf(definition string) string { return normaliseCondition(whenOf(definition)) }

// whenOf is the condition as the server writes it, but for the names in it (plainNames), which may be those of tables and arguments that look like
// one.
func whenOf(definition string) string {
	head, _, _ := strings.Cut(plainNames(definition), " EXECUTE FUNCTION ")
	_, condition, _ := strings.Cut(head, " WHEN (")
	return strings.TrimSuffix(condition, ")")
}

// readMinimum reads what was recorded of the fence. Tables that are missing or hidden have nothing to say.
func (s *Store) readMinimum(ctx context.Context, q querier, found *foundCatalog) error {
	if found.readable("sync_writer_fence") {
		err := q.QueryRow(ctx, s.sql(`
			SELECT max(required_writer_version)::bigint
			  FROM {schema}.sync_writer_fence
			 WHERE partition = $1::text`), storage.AllPartitions).Scan(&found.minimum.forAll)
		if err != nil {
			return err
		}
	}
	if !found.readable("sync_barrier_history") {
		return nil
	}
	return q.QueryRow(ctx, s.sql(`
		SELECT coalesce(max(min_writer_version), 0)::bigint
		  FROM {schema}.sync_barrier_history`)).Scan(&found.minimum.history)
}
