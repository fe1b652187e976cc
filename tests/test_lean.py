"""What a run leaves out for each test is nothing that anybody would see; see `lean`."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_timeout

import lean

THREAD = SimpleNamespace(method="thread", timeout=0.0)


def report(when: str = "setup", outcome: str = "passed", sections: Any = ()) -> Any:
    return pytest.TestReport("a", ("a", 0, "a"), {}, outcome, None, when, sections)  # type: ignore[arg-type]


def test_a_test_that_takes_too_long_ends_the_run_as_with_a_timer_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "_sleep", lambda seconds: None)
    ended: list[Any] = []
    expired = threading.Event()

    def end(*given: Any) -> None:
        if not expired.is_set():
            ended.extend(given)
            expired.set()
        threading.Event().wait()  # it does not come back: the process would be gone

    monkeypatch.setattr(pytest_timeout, "timeout_timer", end)
    watchdog, item = lean.Watchdog(), SimpleNamespace()
    patient = SimpleNamespace(method="thread", timeout=600.0)
    assert watchdog.pytest_timeout_set_timer(item, patient)  # type: ignore[arg-type]
    assert watchdog.pytest_timeout_cancel_timer(item)  # type: ignore[arg-type]
    assert not expired.is_set()
    assert watchdog.pytest_timeout_set_timer(item, THREAD)  # type: ignore[arg-type]
    assert expired.wait(30)
    assert ended == [item, THREAD]


def test_other_timers_than_threads_are_left_to_the_plugin() -> None:
    watchdog: Any = lean.Watchdog()
    assert watchdog.pytest_timeout_set_timer(None, SimpleNamespace(method="signal", timeout=1.0)) is None
    assert watchdog.pytest_timeout_cancel_timer(None) is None


def test_the_running_test_is_watched(pytestconfig: pytest.Config) -> None:
    watching = [plugin for plugin in pytestconfig.pluginmanager.get_plugins() if isinstance(plugin, lean.Watchdog)]
    assert [watchdog._running is not None for watchdog in watching] == [True]


def test_only_what_says_nothing_is_not_sent() -> None:
    sent: list[tuple[str, Any]] = []
    send = lean._reticent(lambda name, **content: sent.append((name, content.get("data"))))
    serialize = lean.Reticence().pytest_report_to_serializable
    for each in (report(), report("teardown")):
        data = serialize(each)
        assert data is not None
        send("testreport", data=data | {"item_index": 0})
    send("logstart", nodeid="a", location=("a", 0, "a"))
    assert sent == []
    shown = [report("call"), report("setup", "failed"), report("teardown", "failed"), report("setup", "skipped")]
    shown += [report("teardown", sections=[("Captured", "words")]), SimpleNamespace(outcome="passed", when="collect")]
    for each in shown:
        assert serialize(each) is None
        send("testreport", data={"item_index": 0})
    send("logfinish", nodeid="a", location=("a", 0, "a"))
    assert len(sent) == len(shown) + 1
