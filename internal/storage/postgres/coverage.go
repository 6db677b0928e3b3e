package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// coverageIndex answers "is there a change of these tables above this position?" with one descent of the tree, whatever the
// age of the position; by the protocol's own index (partition, commit_seq, tbl, idx) it is a scan of all the log above it.
const coverageIndex = "syncbarrier_changes_by_table"

// coverageIndexSQL takes CONCURRENTLY or nothing, and the table.
const coverageIndexSQL = `CREATE INDEX %s IF NOT EXISTS syncbarrier_changes_by_table ON %s(partition, tbl, commit_seq)`

// coverageBuildTimeout bounds the building of the index. It keeps nobody from writing; it only waits for transactions that are older.
const coverageBuildTimeout = 10 * time.Minute

// ensureCoverageIndex builds the index for coverage questions on a log that exists already, without keeping anybody from writing: so
// not in the barrier's transaction but before it. An invalid one that an interrupted build left is dropped first. Where the log does
// not exist yet, ensureCatalog makes table and index.
//
// A partitioned log gets the index on each partition, CONCURRENTLY, and then on the parent, for which writers wait some
// milliseconds. note says so, or that somebody else is building it, or is "". Without the index all is right, but slow: an error need
// not stop a barrier. Errors: CodeLockTimeout, CodeCancelled after ten minutes.
func (s *Store) ensureCoverageIndex(ctx context.Context) (note string, err error) {
	what := "build the index " + coverageIndex
	state, err := s.readCoverage(ctx)
	if err != nil || state.done() {
		return "", err
	}
	if state.busy {
		// Whoever builds it or vacuums the table holds this lock. To wait for them is not worth a barrier's time.
		return "the index " + coverageIndex + " is missing, and the log is being vacuumed or indexed by somebody else; the next barrier looks again", nil
	}
	ctx, cancel := context.WithTimeout(ctx, coverageBuildTimeout)
	defer cancel()
	conn, err := s.acquire(ctx, what)
	if err != nil {
		return "", err
	}
	// The settings below are the session's, because CONCURRENTLY runs in no transaction of ours: nobody is to inherit them.
	defer release(ctx, conn, true)
	if err := s.setForBuild(ctx, conn); err != nil {
		return "", translate(err, what)
	}
	for _, statement := range state.statements(s) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return "", lockError(err, what, "sync_changes")
		}
	}
	if !state.partitioned {
		return "", nil
	}
	return "sync_changes is partitioned: the index " + coverageIndex + " was built partition by partition, and writers waited while it was put on the parent", nil
}

// setForBuild bounds waits. Behind a pooler nothing can be set for a session; there the context is the bound.
func (s *Store) setForBuild(ctx context.Context, conn *pgxpool.Conn) error {
	if s.pooled {
		return nil
	}
	// A build waits for transactions older than itself, which hold no lock that anybody queues behind.
	_, err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = %[1]d; SET statement_timeout = %[1]d; SET row_security = off; SET search_path = %[2]s, pg_temp",
		milliseconds(coverageBuildTimeout), s.schema))
	return err
}

// coverageState is what there is of the index.
type coverageState struct {
	table       bool // sync_changes exists
	partitioned bool
	valid       bool // the index is there and complete
	leftover    bool // it is there and not
	busy        bool // somebody builds an index on the log, or vacuums it
	leaves      []coverageLeaf
}

// coverageLeaf is a partition of a partitioned log, named in full.
type coverageLeaf struct {
	table   string
	indexed bool
	invalid string // an index that an interrupted build left, or ""
}

func (c coverageState) done() bool { return !c.table || c.valid }

// statements builds what is missing.
func (c coverageState) statements(s *Store) []string {
	var statements []string
	index := s.schema + "." + coverageIndex
	if !c.partitioned {
		if c.leftover {
			statements = append(statements, "DROP INDEX CONCURRENTLY IF EXISTS "+index)
		}
		return append(statements, s.sql(fmt.Sprintf(coverageIndexSQL, "CONCURRENTLY", "{schema}.sync_changes")))
	}
	for _, leaf := range c.leaves {
		if leaf.invalid != "" {
			statements = append(statements, "DROP INDEX CONCURRENTLY IF EXISTS "+leaf.invalid)
		}
		if !leaf.indexed {
			statements = append(statements, "CREATE INDEX CONCURRENTLY ON "+leaf.table+"(partition, tbl, commit_seq)")
		}
	}
	// It takes over the indexes of the partitions instead of building new ones.
	return append(statements, s.sql(fmt.Sprintf(coverageIndexSQL, "", "{schema}.sync_changes")))
}

// readCoverage looks at the log's indexes. Any index over exactly these columns will do, whatever its name.
func (s *Store) readCoverage(ctx context.Context) (coverageState, error) {
	var state coverageState
	err := s.inTx(ctx, "look for the index "+coverageIndex, txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		state = coverageState{}
		rows, err := tx.Query(ctx, `
			WITH log AS (
				SELECT c.oid, c.relkind
				  FROM pg_catalog.pg_class AS c
				  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
				 WHERE n.nspname = $1::text
				   AND c.relname = 'sync_changes'
				   AND c.relkind IN ('r', 'p')
			), tables AS (
				SELECT oid AS relation, relkind = 'p' AS partitioned, true AS is_root
				  FROM log
				UNION ALL
				SELECT t.relid, false, false
				  FROM log, pg_catalog.pg_partition_tree(log.oid) AS t
				 WHERE t.isleaf
				   AND t.relid <> log.oid
			)
			SELECT tables.is_root, tables.partitioned, pg_catalog.format('%I.%I', n.nspname, c.relname),
			       coalesce(pg_catalog.bool_or(i.indisvalid), false),
			       coalesce(pg_catalog.max(pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(x.relname)) FILTER (WHERE NOT i.indisvalid), ''),
			       EXISTS (
			         SELECT
			           FROM pg_catalog.pg_locks AS l
			          WHERE l.relation = c.oid
			            AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
			            AND l.mode = 'ShareUpdateExclusiveLock')
			  FROM tables
			  JOIN pg_catalog.pg_class AS c ON c.oid = tables.relation
			  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
			  LEFT JOIN pg_catalog.pg_index AS i
			    ON i.indrelid = c.oid
			   AND i.indpred IS NULL
			   AND i.indexprs IS NULL
			   AND ARRAY(
			         SELECT a.attname::text
			           FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
			           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
			          ORDER BY k.place) = ARRAY['partition', 'tbl', 'commit_seq']
			  LEFT JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
			 GROUP BY 1, 2, 3, c.oid
			 ORDER BY 1 DESC, 3`, s.schemaName)
		if err != nil {
			return err
		}
		var root, partitioned, valid, busy bool
		var table, invalid string
		_, err = pgx.ForEachRow(rows, []any{&root, &partitioned, &table, &valid, &invalid, &busy}, func() error {
			state.busy = state.busy || busy
			if root {
				state.table, state.partitioned, state.valid, state.leftover = true, partitioned, valid, invalid != ""
				return nil
			}
			state.leaves = append(state.leaves, coverageLeaf{table: table, indexed: valid, invalid: invalid})
			return nil
		})
		return err
	})
	return state, err
}
