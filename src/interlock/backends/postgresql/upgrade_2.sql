-- From version 1 to version 2: a position was a transaction's id, and becomes that times 256 plus a place.
-- @schema@ stands for the schema's quoted name.

LOCK TABLE @schema@.meta, @schema@.entry, @schema@.superseded, @schema@.transaction IN ACCESS EXCLUSIVE MODE;

DO $$
DECLARE
  f regprocedure;
BEGIN
  DROP VIEW @schema@.entries, @schema@.versions, @schema@.transactions;
  FOR f IN SELECT p.oid FROM pg_catalog.pg_proc p WHERE p.pronamespace = (
      SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = '@schema@.meta'::regclass) LOOP
    EXECUTE 'DROP FUNCTION ' || f;
  END LOOP;
END $$;

-- Unique indexes look at each row by itself: the new numbers must not meet the old ones on the way.
UPDATE @schema@.entry SET position = position << 8, torn = torn << 8;
ALTER TABLE @schema@.superseded DROP CONSTRAINT superseded_pkey;
UPDATE @schema@.superseded SET position = position << 8, until = until << 8;
ALTER TABLE @schema@.superseded ADD PRIMARY KEY (key, position);

-- rest -1: what the record says of versions that were read is in the old numbers.
DROP INDEX @schema@.transaction_feed;
ALTER TABLE @schema@.transaction ADD COLUMN rest smallint NOT NULL DEFAULT -1;
ALTER TABLE @schema@.transaction ALTER COLUMN rest SET DEFAULT 0;
UPDATE @schema@.transaction SET position = position << 8,
  absent_position = (SELECT array_agg(p << 8 ORDER BY n) FROM unnest(absent_position) WITH ORDINALITY a (p, n));
CREATE UNIQUE INDEX transaction_feed ON @schema@.transaction (position);

-- Tokens of before are refused: their numbers mean something else now.
UPDATE @schema@.meta SET version = 2, epoch = epoch + 1, floor_epoch = epoch + 1,
  horizon_max = CASE WHEN horizon_max = 1 THEN 1 ELSE horizon_max << 8 END,
  horizon_open = ARRAY(SELECT p << 8 | 255 FROM unnest(horizon_open) p);
DELETE FROM @schema@.alive;
INSERT INTO @schema@.alive (epoch) SELECT epoch FROM @schema@.meta;
