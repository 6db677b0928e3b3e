package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// installCapture puts a fence on a source and lets triggers write its log, in the caller's transaction: the barrier's. What is right already
// stays as it is; a minimum that is higher stays. From COMMIT on no write of the source is left out: the lock waits for whoever is
// writing, and whoever writes later looks its triggers up anew. The catalog must be in place.
//
// Errors: CodeLockTimeout with Table; CodeInvalidSpec if the function's name is another table's.
func (s *Store) installCapture(ctx context.Context, tx pgx.Tx, c captured, minimum int64) error {
	source, err := s.lockSource(ctx, tx, c.table, shareRowExclusive)
	if err != nil {
		return err
	}
	if source == nil {
		return refuseSource(c.table, "there is no table of that name in schema %s", s.schema)
	}
	if err := s.installCaptureFunction(ctx, tx, c, source.function); err != nil {
		return err
	}
	for _, t := range c.sourceTriggers(max(minimum, source.enforced())) {
		if err := s.installSourceTrigger(ctx, tx, source, t); err != nil {
			return err
		}
	}
	return s.makePartitions(ctx, tx, c)
}

// installTruncate lets TRUNCATE of a source whose program writes the log itself be logged: no program does that. Otherwise it is
// installCapture without the rest.
func (s *Store) installTruncate(ctx context.Context, tx pgx.Tx, c captured) error {
	sources, err := s.readSources(ctx, tx, []string{c.table})
	if err != nil {
		return err
	}
	if found := sources[c.table]; found != nil && found.logsTruncate() {
		return nil // without a lock: its writers have nothing to wait for
	}
	source, err := s.lockSource(ctx, tx, c.table, shareRowExclusive)
	if err != nil {
		return err
	}
	if source == nil {
		return refuseSource(c.table, "there is no table of that name in schema %s", s.schema)
	}
	return s.installSourceTrigger(ctx, tx, source, c.truncateTrigger())
}

// lockSource locks a source with its partitions, waiting up to the lock timeout, and reads what it has. nil: there is no such table.
func (s *Store) lockSource(ctx context.Context, tx pgx.Tx, table string, mode lockMode) (*foundSource, error) {
	lock := tableLock{schema: s.schemaName, table: table, mode: mode}
	switch _, err := tx.Exec(ctx, lock.sql()); {
	case sqlState(err) == stateNoTable:
		return nil, translate(err, "lock "+s.lockName(lock))
	case err != nil:
		return nil, lockError(err, "lock "+s.lockName(lock), s.lockName(lock))
	}
	sources, err := s.readSources(ctx, tx, []string{table})
	return sources[table], err
}

// captureFunctionSQL makes or replaces the function of a table.
func (s *Store) captureFunctionText(c captured) (sql, body string, err error) {
	if body, err = s.captureBody(c); err != nil {
		return "", "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE OR REPLACE FUNCTION %s()\nRETURNS trigger\nLANGUAGE plpgsql\nVOLATILE\nSECURITY DEFINER\n", s.functionName(captureFunction(c.table)))
	for _, setting := range c.settings() {
		fmt.Fprintf(&b, "SET %s = %s\n", setting.name, setting.value)
	}
	fmt.Fprintf(&b, "AS %s", quoteLiteral(body))
	return b.String(), body, nil
}

// functionSetting is a setting that a function pins: its value as SQL, and as pg_proc.proconfig has it.
type functionSetting struct{ name, value, stored string }

// settings are what the function of the table pins. The text of some types depends on settings of the session, and the text of a key must
// not depend on who wrote it. Each setting costs time in each call, so they are pinned only where they matter.
func (c captured) settings() []functionSetting {
	settings := []functionSetting{
		{name: "search_path", value: "pg_catalog, pg_temp", stored: "pg_catalog, pg_temp"},
		{name: "row_security", value: "off", stored: "off"},
	}
	texts := c.key
	if c.partition.column != nil {
		texts = append(slices.Clone(texts), *c.partition.column)
	}
	if !slices.ContainsFunc(texts, func(column capturedColumn) bool { return !column.settled }) {
		return settings
	}
	for _, pinned := range [][2]string{
		{"datestyle", "ISO, MDY"}, {"timezone", "UTC"}, {"intervalstyle", "postgres"}, {"extra_float_digits", "3"}, {"bytea_output", "hex"},
		{"lc_monetary", "C"},
	} {
		settings = append(settings, functionSetting{name: pinned[0], value: quoteLiteral(pinned[1]), stored: pinned[1]})
	}
	return settings
}

