"""The reading half of the Redis backend: asking the server, entries, ranges, the feed.

A read of the newest state, or of a snapshot that nothing has changed since, is one plain command, which is atomic and
costs the server less than a tenth of a script. It brings the head and meta along, so that the token and the check of
the horizon are of the same instant. The time is asked for with it, or once for many (`multiplexer`). Everything else is
a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from interlock.backends.redis import failures
from interlock.backends.redis.greeting import load
from interlock.backends.redis.home import Driver, Lost
from interlock.backends.redis.record import (
    DAMAGE,
    EXPIRING,
    LARGE,
    MICRO,
    TOMBSTONE,
    author_of,
    change_of,
    damaged,
    entry_of,
    header_of,
    pack_pair,
    pair_of,
    unpack_pair,
)
from interlock.backends.redis.scripts import Calls, Command, spelled_out
from interlock.errors import SnapshotTooOldError, UsageError
from interlock.model import Author, Change, Entry, Key, Page, Reading, Span, Token

CLOSED: Final = "this store is closed"
KEYS_PER_CALL: Final = 2_000

_TIME: Final[Command] = (b"TIME",)
_ANYWHERE: Final = (b"", b"")
_RECORDS_PER_CALL: Final = 200
_AGAIN: Final = 2
_NOT_PLAIN: Final = TOMBSTONE | LARGE | EXPIRING


class Reader:
    """What needs no commit. The subclass sets the attributes."""

    _calls: Calls
    _driver: Driver
    _closed: bool
    _last_time: int

    # -- asking --------------------------------------------------------------------------------------------------------
    async def ask(self, *commands: Command, commits: bool = False, copies: bool = False) -> list[Any]:
        """The replies to commands. What certainly was not done because the scripts or the server were not there is done
        again, once they are; any other error reply is raised."""
        if self._closed:
            raise UsageError(CLOSED)
        again = _AGAIN
        while True:
            replies = await self._driver.ask(*commands, commits=commits, copies=copies)
            wrong: Exception | None = None
            for reply in replies:
                if isinstance(reply, Exception):
                    wrong = reply
            if wrong is None:
                return replies
            commands = await self._mend(wrong, commands, again)
            again -= 1

    async def _mend(self, wrong: Exception, commands: Sequence[Command], again: int) -> tuple[Command, ...]:
        """After an error reply: what to send, if that may help; else raises what it means."""
        code = failures.code_of(str(wrong))
        if code in failures.MOVES_ON:
            self._driver.distrust()
        elif code != "NOSCRIPT":
            again = 0
        if again == 0:
            raise failures.refused(str(wrong))
        if code == "NOSCRIPT":
            await load(self._driver.ask)
            return tuple([spelled_out(command) for command in commands])
        return tuple(commands)

    async def _found(self, reply: Any, command: Command) -> tuple[list[Any], int]:
        """What a command of `Calls.look` finds, and the time, after a reply that is none, or without one."""
        if type(reply) is Lost and reply.silent:
            raise failures.lost(reply.text, commits=False)
        found, time = await self.ask(command, _TIME)
        return found, int(time[0]) * MICRO + int(time[1])

    def _placed(self, found: list[Any], seen: int, at: Token | None) -> tuple[int, Token]:
        """The time and the token at which something was read, head and meta in front, while the clock said ``seen``."""
        meta = found[1]
        if meta is None:
            raise failures.vanished()
        try:
            position, changed_at = unpack_pair(found[0])
            store, incarnation = unpack_pair(meta)
        except DAMAGE as error:
            raise damaged("the head of the store", error) from error
        if seen < changed_at:
            seen = changed_at
        if self._last_time < seen:
            self._last_time = seen
        if at is None:
            return self._last_time, Token(store, incarnation, position)
        if at.store != store or at.incarnation != incarnation or at.position > position:
            raise misplaced(at, meta)
        if at.position < int.from_bytes(meta[16:24], "big"):
            raise too_old()
        return self._last_time, at

    async def page(self, command: Command, at: Token | None) -> list[Any]:
        """The answer of a script that reads at a token, without its status."""
        (answer,) = await self.ask(command)
        if answer[0] == 3:
            raise failures.vanished() if at is None else misplaced(at, answer[1])
        if answer[0] == 4:
            raise too_old()
        if answer[0] == 8:
            raise SnapshotTooOldError("a version that the snapshot may show was overwritten quietly")
        rest: list[Any] = answer[1:]
        return rest

    # -- reading -------------------------------------------------------------------------------------------------------
    async def snapshot(self) -> Token:
        """A token of everything committed so far."""
        return (await self.read(())).token

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Entries of several keys as of a snapshot, or the newest. One command; where a large value or a superseded
        version is wanted, a script after it."""
        begun = None if self._closed else self._driver.look(keys)
        seen = None if begun is None else await begun
        if type(seen) is tuple:
            look, start = seen
            found, time, token = look.found, look.time, look.token
            if token is None or at is not None:
                time, token = self._placed(found, time, at)
                if at is None:
                    look.time, look.token = time, token
        else:
            found, asked = await self._found(seen, self._calls.look(keys))
            start, (time, token) = 2, self._placed(found, asked, at)
        newest = token.position
        entries: list[Entry | None] = []
        for place in range(start, start + len(keys)):
            raw = found[place]
            if raw is None:
                entries.append(None)
                continue
            try:
                position, nonce, flags = header_of(raw)
            except DAMAGE as error:
                raise damaged("an entry", error) from error
            if position > newest or flags & _NOT_PLAIN:
                if position > newest or flags & LARGE:
                    return await self._read_past(keys, token)
                entries.append(entry_of(raw))
            else:
                entries.append(Entry((position, nonce), raw[17:]))
        return Reading(entries, token, time / MICRO)

    async def _read_past(self, keys: Sequence[Key], at: Token) -> Reading:
        entries: list[Entry | None] = []
        superseded, time = False, 0
        for first in range(0, len(keys), KEYS_PER_CALL):
            part = keys[first : first + KEYS_PER_CALL]
            _, _, seen, old, found = await self.page((*self._calls.read, *_place(at), *part), at)
            entries += [entry_of(raw) for raw in found]
            superseded, time = superseded or bool(old), seen
        return Reading(entries, at, self._time(time) / MICRO, superseded)

    async def scan(self, span: Span, at: Token | None = None, *, limit: int = 1000, reverse: bool = False) -> Page:
        """Live, listed entries of a range in key order. One call for each thousand keys that the range has."""
        items: list[tuple[Key, Entry]] = []
        start, stop = span
        token, superseded = at, False
        while True:
            count = b"%d" % min(limit + 1 - len(items), 1000)
            command = (*self._calls.scan, *_place(token), start, stop, count, b"r" if reverse else b"")
            meta, position, old, last, found = await self.page(command, token)
            if token is None:
                token = Token(*pair_of(meta), position)
            superseded = superseded or bool(old)
            for place in range(0, len(found), 2):
                entry = entry_of(found[place + 1])
                assert entry is not None
                items.append((found[place], entry))
            if not last or len(items) > limit:
                return Page(items[:limit], token, len(items) > limit, superseded)
            if reverse:
                stop = last
            else:
                start = last + b"\0"

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key, newest first."""
        _, found = await self.page((*self._calls.history, key, b"%d" % limit), None)
        kept: list[tuple[Entry, Author | None]] = []
        for place in range(0, len(found), 3):
            entry = entry_of(found[place])
            assert entry is not None
            kept.append((entry, author_of(found[place + 1], found[place + 2])))
        return kept

    async def now(self) -> float:
        """The server's clock. A commit never has an earlier time than the one before it."""
        return (await self.read(())).at

    # -- the feed ------------------------------------------------------------------------------------------------------
    async def changes(self, since: Token | None, *, limit: int = 1000) -> tuple[list[Change], Token]:
        """The next feed records behind a cursor, and the cursor behind the last of them. A call for each 200."""
        return await self.records(since, limit, None)

    async def records(self, since: Token | None, limit: int, entries: int | None) -> tuple[list[Change], Token]:
        found: list[Change] = []
        cursor = since
        while True:
            count = min(limit - len(found), _RECORDS_PER_CALL)
            command = (*self._calls.changes, *_place(cursor), b"%d" % count)
            meta, position, all_, parts = await self.page(command, cursor)
            store, incarnation = pair_of(meta)
            for _, each in groupby(parts, key=_position):
                change = change_of(list(each), store, incarnation)
                if change is not None:
                    found.append(change)
            cursor = Token(store, incarnation, position)
            if len(found) == limit:
                return found, found[-1].token
            if all_ or entries is not None:
                return found, cursor

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Wait until something newer than ``since`` is committed by anybody."""

        async def look() -> bool:
            found, seen = await self._found(None, self._calls.look())
            self._placed(found, seen, since)
            return pair_of(found[0])[0] > since.position

        return await self._driver.wait(look, since.position, timeout_seconds)

    def _time(self, seen: int) -> int:
        self._last_time = max(self._last_time, seen)
        return self._last_time


def _place(at: Token | None) -> tuple[bytes, bytes]:
    """A token as two arguments of a script."""
    return _ANYWHERE if at is None else (pack_pair(at.store, at.incarnation), b"%d" % at.position)


def _position(part: Sequence[Any]) -> int:
    position: int = part[0]
    return position


def too_old() -> SnapshotTooOldError:
    return SnapshotTooOldError("the store no longer keeps this snapshot, or it keeps only younger transactions")


def misplaced(token: Token, meta: bytes) -> Exception:
    """Why a token is not one of the store as it is now."""
    if not meta:
        return failures.vanished()
    store, incarnation = pair_of(meta)
    if token.store == store and token.incarnation != incarnation:
        return SnapshotTooOldError("the server was restarted or replaced since the snapshot was taken")
    return UsageError("the token belongs to another store")
