"""Transactions for agents that share state and act on the world.

This module is the asynchronous API; `interlock.sync` has the same names for plain synchronous code.
"""

from interlock.attempts import Attempt
from interlock.backends.memory import MemoryBackend
from interlock.backends.sqlite import SQLiteBackend
from interlock.core.diagnosis import Entry, Outcome
from interlock.core.isolation import Isolation
from interlock.core.log import Change, Cursor, TransactionLog, Written
from interlock.core.options import Options, SessionOptions
from interlock.core.retry import RetryPolicy
from interlock.core.running import Committed
from interlock.core.session import AgentSession, AgentView
from interlock.core.transaction import DELETE
from interlock.errors import (
    BackendCorruptError,
    BackendError,
    BackendUnavailableError,
    CommitUnknownError,
    Conflict,
    ConflictError,
    DeadlineExceededError,
    EffectError,
    EffectFailedError,
    EffectInProgressError,
    EffectUnknownError,
    IdempotencyInProgressError,
    IdempotencyMismatchError,
    InterlockError,
    InvariantError,
    IsolationError,
    LimitExceededError,
    NotFoundError,
    RangeConflict,
    ReadConflict,
    RetriesExhaustedError,
    SchemaMismatchError,
    SnapshotTooOldError,
    TransactionError,
    UnsupportedError,
    UsageError,
    ValueRefusedError,
    WriteConflict,
)
from interlock.keys import UserKey as Key
from interlock.layers.effects.answers import CANNOT_TELL, NOT_HAPPENED, Answer, Happened
from interlock.layers.effects.dispatching import Dispatched
from interlock.layers.effects.executing import Executed
from interlock.layers.effects.reconciling import Reconciled
from interlock.layers.effects.records import Effect, EffectStatus
from interlock.layers.effects.store import EffectStore, IdempotentExecutor
from interlock.layers.errors import (
    DeadlockError,
    FencedError,
    LeaseError,
    LeaseLostError,
    LeaseUnavailableError,
    LockTimeoutError,
)
from interlock.layers.holdings import FencingToken
from interlock.layers.leases import Lease
from interlock.layers.standing import Lock
from interlock.model import Delete
from interlock.ports import Backend, Capability
from interlock.saga.blocking import SagaScope
from interlock.saga.deferred import Deferred
from interlock.saga.errors import (
    CompensationError,
    JournalMismatchError,
    SagaAbortedError,
    SagaClosedError,
    SagaError,
    StepFailedError,
    StepUnknownError,
)
from interlock.saga.records import FailedUndo, SagaReport
from interlock.saga.recovery import RecoveryReport
from interlock.saga.saga import Saga
from interlock.saga.scope import AsyncSagaScope, Step, current_saga
from interlock.saga.serving import DeadLetters
from interlock.saga.snapshot import Snapshot, snapshot
from interlock.saga.tools import carry, compensable
from interlock.store import SharedResource, Store, open

__version__ = "0.1.0"

__all__ = [
    "CANNOT_TELL",
    "DELETE",
    "NOT_HAPPENED",
    "AgentSession",
    "AgentView",
    "Answer",
    "AsyncSagaScope",
    "Attempt",
    "Backend",
    "BackendCorruptError",
    "BackendError",
    "BackendUnavailableError",
    "Capability",
    "Change",
    "CommitUnknownError",
    "Committed",
    "CompensationError",
    "Conflict",
    "ConflictError",
    "Cursor",
    "DeadLetters",
    "DeadlineExceededError",
    "DeadlockError",
    "Deferred",
    "Delete",
    "Dispatched",
    "Effect",
    "EffectError",
    "EffectFailedError",
    "EffectInProgressError",
    "EffectStatus",
    "EffectStore",
    "EffectUnknownError",
    "Entry",
    "Executed",
    "FailedUndo",
    "FencedError",
    "FencingToken",
    "Happened",
    "IdempotencyInProgressError",
    "IdempotencyMismatchError",
    "IdempotentExecutor",
    "InterlockError",
    "InvariantError",
    "Isolation",
    "IsolationError",
    "JournalMismatchError",
    "Key",
    "Lease",
    "LeaseError",
    "LeaseLostError",
    "LeaseUnavailableError",
    "LimitExceededError",
    "Lock",
    "LockTimeoutError",
    "MemoryBackend",
    "NotFoundError",
    "Options",
    "Outcome",
    "RangeConflict",
    "ReadConflict",
    "Reconciled",
    "RecoveryReport",
    "RetriesExhaustedError",
    "RetryPolicy",
    "SQLiteBackend",
    "Saga",
    "SagaAbortedError",
    "SagaClosedError",
    "SagaError",
    "SagaReport",
    "SagaScope",
    "SchemaMismatchError",
    "SessionOptions",
    "SharedResource",
    "Snapshot",
    "SnapshotTooOldError",
    "Step",
    "StepFailedError",
    "StepUnknownError",
    "Store",
    "TransactionError",
    "TransactionLog",
    "UnsupportedError",
    "UsageError",
    "ValueRefusedError",
    "WriteConflict",
    "Written",
    "carry",
    "compensable",
    "current_saga",
    "open",
    "snapshot",
]
