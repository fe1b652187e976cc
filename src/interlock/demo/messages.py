"""What the supervisor and its worker processes say to each other: one JSON object per line, over pipes.

A worker is sent one `Job` and then, once all are ready, a line ``go``. It answers with `Ready`, one message for each
delivery, and `Done`. A line is written in one piece, so a process that is killed leaves whole messages behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from interlock.demo.orders import Order
from interlock.demo.truth import Entry

GO = b"go\n"


@dataclass(frozen=True, slots=True)
class Job:
    """One process's part of a column: which deliveries, on which store, under which rules.

    ``think_seconds`` is the least and the most that an agent thinks about an order. ``keyed``: the order id is the
    idempotency key. ``incarnation`` is 1, and 2 for the process that replaces a killed one."""

    url: str
    prefix: str
    process: int
    incarnation: int
    agents: int
    seed: int
    think_seconds: tuple[float, float]
    isolation: str
    keyed: bool
    orders: tuple[Order, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker is connected and sees this opening stock in all."""

    units: int


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    """A delivery is done.

    ``applied``: by this call, and not by an earlier delivery whose entry was returned; ``runs`` of the function were
    made, ``lost`` of them for nothing, because another agent's commit came first; ``seconds`` from beginning to
    end."""

    line: int
    entry: Entry
    applied: bool
    runs: int
    lost: int
    seconds: float


class Contradicted(msgspec.Struct, frozen=True, tag="contradicted"):
    """A delivery uses the id of a known order for something else, and was refused."""

    line: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A delivery could not be processed; ``error`` says why."""

    line: int
    error: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The worker's part is finished and its store closed."""


Message = Ready | Acknowledged | Contradicted | Failed | Done

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def pack(message: Message | Job) -> bytes:
    """A message as one line."""
    return msgspec.json.encode(message) + b"\n"


def unpack_message(line: bytes) -> Message:
    """What a worker said. Raises `msgspec.ValidationError` for anything else."""
    return _decoder.decode(line)


def unpack_job(line: bytes) -> Job:
    """What a worker is told. Raises `msgspec.ValidationError` for anything else."""
    return msgspec.json.decode(line, type=Job)
