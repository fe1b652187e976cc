"""The anomalies, as data: who does what in which order, which result would be wrong, and from which mode on it is.

These are the cases of Hermitage (https://github.com/ept/hermitage) for keys and values, with those that its SQL cannot
say (absent keys, a value that changes and changes back, deletion and re-creation, own writes, real time). Each begins
with ``a=10, b=20``. A schedule is one line for each step: who, what, on what.

    T1 r a         read            T1 w a 11     write              T1 d a       delete
    T1 scan =30    keys by value   T1 add 10     to every value     T1 drop =20  delete by value
    T1 clear       everything      T1 commit                        T1 abort

A predicate compares (``=30``), divides (``%3``) or takes all (``any``).

A case is prevented from the mode ``prevented`` on, and has to *show* in each mode of ``shows``: a level that never
shows what it is said to allow is another level under a wrong name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

NONE, SNAPSHOT, OPTIMISTIC, SERIALIZABLE = "none", "snapshot", "optimistic", "serializable"
INITIAL: Final = {"a": 10, "b": 20}


@dataclass
class Result:
    """What came of a schedule: what each saw in its order, who committed, and the state at the end."""

    seen: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in ("T1", "T2", "T3", "T4")})
    committed: set[str] = field(default_factory=set)
    end: dict[str, Any] = field(default_factory=dict)

    def all_of(self, *who: str) -> bool:
        """Whether all of them have committed."""
        return self.committed.issuperset(who)


@dataclass(frozen=True)
class Case:
    """One anomaly: ``bad(result)`` is the outcome that must not (or, in the modes of ``shows``, must) come."""

    name: str
    steps: str
    bad: Callable[[Result], bool]
    prevented: str
    shows: frozenset[str] = frozenset()

    @property
    def schedule(self) -> list[list[str]]:
        """The steps, each split into words."""
        return [line.split() for line in self.steps.strip().replace(";", "\n").splitlines()]


def _shows(*modes: str) -> frozenset[str]:
    return frozenset(modes)


CASES: Final = (
    Case(
        "G0 dirty write",
        "T1 w a 11; T2 w a 12; T1 w b 21; T1 commit; T2 w b 22; T2 commit",
        lambda r: (r.end["a"], r.end["b"]) in ((11, 22), (12, 21)),
        NONE,
    ),
    Case(
        "G1a aborted read",
        "T1 w a 101; T2 r a; T1 abort; T2 r a; T2 commit",
        lambda r: 101 in r.seen["T2"],
        NONE,
    ),
    Case(
        "G1b intermediate read",
        "T1 w a 101; T2 r a; T1 w a 11; T1 commit; T2 r a; T2 commit",
        lambda r: 101 in r.seen["T2"],
        NONE,
    ),
    Case(
        "G1c circular information flow",
        "T1 w a 11; T2 w b 22; T1 r b; T2 r a; T1 commit; T2 commit",
        lambda r: r.seen["T1"] == [22] and r.seen["T2"] == [11],
        NONE,
    ),
    Case(
        "OTV observed transaction vanishes",
        "T1 w a 11; T1 w b 19; T2 w a 12; T1 commit; T3 r a; T2 w b 18; T3 r b; T2 commit; T3 r b; T3 r a; T3 commit",
        lambda r: r.seen["T3"] != [*r.seen["T3"][:2], r.seen["T3"][1], r.seen["T3"][0]],
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "non-repeatable read",
        "T1 r a; T2 w a 11; T2 commit; T1 r a; T1 commit",
        lambda r: len(set(r.seen["T1"])) > 1,
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "PMP predicate-many-preceders, read",
        "T1 scan =30; T2 w c 30; T2 commit; T1 scan %3; T1 commit",
        lambda r: "c" in r.seen["T1"][1],
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "PMP predicate-many-preceders, write",
        "T1 add 10; T2 drop =20; T1 commit; T2 scan any; T2 commit",
        lambda r: r.all_of("T1", "T2") and r.end not in ({"b": 30}, {"a": 20}),
        SNAPSHOT,
    ),
    Case(
        "P4 lost update",
        "T1 r a; T2 r a; T1 w a 11; T2 w a 11; T1 commit; T2 commit",
        lambda r: r.all_of("T1", "T2"),
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "G-single read skew",
        "T1 r a; T2 r a; T2 r b; T2 w a 12; T2 w b 18; T2 commit; T1 r b; T1 commit",
        lambda r: r.seen["T1"] == [10, 18],
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "G-single read skew by predicate",
        "T1 scan %5; T2 w a 12; T2 commit; T1 scan %3; T1 commit",
        lambda r: "a" in r.seen["T1"][1],
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "G-single read skew, then a write",
        "T1 r a; T2 scan any; T2 w a 12; T2 w b 18; T2 commit; T1 drop =20; T1 commit",
        lambda r: r.all_of("T1", "T2") and r.seen["T1"] == [10],
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "G2-item write skew",
        "T1 r a; T1 r b; T2 r a; T2 r b; T1 w a 11; T2 w b 21; T1 commit; T2 commit",
        lambda r: r.all_of("T1", "T2"),
        OPTIMISTIC,
        _shows(NONE, SNAPSHOT),
    ),
    Case(
        "G2 phantom write skew",
        "T1 scan %3; T2 scan %3; T1 w c 30; T2 w d 42; T1 commit; T2 commit",
        lambda r: r.all_of("T1", "T2") and r.seen["T1"] == r.seen["T2"] == [[]],
        SERIALIZABLE,
        _shows(NONE, SNAPSHOT, OPTIMISTIC),
    ),
    Case(
        "G2 read-only anomaly (Fekete)",
        "T1 r a; T1 r b; T2 w b 25; T2 commit; T3 r a; T3 r b; T3 commit; T1 w a 0; T1 commit",
        lambda r: r.all_of("T1", "T2", "T3") and r.seen["T3"] == [10, 25],
        OPTIMISTIC,
        _shows(NONE, SNAPSHOT),
    ),
    Case(
        "long fork",
        "T1 w a 11; T2 w b 21; T3 r b; T4 r a; T1 commit; T2 commit; T3 r a; T4 r b; T3 commit; T4 commit",
        lambda r: r.seen["T3"] == [20, 11] and r.seen["T4"] == [10, 21],
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "absent key",
        "T1 r z; T2 r z; T1 w z 1; T2 w z 2; T1 commit; T2 commit",
        lambda r: r.all_of("T1", "T2"),
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "absent keys, write skew",
        "T1 r y; T2 r x; T1 w x 1; T2 w y 2; T1 commit; T2 commit",
        lambda r: r.all_of("T1", "T2"),
        OPTIMISTIC,
        _shows(NONE, SNAPSHOT),
    ),
    Case(
        "ABA changed and changed back, decided on",
        "T1 r a; T2 w a 99; T2 commit; T3 w a 10; T3 commit; T1 w b 11; T1 commit",
        lambda r: r.all_of("T1", "T2", "T3"),
        OPTIMISTIC,
        _shows(NONE, SNAPSHOT),
    ),
    Case(
        "ABA changed and changed back, written",
        "T1 r a; T2 w a 99; T2 commit; T3 w a 10; T3 commit; T1 w a 11; T1 commit",
        lambda r: r.all_of("T1", "T2", "T3"),
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "deleted and re-created",
        "T1 r a; T2 d a; T2 commit; T3 w a 10; T3 commit; T1 w a 11; T1 commit",
        lambda r: r.all_of("T1", "T2", "T3"),
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "own writes",
        "T1 w a 1; T1 r a; T1 d a; T1 r a; T1 scan any; T1 commit",
        lambda r: r.seen["T1"] != [1, None, ["b"]] or r.end != {"b": 20},
        NONE,
    ),
    Case(
        "real time",
        "T1 w a 1; T1 commit; T2 r a; T2 commit",
        lambda r: r.seen["T2"] != [1],
        NONE,
    ),
    Case(
        "phantom that was counted",
        "T1 scan any; T2 w c 5; T2 commit; T1 w count 2; T1 commit",
        lambda r: r.all_of("T1", "T2"),
        SERIALIZABLE,
        _shows(NONE, SNAPSHOT, OPTIMISTIC),
    ),
    Case(
        "deletion of a key that was counted",
        "T1 scan any; T2 d b; T2 commit; T1 w count 2; T1 commit",
        lambda r: r.all_of("T1", "T2"),
        OPTIMISTIC,
        _shows(NONE, SNAPSHOT),
    ),
    Case(
        "opacity: a reader that goes on after what it read has changed",
        "T1 r a; T2 w a 15; T2 w b 15; T2 commit; T1 w c 1; T1 r b; T1 commit",
        lambda r: r.seen["T1"] == [10, 15],
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "lost update by delete",
        "T1 r a; T2 w a 11; T2 commit; T1 d a; T1 commit",
        lambda r: r.all_of("T1", "T2"),
        SNAPSHOT,
        _shows(NONE),
    ),
    Case(
        "lost update by clear",
        "T1 r a; T2 w a 11; T2 commit; T1 clear; T1 commit",
        lambda r: r.all_of("T1", "T2"),
        SNAPSHOT,
        _shows(NONE),
    ),
)
