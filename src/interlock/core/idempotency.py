"""Idempotent commits: the record of a key is written by the very commit that it protects.

A record is an unlisted, expiring system key. It holds the fingerprint of what the key was used for and what the
function returned (plain values, or values of the resource's own type). A commit with an idempotency key expects the
record ABSENT, so of any number of commits with one key at most one succeeds, whatever was lost or repeated on the
way; the others find the record and answer with its result.

A key is scoped by the resource and the operation's name: the same text used for another operation is another key. The
default fingerprint binds the agent and the arguments, by name, whatever the order of a dict's keys and whether they
were given by position or by `functools.partial`; it does not bind computed values, so that a retried
read-modify-write replays. In a bare session the operation is the session and the fingerprint binds the agent and the
keys written.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, MethodType
from typing import Any, Final

import msgspec

from interlock import codec, keys
from interlock.core.space import Resource
from interlock.core.typed import PLAIN
from interlock.errors import (
    BackendCorruptError,
    IdempotencyMismatchError,
    LimitExceededError,
    UsageError,
    ValueRefusedError,
)
from interlock.model import Entry, Key, Put, TransactionId

_pack = msgspec.msgpack.Encoder().encode
_DIGEST_BYTES = 16
_OWN_FINGERPRINT_BYTES = 64
"""What is no longer than this is its own fingerprint: cheaper to keep than to digest."""
_FOUR: Final = b"\x94"
"""How msgpack begins an array of four."""
_SIMPLE: Final = frozenset((str, int, bool, type(None)))
SESSION: Final = "session"
"""The operation name of a bare session."""


class Record(msgspec.Struct, frozen=True):
    """What a commit writes under its idempotency key. ``fingerprint`` None: of the write footprint, made at the
    commit."""

    idempotency_key: str
    fingerprint: bytes | None
    result: Any
    ttl_seconds: float
    home: Resource | None = None
    nested: bool = False

    def put(self, fingerprint: bytes, transaction: TransactionId) -> Put:
        """The write. Raises `ValueRefusedError` if the result cannot be stored."""
        name, result = transaction.to_bytes(16, "big"), self.result
        if result is None:
            return Put(b"m" + _pack((fingerprint, name, None, False)), self.ttl_seconds, False)
        try:
            frozen = codec.freeze((fingerprint, name, result, False))
        except (ValueRefusedError, LimitExceededError) as error:
            typed = self._typed()
            if typed is None:
                raise ValueRefusedError(
                    "what the function returns is kept with its idempotency key, and this cannot be stored: "
                    f"{error.args[0]}",
                    path=getattr(error, "path", "$").replace("$[2]", "$", 1),
                ) from error
            frozen = codec.freeze((fingerprint, name, typed, True))
        return Put(frozen, self.ttl_seconds, False)

    def _typed(self) -> bytes | None:
        """The result as a value of the resource's own type; None if it is not one."""
        if self.home is None or self.home.type is PLAIN:
            return None
        try:
            return self.home.freeze(self.result)
        except (ValueRefusedError, LimitExceededError):
            return None


def record_key(resource_name: str, operation: str, idempotency_key: str) -> Key:
    """Where a key's record lies. All but the idempotency key itself is digested and the digest kept, so that long names
    cannot exceed a key's limit. Raises `UsageError` for a text that is not one."""
    try:
        return _scope(resource_name, operation) + idempotency_key.encode()
    except UnicodeEncodeError:
        raise UsageError("an idempotency key must not hold half a surrogate pair") from None


@functools.lru_cache(maxsize=1024)
def _scope(resource_name: str, operation: str) -> bytes:
    """Where the records of a resource ("" for the store itself) and an operation lie: behind a digest of both names,
    each of which says where it ends."""
    name = operation.encode(errors="surrogatepass")
    digest = hashlib.blake2b(keys.encode((resource_name,)) + b"%d:" % len(name) + name, digest_size=24)
    return keys.SYSTEM + b"idem" + digest.digest()


class Stored(msgspec.Struct, frozen=True):
    """A record as it was found."""

    fingerprint: bytes
    transaction_id: str
    result: Any


