"""The outside world of the order saga: a payment service, a carrier and a mail server, in a process of their own.

Run as ``python -m interlock.demo.outside LOG SEED``; it says its port on stdout and ends when its stdin does.
Everything that has taken place is one JSON line of its log, which is only ever appended to, and a line is there before
anybody is answered. It knows nothing of orders in a store, of sagas or of journals: its log is what
`interlock.demo.saga_truth` judges by.

It behaves as such services do. Some cards are declined and some shipments refused; some answers are lost although the
act took place. A request under a key that is known is answered as the first time and is not a second act. ``void`` asks
whether a key was used and, if not, sees to it that it never will be: a request that is still on its way cannot arrive
behind the answer. All of it happens under one lock, so a key has one fate.
"""

from __future__ import annotations

import os
import socket
import socketserver
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

PORT: Final = "INTERLOCK_DEMO_OUTSIDE"
"""The environment variable with the port that `ask` connects to."""

DECLINED, REFUSED, LOST_ONCE, LOST_TWICE = 0.08, 0.10, 0.12, 0.06
ANSWER_SECONDS: Final = 60.0


class Refused(Exception):
    """The service does not want to; nothing has taken place."""


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the log. ``id``: of the act itself, or for a refund or recall of the act that it takes back."""

    kind: str
    order: str
    id: str
    cents: int = 0


def read_log(path: Path) -> tuple[Fact, ...]:
    """All that has taken place, in order."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return tuple(msgspec.json.decode(line, type=Fact) for line in lines)


def ask(verb: str, seconds: float = ANSWER_SECONDS, **request: Any) -> Any:
    """Ask for something and wait for the answer.

    Raises: `Refused`; `TimeoutError` if no answer came within ``seconds``, which says nothing about the act."""
    port = int(os.environ[PORT])
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(msgspec.json.encode({"verb": verb, **request}) + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline()
    if not line.endswith(b"\n"):
        raise TimeoutError(f"no answer to {verb}")
    answer = msgspec.json.decode(line)
    if "refused" in answer:
        raise Refused(answer["refused"])
    return answer["result"]


class World:
    """What the services know: acts by key, and the log."""

    def __init__(self, log: Path, seed: int) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._seed = seed
        self._lock = threading.Lock()
        self._by_key: dict[str, str] = {}
        self._void: set[str] = set()
        self._charged: dict[str, int] = {}
        self._count = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Do what is asked; None: done, and the answer gets lost."""
        verb, key = request["verb"], request.get("key", "")
        with self._lock:
            if verb in ("find", "void"):
                found = self._by_key.get(key)
                if found is None and verb == "void":
                    self._void.add(key)
                return {"result": found}
            if key in self._void:
                return {"refused": "the key is void"}
            order = request["order"]
            if verb == "charge":
                self._charged[order] = self._charged.get(order, 0) + 1
            refusal = self._refusal(verb, order)
            if refusal is not None:
                return {"refused": refusal}
            result = self._by_key.get(key) or self._act(verb, request)
            if key:
                self._by_key[key] = result
            return None if verb == "charge" and self._is_lost(order) else {"result": result}

    def _act(self, verb: str, request: dict[str, Any]) -> str:
        self._count += 1
        made = request.get("id") or f"{verb}-{self._count}"
        fact = Fact(verb, request["order"], made, request.get("cents", 0))
        os.write(self._log, msgspec.json.encode(fact) + b"\n")
        return made

    def _chance(self, what: str, order: str) -> float:
        return Random(f"{self._seed}/{what}/{order}").random()

    def _refusal(self, verb: str, order: str) -> str | None:
        if verb == "charge" and self._chance("card", order) < DECLINED:
            return "the card was declined"
        if verb == "ship" and self._chance("carrier", order) < REFUSED:
            return "the carrier does not go there"
        return None

    def _is_lost(self, order: str) -> bool:
        chance = self._chance("network", order)
        times = 2 if chance < LOST_TWICE else 1 if chance < LOST_TWICE + LOST_ONCE else 0
        return self._charged[order] <= times


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, world: World) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.world = world


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """One request; one that was cut off has not arrived."""
        try:
            line = self.rfile.readline()
            if not line.endswith(b"\n"):
                return
            assert isinstance(self.server, _Server)
            answer = self.server.world.answer(msgspec.json.decode(line))
            if answer is None:
                self.rfile.read()  # silent until the other side has given up
            else:
                self.wfile.write(msgspec.json.encode(answer) + b"\n")
        except ConnectionError:
            return  # whoever asked was killed


def main() -> None:
    """Serve until stdin ends."""
    with _Server(World(Path(sys.argv[1]), int(sys.argv[2]))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
        server.shutdown()


if __name__ == "__main__":
    main()
