-- From version 3 to version 4: the functions need less time. The tables stay.
-- @schema@ stands for the schema's quoted name.

LOCK TABLE @schema@.meta, @schema@.entry, @schema@.superseded, @schema@.transaction IN ACCESS EXCLUSIVE MODE;

DO $$
DECLARE
  f regprocedure;
BEGIN
  DROP VIEW IF EXISTS @schema@.entries, @schema@.versions, @schema@.transactions;
  FOR f IN SELECT p.oid FROM pg_catalog.pg_proc p WHERE p.pronamespace = (
      SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = '@schema@.meta'::regclass) LOOP
    EXECUTE 'DROP FUNCTION ' || f;
  END LOOP;
END $$;

UPDATE @schema@.meta SET version = 4;