def read_record(entry: Entry | None, at: float, home: Resource | None) -> Stored | None:
    """A record as it is stored; None where there is none or it has expired. ``home`` is the resource of the call, for
    results of its own type."""
    if entry is None or entry.value is None or (entry.expires_at is not None and entry.expires_at <= at):
        return None
    try:
        fingerprint, transaction, result, typed = codec.thaw(entry.value)
        name = bytes.hex(transaction)
    except (ValueError, TypeError) as error:
        raise BackendCorruptError(f"an idempotency record cannot be read: {error}") from error
    if typed:
        result = codec.thaw(result) if home is None else home.thaw(result)
    return Stored(fingerprint, name, result)


def check_fingerprint(stored: bytes, wanted: bytes, idempotency_key: str) -> None:
    """Raises `IdempotencyMismatchError` if a key was used for something else."""
    if stored != wanted:
        raise IdempotencyMismatchError(
            f"idempotency key {idempotency_key!r} was used before with other arguments, by another agent, or with "
            "another fingerprint",
            idempotency_key=idempotency_key,
        )


def _digest(what: Any) -> bytes:
    return _fingerprint(codec.canonical(what))


def _fingerprint(raw: bytes) -> bytes:
    """Of a canonical form: a digest, or itself. The two never meet: a form begins with a letter or the msgpack tag of
    an array."""
    if len(raw) <= _OWN_FINGERPRINT_BYTES:
        return raw
    return b"#" + hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()


def given_fingerprint(value: object) -> bytes:
    """The fingerprint of what the user passes. Raises `ValueRefusedError` if it has no stored form."""
    return _digest(("given", value))


def footprint_fingerprint(agent: str, written: Iterable[Key]) -> bytes:
    """The fingerprint of a bare session: the agent and the keys that it writes."""
    raw = _pack(("footprint", agent, sorted(written)))
    return raw if len(raw) <= _OWN_FINGERPRINT_BYTES else _fingerprint(raw)


