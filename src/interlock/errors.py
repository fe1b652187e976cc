"""The error tree: what went wrong, with the facts as attributes.

Two booleans decide what a program may do next, and they are the only thing the retry loop looks at:

- ``retryable``: nothing was written and the library (or you) may run the whole function again;
- ``maybe_committed``: nobody can tell whether the work was done; look it up before doing anything else.

``str(error)`` is the short form for a log line; ``error.explain()`` is a few sentences for a person or a model, ending
with what to do. Facts are keyword arguments with defaults, so that every error pickles and copies with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class InterlockError(Exception):
    """The root of everything that Interlock raises.

    Attributes: ``code`` is a stable name for programs, ``retryable`` and ``maybe_committed`` are described above.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    maybe_committed: ClassVar[bool] = False
    advice: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def explain(self) -> str:
        """What happened and what to do, in sentences that can be shown to a person or a model."""
        text = str(self).rstrip(".")
        return f"{text}. {self.advice}" if self.advice else f"{text}."

    def __reduce__(self) -> tuple[Callable[..., InterlockError], tuple[Any, ...]]:
        cause = self.__cause__ if isinstance(self.__cause__, InterlockError) else None
        return _rebuild, (type(self), self.args, dict(self.__dict__), cause)


def _rebuild(
    kind: type[InterlockError], arguments: tuple[Any, ...], facts: dict[str, Any], cause: InterlockError | None
) -> InterlockError:
    error = kind(*arguments)
    error.__dict__.update(facts)
    if cause is not None:
        error.__cause__ = cause
    return error


class UsageError(InterlockError):
    """The call is wrong whatever the store holds: a missing agent, an ended session, an unknown option."""

    code = "usage"


class UnsupportedError(InterlockError):
    """This backend does not have the capability that the call needs."""

    code = "unsupported"

    def __init__(self, message: str = "", *, capability: str = "") -> None:
        super().__init__(message)
        self.capability = capability


class IsolationError(InterlockError):
    """The session's isolation is weaker than the floor that a resource requires, or than its parent's."""

    code = "isolation"
    advice = "Open the session with the isolation that the resource requires."


class ValueRefusedError(InterlockError):
    """The value cannot be stored exactly; nothing was written. ``path`` says where, as in ``$.orders[3].price``."""

    code = "value_refused"

    def __init__(self, message: str = "", *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.args[0]}"


class LimitExceededError(InterlockError):
    """Something is larger than a documented limit; nothing was written."""

    code = "limit_exceeded"

    def __init__(self, message: str = "", *, limit: str = "", allowed: int = 0, found: int = 0) -> None:
        super().__init__(message)
        self.limit = limit
        self.allowed = allowed
        self.found = found


class NotFoundError(InterlockError):
    """`expect` (or `update` without a default) met a key that has no value."""

    code = "not_found"

    def __init__(self, message: str = "", *, resource: str = "", key: Any = None) -> None:
        super().__init__(message)
        self.resource = resource
        self.key = key


class CommitUnknownError(InterlockError):
    """The reply to a commit was lost and could not be settled: it may or may not have happened."""

    code = "commit_unknown"
    maybe_committed = True
    advice = "Ask store.outcome(transaction_id) before doing the work again."

    def __init__(self, message: str = "", *, transaction_id: str = "") -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class TransactionError(InterlockError):
    """A transaction did not commit; nothing of it was written."""

    code = "transaction"

    def __init__(self, message: str = "", *, transaction_id: str = "") -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


@dataclass(frozen=True, slots=True)
class Conflict:
    """One key (or range) that changed between a session's read and its commit.

    ``kind`` is ``"read"``, ``"write"`` or ``"range"``. Versions are the opaque strings that `Entry.version` shows, None
    for an absent key. Values are None where the key is absent, larger than about a kilobyte, or was never read.
    ``committed_by`` and ``transaction_id`` name who put the current version there ("" where the engine no longer
    knows).
    """

    resource: str
    key: Any
    kind: str
    read_version: str | None
    current_version: str | None
    read_value: Any = None
    current_value: Any = None
    committed_by: str = ""
    transaction_id: str = ""

    def sentence(self) -> str:
        """The conflict in one sentence."""
        where = f"{self.key!r} in resource {self.resource!r}"
        who = f" by agent {self.committed_by!r} (transaction {self.transaction_id})" if self.committed_by else ""
        if self.kind == "range":
            return f"the range that was scanned has changed at {where}{who}"
        if self.current_version is None:
            return f"{where} was {_shown(self.read_value, self.read_version)} when read and has been deleted{who}"
        now = _shown(self.current_value, self.current_version)
        if self.kind == "write":
            return f"{where} was written to by others meanwhile: it is now {now}, put there{who or ' by another agent'}"
        was = _shown(self.read_value, self.read_version)
        return f"{where} was {was} when read and is now {now}, put there{who or ' by another agent'}"


def _shown(value: Any, version: str | None) -> str:
    if version is None:
        return "absent"
    text = repr(value)
    if value is None:
        return f"at version {version}"
    return text if len(text) <= 80 else text[:77] + "..."


class ConflictError(TransactionError):
    """Validation failed: something that the session relied on has changed. Nothing was written; run it again.

    ``conflicts`` names every conflicting key with what was read, what is there now, and who put it there.
    """

    code = "conflict"
    retryable = True
    advice = "Nothing was written. Read again and decide anew on what you then see."

    def __init__(self, message: str = "", *, transaction_id: str = "", conflicts: Sequence[Conflict] = ()) -> None:
        super().__init__(message, transaction_id=transaction_id)
        self.conflicts = tuple(conflicts)

    def explain(self) -> str:
        """One sentence for each conflicting key, then what to do."""
        if not self.conflicts:
            return super().explain()
        said = "; ".join(conflict.sentence() for conflict in self.conflicts[:5])
        more = len(self.conflicts) - 5
        tail = f"; and {more} more" if more > 0 else ""
        return f"The transaction was not committed: {said}{tail}. {self.advice}"


