-- Interlock's functions. @schema@ stands for the schema's quoted name.

-- What a new connection has to know. Begins a new epoch if the volatile table was emptied.
CREATE FUNCTION @schema@.hello(OUT store bigint, OUT epoch bigint, OUT floor_epoch bigint)
LANGUAGE plpgsql AS $$
DECLARE
  here text;
  m record;
BEGIN
  SELECT s.system_identifier || ':' || '@schema@.meta'::regclass::oid || ':' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    INTO here FROM pg_control_system() s;
  SELECT t.store, t.epoch, t.floor_epoch, t.origin, a.epoch AS alive INTO m FROM @schema@.meta t LEFT JOIN @schema@.alive a ON true;
  IF m.alive IS DISTINCT FROM m.epoch OR m.origin <> here THEN
    SELECT t.store, t.epoch, t.floor_epoch, t.origin, t.soft INTO m FROM @schema@.meta t FOR UPDATE;
    PERFORM 1 FROM @schema@.alive a WHERE a.epoch = m.epoch;
    IF NOT FOUND OR m.origin <> here THEN
      IF m.origin <> here THEN
        PERFORM 1 FROM @schema@.transaction t WHERE t.position >= pg_current_xact_id()::text::bigint << 8;
        IF FOUND THEN
          RAISE EXCEPTION 'the store was copied from a server that had come further' USING ERRCODE = 'data_corrupted';
        END IF;
      END IF;
      m.epoch := m.epoch + 1;
      IF m.soft OR m.origin <> here THEN
        m.floor_epoch := m.epoch;
      END IF;
      UPDATE @schema@.meta SET epoch = m.epoch, floor_epoch = m.floor_epoch, soft = false, origin = here;
      DELETE FROM @schema@.alive;
      INSERT INTO @schema@.alive (epoch) VALUES (m.epoch);
    END IF;
  END IF;
  store := m.store;
  epoch := m.epoch;
  floor_epoch := m.floor_epoch;
END $$;

