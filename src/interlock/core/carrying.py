"""What a layer adds to the commit of somebody else's session: guards, and writes of its own records.

A lease's fence, an effect that is staged: the layer hands it over with `carry`, and it becomes part of the session's
one request, so it holds or fails with everything else at one point. Both are rolled back with savepoints
(`interlock.core.writing.Mark`), as all that is not a read is.

A session that carries guards is not read-only, even if it writes nothing: its commit is sent as a pure validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from interlock.core import refusals
from interlock.core.calls import ACTIVE, READY
from interlock.errors import UsageError
from interlock.model import Clash, Expectation, Key, Write

if TYPE_CHECKING:
    from interlock.core.transaction import Transaction


@dataclass(slots=True)
class Guard:
    """Something that must hold at the commit, and what to do if it does not.

    ``expected``: the version, ABSENT or UNCHANGED. ``alive``: the record must not have expired either.
    ``refused``: called with the guard and the clash; the error that it returns is raised instead of a
    `ConflictError`. If it returns None it has put what it learnt into ``expected``, and the same commit is sent again,
    without running the agent once more. It must not wait for anything. ``incarnation``: a commit under another one of
    the engine's is refused before it is sent."""

    expected: Expectation
    alive: bool = False
    refused: Callable[[Guard, Clash], BaseException | None] | None = None
    incarnation: int | None = None


class Fence(Protocol):
    """Something that is held: a lease or a lock. What a session carries is refused once it is not held any more."""

    def guards(self) -> dict[Key, Guard]:
        """The guards of a commit under it. Raises `LeaseLostError` if it is known not to be held."""


def fence(txn: Transaction, held: Fence) -> None:
    """Bind a session's commit to something that is held. Raises `UsageError` for anything else, `LeaseLostError`."""
    if txn.state not in (ACTIVE, READY):
        txn.refuse("fence")
    try:
        if not hasattr(held, "guards"):
            raise UsageError(f"a session is fenced with a lease or a lock, not with {type(held).__name__}")
        txn.plain = False
        txn.guards = {**(txn.guards or {}), **held.guards()}
    except BaseException as error:
        txn.doom(error)
        raise


def carry(
    txn: Transaction, *, guards: Mapping[Key, Guard] | None = None, writes: Mapping[Key, Write] | None = None
) -> None:
    """Add a layer's guards and writes to a session's commit. Raises `UsageError` once the session has ended, and dooms
    nothing; a key that is written or guarded already is replaced."""
    if txn.state:
        txn.refuse("carry")
    if guards:
        txn.plain = False
        txn.guards = {**(txn.guards or {}), **guards}
    if writes:
        txn.before_write()
        txn.plain = False
        txn.writes.update(writes)


def add_guards(txn: Transaction, expected: dict[Key, Expectation]) -> frozenset[Key]:
    """Put the carried guards into a request's; returns the keys that must be alive."""
    guards = _all_guards(txn)
    for key, guard in guards.items():
        if guard.incarnation is not None and txn.token is not None and guard.incarnation != txn.token.incarnation:
            clash = Clash(key, "read", None)
            raise (guard.refused(guard, clash) if guard.refused else None) or refusals.conflict_error(
                (clash,), txn.reads, txn.id
            )
    expected.update((key, guard.expected) for key, guard in guards.items())
    return frozenset([key for key, guard in guards.items() if guard.alive])


def _all_guards(txn: Transaction) -> dict[Key, Guard]:
    """Those of fences and layers, and that of the transaction's own locks, which no savepoint takes back."""
    guards = txn.guards or {}
    return guards if txn.held is None else {**guards, **txn.held.guards()}


def learn_guards(txn: Transaction, clashes: Iterable[Clash]) -> set[Key]:
    """After a refusal: the keys whose guards have learnt what is there now. Raises the error of one that has failed."""
    learnt = set()
    guards = _all_guards(txn)
    for clash in clashes:
        guard = guards.get(clash.key)
        if guard is not None and clash.kind != "range" and guard.refused is not None:
            error = guard.refused(guard, clash)
            if error is not None:
                raise error
            learnt.add(clash.key)
    return learnt
