-- The fence (docs/design.md section 3). {schema} is the quoted name of the database schema, {schema_text} the same as a text literal,
-- {minimum} the minimum writer version for all partitions.
--
-- The minimum is the trigger's argument and not a row: triggers are looked up in a fresh catalog snapshot, whatever the age of the
-- writer's own. A row that the barrier wrote or changed is not seen by a REPEATABLE READ or SERIALIZABLE writer that
-- began before.

CREATE OR REPLACE FUNCTION {schema}.syncbarrier_fence()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE -- each statement in it must see what was committed up to now; a STABLE function reads with the writer's statement's snapshot
SECURITY DEFINER -- a right writer needs no rights on our tables
SET search_path = pg_catalog, pg_temp -- operators and functions are ours, whatever the writer's path
SET row_security = off -- a policy that would hide the fence's rows is an error, not an empty answer
AS $syncbarrier$
#variable_conflict use_column
DECLARE
  _sb_given bigint := NEW.writer_version;
  _sb_required bigint := TG_ARGV[0]::bigint;
  _sb_stored bigint;
  _sb_for_all boolean;
BEGIN
  -- The argument decides before any lock is waited for.
  IF _sb_required < 1 OR coalesce(_sb_given >= _sb_required, false) THEN
    -- A minimum of one partition alone is a row. Its raise updates the partition's row in the same transaction, so the lock makes a
    -- writer with an older snapshot fail (40001) instead of missing it. The writers of a captured partition share its row
    -- and must not wait for each other; it has no minimum of its own.
    IF NEW.partition <> '*' AND NOT starts_with(NEW.partition, 'capture:') THEN
      PERFORM 1
        FROM {schema}.sync_partitions AS p
       WHERE p.partition = NEW.partition
         FOR NO KEY UPDATE;
      IF NOT FOUND THEN
        INSERT INTO {schema}.sync_partitions(partition)
        VALUES (NEW.partition)
            ON CONFLICT (partition) DO NOTHING;
        PERFORM 1
          FROM {schema}.sync_partitions AS p
         WHERE p.partition = NEW.partition
           FOR NO KEY UPDATE;
      END IF;
    END IF;
    SELECT coalesce(max(f.required_writer_version), 0), coalesce(bool_or(f.partition = '*'), false)
      INTO _sb_stored, _sb_for_all
      FROM {schema}.sync_writer_fence AS f
     WHERE f.partition IN ('*', NEW.partition);
    _sb_required := greatest(_sb_required, _sb_stored);
    -- Without the row '*' nobody knows what is required, so nothing passes.
    IF _sb_for_all AND (_sb_required < 1 OR coalesce(_sb_given >= _sb_required, false)) THEN
      RETURN NULL;
    END IF;
  END IF;
  -- A sequence keeps its value when the refused transaction is rolled back.
  PERFORM nextval(({schema_text} || '.syncbarrier_refused')::regclass);
  RAISE EXCEPTION USING
    ERRCODE = 'P0001',
    MESSAGE = 'sync.storage.writer_fence_rejected',
    DETAIL = format('table %I.%I, partition %L: writer version %s, required %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, NEW.partition,
      coalesce(_sb_given::text, 'missing'),
      CASE WHEN _sb_for_all IS NOT DISTINCT FROM false THEN 'unknown, the fence has no row ''*''' ELSE _sb_required::text END);
END
$syncbarrier$;

-- AFTER, so that no other trigger can change the row once it was judged. UPDATE too, or a version could be lowered afterwards.
CREATE OR REPLACE TRIGGER syncbarrier_fence
AFTER INSERT OR UPDATE ON {schema}.sync_commits
FOR EACH ROW
EXECUTE FUNCTION {schema}.syncbarrier_fence('{minimum}');
