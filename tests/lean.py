"""What pytest and its plugins do around every test, with less work: a run has more than ten thousand of them.

**The watchdog.** pytest-timeout starts a thread for each test and waits for its end afterwards. Its hooks may be
overridden for that: here one thread of the process looks once a second whether the running test is over its time, and
does then what pytest-timeout would do. The time is exceeded by at most that second.

**Messages.** xdist's workers send six messages for a test, and the process that shows the run wakes up for each. Three
say nothing that it shows: that the test begins, and that its setup and teardown went well. They are left out, unless
somebody asks for durations, for a report in XML or for more words. Whatever does not pass is always sent.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import pytest

_LOOK_SECONDS: Final = 1.0
_LEFT_OUT: Final = "left out"
_monotonic, _sleep = time.monotonic, time.sleep  # tests replace them


class Watchdog:
    """The timer of every test in this process. There is one test at a time."""

    def __init__(self) -> None:
        self._running: tuple[float, Any, Any] | None = None
        self._thread: threading.Thread | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """A test begins."""
        if settings.method != "thread":
            return None
        self._running = _monotonic() + settings.timeout, item, settings
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog of the tests", daemon=True)
            self._thread.start()
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        """A test is over."""
        if self._running is None:
            return None
        self._running = None
        return True

    def _watch(self) -> None:
        while True:
            _sleep(_LOOK_SECONDS)
            running = self._running
            if running is not None and _monotonic() > running[0]:
                self.expire(*running[1:])

    def expire(self, item: pytest.Item, settings: Any) -> None:
        """Show where every thread is, and end the process."""
        from pytest_timeout import timeout_timer

        timeout_timer(item, settings)


class Reticence:
    """In a worker of xdist: no messages that say nothing."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report: Any) -> dict[str, Any] | None:
        """What is to be sent of a report."""
        said = isinstance(report, pytest.TestReport) and report.passed and report.when != "call"
        return {_LEFT_OUT: True} if said and not report.sections else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Stand before the one that sends."""
        for plugin in session.config.pluginmanager.get_plugins():
            if hasattr(plugin, "sendevent"):
                plugin.sendevent = _reticent(plugin.sendevent)


def _reticent(send: Any) -> Any:
    def sendevent(name: str, **content: Any) -> None:
        if name != "logstart" and not (name == "testreport" and _LEFT_OUT in content["data"]):
            send(name, **content)

    return sendevent


def begin(config: pytest.Config) -> None:
    """For the run of this process."""
    config.pluginmanager.register(Watchdog())
    asked = config.getoption("durations") is not None or config.getoption("xmlpath", None) or config.option.verbose > 0
    if hasattr(config, "workerinput") and not asked:
        config.pluginmanager.register(Reticence())
