"""The workloads: what the agents of a run do, from a seed, in transactions that conflict.

A workload plans one transaction at a time for one agent. The plan is announced in the history before the first call
and carried out in a session; what it has really done is noted at the end. Values are unique: the agent's number, then a
running number. Nothing here knows whether anything went wrong; that is for the judges.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from interlock.sync import AgentSession, SharedResource
from interlock.testing.histories import appends, registers, states
from interlock.testing.histories.findings import Judge
from interlock.testing.histories.records import Step

Session = AgentSession[Any]
Carry = Callable[[Session, list[Step]], None]
"""Carries a plan out, and fills the steps in as it goes."""


@dataclass
class Agent:
    """One thread of a run. ``number`` changes after an operation whose end is unknown; ``place`` does not.

    ``blind``: whether appends may be merges of lists that were not read. In ``snapshot`` mode these are applied to the
    newest list and not to the snapshot's, by design, so they are no part of what a snapshot promises."""

    number: int
    place: int
    agents: int
    random: random.Random
    blind: bool = True
    now: Callable[[], float] = time.monotonic
    made: int = 0
    memory: dict[str, Any] = field(default_factory=dict)

    def unique(self) -> int:
        """A number that nobody else makes."""
        self.made += 1
        return self.number * 1_000_000 + self.made


@dataclass(frozen=True)
class Plan:
    """A transaction: the steps as announced, and how they are carried out."""

    steps: list[Step]
    carry: Carry


@dataclass(frozen=True)
class Workload:
    """A workload and its judge. ``setup`` is the first transaction.

    ``control``: the mode under which it must show a violation, so that a clean result means something; ``weakest``: the
    weakest mode that promises what the judge asks for."""

    name: str
    what: str
    plan: Callable[[Agent], Plan]
    judge: Judge
    setup: Carry | None = None
    control: str | None = "none"
    weakest: str = "none"


def follow(session: Session, steps: list[Step]) -> None:
    """Carry out plain steps in their order."""
    for step in steps:
        what, key, value = step
        if what == "append":
            session.write(key, [*session.read(key, []), value])
        elif what == "push":
            step[0] = "append"
            session.append(key, value)
        elif what == "r":
            step[2] = session.read(key)
        elif what == "w":
            session.write(key, value)
        elif what == "rp":
            step[2] = dict(session.scan(f"{key}/"))


# -- lists, registers, predicates ------------------------------------------------------------------------------
_SLOTS: Final = 8
_LIST_LENGTH: Final = 24


def _plan_appends(agent: Agent) -> Plan:
    """One to four reads and appends of keys whose popularity falls exponentially, with fresh keys for full ones."""
    generations: dict[int, int] = agent.memory.setdefault("generations", defaultdict(int))
    steps: list[Step] = []
    for _ in range(agent.random.randint(1, 4)):
        slot = min(int(agent.random.expovariate(0.5)), _SLOTS - 1)
        key = f"{slot}-{generations[slot]}"
        if agent.random.random() < 0.5:
            steps.append(["r", key, None])
        else:
            # Half of the appends are merges that the engine applies, half read the list and write it back.
            steps.append(["push" if agent.random.random() < 0.5 and agent.blind else "append", key, agent.unique()])

    def carry(session: Session, done: list[Step]) -> None:
        follow(session, done)
        for what, key, value in done:
            if what == "r" and value is None:
                value = []
            if what == "r" and len(value) >= _LIST_LENGTH:
                slot, generation = map(int, key.split("-"))
                generations[slot] = max(generations[slot], generation + 1)
        for step in done:
            if step[0] == "r" and step[2] is None:
                step[2] = []

    return Plan(steps, carry)


class _TakenBack(Exception):
    """Ends the part of a transaction that is rolled back."""


def _plan_savepoints(agent: Agent) -> Plan:
    """The same, after an append inside a savepoint that is rolled back: nobody appended that value, then."""
    plain, value = _plan_appends(agent), agent.unique()
    key = plain.steps[-1][1]

    def carry(session: Session, done: list[Step]) -> None:
        with contextlib.suppress(_TakenBack), session.savepoint():
            session.write(key, [*session.read(key, []), value])
            raise _TakenBack
        plain.carry(session, done)

    return Plan(plain.steps, carry)


def _plan_registers(agent: Agent) -> Plan:
    """One to four reads and writes; half of the writes come after a read of their key, which dates the version."""
    steps: list[Step] = []
    for _ in range(agent.random.randint(1, 4)):
        key = f"r{min(int(agent.random.expovariate(0.5)), _SLOTS - 1)}"
        if any(step[0] == "w" and step[1] == key for step in steps):
            continue
        if agent.random.random() < 0.5:
            steps.append(["r", key, None])
        else:
            steps += [["r", key, None], ["w", key, agent.unique()]]
    return Plan(steps or [["r", "r0", None]], follow)


