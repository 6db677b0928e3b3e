-- The guards: what may never go down or away does not, whatever program writes (docs/design.md section 3). Each statement begins with
-- CREATE TRIGGER and ends with END; on a line of its own; its text is compared with sqlite_master, so every byte of it counts.
--
-- INSERT OR REPLACE deletes the row in its way without firing a DELETE trigger (unless the connection set recursive_triggers). So a
-- BEFORE INSERT trigger notes in sync_barrier_replaced what stands there, and an AFTER INSERT trigger compares: it runs only if the new row
-- really went in, and that it can do in the place of another only by replacing it. A note that stays behind (ON CONFLICT) does no
-- harm: what it says only ever grows. The note is deleted and inserted, never replaced: the conflict clause of the outer
-- statement overrides those inside a trigger.
--
-- RAISE(IGNORE) skips the row, so that a program's compare-and-swap counts no row and answers false.

-- sync_schema_meta: the marker never goes down or away. The same version again keeps its layouts.

CREATE TRIGGER syncbarrier_guard_marker_insert
BEFORE INSERT ON sync_schema_meta
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.marker_guard')
  WHERE typeof(NEW.schema_version) <> 'integer';
  DELETE FROM sync_barrier_replaced
  WHERE tbl = 'sync_schema_meta';
  INSERT INTO sync_barrier_replaced(tbl, row_key, first_value, second_value)
  SELECT 'sync_schema_meta', '', schema_version, 0
  FROM sync_schema_meta;
END;

CREATE TRIGGER syncbarrier_guard_marker_replace
AFTER INSERT ON sync_schema_meta
FOR EACH ROW
WHEN EXISTS (
  SELECT 1
  FROM sync_barrier_replaced
  WHERE tbl = 'sync_schema_meta'
    AND first_value >= NEW.schema_version
)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.marker_guard');
END;

CREATE TRIGGER syncbarrier_guard_marker_update
BEFORE UPDATE ON sync_schema_meta
FOR EACH ROW
WHEN NEW.id IS NOT OLD.id
  OR typeof(NEW.schema_version) <> 'integer'
  OR NEW.schema_version <= OLD.schema_version
BEGIN
  SELECT CASE
    WHEN NEW.id IS OLD.id AND NEW.schema_version = OLD.schema_version THEN RAISE(IGNORE)
    ELSE RAISE(ABORT, 'sync.storage.marker_guard')
  END;
END;

CREATE TRIGGER syncbarrier_guard_marker_delete
BEFORE DELETE ON sync_schema_meta
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.marker_guard');
END;

-- sync_writer_fence: no row goes down or away. A single partition with a fence has a row in sync_partitions.

CREATE TRIGGER syncbarrier_guard_fence_insert
BEFORE INSERT ON sync_writer_fence
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.fence_guard')
  WHERE typeof(NEW.required_writer_version) <> 'integer'
    OR NEW.required_writer_version < 0
    OR typeof(NEW.partition) <> 'text';
  DELETE FROM sync_barrier_replaced
  WHERE tbl = 'sync_writer_fence'
    AND row_key = NEW.partition;
  INSERT INTO sync_barrier_replaced(tbl, row_key, first_value, second_value)
  SELECT 'sync_writer_fence', partition, required_writer_version, 0
  FROM sync_writer_fence
  WHERE partition = NEW.partition;
  INSERT INTO sync_partitions(partition, max_commit_seq, horizon_seq)
  SELECT NEW.partition, 0, 0
  WHERE NEW.partition <> '*'
    AND NOT EXISTS (SELECT 1 FROM sync_partitions WHERE partition = NEW.partition);
END;

CREATE TRIGGER syncbarrier_guard_fence_replace
AFTER INSERT ON sync_writer_fence
FOR EACH ROW
WHEN EXISTS (
  SELECT 1
  FROM sync_barrier_replaced
  WHERE tbl = 'sync_writer_fence'
    AND row_key = NEW.partition
    AND first_value > NEW.required_writer_version
)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.fence_guard');
END;

CREATE TRIGGER syncbarrier_guard_fence_update
BEFORE UPDATE ON sync_writer_fence
FOR EACH ROW
WHEN NEW.partition IS NOT OLD.partition
  OR typeof(NEW.required_writer_version) <> 'integer'
  OR NEW.required_writer_version < OLD.required_writer_version
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.fence_guard');
END;

CREATE TRIGGER syncbarrier_guard_fence_delete
BEFORE DELETE ON sync_writer_fence
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.fence_guard');
END;

-- sync_partitions: position and horizon keep the larger value. No partition goes away.

CREATE TRIGGER syncbarrier_guard_partition_insert
BEFORE INSERT ON sync_partitions
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.partition_guard')
  WHERE typeof(NEW.max_commit_seq) <> 'integer'
    OR typeof(NEW.horizon_seq) <> 'integer';
  DELETE FROM sync_barrier_replaced
  WHERE tbl = 'sync_partitions'
    AND row_key = NEW.partition;
  INSERT INTO sync_barrier_replaced(tbl, row_key, first_value, second_value)
  SELECT 'sync_partitions', partition, max_commit_seq, horizon_seq
  FROM sync_partitions
  WHERE partition = NEW.partition
    AND (max_commit_seq > NEW.max_commit_seq OR horizon_seq > NEW.horizon_seq);
