"""Counts how often SQLite really asks the disk to keep something: every call of ``xSync``, in this process.

A shim around SQLite's own virtual file system, made the default one for as long as one counts: it opens files as
before, and puts a method of its own in the place of ``xSync`` that counts and then calls the original. Nothing is
assumed about the library's own idea of what is durable."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from servers import missing

_SYNC = 5
"""Where it stands in ``sqlite3_io_methods``, in words."""
_METHODS = 19
_POINTER = ctypes.c_void_p


class _Vfs(ctypes.Structure):
    """The beginning of ``sqlite3_vfs``, and room for the rest."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest", ctypes.c_int),
        ("following", _POINTER),
        ("name", ctypes.c_char_p),
        ("data", _POINTER),
        ("open", _POINTER),
        ("rest", _POINTER * 16),
    )


_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, _POINTER, _POINTER, ctypes.POINTER(_POINTER), ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int)


class Syncs:
    """``count`` is how often so far."""

    def __init__(self, library: Any) -> None:
        self.count = 0
        self._library = library
        self._made: dict[int, Any] = {}
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._inner = library.sqlite3_vfs_find(None)
        self._inner_open = _Open(self._inner.contents.open)
        self._own_open = _Open(self._open)
        self._shim = _Vfs()
        ctypes.memmove(ctypes.byref(self._shim), self._inner, ctypes.sizeof(_Vfs))
        self._shim.name = b"counting"
        self._shim.following = None
        self._shim.open = ctypes.cast(self._own_open, _POINTER)

    def _open(self, vfs: Any, name: Any, file: Any, flags: int, out: Any) -> int:
        code: int = self._inner_open(ctypes.cast(self._inner, _POINTER), name, file, flags, out)
        methods = file[0]
        if code == 0 and methods:
            file[0] = self._methods(methods)
        return code

    def _methods(self, methods: int) -> int:
        """The methods of a file with ours among them."""
        if methods not in self._made:
            table = (_POINTER * (_METHODS))()
            ctypes.memmove(table, methods, ctypes.sizeof(table))
            original = _Sync(table[_SYNC])

            def sync(file: Any, flags: int) -> int:
                self.count += 1
                code: int = original(file, flags)
                return code

            own = _Sync(sync)
            table[_SYNC] = ctypes.cast(own, _POINTER)
            self._made[methods] = (table, own, original)
        return ctypes.addressof(self._made[methods][0])

    @contextlib.contextmanager
    def counted(self) -> Iterator[Syncs]:
        """For files that are opened meanwhile; they have to be closed before it ends."""
        shim = ctypes.byref(self._shim)
        assert self._library.sqlite3_vfs_register(shim, 1) == 0
        try:
            yield self
        finally:
            self._library.sqlite3_vfs_register(self._inner, 1)
            self._library.sqlite3_vfs_unregister(shim)


def syncs() -> Syncs:
    """A new counter. Without SQLite's symbols the test is skipped; with ``CI`` in the environment that is an error."""
    import _sqlite3

    try:
        return Syncs(ctypes.CDLL(_sqlite3.__file__))
    except AttributeError:
        missing("SQLite's own functions", "this Python's sqlite3 does not show them")
        raise
