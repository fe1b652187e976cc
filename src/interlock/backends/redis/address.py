"""Where the server is: URLs and clients as redis-py understands them, sentinels, and moves inside a cluster.

redis-py parses the URL, connects, does TLS, and authenticates; then the bare connection is taken from it, because its
own path of a command costs several times what the rest of a commit does. Nothing is sent through redis-py later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio import connection as suspending
from redis.asyncio.sentinel import Sentinel as SuspendingSentinel
from redis.sentinel import Sentinel

from interlock.backends.redis import failures
from interlock.backends.redis.home import Moved, Options
from interlock.errors import BackendError, InterlockError, UsageError

SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")

_KEPT: Final = ("host", "port", "db", "username", "password", "credential_provider", "path", "client_name")
"""The arguments of redis-py's connections that are kept, beside those that begin with ``ssl_``."""
_SENTINEL_PORT: Final = 26379

# redis-py does not say what these take and return.
_parse_url: Any = redis.connection.parse_url
_Sentinel: Any = Sentinel
_SuspendingSentinel: Any = SuspendingSentinel


class Address(NamedTuple):
    """Arguments for redis-py, and the sentinels to ask first, if any."""

    kind: str
    arguments: dict[str, Any]
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    sentinel_login: tuple[tuple[str, Any], ...] = ()


def address_of(target: Any) -> Address:
    """The address that a URL or a client of redis-py names. Raises `UsageError` for what makes no sense."""
    if isinstance(target, Address):
        return target
    if type(target) is str:
        return _of_url(target)
    pool = getattr(target, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_kwargs"):
        raise UsageError(f"a store on Redis is named by a URL or a client of redis-py, not a {type(target).__name__}")
    if hasattr(pool, "sentinel_manager"):
        raise UsageError("a client of a sentinel cannot be copied; use the URL redis+sentinel://host:port/service")
    kind = "tcp"
    if issubclass(pool.connection_class, (redis.SSLConnection, suspending.SSLConnection)):
        kind = "tls"
    elif issubclass(pool.connection_class, (redis.UnixDomainSocketConnection, suspending.UnixDomainSocketConnection)):
        kind = "unix"
    return Address(kind, _kept(pool.connection_kwargs))


def _kept(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in arguments.items()
        if value is not None and (name in _KEPT or name.startswith("ssl_"))
    }


def _of_url(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise UsageError(f"{url!r}: a store on Redis is at {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    try:
        if not parts.scheme.endswith("+sentinel"):
            return Address(_kind(parts.scheme), _kept(_parse_url(url)))
        login, _, hosts = parts.netloc.rpartition("@")
        service, _, database = parts.path.strip("/").partition("/")
        if not hosts or not service:
            raise UsageError(f"{url!r}: sentinels are named as redis+sentinel://host:port,host:port/service/database")
        scheme = parts.scheme.removesuffix("+sentinel")
        plain = urlunsplit((scheme, f"{login}@host" if login else "host", f"/{database}", parts.query, ""))
        arguments = _parse_url(plain)
        own = {name: arguments.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        sentinels = tuple([_host_and_port(each) for each in hosts.split(",")])
        return Address(_kind(scheme), _kept(arguments), sentinels, service, tuple(_kept(own).items()))
    except ValueError as error:
        raise UsageError(f"{url!r}: {error}") from None


def _kind(scheme: str) -> str:
    return {"redis": "tcp", "rediss": "tls", "unix": "unix"}[scheme]


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text and not text.endswith("]") else (text, "", "")
    return host.strip("[]"), int(port) if port else _SENTINEL_PORT


def moved_to(moved: Moved, address: Address, place: tuple[str, int] | None) -> tuple[str, int]:
    """Where a cluster sends a connection on to; without a host it means the one that was asked."""
    asked = place[0] if place is not None else address.arguments.get("host", "localhost")
    return moved.host or asked, moved.port


def _arguments(address: Address, options: Options, place: tuple[str, int] | None) -> dict[str, Any]:
    seconds = options.connect_seconds
    arguments = dict(address.arguments) | {
        "socket_timeout": seconds, "socket_connect_timeout": seconds, "protocol": 2,
    }  # fmt: skip
    if address.kind != "unix":
        arguments["socket_keepalive"] = True
    if place is not None:
        arguments["host"], arguments["port"] = place
    return arguments


def _translated(error: BaseException) -> InterlockError:
    if isinstance(error, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
        return BackendError(f"Redis does not accept our name and password ({error})")
    return failures.unreachable(str(error) or type(error).__name__)


_BROKEN: Final = (redis.RedisError, OSError, EOFError, ValueError)


def connect(address: Address, options: Options, place: tuple[str, int] | None) -> Any:
    """A connected, authenticated socket. Raises `BackendUnavailableError`, or `BackendError` for a wrong password."""
    classes: dict[str, Callable[..., Any]] = {
        "tcp": redis.Connection, "tls": redis.SSLConnection, "unix": redis.UnixDomainSocketConnection,
    }  # fmt: skip
    try:
        if address.sentinels and place is None:
            place = _master(address, options)
        made = classes[address.kind](**_arguments(address, options, place))
        made.connect()
    except _BROKEN as error:
        raise _translated(error) from None
    raw, made._sock = made._sock, None
    raw.settimeout(None)
    return raw


def _master(address: Address, options: Options) -> tuple[str, int]:
    asked = _Sentinel(
        address.sentinels, sentinel_kwargs=dict(address.sentinel_login), socket_timeout=options.connect_seconds
    )
    try:
        found: tuple[str, int] = asked.discover_master(address.service)
        return found
    finally:
        for each in asked.sentinels:
            each.close()


async def connect_suspending(address: Address, options: Options, place: tuple[str, int] | None) -> Any:
    """A connected, authenticated stream writer of asyncio. Raises what `connect` raises."""
    classes: dict[str, Callable[..., Any]] = {
        "tcp": suspending.Connection,
        "tls": suspending.SSLConnection,
        "unix": suspending.UnixDomainSocketConnection,
    }
    try:
        if address.sentinels and place is None:
            place = await _master_suspending(address, options)
        made = classes[address.kind](**_arguments(address, options, place))
        await made.connect()
    except _BROKEN as error:
        raise _translated(error) from None
    writer = made._writer
    made._reader = made._writer = None
    return writer


async def _master_suspending(address: Address, options: Options) -> tuple[str, int]:
    asked = _SuspendingSentinel(
        list(address.sentinels), sentinel_kwargs=dict(address.sentinel_login), socket_timeout=options.connect_seconds
    )
    try:
        found: tuple[str, int] = await asked.discover_master(address.service)
        return found
    finally:
        for each in asked.sentinels:
            await each.aclose()