func (s *Store) installCaptureFunction(ctx context.Context, tx pgx.Tx, c captured, found *foundCaptureFunction) error {
	name := captureFunction(c.table)
	what := "install the function " + s.functionName(name)
	sql, body, err := s.captureFunctionText(c)
	if err != nil {
		return err
	}
	if err := s.checkFunctionName(ctx, tx, c.table); err != nil {
		return err
	}
	role, owner, err := s.rolesOf(ctx, tx)
	if err != nil {
		return err
	}
	comment := c.description().comment(body)
	if found != nil && len(s.captureFunctionProblems(found, c, owner)) == 0 && found.body == body && found.comment == comment {
		return nil
	}
	if _, err := tx.Exec(ctx, sql); err != nil {
		return translate(err, what)
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("COMMENT ON FUNCTION %s() IS %s", s.functionName(name), quoteLiteral(comment))); err != nil {
		return translate(err, what)
	}
	if found != nil {
		role = found.owner // replacing leaves it
	}
	return s.secureFunction(ctx, tx, name, role, owner)
}

// checkFunctionName refuses to take a function away from another table, whose long name was made so that it gives the same one.
func (s *Store) checkFunctionName(ctx context.Context, q querier, table string) error {
	functions, err := s.readCaptureFunctions(ctx, q, []string{table})
	if err != nil {
		return err
	}
	for other, f := range functions {
		if f.name == captureFunction(table) && other != table {
			return refuseSource(table, "its function would have the name of that of table %q", other)
		}
	}
	return nil
}

// rolesOf gives the role that we are and the one that owns the catalog.
func (s *Store) rolesOf(ctx context.Context, q querier) (role, owner string, err error) {
	err = q.QueryRow(ctx, `
		SELECT current_user::text, pg_catalog.pg_get_userbyid(c.relowner)::text
		  FROM pg_catalog.pg_class c
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 WHERE n.nspname = $1::text
		   AND c.relname = 'sync_barrier_owner'`, s.schemaName).Scan(&role, &owner)
	return role, owner, translate(err, "read who owns the catalog")
}

