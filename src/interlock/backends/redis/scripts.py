"""The scripts as the server gets them, and the keys that they are given.

A script is one ``.lua`` file of this package, with the files that it names by ``--@ name`` put in their places. Each is
called by its SHA-1 and with all seven keys of the store, whether it uses them or not: on a cluster the server then
knows that they lie in one slot, which the name in braces, the hash tag, sees to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from interlock.errors import UsageError

NAMES: Final = ("open", "read", "scan", "commit", "changes", "outcome", "history", "expired", "compact")
KEYS: Final = ("entries", "index", "history", "feed", "expiring", "settled", "large")
FORM: Final = b"1"
"""The form of what lies in the keys; `open.lua` writes it into a new store."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

Command = tuple[bytes, ...] | bytes
"""The words of a command, or all of it as it goes over the connection: what every transaction sends is put together in
that form at once, the words that never change in one piece."""


Part = tuple[bytes, bytes, bytes, bool, int]
"""A commit in a call of `commit.lua`, as it goes over the connection: its head, the fields to read, all else that it
says; whether it has to be the only one; of how many words fields and all else are."""

DONE: Final = 1
"""What the answer to a commit that was done begins with."""


def answers(reply: Sequence[Any]) -> list[list[Any]]:
    """The answers in a reply of `commit.lua`, those of plain commits spelled out."""
    at = reply[0]
    return [[DONE, answer, at] if type(answer) is int else answer for answer in reply[1:]]


class _Heads(dict[int, bytes]):
    """What stands before a word of so many bytes."""

    def __missing__(self, size: int) -> bytes:
        return b"\r\n$%d\r\n" % size


HEADS: Final = _Heads({size: b"\r\n$%d\r\n" % size for size in range(2048)})


def piece(words: Sequence[bytes]) -> bytes:
    """Words in the middle of a command, up to the last one's end."""
    return b"".join([part for word in words for part in (HEADS[len(word)], word)])


def packed(command: Command) -> bytes:
    """A command as it goes over the connection."""
    return command if isinstance(command, bytes) else b"*%d%b\r\n" % (len(command), piece(command))


def _read(name: str) -> str:
    text = files("interlock.backends.redis").joinpath(f"{name}.lua").read_text("utf-8")
    return re.sub(r"^\s*--@ (\w+)\.lua$", lambda named: _read(named[1]), text, flags=re.MULTILINE)


TEXTS: Final[dict[str, bytes]] = {name: _read(name).encode() for name in NAMES}
DIGESTS: Final[dict[str, bytes]] = {name: hashlib.sha1(text).hexdigest().encode() for name, text in TEXTS.items()}


_CALL_BYTES: Final = len(piece((b"EVALSHA", b"0" * 40)))
_BY_DIGEST: Final = {piece((b"EVALSHA", digest)): piece((b"EVAL", TEXTS[name])) for name, digest in DIGESTS.items()}


def spelled_out(command: Command) -> Command:
    """The same call with the script's text in place of its digest: for a server that has lost it, perhaps once more."""
    whole = packed(command)
    start = whole.index(b"\r\n")
    end = start + _CALL_BYTES
    text = _BY_DIGEST.get(whole[start:end])
    return command if text is None else whole[:start] + text + whole[end:]


_HEAD_AND_META: Final = piece((b"s", b"m"))


class Calls:
    """How the scripts of one store are called: ``calls.commit + arguments`` is a command."""

    def __init__(self, name: str) -> None:
        if type(name) is not str or not _NAME.fullmatch(name):
            raise UsageError(
                f"name is up to 64 letters, digits, '_', '.', ':' and '-', not {name!r}: "
                "it is the hash tag of all the store's keys, which must lie in one slot"
            )
        self.keys = tuple([f"{{{name}}}:{part}".encode() for part in KEYS])
        self.entries, self.feed, self.expiring = self.keys[0], self.keys[3], self.keys[4]
        count = b"%d" % len(self.keys)
        made = {name: (b"EVALSHA", digest, count, *self.keys) for name, digest in DIGESTS.items()}
        self.open = made["open"]
        self.read = made["read"]
        self.scan = made["scan"]
        self._commit = piece(made["commit"])
        self._commit_words = len(made["commit"]) + 3
        self.changes = made["changes"]
        self.outcome = made["outcome"]
        self.history = made["history"]
        self.expired = made["expired"]
        self.compact = made["compact"]
        self._look = piece((b"HMGET", self.entries, b"s", b"m"))

    def commits(self, parts: Sequence[Part]) -> bytes:
        """The call that makes these commits."""
        if len(parts) == 1:
            head, fields, rest, _, words = parts[0]
        else:
            head = b"".join([part[0] for part in parts])
            fields = b"".join([part[1] for part in parts])
            rest = b"".join([part[2] for part in parts])
            words = sum([part[4] for part in parts])
        count = b"*%d" % (self._commit_words + words)
        return b"".join((count, self._commit, HEADS[len(head)], head, _HEAD_AND_META, fields, rest, b"\r\n"))

    def look(self, keys: Sequence[bytes] = ()) -> bytes:
        """A command for the head and the meta field, and for keys, read in the same instant."""
        if len(keys) == 1:
            key = keys[0]
            return b"".join((b"*5", self._look, HEADS[len(key)], key, b"\r\n"))
        return b"*%d%b%b\r\n" % (4 + len(keys), self._look, piece(keys))
