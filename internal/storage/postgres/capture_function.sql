{{/*
The body of the function that writes the changes of one table into the log (docs/design.md section 5), as a Go template. Its actions give
constants, and expressions over a row behind an alias: OLD and o are a row before the change, NEW and n the same row after it, and c is
one of the relation "changed": v, the text that decides the partition, and k1, k2, ..., the key.

A commit of a captured partition is the transaction itself: its number is the transaction's id. So nothing has to be remembered, a
savepoint that is rolled back takes its rows along, and no row is updated that two transactions share. If a number were allocated from
sync_partitions here, programs that change two rows in a transaction would deadlock where they did not before.

Names: columns of the table stand behind an alias, in queries that use no variable; the variables begin with _sb_. No EXCEPTION block
around anything that writes: it would be a subtransaction with a number of its own for each call.
*/ -}}
#variable_conflict use_column
DECLARE
  _sb_xid bigint;
  _sb_setting text;
  _sb_partitions text[];
  _sb_keys text[];
  _sb_ops smallint[];
  _sb_partition text;
{{- if plain}}
  _sb_partition_before text;
  _sb_key text;
  _sb_key_before text;
  _sb_rows integer;
  _sb_changed boolean;
  _sb_moved boolean := false;
  _sb_list_old boolean := false;
{{- end}}
BEGIN
  -- Which keys of which partitions? op 1: a row that is there. 2: one that is gone. 3: a range of keys.
  IF TG_LEVEL = 'ROW' THEN
{{- if plain}}
    IF TG_OP = 'UPDATE' THEN
      BEGIN
        IF NOT ({{differs "OLD" "NEW"}}) THEN
          RETURN NULL;
        END IF;
      EXCEPTION
        WHEN undefined_column THEN -- as below
      END;
    END IF;
{{- end}}
    IF TG_OP <> 'DELETE' THEN
      _sb_partitions := ARRAY[{{partition "NEW"}}];
      _sb_keys := ARRAY[{{key "NEW"}}];
      _sb_ops := ARRAY[1::smallint];
    END IF;
    IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND ({{partition "OLD"}} <> _sb_partitions[1] OR ({{key "OLD"}}) COLLATE "C" <> _sb_keys[1]) THEN
      _sb_partitions := _sb_partitions || {{partition "OLD"}};
      _sb_keys := _sb_keys || {{key "OLD"}};
      _sb_ops := _sb_ops || 2::smallint;
    END IF;
{{- if plain}}
  ELSIF TG_OP = 'INSERT' THEN
    WITH few AS (
      SELECT count(*) AS n FROM (SELECT FROM _sb_new LIMIT {{most}} + 1) AS f
    )
    SELECT array_agg({{partition "n"}}), array_agg({{key "n"}}), array_agg(1::smallint), (SELECT f.n FROM few AS f)
      INTO _sb_partitions, _sb_keys, _sb_ops, _sb_rows
      FROM _sb_new AS n
     WHERE (SELECT f.n <= {{most}} FROM few AS f);
    IF _sb_rows > {{most}} THEN
      WITH changed AS (
        SELECT {{parts "n"}}
          FROM _sb_new AS n
      )
      SELECT array_agg(r.p), array_agg(r.k), array_agg(3::smallint)
        INTO _sb_partitions, _sb_keys, _sb_ops
        FROM ({{ranges}}) AS r;
    END IF;
  ELSIF TG_OP = 'DELETE' THEN
    WITH few AS (
      SELECT count(*) AS n FROM (SELECT FROM _sb_old LIMIT {{most}} + 1) AS f
    )
    SELECT array_agg({{partition "o"}}), array_agg({{key "o"}}), array_agg(2::smallint), (SELECT f.n FROM few AS f)
      INTO _sb_partitions, _sb_keys, _sb_ops, _sb_rows
      FROM _sb_old AS o
     WHERE (SELECT f.n <= {{most}} FROM few AS f);
    _sb_list_old := _sb_rows > {{most}};
  ELSE
    -- The program may have renamed or dropped a column since this was written. Then each row that was updated counts as changed; otherwise
    -- every update of the program would fail. The block does not write, so its subtransaction gets no number of its own.
    BEGIN
      -- Most statements change one row: one look tells how many there are, and what the first one is.
      SELECT (SELECT count(*) FROM (SELECT FROM _sb_new LIMIT 2) AS few),
             {{differs "o" "n"}}, {{partition "n"}}, {{key "n"}}, {{partition "o"}}, {{key "o"}}
        INTO _sb_rows, _sb_changed, _sb_partition, _sb_key, _sb_partition_before, _sb_key_before
        FROM _sb_old AS o
       CROSS JOIN _sb_new AS n
       LIMIT 1;
      IF _sb_rows = 1 AND _sb_changed THEN
        _sb_partitions := ARRAY[_sb_partition];
        _sb_keys := ARRAY[_sb_key];
        _sb_ops := ARRAY[1::smallint];
        IF _sb_partition_before <> _sb_partition OR _sb_key_before <> _sb_key THEN
          _sb_partitions := _sb_partitions || _sb_partition_before;
          _sb_keys := _sb_keys || _sb_key_before;
          _sb_ops := _sb_ops || 2::smallint;
        END IF;
      ELSIF _sb_rows > 1 THEN
        -- Rows are paired by their keys. Few of them may have changed in what counts, or none, however many there are. FULL JOIN, because a
        -- plan that was made for two rows is kept for 100,000: an inner join may then be a nested loop, a full one cannot be.
        WITH paired AS {{if byColumn}}MATERIALIZED {{end}}(
          SELECT {{parts "n"}}{{if byColumn}}, {{value "o"}} AS w{{end}}, ({{present "o"}}) <> ({{present "n"}}) AS alone
            FROM _sb_old AS o
            FULL JOIN _sb_new AS n
              ON {{same "o" "n"}}
           WHERE ({{present "o"}}) <> ({{present "n"}})
              OR {{differs "o" "n"}}
        ), changed AS MATERIALIZED (
          SELECT {{names "p"}}, 1::smallint AS op, p.alone
            FROM paired AS p
{{- if byColumn}}
           UNION ALL
          SELECT {{names "p" "w"}}, 2::smallint, p.alone
            FROM paired AS p
           WHERE p.w IS DISTINCT FROM p.v
{{- end}}
        ), size AS (
          SELECT count(*) > {{most}} AS large, coalesce(bool_or(s.alone), false) AS alone
            FROM changed AS s
        )
        SELECT array_agg(r.p), array_agg(r.k), array_agg(r.op), (SELECT s.alone FROM size AS s)
          INTO _sb_partitions, _sb_keys, _sb_ops, _sb_moved
          FROM (
            SELECT {{partition "c"}} AS p, {{key "c"}} AS k, c.op
              FROM changed AS c
             WHERE NOT (SELECT s.large OR s.alone FROM size AS s)
             UNION ALL
            SELECT r.p, r.k, 3::smallint
              FROM ({{ranges}}) AS r
             WHERE (SELECT s.large AND NOT s.alone FROM size AS s)
          ) AS r;
      END IF;
    EXCEPTION
      WHEN undefined_column THEN
        _sb_moved := true;
    END;
    IF _sb_moved THEN
      -- A key without a partner: keys changed. Where rows have taken keys of each other, the pairs are of different rows, and nobody can
      -- tell which. So all keys count, the old ones and the new ones.
      SELECT count(*) > {{most}} INTO _sb_list_old FROM (SELECT FROM _sb_new LIMIT {{most}} + 1) AS f;
      IF _sb_list_old THEN
        WITH changed AS (
          SELECT {{parts "n"}}
            FROM _sb_new AS n
        )
        SELECT array_agg(r.p), array_agg(r.k), array_agg(3::smallint)
          INTO _sb_partitions, _sb_keys, _sb_ops
          FROM ({{ranges}}) AS r;
      ELSE
        SELECT array_agg(r.p), array_agg(r.k), array_agg(r.op)
          INTO _sb_partitions, _sb_keys, _sb_ops
          FROM (
            SELECT b.p, b.k, min(b.op) AS op
              FROM (
                SELECT {{partition "n"}} AS p, ({{key "n"}}) COLLATE "C" AS k, 1::smallint AS op
                  FROM _sb_new AS n
                 UNION ALL
                SELECT {{partition "o"}}, {{key "o"}}, 2::smallint
                  FROM _sb_old AS o
              ) AS b
             GROUP BY b.p, b.k
          ) AS r;
      END IF;
    END IF;
{{- end}}
  END IF;
  IF _sb_partitions IS NULL{{if plain}} AND NOT _sb_list_old{{end}} THEN
    RETURN NULL;
  END IF;

  -- Log them.
  _sb_xid := pg_current_xact_id()::text::bigint;
  IF cardinality(_sb_partitions) = 1 THEN
    INSERT INTO {{schema}}.sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
    VALUES (_sb_partitions[1], _sb_xid, nextval({{sequence}}), {{table}}, _sb_keys[1], _sb_ops[1], '{}');
  ELSIF cardinality(_sb_partitions) > 1 THEN
    INSERT INTO {{schema}}.sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
    SELECT c.p, _sb_xid, nextval({{sequence}}), {{table}}, c.k, c.op, '{}'
      FROM unnest(_sb_partitions, _sb_keys, _sb_ops) AS c(p, k, op);
    _sb_partitions := ARRAY(SELECT DISTINCT c.p FROM unnest(_sb_partitions) AS c(p) ORDER BY c.p);
  END IF;
{{- if plain}}
  IF _sb_list_old THEN
    -- Nobody can look up the keys of so many rows that are gone, so they are listed, as a JSON array in the payload of a range.
    WITH placed AS (
      SELECT {{parts "o"}}, (row_number() OVER () - 1) / {{most}} AS place
        FROM _sb_old AS o
    ), listed AS (
      SELECT {{listedIn}} AS p, {{list}} AS keys, {{ends}} AS ends
        FROM placed AS c
       GROUP BY {{if byColumn}}c.v, {{end}}c.place
    ), logged AS (
      INSERT INTO {{schema}}.sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes, payload)
      SELECT l.p, _sb_xid, nextval({{sequence}}), {{table}}, to_json(l.ends)::text, 3, '{}', convert_to(to_json(l.keys)::text, 'UTF8')
        FROM listed AS l
      RETURNING partition
    )
    SELECT array_agg(DISTINCT l.p)
      INTO _sb_partitions
      FROM (SELECT partition FROM logged UNION ALL SELECT unnest(_sb_partitions)) AS l(p);
  END IF;
{{- end}}

  -- The partition's row is shared with every other writer and conflicts with an activation's FOR UPDATE alone, which thereby waits for us.
  -- Without it an activation could commit while our change is on its way.
  _sb_setting := current_setting('syncbarrier.writer_version', true);
  FOREACH _sb_partition IN ARRAY _sb_partitions LOOP
    PERFORM 1
      FROM {{schema}}.sync_partitions AS s
     WHERE s.partition = _sb_partition
       FOR KEY SHARE;
    IF NOT FOUND THEN
      -- A partition without a row, of a value that is new. Whoever made the row here would hold it until he ends, and another writer of the
      -- partition would wait for him: a deadlock, if he then wants a row of that writer. So the writer shares the row of the table instead,
      -- and announces the partition in the log of the table (op 4); a worker makes its row.
      PERFORM 1
        FROM {{schema}}.sync_partitions AS s
       WHERE s.partition = {{prefix}}
         FOR KEY SHARE;
      IF NOT FOUND THEN
        INSERT INTO {{schema}}.sync_partitions(partition)
        VALUES ({{prefix}})
            ON CONFLICT DO NOTHING;
        PERFORM 1
          FROM {{schema}}.sync_partitions AS s
         WHERE s.partition = {{prefix}}
           FOR KEY SHARE;
      END IF;
      INSERT INTO {{schema}}.sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
      VALUES ({{prefix}}, _sb_xid, nextval({{sequence}}), {{table}}, _sb_partition, 4, '{}');
    END IF;
    -- The fence on the log judges the version. A commit that is there already is our own.
    INSERT INTO {{schema}}.sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
    VALUES (_sb_partition, _sb_xid, 'syncbarrier.capture', _sb_xid::text, session_user, (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
            CASE WHEN _sb_setting ~ '^[0-9]{1,10}$' AND _sb_setting::bigint BETWEEN 1 AND 2147483647 THEN _sb_setting::bigint END)
        ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN NULL;
END
