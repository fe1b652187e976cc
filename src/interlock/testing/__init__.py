"""For those who test agents, and for those who write backends.

For tests of agents: `open_store` gives a store of a test's own, `conflicts` makes the next commits lose a race,
`lost_replies` loses the answers to commits that landed, `commits` says what was committed, `Clock` moves time.
`interlock.testing.sync` has the same names for plain synchronous code, `interlock.testing.fixtures` fixtures for
pytest.

For the authors of backends: `interlock.testing.conformance`, the suite that a backend has to pass.
"""

from __future__ import annotations

from interlock.testing.clock import Clock
from interlock.testing.faults import Faults, conflicts, lost_replies
from interlock.testing.stores import commits, open_store

__all__ = ["Clock", "Faults", "commits", "conflicts", "lost_replies", "open_store"]
