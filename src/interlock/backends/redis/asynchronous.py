"""The asynchronous leaf: for each event loop one link for everything and, once somebody waits for news, one for that.

They are closed with the store, or when the loop ends: an asynchronous generator waits in each loop for nothing else.

A commit that was sent is never taken back. A caller who is cancelled waits for the answer, at most ``grace_seconds``,
and the cancellation then carries a note that says how the commit ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

from interlock.backends.redis import failures
from interlock.backends.redis.address import Address, address_of, connect_suspending, moved_to
from interlock.backends.redis.elsewhere import ThreadedDriver
from interlock.backends.redis.greeting import greet
from interlock.backends.redis.home import REPEATS, Driver, Known, Lost, Moved, Options
from interlock.backends.redis.multiplexer import Link
from interlock.backends.redis.scripts import Calls, Command, Part, answers
from interlock.backends.redis.shared import Future, Replies
from interlock.backends.redis.tail import Tail
from interlock.errors import BackendUnavailableError, UsageError
from interlock.model import Key
from interlock.runtime import AsyncRuntime

_MOVES: Final = 5
"""How often a cluster may send a new connection on to another server."""
_CLOSED: Final = "this store is closed"


class LoopLinks:
    """The connections of one event loop."""

    def __init__(self, address: Address, options: Options, calls: Calls, known: Known) -> None:
        self._address = address
        self._options = options
        self._calls = calls
        self._known = known
        self._runtime = AsyncRuntime()
        self._lock = asyncio.Lock()
        self._place: tuple[str, int] | None = None
        self._links: list[Link] = []
        self.link: Link | None = None
        self.closed = False
        self.tail = Tail(self.connect, calls.feed)
        self._guard = self._until_the_end()

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.abandon()

    async def begin(self) -> None:
        """Have the loop close the connections when it ends."""
        await self._guard.__anext__()

    async def usable(self) -> Link:
        """The link for everything, made anew if it is broken. Raises what `greet` raises."""
        async with self._lock:
            if self.link is None or self.link.broken:
                self.link = None
                self.link = await self.connect(self._options.confirmation_seconds)
            return self.link

    async def connect(self, held_seconds: float) -> Link:
        """A new link to the server that has the store. ``held_seconds``: how long the server may be asked to wait
        before it replies."""
        for _ in range(_MOVES):
            place = self._place
            try:
                return await self._connect(place, held_seconds)
            except Moved as moved:
                self._place = moved_to(moved, self._address, place)
            except BackendUnavailableError:
                self._place = None  # the server that we were sent to may be gone: ask again where we began
                if place is None:
                    raise
        raise failures.unreachable("the cluster sends us from one server to the next")

    async def _connect(self, place: tuple[str, int] | None, held_seconds: float) -> Link:
        writer = await connect_suspending(self._address, self._options, place)
        options = self._options
        link = Link(writer, self._calls, options.confirmation, options.connect_seconds)

        async def ask(*commands: Command) -> Replies:
            replies: Replies | Lost = await link.send(commands).future
            if isinstance(replies, Lost):
                raise failures.lost(replies.text, commits=False)
            return replies

        try:
            await greet(ask, self._options, self._calls, self._known, self._runtime)
            if self.closed:
                raise UsageError(_CLOSED)
        except BaseException:
            link.abandon()
            raise
        link.patience_seconds = options.reply_seconds + held_seconds
        self._links = [each for each in self._links if not each.broken]
        self._links.append(link)
        return link

    def again(self, future: Future) -> Future | None:
        """A future for what a cancelled one was waiting for; None if that is gone."""
        return next((found for link in self._links if (found := link.again(future)) is not None), None)

    def abandon(self) -> None:
        """On the loop's own thread: end every connection."""
        self.closed = True
        self.tail.stop()
        for link in self._links:
            link.abandon()


