"""Waiting is ended by the commits of other processes, whose rate it does not touch."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from interlock.backends.postgresql import PostgreSQLBackend, heralds, waiting
from interlock.testing.conformance.world import Subject, key, put, step

FAR_SECONDS = 60.0


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the store are so rare that only a notification can be what ends the waiting."""
    monkeypatch.setattr(waiting, "SHORTEST_SECONDS", FAR_SECONDS)
    monkeypatch.setattr(waiting, "LONGEST_SECONDS", FAR_SECONDS)
    monkeypatch.setattr(waiting, "HEARING_SECONDS", FAR_SECONDS)


@pytest.fixture
def stores(postgresql_url: str, schema: str) -> Iterator[tuple[Subject, Subject]]:
    """Two stores that share nothing but the server, as two processes do."""
    made = (
        Subject(PostgreSQLBackend(postgresql_url, schema=schema)),
        Subject(PostgreSQLBackend(postgresql_url, schema=schema)),
    )
    yield made
    for store in made:
        asyncio.run(store.backend.close())


def _until_heard(url: str, store: Subject) -> None:
    """Wait until this store listens. That of the test before may still do."""
    with psycopg.connect(url, autocommit=True) as observer:
        while observer.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE query = %s",
            (f'LISTEN "{store.backend._news._herald._channel}"',),
        ).fetchone() != (1,):
            pass


def _waiting(store: Subject, since: Any) -> tuple[threading.Thread, list[bool]]:
    found: list[bool] = []
    leaf = store.backend.blocking()
    thread = threading.Thread(target=lambda: found.append(step(leaf.wait(since, FAR_SECONDS))))
    thread.start()
    return thread, found


def test_a_commit_elsewhere_is_heard(postgresql_url: str, stores: tuple[Subject, Subject], rarely: None) -> None:
    here, there = (Subject(store.backend.blocking()) for store in stores)
    since = step(here.commit({key("a"): put(1)})).token
    thread, found = _waiting(stores[0], since)
    _until_heard(postgresql_url, here)
    began = time.monotonic()
    step(there.commit({key("a"): put(2)}))
    thread.join(FAR_SECONDS)
    assert found == [True]
    assert time.monotonic() - began < FAR_SECONDS / 4


def test_an_asynchronous_store_hears_it_too(postgresql_url: str, stores: tuple[Subject, Subject], rarely: None) -> None:
    async def run() -> None:
        here, there = stores
        since = (await here.commit({key("a"): put(1)})).token
        task = asyncio.ensure_future(here.backend.wait(since, FAR_SECONDS))
        await asyncio.to_thread(_until_heard, postgresql_url, here)
        await there.commit({key("a"): put(2)})
        assert await asyncio.wait_for(task, FAR_SECONDS / 4)

    asyncio.run(run())


def test_who_cannot_listen_looks(postgresql_url: str, schema: str, stores: tuple[Subject, Subject]) -> None:
    """The listening connection is ended again and again; the looks go on."""
    here, there = (Subject(store.backend.blocking()) for store in stores)
    with psycopg.connect(postgresql_url, autocommit=True) as killer:
        for number in range(5):
            since = step(here.commit({key("a"): put(number)})).token
            thread, found = _waiting(stores[0], since)
            killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query LIKE 'LISTEN \"interlock_%' OR query LIKE 'SELECT pg_notify%'"
            )
            step(there.commit({key("b"): put(number)}))
            thread.join(FAR_SECONDS)
            assert found == [True]


def test_many_commits_send_few_notifications(postgresql_url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many commit, a process sends one at a time, and pauses after each."""
    sent: list[float] = []
    connect = heralds.Herald._connect

    def counted(herald: heralds.Herald) -> Any:
        connection = connect(herald)
        execute = connection.execute

        def counting(text: str, *arguments: Any) -> Any:
            if "pg_notify" in text:
                sent.append(time.monotonic())
            return execute(text, *arguments)

        connection.execute = counting
        return connection

    monkeypatch.setattr(heralds.Herald, "_connect", counted)

    async def run() -> None:
        store, other = (Subject(PostgreSQLBackend(postgresql_url, schema=schema)) for _ in range(2))
        since = await other.backend.snapshot()
        task = asyncio.ensure_future(other.backend.wait(since, FAR_SECONDS))
        await asyncio.to_thread(_until_heard, postgresql_url, other)
        while not sent:
            await asyncio.gather(*[store.commit({key("n", number): put(number)}) for number in range(20)])
        for _ in range(10):
            await asyncio.gather(*[store.commit({key("n", number): put(number)}) for number in range(20)])
        assert await task
        await store.backend.close()
        await other.backend.close()

    asyncio.run(run())
    assert all(later - earlier >= heralds.PAUSE_SECONDS for earlier, later in itertools.pairwise(sent))


def test_nobody_is_notified_where_nobody_listens(
    postgresql_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    is_heard = heralds.Herald._is_heard

    def noted(herald: heralds.Herald, connection: Any) -> bool:
        found = is_heard(herald, connection)
        assert not found
        asked.set()
        return found

    monkeypatch.setattr(heralds.Herald, "_is_heard", noted)
    store = Subject(PostgreSQLBackend(postgresql_url, schema=schema).blocking())
    step(store.commit({key("a"): put(1)}))
    assert asked.wait(FAR_SECONDS)
    step(store.backend.close())
    with psycopg.connect(postgresql_url, autocommit=True) as observer:
        assert observer.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_notify%'"
        ).fetchone() == (0,)


def test_a_closed_store_leaves_no_threads(postgresql_url: str, schema: str) -> None:
    others = set(threading.enumerate())
    store = Subject(PostgreSQLBackend(postgresql_url, schema=schema).blocking())
    since = step(store.commit({key("a"): put(1)})).token
    assert not step(store.backend.wait(since, 0.05))
    mine = [each for each in set(threading.enumerate()) - others if each.name.startswith("interlock-postgresql-")]
    assert mine
    step(store.backend.close())
    for thread in mine:
        thread.join(FAR_SECONDS)
        assert not thread.is_alive()
