"""asyncpg's connections, which ask what the server's array types are once in a process and not once each.

asyncpg knows the single types that come with PostgreSQL by heart, but not the arrays of them: the first statement of
every connection that has one makes it send a recursive query over the catalogue. That takes the server 18 ms of its
processor, and everything else about a new connection and its first commit takes half as much.

The ids below `_FIRST_ASSIGNED` are given to types by hand in PostgreSQL's own sources, and are never given again: what
a server says of them once, every server says. So the first answer is kept. Any other type is asked for as ever.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import asyncpg

_FIRST_ASSIGNED: Final = 10_000
"""``FirstGenbkiObjectId`` of PostgreSQL's ``access/transam.h``: the first id that is not given by hand."""


class _NothingSent(NamedTuple):
    """In the place of the statement that asks: asyncpg prepares its own again if that had no name, as it would have
    taken the place of one without a name."""

    name: str = "known"


_known: dict[frozenset[int], Any] = {}
"""Rows about types by their ids. Whoever writes first or last writes the same."""


class Connection(asyncpg.Connection):  # type: ignore[misc]
    """See the module. Overrides a method that is asyncpg's own; if it has none of that name the types are asked for."""

    __slots__ = ()

    async def _introspect_types(self, typeoids: Any, timeout: Any) -> Any:
        wanted = frozenset(typeoids)
        if wanted in _known:
            return _known[wanted], _NothingSent()
        answer = await super()._introspect_types(typeoids, timeout)
        if max(wanted) < _FIRST_ASSIGNED:
            _known[wanted] = answer[0]
        return answer
