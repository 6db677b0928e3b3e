-- The whole gate in one statement, so that all of it is read in one snapshot: read apart, a barrier that commits in between would show
-- its marker without its checkpoints. ?1 is the running version, ?2 the partition whose log epoch is wanted, or NULL.
WITH stored AS (
  SELECT (SELECT schema_version FROM main.sync_schema_meta WHERE id = 1) AS version
),
owner AS (
  SELECT protocol, cluster, namespace, name, uid, system_identifier
    FROM main.sync_barrier_owner
   WHERE id = 1
),
newest AS (
  SELECT h.min_reader_version
    FROM main.sync_barrier_history h
   WHERE h.version <= (SELECT version FROM stored)
   ORDER BY h.version DESC
   LIMIT 1
),
pending AS (
  SELECT c.partition, c.name, c.schema_version AS version, c.state
    FROM main.sync_backfill_checkpoints c
   WHERE c.state <> 'activated'
     AND c.schema_version <= ?1
),
recorded AS (
  SELECT h.version, entry.key AS name
    FROM main.sync_barrier_history h
    JOIN json_each(h.entries, '$.checkpoints') AS entry
   WHERE h.version <= ?1
     AND coalesce(entry.value ->> 'abandoned', '') = ''
),
missing AS (
  SELECT r.name, r.version
    FROM recorded r
   WHERE NOT EXISTS (
     SELECT 1 FROM main.sync_backfill_checkpoints c
      WHERE c.name = r.name
        AND c.schema_version = r.version)
)
SELECT coalesce(owner.protocol, 0),
       stored.version,
       EXISTS (SELECT 1 FROM main.sync_barrier_history h WHERE h.version = stored.version),
       coalesce((SELECT min_reader_version FROM newest), 0),
       (SELECT required_writer_version FROM main.sync_writer_fence WHERE partition = '*'),
       (SELECT count(*) FROM pending),
       (SELECT json_group_array(json_object('partition', partition, 'name', name, 'version', version, 'state', state))
          FROM (SELECT * FROM pending ORDER BY version, name, partition LIMIT 10)),
       (SELECT json_group_array(json_object('partition', '', 'name', name, 'version', version))
          FROM (SELECT * FROM missing ORDER BY version, name LIMIT 10)),
       coalesce(owner.cluster, ''),
       coalesce(owner.namespace, ''),
       coalesce(owner.name, ''),
       coalesce(owner.uid, ''),
       coalesce((SELECT log_epoch FROM main.sync_partition_registry WHERE partition = ?2), ''),
       coalesce(owner.system_identifier, ''),
       sqlite_version()
  FROM stored
  LEFT JOIN owner ON 1
