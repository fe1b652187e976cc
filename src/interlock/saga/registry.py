"""The compensable functions of this process, by the names under which journals know them.

A journal is data: the names in it must not make a program import or call anything that its author has not meant. So
only functions decorated with `compensable` are found, by ``compensable(name=...)`` or by module and qualified name, and
those that this very process has passed as an undo; nothing here imports."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from interlock.errors import UsageError
from interlock.saga.matching import unwrapped
from interlock.saga.records import Declared, declared

_registered: dict[str, Any] = {}


def path_of(fn: Any) -> str:
    """``module:qualified.name`` of a function, partials looked through."""
    inner = unwrapped(fn)[0]
    own = declared(inner)
    inner = inner if own is None else own.fn
    if own is not None and own.name is not None:
        return own.name
    return f"{getattr(inner, '__module__', '?')}:{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def register(made: Any, own: Declared) -> None:
    """Make a decorated function known. Raises `UsageError` if its given name belongs to another one."""
    path = path_of(made)
    if own.name is not None:
        earlier = _registered.get(path)
        if earlier is not None and _place(declared(earlier)) != _place(own):
            raise UsageError(f"another compensable function is already called {own.name!r}")
    _registered[path] = made


def note_undo(undo: Any, path: str | None = None) -> None:
    """Make a function known that this program itself has used as an undo; ``path``: its name, where it is known."""
    _registered.setdefault(path_of(undo) if path is None else path, undo)


def _place(own: Declared | None) -> tuple[Any, Any]:
    return (None, None) if own is None else (own.fn.__module__, getattr(own.fn, "__qualname__", None))


def find(path: str, modules: Collection[str] = ()) -> Any:
    """The function of that name, or None; with ``modules``, only one that was defined in one of them."""
    made = _registered.get(path)
    if made is None:
        return None
    own = declared(made)
    module = getattr(made if own is None else own.fn, "__module__", None)
    return made if not modules or module in modules else None
