"""What can go wrong with a saga; part of the tree of `interlock.errors`.

The body's own exception is never among these: after the undo it goes on as it was. Only an undo that failed adds to it:
`CompensationError`, raised from the exception that caused the rollback, or, where that one must keep its meaning
(cancellation, Ctrl-C), attached to it as context and note.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlock.errors import InterlockError


class SagaError(InterlockError):
    """A saga could not do what was asked."""

    code = "saga"


class SagaAbortedError(SagaError):
    """`abort` was called: the saga has been undone. ``reason`` is what the caller gave."""

    code = "saga_aborted"

    def __init__(self, message: str = "", *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class SagaClosedError(SagaError):
    """The saga has ended, or is ending: no step can be added to it."""

    code = "saga_closed"


class StepFailedError(SagaError):
    """A deferred act failed after everything else had succeeded; nothing is undone from there on.

    ``step`` names it, ``not_run`` the deferred acts that were to come after it. The act's own error is the cause."""

    code = "step_failed"
    advice = "The steps before it stand. Do what is left by hand or by recovery; do not run the saga again."

    def __init__(self, message: str = "", *, step: str = "", not_run: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.step = step
        self.not_run = tuple(not_run)


class StepUnknownError(SagaError):
    """A step was interrupted when the process of its saga died, and whoever entered the saga again cannot tell whether
    it has happened: it has no ``verify``, or that could not tell. ``step`` names it. It is UNKNOWN in the report, and
    the steps before it are undone."""

    code = "step_unknown"
    maybe_committed = True
    advice = "Find out whether it happened, and settle its dead letter; a verify= of the step would do it next time."

    def __init__(self, message: str = "", *, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class JournalMismatchError(SagaError):
    """A durable saga was entered again and does other things than its journal says; nothing was run blindly."""

    code = "journal_mismatch"

    def __init__(self, message: str = "", *, saga_id: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.saga_id = saga_id
        self.position = position


class CompensationError(ExceptionGroup[Exception], SagaError):
    """Undos failed; every one of them is in this group, and all the others were run.

    ``failures`` says for each which step it belongs to and with which arguments (`FailedUndo`), ``cause`` is what made
    the saga roll back, ``report`` what became of every step."""

    code = "compensation"
    advice = "What could not be undone still stands. See .failures, and undo it by hand or run the undo again."

    def __new__(
        cls, message: str, errors: Sequence[Exception], *, failures: Any = (), cause: Any = None, report: Any = None
    ) -> CompensationError:
        """An `ExceptionGroup` takes its parts here."""
        return super().__new__(cls, message, list(errors))

    def __init__(
        self,
        message: str,
        errors: Sequence[Exception],
        *,
        failures: Sequence[Any] = (),
        cause: BaseException | None = None,
        report: Any = None,
    ) -> None:
        BaseException.__init__(self, message, list(errors))
        self.failures = tuple(failures)
        self.cause = cause
        self.report = report

    def derive(self, errors: Sequence[Exception]) -> CompensationError:  # type: ignore[override]
        """The same rollback with a part of its failures, for ``except*``."""
        return CompensationError(self.message, errors, failures=self.failures, cause=self.cause, report=self.report)
