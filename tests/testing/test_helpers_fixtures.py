"""The fixtures, as a user's own tests get them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import interlock
from interlock import sync as il
from interlock.testing import Clock, commits

pytest_plugins = ["interlock.testing.fixtures"]

PROGRAM = """
import asyncio
import interlock
from interlock.testing import commits, conflicts

pytest_plugins = ["interlock.testing.fixtures"]


async def reserve(session, sku):
    await session.write(sku, (await session.read(sku, 3)) - 1)


def test_one(interlock_store):
    async def main():
        with conflicts(interlock_store):
            await interlock_store.resource("stock").run(reserve, "sku-1")
        assert len(await commits(interlock_store)) == 1
    asyncio.run(main())


def test_each_test_has_a_store_of_its_own(interlock_store):
    assert asyncio.run(commits(interlock_store)) == []
"""


def test_a_users_tests(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


async def note(session: interlock.AgentSession[str], text: str) -> None:
    await session.write("note", text)


def test_a_store_in_real_time(interlock_store: interlock.Store) -> None:
    async def main() -> None:
        await interlock_store.resource("notes", str).run(note, "hello")
        (change,) = await commits(interlock_store)
        assert change.at.year >= 2026
        assert change.agent == "test"

    asyncio.run(main())


def test_a_store_that_lives_by_the_clock(interlock_clock: Clock, interlock_store: interlock.Store) -> None:
    async def main() -> None:
        interlock_clock.advance(60)
        await interlock_store.resource("notes", str).run(note, "hello")
        (change,) = await commits(interlock_store)
        assert change.at.timestamp() == interlock_clock.time()

    asyncio.run(main())


def test_a_store_for_synchronous_code(interlock_sync_store: il.Store, interlock_clock: Clock) -> None:
    notes = interlock_sync_store.resource("notes", str)
    with notes.session() as session:
        session.write("note", "hello")
    entry = notes.entry("note")
    assert entry is not None
    assert entry.at is not None
    assert entry.at.timestamp() == interlock_clock.time()
