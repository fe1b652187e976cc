"""Layers: leases, locks and whatever else keeps records of its own, as ordinary keys on any backend.

A layer sees the core and the foundation, never a backend. All of them read and write through `interlock.layers.ledger`,
or let a session carry their writes and guards in its own commit (`interlock.core.carrying`)."""
