"""What the tests of effects share: acts that count, probes with an answer, claims whose worker has died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlock.layers.effects.calls import payload_fingerprint
from interlock.layers.effects.journal import Claim
from interlock.layers.effects.records import PENDING, Stored, effect_key

DEFAULT = object()


class Acts:
    """Acts that note their calls, may wait at a gate, raise, or return something else."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.raises: list[BaseException] = []
        self.returns: Any = DEFAULT
        self.gate: Any = None

    async def charge(self, amount: int, idempotency_key: str) -> Any:
        """Returns what was charged under which key."""
        self.calls.append(amount)
        if self.gate is not None:
            await self.gate.wait()
        if self.raises:
            raise self.raises.pop(0)
        return {"charged": amount, "key": idempotency_key} if self.returns is DEFAULT else self.returns

    async def refund(self, amount: int) -> None:
        """Another act with the same arguments."""
        self.calls.append(-amount)


def say(answer: Any) -> Callable[[str], Any]:
    """A probe with an answer."""

    async def verify(key: str) -> Any:
        return answer

    return verify


async def abandon(store: Any, key: str, act: Any, *, claim_seconds: float) -> Claim:
    """Claim an effect (with the payload 0), and say no more, as if the process had died."""
    journal = getattr(store, "inner", store)._journal
    raw, since = effect_key(key), journal.moment()
    found = await journal.read(raw)
    stored = Stored(PENDING, payload_fingerprint("", 0), act.__name__, found.at, found.at)
    claim: Claim | None = await journal.claim(found.records[0], stored, found, claim_seconds, since)
    assert claim is not None
    return claim
