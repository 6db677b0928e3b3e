-- The fence: no row of sync_commits without a writer version, or with a lower one than required. Each statement begins with CREATE
-- TRIGGER and ends with END; on a line of its own; its text is compared with sqlite_master, so every byte of it counts.
--
-- The required version is the larger of the rows '*' and of the partition itself. A row is looked up, not kept in the trigger: on SQLite
-- an old snapshot cannot write at all, so a writer never sees an old row. Without a row '*' everything is refused. 0 is no limit.
--
-- A missing version is NULL, and text or bytes compare greater than any number, so the type is asked for first. By the time a
-- BEFORE trigger runs, the column's affinity has made numbers of '10' and 10.0.

CREATE TRIGGER syncbarrier_fence_insert
BEFORE INSERT ON sync_commits
FOR EACH ROW
WHEN NOT EXISTS (SELECT 1 FROM sync_writer_fence WHERE partition = '*')
  OR EXISTS (
    SELECT 1
    FROM sync_writer_fence
    WHERE partition IN ('*', NEW.partition)
      AND required_writer_version >= 1
      AND (typeof(NEW.writer_version) <> 'integer' OR NEW.writer_version < required_writer_version)
  )
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.writer_fence_rejected');
END;

CREATE TRIGGER syncbarrier_fence_update
BEFORE UPDATE ON sync_commits
FOR EACH ROW
WHEN NOT EXISTS (SELECT 1 FROM sync_writer_fence WHERE partition = '*')
  OR EXISTS (
    SELECT 1
    FROM sync_writer_fence
    WHERE partition IN ('*', NEW.partition)
      AND required_writer_version >= 1
      AND (typeof(NEW.writer_version) <> 'integer' OR NEW.writer_version < required_writer_version)
  )
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.writer_fence_rejected');
END;
