"""The published table of anomalies: every case in every mode on every backend, as it was played.

A cell says what *happened*: the bad outcome came ("shown") or did not. Where it may not, it says "prevented"; where
it may and did not in this schedule, "possible". A backend that does anything else than its mode promises fails here as
it does in `sessions.anomalies`; the page is what people read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import interlock
from interlock.testing.conformance.sessions.anomalies import Play
from interlock.testing.conformance.sessions.desk import EVERY_MODE, fill
from interlock.testing.conformance.sessions.schedules import CASES, INITIAL, Case

Outcomes = dict[tuple[str, str], str]
"""(case, mode) -> what its cell says."""


def _cell(case: Case, mode: str, came: bool) -> str:
    if EVERY_MODE.index(mode) >= EVERY_MODE.index(case.prevented):
        return "**BROKEN**" if came else "prevented"
    if came:
        return "shown"
    return "**NOT SHOWN**" if mode in case.shows else "possible"


async def outcomes(store: interlock.Store) -> Outcomes:
    """Play everything over one store; each case has a resource of its own in each mode."""
    found: Outcomes = {}
    for case in CASES:
        for mode in EVERY_MODE:
            resource: interlock.SharedResource[int] = store.resource(f"{case.name} under {mode}")
            await fill(resource, INITIAL)
            result = await Play(resource, mode).play(case)
            found[case.name, mode] = _cell(case, mode, case.bad(result))
    return found


def page(backends: Mapping[str, Outcomes]) -> str:
    """The page in Markdown."""
    names = list(backends)
    lines = [
        "# Anomalies: what each mode prevents, and what it shows",
        "",
        "This page is written by a test that plays every case in every mode on every backend, and fails when the page",
        "says anything else. *Prevented*: the mode promises that it does not happen, and it did not. *Shown*: the mode",
        "allows it, and it did happen: a level that never shows what it allows would be another one under a wrong",
        "name. *Possible*: allowed, and not seen in this schedule.",
        "",
        f"Played on {', '.join(names[:-1])} and {names[-1]}; where they differ, the cell says so.",
        "",
        f"| case | {' | '.join(f'`{mode}`' for mode in EVERY_MODE)} |",
        f"|---|{'---|' * len(EVERY_MODE)}",
    ]
    for case in CASES:
        cells = [_shared([(name, backends[name][case.name, mode]) for name in names]) for mode in EVERY_MODE]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    lines += ["", "## The schedules", "", "Every case begins with `a = 10` and `b = 20`.", ""]
    lines += ["| case | steps |", "|---|---|"]
    lines += [f"| {case.name} | {'; '.join(' '.join(step) for step in case.schedule)} |" for case in CASES]
    return "\n".join(lines) + "\n"


def _shared(cells: Sequence[tuple[str, str]]) -> str:
    said = {text for _name, text in cells}
    return said.pop() if len(said) == 1 else ", ".join(f"{name}: {text}" for name, text in cells)
