"""The schema: made, or brought up to date, by whoever comes first, so that any number may come at once.

Either happens in one transaction. An advisory lock keeps others out; where there are none (``locking="serializable"``)
all but one of those who come at once fail on a name that exists by then, and look again. Bringing a schema up to date
locks its tables first, so it waits for commits that are under way, and none comes in between. Processes of an older
Interlock that are still running get `SchemaMismatchError` from then on: the functions that they call are gone.
"""

from __future__ import annotations

import os
from importlib.resources import files
from typing import Final

from interlock.backends.postgresql.home import SCHEMA_VERSION, Execute, Options, Select
from interlock.backends.postgresql.statements import quoted

_LOCK: Final = 0x1ECE0C4 << 32
"""The number of the advisory lock under which schemas are made, whatever their names."""
_CODE: Final = ("functions.sql", "group.sql", "views.sql")
_ATTEMPTS: Final = 50


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _text(schema: str, *names: str) -> str:
    """Some of the package's files for a schema."""
    package = files("interlock.backends.postgresql")
    name = quoted(schema)
    in_text = "'" + name.replace("'", "''")  # where the name stands in a text, its quotes are doubled
    body = "\n".join([package.joinpath(file).read_text("utf-8") for file in names])
    return body.replace("'@schema@", in_text).replace("@schema@", name)


async def _found(schema: str, select: Select) -> int:
    """The version of the schema; 0 if there is none."""
    # Not to_regclass: it may answer from what the session remembers from before it waited for the lock.
    there = (
        "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = {_literal(schema)} AND c.relname = 'meta')"
    )
    if not (await select(there))[0]:
        return 0
    version: int = (await select(f"SELECT version FROM {quoted(schema)}.meta"))[0]
    return version


async def ensure(options: Options, select: Select, execute: Execute) -> None:
    """Make the schema if it is missing, bring it up to date if it is old. A newer one is judged by whoever reads
    ``hello`` afterwards."""
    attempts = _ATTEMPTS
    while await _found(options.schema, select) < SCHEMA_VERSION:
        attempts -= 1
        await execute("BEGIN")
        try:
            if options.locking == "advisory":
                await execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            await _make(options.schema, select, execute)
            await execute("COMMIT")
        except BaseException as error:
            await execute("ROLLBACK")
            if options.locking == "advisory" or attempts == 0 or not isinstance(error, Exception):
                raise


async def _make(schema: str, select: Select, execute: Execute) -> None:
    name = quoted(schema)
    version = await _found(schema, select)
    if version == 0:
        store = int.from_bytes(os.urandom(8), "big") >> 2
        await execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
        await execute(_text(schema, "tables.sql", *_CODE))
        await execute(
            f"INSERT INTO {name}.meta (version, store, origin) VALUES ({SCHEMA_VERSION}, {store}, '');"
            f" COMMENT ON SCHEMA {name} IS 'An Interlock store. Change it only through Interlock.'"
        )
    elif version < SCHEMA_VERSION:
        await execute(_text(schema, *[f"upgrade_{step}.sql" for step in range(version + 1, SCHEMA_VERSION + 1)]))
        await execute(_text(schema, *_CODE))
