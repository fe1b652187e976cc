"""What holds for every test, and the servers that tests share."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import redis
import redis.utils

import lean
import tally
from bytecode import compile_share
from complaints import complaints
from interlock.core.transaction import current as transaction
from interlock.saga.frames import current as saga
from interlock.testing.conformance.world import EXAMPLES
from redis_servers import REDIS, redis_server
from schemas import Schemas
from servers import POSTGRESQL, fast_directory, postgresql_server
from soak import usual
from warm import Warm

# A shell starts a background job with SIGINT ignored, and so would every process be that a test starts: then the tests
# of Ctrl-C would wait for ever.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Where Python is told to write no bytecode, let the processes that tests start have it in a directory of the run:
    there are hundreds of them, and compiling the library takes each as long as all the rest of its start."""
    gc.disable()  # until everything is collected: looking for garbage was a quarter of that, and there is none
    tally.begin(config)
    lean.begin(config)
    complaints.begin()
    os.environ.setdefault(EXAMPLES, usual("1", "0.25"))
    if hasattr(redis.utils, "get_lib_version"):  # each client would read the metadata of its package for that
        redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        directory = tempfile.mkdtemp(prefix="interlock-bytecode-")
        os.environ["PYTHONPYCACHEPREFIX"] = directory
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_sessionstart(session: pytest.Session) -> None:
    """See there."""
    compile_share(session.config)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The URL of a PostgreSQL database that this process of the run may use."""
    given = os.environ.get(POSTGRESQL)
    if given:
        yield given
        return
    os.environ.setdefault("PGSSLMODE", "disable")  # it has no encryption: drivers need not prepare any and ask for it
    with postgresql_server() as server:
        yield server.url


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory for files of which a test wants nothing but that they are there: in memory if there is room, where a
    sync costs nothing. Whoever kills processes or looks at durability takes ``tmp_path``."""
    with tempfile.TemporaryDirectory(prefix="interlock-test-", dir=fast_directory()) as made:
        yield Path(made)


@pytest.fixture(scope="session")
def schemas(postgresql_url: str) -> Iterator[Schemas]:
    """Stores in that database, for one test at a time."""
    made = Schemas(postgresql_url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def warm_connections(postgresql_url: str) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Within what it returns, stores in that database use connections of earlier tests: see `warm`. Not on a server
    that was given: it may want a password or encryption."""
    if os.environ.get(POSTGRESQL):
        yield nullcontext
        return
    warm = Warm(postgresql_url)
    yield warm.connections
    warm.close()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a durable Redis server that this process of the run may use."""
    given = os.environ.get(REDIS)
    if given:
        yield given
        return
    with redis_server() as server:
        yield server.url


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what is there until the end: a hundred thousand objects of pytest's, which
    every test that collects everything would look through again."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of that server, for what tests do beside the store."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A transaction or saga that a test leaves open in this thread would be the next test's, and what asyncio reports
    was raised to nobody."""
    reported = complaints.taken()
    left = [variable.get() for variable in (transaction, saga)]
    if left != [None, None]:
        transaction.set(None)
        saga.set(None)
        pytest.fail(f"{item.nodeid} has left something open behind it: {left}", pytrace=False)
    if reported:
        pytest.fail(f"asyncio has reported in {item.nodeid}:\n" + "\n".join(reported), pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the recorded histories of this run amount to."""
    for line in tally.told():
        terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Too few recorded transactions fail a run of everything in continuous integration."""
    if tally.falls_short(session):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