END;

CREATE TRIGGER syncbarrier_guard_partition_replace
AFTER INSERT ON sync_partitions
FOR EACH ROW
WHEN EXISTS (
  SELECT 1
  FROM sync_barrier_replaced
  WHERE tbl = 'sync_partitions'
    AND row_key = NEW.partition
    AND (first_value > NEW.max_commit_seq OR second_value > NEW.horizon_seq)
)
BEGIN
  UPDATE sync_partitions
  SET max_commit_seq = max(NEW.max_commit_seq, (
        SELECT first_value
        FROM sync_barrier_replaced
        WHERE tbl = 'sync_partitions'
          AND row_key = NEW.partition)),
      horizon_seq = max(NEW.horizon_seq, (
        SELECT second_value
        FROM sync_barrier_replaced
        WHERE tbl = 'sync_partitions'
          AND row_key = NEW.partition))
  WHERE partition = NEW.partition;
END;

CREATE TRIGGER syncbarrier_guard_partition_check
BEFORE UPDATE ON sync_partitions
FOR EACH ROW
WHEN NEW.partition IS NOT OLD.partition
  OR typeof(NEW.max_commit_seq) <> 'integer'
  OR typeof(NEW.horizon_seq) <> 'integer'
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.partition_guard');
END;

CREATE TRIGGER syncbarrier_guard_partition_update
AFTER UPDATE ON sync_partitions
FOR EACH ROW
WHEN NEW.max_commit_seq < OLD.max_commit_seq
  OR NEW.horizon_seq < OLD.horizon_seq
BEGIN
  UPDATE sync_partitions
  SET max_commit_seq = max(NEW.max_commit_seq, OLD.max_commit_seq),
      horizon_seq = max(NEW.horizon_seq, OLD.horizon_seq)
  WHERE partition = NEW.partition;
END;

CREATE TRIGGER syncbarrier_guard_partition_delete
BEFORE DELETE ON sync_partitions
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.partition_guard');
END;

-- sync_backfill_checkpoints: a row moves forward only. A checkpoint that has a definition becomes activated only where our proof
-- row stands, in the same transaction; and its watermark moves only under a claim of ours: a program may claim it too, but what it then
-- says of the log was never applied by us, and our next claim would go on from there. Rows go only by being abandoned.

CREATE TRIGGER syncbarrier_guard_checkpoint_insert
BEFORE INSERT ON sync_backfill_checkpoints
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.checkpoint_guard')
  WHERE typeof(NEW.schema_version) <> 'integer'
    OR typeof(NEW.owner_epoch) <> 'integer'
    OR typeof(NEW.watermark) <> 'integer'
    OR NEW.state NOT IN ('declared', 'backfilling', 'activated');
  SELECT RAISE(ABORT, 'sync.storage.checkpoint_guard')
  WHERE NEW.state = 'activated'
    AND EXISTS (SELECT 1 FROM sync_backfill_definitions WHERE name = NEW.name)
    AND NOT EXISTS (
      SELECT 1
      FROM sync_backfill_progress
      WHERE checkpoint = NEW.name
        AND kind = 'proof'
        AND partition = NEW.partition
        AND owner_epoch = NEW.owner_epoch
    );
  DELETE FROM sync_barrier_replaced
  WHERE tbl = 'sync_backfill_checkpoints'
    AND row_key = quote(NEW.partition) || quote(NEW.name);
  INSERT INTO sync_barrier_replaced(tbl, row_key, first_value, second_value)
  SELECT 'sync_backfill_checkpoints', quote(partition) || quote(name), schema_version, owner_epoch
  FROM sync_backfill_checkpoints
  WHERE partition = NEW.partition
    AND name = NEW.name;
END;

CREATE TRIGGER syncbarrier_guard_checkpoint_replace
AFTER INSERT ON sync_backfill_checkpoints
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.checkpoint_guard')
  WHERE EXISTS (
    SELECT 1
    FROM sync_barrier_replaced
    WHERE tbl = 'sync_backfill_checkpoints'
      AND row_key = quote(NEW.partition) || quote(NEW.name)
  );
  UPDATE sync_backfill_checkpoints
  SET owner_epoch = (
        SELECT max(owner_epoch)
        FROM sync_backfill_progress
        WHERE checkpoint = NEW.name
          AND kind = 'floor'
          AND partition IN (NEW.partition, '*'))
  WHERE partition = NEW.partition
    AND name = NEW.name
    AND owner_epoch < (
        SELECT max(owner_epoch)
        FROM sync_backfill_progress
        WHERE checkpoint = NEW.name
          AND kind = 'floor'
          AND partition IN (NEW.partition, '*'));
END;

