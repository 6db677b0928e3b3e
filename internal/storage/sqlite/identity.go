package sqlite

import (
	"context"
	"database/sql"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Identity tells this database from others. Its id is drawn with the catalog and kept in the file, so a copy of the file has it too; a
// file without our catalog has none.
func (s *Store) Identity(ctx context.Context) (identity storage.DatabaseIdentity, err error) {
	err = s.inTx(ctx, "identify "+s.path, false, func(ctx context.Context, tx *sql.Conn) error {
		identity, err = s.identityIn(ctx, tx)
		return err
	})
	return identity, err
}

// identityIn is Identity inside somebody's transaction.
func (s *Store) identityIn(ctx context.Context, q querier) (storage.DatabaseIdentity, error) {
	identity := storage.DatabaseIdentity{Database: s.file, Schema: "main"}
	objects, err := readObjects(ctx, q)
	if err != nil {
		return identity, err
	}
	recorded, err := readOwner(ctx, q, objects)
	if err != nil {
		return identity, err
	}
	identity.System = recorded.system
	var version string
	if err := q.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version); err != nil {
		return identity, translate(err, "ask for the version of SQLite")
	}
	identity.Server = "SQLite " + version
	return identity, nil
}
