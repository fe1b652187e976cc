"""From a URL to a backend, and from a backend to one that fits the caller's world. Drivers are imported only when
named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from interlock.backends.bridges import Bridged, Threaded
from interlock.backends.memory import MemoryBackend
from interlock.errors import UsageError
from interlock.ports import Backend

_REDIS = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
_REDIS_OPTIONS = (
    "name", "connections", "durability", "replicas", "grace_seconds", "connect_seconds", "reply_seconds",
)  # fmt: skip
_ALLOWED: dict[str, tuple[str, ...]] = {
    "memory": (),
    "sqlite": ("busy_seconds", "grace_seconds", "synchronous"),
    "postgresql": ("schema", "connections", "durability", "grace_seconds", "connect_seconds", "locking", "pooler"),
} | dict.fromkeys(_REDIS, _REDIS_OPTIONS)


def backend_for(url: str, options: dict[str, Any]) -> Backend:
    """The backend that a URL names; nothing is connected yet.

    Raises `UsageError` for an unknown scheme or option, or a URL that makes no sense."""
    if type(url) is not str:
        raise UsageError(f"a URL is a str such as 'sqlite:///shop.db', not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL: {error}") from None
    build = _SCHEMES.get(parts.scheme)
    if build is None or "://" not in url:
        raise UsageError(f"no backend for {url!r}; there are {', '.join(f'{scheme}://' for scheme in _SCHEMES)}")
    if parts.fragment or (parts.query and parts.scheme not in ("postgresql", *_REDIS)):
        raise UsageError(f"{url!r}: options are keyword arguments of open, not part of the URL")
    for name in options:
        if name not in _ALLOWED[parts.scheme]:
            known = ", ".join(_ALLOWED[parts.scheme]) or "none"
            raise UsageError(f"unknown option {name!r} for {parts.scheme}://; its options: {known}")
    return build(url, parts.netloc, unquote(parts.path), options)


def shown_url(url: str) -> str:
    """A URL that may be written down: without user, password and parameters."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _memory(url: str, host: str, path: str, options: dict[str, Any]) -> Backend:
    if path not in ("", "/"):
        raise UsageError(f"{url!r}: memory:// is private, memory://name is shared in the process; no path")
    return MemoryBackend(unquote(host) or None)


def _sqlite(url: str, host: str, path: str, options: dict[str, Any]) -> Backend:
    if host or not path.strip("/"):
        raise UsageError(f"{url!r}: a file is sqlite:///relative/path.db or sqlite:////absolute/path.db")
    from interlock.backends.sqlite import SQLiteBackend

    return SQLiteBackend(path[1:], **options)


def _postgresql(url: str, host: str, path: str, options: dict[str, Any]) -> Backend:
    from interlock.backends.postgresql import PostgreSQLBackend

    return PostgreSQLBackend(url, **options)


def _redis(url: str, host: str, path: str, options: dict[str, Any]) -> Backend:
    from interlock.backends.redis import RedisBackend

    return RedisBackend(url, **options)


_SCHEMES: dict[str, Callable[[str, str, str, dict[str, Any]], Backend]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgresql,
} | dict.fromkeys(_REDIS, _redis)


def for_async(backend: Backend) -> Backend:
    """The backend for awaiting: one that only blocks is moved to worker threads."""
    return Threaded(backend) if backend.blocks and not backend.suspends else backend


def for_sync(backend: Backend) -> Backend:
    """The backend for stepping: its blocking leaf, or a bridge to a loop of its own where it has none."""
    if not backend.suspends:
        return backend.blocking()
    leaf = backend.blocking()
    return Bridged(backend) if leaf.suspends else leaf