def call_fingerprint(agent: str, fn: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> bytes:
    """The fingerprint of a call: the agent and the arguments by name.

    The object of a method is an argument like the others. Raises `UsageError` for a lambda, for a function that closes
    over variables (they would not be bound), and for arguments that have no stored form: pass
    ``idempotency_fingerprint=`` then."""
    if type(fn) is FunctionType and not named:
        binding = _bindable(fn)
        plain = _of_plain_call(_head(agent, binding.names), binding.places, arguments)
        if plain is not None:
            return plain
    inner, arguments, named = _look_through(fn, arguments, named)
    if type(inner) is not FunctionType and (owner := _owner(inner)) is not None:
        named = {**named, "": owner}
    try:
        values = _bind(_bindable(getattr(inner, "__func__", inner)).signature, inner, arguments, named)
    except TypeError as error:
        raise UsageError(f"{operation_name(inner)} cannot be called like this: {error}") from None
    try:
        names = tuple(sorted(values))
        plain = _of_plain_call(_head(agent, names), range(len(names)), tuple([values[name] for name in names]))
        return _digest(("call", agent, values)) if plain is None else plain
    except ValueRefusedError as error:
        raise UsageError(
            f"the arguments of {operation_name(inner)} cannot be part of a fingerprint ({error}); pass ids instead of "
            "objects, or pass idempotency_fingerprint="
        ) from error


def identify(
    agent: str | None, home: Resource | None, fn: Callable[..., Any], arguments: tuple[Any, ...], key: str
) -> tuple[str, Key, bytes]:
    """The operation's name, where the record of a call's key lies, and the call's fingerprint. Raises as
    `call_fingerprint` and `record_key` do. The key is one that `interlock.core.options.lone_key` has found."""
    resource_name = "" if home is None else home.space.name
    if type(fn) is FunctionType:
        operation, scope, head, places = _calling(fn, resource_name, agent or "")
        plain = _of_plain_call(head, places, arguments)
        if plain is not None:
            return operation, scope + key.encode(), plain
    operation = operation_name(fn)
    return operation, record_key(resource_name, operation, key), call_fingerprint(agent or "", fn, arguments, {})


@functools.lru_cache(maxsize=512)
def _calling(fn: FunctionType, resource_name: str, agent: str) -> tuple[str, bytes, bytes | None, Sequence[int]]:
    """What is the same in all keyed calls of a function on a resource by an agent."""
    operation, binding = operation_name(fn), _bindable(fn)
    return operation, _scope(resource_name, operation), _head(agent, binding.names), binding.places


def _owner(inner: Any) -> Any:
    """The object that a method or a callable object brings along; None for a class, whose name says enough."""
    if type(inner) is MethodType:
        return None if isinstance(inner.__self__, type) else inner.__self__
    return None if hasattr(inner, "__wrapped__") or inspect.isbuiltin(inner) else inner


def _bind(
    signature: inspect.Signature, inner: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """The arguments by name, the session left out, and under "" the object of a method."""
    owner = {"": named[""]} if "" in named else {}
    leading = 2 if type(inner) is MethodType else 1
    bound = signature.bind(*[None] * leading, *arguments, **{name: named[name] for name in named if name})
    bound.apply_defaults()
    return dict(list(bound.arguments.items())[leading:]) | owner


def _head(agent: str, names: tuple[str, ...] | None) -> bytes | None:
    """How the form of a plain call begins, an array of four; the last of it are the arguments in the order of their
    names. None where no call is plain."""
    try:
        return None if names is None else _FOUR + _pack("plain call") + _pack(agent) + _pack(names)
    except UnicodeEncodeError:  # half a surrogate pair in the agent's name
        return None


def _of_plain_call(head: bytes | None, places: Sequence[int], arguments: tuple[Any, ...]) -> bytes | None:
    """The fingerprint of a call that gives every argument by position, all of them texts and small numbers, which
    nearly all are; None for another. ``places``: where in the call each of them stands."""
    count = len(arguments)
    if head is None or count != len(places):
        return None
    for value in arguments:
        if type(value) not in _SIMPLE:
            return None
    try:
        raw = head + _pack(arguments if count < 2 else tuple([arguments[place] for place in places]))
        return raw if len(raw) <= _OWN_FINGERPRINT_BYTES else _fingerprint(raw)
    except (ValueError, OverflowError):  # half a surrogate pair, a large int
        return None


def _look_through(
    fn: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    while isinstance(fn, functools.partial):
        arguments, named = (*fn.args, *arguments), {**fn.keywords, **named}
        fn = fn.func
    return fn, arguments, named


class _Binding(msgspec.Struct, frozen=True):
    """``names``: the parameters behind the session, sorted, if all of them can be given by position; ``places``: where
    each of them stands in a call."""

    signature: inspect.Signature
    names: tuple[str, ...] | None
    places: tuple[int, ...]


@functools.lru_cache(maxsize=512)
def _bindable(fn: Callable[..., Any]) -> _Binding:
    """How a function takes its arguments. Raises `UsageError` for one to which a key cannot be bound."""
    name = operation_name(fn)
    if "<lambda>" in name:
        raise UsageError("a lambda has no name to bind an idempotency key to; pass idempotency_fingerprint=")
    if getattr(fn, "__closure__", None):
        outer = ", ".join(fn.__code__.co_freevars)
        raise UsageError(
            f"{name} closes over {outer}, which an idempotency key would not bind; make them arguments, or pass "
            "idempotency_fingerprint="
        )
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())[1:]
    plain = all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    if not plain:
        return _Binding(signature, None, ())
    names = [parameter.name for parameter in parameters]
    return _Binding(signature, tuple(sorted(names)), tuple(sorted(range(len(names)), key=names.__getitem__)))


def operation_name(fn: Callable[..., Any]) -> str:
    """The name under which a function's transactions are recorded: its module and qualified name."""
    if type(fn) is FunctionType and (module := fn.__module__):
        return f"{module}.{fn.__qualname__}"
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return f"{getattr(fn, '__module__', None) or '?'}.{name}"
