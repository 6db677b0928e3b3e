-- What the triggers on captured tables share (docs/design.md section 5). {schema} is the quoted name of the database schema, {schema_text}
-- the same as a text literal. The function that writes a table's changes into the log is generated for each table
-- (capture_function.sql).

-- The fence on a source. It stays when capture has gone: nobody has to write the log for it, so the fence on the log alone would not be
-- asked. The minimum is the trigger's argument and not a row, for the reason that fence.sql gives. No table is read or locked.
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_fence_source()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER -- a right writer needs no rights on our tables, and the sequence that counts refusals is ours
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
DECLARE
  _sb_setting text := current_setting('syncbarrier.writer_version', true);
  _sb_given bigint := CASE WHEN _sb_setting ~ '^[0-9]{1,10}$' AND _sb_setting::bigint BETWEEN 1 AND 2147483647 THEN _sb_setting::bigint END;
  _sb_required bigint := TG_ARGV[0]::bigint;
BEGIN
  IF _sb_required < 1 OR coalesce(_sb_given >= _sb_required, false) THEN
    RETURN NULL;
  END IF;
  -- A sequence keeps its value when the refused transaction is rolled back.
  PERFORM nextval(({schema_text} || '.syncbarrier_refused')::regclass);
  RAISE EXCEPTION USING
    ERRCODE = 'P0001',
    MESSAGE = 'sync.storage.writer_fence_rejected',
    DETAIL = format('table %I.%I: writer version %s, required %s', TG_TABLE_SCHEMA, TG_TABLE_NAME,
      coalesce(_sb_given::text, 'missing'), coalesce(_sb_required::text, 'unknown'));
END
$syncbarrier$;

-- TRUNCATE removes rows of every partition and tells no keys, so it is one row in partition '*'; whoever asks for the changes of a
-- partition asks for those too. The argument is the name of the source, which on a partition of it is not the table at hand. No row of
-- sync_partitions is locked: TRUNCATE keeps its table locked against everybody until it commits. There is no commit beside it: a program
-- that writes the log itself gives its version there and not in the session, and the fence on the log would refuse it. A
-- captured table has a fence of its own, which was asked before.
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_log_truncate()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
BEGIN
  INSERT INTO {schema}.sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
  VALUES ('*', pg_current_xact_id()::text::bigint, nextval(({schema_text} || '.syncbarrier_change_idx')::regclass), TG_ARGV[0], '', 2, '{}');
  RETURN NULL;
END
$syncbarrier$;