// installSourceTrigger makes a trigger, or what of it is not as it should be, on the table or, where the trigger has to be, on each partition.
func (s *Store) installSourceTrigger(ctx context.Context, tx pgx.Tx, source *foundSource, t sourceTrigger) error {
	relations := source.relations[:1]
	if t.everywhere {
		relations = source.relations
	}
	for _, relation := range relations {
		found, exists := relation.triggers[t.name]
		if exists && (found.copied || len(t.differences(found, false)) == 0) {
			continue // what the server copied is changed where it comes from
		}
		what := fmt.Sprintf("install the trigger %s on %s", t.name, relation.name)
		if exists && found.constraint { // which cannot be replaced; the table is locked, so nobody writes in between
			if _, err := tx.Exec(ctx, fmt.Sprintf("DROP TRIGGER %s ON %s", quoteIdentifier(t.name), relation.name)); err != nil {
				return lockError(err, what, source.table)
			}
		}
		if _, err := tx.Exec(ctx, t.sql(s, relation.name)); err != nil {
			return lockError(err, what, source.table)
		}
		// Replacing sets the firing mode back, on the copies too.
		if err := s.setFiring(ctx, tx, source.table, relation.capturedRelation, t.name, t.mode, t.perRow()); err != nil {
			return err
		}
	}
	if t.everywhere {
		return nil
	}
	for _, relation := range source.relations[1:] {
		if copied, ok := relation.triggers[t.name]; ok && copied.enabled != t.mode {
			if err := s.setFiring(ctx, tx, source.table, relation.capturedRelation, t.name, t.mode, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// setFiring sets when a trigger of a relation fires, with copies also on its partitions. Whether ALTER TABLE reaches those
// depends on the server's version.
func (s *Store) setFiring(ctx context.Context, tx pgx.Tx, table string, relation capturedRelation, trigger, mode string, copies bool) error {
	what := fmt.Sprintf("set when the trigger %s on %s fires", trigger, relation.name)
	statements := []string{firingSQL(relation.name, trigger, mode)}
	for len(statements) > 0 {
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return lockError(err, what, table)
			}
		}
		if !copies {
			return nil
		}
		rows, err := tx.Query(ctx, `
			SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
			  FROM pg_catalog.pg_partition_tree($1::bigint::oid) AS tree
			  JOIN pg_catalog.pg_class AS c ON c.oid = tree.relid
			  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
			  JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = tree.relid
			 WHERE t.tgname = $2::text
			   AND t.tgenabled::text <> $3::text`, int64(relation.oid), trigger, mode)
		if err != nil {
			return translate(err, what)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return translate(err, what)
		}
		statements = statements[:0]
		for _, name := range names {
			statements = append(statements, firingSQL(name, trigger, mode))
		}
		copies = false
	}
	return nil
}

// makePartitions makes the row of the table and those of the captured partitions that are known beforehand. Writers of a partition that
// has no row yet share the row of the table.
func (s *Store) makePartitions(ctx context.Context, tx pgx.Tx, c captured) error {
	keys := []string{c.prefix()}
	if c.partition.column == nil {
		for slice := range c.partition.slices {
			keys = append(keys, fmt.Sprintf("%s#%d", c.prefix(), slice))
		}
	}
	_, err := tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_partitions(partition)
		SELECT unnest($1::text[])
		    ON CONFLICT (partition) DO NOTHING`), keys)
	return lockError(err, fmt.Sprintf("make the captured partitions of table %q", c.table), "sync_partitions")
}

// disableCapture stops writing the log of a table, in the barrier's or the activation's own transaction; its fence stays. It waits for
// whoever writes the table, and lets readers through. Dropping the triggers would not: that is a later transaction's
// (dropCapture). Nothing happens if the table is not captured or gone. Errors: CodeLockTimeout with Table.
func (s *Store) disableCapture(ctx context.Context, tx pgx.Tx, table string) error {
	sources, err := s.readSources(ctx, tx, []string{table})
	if err != nil || sources[table] == nil || !sources[table].capturing() {
		return err
	}
	source, err := s.lockSource(ctx, tx, table, shareRowExclusive)
	if err != nil || source == nil {
		return err
	}
	for _, relation := range source.relations {
		for _, name := range sourceTriggerNames {
			t, exists := relation.triggers[name]
			if !exists || isFence(name) || t.enabled == firesNever {
				continue
			}
			if err := s.setFiring(ctx, tx, table, relation.capturedRelation, name, firesNever, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropCapture drops what disableCapture has switched off, and the function. It needs the table for itself alone, for a moment: give it a
// short lock timeout, and call it again later. dropped is false if the table is captured again meanwhile. Errors: CodeLockTimeout
// with Table.
func (s *Store) dropCapture(ctx context.Context, tx pgx.Tx, table string) (dropped bool, err error) {
	sources, err := s.readSources(ctx, tx, []string{table})
	if err != nil || sources[table] == nil {
		return false, err
	}
	if sources[table].capturing() {
		return false, nil
	}
	source, err := s.lockSource(ctx, tx, table, accessExclusive)
	if err != nil || source == nil || source.capturing() {
		return false, err
	}
	for _, statement := range s.captureRemoval(source, false) {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return false, lockError(err, fmt.Sprintf("drop the capture of table %q", table), table)
		}
	}
	return true, nil
}

// captureRemoval lists the statements that drop the triggers of a source and its function, with the fence or without.
func (s *Store) captureRemoval(source *foundSource, fence bool) []string {
	var statements []string
	for _, relation := range source.relations {
		for _, name := range sourceTriggerNames {
			t, exists := relation.triggers[name]
			if exists && !t.copied && (fence || !isFence(name)) {
				statements = append(statements, fmt.Sprintf("DROP TRIGGER %s ON %s", quoteIdentifier(name), relation.name))
			}
		}
	}
	if source.function != nil {
		statements = append(statements, fmt.Sprintf("DROP FUNCTION %s()", s.functionName(source.function.name)))
	}
	return statements
}

// raiseSourceFences raises the minimum of every table that has a fence of its own, in the transaction that raises the fence for all.
// Readers pass; writers wait until COMMIT. Errors: CodeLockTimeout with Table.
func (s *Store) raiseSourceFences(ctx context.Context, tx pgx.Tx, minimum int64) error {
	sources, err := s.readSources(ctx, tx, nil)
	if err != nil {
		return err
	}
	for _, source := range sortedSources(sources) {
		if !source.fenced() {
			continue
		}
		lock := fmt.Sprintf("LOCK TABLE %s IN %s MODE", source.relations[0].name, shareRowExclusive)
		if _, err := tx.Exec(ctx, lock); err != nil {
			return lockError(err, fmt.Sprintf("raise the fence of %q to %d: lock it", source.table, minimum), source.table)
		}
		for _, t := range source.fences(max(minimum, source.enforced())) {
			if err := s.installSourceTrigger(ctx, tx, source, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// fences are the fences of a table, by what kind of table it is.
func (f *foundSource) fences(minimum int64) []sourceTrigger {
	c := captured{table: f.table, partitioned: f.relations[0].kind == "p", child: f.relations[0].child}
	return slices.DeleteFunc(c.sourceTriggers(minimum), func(t sourceTrigger) bool { return t.capture })
}

func sortedSources(sources map[string]*foundSource) []*foundSource {
	sorted := make([]*foundSource, 0, len(sources))
	for _, source := range sources {
		sorted = append(sorted, source)
	}
	slices.SortFunc(sorted, func(a, b *foundSource) int { return strings.Compare(a.table, b.table) })
	return sorted
}

// sourceLocks are the locks that raiseSourceFences takes, for a barrier that takes all of its locks beforehand.
func (s *Store) sourceLocks(ctx context.Context, q querier) (lockSet, error) {
	rows, err := q.Query(ctx, `
		SELECT DISTINCT n.nspname::text, c.relname::text
		  FROM pg_catalog.pg_trigger t
		  JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
		  JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
		  JOIN pg_catalog.pg_class c ON c.oid = coalesce(pg_catalog.pg_partition_root(t.tgrelid)::oid, t.tgrelid)
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 WHERE pn.nspname = $1::text
		   AND p.proname = $2::text
		 ORDER BY 1, 2`, s.schemaName, fenceSourceFunction)
	if err != nil {
		return nil, translate(err, "look for tables with a fence of their own")
	}
	var locks lockSet
	var schema, table string
	_, err = pgx.ForEachRow(rows, []any{&schema, &table}, func() error {
		locks.add(schema, table, shareRowExclusive)
		return nil
	})
	return locks, translate(err, "look for tables with a fence of their own")
}

// plannedCapture lists the statements that installCapture would run on a table without any of it, for people.
func (s *Store) plannedCapture(c captured, minimum int64) ([]string, error) {
	sql, _, err := s.captureFunctionText(c)
	if err != nil {
		return nil, err
	}
	statements := []string{sql}
	for _, t := range c.sourceTriggers(minimum) {
		relations := c.relations[:1]
		if t.everywhere {
			relations = c.relations
		}
		for _, relation := range relations {
			statements = append(statements, t.sql(s, relation.name), firingSQL(relation.name, t.name, t.mode))
		}
	}
	return statements, nil
}