-- Refuses a statement whose sender knows another epoch.
CREATE FUNCTION @schema@.same_epoch(expected bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  PERFORM 1 FROM @schema@.alive WHERE epoch = expected;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the server has crashed since' USING ERRCODE = 'IL001';
  END IF;
  RETURN true;
END $$;

-- Whether the expectations of a request hold. STABLE: all of it sees the one snapshot of the statement that calls it.
-- r_position: > 0 a version, -1 no live entry, -2 unchanged since the snapshot. x_i: which read, or minus which span.
CREATE FUNCTION @schema@.judge(
  snapshot_max bigint, snapshot_open bigint[],
  r_key bytea[], r_position bigint[], r_nonce bigint[], r_alive boolean[], s_start bytea[], s_stop bytea[],
  OUT x_i integer[], OUT x_key bytea[], OUT x_position bigint[], OUT x_nonce bigint[], OUT x_value bytea[],
  OUT x_expires_at double precision[], OUT x_id bytea[], OUT x_agent text[], OUT x_at double precision[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
  reads integer := coalesce(cardinality(r_key), 0);
  spans integer := coalesce(cardinality(s_start), 0);
  holds boolean;
  e record;
  t record;
BEGIN
  FOR n IN 1 .. reads + spans LOOP
    IF n <= reads THEN
      SELECT key, position, nonce, value, expires_at, quiet INTO e FROM @schema@.entry WHERE key = r_key[n];
      IF r_position[n] > 0 THEN
        holds := e.position = r_position[n] AND e.nonce = r_nonce[n] AND e.value IS NOT NULL;
      ELSIF r_position[n] = -1 THEN
        holds := e.value IS NULL;
      ELSE
        holds := e.position IS NULL OR (e.position < snapshot_max AND e.position <> ALL (snapshot_open)
          AND e.position | 255 <> ALL (snapshot_open));
      END IF;
      IF r_alive[n] AND e.expires_at <= extract(epoch FROM clock_timestamp()) THEN
        holds := false;
      END IF;
    ELSE
      SELECT key, position, nonce, value, expires_at, quiet INTO e FROM @schema@.entry
        WHERE key >= s_start[n - reads] AND key < s_stop[n - reads] AND listed
          AND NOT (position < snapshot_max AND position <> ALL (snapshot_open) AND position | 255 <> ALL (snapshot_open))
        ORDER BY key LIMIT 1;
      holds := NOT FOUND;
    END IF;
    CONTINUE WHEN holds;
    t := NULL;
    SELECT id, agent, at INTO t FROM @schema@.transaction WHERE position = e.position AND state > 0;
    x_i := x_i || CASE WHEN n <= reads THEN n ELSE reads - n END;
    x_key := array_append(x_key, CASE WHEN n <= reads THEN r_key[n] ELSE e.key END);
    x_position := array_append(x_position, CASE WHEN e.quiet AND e.value IS NULL THEN NULL ELSE e.position END);
    x_nonce := array_append(x_nonce, e.nonce);
    x_value := array_append(x_value, CASE WHEN octet_length(e.value) <= 1024 THEN e.value END);
    x_expires_at := array_append(x_expires_at, e.expires_at);
    x_id := array_append(x_id, t.id);
    x_agent := array_append(x_agent, t.agent);
    x_at := array_append(x_at, t.at);
  END LOOP;
END $$;

CREATE FUNCTION @schema@.fetched(
  f_key bytea[],
  OUT f_position bigint[], OUT f_nonce bigint[], OUT f_value bytea[], OUT f_expires_at double precision[])
LANGUAGE plpgsql STABLE AS $$
DECLARE
  e record;
BEGIN
  FOR n IN 1 .. coalesce(cardinality(f_key), 0) LOOP
    SELECT position, nonce, value, expires_at INTO e FROM @schema@.entry
      WHERE key = f_key[n] AND NOT (quiet AND value IS NULL);
    f_position := array_append(f_position, e.position);
    f_nonce := array_append(f_nonce, e.nonce);
    f_value := array_append(f_value, e.value);
    f_expires_at := array_append(f_expires_at, e.expires_at);
  END LOOP;
END $$;

-- Whether a snapshot shows all that lies below the horizon. See ``tokens.contains``.
CREATE FUNCTION @schema@.kept(snapshot_max bigint, snapshot_open bigint[], horizon_max bigint, horizon_open bigint[])
RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  o bigint;
BEGIN
  FOREACH o IN ARRAY snapshot_open LOOP
    IF (o - CASE WHEN o & 255 = 255 THEN 255 ELSE 0 END) < horizon_max
        AND o <> ALL (horizon_open) AND o | 255 <> ALL (horizon_open) THEN
      RETURN false;
    END IF;
  END LOOP;
  RETURN horizon_max <= snapshot_max;
END $$;

-- A value after the operations ``first`` to ``last`` (1 add, 2 append, 3 last); NULL if one of them is refused.
CREATE FUNCTION @schema@.merged(
  value bytea, first integer, last integer, o_kind integer[], o_operand bytea[], o_floor bytea[], o_ceiling bytea[])
RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  amount numeric;
  total numeric;
BEGIN
  FOR i IN first .. last LOOP
    IF o_kind[i] = 1 THEN
      amount := convert_from(substr(o_operand[i], 2), 'SQL_ASCII')::numeric;
      IF value IS NULL THEN
        total := amount;
      ELSIF get_byte(value, 0) <> 105 THEN
        RETURN NULL;
      ELSE
        total := amount + convert_from(substr(value, 2), 'SQL_ASCII')::numeric;
      END IF;
      IF (amount < 0 AND total < convert_from(substr(o_floor[i], 2), 'SQL_ASCII')::numeric)
          OR (amount > 0 AND total > convert_from(substr(o_ceiling[i], 2), 'SQL_ASCII')::numeric)
          OR abs(total) >= 1e4000 THEN
        RETURN NULL;
      END IF;
      value := convert_to('i' || total, 'SQL_ASCII');
    ELSIF o_kind[i] = 2 THEN
      IF get_byte(value, 0) <> 108 OR coalesce(octet_length(value), 1) + 4 + octet_length(o_operand[i]) > 1048576 THEN
        RETURN NULL;
      END IF;
      value := coalesce(value, '\x6c') || int4send(octet_length(o_operand[i])) || o_operand[i];
    ELSE
      value := o_operand[i];
    END IF;
  END LOOP;
  RETURN value;
END $$;

-- The commit. status: 0 done, 1 clashes, 2 a merge is refused, 3 a computed merge is stale, 4 snapshot too old,
-- 5 id committed before, 6 id fenced. flags: 1 not durable, 2 quiet.
-- p_locks: NULL under SERIALIZABLE. The newest record is then not read: every commit would depend on every other.
-- Merge k has m_count[k] operations of o_* (1 add, 2 append, 3 last); or none, then it was computed from m_position[k].
CREATE FUNCTION @schema@.commit(
  p_id bytea, p_nonce bigint, p_agent text, p_flags integer, p_record bytea,
  snapshot_max bigint, snapshot_open bigint[], p_locks bigint[], recorded integer,
  r_key bytea[], r_position bigint[], r_nonce bigint[], r_alive boolean[], s_start bytea[], s_stop bytea[],
  c_start bytea[], c_stop bytea[], w_key bytea[], w_value bytea[], w_ttl double precision[], w_listed boolean[],
  m_key bytea[], m_count integer[], m_position bigint[], m_nonce bigint[], m_value bytea[],
  o_kind integer[], o_operand bytea[], o_floor bytea[], o_ceiling bytea[], f_key bytea[],
  OUT status integer, OUT own bigint, OUT at double precision, OUT snapshot text, OUT top bigint,
  OUT x_i integer[], OUT x_key bytea[], OUT x_position bigint[], OUT x_nonce bigint[], OUT x_value bytea[],
  OUT x_expires_at double precision[], OUT x_id bytea[], OUT x_agent text[], OUT x_at double precision[],
  OUT b_i integer, OUT b_position bigint[], OUT b_nonce bigint[], OUT b_value bytea[], OUT b_changed boolean[],
  OUT f_position bigint[], OUT f_nonce bigint[], OUT f_value bytea[], OUT f_expires_at double precision[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  l bigint;
  ignored text;
  j record;
  e record;
  m record;
  merges integer := coalesce(cardinality(m_key), 0);
  step integer := 0;
  before bytea;
  after bytea;
  deadline double precision;
  n_value bytea[];
  p_quiet boolean := p_flags & 2 <> 0;
  holds boolean := true;
  t_i integer[];
  t_position bigint[];
  t_nonce bigint[];
  puts bytea[];
  others bytea[];
  cleared bytea[];
BEGIN
  IF p_locks IS NOT NULL THEN
    FOREACH l IN ARRAY p_locks LOOP
      IF l & 1 = 1 THEN
        ignored := pg_advisory_xact_lock(l - 1)::text;
      ELSE
        ignored := pg_advisory_xact_lock_shared(l)::text;
      END IF;
    END LOOP;
  END IF;
  status := 0;
  -- A look-up for each read, which is quick; what else is expected, and what to say of what does not hold, takes longer.
  FOR n IN 1 .. coalesce(cardinality(r_key), 0) LOOP
    SELECT position, nonce, quiet, value IS NOT NULL AS live INTO e FROM @schema@.entry WHERE key = r_key[n];
    holds := CASE WHEN r_position[n] > 0 THEN e.live AND e.position = r_position[n] AND e.nonce = r_nonce[n]
      WHEN r_position[n] = -1 THEN e.live IS NOT TRUE
      ELSE e.position IS NULL OR (e.position < snapshot_max AND e.position <> ALL (snapshot_open)
        AND e.position | 255 <> ALL (snapshot_open)) END;
    EXIT WHEN holds IS NOT TRUE;
    IF r_position[n] = -1 AND n <= recorded AND NOT e.live AND NOT e.quiet THEN
      t_i := t_i || n;
      t_position := t_position || e.position;
      t_nonce := t_nonce || e.nonce;
    END IF;
  END LOOP;
  IF holds AND s_start IS NOT NULL THEN
    PERFORM 1 FROM unnest(s_start, s_stop) u (start, stop) CROSS JOIN LATERAL (
      SELECT 1 FROM @schema@.entry WHERE key >= u.start AND key < u.stop AND listed
        AND NOT (position < snapshot_max AND position <> ALL (snapshot_open) AND position | 255 <> ALL (snapshot_open))
        ORDER BY key LIMIT 1) entered;
    holds := NOT FOUND;
  END IF;
  IF holds IS NOT TRUE OR r_alive IS NOT NULL THEN
    SELECT * INTO j FROM @schema@.judge(
      snapshot_max, snapshot_open, r_key, r_position, r_nonce, r_alive, s_start, s_stop);
    IF j.x_i IS NOT NULL THEN
      status := 1;
      merges := 0;
    END IF;
  END IF;

  -- Merges are computed before anything is written, so that a refusal leaves nothing.
  FOR n IN 1 .. merges LOOP
    SELECT position, nonce, value, listed INTO e FROM @schema@.entry WHERE key = m_key[n];
    IF e.value IS NOT NULL AND e.listed AND c_start IS NOT NULL THEN
      FOR i IN 1 .. cardinality(c_start) LOOP
        IF m_key[n] >= c_start[i] AND m_key[n] < c_stop[i] THEN
          e.value := NULL;
        END IF;
      END LOOP;
    END IF;
    before := e.value;
    after := before;
    b_position := array_append(b_position, CASE WHEN before IS NULL THEN 0 ELSE e.position END);
    b_nonce := array_append(b_nonce, CASE WHEN before IS NULL THEN 0 ELSE e.nonce END);
    b_value := array_append(b_value, before);
    IF m_count[n] = 0 THEN
      IF b_position[n] <> m_position[n] OR b_nonce[n] <> m_nonce[n] THEN
        status := 3;
      END IF;
      after := m_value[n];
    ELSE
      after := @schema@.merged(before, step + 1, step + m_count[n], o_kind, o_operand, o_floor, o_ceiling);
      IF after IS NULL THEN
        b_i := n;
      END IF;
    END IF;
    step := step + m_count[n];
    n_value := array_append(n_value, after);
    b_changed := b_changed || (after IS DISTINCT FROM before);
    IF b_i IS NOT NULL THEN
      status := 2;
      EXIT;
    END IF;
  END LOOP;

  -- After the expectations: compaction may have dropped a tombstone that they needed, and then the horizon shows it.
  SELECT h.horizon_max, h.horizon_open, h.forgotten_fence, t.position AS newest, t.at AS latest,
      pg_current_snapshot()::text AS seen INTO m
    FROM @schema@.meta h
      LEFT JOIN (SELECT position, at FROM @schema@.transaction WHERE p_locks IS NOT NULL ORDER BY position DESC LIMIT 1) t
        ON true;
  IF status > 0 OR p_id <= m.forgotten_fence THEN
    SELECT CASE WHEN state > 0 THEN 5 ELSE 6 END INTO l FROM @schema@.transaction WHERE id = p_id;
    IF FOUND THEN
      status := l;
      RETURN;
    END IF;
  END IF;
  -- Every position below the first that is open is shown; most often the horizon lies there.
  IF p_id <= m.forgotten_fence OR (m.horizon_max > coalesce((snapshot_open[1] | 255) - 255, snapshot_max)
      AND NOT @schema@.kept(snapshot_max, snapshot_open, m.horizon_max, m.horizon_open)) THEN
    status := 4;
    RETURN;
  END IF;
  IF status = 1 THEN
    x_i := j.x_i; x_key := j.x_key; x_position := j.x_position; x_nonce := j.x_nonce; x_value := j.x_value;
    x_expires_at := j.x_expires_at; x_id := j.x_id; x_agent := j.x_agent; x_at := j.x_at;
  END IF;
  IF status > 0 THEN
    RETURN;
  END IF;

  own := pg_current_xact_id()::text::bigint << 8;  -- only now: positions follow the order of the locks
  at := greatest(extract(epoch FROM clock_timestamp())::double precision, m.latest);
  snapshot := m.seen;
  top := m.newest;
  FOR n IN 1 .. coalesce(cardinality(c_start), 0) LOOP
    INSERT INTO @schema@.superseded (position, nonce, until, expires_at, listed, quiet, key, value)
      SELECT position, nonce, own, expires_at, listed, quiet, key, value FROM @schema@.entry
        WHERE key >= c_start[n] AND key < c_stop[n] AND listed AND value IS NOT NULL AND NOT (quiet AND p_quiet);
    WITH changed AS (
      UPDATE @schema@.entry SET position = own, nonce = p_nonce, expires_at = NULL, value = NULL, quiet = p_quiet,
          torn = CASE WHEN quiet AND p_quiet THEN own ELSE torn END
        WHERE key >= c_start[n] AND key < c_stop[n] AND listed AND value IS NOT NULL RETURNING key)
      SELECT coalesce(cleared, '{}') || coalesce(array_agg(key), '{}') INTO cleared FROM changed;
  END LOOP;
  FOR n IN 1 .. coalesce(cardinality(w_key), 0) LOOP
    deadline := at + w_ttl[n];
    IF w_value[n] IS NULL THEN
      others := array_append(others, w_key[n]);
    ELSE
      puts := array_append(puts, w_key[n]);
    END IF;
    IF w_value[n] IS NULL OR p_quiet OR c_start IS NOT NULL THEN
      ignored := @schema@.put(w_key[n], w_value[n], deadline, w_listed[n], own, p_nonce, p_quiet)::text;
    ELSE  -- what ``put`` does, for the common commit
      INSERT INTO @schema@.superseded (position, nonce, until, expires_at, listed, quiet, key, value)
        SELECT e.position, e.nonce, own, e.expires_at, e.listed, e.quiet, e.key, e.value FROM @schema@.entry e
          WHERE e.key = w_key[n] AND NOT (e.quiet AND e.value IS NULL);
      INSERT INTO @schema@.entry (position, nonce, expires_at, listed, quiet, key, value)
        VALUES (own, p_nonce, deadline, w_listed[n], false, w_key[n], w_value[n])
        ON CONFLICT (key) DO UPDATE SET position = excluded.position, nonce = excluded.nonce,
          expires_at = excluded.expires_at, listed = entry.listed OR excluded.listed, quiet = false, value = excluded.value;
    END IF;
  END LOOP;
  FOR n IN 1 .. merges LOOP
    IF b_changed[n] THEN
      SELECT value, expires_at, listed INTO e FROM @schema@.entry WHERE key = m_key[n];
      IF e.value IS NULL THEN
        e.expires_at := NULL;
      END IF;
      ignored := @schema@.put(
        m_key[n], n_value[n], e.expires_at, coalesce(e.listed, true), own, p_nonce, p_quiet)::text;
      others := array_append(others, m_key[n]);
    END IF;
  END LOOP;
  INSERT INTO @schema@.transaction
    (position, at, state, id, agent, record, puts, others, cleared, absent, absent_position, absent_nonce)
    VALUES (own, at, CASE WHEN p_quiet THEN 2 ELSE 1 END, p_id, p_agent, p_record, puts, others, cleared,
      t_i, t_position, t_nonce);
  IF f_key IS NOT NULL THEN
    SELECT f.f_position, f.f_nonce, f.f_value, f.f_expires_at INTO f_position, f_nonce, f_value, f_expires_at
      FROM @schema@.fetched(f_key) f;
  END IF;
  IF p_flags & 1 = 1 THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
END $$;

-- Put one version in place of another; value NULL deletes. The caller holds the key's lock.
CREATE FUNCTION @schema@.put(
  p_key bytea, p_value bytea, p_expires_at double precision, p_listed boolean, own bigint, p_nonce bigint, p_quiet boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  e record;
BEGIN
  SELECT position, nonce, expires_at, listed, quiet, value INTO e FROM @schema@.entry WHERE key = p_key;
  IF e.value IS NULL AND p_value IS NULL THEN
    RETURN;
  END IF;
  IF e.position <> own AND NOT (e.quiet AND (p_quiet OR e.value IS NULL)) THEN
    INSERT INTO @schema@.superseded (position, nonce, until, expires_at, listed, quiet, key, value)
      VALUES (e.position, e.nonce, own, e.expires_at, e.listed, e.quiet, p_key, e.value);
  END IF;
  IF e.position IS NOT NULL THEN
    UPDATE @schema@.entry SET position = own, nonce = p_nonce, expires_at = p_expires_at,
        listed = listed OR p_listed, quiet = p_quiet, value = p_value,
        torn = CASE WHEN e.quiet AND p_quiet AND e.value IS NOT NULL THEN own ELSE torn END
      WHERE key = p_key;
  END IF;
  IF e.position IS NULL OR NOT FOUND THEN  -- compaction, which takes no locks, may just have dropped a tombstone
    INSERT INTO @schema@.entry (position, nonce, expires_at, listed, quiet, key, value)
      VALUES (own, p_nonce, p_expires_at, p_listed, p_quiet, p_key, p_value);
  END IF;
END $$;

-- What is recorded of an id: 0 fenced, 1 or 2 committed, -1 nothing, -2 too old to tell. Writes the fence if asked to.
CREATE FUNCTION @schema@.settle(p_id bytea, fence boolean) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  found_state integer;
  oldest bytea;
BEGIN
  SELECT state INTO found_state FROM @schema@.transaction WHERE id = p_id;
  IF FOUND THEN
    RETURN found_state;
  END IF;
  SELECT forgotten INTO oldest FROM @schema@.meta;
  IF p_id <= oldest THEN
    RETURN -2;
  ELSIF NOT fence THEN
    RETURN -1;
  END IF;
  INSERT INTO @schema@.transaction (position, at, state, id, agent)
    VALUES (pg_current_xact_id()::text::bigint << 8, extract(epoch FROM clock_timestamp()), 0, p_id, '')
    ON CONFLICT (id) DO NOTHING;
  IF FOUND THEN
    RETURN 0;
  END IF;
  SELECT state INTO found_state FROM @schema@.transaction WHERE id = p_id;
  RETURN coalesce(found_state, -2);
END $$;

-- Raise the horizon and drop what lies below it, at most p_limit transactions; how many things were dropped.
-- One transaction: whoever sees something missing sees the horizon that says so. The newest record always stays.
CREATE FUNCTION @schema@.compact(old_max bigint, old_open bigint[], new_max bigint, new_open bigint[], p_limit integer)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  dropped integer;
  newest bigint;
BEGIN
  UPDATE @schema@.meta SET horizon_max = new_max, horizon_open = new_open
    WHERE horizon_max = old_max AND horizon_open = old_open;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  SELECT max(position) INTO newest FROM @schema@.transaction;
  WITH gone AS (
      DELETE FROM @schema@.transaction WHERE position IN (
        SELECT position FROM @schema@.transaction
          WHERE position < new_max AND position <> ALL (new_open) AND position | 255 <> ALL (new_open)
            AND position < newest ORDER BY position LIMIT p_limit)
        RETURNING id, state, puts, others, cleared),
    keys AS (SELECT DISTINCT unnest(puts || others || cleared) AS key FROM gone),
    versions AS (
      DELETE FROM @schema@.superseded s USING keys
        WHERE s.key = keys.key AND s.until < new_max AND s.until <> ALL (new_open)
          AND s.until | 255 <> ALL (new_open) RETURNING 1),
    tombstones AS (
      DELETE FROM @schema@.entry e USING keys
        WHERE e.key = keys.key AND e.value IS NULL AND e.position < new_max AND e.position <> ALL (new_open)
          AND e.position | 255 <> ALL (new_open) RETURNING 1),
    told AS (
      UPDATE @schema@.meta SET
        forgotten = greatest(forgotten, (SELECT id FROM gone ORDER BY id DESC LIMIT 1)),
        forgotten_fence = greatest(forgotten_fence, (SELECT id FROM gone WHERE state = 0 ORDER BY id DESC LIMIT 1))
        WHERE EXISTS (SELECT 1 FROM gone) RETURNING 1)
    SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM versions) + (SELECT count(*) FROM tombstones) INTO dropped;
  RETURN dropped;
END $$;