CREATE TRIGGER syncbarrier_guard_checkpoint_update
BEFORE UPDATE ON sync_backfill_checkpoints
FOR EACH ROW
WHEN OLD.state = 'activated'
  OR NEW.partition IS NOT OLD.partition
  OR NEW.name IS NOT OLD.name
  OR typeof(NEW.schema_version) <> 'integer'
  OR typeof(NEW.owner_epoch) <> 'integer'
  OR typeof(NEW.watermark) <> 'integer'
  OR NEW.schema_version < OLD.schema_version
  OR NEW.owner_epoch < OLD.owner_epoch
  OR (NEW.owner_epoch = OLD.owner_epoch AND NEW.watermark < OLD.watermark)
  OR NEW.state NOT IN ('declared', 'backfilling', 'activated')
  OR (OLD.state = 'backfilling' AND NEW.state = 'declared')
  OR (NEW.schema_version <> OLD.schema_version
      AND EXISTS (SELECT 1 FROM sync_backfill_definitions WHERE name = NEW.name))
  OR (NEW.owner_epoch = OLD.owner_epoch
      AND NEW.watermark <> OLD.watermark
      AND EXISTS (SELECT 1 FROM sync_backfill_definitions WHERE name = NEW.name)
      AND NOT EXISTS (
        SELECT 1
        FROM sync_backfill_progress
        WHERE checkpoint = NEW.name
          AND kind = 'claim'
          AND partition = NEW.partition
          AND owner_epoch = NEW.owner_epoch
      ))
  OR (NEW.state = 'activated'
      AND EXISTS (SELECT 1 FROM sync_backfill_definitions WHERE name = NEW.name)
      AND NOT EXISTS (
        SELECT 1
        FROM sync_backfill_progress
        WHERE checkpoint = NEW.name
          AND kind = 'proof'
          AND partition = NEW.partition
          AND owner_epoch = NEW.owner_epoch
      ))
BEGIN
  SELECT RAISE(IGNORE);
END;

CREATE TRIGGER syncbarrier_guard_checkpoint_delete
BEFORE DELETE ON sync_backfill_checkpoints
FOR EACH ROW
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.checkpoint_guard')
  WHERE NOT EXISTS (
    SELECT 1
    FROM sync_backfill_progress
    WHERE checkpoint = OLD.name
      AND kind = 'abandoned'
  );
  DELETE FROM sync_barrier_replaced
  WHERE tbl = 'sync_backfill_checkpoints'
    AND row_key = quote(OLD.partition) || quote(OLD.name);
END;

-- sync_backfill_definitions: a definition is what makes the guards above ask for a proof. Without these a program deletes or renames it,
-- activates, and the gate opens over rows that nobody filled. Only an abandon deletes one, after the checkpoint's rows. Settings may
-- change. What an insert replaces may also stand under the same rowid and another name, so the rows are counted.

CREATE TRIGGER syncbarrier_guard_definition_insert
BEFORE INSERT ON sync_backfill_definitions
FOR EACH ROW
BEGIN
  DELETE FROM sync_barrier_replaced
  WHERE tbl = 'sync_backfill_definitions';
  INSERT INTO sync_barrier_replaced(tbl, row_key, first_value, second_value)
  SELECT 'sync_backfill_definitions', '', count(*), 0
  FROM sync_backfill_definitions;
END;

CREATE TRIGGER syncbarrier_guard_definition_replace
AFTER INSERT ON sync_backfill_definitions
FOR EACH ROW
WHEN EXISTS (
  SELECT 1
  FROM sync_barrier_replaced
  WHERE tbl = 'sync_backfill_definitions'
    AND first_value >= (SELECT count(*) FROM sync_backfill_definitions)
)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.checkpoint_guard');
END;

CREATE TRIGGER syncbarrier_guard_definition_update
BEFORE UPDATE ON sync_backfill_definitions
FOR EACH ROW
WHEN NEW.rowid IS NOT OLD.rowid
  OR NEW.name IS NOT OLD.name
  OR NEW.version IS NOT OLD.version
  OR NEW.hash IS NOT OLD.hash
  OR NEW.definition IS NOT OLD.definition
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.checkpoint_guard');
END;

CREATE TRIGGER syncbarrier_guard_definition_delete
BEFORE DELETE ON sync_backfill_definitions
FOR EACH ROW
WHEN NOT EXISTS (SELECT 1 FROM sync_backfill_progress WHERE checkpoint = OLD.name AND kind = 'abandoned')
  OR EXISTS (SELECT 1 FROM sync_backfill_checkpoints WHERE name = OLD.name)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.checkpoint_guard');
END;

-- The log of a captured partition goes only at or below its horizon, which pruning moves first in the same transaction.

CREATE TRIGGER syncbarrier_guard_commits_delete
BEFORE DELETE ON sync_commits
FOR EACH ROW
WHEN substr(OLD.partition, 1, 8) = 'capture:'
  AND OLD.commit_seq > coalesce((SELECT horizon_seq FROM sync_partitions WHERE partition = OLD.partition), 0)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.partition_guard');
END;

CREATE TRIGGER syncbarrier_guard_changes_delete
BEFORE DELETE ON sync_changes
FOR EACH ROW
WHEN substr(OLD.partition, 1, 8) = 'capture:'
  AND OLD.commit_seq > coalesce((SELECT horizon_seq FROM sync_partitions WHERE partition = OLD.partition), 0)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.partition_guard');
END;
