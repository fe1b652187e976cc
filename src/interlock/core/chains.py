"""Chains: merges of one key among which is a registered function, so that the client has to compute them.

A chain is applied to the newest value at the commit, which then expects that value to stay the newest; if it does
not, the chain is applied again and the commit repeated, without running the agent again."""

from __future__ import annotations

from typing import Any

from interlock import codec
from interlock.core.space import MergeFunction, Resource
from interlock.model import Operation


class Custom:
    """One use of a registered merge function. The operand is kept in its stored form: the function gets a new one each
    time, and what the caller does to the one that he gave changes nothing.

    Raises: `ValueRefusedError` for an operand that has no stored form."""

    __slots__ = ("function", "operand", "resource")

    def __init__(self, function: MergeFunction, operand: Any, resource: Resource) -> None:
        self.function = function
        self.operand = codec.freeze(operand)
        self.resource = resource

    def apply(self, before: bytes | None) -> bytes:
        """The stored form after the function has seen the value before (None: absent) and the operand."""
        value = None if before is None else self.resource.thaw(before)
        return self.resource.freeze(self.function(value, codec.thaw(self.operand)))


Step = Operation | Custom