def _plan_long_fork(agent: Agent) -> Plan:
    """Writers of one key each, and readers of two, in both orders."""
    if agent.place % 2:
        return Plan([["w", f"f{agent.place}", agent.unique()]], follow)
    keys = [f"f{place}" for place in range(1, max(agent.agents, 4), 2)][:4]
    if agent.random.random() < 0.5:
        keys.reverse()
    return Plan([["r", key, None] for key in keys], follow)


def _plan_predicates(agent: Agent) -> Plan:
    """Scan one of two groups, then insert a key of one's own into the other, or write one there, each once.

    The groups are new ones every tenth of a second, so that scans stay short."""
    epoch = int(agent.now() * 10)
    if agent.memory.get("epoch") != epoch:
        agent.memory["epoch"], agent.memory["owned"] = epoch, []
    owned: list[str] = agent.memory["owned"]
    scanned = agent.random.randrange(2)
    steps: list[Step] = [["rp", f"p{epoch}{'ab'[scanned]}", None]]
    other = f"p{epoch}{'ba'[scanned]}"
    mine = [key for key in owned if key.startswith(other)]
    if agent.random.random() < 0.2:
        return Plan(steps, follow)
    if mine and agent.random.random() < 0.5:
        owned.remove(mine[0])
        return Plan([*steps, ["w", mine[0], agent.unique()]], follow)
    fresh = f"{other}/{agent.unique()}"

    def carry(session: Session, done: list[Step]) -> None:
        follow(session, done)
        agent.memory["inserted"] = fresh

    return Plan([*steps, ["w", fresh, agent.unique()]], carry)


