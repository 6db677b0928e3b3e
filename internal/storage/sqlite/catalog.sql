-- The tables of the sync protocol in the types that its programs use on SQLite, and ours beside them. Every statement is idempotent.
-- The column writer_version is added to an older sync_commits by code: SQLite has no ADD COLUMN IF NOT EXISTS.

CREATE TABLE IF NOT EXISTS sync_partitions(
  partition TEXT PRIMARY KEY,
  max_commit_seq INTEGER NOT NULL DEFAULT 0,
  horizon_seq INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS sync_partition_registry(
  partition TEXT PRIMARY KEY,
  log_epoch TEXT NOT NULL,
  epoch_required INTEGER NOT NULL DEFAULT 0,
  last_authenticated_at_ms INTEGER NOT NULL
);

CREATE TABLE IF NOT EXISTS sync_commits(
  partition TEXT NOT NULL,
  commit_seq INTEGER NOT NULL,
  client_id TEXT NOT NULL,
  client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  writer_version INTEGER,
  PRIMARY KEY(partition, commit_seq)
);

CREATE TABLE IF NOT EXISTS sync_changes(
  partition TEXT NOT NULL,
  commit_seq INTEGER NOT NULL,
  idx INTEGER NOT NULL,
  tbl TEXT NOT NULL,
  row_id TEXT NOT NULL,
  op INTEGER NOT NULL,
  row_version INTEGER,
  scopes TEXT NOT NULL,
  payload BLOB,
  PRIMARY KEY(partition, commit_seq, idx)
);

CREATE TABLE IF NOT EXISTS sync_schema_meta(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  schema_version INTEGER NOT NULL,
  layouts TEXT NOT NULL DEFAULT '{}'
);

CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints(
  partition TEXT NOT NULL,
  name TEXT NOT NULL,
  schema_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('declared', 'backfilling', 'activated')),
  watermark INTEGER NOT NULL DEFAULT 0,
  owner_epoch INTEGER NOT NULL DEFAULT 0,
  observed_rows INTEGER NOT NULL DEFAULT 0,
  updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, name)
);

-- The gate asks for what is not activated; with 100,000 activated rows it must not look at them.
CREATE INDEX IF NOT EXISTS syncbarrier_checkpoints_open
  ON sync_backfill_checkpoints(schema_version)
  WHERE state <> 'activated';

CREATE INDEX IF NOT EXISTS syncbarrier_checkpoints_by_name
  ON sync_backfill_checkpoints(name, schema_version);

CREATE TABLE IF NOT EXISTS sync_writer_fence(
  partition TEXT PRIMARY KEY,
  required_writer_version INTEGER NOT NULL
);

-- One row per version whose barrier committed. entries: hashes of its migration and checkpoints. raised: per partition, the
-- position of the log when its fence was raised. JSON is kept as TEXT so that every driver reads it alike.
CREATE TABLE IF NOT EXISTS sync_barrier_history(
  version INTEGER PRIMARY KEY,
  content_hash TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('applied')),
  entries TEXT NOT NULL,
  plain_layouts TEXT NOT NULL,
  min_writer_version INTEGER NOT NULL,
  min_reader_version INTEGER NOT NULL,
  applied_at_ms INTEGER NOT NULL,
  lock_wait_ms INTEGER NOT NULL,
  lock_hold_ms INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  raised TEXT NOT NULL
);

-- Who manages this database schema (empty name: nobody yet), the number of this catalog, and which database it is. revision names the
-- texts of catalog, fence and guards that were installed last: where it is the installer's own, a difference is somebody's doing.
CREATE TABLE IF NOT EXISTS sync_barrier_owner(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  protocol INTEGER NOT NULL,
  revision TEXT NOT NULL,
  cluster TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  uid TEXT NOT NULL,
  system_identifier TEXT NOT NULL,
  updated_at_ms INTEGER NOT NULL
);

-- What workers, the command line and other clusters read: the object that declared it may be gone. settings may change at any time.
CREATE TABLE IF NOT EXISTS sync_backfill_definitions(
  name TEXT PRIMARY KEY,
  version INTEGER NOT NULL,
  hash TEXT NOT NULL,
  definition TEXT NOT NULL,
  settings TEXT NOT NULL
);

-- kind claim: one for each claimed checkpoint row, with what was true at the claim (facts: log epoch, system identifier, fingerprint,
--   number of restarts). kind range: a key range (lower, upper] of the scan with its cursor, numbered over the whole checkpoint.
-- kind position: for a checkpoint row '*' over commit logs, the position in the log of one partition (facts: that log's epoch). kind proof: stands only inside
-- the transaction that activates. kind floor: the highest owner epoch an abandoned row had. kind abandoned: by whom and why (last_error).
CREATE TABLE IF NOT EXISTS sync_backfill_progress(
  checkpoint TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('claim', 'range', 'position', 'proof', 'floor', 'abandoned')),
  partition TEXT NOT NULL,
  range_no INTEGER NOT NULL DEFAULT 0,
  claim_token TEXT NOT NULL DEFAULT '',
  owner_epoch INTEGER NOT NULL DEFAULT 0,
  lease_epoch INTEGER NOT NULL DEFAULT 0,
  lower_key TEXT,
  upper_key TEXT,
  cursor_key TEXT,
  done INTEGER NOT NULL DEFAULT 0,
  position INTEGER NOT NULL DEFAULT 0,
  rows_done INTEGER NOT NULL DEFAULT 0,
  facts TEXT NOT NULL DEFAULT '{}',
  last_error TEXT NOT NULL DEFAULT '',
  updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY(checkpoint, kind, partition, range_no)
);

-- Keys that a batch skipped because the program held their rows; the cursor has passed them.
CREATE TABLE IF NOT EXISTS sync_backfill_leftovers(
  checkpoint TEXT NOT NULL,
  partition TEXT NOT NULL,
  row_key TEXT NOT NULL,
  PRIMARY KEY(checkpoint, partition, row_key)
);


-- The log asked by table: coverage must not walk the log (docs/design.md section 3).
CREATE INDEX IF NOT EXISTS syncbarrier_changes_by_table
  ON sync_changes(partition, tbl, commit_seq);

-- SQLite only: what an INSERT OR REPLACE is about to replace; see guards.sql.
CREATE TABLE IF NOT EXISTS sync_barrier_replaced(
  tbl TEXT NOT NULL,
  row_key TEXT NOT NULL,
  first_value INTEGER NOT NULL,
  second_value INTEGER NOT NULL,
  PRIMARY KEY(tbl, row_key)
);
