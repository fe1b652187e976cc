-- Several commits in one call. @schema@ stands for the schema's quoted name.

-- They touch different keys, except that any number may merge the same key. Each is judged by itself and takes a place of
-- its own. Commit i has the id p_id[i] and the rows r_end[i] + 1 to r_end[i + 1] of r_* (what it expects; r_place: which
-- read of the feed record, 0 for none; the rows behind r_end[size + 1] are expected by every commit), w_end[i] + 1 to w_put[i] of w_* (puts), w_put[i] + 1 to w_end[i + 1] (deletes), and
-- likewise of h_* (what its snapshot hides), o_* (the operations of its one merge, of the key k_key[m_slot[i]]) and s_*
-- (the ranges that it validates, into which no other one writes).
-- status as in ``commit``. x_*: what clashes, x_commit: for which commit.
CREATE FUNCTION @schema@.commit_group(
  p_locks bigint[], p_id bytea[], p_nonce bigint[], p_agent text[], p_record bytea[],
  snapshot_max bigint[], snapshot_low bigint, h_end integer[], h_open bigint[],
  r_end integer[], r_place integer[], r_key bytea[], r_position bigint[], r_nonce bigint[],
  w_put integer[], w_end integer[], w_commit integer[],
  w_key bytea[], w_value bytea[], w_ttl double precision[], w_listed boolean[],
  k_key bytea[], m_slot integer[], o_end integer[], o_kind integer[], o_operand bytea[], o_floor bytea[], o_ceiling bytea[],
  s_end integer[], s_start bytea[], s_stop bytea[],
  OUT status integer[], OUT own bigint, OUT at double precision, OUT snapshot text, OUT top bigint,
  OUT b_changed boolean[], OUT b_value bytea[], OUT x_commit integer[],
  OUT x_i integer[], OUT x_key bytea[], OUT x_position bigint[], OUT x_nonce bigint[], OUT x_value bytea[],
  OUT x_expires_at double precision[], OUT x_id bytea[], OUT x_agent text[], OUT x_at double precision[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  size integer := cardinality(p_id);
  l bigint;
  ignored text;
  m record;
  j record;
  k_position bigint[];
  k_nonce bigint[];
  k_value bytea[];
  k_expires_at double precision[];
  k_listed boolean[];
  k_quiet boolean[];
  k_changed boolean[];
  hidden bigint[];
  places integer[];
  done integer := 0;
  slot integer;
  before bytea;
  after bytea;
  merged_key bytea[];
  s_slot integer[];
  s_position bigint[];
  s_nonce bigint[];
  s_until bigint[];
  s_value bytea[];
  s_expires_at double precision[];
  s_listed boolean[];
  s_quiet boolean[];
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

  -- One snapshot, newer than the locks. failed: reads that do not hold. t_*: tombstones behind what is expected absent.
  SELECT h.horizon_max, h.horizon_open, h.forgotten_fence, t.position AS newest, t.at AS latest,
      pg_current_snapshot()::text AS seen, q.failed, q.t_read, q.t_position, q.t_nonce INTO m
    FROM @schema@.meta h
      LEFT JOIN (SELECT position, at FROM @schema@.transaction WHERE p_locks IS NOT NULL ORDER BY position DESC LIMIT 1) t
        ON true
      CROSS JOIN (
        SELECT array_agg(n) FILTER (WHERE holds IS NOT TRUE) AS failed,
            array_agg(n) FILTER (WHERE tomb) AS t_read, array_agg(found) FILTER (WHERE tomb) AS t_position,
            array_agg(e_nonce) FILTER (WHERE tomb) AS t_nonce
          FROM (
            SELECT u.n, e.position AS found, e.nonce AS e_nonce,
                u.position < 0 AND u.place > 0 AND NOT e.live AND NOT e.quiet AS tomb,
                CASE WHEN u.position > 0 THEN e.position = u.position AND e.nonce = u.nonce AND e.live
                  ELSE e.live IS NOT TRUE END AS holds
              FROM unnest(r_place, r_key, r_position, r_nonce) WITH ORDINALITY u (place, key, position, nonce, n)
                LEFT JOIN LATERAL (
                  SELECT position, nonce, quiet, value IS NOT NULL AS live FROM @schema@.entry WHERE key = u.key OFFSET 0)
                e ON true) judged) q;
  at := greatest(extract(epoch FROM clock_timestamp())::double precision, m.latest);
  snapshot := m.seen;
  top := m.newest;
  status := array_fill(0, ARRAY[size]);

  IF k_key IS NOT NULL THEN
    SELECT array_agg(e.position), array_agg(e.nonce), array_agg(e.value), array_agg(e.expires_at),
        array_agg(coalesce(e.listed, true)), array_agg(coalesce(e.quiet, false)), array_agg(false)
      INTO k_position, k_nonce, k_value, k_expires_at, k_listed, k_quiet, k_changed
      FROM unnest(k_key) u LEFT JOIN LATERAL (SELECT * FROM @schema@.entry WHERE key = u OFFSET 0) e ON true;
    merged_key := array_fill(NULL::bytea, ARRAY[size]);
    b_changed := array_fill(false, ARRAY[size]);
    b_value := array_fill(NULL::bytea, ARRAY[size]);
  END IF;

  FOR i IN 1 .. size LOOP
    IF p_id[i] <= m.forgotten_fence THEN
      status[i] := 4;
    ELSIF m.horizon_max > snapshot_low AND NOT @schema@.kept(
        snapshot_max[i], coalesce(h_open[h_end[i] + 1 : h_end[i + 1]], '{}'), m.horizon_max, m.horizon_open) THEN
      status[i] := 4;
    ELSE
      -- No queries in these conditions: one that is not needed would cost more than all else that is done for a commit.
      IF m.failed IS NOT NULL THEN
        PERFORM 1 FROM unnest(m.failed) f WHERE (f > r_end[i] AND f <= r_end[i + 1]) OR f > r_end[size + 1];
        IF FOUND THEN
          status[i] := 1;
        END IF;
      END IF;
      IF s_end IS NOT NULL AND status[i] = 0 THEN
        IF s_end[i + 1] > s_end[i] THEN
          hidden := coalesce(h_open[h_end[i] + 1 : h_end[i + 1]], '{}');
          PERFORM 1 FROM unnest(s_start[s_end[i] + 1 : s_end[i + 1]], s_stop[s_end[i] + 1 : s_end[i + 1]]) u (start, stop)
            CROSS JOIN LATERAL (
              SELECT 1 FROM @schema@.entry WHERE key >= u.start AND key < u.stop AND listed
                AND NOT (position < snapshot_max[i] AND position <> ALL (hidden) AND position | 255 <> ALL (hidden))
                ORDER BY key LIMIT 1) entered;
          IF FOUND THEN
            status[i] := 1;
          END IF;
        END IF;
      END IF;
      IF m_slot[i] IS NOT NULL AND status[i] = 0 THEN
        slot := m_slot[i];
        before := k_value[slot];
        after := @schema@.merged(before, o_end[i] + 1, o_end[i + 1], o_kind, o_operand, o_floor, o_ceiling);
        b_value[i] := before;
        IF after IS NULL THEN
          status[i] := 2;
        ELSIF after IS DISTINCT FROM before THEN
          own := coalesce(own, pg_current_xact_id()::text::bigint << 8);
          IF k_position[slot] IS NOT NULL AND NOT (k_quiet[slot] AND before IS NULL) THEN
            s_slot := s_slot || slot;
            s_position := s_position || k_position[slot];
            s_nonce := s_nonce || k_nonce[slot];
            s_until := s_until || (own + done);
            s_value := array_append(s_value, before);
            s_expires_at := array_append(s_expires_at, k_expires_at[slot]);
            s_listed := s_listed || k_listed[slot];
            s_quiet := s_quiet || k_quiet[slot];
          END IF;
          IF before IS NULL THEN
            k_expires_at[slot] := NULL;
          END IF;
          k_position[slot] := own + done;
          k_nonce[slot] := p_nonce[i];
          k_value[slot] := after;
          k_quiet[slot] := false;
          k_changed[slot] := true;
          b_changed[i] := true;
          merged_key[i] := k_key[slot];
        END IF;
      END IF;
    END IF;

    IF status[i] = 0 THEN
      places := places || done;
      done := done + 1;
    ELSE
      places := array_append(places, NULL);
      SELECT CASE WHEN state > 0 THEN 5 ELSE 6 END INTO l FROM @schema@.transaction WHERE id = p_id[i];
      IF FOUND THEN
        status[i] := l;
      ELSIF status[i] = 1 THEN
        SELECT * INTO j FROM @schema@.judge(
          snapshot_max[i], coalesce(h_open[h_end[i] + 1 : h_end[i + 1]], '{}'),
          r_key[r_end[i] + 1 : r_end[i + 1]] || r_key[r_end[size + 1] + 1 : cardinality(r_key)],
          r_position[r_end[i] + 1 : r_end[i + 1]] || r_position[r_end[size + 1] + 1 : cardinality(r_key)],
          r_nonce[r_end[i] + 1 : r_end[i + 1]] || r_nonce[r_end[size + 1] + 1 : cardinality(r_key)], NULL,
          s_start[s_end[i] + 1 : s_end[i + 1]], s_stop[s_end[i] + 1 : s_end[i + 1]]);
        x_commit := x_commit || array_fill(i, ARRAY[coalesce(cardinality(j.x_i), 0)]);
        x_i := x_i || j.x_i; x_key := x_key || j.x_key; x_position := x_position || j.x_position;
        x_nonce := x_nonce || j.x_nonce; x_value := x_value || j.x_value; x_expires_at := x_expires_at || j.x_expires_at;
        x_id := x_id || j.x_id; x_agent := x_agent || j.x_agent; x_at := x_at || j.x_at;
      END IF;
    END IF;
  END LOOP;
  IF done = 0 THEN
    own := NULL;
    RETURN;
  END IF;

  own := coalesce(own, pg_current_xact_id()::text::bigint << 8);  -- only now: positions follow the order of the locks
  IF w_key IS NOT NULL THEN
    WITH w AS (
        SELECT u.key, u.value, at + u.ttl AS expires_at, u.listed, own + places[u.commit] AS place,
            p_nonce[u.commit] AS nonce
          FROM unnest(w_commit, w_key, w_value, w_ttl, w_listed) u (commit, key, value, ttl, listed)
          WHERE places[u.commit] IS NOT NULL),
      old AS (
        INSERT INTO @schema@.superseded (position, nonce, until, expires_at, listed, quiet, key, value)
          SELECT e.position, e.nonce, w.place, e.expires_at, e.listed, e.quiet, w.key, e.value
            FROM w CROSS JOIN LATERAL (SELECT * FROM @schema@.entry WHERE key = w.key OFFSET 0) e
            WHERE (w.value IS NOT NULL AND NOT e.quiet) OR e.value IS NOT NULL)
      INSERT INTO @schema@.entry (position, nonce, expires_at, listed, quiet, key, value)
        SELECT w.place, w.nonce, w.expires_at, w.listed, false, w.key, w.value FROM w
          WHERE w.value IS NOT NULL
            OR EXISTS (SELECT 1 FROM @schema@.entry e WHERE e.key = w.key AND e.value IS NOT NULL)
        ON CONFLICT (key) DO UPDATE SET position = excluded.position, nonce = excluded.nonce,
          expires_at = excluded.expires_at, listed = entry.listed OR excluded.listed, quiet = false, value = excluded.value;
  END IF;
  IF s_slot IS NOT NULL THEN
    INSERT INTO @schema@.superseded (position, nonce, until, expires_at, listed, quiet, key, value)
      SELECT u.position, u.nonce, u.until, u.expires_at, u.listed, u.quiet, k_key[u.slot], u.value
        FROM unnest(s_slot, s_position, s_nonce, s_until, s_expires_at, s_listed, s_quiet, s_value)
          u (slot, position, nonce, until, expires_at, listed, quiet, value);
  END IF;
  IF merged_key IS NOT NULL THEN
    INSERT INTO @schema@.entry (position, nonce, expires_at, listed, quiet, key, value)
      SELECT u.position, u.nonce, u.expires_at, u.listed, false, u.key, u.value
        FROM unnest(k_key, k_position, k_nonce, k_expires_at, k_listed, k_value, k_changed)
          u (key, position, nonce, expires_at, listed, value, changed) WHERE u.changed
      ON CONFLICT (key) DO UPDATE SET position = excluded.position, nonce = excluded.nonce,
        expires_at = excluded.expires_at, quiet = false, value = excluded.value;
  END IF;
  INSERT INTO @schema@.transaction
      (position, at, state, rest, id, agent, record, puts, others, absent, absent_position, absent_nonce)
    SELECT own + u.place, at, 1, done - 1 - u.place, u.id, u.agent, u.record,
        CASE WHEN w_put[u.n] > w_end[u.n] THEN w_key[w_end[u.n] + 1 : w_put[u.n]] END,
        CASE WHEN u.merged IS NOT NULL THEN array_append(w_key[w_put[u.n] + 1 : w_end[u.n + 1]], u.merged)
          WHEN w_end[u.n + 1] > w_put[u.n] THEN w_key[w_put[u.n] + 1 : w_end[u.n + 1]] END,
        f.places, f.positions, f.nonces
      FROM unnest(p_id, p_agent, p_record, places, merged_key) WITH ORDINALITY u (id, agent, record, place, merged, n)
        LEFT JOIN LATERAL (
          SELECT array_agg(r_place[t.read]) AS places, array_agg(t.position) AS positions, array_agg(t.nonce) AS nonces
            FROM unnest(m.t_read, m.t_position, m.t_nonce) t (read, position, nonce)
            WHERE t.read > r_end[u.n] AND t.read <= r_end[u.n + 1]) f ON m.t_read IS NOT NULL
      WHERE u.place IS NOT NULL;
END $$;
