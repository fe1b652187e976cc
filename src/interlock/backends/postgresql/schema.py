"""The schema: made by whoever comes first, in one transaction under a lock, so that any number may come at once."""

from __future__ import annotations

import os
from importlib.resources import files
from typing import Final

from interlock.backends.postgresql.home import SCHEMA_VERSION, Execute, Select
from interlock.backends.postgresql.statements import quoted

_LOCK: Final = 0x1ECE0C4 << 32
"""The number of the advisory lock under which schemas are made, whatever their names."""
_FILES: Final = ("tables.sql", "functions.sql", "group.sql", "views.sql")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def ensure(schema: str, select: Select, execute: Execute) -> None:
    """Make the schema if it is missing. Version and health are judged by whoever reads ``hello`` afterwards."""
    name = quoted(schema)
    # Not to_regclass: it may answer from what the session remembers from before it waited for the lock.
    there = (
        "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = {_literal(schema)} AND c.relname = 'meta')"
    )
    if (await select(there))[0]:
        return
    store = int.from_bytes(os.urandom(8), "big") >> 2
    package = files("interlock.backends.postgresql")
    parts = [package.joinpath(file).read_text("utf-8") for file in _FILES]
    in_text = "'" + name.replace("'", "''")  # where the name stands in a text, its quotes are doubled
    body = "\n".join(parts).replace("'@schema@", in_text).replace("@schema@", name)
    await execute(f"BEGIN; SELECT pg_advisory_xact_lock({_LOCK})")
    try:
        if not (await select(there))[0]:
            await execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
            await execute(body)
            await execute(
                f"INSERT INTO {name}.meta (version, store, origin) VALUES ({SCHEMA_VERSION}, {store}, '');"
                f" COMMENT ON SCHEMA {name} IS 'An Interlock store. Change it only through Interlock.'"
            )
        await execute("COMMIT")
    except BaseException:
        await execute("ROLLBACK")
        raise
