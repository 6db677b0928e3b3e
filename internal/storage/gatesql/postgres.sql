-- The whole gate in one statement, so that all of it is read in one snapshot: read apart, a barrier that commits in between would show
-- its marker without its checkpoints. $1 is the running version, $2 the partition whose log epoch is wanted, or NULL. {schema} is the quoted
-- name of the database schema, {system} gives the cluster's system identifier.
WITH stored AS (
  SELECT (SELECT schema_version FROM {schema}.sync_schema_meta WHERE id = 1) AS version
),
owner AS (
  SELECT protocol, cluster, namespace, name, uid
    FROM {schema}.sync_barrier_owner
   WHERE id = 1
),
newest AS (
  SELECT h.min_reader_version
    FROM {schema}.sync_barrier_history h
   WHERE h.version <= (SELECT version FROM stored)
   ORDER BY h.version DESC
   LIMIT 1
),
pending AS (
  SELECT c.partition, c.name, c.schema_version AS version, c.state
    FROM {schema}.sync_backfill_checkpoints c
   WHERE c.state <> 'activated'
     AND c.schema_version <= $1::bigint
),
recorded AS (
  SELECT h.version, entry.key AS name
    FROM {schema}.sync_barrier_history h
   CROSS JOIN LATERAL jsonb_each(h.entries::jsonb -> 'checkpoints') AS entry
   WHERE h.version <= $1::bigint
     AND coalesce(entry.value ->> 'abandoned', '') = ''
),
missing AS (
  SELECT r.name, r.version
    FROM recorded r
   -- One descent of the index for each name, whatever the planner thinks of names: the first row from here on is the one, or there
   -- is none. A plain test for existence reads the whole table where another name has most of its rows.
   WHERE NOT coalesce((
     SELECT (c.name, c.schema_version) = (r.name, r.version)
       FROM {schema}.sync_backfill_checkpoints c
      WHERE (c.name, c.schema_version) >= (r.name, r.version)
      ORDER BY c.name, c.schema_version
      LIMIT 1), false)
)
SELECT coalesce(owner.protocol, 0),
       stored.version,
       EXISTS (SELECT FROM {schema}.sync_barrier_history h WHERE h.version = stored.version),
       coalesce((SELECT min_reader_version FROM newest), 0),
       (SELECT required_writer_version FROM {schema}.sync_writer_fence WHERE partition = '*'),
       (SELECT count(*) FROM pending),
       (SELECT json_agg(p)::text
          FROM (SELECT * FROM pending ORDER BY version, name, partition LIMIT 10) p),
       (SELECT json_agg(m)::text
          FROM (SELECT * FROM missing ORDER BY version, name LIMIT 10) m),
       coalesce(owner.cluster, ''),
       coalesce(owner.namespace, ''),
       coalesce(owner.name, ''),
       coalesce(owner.uid, ''),
       pg_is_in_recovery(),
       coalesce((SELECT log_epoch FROM {schema}.sync_partition_registry WHERE partition = $2::text), ''),
       {system},
       current_database()::text,
       current_setting('server_version')
  FROM stored
  LEFT JOIN owner ON true
