"""The published table of anomalies says what happens. Written anew with INTERLOCK_WRITE_ANOMALIES=1."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import interlock
from interlock.testing.conformance.matrix import Outcomes, outcomes, page

PAGE = Path(__file__).parent.parent / "docs" / "anomalies.md"


def test_the_published_table(tmp_path: Path, postgresql_url: str, redis_url: str) -> None:
    name = f"a{uuid.uuid4().hex}"
    stores = {
        "memory": interlock.open("memory://", agent="test"),
        "SQLite": interlock.open(f"sqlite:///{tmp_path}/store.db", agent="test"),
        "PostgreSQL": interlock.open(postgresql_url, agent="test", schema=name),
        "Redis": interlock.open(redis_url, agent="test", name=name),
    }

    async def play() -> dict[str, Outcomes]:
        found = {}
        for backend, store in stores.items():
            async with store:
                found[backend] = await outcomes(store)
        return found

    written = page(asyncio.run(play()))
    if os.environ.get("INTERLOCK_WRITE_ANOMALIES"):
        PAGE.write_text(written, encoding="utf-8")
    assert "BROKEN" not in written
    assert "NOT SHOWN" not in written
    assert PAGE.read_text(encoding="utf-8") == written
