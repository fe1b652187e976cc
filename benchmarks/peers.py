"""What users could pick instead, as optional cells: only what installs from PyPI with one command, and is installed.

Peers are not floors: they are measured for their commits per second, and the floors of the group stand beside them.
Each is used as its own documentation shows, with retries, and made as safe as it can be: validated by version where it
does not validate itself.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.floors.sqlite import LeastRows, Refused, commit_inline, connect
from benchmarks.measure import Cell, Measure, Sample, measure_calls
from benchmarks.memory import KEYS, key_of
from benchmarks.sqlite import CallNow, drive, drive_threads, group_of
from benchmarks.workload import VALUE, all_keys, changed, pack, unpack

PACKAGES: Final = {"ZODB": "ZODB", "aiosqlite": "aiosqlite"}
"""Module -> what to install."""


def missing() -> list[str]:
    """What would have to be installed for all peers."""
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


def memory_cells() -> list[Cell]:
    """Peers that keep their state in memory."""
    return [] if "ZODB" in missing() else [Cell("memory", "ZODB in memory", _zodb_memory, by_cpu=True)]


def sqlite_cells(tasks: tuple[int, ...], threads: tuple[int, ...]) -> list[Cell]:
    """Peers that keep their state on the disk."""
    absent = missing()
    found: list[Cell] = []
    if "aiosqlite" not in absent:
        found += [Cell(group_of(count, "task"), "aiosqlite by hand", _aiosqlite(count)) for count in tasks]
    for count in threads:
        group = group_of(count, "thread")
        found.append(Cell(group, "BEGIN IMMEDIATE, retried", _immediate(count)))
        if "ZODB" not in absent:
            found.append(Cell(group, "ZODB on a file", _zodb_file(count)))
    return found


def _immediate(threads: int) -> Measure:
    """A connection for each thread, the busy timeout of SQLite, and a loop around what it refuses."""

    def measure(seconds: float, directory: Path) -> Sample:
        rows = LeastRows()
        path = directory / "peer.db"
        first = connect(path)
        rows.create(first, all_keys(threads))
        first.close()
        connections = [connect(path) for _ in range(threads)]

        def caller(connection: sqlite3.Connection) -> CallNow:
            def call(key: str, idempotency_key: str) -> None:
                while True:
                    text, version = rows.read(connection, key)
                    try:
                        commit_inline(connection, rows, key, changed(text), version, idempotency_key)
                        return
                    except (Refused, sqlite3.OperationalError):
                        time.sleep(random.uniform(0, 0.005))

            return call

        try:
            return drive_threads([caller(connection) for connection in connections], seconds)
        finally:
            for connection in connections:
                connection.close()

    return measure


def _aiosqlite(tasks: int) -> Measure:
    """One connection for reads and one for commits, which take turns under a lock."""

    def measure(seconds: float, directory: Path) -> Sample:
        path = directory / "peer.db"
        first = connect(path)
        LeastRows().create(first, all_keys(tasks))
        first.close()

        async def work() -> Sample:
            import aiosqlite

            reader = await aiosqlite.connect(path, isolation_level=None)
            writer = await aiosqlite.connect(path, isolation_level=None)
            turn = asyncio.Lock()
            await writer.execute("PRAGMA synchronous=FULL")

            async def row(connection: Any, statement: str, *values: object) -> Any:
                async with connection.execute(statement, values) as cursor:
                    return await cursor.fetchone()

            async def call(key: str, idempotency_key: str) -> None:
                raw, version = await row(
                    reader, "SELECT value, version FROM kv WHERE key = ? AND resource = 'stock'", key
                )
                value = pack(changed(unpack(raw)))
                async with turn:
                    await writer.execute("BEGIN IMMEDIATE")
                    await row(writer, "SELECT position FROM idempotency WHERE key = ?", idempotency_key)
                    now = await row(writer, "SELECT version FROM kv WHERE key = ? AND resource = 'stock'", key)
                    if now[0] != version:
                        raise Refused(key)
                    position = (await writer.execute("INSERT INTO log (payload) VALUES (?)", (value,))).lastrowid
                    update = "UPDATE kv SET value = ?, version = ? WHERE key = ? AND resource = 'stock'"
                    await writer.execute(update, (value, position, key))
                    await writer.execute("INSERT INTO idempotency VALUES (?, ?)", (idempotency_key, position))
                    await writer.execute("COMMIT")

            try:
                return await drive(call, tasks, seconds)
            finally:
                await reader.close()
                await writer.close()

        return asyncio.run(work())

    return measure


def _zodb_memory(seconds: float, directory: Path) -> Sample:
    import transaction
    import ZODB

    database = ZODB.DB(None)
    connection = database.open()
    root = _fill_zodb(connection, KEYS, transaction)

    def call(i: int) -> None:
        root[key_of(i)] = changed(root[key_of(i)])
        transaction.commit()

    try:
        return measure_calls(call, seconds)
    finally:
        connection.close()
        database.close()


def _fill_zodb(connection: Any, keys: list[str], transaction: Any) -> Any:
    from BTrees.OOBTree import OOBTree

    root = connection.root()
    root["stock"] = tree = OOBTree()
    for key in keys:
        tree[key] = VALUE
    transaction.commit()
    return tree


def _zodb_file(threads: int) -> Measure:
    """A connection and a transaction manager for each thread; conflicts are retried."""

    def measure(seconds: float, directory: Path) -> Sample:
        import transaction
        import ZODB
        import ZODB.FileStorage
        import ZODB.POSException

        database = ZODB.DB(ZODB.FileStorage.FileStorage(str(directory / "peer.fs")))
        connection = database.open()
        _fill_zodb(connection, all_keys(threads), transaction)
        connection.close()
        managers = [transaction.TransactionManager(explicit=False) for _ in range(threads)]
        connections = [database.open(transaction_manager=manager) for manager in managers]

        def caller(manager: Any, connection: Any) -> CallNow:
            tree = connection.root()["stock"]

            def call(key: str, idempotency_key: str) -> None:
                while True:
                    try:
                        tree[key] = changed(tree[key])
                        manager.commit()
                        return
                    except ZODB.POSException.ConflictError:
                        manager.abort()

            return call

        try:
            return drive_threads([caller(*pair) for pair in zip(managers, connections, strict=True)], seconds)
        finally:
            for manager, opened in zip(managers, connections, strict=True):
                manager.abort()
                opened.close()
            database.close()

    return measure
