"""One connection for many tasks, without a server: which reply reaches whom, whatever is cancelled or cut meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis

from interlock.backends.redis.home import Lost
from interlock.backends.redis.multiplexer import Link
from interlock.backends.redis.scripts import DONE, Calls, Part, packed, piece
from interlock.backends.redis.shared import Together

Said = tuple[bytes, ...]


class Line:
    """In the place of the writer and its transport: a server that answers each command when it is told to. A single
    one with its last word, `TIME` with one second more each time, a read with its keys, a commit with its transaction
    or, where that is a number, as done at that position."""

    def __init__(self, confirmation: bool = False) -> None:
        self.transport = self
        self.writes = 0
        self.asked: list[Said] = []
        self._commands = hiredis.Reader()
        self._seconds = 0
        confirming = (b"WAIT", b"1") if confirmation else None
        self.link = Link(self, Calls("x"), confirming, 60.0)  # type: ignore[arg-type]
        self.clock = 0.0
        self.link.now = lambda: self.clock

    def set_protocol(self, protocol: Any) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._commands.feed(data)
        while (words := self._commands.gets()) is not False:
            assert type(words) is list
            if words[0] == b"EVALSHA":
                found = [word[1:] for word in words[13:] if word[:1] == b"x"]
                assert words[10] == b"h" * 39 * len(found), "a head for each"
                assert words[13:] == [*(b"x" + name for name in found), *found], "fields of all, then all else"
                self.asked.append((b"commits", *found))
            elif words[0] == b"HMGET":
                self.asked.append((b"look", *words[4:]))
            else:
                self.asked.append((words[-1],))

    def answer(self, count: int, wrong: bytes = b"") -> None:
        """Answer so many commands, in pieces of three bytes; commits with an error reply, if there is one."""
        data = b""
        for kind, *names in self.asked[:count]:
            if kind == b"TIME":
                self._seconds += 1
                data += b"*2\r\n$%d\r\n%d\r\n$1\r\n7\r\n" % (len(b"%d" % self._seconds), self._seconds)
            elif kind == b"look":
                data += b"*%d%b\r\n" % (len(names) + 2, piece([b"head", b"meta", *names]))
            elif kind == b"commits":
                each = [b":%b\r\n" % name if name.isdigit() else b"*1%b\r\n" % piece([name]) for name in names]
                data += wrong or b"*%d\r\n:77\r\n%b" % (len(names) + 1, b"".join(each))
            else:
                data += b"$%d\r\n%b\r\n" % (len(kind), kind)
        del self.asked[:count]
        for first in range(0, len(data), 3):
            self.link.data_received(data[first : first + 3])

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.link.connection_lost, None)


def _turns(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def _get(word: str) -> bytes:
    return packed((b"GET", word.encode()))


def _part(word: str, *, alone: bool = False) -> Part:
    name = word.encode()
    return b"h" * 39, piece((b"x" + name,)), piece((name,)), alone, 2


def _seen(future: asyncio.Future[Any]) -> tuple[bytes, int]:
    """The first of the keys that were read, and when."""
    look, start = future.result()
    return look.found[start], look.time


def test_a_turn_is_one_write_and_every_reply_finds_its_caller() -> None:
    async def run() -> None:
        line = Line(confirmation=True)
        source = random.Random(7)
        for turn in range(50):
            waiting: list[tuple[Any, asyncio.Future[Any]]] = []
            writes, kinds = line.writes, set()
            for number in range(source.randrange(1, 12)):
                word, name = f"w{number}", b"w%d" % number
                way = source.randrange(5)
                kinds.add(way)
                if way == 0:
                    waiting.append(([name], line.link.commit(_part(word))))
                elif way == 1:
                    waiting.append(([DONE, number, 77], line.link.commit(_part(str(number)))))
                elif way == 2:
                    waiting.append(((name, (turn + 1) * 1_000_000 + 7), line.link.look([name, b"other"])))
                else:
                    group = line.link.send([(b"GET", name), _get(word + "x")], copies=way == 4)
                    waiting.append(([name, name + b"x", *([b"1"] if way == 4 else [])], group.future))
            line._seconds = turn
            cancelled = [future for _, future in waiting if source.random() < 0.3]
            if source.random() < 0.5:
                await asyncio.sleep(0)
            for future in cancelled:
                future.cancel()
            await asyncio.sleep(0)
            assert line.writes == writes + 1
            asked = [said[0] for said in line.asked]
            assert asked.count(b"commits") == bool(kinds & {0, 1}), "commits go in one call"
            assert asked.count(b"look") == asked.count(b"TIME") == (2 in kinds), "reads in one command"
            while line.asked:
                line.answer(source.randrange(1, 4))
            for expected, future in waiting:
                if future in cancelled:
                    assert future.cancelled()
                else:
                    assert (_seen(future) if type(expected) is tuple else future.result()) == expected

    _turns(run)


def test_commits_go_before_reads_and_the_time_between_them() -> None:
    async def run() -> None:
        line = Line()
        looks = [line.link.look([b"a"])]
        commits = [line.link.commit(_part(f"c{number}")) for number in range(3)]
        looks.append(line.link.look([b"b", b"c"]))
        await asyncio.sleep(0)
        assert line.asked == [(b"commits", b"c0", b"c1", b"c2"), (b"TIME",), (b"look", b"a", b"b", b"c")]
        line.answer(2)
        assert [future.result() for future in commits] == [[b"c0"], [b"c1"], [b"c2"]]
        assert not looks[0].done()
        line.answer(1)
        assert [_seen(future) for future in looks] == [(b"a", 1_000_007), (b"b", 1_000_007)]
        looks = [line.link.look([b"later"])]
        await asyncio.sleep(0)
        assert line.asked == [(b"TIME",), (b"look", b"later")], "the next turn has a time of its own"
        line.answer(2)
        assert _seen(looks[0]) == (b"later", 2_000_007)

    _turns(run)


def test_what_has_to_be_alone_is_and_no_call_grows_without_end() -> None:
    async def run() -> None:
        line = Line()
        words = ("a", "b", "c", "d", "e")
        commits = [line.link.commit(_part(word, alone=word in "bd")) for word in words]
        looks = [line.link.look([b"%d" % (100 * number + key) for key in range(100)]) for number in range(3)]
        await asyncio.sleep(0)
        assert line.asked[:5] == [(b"commits", word.encode()) for word in words]
        assert [len(said) for said in line.asked[5:]] == [1, 201, 101]
        line.answer(8)
        assert [future.result() for future in commits] == [[word.encode()] for word in words]
        assert [_seen(future)[0] for future in looks] == [b"0", b"100", b"200"]
        large = [line.link.commit(_part("w".zfill(6000))) for _ in range(5)]
        await asyncio.sleep(0)
        assert [len(said) for said in line.asked] == [3, 3, 2]
        line.answer(3)
        assert all(future.done() for future in large)

    _turns(run)


def test_an_error_of_several_commits_is_none_of_each() -> None:
    async def run() -> None:
        line = Line()
        pair = [line.link.commit(_part(word)) for word in "ab"]
        await asyncio.sleep(0)
        line.answer(1, b"-ERR damaged\r\n")
        for future in pair:
            assert type(future.result()) is Together
            assert str(future.result().reply) == "ERR damaged"
        single = line.link.commit(_part("a"))
        await asyncio.sleep(0)
        line.answer(1, b"-ERR damaged\r\n")
        assert str(single.result()) == "ERR damaged"

    _turns(run)


async def _round(line: Line, tasks: int, *, busy: float, waits: float) -> int:
    """Tasks that are busy for so long and make a commit each; whose answers come so long after the end of the turn.
    How many commits went out with the first write before that, if there was one."""
    waiting, early = [], 0
    for number in range(tasks):
        line.clock += busy / tasks
        waiting.append(line.link.commit(_part(f"w{number}")))
        early = early or len([*line.asked, (b"",)][0]) - 1
    await asyncio.sleep(0)
    line.clock += waits
    while line.asked:
        line.answer(len(line.asked))
    assert [future.result() for future in waiting] == [[b"w%d" % number] for number in range(tasks)]
    return early


def test_the_first_half_goes_out_at_once_while_tasks_keep_this_side_busier_than_the_server() -> None:
    async def run() -> None:
        line = Line()
        assert await _round(line, 160, busy=2.0, waits=1.0) == 0, "nothing is known yet"
        assert await _round(line, 160, busy=2.0, waits=1.0) == 0, (
            "how long this side is busy is known at the turn's end"
        )
        for _ in range(3):
            writes = line.writes
            assert await _round(line, 160, busy=2.0, waits=1.0) == 80
            assert line.writes == writes + 2
        assert await _round(line, 70, busy=2.0, waits=1.0) == 0, "fewer come than the turn before"
        assert await _round(line, 70, busy=2.0, waits=1.0) == 35

    _turns(run)


def test_everything_goes_out_together_while_the_server_takes_longer_or_the_tasks_are_few() -> None:
    async def run() -> None:
        slow, few = Line(), Line()
        for _ in range(4):
            assert await _round(slow, 64, busy=1.0, waits=5.0) == 0
            assert await _round(few, 62, busy=2.0, waits=1.0) == 0
        assert (slow.writes, few.writes) == (4, 4)
        early = [await _round(slow, 64, busy=2.0, waits=1.0) for _ in range(3)]
        assert early == [0, 0, 32], "measured anew in every turn"
        early = [await _round(slow, 64, busy=2.0, waits=3.0) for _ in range(3)]
        assert early == [32, 32, 0]

    _turns(run)


def test_the_answer_to_a_cancelled_call_can_still_be_had() -> None:
    """Before it is sent, before it comes, after it has come in the very turn of the cancellation, and when the
    connection breaks."""

    async def run() -> None:
        line = Line()
        unsent, early = [line.link.commit(_part(word)) for word in ("unsent", "early")]
        unsent.cancel()
        first = line.link.again(unsent)
        await asyncio.sleep(0)
        late = line.link.look([b"late"])
        await asyncio.sleep(0)
        for future in (early, late):
            future.cancel()
        second = line.link.again(early)
        line.answer(3)
        third = line.link.again(late)
        assert first is not None
        assert second is not None
        assert third is not None
        assert (first.result(), second.result(), _seen(third)[0]) == ([b"unsent"], [b"early"], b"late")
        lost, kept = [line.link.commit(_part(word)) for word in ("lost", "kept")]
        await asyncio.sleep(0)
        lost.cancel()
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

        def everything(word: str) -> list[asyncio.Future[Any]]:
            link, name = line.link, word.encode()
            group = link.send([_get(word), _get(word)], copies=True)
            return [link.look([name]), group.future, link.commit(_part(word)), link.send([_get(word)]).future]

        sent = everything("a")
        await asyncio.sleep(0)
        unsent = everything("b")
        line.link.abandon()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [future.result().sent for future in sent] == [True] * 4
        assert [future.result().sent for future in unsent] == [False] * 4
        assert line.asked == [(b"a",), (b"a",), (b"a",), (b"1",), (b"commits", b"a"), (b"TIME",), (b"look", b"a")]

    _turns(run)


def test_what_is_no_reply_ends_the_connection() -> None:
    async def run() -> None:
        for data in (b"HTTP/1.1 400\r\n", b"+OK\r\n+OK\r\n"):
            line = Line()
            future = line.link.commit(_part("a"))
            await asyncio.sleep(0)
            line.link.data_received(data)
            assert line.link.broken
            await asyncio.sleep(0)
            assert future.done()

    _turns(run)


def test_silence_is_counted_from_the_last_word() -> None:
    async def run() -> None:
        line = Line()
        futures = [line.link.send([_get(f"w{number}")]).future for number in range(8)]
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
        assert [future.result() for future in futures[:7]] == [[b"w%d" % number] for number in range(7)]

    _turns(run)


def test_nobody_looks_at_a_connection_that_owes_nothing() -> None:
    async def run() -> None:
        line = Line()
        for _ in range(3):
            future = line.link.commit(_part("a"))
            await asyncio.sleep(0)
            assert line.link._watch is not None
            line.answer(1)
            assert future.result() == [b"a"]
            line.link._look()
            assert line.link._watch is None

    _turns(run)
