-- For people with psql: SELECT * FROM "interlock".entries; and .transactions, .versions. The library never reads these.

-- One msgpack value as JSON, and where the next one begins. What JSON lacks is shown as {"$hex": ...}.
CREATE FUNCTION @schema@.unpacked(raw bytea, place integer, OUT value jsonb, OUT next integer)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  b integer := get_byte(raw, place);
  size integer := 0;
  width integer := 0;
  kind text;
  big numeric := 0;
  item record;
  label text;
BEGIN
  next := place + 1;
  IF b < 128 THEN value := to_jsonb(b); RETURN;
  ELSIF b >= 224 THEN value := to_jsonb(b - 256); RETURN;
  ELSIF b = 192 THEN value := 'null'; RETURN;
  ELSIF b IN (194, 195) THEN value := to_jsonb(b = 195); RETURN;
  ELSIF b < 144 THEN kind := 'map'; size := b - 128;
  ELSIF b < 160 THEN kind := 'array'; size := b - 144;
  ELSIF b < 192 THEN kind := 'text'; size := b - 160;
  ELSIF b BETWEEN 196 AND 198 THEN kind := 'hex'; width := 1 << (b - 196);
  ELSIF b BETWEEN 199 AND 201 THEN kind := 'extension'; width := 1 << (b - 199);
  ELSIF b = 203 THEN kind := 'float'; width := 8;
  ELSIF b BETWEEN 204 AND 207 THEN kind := 'unsigned'; width := 1 << (b - 204);
  ELSIF b BETWEEN 208 AND 211 THEN kind := 'signed'; width := 1 << (b - 208);
  ELSIF b BETWEEN 212 AND 216 THEN kind := 'extension'; size := 1 << (b - 212);
  ELSIF b BETWEEN 217 AND 219 THEN kind := 'text'; width := 1 << (b - 217);
  ELSIF b IN (220, 221) THEN kind := 'array'; width := 2 << (b - 220);
  ELSE kind := 'map'; width := 2 << (b - 222);
  END IF;
  FOR i IN 0 .. width - 1 LOOP
    big := big * 256 + get_byte(raw, next + i);
  END LOOP;
  next := next + width;
  IF kind = 'unsigned' THEN value := to_jsonb(big); RETURN;
  ELSIF kind = 'signed' THEN
    value := to_jsonb(CASE WHEN big >= 2::numeric ^ (8 * width - 1) THEN round(big - 2::numeric ^ (8 * width)) ELSE big END);
    RETURN;
  ELSIF kind = 'float' THEN
    value := to_jsonb(CASE WHEN big >= 9223372036854775808 THEN -1 ELSE 1 END
      * CASE WHEN big IN (0, 9223372036854775808) THEN 0
        ELSE (1 + mod(big, 4503599627370496)::float8 / 4503599627370496)
          * power(2::float8, mod(div(big, 4503599627370496), 2048)::float8 - 1023) END);
    RETURN;
  ELSIF width > 0 THEN size := big;
  END IF;
  IF kind = 'text' THEN
    value := to_jsonb(convert_from(substr(raw, next + 1, size), 'UTF8'));
    next := next + size;
  ELSIF kind = 'hex' THEN
    value := jsonb_build_object('$hex', encode(substr(raw, next + 1, size), 'hex'));
    next := next + size;
  ELSIF kind = 'extension' THEN
    b := get_byte(raw, next);
    value := CASE WHEN b = 1 THEN to_jsonb(convert_from(substr(raw, next + 2, size), 'UTF8')::numeric)
      WHEN b = 2 THEN to_jsonb(convert_from(substr(raw, next + 2, size), 'UTF8'))
      WHEN b = 3 THEN to_jsonb(encode(substr(raw, next + 2, size), 'hex')::uuid)
      ELSE (SELECT jsonb_build_array(u.value) -> 0 FROM @schema@.unpacked(raw, next + 1) u) END;
    next := next + 1 + size;
  ELSIF kind = 'array' THEN
    value := '[]';
    FOR i IN 1 .. size LOOP
      SELECT * INTO item FROM @schema@.unpacked(raw, next);
      value := value || jsonb_build_array(item.value);
      next := item.next;
    END LOOP;
  ELSE
    value := '{}';
    FOR i IN 1 .. size LOOP
      SELECT * INTO item FROM @schema@.unpacked(raw, next);
      label := item.value #>> '{}';
      SELECT * INTO item FROM @schema@.unpacked(raw, item.next);
      value := value || jsonb_build_object(label, item.value);
      next := item.next;
    END LOOP;
  END IF;
END $$;

