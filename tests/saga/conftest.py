"""Coroutine tests of this folder run on an asyncio loop of their own."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Run an async test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**wanted))
    return True