class ReadConflict(ConflictError):
    """A key that was read has changed."""

    code = "read_conflict"


class WriteConflict(ConflictError):
    """A key that was written without being validated as a read has changed since the snapshot."""

    code = "write_conflict"


class RangeConflict(ConflictError):
    """A range that was scanned has gained, lost or changed a key."""

    code = "range_conflict"


class InvariantError(TransactionError):
    """A declared rule would be broken: a named invariant, or the floor or ceiling of a merge. Not retryable.

    ``invariant`` names the rule; for a merge bound ``key``, ``current`` and ``bound`` hold the facts. In a saga
    ``step`` is the step after which it was found, and ``difference`` what had changed by then.
    """

    code = "invariant"
    advice = "Nothing was written. Running the same thing again will be refused again unless the state changes."

    def __init__(
        self,
        message: str = "",
        *,
        transaction_id: str = "",
        invariant: str = "",
        resource: str = "",
        key: Any = None,
        current: Any = None,
        bound: Any = None,
        step: str = "",
        difference: Sequence[str] = (),
    ) -> None:
        super().__init__(message, transaction_id=transaction_id)
        self.invariant = invariant
        self.step = step
        self.difference = tuple(difference)
        self.resource = resource
        self.key = key
        self.current = current
        self.bound = bound


class SnapshotTooOldError(TransactionError):
    """The snapshot (or cursor) lies before what the store still keeps."""

    code = "snapshot_too_old"
    retryable = True
    advice = "Begin again from the present state."


class DeadlineExceededError(TransactionError):
    """``timeout_seconds`` ran out before the transaction could commit; nothing was written."""

    code = "deadline_exceeded"


class RetriesExhaustedError(TransactionError):
    """The retry policy's limit was reached. ``attempts`` were made; ``last`` is the error of the last one."""

    code = "retries_exhausted"

    def __init__(
        self,
        message: str = "",
        *,
        transaction_id: str = "",
        attempts: int = 0,
        last: InterlockError | None = None,
    ) -> None:
        super().__init__(message, transaction_id=transaction_id)
        self.attempts = attempts
        self.last = last

    def explain(self) -> str:
        """How often it was tried, and the explanation of the last failure."""
        return f"Gave up after {self.attempts} attempts. {self.last.explain() if self.last is not None else ''}".strip()


class IdempotencyMismatchError(TransactionError):
    """The idempotency key was used before for something else (other arguments, agent or fingerprint)."""

    code = "idempotency_mismatch"
    advice = "Use a new key for a new intention; use the same arguments for a retry."

    def __init__(self, message: str = "", *, transaction_id: str = "", idempotency_key: str = "") -> None:
        super().__init__(message, transaction_id=transaction_id)
        self.idempotency_key = idempotency_key


class IdempotencyInProgressError(TransactionError):
    """The idempotency key is being used at this moment and the result is not known yet.

    Nothing raises it: of two commits with one key the second replays the first, and an effect that is under way is an
    `EffectInProgressError`. It is here because programs already name it in ``except``."""

    code = "idempotency_in_progress"
    advice = "Wait for the running call, or try again later with the same key."

    def __init__(self, message: str = "", *, transaction_id: str = "", idempotency_key: str = "") -> None:
        super().__init__(message, transaction_id=transaction_id)
        self.idempotency_key = idempotency_key


class EffectError(InterlockError):
    """An effect, an act on the outside world, did not end well. ``key`` is the effect's own."""

    code = "effect"

    def __init__(self, message: str = "", *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class EffectInProgressError(EffectError):
    """The effect is being executed by somebody else, whose claim lasts ``seconds_left`` unless it is renewed."""

    code = "effect_in_progress"
    advice = "Call again later with the same key: it waits for the result, and never executes the act twice."

    def __init__(self, message: str = "", *, key: str = "", seconds_left: float = 0.0) -> None:
        super().__init__(message, key=key)
        self.seconds_left = seconds_left


class EffectFailedError(EffectError):
    """The act was executed by the call that this one waited for, and raised. ``cause`` says what, in words."""

    code = "effect_failed"
    advice = "Calling again with the same key executes the act again."

    def __init__(self, message: str = "", *, key: str = "", cause: str = "") -> None:
        super().__init__(message, key=key)
        self.cause = cause


class EffectUnknownError(EffectError):
    """The act may or may not have been done: it was interrupted, or its end could not be recorded. It is not repeated.

    ``cause`` says why, in words."""

    code = "effect_unknown"
    maybe_committed = True
    advice = "Find out whether it happened: pass verify=, or settle it with effects.reconcile or effects.resolve."

    def __init__(self, message: str = "", *, key: str = "", cause: str = "") -> None:
        super().__init__(message, key=key)
        self.cause = cause


class BackendError(InterlockError):
    """The engine failed."""

    code = "backend"


class BackendUnavailableError(BackendError):
    """The engine cannot be reached or is busy for too long. Nothing was written."""

    code = "backend_unavailable"
    retryable = True


class BackendCorruptError(BackendError):
    """The engine's data is damaged or is not ours; nothing was written, and nothing will be until it is looked at."""

    code = "backend_corrupt"


class SchemaMismatchError(BackendError):
    """The store was written by a version of Interlock that this one does not understand."""

    code = "schema_mismatch"