class AsyncDriver(Driver):
    """The asynchronous leaf's connections, for any number of event loops."""

    def __init__(self, options: Options, calls: Calls, known: Known) -> None:
        self._options = options
        self._calls = calls
        self._known = known
        self._address = address_of(options.target)
        self._loops: dict[asyncio.AbstractEventLoop, LoopLinks] = {}
        self._elsewhere: ThreadedDriver | None = None
        self._closed = False

    async def _links(self, loop: asyncio.AbstractEventLoop) -> LoopLinks:
        if self._closed:
            raise UsageError(_CLOSED)
        links = self._loops.get(loop)
        if links is None or links.closed:
            for other in [each for each in list(self._loops) if each.is_closed()]:  # other threads add to it meanwhile
                self._loops.pop(other, None)
            links = self._loops[loop] = LoopLinks(self._address, self._options, self._calls, self._known)
            await links.begin()
        return links

    def _other_loop(self) -> ThreadedDriver:
        if self._closed:
            raise UsageError(_CLOSED)
        if self._elsewhere is None:
            self._elsewhere = ThreadedDriver(self._options, self._calls, self._known)
        return self._elsewhere

    def commit(self, part: Part) -> Future | None:
        """See `interlock.backends.redis.home.Driver`."""
        try:
            links = self._loops.get(asyncio.get_running_loop())
        except RuntimeError:  # trio
            return None
        link = None if links is None else links.link
        return None if link is None or link.broken else link.commit(part)

    def look(self, keys: Sequence[Key]) -> Future | None:
        """See `interlock.backends.redis.home.Driver`."""
        try:
            links = self._loops.get(asyncio.get_running_loop())
        except RuntimeError:  # trio
            return None
        link = None if links is None else links.link
        return None if link is None or link.broken else link.look(keys)

    async def wait_out(self, begun: Future, interrupt: BaseException) -> None:
        """See `interlock.backends.redis.home.Driver`."""
        links = self._loops.get(asyncio.get_running_loop())
        future = None if links is None else links.again(begun)
        if future is not None:
            await self._wait_out(future)
        interrupt.add_note(_ending(future))

    async def ask(self, *commands: Command, commits: bool = False, copies: bool = False) -> list[Any]:
        """See `interlock.backends.redis.home.Driver`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await self._other_loop().ask(*commands, commits=commits, copies=copies)
        repeats = REPEATS
        while True:
            links = await self._links(loop)
            link = links.link
            if link is None or link.broken:
                link = await links.usable()
            group = link.send(commands, copies=copies)
            try:
                replies: Replies | Lost = await group.future
            except asyncio.CancelledError as cancelled:
                if commits:
                    future = group.again()
                    await self._wait_out(future)
                    cancelled.add_note(_ending(future))
                raise
            if not isinstance(replies, Lost):
                return replies
            if self._closed and not commits:
                raise UsageError(_CLOSED)
            unknown = commits and replies.sent
            if unknown or replies.silent or repeats == 0:
                raise failures.lost(replies.text, commits=unknown)
            repeats -= 1

    async def _wait_out(self, future: Future) -> None:
        try:
            await asyncio.wait({future}, timeout=self._options.grace_seconds)
        except asyncio.CancelledError:  # cancelled once more; the first cancellation is the one that goes on
            pass

    async def wait(self, look: Callable[[], Awaitable[bool]], position: int, timeout_seconds: float) -> bool:
        """See `interlock.backends.redis.home.Driver`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await self._other_loop().wait(look, position, timeout_seconds)
        deadline = loop.time() + timeout_seconds
        while True:
            tail = (await self._links(loop)).tail
            waiter = tail.enlist(position)
            try:
                if await look():
                    return True
                left = deadline - loop.time()
                if left <= 0:
                    return False
                await asyncio.wait({waiter}, timeout=left)
                if self._closed:
                    raise UsageError(_CLOSED)
                if waiter.done() and waiter.result():
                    return True
            finally:
                tail.dismiss(waiter)

    def distrust(self) -> None:
        """See `interlock.backends.redis.home.Driver`."""
        try:
            links = self._loops.get(asyncio.get_running_loop())
        except RuntimeError:
            if self._elsewhere is not None:
                self._elsewhere.distrust()
            return
        if links is not None and links.link is not None:
            links.link.abandon()

    def cut(self) -> None:
        """See `interlock.backends.redis.home.Driver`."""
        self._closed = True
        if self._elsewhere is not None:
            self._elsewhere.cut()
        loops, self._loops = self._loops, {}
        for loop, links in loops.items():
            try:
                loop.call_soon_threadsafe(links.abandon)
            except RuntimeError:  # it has ended, and closed its connections itself
                pass

    async def close(self) -> None:
        """Those of other loops are cut."""
        try:
            own = self._loops.pop(asyncio.get_running_loop(), None)
        except RuntimeError:  # trio
            own = None
        self.cut()
        if own is not None:
            own.abandon()
            await asyncio.sleep(0)  # the transports close in the loop's next turn


def _ending(future: Future | None) -> str:
    """How a commit ended that was not taken back, for a note."""
    if future is None or not future.done() or future.cancelled():
        return "the commit had begun and has not ended yet; it may or may not happen"
    answer: Any = future.result()
    if isinstance(answer, Lost):
        return "the commit had begun and its answer was lost; it may or may not have happened"
    if type(answer) is list and type(answer[0]) is list:  # the replies to several commands, the commit's first
        (answer,) = answers(answer[0])
    done = type(answer) is list and answer[0] == 1
    return f"the commit had begun and was not abandoned: it {'was done' if done else 'was refused'}"