# -- what must stay true ---------------------------------------------------------------------------------------
def _open_accounts(session: Session, steps: list[Step]) -> None:
    for account in states.ACCOUNTS:
        session.write(account, states.TOTAL // len(states.ACCOUNTS))


def _plan_bank(agent: Agent, *, deletes: bool = False) -> Plan:
    """Read all accounts, or transfer from the fuller one of two; with ``deletes`` an account at zero is removed."""
    if agent.random.random() < 0.4:
        return Plan([["r", account, None] for account in states.ACCOUNTS], follow)
    pair = agent.random.sample(states.ACCOUNTS, 2)
    most = agent.random.randint(1, 5)
    empties = deletes and agent.random.random() < 0.3

    def carry(session: Session, done: list[Step]) -> None:
        held = {account: session.read(account, 0) for account in pair}
        done[:] = [["r", account, value] for account, value in held.items()]
        source, target = pair if held[pair[0]] >= held[pair[1]] else pair[::-1]
        amount = held[source] if empties else most
        if not 0 < amount <= held[source]:
            return
        if deletes and held[source] == amount:
            session.delete(source)
        else:
            session.write(source, held[source] - amount)
        session.write(target, held[target] + amount)
        done += [["w", source, held[source] - amount], ["w", target, held[target] + amount]]

    return Plan([["r", account, None] for account in pair], carry)


def _plan_bank_deletes(agent: Agent) -> Plan:
    return _plan_bank(agent, deletes=True)


def _all_on_call(session: Session, steps: list[Step]) -> None:
    for shift in range(4):
        for doctor in range(states.DOCTORS):
            session.write(f"shift{shift}/{doctor}", True)


def _plan_doctors(agent: Agent) -> Plan:
    """Leave a shift if another one is on call; come back otherwise."""
    shift = agent.random.randrange(4)
    keys = [f"shift{shift}/{doctor}" for doctor in range(states.DOCTORS)]
    mine = agent.random.choice(keys)

    def carry(session: Session, done: list[Step]) -> None:
        for step in done:
            step[2] = session.read(step[1], False)
        on_call = {step[1]: step[2] for step in done}
        if not on_call[mine]:
            session.write(mine, True)
            done.append(["w", mine, True])
        elif sum(on_call.values()) >= 2:
            session.write(mine, False)
            done.append(["w", mine, False])

    return Plan([["r", key, None] for key in keys], carry)


def _plan_slots(agent: Agent) -> Plan:
    """Book part of a day if nothing there overlaps it; there are new days ten times a second."""
    day = f"day{int(agent.now() * 10)}"
    start = agent.random.randrange(0, 1000)
    stop = start + agent.random.randint(5, 15)

    def carry(session: Session, done: list[Step]) -> None:
        booked = dict(session.scan(f"{day}/"))
        done[:] = [["rp", day, booked]]
        if all(stop <= first or last <= start for first, last in booked.values()):
            name = f"{day}/{agent.unique()}"
            session.write(name, [start, stop])
            done.append(["w", name, [start, stop]])

    return Plan([["rp", day, None]], carry)


def _plan_counter(agent: Agent) -> Plan:
    """Count by reading and writing."""
    key = f"c{agent.random.randrange(4)}"

    def carry(session: Session, done: list[Step]) -> None:
        session.write(key, session.read(key, 0) + 1)

    return Plan([["add", key, 1]], carry)


def _plan_escrow(agent: Agent) -> Plan:
    """Count by merges, which never conflict."""
    key = f"c{agent.random.randrange(4)}"
    return Plan([["add", key, 1]], lambda session, done: session.add(key, 1))


def _plan_monotonic(agent: Agent) -> Plan:
    if agent.place != 0:
        return Plan([["r", "grows", None]], follow)
    agent.memory["value"] = value = agent.memory.get("value", 0) + 1

    def carry(session: Session, done: list[Step]) -> None:
        held = session.read("grows", 0)
        done[:] = [["r", "grows", held], ["w", "grows", max(held + 1, value)]]
        session.write("grows", max(held + 1, value))

    return Plan([["r", "grows", None]], carry)


def _share(session: Session, steps: list[Step]) -> None:
    session.write("x", states.TOTAL)
    session.write("y", 0)


def _plan_opacity(agent: Agent) -> Plan:
    """Move something between two numbers, or read both and then write elsewhere, which may be refused."""
    moves = agent.random.random() < 0.5
    amount = agent.random.randint(1, 5)

    def carry(session: Session, done: list[Step]) -> None:
        done[0][2] = x = session.read("x", 0)
        done[1][2] = y = session.read("y", 0)
        if moves:
            session.write("x", x - amount)
            session.write("y", y + amount)
        else:
            session.write(f"seen-{agent.place}", x)

    return Plan([["r", "x", None], ["r", "y", None]], carry)


def _plan_claims(agent: Agent) -> Plan:
    """Take the first free task of a few; there are new ones a hundred times a second."""
    tasks = [f"task{int(agent.now() * 100)}-{number}" for number in range(4)]
    name = f"agent-{agent.number}"

    def carry(session: Session, done: list[Step]) -> None:
        for task in tasks:
            if session.read(task) is None:
                session.write(task, name)
                done[:] = [["claim", task, name]]
                return
        done[:] = []

    return Plan([["claim", "", name]], carry)


def _plan_ids(agent: Agent) -> Plan:
    """Take the next number of a sequence."""

    def carry(session: Session, done: list[Step]) -> None:
        done[0][2] = number = session.read("next", 0)
        session.write("next", number + 1)

    return Plan([["take", "next", None]], carry)


WORKLOADS: Final[dict[str, Workload]] = {
    each.name: each
    for each in (
        Workload("list-append", "appends to lists, by merges and by rewriting", _plan_appends, appends.judge),
        Workload("rw-register", "reads and unique writes of registers", _plan_registers, registers.judge),
        Workload(
            "predicate", "scans, and inserts and writes into what others scan", _plan_predicates,
            registers.judge_predicates, control="optimistic", weakest="serializable",
        ),
        Workload("long-fork", "writers of one key, readers of several", _plan_long_fork, registers.judge),
        Workload(
            "bank", "transfers and whole reads of eight accounts", _plan_bank, states.judge_bank, _open_accounts,
            weakest="snapshot",
        ),
        Workload(
            "bank-deletes", "the same, and an account at zero is deleted", _plan_bank_deletes, states.judge_bank,
            _open_accounts, weakest="snapshot",
        ),
        Workload(
            "doctors", "leave a shift while another is on call", _plan_doctors, states.judge_doctors, _all_on_call,
            control="snapshot", weakest="optimistic",
        ),
        Workload(
            "slots", "book what overlaps nothing in a scan", _plan_slots, states.judge_slots, control="optimistic",
            weakest="serializable",
        ),
        Workload(
            "counter", "count by reading and writing", _plan_counter, states.judge_counter, weakest="snapshot",
        ),
        Workload("escrow", "count by merges", _plan_escrow, states.judge_counter, control=None),
        Workload("monotonic", "a number grows, others watch", _plan_monotonic, states.judge_monotonic, control=None),
        Workload(
            "opacity", "x + y is constant in every read", _plan_opacity, states.judge_opacity, _share,
            weakest="snapshot",
        ),
        Workload("ids", "take the next number", _plan_ids, states.judge_ids, weakest="snapshot"),
        Workload("savepoints", "appends, and others that are rolled back", _plan_savepoints, appends.judge),
        Workload("claims", "take a task that is free", _plan_claims, states.judge_claims, weakest="snapshot"),
    )
}  # fmt: skip
"""Name -> workload."""
LISTS: Final = frozenset({"list-append", "savepoints"})
"""Workloads whose absent keys are empty lists."""


def final_read(resource: SharedResource[Any], keys: Iterable[str]) -> list[Step]:
    """Every key once more, in one snapshot."""
    with resource.session(isolation="snapshot") as session:
        return [["r", key, session.read(key)] for key in keys]
