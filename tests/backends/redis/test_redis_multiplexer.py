"""One connection for many tasks, without a server: which reply reaches whom, whatever is cancelled or cut meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis

from interlock.backends.redis.home import Lost
from interlock.backends.redis.multiplexer import Link
from interlock.backends.redis.scripts import packed


class Line:
    """In the place of the writer and its transport: a server that answers each command with its last word, when it is
    told to; `TIME` with one second more each time."""

    def __init__(self, confirmation: bool = False) -> None:
        self.transport = self
        self.writes = 0
        self.asked: list[bytes] = []
        self.times: list[int] = []
        self._commands = hiredis.Reader()
        self._seconds = 0
        confirming = (b"WAIT", b"1") if confirmation else None
        self.link = Link(self, confirming, 60.0, self.times.append)  # type: ignore[arg-type]
        self.clock = 0.0
        self.link.now = lambda: self.clock

    def set_protocol(self, protocol: Any) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._commands.feed(data)
        while (words := self._commands.gets()) is not False:
            self.asked.append(words[-1])

    def answer(self, count: int) -> None:
        """Answer so many commands, in pieces of three bytes."""
        data = b""
        for word in self.asked[:count]:
            if word == b"TIME":
                self._seconds += 1
                data += b"*2\r\n$%d\r\n%d\r\n$1\r\n7\r\n" % (len(b"%d" % self._seconds), self._seconds)
            else:
                data += b"$%d\r\n%b\r\n" % (len(word), word)
        del self.asked[:count]
        for first in range(0, len(data), 3):
            self.link.data_received(data[first : first + 3])

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.link.connection_lost, None)


def _turns(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def _get(word: str) -> bytes:
    return packed((b"GET", word.encode()))


def test_a_turn_is_one_write_and_every_reply_finds_its_caller() -> None:
    async def run() -> None:
        line = Line(confirmation=True)
        source = random.Random(7)
        for _ in range(50):
            waiting: list[tuple[Any, asyncio.Future[Any]]] = []
            writes, times = line.writes, len(line.times)
            for number in range(source.randrange(1, 12)):
                word = f"w{number}"
                way = source.randrange(4)
                if way < 2:
                    waiting.append((word.encode(), line.link.begin(_get(word), dated=way == 1)))
                else:
                    group = line.link.send([(b"GET", word.encode()), _get(word + "x")], copies=way == 3)
                    replies = [word.encode(), word.encode() + b"x", *([b"1"] if way == 3 else [])]
                    waiting.append((replies, group.future))
            cancelled = [future for _, future in waiting if source.random() < 0.3]
            if source.random() < 0.5:
                await asyncio.sleep(0)
            for future in cancelled:
                future.cancel()
            await asyncio.sleep(0)
            assert line.writes == writes + 1
            while line.asked:
                line.answer(source.randrange(1, 4))
            assert len(line.times) - times <= 1, "the time is asked for once in a turn"
            for expected, future in waiting:
                assert future.cancelled() if future in cancelled else future.result() == expected
        assert line.times == [1_000_000 * (number + 1) + 7 for number in range(len(line.times))]

    _turns(run)


def test_the_time_is_there_before_the_reply_that_it_goes_with() -> None:
    async def run() -> None:
        line = Line()
        line.link.begin(_get("commit"))
        dated = [line.link.begin(_get(f"w{number}"), dated=True) for number in range(3)]
        await asyncio.sleep(0)
        assert line.asked == [b"commit", b"TIME", b"w0", b"w1", b"w2"]
        line.answer(3)
        assert dated[0].result() == b"w0"
        assert line.times == [1_000_007]
        line.answer(2)
        line.link.begin(_get("later"), dated=True)
        await asyncio.sleep(0)
        assert line.asked == [b"TIME", b"later"], "the next turn has a time of its own"

    _turns(run)


async def _round(line: Line, tasks: int, *, busy: float, waits: float) -> int:
    """Tasks that are busy for so long and send a command each; whose replies come so long after the end of the turn.
    How many commands went out with the first write before that, if there was one."""
    waiting, early = [], 0
    for number in range(tasks):
        line.clock += busy / tasks
        waiting.append(line.link.begin(_get(f"w{number}")))
        early = early or len(line.asked)
    await asyncio.sleep(0)
    line.clock += waits
    while line.asked:
        line.answer(len(line.asked))
    assert [future.result() for future in waiting] == [b"w%d" % number for number in range(tasks)]
    return early


def test_the_first_half_goes_out_at_once_while_tasks_keep_this_side_busier_than_the_server() -> None:
    async def run() -> None:
        line = Line()
        assert await _round(line, 32, busy=2.0, waits=1.0) == 0, "nothing is known yet"
        assert await _round(line, 32, busy=2.0, waits=1.0) == 0, "how long this side is busy is known at the turn's end"
        for _ in range(3):
            writes = line.writes
            assert await _round(line, 32, busy=2.0, waits=1.0) == 16
            assert line.writes == writes + 2
        assert await _round(line, 10, busy=2.0, waits=1.0) == 0, "fewer come than the turn before"
        assert await _round(line, 10, busy=2.0, waits=1.0) == 5

    _turns(run)


def test_everything_goes_out_together_while_the_server_takes_longer_or_the_tasks_are_few() -> None:
    async def run() -> None:
        slow, few = Line(), Line()
        for _ in range(4):
            assert await _round(slow, 32, busy=1.0, waits=5.0) == 0
            assert await _round(few, 4, busy=2.0, waits=1.0) == 0
        assert (slow.writes, few.writes) == (4, 4)
        early = [await _round(slow, 32, busy=2.0, waits=1.0) for _ in range(3)]
        assert early == [0, 0, 16], "measured anew in every turn"
        early = [await _round(slow, 32, busy=2.0, waits=3.0) for _ in range(3)]
        assert early == [16, 16, 0]

    _turns(run)


def test_the_answer_to_a_cancelled_call_can_still_be_had() -> None:
    """Before it comes, after it has come in the very turn of the cancellation, and when the connection breaks."""

    async def run() -> None:
        line = Line()
        early, late, lost, kept = [line.link.begin(_get(f"w{number}")) for number in range(4)]
        await asyncio.sleep(0)
        for future in (early, late, lost):
            future.cancel()
        again = line.link.again(early)
        line.answer(2)
        assert again is not None
        assert again.result() == b"w0"
        again = line.link.again(late)
        assert again is not None
        assert again.result() == b"w1"
        line.link.connection_lost(None)
        again = line.link.again(lost)
        assert again is not None
        assert again.result() == Lost("closed by the server", True, False)
        assert type(kept.result()) is Lost
        assert Line().link.again(lost) is None
        group = line.link.send([_get("x")])
        group.future.cancel()
        line.link.connection_lost(None)
        assert type(group.again().result()) is Lost

    _turns(run)


def test_what_was_not_written_is_known_as_not_sent() -> None:
    async def run() -> None:
        line = Line(confirmation=True)
        sent = [line.link.begin(_get("a"), dated=True), line.link.send([_get("b")], copies=True).future]
        await asyncio.sleep(0)
        unsent = [
            line.link.begin(_get("c"), dated=True),
            line.link.send([_get("d"), _get("e")], copies=True).future,
            line.link.begin(_get("f")),
        ]
        line.link.abandon()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [future.result().sent for future in sent] == [True, True]
        assert [future.result().sent for future in unsent] == [False, False, False]
        assert line.asked == [b"TIME", b"a", b"b", b"1"]

    _turns(run)


def test_what_is_no_reply_ends_the_connection() -> None:
    async def run() -> None:
        for data in (b"HTTP/1.1 400\r\n", b"+OK\r\n+OK\r\n"):
            line = Line()
            future = line.link.begin(_get("a"))
            await asyncio.sleep(0)
            line.link.data_received(data)
            assert line.link.broken
            await asyncio.sleep(0)
            assert future.done()

    _turns(run)


def test_silence_is_counted_from_the_last_word() -> None:
    async def run() -> None:
        line = Line()
        futures = [line.link.begin(_get(f"w{number}")) for number in range(8)]
        await asyncio.sleep(0)
        for number in range(7):  # a word now and then is enough, for longer than the patience in all
            for _ in range(3):
                line.link._look()
            line.answer(1)
            assert not line.link.broken, number
        for number in range(5):
            assert not line.link.broken, number
            line.link._look()
        assert line.link.broken
        await asyncio.sleep(0)
        assert futures[-1].result() == Lost("no reply for 60 s", True, True)
        assert [future.result() for future in futures[:7]] == [b"w%d" % number for number in range(7)]

    _turns(run)


def test_nobody_looks_at_a_connection_that_owes_nothing() -> None:
    async def run() -> None:
        line = Line()
        for _ in range(3):
            future = line.link.begin(_get("a"))
            await asyncio.sleep(0)
            assert line.link._watch is not None
            line.answer(1)
            assert future.result() == b"a"
            line.link._look()
            assert line.link._watch is None

    _turns(run)
