"""The server's errors in our words, by the code that they begin with. No driver's error ever leaves the backend.

A script checks everything before it writes anything, and what can stop it from writing (no memory, a replica, too few
replicas) stops its first write. So an error reply with one of the codes below means that nothing was written. If the
connection breaks instead, nobody can tell what became of a commit that was under way.

Servers before 7 put the code into the middle of the text of an error that a script met, so it is looked for there too.
"""

from __future__ import annotations

import re
from typing import Final

from interlock.errors import (
    BackendCorruptError,
    BackendError,
    BackendUnavailableError,
    CommitUnknownError,
    InterlockError,
    UnsupportedError,
)

_UNAVAILABLE: Final = (
    "NOSCRIPT", "LOADING", "READONLY", "OOM", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK",
    "TRYAGAIN", "BUSY",
)  # fmt: skip
_CODE: Final = re.compile(rf"(?:^|[\s:-])({'|'.join(_UNAVAILABLE)}|CROSSSLOT|NOPERM|NOAUTH|WRONGTYPE)\b")

MOVES_ON: Final = frozenset(("READONLY", "LOADING", "MASTERDOWN", "MOVED", "ASK", "CLUSTERDOWN"))
"""After these another server may be the right one: the connection is given up."""


def code_of(text: str) -> str:
    """The code of an error reply; "" for one that has none of those we know."""
    found = _CODE.search(text)
    return "" if found is None else found[1]


def refused(text: str) -> InterlockError:
    """Our error for an error reply. Nothing was written."""
    code, said = code_of(text), text.strip().partition("\n")[0]
    if code in _UNAVAILABLE:
        return BackendUnavailableError(f"Redis could not do it at this moment ({said}); nothing was written")
    if code == "CROSSSLOT":
        return UnsupportedError(f"the keys of one commit must lie in one slot of a cluster ({said})")
    if code == "WRONGTYPE":
        return BackendCorruptError(f"a key of the store holds something that is not ours ({said})")
    if code in ("NOPERM", "NOAUTH"):
        return BackendError(f"Redis does not allow this user what the store needs ({said})")
    return BackendError(f"Redis refused ({said})")


def lost(text: str, *, commits: bool) -> InterlockError:
    """Our error for a connection that broke. ``commits``: a commit was under way."""
    said = text.strip().partition("\n")[0]
    if commits:
        return CommitUnknownError(f"the connection to Redis broke during a commit ({said})")
    return BackendUnavailableError(f"the connection to Redis broke ({said})")


def unreachable(text: str) -> BackendUnavailableError:
    """The error when no connection could be made."""
    return BackendUnavailableError(f"Redis cannot be reached ({text.strip().partition(chr(10))[0]})")


def vanished() -> BackendCorruptError:
    """The error when the store that was there is gone."""
    return BackendCorruptError(
        "the store is not on the server any more (flushed, or lost in a restart without persistence); "
        "open it again to begin an empty one"
    )