-- A stored value as JSON.
CREATE FUNCTION @schema@.shown(raw bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  tag text := chr(get_byte(raw, 0));
  place integer := 1;
  size integer;
  rows jsonb := '[]';
BEGIN
  IF tag IN ('i', 'd') THEN
    RETURN CASE tag WHEN 'i' THEN to_jsonb(convert_from(substr(raw, 2), 'UTF8')::numeric)
      ELSE to_jsonb(convert_from(substr(raw, 2), 'UTF8')) END;
  ELSIF tag = 'm' THEN
    RETURN (SELECT u.value FROM @schema@.unpacked(raw, 1) u);
  END IF;
  WHILE place < octet_length(raw) LOOP
    size := (get_byte(raw, place) << 24) + (get_byte(raw, place + 1) << 16) + (get_byte(raw, place + 2) << 8)
      + get_byte(raw, place + 3);
    rows := rows || jsonb_build_array((SELECT u.value FROM @schema@.unpacked(raw, place + 4) u));
    place := place + 4 + size;
  END LOOP;
  RETURN rows;
EXCEPTION WHEN others THEN
  RETURN jsonb_build_object('$hex', encode(raw, 'hex'));
END $$;

-- A stored key as JSON: [resource, key]; a tuple is a list.
CREATE FUNCTION @schema@.shown_key(raw bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  place integer := 1;
  size integer;
  big numeric;
  part bytea;
  parts jsonb := '[]';
  found jsonb;
  is_tuple boolean := false;
BEGIN
  IF get_byte(raw, 0) <> 1 THEN
    RETURN jsonb_build_object('$hex', encode(raw, 'hex'));
  END IF;
  WHILE place < octet_length(raw) LOOP
    IF get_byte(raw, place) = 5 THEN
      is_tuple := true;
      place := place + 1;
      CONTINUE;
    ELSIF get_byte(raw, place) = 2 THEN
      size := position('\x00'::bytea IN substr(raw, place + 2)) - 1;
      part := substr(raw, place + 2, size);
      part := decode(replace(encode(part, 'escape'), '\001\002', '\001'), 'escape');
      found := to_jsonb(convert_from(part, 'UTF8'));
      place := place + 2 + size;
    ELSE
      size := get_byte(raw, place + 1);
      IF get_byte(raw, place) = 31 THEN
        size := 255 - size;
      END IF;
      big := 0;
      FOR i IN 1 .. size LOOP
        big := big * 256 + get_byte(raw, place + 1 + i);
      END LOOP;
      found := to_jsonb(CASE WHEN get_byte(raw, place) = 31 THEN round(big - 256::numeric ^ size + 1) ELSE big END);
      place := place + 2 + size;
    END IF;
    parts := parts || jsonb_build_array(found);
  END LOOP;
  RETURN CASE WHEN is_tuple THEN jsonb_build_array(parts -> 0, parts - 0) ELSE parts END;
EXCEPTION WHEN others THEN
  RETURN jsonb_build_object('$hex', encode(raw, 'hex'));
END $$;

CREATE VIEW @schema@.entries AS
  SELECT k.shown ->> 0 AS resource, k.shown -> 1 AS key, @schema@.shown(e.value) AS value, t.agent,
    to_timestamp(t.at) AS changed_at, to_timestamp(e.expires_at) AS expires_at, e.position
  FROM @schema@.entry e CROSS JOIN LATERAL (SELECT @schema@.shown_key(e.key) AS shown OFFSET 0) k
    LEFT JOIN @schema@.transaction t ON t.position = e.position AND t.state > 0
  WHERE e.value IS NOT NULL AND get_byte(e.key, 0) = 1
  ORDER BY e.key;

CREATE VIEW @schema@.versions AS
  SELECT k.shown ->> 0 AS resource, k.shown -> 1 AS key, @schema@.shown(v.value) AS value, t.agent,
    to_timestamp(t.at) AS changed_at, v.position, v.until
  FROM (SELECT key, value, position, NULL::bigint AS until FROM @schema@.entry
      UNION ALL SELECT key, value, position, until FROM @schema@.superseded) v
    CROSS JOIN LATERAL (SELECT @schema@.shown_key(v.key) AS shown OFFSET 0) k
    LEFT JOIN @schema@.transaction t ON t.position = v.position AND t.state > 0
  WHERE get_byte(v.key, 0) = 1
  ORDER BY v.key, v.position DESC;

CREATE VIEW @schema@.transactions AS
  SELECT t.position, to_timestamp(t.at) AS at, t.agent, u.value ->> 1 AS operation, u.value ->> 0 AS isolation,
    ARRAY(SELECT @schema@.shown_key(k) FROM unnest(t.puts || t.others || t.cleared) k) AS changed,
    encode(t.id, 'hex') AS id
  FROM @schema@.transaction t CROSS JOIN LATERAL @schema@.unpacked(t.record, 0) u
  WHERE t.state = 1
  ORDER BY t.position;
