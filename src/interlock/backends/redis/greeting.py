"""What is asked of the server on every new connection, before anything else is sent over it.

- Is it loaded, a primary, and new enough? While it loads its data it answers `INFO` and nothing else.
- Does it keep what it acknowledges? Of ``maxmemory-policy``, ``appendonly`` and ``appendfsync`` the last can be read
  only with `CONFIG`, which some providers forbid: then nobody can promise ``durability="fsync"``, and we say so.
- Does it have the scripts? Those that it lacks are loaded. `open.lua` is sent whole: they may be flushed in between.
- Is it the process that answered last time? If its run id is another one (a restart, another server promoted),
  something that a token shows may have been lost, so `open.lua` begins a new incarnation, once, whoever comes first.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from interlock.backends.redis import failures
from interlock.backends.redis.home import Ask, Known, Moved, Options
from interlock.backends.redis.scripts import DIGESTS, FORM, TEXTS, Calls, spelled_out
from interlock.errors import BackendUnavailableError, SchemaMismatchError, UnsupportedError, UsageError
from interlock.ports import Runtime

OLDEST_SERVER: Final = (6, 2)
_POLL_SECONDS: Final = 0.05
_MOVED: Final = re.compile(r"MOVED \d+ (.*):(\d+)$")

log = logging.getLogger("interlock")


async def greet(ask: Ask, options: Options, calls: Calls, known: Known, runtime: Runtime) -> None:
    """Ask all that, and learn the store's id. Raises `Moved` if a cluster has the store elsewhere,
    `BackendUnavailableError`, `UnsupportedError`, `UsageError`, `SchemaMismatchError` or `BackendCorruptError`."""
    info = await _loaded(ask, options, runtime)
    if info.get("cluster_enabled") == "1":
        (found,) = await ask(calls.look())
        _check_place(found)
    _check_server(info)
    await _check_keeping(ask, info, options)
    await load(ask)
    new = runtime.random_bits(64).to_bytes(8, "big")
    (found,) = await ask(spelled_out((*calls.open, info["run_id"].encode(), new, known.store)))
    if isinstance(found, Exception):
        raise failures.refused(str(found))
    if found[0] == 9:
        raise failures.vanished()
    if found[2] != FORM:
        raise SchemaMismatchError(f"the store has the form {found[2]!r}, this Interlock knows {FORM!r}")
    known.store = found[1][:8]


async def load(ask: Ask) -> None:
    """Load the scripts that the server does not have. Raises `InterlockError` if it takes none."""
    (there,) = await ask((b"SCRIPT", b"EXISTS", *DIGESTS.values()))
    if isinstance(there, Exception):
        raise failures.refused(str(there))
    missing = [name for name, found in zip(DIGESTS, there, strict=True) if not found]
    if missing:
        for reply in await ask(*[(b"SCRIPT", b"LOAD", TEXTS[name]) for name in missing]):
            if isinstance(reply, Exception):
                raise failures.refused(str(reply))


async def _loaded(ask: Ask, options: Options, runtime: Runtime) -> dict[str, str]:
    deadline = runtime.monotonic() + options.connect_seconds
    while True:
        (reply,) = await ask((b"INFO",))
        if isinstance(reply, Exception):
            raise failures.refused(str(reply))
        info = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        if info.get("loading", "0") == "0" and info.get("async_loading", "0") == "0":
            return info
        if runtime.monotonic() > deadline:
            raise BackendUnavailableError("Redis is still loading its data")
        await runtime.sleep(_POLL_SECONDS)


def _check_place(found: Any) -> None:
    if isinstance(found, Exception):
        moved = _MOVED.search(str(found))
        if moved is not None:
            raise Moved(moved[1], int(moved[2]))
        raise failures.refused(str(found))


def _check_server(info: dict[str, str]) -> None:
    number = info.get("redis_version", "0.0")
    if tuple(int(part) for part in number.split(".")[:2]) < OLDEST_SERVER:
        raise UnsupportedError(f"Redis {number} is too old: Interlock needs 6.2 or newer, or Valkey")
    if info.get("role", "master") != "master":
        raise BackendUnavailableError("this Redis server is a replica; name the primary, or the sentinels")


async def _check_keeping(ask: Ask, info: dict[str, str], options: Options) -> None:
    """Whether the server keeps what it acknowledges, as far as ``durability`` wants it."""
    if info.get("maxmemory_policy", "noeviction").startswith("allkeys"):
        said = f"maxmemory-policy is {info['maxmemory_policy']}: short of memory, the server would drop the store"
        if options.durability != "none":
            raise UsageError(f"{said}; set it to noeviction, or open the store with durability='none'")
        log.warning("%s", said)
    if options.durability == "replicated":
        connected = int(info.get("connected_slaves", "0"))
        if connected < options.replicas:
            raise BackendUnavailableError(
                f"durability='replicated' wants {options.replicas} replicas, the server has {connected}"
            )
    if options.durability != "fsync":
        return
    hint = "or open the store with durability='replicated' or 'none'"
    if info.get("aof_enabled", "0") != "1":
        raise UsageError(f"appendonly is off on this server, so a crash loses acknowledged commits: turn it on, {hint}")
    (reply,) = await ask((b"CONFIG", b"GET", b"appendfsync"))
    if isinstance(reply, Exception) or len(reply) < 2:
        raise UsageError(
            f"appendfsync cannot be read (CONFIG is forbidden here), so nothing can be promised: allow it, {hint}"
        )
    if reply[1] != b"always":
        raise UsageError(
            f"appendfsync is {reply[1].decode()} on this server, so a crash loses acknowledged commits: "
            f"set it to always, {hint}"
        )
