"""A test in which asyncio reports something fails: see `complaints`."""

from __future__ import annotations

import asyncio
import gc

from complaints import complaints


def test_an_error_that_nobody_retrieves_is_heard_once() -> None:
    async def fail() -> None:
        raise LookupError("nobody asks")

    async def run() -> None:
        await asyncio.wait({asyncio.ensure_future(fail())})

    asyncio.run(run())
    gc.collect()
    (text,) = complaints.taken()
    assert "never retrieved" in text
    assert "LookupError: nobody asks" in text
    assert complaints.taken() == []


def test_an_error_that_is_retrieved_is_not() -> None:
    async def fail() -> None:
        raise LookupError("somebody asks")

    async def run() -> None:
        (found,) = await asyncio.gather(fail(), return_exceptions=True)
        assert isinstance(found, LookupError)

    asyncio.run(run())
    gc.collect()
    assert complaints.taken() == []
