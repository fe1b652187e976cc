-- Schema version 1 as far as an upgrade cares: its tables, its views by name, and one of its functions.
CREATE SCHEMA @schema@;

CREATE TABLE @schema@.meta (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  version integer NOT NULL,
  store bigint NOT NULL,
  origin text NOT NULL,
  epoch bigint NOT NULL DEFAULT 0,
  floor_epoch bigint NOT NULL DEFAULT 0,
  soft boolean NOT NULL DEFAULT false,
  horizon_max bigint NOT NULL DEFAULT 1,
  horizon_open bigint[] NOT NULL DEFAULT '{}',
  forgotten bytea NOT NULL DEFAULT '\x',
  forgotten_fence bytea NOT NULL DEFAULT '\x'
);

-- Emptied by crash recovery, by promotion and by a restored backup: then a new epoch begins.
CREATE UNLOGGED TABLE @schema@.alive (one boolean PRIMARY KEY DEFAULT true CHECK (one), epoch bigint NOT NULL);

CREATE TABLE @schema@.entry (
  position bigint NOT NULL,
  nonce bigint NOT NULL,
  torn bigint NOT NULL DEFAULT 0,
  expires_at double precision,
  listed boolean NOT NULL,
  quiet boolean NOT NULL,
  key bytea PRIMARY KEY,
  value bytea
) WITH (fillfactor = 60);
CREATE INDEX entry_expiring ON @schema@.entry (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE @schema@.superseded (
  position bigint NOT NULL,
  nonce bigint NOT NULL,
  until bigint NOT NULL,
  expires_at double precision,
  listed boolean NOT NULL,
  quiet boolean NOT NULL,
  key bytea NOT NULL,
  value bytea,
  PRIMARY KEY (key, position)
);

-- state: 0 fenced, 1 committed, 2 committed quietly (not in the feed)
CREATE TABLE @schema@.transaction (
  position bigint NOT NULL,
  at double precision NOT NULL,
  state smallint NOT NULL,
  id bytea CONSTRAINT transaction_once PRIMARY KEY,
  agent text NOT NULL,
  record bytea,
  puts bytea[],
  others bytea[],
  cleared bytea[],
  absent integer[],
  absent_position bigint[],
  absent_nonce bigint[]
);
CREATE UNIQUE INDEX transaction_feed ON @schema@.transaction (position);

CREATE FUNCTION @schema@.hello(OUT store bigint, OUT epoch bigint, OUT floor_epoch bigint) LANGUAGE sql AS
  'SELECT store, epoch, floor_epoch FROM @schema@.meta';
CREATE FUNCTION @schema@.unpacked(raw bytea, place integer) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE VIEW @schema@.entries AS SELECT @schema@.unpacked(value, 0) AS value FROM @schema@.entry;
CREATE VIEW @schema@.versions AS SELECT key FROM @schema@.superseded;
CREATE VIEW @schema@.transactions AS SELECT id FROM @schema@.transaction;
INSERT INTO @schema@.meta (version, store, origin, epoch) SELECT 1, 4711,
  s.system_identifier || ':' || '@schema@.meta'::regclass::oid || ':' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 3
  FROM pg_control_system() s;
INSERT INTO @schema@.alive (epoch) VALUES (3);
