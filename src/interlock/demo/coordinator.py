"""One order: reserve, charge, confirm by mail, ship, write it down. With a saga, and as one writes it without.

`main` is a process that coordinates its part of the orders one after the other, or that recovers what dead coordinators
left. What to do comes in on stdin, what was begun and ended goes out on stdout, a
line each; a line is written in one piece, so a process that is killed leaves whole lines behind.

`place` and `place_plainly` do the same acts in the same order, and both try a charge again whose answer did not come.
What differs is what is behind the acts: keys, undos that run wherever the process dies, and a mail that is held
back until everything else stands.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import msgspec

import interlock
import interlock.sync
from interlock.demo import outside
from interlock.demo.outside import Refused

CHARGE_SECONDS = 0.25
"""How long a coordinator waits for the payment service."""

LEASE_SECONDS = 2.0
PATIENCE_SECONDS = 120.0

COMPLETED, CANCELLED, BROKEN = "completed", "cancelled", "broken"


@dataclass(frozen=True, slots=True)
class Purchase:
    """What somebody orders."""

    order: str
    article: str
    quantity: int
    cents: int


@dataclass(frozen=True, slots=True)
class Task:
    """What a process has to do: coordinate ``purchases``, or recover if there are none. ``prefix`` is in front of every
    name that it uses in the store."""

    url: str
    durable: bool
    purchases: tuple[Purchase, ...] = ()
    prefix: str = ""


class SoldOut(Exception):
    """Too little is left."""


def take(session: Any, article: str, quantity: int) -> None:
    """Reserve goods."""
    if session.read(article, 0) < quantity:
        raise SoldOut(article)
    session.add(article, -quantity)


def put_back(session: Any, article: str, quantity: int) -> None:
    """What the plain code calls; a saga derives it."""
    session.add(article, quantity)


def write_down(session: Any, purchase: dict[str, Any]) -> None:
    """The order is complete."""
    session.write(purchase["order"], purchase)


def _void(key: str) -> Any:
    found = outside.ask("void", key=key)
    return interlock.NOT_HAPPENED if found is None else interlock.Happened(found)


def _find(key: str) -> Any:
    found = outside.ask("find", key=key)
    return interlock.NOT_HAPPENED if found is None else interlock.Happened(found)


def _refund(result: str, order: str, cents: int, idempotency_key: str = "") -> None:
    outside.ask("refund", order=order, cents=cents, id=result, key=idempotency_key)


def _charge(order: str, cents: int, idempotency_key: str = "") -> str:
    request = {"order": order, "cents": cents, "key": idempotency_key}
    try:
        return str(outside.ask("charge", CHARGE_SECONDS, **request))
    except TimeoutError:  # once more, as everybody does
        return str(outside.ask("charge", CHARGE_SECONDS, **request))


def _recall(result: str, order: str, idempotency_key: str = "") -> None:
    outside.ask("recall", order=order, id=result, key=idempotency_key)


def _ship(order: str, idempotency_key: str = "") -> str:
    return str(outside.ask("ship", order=order, key=idempotency_key))


def _mail(order: str, idempotency_key: str = "") -> None:
    outside.ask("mail", order=order, key=idempotency_key)


was_it = interlock.compensable(name="demo.was_it", outside="run")(_void)
was_mailed = interlock.compensable(name="demo.was_mailed", outside="run")(_find)
refund = interlock.compensable(name="demo.refund", outside="run")(_refund)
recall = interlock.compensable(name="demo.recall", outside="run")(_recall)
charge = interlock.compensable(refund, name="demo.charge", verify=was_it)(_charge)
ship = interlock.compensable(recall, name="demo.ship", verify=was_it)(_ship)
mail = interlock.compensable(name="demo.mail", kind="irreversible", verify=was_mailed)(_mail)


def place(store: Any, purchase: Purchase, prefix: str = "") -> str:
    """One order as a durable saga; what became of it."""
    try:
        with store.saga(f"{prefix}order", id=purchase.order, lease_seconds=LEASE_SECONDS) as saga:
            saga.transact(store.resource(f"{prefix}stock"), take, purchase.article, purchase.quantity)
            charge(purchase.order, purchase.cents)
            mail(purchase.order)  # held back until all else has succeeded
            ship(purchase.order)
            saga.transact(store.resource(f"{prefix}orders"), write_down, msgspec.to_builtins(purchase))
    except (SoldOut, Refused, TimeoutError):
        return CANCELLED  # and undone, on the way here
    return COMPLETED


def place_plainly(store: Any, purchase: Purchase, prefix: str = "") -> str:
    """The same with nothing but try and except, and every failure thought of but that of this process."""
    stock, goods = store.resource(f"{prefix}stock"), (purchase.article, purchase.quantity)
    try:
        stock.run(take, *goods)
    except SoldOut:
        return CANCELLED
    try:
        charged = _charge(purchase.order, purchase.cents)
    except (Refused, TimeoutError):
        stock.run(put_back, *goods)
        return CANCELLED
    _mail(purchase.order)
    try:
        _ship(purchase.order)
    except Refused:
        _refund(charged, purchase.order, purchase.cents)
        stock.run(put_back, *goods)
        return CANCELLED
    store.resource(f"{prefix}orders").run(write_down, msgspec.to_builtins(purchase))
    return COMPLETED


def recover(store: Any, prefix: str = "") -> None:
    """End what dead coordinators left, each as soon as its lease has run out."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        report = store.recover(
            name=f"{prefix}order", older_than_seconds=0, lease_seconds=LEASE_SECONDS, modules=[__name__]
        )
        for verb, titles in (("undone", report.undone), ("finished", report.finished), ("left", report.dead_letters)):
            for title in titles:
                tell(verb, title)
        if not report.live:
            return
        if time.monotonic() > until:
            raise TimeoutError(f"still live: {report.live}")
        time.sleep(LEASE_SECONDS / 10)


def tell(*words: str) -> None:
    """Say it now, in one piece."""
    sys.stdout.buffer.write(" ".join(words).encode() + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Read the task and do it."""
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    act = place if task.durable else place_plainly
    with interlock.sync.open(task.url, agent="coordinator") as store:
        for purchase in task.purchases:
            tell("began", purchase.order)
            try:
                tell(act(store, purchase, task.prefix), purchase.order)
            except interlock.InterlockError:  # such as a lease that ran out: left to the recovery
                tell(BROKEN, purchase.order)
        if not task.purchases:
            recover(store, task.prefix)
