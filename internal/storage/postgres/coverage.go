package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
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
// milliseconds. note says so, or that somebody else is building it, or that it could not be built now, or is "".
//
// A build waits for transactions that are older, a long report too. While it does, a program that starts and asks for an index of its own
// on the log waits for it, and behind that program every writer. So no wait is longer than wait; an index that is given up is built with
// the next barrier, and without it all is right, but slow. Errors: CodeCancelled after ten minutes.
func (s *Store) ensureCoverageIndex(ctx context.Context, wait time.Duration) (note string, err error) {
	what := "build the index " + coverageIndex
	o := txOptions{statementTimeout: coverageBuildTimeout}
	err = s.inTx(ctx, what, o, func(ctx context.Context, tx pgx.Tx) error {
		state, err := s.readCoverage(ctx, tx)
		if err != nil || state.done() {
			return err
		}
		// Two builds at once wait for each other's snapshots and table lock, a deadlock. This transaction holds the lock for the builder; it
		// has no snapshot while it is idle, so the build does not wait for it.
		var first bool
		err = tx.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended($1::text, 0))`, "syncbarrier index "+s.schema).Scan(&first)
		if err != nil {
			return err
		}
		if !first {
			note = "the index " + coverageIndex + " is being built by somebody else"
			return nil
		}
		if state, err = s.readCoverage(ctx, tx); err != nil || state.done() {
			return err
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", milliseconds(coverageBuildTimeout))); err != nil {
			return err
		}
		note = state.note()
		return s.buildCoverage(ctx, state, wait)
	})
	if storage.CodeOf(err) == storage.CodeLockTimeout {
		return fmt.Sprintf("the index %s is not built yet, because transactions that are older did not end within %s; until it is, questions about the log are slow",
			coverageIndex, wait), nil
	}
	if err != nil {
		return "", err
	}
	return note, nil
}

// buildCoverage builds what is missing, on a connection of its own: CONCURRENTLY runs in no transaction, so its limits are set for the
// session, which nobody is to inherit. Behind a pooler nothing can be set for a session; there the context is the limit.
func (s *Store) buildCoverage(ctx context.Context, state coverageState, wait time.Duration) error {
	what := "build the index " + coverageIndex
	ctx, cancel := context.WithTimeout(ctx, coverageBuildTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return s.connectError(err, what)
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = conn.Close(bounded) // the work is done or has failed; how the connection ends changes nothing
	}()
	s.allow(conn, coverageBuildTimeout)
	if !s.pooled {
		limits := fmt.Sprintf("SET lock_timeout = %d; SET statement_timeout = %d; SET search_path = %s, pg_temp",
			milliseconds(wait), milliseconds(coverageBuildTimeout), s.schema)
		if _, err := conn.Exec(ctx, limits); err != nil {
			return translate(err, what)
		}
	}
	for _, statement := range state.statements(s) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return lockError(err, what, "sync_changes")
		}
	}
	return nil
}

// coverageState is what there is of the index.
type coverageState struct {
	table       bool // sync_changes exists
	partitioned bool
	valid       bool // the index is there and complete
	leftover    bool // it is there and not
	leaves      []coverageLeaf
}

// coverageLeaf is a partition of a partitioned log, named in full.
type coverageLeaf struct {
	table   string
	indexed bool
	invalid string // an index that an interrupted build left, or ""
}

func (c coverageState) done() bool { return !c.table || c.valid }

// note says what is not as on a plain table.
func (c coverageState) note() string {
	if !c.partitioned {
		return ""
	}
	return "sync_changes is partitioned: the index " + coverageIndex + " was built partition by partition, and writers waited while it was put on the parent"
}

// statements builds what is missing.
func (c coverageState) statements(s *Store) []string {
	var statements []string
	index := s.schema + "." + coverageIndex
	if !c.partitioned {
		if c.leftover {
			statements = append(statements, "DROP INDEX CONCURRENTLY IF EXISTS "+index)
		}
		return append(statements, fmt.Sprintf(coverageIndexSQL, "CONCURRENTLY", s.schema+".sync_changes"))
	}
	for _, leaf := range c.leaves {
		if leaf.invalid != "" {
			statements = append(statements, "DROP INDEX CONCURRENTLY IF EXISTS "+leaf.invalid)
		}
		if !leaf.indexed {
			statements = append(statements, "CREATE INDEX CONCURRENTLY ON "+leaf.table+"(partition, tbl, commit_seq)")
		}
	}
	if c.leftover {
		statements = append(statements, "DROP INDEX IF EXISTS "+index)
	}
	// It takes over the indexes of the partitions instead of building new ones.
	return append(statements, fmt.Sprintf(coverageIndexSQL, "", s.schema+".sync_changes"))
}

// readCoverage looks at the log's indexes. Any index over exactly these columns will do, whatever its name.
func (s *Store) readCoverage(ctx context.Context, q querier) (coverageState, error) {
	var state coverageState
	rows, err := q.Query(ctx, `
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
		       coalesce(pg_catalog.max(pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(x.relname)) FILTER (WHERE NOT i.indisvalid), '')
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
		 GROUP BY 1, 2, 3
		 ORDER BY 1 DESC, 3`, s.schemaName)
	if err != nil {
		return state, err
	}
	var root, partitioned, valid bool
	var table, invalid string
	_, err = pgx.ForEachRow(rows, []any{&root, &partitioned, &table, &valid, &invalid}, func() error {
		if root {
			state.table, state.partitioned, state.valid, state.leftover = true, partitioned, valid, invalid != ""
			return nil
		}
		state.leaves = append(state.leaves, coverageLeaf{table: table, indexed: valid, invalid: invalid})
		return nil
	})
	return state, err
}
