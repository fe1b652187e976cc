"""What handles show of themselves in a debugger or a log."""

from __future__ import annotations

import interlock
import interlock.sync
from interlock import MemoryBackend


def test_a_store_shows_where_it_is_and_no_password() -> None:
    assert repr(interlock.open("memory://")) == "<Store memory://>"
    assert repr(interlock.sync.open("sqlite:///shop.db")) == "<Store sqlite:///shop.db>"
    assert repr(interlock.open("postgresql://bob:secret@db/shop")) == "<Store postgresql://db/shop>"
    assert repr(interlock.sync.Store(MemoryBackend())) == "<Store MemoryBackend()>"
