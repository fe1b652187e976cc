-- Interlock's tables. @schema@ stands for the schema's quoted name. What each is for is said in the package's docstring.

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

-- position: the server's transaction times 256, plus the place in it; rest: how many places come behind it.
-- state: 0 fenced, 1 committed, 2 committed quietly (not in the feed)
CREATE TABLE @schema@.transaction (
  position bigint NOT NULL,
  at double precision NOT NULL,
  state smallint NOT NULL,
  rest smallint NOT NULL DEFAULT 0,
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
