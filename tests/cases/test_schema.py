"""Case R158: errors cross process borders with everything that they know."""

from __future__ import annotations

import concurrent.futures
import copy
import inspect
import multiprocessing
import pickle
from typing import Any

import pytest

import interlock
import interlock.sync
from interlock import Conflict, InterlockError, errors

FACTS: dict[str, Any] = {
    "allowed": 10,
    "attempts": 3,
    "bound": 0,
    "capability": "clock",
    "cause": "what made it so",
    "conflicts": (Conflict("stock", ("sku", 1), "read", "1-0a", "2-0b", 3, 4, "agent", "0f" * 16),),
    "current": 5,
    "difference": ("$.stock: 5, was 6",),
    "errors": [ValueError("one of several")],
    "failures": (),
    "found": 11,
    "holders": ("another",),
    "idempotency_key": "K",
    "invariant": "floor",
    "key": ("sku", 1),
    "lease": "nightly",
    "last": errors.ReadConflict("the last one", conflicts=(Conflict("stock", "k", "read", None, "2-0b"),)),
    "limit": "writes",
    "not_run": ("mail",),
    "path": "$.orders[3].price",
    "position": 4,
    "reason": "enough",
    "report": None,
    "resource": "stock",
    "saga_id": "order-1",
    "seconds_left": 2.5,
    "step": "charge",
    "transaction_id": "0f" * 16,
}

PUBLIC = sorted(
    (kind for _, kind in inspect.getmembers(interlock, inspect.isclass) if issubclass(kind, InterlockError)),
    key=lambda kind: kind.__name__,
)


def filled(kind: type[InterlockError]) -> InterlockError:
    """An error of that class with every fact that its constructor takes, a note and a cause."""
    names = [name for name in inspect.signature(kind).parameters if name != "message"]
    error = kind(f"what happened to {kind.__name__}", **{name: FACTS[name] for name in names})
    error.add_note("a note")
    error.__cause__ = errors.BackendUnavailableError("the cause")
    return error


def assert_same(error: Any, other: Any) -> None:
    assert type(other) is type(error)
    assert (str(other), str(other.args), other.explain()) == (str(error), str(error.args), error.explain())
    assert (other.code, other.retryable, other.maybe_committed) == (error.code, error.retryable, error.maybe_committed)
    assert other.__notes__ == error.__notes__
    assert str(other.__cause__) == "the cause"
    for name in FACTS.keys() - {"errors"}:
        if name == "last" and hasattr(error, name):
            assert str(other.last) == str(error.last)
            assert other.last.conflicts == error.last.conflicts
        else:
            assert getattr(other, name, "no such fact") == getattr(error, name, "no such fact")


def raise_it(error: InterlockError) -> None:
    """In a process pool."""
    raise error


def send_it(kinds: list[type[InterlockError]], queue: Any) -> None:
    """From a process, through a queue."""
    for kind in kinds:
        queue.put(filled(kind))


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_R158_errors_pickle_and_copy(kind: type[InterlockError]) -> None:
    error = filled(kind)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert_same(error, pickle.loads(pickle.dumps(error, protocol)))
    assert_same(error, copy.copy(error))
    assert_same(error, copy.deepcopy(error))
    if not issubclass(kind, ExceptionGroup):
        assert type(pickle.loads(pickle.dumps(kind()))) is kind
    else:
        assert [str(part) for part in pickle.loads(pickle.dumps(error)).exceptions] == ["one of several"]
    assert getattr(interlock, kind.__name__) is kind


def test_R158_errors_cross_a_process_pool_and_a_queue() -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        futures = {kind: pool.submit(raise_it, filled(kind)) for kind in PUBLIC}
        for kind, future in futures.items():
            raised = future.exception(60)
            assert type(raised) is kind
            assert str(raised) == str(filled(kind))
            for name in FACTS:
                if name != "last":
                    assert getattr(raised, name, None) == getattr(filled(kind), name, None)
    queue = context.Queue()
    process = context.Process(target=send_it, args=(PUBLIC, queue))
    process.start()
    for kind in PUBLIC:
        assert_same(filled(kind), queue.get(timeout=60))
    process.join(60)
    assert process.exitcode == 0
    queue.close()
    queue.join_thread()


def test_R158_a_real_conflict_crosses_too() -> None:
    with interlock.sync.open("memory://", agent="tester") as store:
        stock = store.resource("stock")
        session = stock.begin()
        session.read("k")
        stock.run(lambda other: other.write("k", [1]), agent="rival")
        session.write("k", [2])
        with pytest.raises(interlock.ReadConflict) as caught:
            session.commit()
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.conflicts == caught.value.conflicts
    assert again.conflicts[0].committed_by == "rival"
    assert again.explain() == caught.value.explain()
