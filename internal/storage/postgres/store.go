package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

var _ storage.Store = (*Store)(nil)

// Store is one schema of a PostgreSQL database that carries a barrier. Open makes it, or Database.Store.
type Store struct {
	*connections
	alone        bool   // nobody else has these connections: they end with the Store
	schema       string // the quoted identifier, as it stands in SQL text
	schemaName   string // the bare name, as it stands in the system catalogs
	queries      map[string]storage.RegisteredQuery
	writerSample time.Duration // how long a plan looks at the writers
	backfills    backfillMemory
}

// querier is what reads and writes have in common, inside a transaction or on the pool.
type querier interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
}

// sqlText is SQL of ours with places in braces. Only constants and embedded files are any: a name or a value of the user's may look like a place,
// so a string is not taken for one by itself.
type sqlText string

// sql puts the quoted name of the database schema in the place of {schema}, and the same as a text literal in that of {schema_text}. More
// places are given in pairs: the word in braces, and the SQL that stands there. All are filled in one go, so nothing is looked for in what
// was put in.
func (s *Store) sql(text sqlText, places ...string) string {
	pairs := []string{"{schema}", s.schema, "{schema_text}", quoteText(s.schema)}
	for i := 0; i < len(places); i += 2 {
		pairs = append(pairs, "{"+places[i]+"}", places[i+1])
	}
	return strings.NewReplacer(pairs...).Replace(string(text))
}

// named is the full name of a table or function of ours, for messages.
func (s *Store) named(name string) string { return s.schemaName + "." + name }

// Close ends all connections. A connection that is in use ends when its transaction does. It is idempotent. A Store that a Database gave
// has no connections of its own, and closing it does nothing.
func (s *Store) Close() {
	if s.alone {
		s.pool.Close()
	}
}

// quoteIdentifier quotes a name for use in SQL text.
func quoteIdentifier(name string) string {
	return pgx.Identifier{name}.Sanitize()
}

// quoteLiteral quotes a text for use in SQL text, where a parameter cannot stand (a trigger's argument, utility statements). It holds
// with standard_conforming_strings on, which every transaction of ours sets.
func quoteLiteral(text string) string {
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}

// milliseconds writes a duration as PostgreSQL's settings take it. A duration above zero never becomes 0, which would mean no
// limit at all.
func milliseconds(d time.Duration) int64 {
	return max(1, d.Milliseconds())
}
