-- The guards (docs/design.md section 3): they keep promise I2 against every program, ours included. {schema} is the quoted name of
-- the database schema. What they refuse they raise with the bare code as message, and what a person needs as detail. Each
-- function says in its own words what breaks without it.

-- Marker. A program that read the marker before it waited for the barrier's lock would write an older version over a newer one.
-- The argument is the place of an Online run's target: while it is not 0, nobody raises the marker.
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_guard_marker()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
DECLARE
  _sb_code text := 'sync.storage.marker_guard';
  _sb_problem text;
BEGIN
  IF TG_OP = 'DELETE' OR TG_OP = 'TRUNCATE' THEN
    _sb_problem := 'the marker is not deleted';
  ELSIF TG_OP = 'INSERT' THEN
    -- With ON CONFLICT the update that follows is judged instead.
    IF TG_ARGV[0] <> '0' AND NOT EXISTS (SELECT FROM {schema}.sync_schema_meta AS m WHERE m.id = NEW.id) THEN
      _sb_code := 'sync.storage.barrier_open';
      _sb_problem := format('an Online run to version %s is open', TG_ARGV[0]);
    END IF;
  ELSIF NEW.id IS DISTINCT FROM OLD.id THEN
    _sb_problem := 'the marker''s id does not change';
  ELSIF coalesce(NEW.schema_version < OLD.schema_version, true) THEN
    _sb_problem := format('the marker is %s and does not go down to %s', OLD.schema_version, coalesce(NEW.schema_version::text, 'NULL'));
  ELSIF NEW.schema_version > OLD.schema_version THEN
    IF TG_ARGV[0] <> '0' THEN
      _sb_code := 'sync.storage.barrier_open';
      _sb_problem := format('the marker is not raised from %s to %s: an Online run to version %s is open', OLD.schema_version, NEW.schema_version,
        TG_ARGV[0]);
    END IF;
  ELSE
    -- Layouts belong to their version.
    NEW.layouts := OLD.layouts;
  END IF;
  IF _sb_problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = _sb_code,
      DETAIL = format('table %I.%I: %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, _sb_problem);
  END IF;
  RETURN NEW;
END
$syncbarrier$;

CREATE OR REPLACE TRIGGER syncbarrier_guard_marker
BEFORE INSERT OR UPDATE OR DELETE ON {schema}.sync_schema_meta
FOR EACH ROW
EXECUTE FUNCTION {schema}.syncbarrier_guard_marker('0');

CREATE OR REPLACE TRIGGER syncbarrier_guard_marker_truncate
BEFORE TRUNCATE ON {schema}.sync_schema_meta
FOR EACH STATEMENT
EXECUTE FUNCTION {schema}.syncbarrier_guard_marker('0');

-- Fence rows. The minimum of one partition is looked up by writers, so the raise first updates the partition's row: it waits for every
-- append that is open in the partition, and makes an older snapshot fail. Without it an open append of the old version commits after
-- the raise.
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_guard_fence()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
DECLARE
  _sb_problem text;
BEGIN
  IF TG_OP = 'DELETE' OR TG_OP = 'TRUNCATE' THEN
    _sb_problem := 'a fence is not deleted';
  ELSIF TG_OP = 'UPDATE' THEN
    IF NEW.partition IS DISTINCT FROM OLD.partition THEN
      _sb_problem := format('the fence of partition %L does not move to another one', OLD.partition);
    ELSIF coalesce(NEW.required_writer_version < OLD.required_writer_version, true) THEN
      _sb_problem := format('the fence of partition %L is %s and does not go down to %s', OLD.partition, OLD.required_writer_version,
        coalesce(NEW.required_writer_version::text, 'NULL'));
    END IF;
  END IF;
  IF _sb_problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'sync.storage.fence_guard',
      DETAIL = format('table %I.%I: %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, _sb_problem);
  END IF;
  IF NEW.partition <> '*' THEN
    INSERT INTO {schema}.sync_partitions AS p(partition)
    VALUES (NEW.partition)
        ON CONFLICT (partition) DO UPDATE SET max_commit_seq = p.max_commit_seq;
  END IF;
  RETURN NEW;
END
$syncbarrier$;

CREATE OR REPLACE TRIGGER syncbarrier_guard_fence
BEFORE INSERT OR UPDATE OR DELETE ON {schema}.sync_writer_fence
FOR EACH ROW
EXECUTE FUNCTION {schema}.syncbarrier_guard_fence();

CREATE OR REPLACE TRIGGER syncbarrier_guard_fence_truncate
BEFORE TRUNCATE ON {schema}.sync_writer_fence
FOR EACH STATEMENT
EXECUTE FUNCTION {schema}.syncbarrier_guard_fence();

-- Partitions. Two programs that prune would leave the horizon of the slower one, and a watermark between the two would read as covered
-- although its log is gone. The WHEN clause keeps a writer's own update free of cost.
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_guard_partition()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
DECLARE
  _sb_problem text;
BEGIN
  IF TG_OP <> 'UPDATE' THEN
    _sb_problem := 'a partition is not deleted';
  ELSIF NEW.partition IS DISTINCT FROM OLD.partition THEN
    _sb_problem := format('the key of partition %L does not change', OLD.partition);
  END IF;
  IF _sb_problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'sync.storage.partition_guard',
      DETAIL = format('table %I.%I: %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, _sb_problem);
  END IF;
  NEW.horizon_seq := greatest(NEW.horizon_seq, OLD.horizon_seq);
  NEW.max_commit_seq := greatest(NEW.max_commit_seq, OLD.max_commit_seq);
  RETURN NEW;
END
$syncbarrier$;

CREATE OR REPLACE TRIGGER syncbarrier_guard_partition
BEFORE UPDATE ON {schema}.sync_partitions
FOR EACH ROW
WHEN (NEW.horizon_seq < OLD.horizon_seq OR NEW.max_commit_seq < OLD.max_commit_seq OR NEW.partition <> OLD.partition)
EXECUTE FUNCTION {schema}.syncbarrier_guard_partition();

CREATE OR REPLACE TRIGGER syncbarrier_guard_partition_delete
BEFORE DELETE ON {schema}.sync_partitions
FOR EACH ROW
EXECUTE FUNCTION {schema}.syncbarrier_guard_partition();

CREATE OR REPLACE TRIGGER syncbarrier_guard_partition_truncate
BEFORE TRUNCATE ON {schema}.sync_partitions
FOR EACH STATEMENT
EXECUTE FUNCTION {schema}.syncbarrier_guard_partition();

-- Checkpoints. A change that would take something back is skipped, not refused: a program's compare-and-swap then answers "not the
-- owner". Without it a worker that lost its claim, or one frozen before an abandon, could go on; and a checkpoint could be
-- called activated without the proof that its backfill is complete.
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_guard_checkpoint()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
DECLARE
  _sb_problem text;
  _sb_order CONSTANT text[] := ARRAY['declared', 'backfilling', 'activated'];
  _sb_floor bigint;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF OLD.state = 'activated'
       OR coalesce(NEW.owner_epoch < OLD.owner_epoch, true)
       OR coalesce(NEW.schema_version < OLD.schema_version, true)
       OR NEW.partition IS DISTINCT FROM OLD.partition
       OR NEW.name IS DISTINCT FROM OLD.name
       OR coalesce(array_position(_sb_order, NEW.state) < array_position(_sb_order, OLD.state), true)
       OR NEW.owner_epoch = OLD.owner_epoch AND coalesce(NEW.watermark < OLD.watermark, true)
    THEN
      RETURN NULL;
    END IF;
    -- A program may claim a checkpoint of ours. What it then says of the log was never applied by us, and our next claim would go on
    -- from there.
    IF NEW.owner_epoch = OLD.owner_epoch
       AND NEW.watermark <> OLD.watermark
       AND EXISTS (SELECT FROM {schema}.sync_backfill_definitions AS d WHERE d.name = NEW.name)
       AND NOT EXISTS (
         SELECT
           FROM {schema}.sync_backfill_progress AS p
          WHERE p.checkpoint = NEW.name
            AND p.kind = 'claim'
            AND p.partition = NEW.partition
            AND p.owner_epoch = NEW.owner_epoch)
    THEN
      RETURN NULL;
    END IF;
  ELSIF TG_OP = 'INSERT' THEN
    -- A name that was abandoned goes on counting where it stopped, so that no claim is ever equal to one of before.
    SELECT max(p.owner_epoch)
      INTO _sb_floor
      FROM {schema}.sync_backfill_progress AS p
     WHERE p.checkpoint = NEW.name
       AND p.kind = 'floor'
       AND p.partition IN (NEW.partition, '*');
    NEW.owner_epoch := greatest(NEW.owner_epoch, _sb_floor);
  ELSIF TG_OP = 'DELETE' THEN
    IF EXISTS (SELECT FROM {schema}.sync_backfill_progress AS p WHERE p.checkpoint = OLD.name AND p.kind = 'abandoned') THEN
      RETURN OLD;
    END IF;
    _sb_problem := format('checkpoint %L is not deleted, it can be abandoned', OLD.name);
  ELSE
    _sb_problem := 'checkpoints are not deleted, they can be abandoned';
  END IF;

  -- A checkpoint without a definition was declared by another program, and is that program's to activate.
  IF _sb_problem IS NULL AND (NEW.state = 'activated' OR TG_OP = 'UPDATE' AND NEW.schema_version <> OLD.schema_version)
     AND EXISTS (SELECT FROM {schema}.sync_backfill_definitions AS d WHERE d.name = NEW.name)
  THEN
    IF TG_OP = 'UPDATE' AND NEW.schema_version <> OLD.schema_version THEN
      RETURN NULL;
    END IF;
    -- The proof is made and removed in the transaction that activates, so no other transaction ever sees it.
    IF NOT EXISTS (
      SELECT
        FROM {schema}.sync_backfill_progress AS p
       WHERE p.checkpoint = NEW.name
         AND p.kind = 'proof'
         AND p.partition = NEW.partition
         AND p.owner_epoch = NEW.owner_epoch)
    THEN
      IF TG_OP = 'UPDATE' THEN
        RETURN NULL;
      END IF;
      _sb_problem := format('checkpoint %L is not activated without the proof that its backfill is complete', NEW.name);
    END IF;
  END IF;
  IF _sb_problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'sync.storage.checkpoint_guard',
      DETAIL = format('table %I.%I: %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, _sb_problem);
  END IF;
  RETURN NEW;
END
$syncbarrier$;

CREATE OR REPLACE TRIGGER syncbarrier_guard_checkpoint
BEFORE INSERT OR UPDATE OR DELETE ON {schema}.sync_backfill_checkpoints
FOR EACH ROW
EXECUTE FUNCTION {schema}.syncbarrier_guard_checkpoint();

CREATE OR REPLACE TRIGGER syncbarrier_guard_checkpoint_truncate
BEFORE TRUNCATE ON {schema}.sync_backfill_checkpoints
FOR EACH STATEMENT
EXECUTE FUNCTION {schema}.syncbarrier_guard_checkpoint();

-- A definition takes over rows that another program declared before. A transaction of that program with an older snapshot does not see the
-- definition and would activate without proof; that its rows are updated here makes it fail instead (40001).
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_guard_definition()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
BEGIN
  UPDATE {schema}.sync_backfill_checkpoints AS c
     SET updated_at_ms = c.updated_at_ms
   WHERE c.name = NEW.name
     AND c.state <> 'activated';
  RETURN NULL;
END
$syncbarrier$;

CREATE OR REPLACE TRIGGER syncbarrier_guard_definition
AFTER INSERT ON {schema}.sync_backfill_definitions
FOR EACH ROW
EXECUTE FUNCTION {schema}.syncbarrier_guard_definition();

-- A definition is what makes the checkpoint guard ask for a proof. Without this, a program deletes or renames it, activates, and the gate opens
-- over rows that nobody filled. Only an abandon deletes one, after the checkpoint's rows. Settings may change at any time.
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_guard_definition_kept()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
DECLARE
  _sb_problem text;
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    _sb_problem := 'definitions are not deleted, their checkpoints can be abandoned';
  ELSIF TG_OP = 'UPDATE' THEN
    IF (NEW.name, NEW.version, NEW.hash, NEW.definition) IS DISTINCT FROM (OLD.name, OLD.version, OLD.hash, OLD.definition) THEN
      _sb_problem := format('the definition of checkpoint %L does not change, only its settings do', OLD.name);
    END IF;
  ELSIF NOT EXISTS (SELECT FROM {schema}.sync_backfill_progress AS p WHERE p.checkpoint = OLD.name AND p.kind = 'abandoned')
     OR EXISTS (SELECT FROM {schema}.sync_backfill_checkpoints AS c WHERE c.name = OLD.name)
  THEN
    _sb_problem := format('the definition of checkpoint %L is not deleted, the checkpoint can be abandoned', OLD.name);
  ELSE
    RETURN OLD;
  END IF;
  IF _sb_problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'sync.storage.checkpoint_guard',
      DETAIL = format('table %I.%I: %s', TG_TABLE_SCHEMA, TG_TABLE_NAME, _sb_problem);
  END IF;
  RETURN NEW;
END
$syncbarrier$;

CREATE OR REPLACE TRIGGER syncbarrier_guard_definition_kept
BEFORE UPDATE OR DELETE ON {schema}.sync_backfill_definitions
FOR EACH ROW
EXECUTE FUNCTION {schema}.syncbarrier_guard_definition_kept();

CREATE OR REPLACE TRIGGER syncbarrier_guard_definition_truncate
BEFORE TRUNCATE ON {schema}.sync_backfill_definitions
FOR EACH STATEMENT
EXECUTE FUNCTION {schema}.syncbarrier_guard_definition_kept();

-- The log of a captured partition has gaps by its nature, so a row that was deleted is never missed. It goes only at or below the horizon,
-- which is moved first and tells every reader that the log no longer answers.
CREATE OR REPLACE FUNCTION {schema}.syncbarrier_guard_log()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $syncbarrier$
#variable_conflict use_column
BEGIN
  IF NOT EXISTS (
    SELECT
      FROM {schema}.sync_partitions AS p
     WHERE p.partition = OLD.partition
       AND p.horizon_seq >= OLD.commit_seq)
  THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'sync.storage.partition_guard',
      DETAIL = format('table %I.%I: commit %s of captured partition %L is above its horizon and is not deleted', TG_TABLE_SCHEMA, TG_TABLE_NAME,
        OLD.commit_seq, OLD.partition);
  END IF;
  RETURN OLD;
END
$syncbarrier$;

CREATE OR REPLACE TRIGGER syncbarrier_guard_commits
BEFORE DELETE ON {schema}.sync_commits
FOR EACH ROW
WHEN (starts_with(OLD.partition, 'capture:'))
EXECUTE FUNCTION {schema}.syncbarrier_guard_log();

CREATE OR REPLACE TRIGGER syncbarrier_guard_changes
BEFORE DELETE ON {schema}.sync_changes
FOR EACH ROW
WHEN (starts_with(OLD.partition, 'capture:'))
EXECUTE FUNCTION {schema}.syncbarrier_guard_log();
