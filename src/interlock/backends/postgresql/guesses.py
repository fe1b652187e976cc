"""What merges that are computed here are computed from at first: the version that this process saw last.

The commit function takes a computed merge only if the version that it was computed from is still the newest, which it
judges under the key's exclusive lock; a version is a position and a random nonce, so no other value ever has it. So a
guess that is wrong costs a round trip and nothing else. A refusal by a guess (a bound that would be broken) says
nothing about the newest value: then there is no guess, and the server says what the newest value is.

For a key that was never merged here the guess is that it is absent.
"""

from __future__ import annotations

import threading
from typing import Final

from interlock.backends.postgresql import requests
from interlock.backends.postgresql.record import signed
from interlock.backends.postgresql.requests import Answer, Computed
from interlock.errors import BackendCorruptError
from interlock.model import NONCE_MASK, BoundBroken, CommitRequest, Key, MergeRefused

KEYS: Final = 256
"""The most keys whose values are remembered."""
BYTES: Final = 16_384
"""The longest value that is."""
_ABSENT: Final = Computed(0, 0, None)


class Guesses:
    """The newest values of merged keys as far as this process knows; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Key, Computed] = {}

    def compute(self, request: CommitRequest) -> dict[Key, Computed]:
        """The merges of a request that the commit function cannot apply, as far as they can be computed."""
        found: dict[Key, Computed] = {}
        for key, write in requests.merged_keys(request):
            if all(map(requests.is_native, write.operations)):
                continue
            base = self._known.get(key, _ABSENT)
            try:
                found[key] = base._replace(value=requests.applied(key, write, base.value))
            except (BoundBroken, MergeRefused, BackendCorruptError):
                continue
        return found

    def learn(self, request: CommitRequest, answer: Answer, computed: dict[Key, Computed]) -> None:
        """Remember what a commit that was done has made of the keys that were computed."""
        merging = requests.merged_keys(request)
        if not computed or answer.own is None:
            return
        columns = zip(
            merging, answer.b_changed or (), answer.b_position or (), answer.b_nonce or (), answer.b_value or (),
            strict=True,
        )  # fmt: skip
        for (key, _), changed, position, nonce, before in columns:
            if key not in computed:
                continue
            newest = Computed(position, nonce, before)
            if changed:
                newest = Computed(answer.own, signed(request.transaction & NONCE_MASK), computed[key].value)
            self._keep(key, newest)

    def _keep(self, key: Key, newest: Computed) -> None:
        with self._lock:
            self._known.pop(key, None)
            if len(newest.value or b"") <= BYTES:
                self._known[key] = newest
            if len(self._known) > KEYS:
                del self._known[next(iter(self._known))]
