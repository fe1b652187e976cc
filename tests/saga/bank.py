"""The outside world of the tests of durable sagas: a service that keeps its own log in a file, and a saga over it.

Each line of the log is one call that has reached the service: ``do charge KEY`` or ``undo charge KEY``. The service
asks nobody and knows nothing of journals, so its log is the truth."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from interlock import NOT_HAPPENED, Happened, compensable

NAMES = ("reserve", "charge", "label", "pack", "notify")


class Refused(Exception):
    """The service does not want to."""


def log_path() -> Path:
    """Where the service keeps its log; set by the test before the process is begun."""
    return Path(os.environ["INTERLOCK_TEST_BANK"])


def note(line: str) -> None:
    """One call has reached the service."""
    descriptor = os.open(log_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def lines() -> list[str]:
    """The log."""
    return log_path().read_text().splitlines() if log_path().exists() else []


def probe(key: str) -> Any:
    """Ask the service by key."""
    found = any(line.startswith("do ") and line.endswith(f" {key}") for line in lines())
    return Happened(key) if found else NOT_HAPPENED


verify = compensable(name="bank.verify", outside="run")(probe)


def _undo(name: str) -> Any:
    def undo(result: str, idempotency_key: str) -> None:
        note(f"undo {name} {result}")

    return compensable(name=f"bank.undo.{name}", outside="run")(undo)


def _act(name: str) -> Any:
    def act(idempotency_key: str = "") -> str:
        note(f"do {name} {idempotency_key}")
        return idempotency_key

    return compensable(name=f"bank.{name}", outside="run")(act)


UNDOS = {name: _undo(name) for name in NAMES}
ACTS = {name: _act(name) for name in NAMES}
mail = compensable(kind="irreversible", name="bank.mail")(lambda idempotency_key="": note(f"do mail {idempotency_key}"))


def run(store: Any, saga_id: str, *, fails: bool, probed: bool, **options: Any) -> None:
    """Five steps, and a mail when all has gone well."""
    asked = verify if probed else None
    with store.saga("order", id=saga_id, **options) as saga:
        for name in NAMES:
            saga.step(ACTS[name], undo=UNDOS[name], verify=asked, step_id=name)
        saga.defer(mail, verify=asked, step_id="mail")
        if fails:
            raise Refused


def judge() -> str:
    """Whether the log is that of a saga that was done once, or not at all; raises `AssertionError` otherwise."""
    counted = Counter(line.split()[0] + " " + line.split()[1] for line in lines())
    keys = Counter(line for line in lines() if line.startswith("do "))
    assert all(count == 1 for count in keys.values()), f"a step was done twice: {keys}"
    if counted["do mail"]:
        assert not any(line.startswith("undo") for line in lines()), "a mail of an undone saga"
        assert all(counted[f"do {name}"] == 1 for name in NAMES), "a mail of half a saga"
        return "done"
    for line in lines():
        verb, name, key = line.split()
        if verb == "do":
            assert f"undo {name} {key}" in lines(), f"{line} was not undone"
    return "undone"
