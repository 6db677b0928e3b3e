package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Identity tells this database from others: the cluster's system identifier, which a copy by dump and restore does not keep, and
// the names of database and schema. System is empty where the role may not read it.
func (s *Store) Identity(ctx context.Context) (storage.DatabaseIdentity, error) {
	var identity storage.DatabaseIdentity
	err := s.inTx(ctx, "identify "+s.address, txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		identity, err = s.identityIn(ctx, tx)
		return err
	})
	return identity, err
}

// identityIn is Identity inside a transaction.
func (s *Store) identityIn(ctx context.Context, q querier) (storage.DatabaseIdentity, error) {
	identity := storage.DatabaseIdentity{Schema: s.schemaName}
	err := q.QueryRow(ctx, `SELECT current_database()::text, 'PostgreSQL ' || current_setting('server_version')`).
		Scan(&identity.Database, &identity.Server)
	if err != nil {
		return identity, err
	}
	identity.System, err = systemIdentifier(ctx, q)
	return identity, err
}

// systemIdentifier is the number that initdb gave the cluster. Everybody may read it, unless that right was taken away.
func systemIdentifier(ctx context.Context, q querier) (string, error) {
	const what = "read the system identifier"
	var allowed bool
	err := q.QueryRow(ctx, `SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')`).Scan(&allowed)
	if err != nil || !allowed {
		return "", translate(err, what)
	}
	var system string
	err = q.QueryRow(ctx, `SELECT system_identifier::text FROM pg_catalog.pg_control_system()`).Scan(&system)
	return system, translate(err, what)
}
