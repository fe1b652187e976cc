"""A read-modify-write straight through the port: what a backend costs without the sessions on top.

The same calls and requests that a session makes: a read of the idempotency record, a read of the key at the same
snapshot, one commit that expects both and the rules of the resource.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Final

from benchmarks.workload import AGENT, OPERATION, RESOURCE, VALUE, changed
from interlock import codec, keys
from interlock.model import ABSENT, CommitRequest, Expectation, Put, Version, Write
from interlock.ports import Backend
from interlock.runtime import AsyncRuntime

_SPACE: Final = keys.resource_space(RESOURCE)
_RULES: Final = keys.SYSTEM + b"rules" + _SPACE
_RECORD_SECONDS: Final = 2_592_000.0
_FILL: Final = 2_000


class PortCaller:
    """Makes requests by hand."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._random_bits = AsyncRuntime().random_bits

    async def fill(self, names: Iterable[str]) -> None:
        """A value under each key."""
        rest = list(names)
        while rest:
            part, rest = rest[:_FILL], rest[_FILL:]
            token = await self.backend.snapshot()
            writes: dict[bytes, Write] = {_SPACE + keys.encode(name): Put(codec.freeze(VALUE)) for name in part}
            await self.backend.commit(CommitRequest(self._new_id(), AGENT, "serializable", token, {}, writes, {}))

    def _new_id(self) -> int:
        return (int(time.time() * 1000) << 80) | self._random_bits(80)

    async def read_modify_write(self, name: str, idempotency_key: str | None) -> Version:
        """One transaction."""
        backend = self.backend
        key = _SPACE + keys.encode(name)
        guards: dict[bytes, Expectation] = {_RULES: ABSENT}
        token = None
        record_key = b""
        if idempotency_key is not None:
            record_key = keys.SYSTEM + b"idem" + hashlib.blake2b(idempotency_key.encode(), digest_size=24).digest()
            token = (await backend.read((record_key,))).token
            guards[record_key] = ABSENT
        reading = await backend.read((key,), token)
        entry = reading.entries[0]
        assert entry is not None
        assert entry.value is not None
        writes: dict[bytes, Write] = {key: Put(codec.freeze(changed(codec.thaw(entry.value))))}
        if idempotency_key is not None:
            writes[record_key] = Put(codec.freeze((record_key[-16:], None)), _RECORD_SECONDS, False)
        request = CommitRequest(
            self._new_id(),
            AGENT,
            "serializable",
            token or reading.token,
            {key: entry.version},
            writes,
            guards,
            operation=OPERATION,
        )
        return (await backend.commit(request)).version
