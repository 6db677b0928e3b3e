package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// DeclareCheckpoint writes the rows, the definition and the fence of a checkpoint in one transaction, outside a barrier. It is possible
// only at the marker's version and while that version's gate is closed: with the gate open, programs already serve without it.
//
// Errors: CodeInvalidSpec, CodeInvalidSQL; CodeConflict for another version or an open gate; CodeContentDrift for a name that was used with
// another version or content.
func (s *Store) DeclareCheckpoint(ctx context.Context, checkpoint storage.Checkpoint, tables []storage.Table) (rows []storage.CheckpointRow, err error) {
	if err := storage.CheckDeclaration(checkpoint, tables); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("declare checkpoint %q", checkpoint.Name)
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		if exists, err := hasTable(ctx, tx, "sync_barrier_owner"); err != nil || !exists {
			return firstError(err, noVersion(checkpoint.Name))
		}
		known, err := s.checkName(ctx, tx, checkpoint)
		if err != nil {
			return err
		}
		if !known {
			if err := s.declareNow(ctx, tx, checkpoint, tables); err != nil {
				return err
			}
		}
		rows, err = collect(ctx, tx, scanCheckpoint, `
			SELECT `+checkpointColumns+`
			  FROM main.sync_backfill_checkpoints
			 WHERE name = ?1
			 ORDER BY partition`, checkpoint.Name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func noVersion(name string) error {
	return storage.Refuse(storage.CodeConflict, "checkpoint %q: this database has no schema version yet", name)
}

// checkName says whether this very checkpoint is declared already. A name belongs to its version and content for ever.
func (s *Store) checkName(ctx context.Context, tx *sql.Conn, c storage.Checkpoint) (declared bool, err error) {
	var version, recorded, foreign sql.NullInt64
	var hash sql.NullString
	var abandoned bool
	err = tx.QueryRowContext(ctx, `
		SELECT (SELECT version FROM main.sync_backfill_definitions WHERE name = ?1),
		       (SELECT hash FROM main.sync_backfill_definitions WHERE name = ?1),
		       (SELECT max(h.version)
		          FROM main.sync_barrier_history h
		          JOIN json_each(h.entries, '$.checkpoints') AS entry
		         WHERE entry.key = ?1),
		       (SELECT max(schema_version) FROM main.sync_backfill_checkpoints WHERE name = ?1),
		       EXISTS (
		         SELECT 1
		           FROM main.sync_backfill_progress
		          WHERE checkpoint = ?1
		            AND kind = 'abandoned')`, c.Name).Scan(&version, &hash, &recorded, &foreign, &abandoned)
	switch {
	case err != nil:
		return false, err
	case abandoned:
		return false, storage.Refuse(storage.CodeContentDrift, "the name %q was used and abandoned", c.Name).WithHint("give it a new name")
	case version.Valid && version.Int64 == c.Version && hash.String == c.Hash():
		return true, nil
	case version.Valid && version.Int64 == c.Version:
		return false, storage.Refuse(storage.CodeContentDrift, "checkpoint %q of version %d was declared with other content", c.Name, c.Version).
			WithHint("give it a new name")
	}
	for _, used := range []sql.NullInt64{version, recorded, foreign} {
		if used.Valid && used.Int64 != c.Version {
			return false, storage.Refuse(storage.CodeContentDrift, "the name %q belongs to version %d", c.Name, used.Int64).WithHint("give it a new name")
		}
	}
	return false, nil
}

func (s *Store) declareNow(ctx context.Context, tx *sql.Conn, c storage.Checkpoint, tables []storage.Table) error {
	gate, err := s.gateIn(ctx, tx, c.Version, "")
	switch {
	case err != nil:
		return err
	case !gate.Catalog || !gate.Marker:
		return noVersion(c.Name)
	case gate.StoredVersion != c.Version:
		return storage.Refuse(storage.CodeConflict, "checkpoint %q is for version %d, the database is at version %d", c.Name, c.Version, gate.StoredVersion)
	case gate.Verdict().Open:
		return storage.Refuse(storage.CodeConflict, "checkpoint %q: the gate of version %d is open, and its programs serve without it", c.Name, c.Version).
			WithHint("declare it for the next version")
	}
	if err := checkDefinitions(ctx, tx, []storage.Checkpoint{c}, tables); err != nil {
		return err
	}
	if err := declareRows(ctx, tx, []storage.Checkpoint{c}, tables); err != nil {
		return err
	}
	raise := map[string]int64{}
	for _, partition := range c.Rows() {
		if partition == storage.AllPartitions || c.Version > gate.MinWriterVersion {
			raise[partition] = c.Version
		}
	}
	_, err = raiseFence(ctx, tx, raise)
	return err
}

// declareRows writes rows and definitions of checkpoints. What is there already stays as it is.
func declareRows(ctx context.Context, q querier, checkpoints []storage.Checkpoint, tables []storage.Table) error {
	for _, c := range checkpoints {
		definition, err := storage.EncodeDefinition(storage.NewDefinition(c, tables))
		if err != nil {
			return err
		}
		settings, err := storage.EncodeSettings(c.Settings)
		if err != nil {
			return err
		}
		for _, partition := range c.Rows() {
			// The guard raises owner_epoch to what abandoned rows of that name had.
			_, err := q.ExecContext(ctx, `
				INSERT INTO main.sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
				VALUES (?1, ?2, ?3, 'declared', ?4)
				ON CONFLICT (partition, name) DO NOTHING`, partition, c.Name, c.Version, nowMillis())
			if err != nil {
				return translate(err, fmt.Sprintf("declare checkpoint %q in partition %q", c.Name, partition))
			}
		}
		_, err = q.ExecContext(ctx, `
			INSERT INTO main.sync_backfill_definitions(name, version, hash, definition, settings)
			VALUES (?1, ?2, ?3, ?4, ?5)
			ON CONFLICT (name) DO NOTHING`, c.Name, c.Version, c.Hash(), definition, settings)
		if err != nil {
			return translate(err, fmt.Sprintf("write the definition of checkpoint %q", c.Name))
		}
	}
	return nil
}

// checkDefinitions has the database look at the SQL of checkpoints, with the tables as they are now. It runs nothing of it.
//
// Errors: CodeInvalidSQL and CodeNotTransactional name checkpoint and field; CodeInvalidSpec for a table without a usable key, rows whose
// key is NULL, and a verify query that lacks the key columns.
func checkDefinitions(ctx context.Context, tx *sql.Conn, checkpoints []storage.Checkpoint, tables []storage.Table) error {
	for _, c := range checkpoints {
		definition := storage.NewDefinition(c, tables)
		if c.Backfill.External() {
			continue
		}
		if err := checkDefinition(ctx, tx, definition); err != nil {
			return err
		}
	}
	return nil
}

func checkDefinition(ctx context.Context, tx *sql.Conn, definition storage.Definition) error {
	c := definition.Checkpoint
	w, err := newWork(ctx, tx, definition)
	if err != nil {
		return err
	}
	if err := w.checkNullKey(ctx); err != nil {
		return err
	}
	if err := w.makeRelations(ctx); err != nil {
		return err
	}
	if err := w.compile(ctx, fmt.Sprintf("checkpoint %q: backfill", c.Name), w.applySQL()); err != nil {
		return err
	}
	if remove := w.removeSQL(); remove != "" {
		if err := w.compile(ctx, fmt.Sprintf("checkpoint %q: backfill: remove", c.Name), remove); err != nil {
			return err
		}
	}
	for _, source := range c.Sources {
		if source.Keys == "" {
			continue
		}
		if _, err := w.makeChanged(ctx, source); err != nil {
			return err
		}
		if err := w.compile(ctx, fmt.Sprintf("checkpoint %q: source %q: keys", c.Name, source.Table), w.mapSQL(source)); err != nil {
			return err
		}
	}
	for _, verify := range c.Verify {
		if err := w.checkVerify(ctx, verify); err != nil {
			return err
		}
	}
	return w.dropRelations(ctx)
}

// checkVerify compiles a verify query by itself, and then with its key columns asked for.
func (w *work) checkVerify(ctx context.Context, verify storage.Verify) error {
	what := fmt.Sprintf("checkpoint %q: verify %q", w.definition.Name, verify.Name)
	if err := w.compile(ctx, what, "SELECT 1 FROM "+subquery(verify.Query)+" AS q"); err != nil {
		return err
	}
	if err := w.compile(ctx, what, "SELECT "+w.key.list("q.")+" FROM "+subquery(verify.Query)+" AS q"); err != nil {
		return storage.Refuse(storage.CodeInvalidSpec, "%s: the query must return the key columns of table %q: %s", what, w.key.table, w.key.list(""))
	}
	return nil
}

// compile has a statement compiled where it would run, and not run.
func (w *work) compile(ctx context.Context, what, text string) error {
	if strings.ContainsRune(text, 0) {
		// SQLite reads up to it and would leave out the rest in silence.
		return storage.Refuse(storage.CodeInvalidSQL, "%s: the SQL holds a NUL character", what)
	}
	return contained(ctx, w.tx, what, &authorizer{}, func() error { return compile(ctx, w.tx, text) })
}

func subquery(text string) string { return "(\n" + trimStatement(text) + "\n)" }
