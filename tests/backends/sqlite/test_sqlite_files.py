"""Files that are no store, places where a store cannot be, full disks: an error of ours that says what to do."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlite_support import Store, key, number, opened, step

from interlock.backends.sqlite import SQLiteBackend, connection, schema
from interlock.errors import (
    BackendCorruptError,
    BackendError,
    BackendUnavailableError,
    CommitUnknownError,
    InterlockError,
    SchemaMismatchError,
    UsageError,
)
from interlock.model import Put
from interlock.runtime import BlockingRuntime


def refused(path: Path | str, error: type[InterlockError], said: str) -> None:
    """Opening is refused, twice over, and with the path and the advice in the message."""
    store = Store(path, busy_seconds=1)
    for _ in range(2):
        with pytest.raises(error, match=said) as caught:
            store.snapshot()
        assert str(path) in str(caught.value)
    store.close()


@pytest.mark.parametrize("path", ["", ":memory:", "file::memory:?cache=shared", "file:x.db", "a\0b"])
def test_r146_a_store_without_a_file_is_refused_at_construction(path: str) -> None:
    with pytest.raises(UsageError, match="memory://"):
        SQLiteBackend(path)


@pytest.mark.parametrize("wrong", [{"busy_seconds": 0}, {"grace_seconds": -1}, {"synchronous": "full"}])
def test_wrong_options_are_refused_at_construction(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SQLiteBackend(tmp_path / "store.db", **wrong)


def test_constructing_does_nothing(tmp_path: Path) -> None:
    step(SQLiteBackend(tmp_path / "no" / "store.db", runtime=BlockingRuntime()).close())
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_the_one_at_construction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with opened("store.db") as store:
        monkeypatch.chdir("/")
        store.increment(key("a"))
    assert (tmp_path / "store.db").exists()


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "no" / "store.db", BackendUnavailableError, "directory")


def test_a_directory_is_no_store(tmp_path: Path) -> None:
    refused(tmp_path, UsageError, "is a directory")


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)
    refused(path, BackendCorruptError, "not a SQLite database.*Name another file")
    assert path.read_text() == "Dear Sir or Madam, " * 100


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE accounts (id)", "PRAGMA application_id=7", "PRAGMA user_version=3"]
)
def test_a_database_of_another_application_is_left_alone(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute(statement)
    other.close()
    before = path.read_bytes()
    refused(path, BackendCorruptError, "another application")
    assert path.read_bytes() == before


@pytest.mark.parametrize(("version", "said"), [(schema.VERSION + 1, "newer"), (schema.VERSION - 1, "older")])
def test_a_store_of_another_version_is_left_alone(tmp_path: Path, version: int, said: str) -> None:
    path = tmp_path / "store.db"
    with opened(path) as store:
        store.increment(key("a"))
    other = sqlite3.connect(path)
    other.execute(f"PRAGMA user_version={version}")
    other.close()
    before = path.read_bytes()
    refused(path, SchemaMismatchError, said)
    assert path.read_bytes() == before


def test_a_damaged_store_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with opened(path) as store:
        for count in range(30):
            store.commit({key("big", count): Put(b"m" + b"x" * 3000)})
    raw = path.read_bytes()
    path.write_bytes(raw[:8192] + b"\xa5" * (len(raw) - 8192))
    with opened(path) as store:
        with pytest.raises(BackendCorruptError, match=r"damaged.*backup"):
            for count in range(30):
                store.entry(key("big", count))
        with pytest.raises(BackendCorruptError, match="damaged"):
            store.commit({key("big", 1): number(1)})


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    with opened(tmp_path / "store.db") as store:
        store.increment(key("a"))


def test_r143_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    share = tmp_path / "my share"
    share.mkdir()
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {str(share).replace(' ', chr(92) + '040')} nfs4 rw 0 0\n")
    real: Callable[..., str] = connection.file_system
    monkeypatch.setattr(connection, "file_system", lambda directory: real(directory, str(mounts)))
    refused(share / "store.db", UsageError, "network file system.*local disk")
    with opened(tmp_path / "store.db") as store:
        store.increment(key("a"))


def test_the_file_system_of_a_directory_is_the_one_mounted_deepest(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /data nfs rw 0 0\nc /data/local ext4 rw 0 0\n")
    kinds = [
        connection.file_system(place, str(mounts)) for place in ("/", "/data", "/data/x", "/data/local/y", "/datax")
    ]
    assert kinds == ["ext4", "nfs", "nfs", "ext4", "ext4"]
    assert connection.file_system("/", str(tmp_path / "none")) == ""


def test_r143_a_failed_switch_to_wal_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoWal(sqlite3.Connection):
        def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
            return super().execute("SELECT 'delete'" if "journal_mode" in statement else statement, *arguments)

    real = sqlite3.connect
    monkeypatch.setattr(connection.sqlite3, "connect", lambda *a, **more: real(*a, factory=NoWal, **more))
    refused(tmp_path / "store.db", BackendUnavailableError, "write-ahead log.*local disk")


def as_nobody(body: Callable[[], None]) -> None:
    """Run in a child that has no right to override what files forbid (tests may run as root)."""
    child = os.fork()
    if not child:
        status = 1
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            body()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def read_only(path: Path) -> None:
    store = Store(path)
    assert store.value(key("a")) == 1
    with pytest.raises(BackendUnavailableError, match="right to write"):
        store.commit({key("a"): number(2)})
    assert store.value(key("a")) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_may_not_be_written_is_named(tmp_path: Path, what: str) -> None:
    """A store in a directory that is not ours cannot be opened; a file that we may only read can be read."""
    path = tmp_path / "sub" / "store.db"
    path.parent.mkdir()
    with opened(path) as store:
        store.increment(key("a"))
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.getuid() and place.name.startswith(("pytest", "popen-", "test_")):
            place.chmod(0o755)
    os.chmod(f"{path}-queue", 0o666)
    path.chmod(0o444 if what == "file" else 0o666)
    path.parent.chmod(0o777 if what == "file" else 0o555)
    try:
        as_nobody(
            lambda: read_only(path) if what == "file" else refused(path, BackendUnavailableError, "right to write")
        )
    finally:
        path.parent.chmod(0o755)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own limit of pages stands for the disk's."""
    path = tmp_path / "store.db"
    with opened(path) as store:
        store.commit({key("a"): number(1)})
        writer = store.backend._engine._writer
        assert writer is not None
        assert writer.connection is not None
        writer.connection.execute("PRAGMA max_page_count=1")
        with pytest.raises(BackendUnavailableError, match=r"disk is full\. Make room"):
            store.commit({key("big"): Put(b"m" + b"x" * 100_000)})
        assert store.value(key("a")) == 1
        assert store.entry(key("big")) is None
        assert len(store.feed()) == 1
        writer.connection.execute("PRAGMA max_page_count=1000000")
        store.commit({key("big"): Put(b"m" + b"x" * 100_000)})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_that_may_not_grow_loses_nothing(tmp_path: Path) -> None:
    """The system refuses to write behind a limit, in the middle of COMMIT: nothing acknowledged is lost, and what was
    refused never comes back, not even if the process dies right there."""
    path = tmp_path / "store.db"
    acknowledged = tmp_path / "acknowledged"

    def body() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = Store(path, synchronous="FULL", busy_seconds=1, grace_seconds=1)
        store.commit({key("a", 0): number(0)})
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
        done, refused, unknown = [0], [], []
        for count in range(1, 60):
            try:
                store.commit({key("a", count): Put(b"m" + b"x" * 5000)})
                done.append(count)
            except CommitUnknownError:
                unknown.append(count)
            except BackendError:
                refused.append(count)
        acknowledged.write_text(repr((done, refused, unknown)))
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        try:
            body()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    done, refused_ones, unknown = eval(acknowledged.read_text())
    assert len(done) > 5
    assert refused_ones or unknown
    with opened(path) as store:
        for count in done:
            assert store.entry(key("a", count)) is not None
        for count in refused_ones:
            assert store.entry(key("a", count)) is None


def test_a_store_travels_by_its_address(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db", busy_seconds=3, synchronous="NORMAL") as store:
        store.increment(key("a"))
        copy = pickle.loads(pickle.dumps(store.backend))
        assert copy.path == store.backend.path
        assert copy._engine.options == store.backend._engine.options
        assert not copy.suspends
        step(copy.close())


def test_a_restored_file_refuses_tokens_of_its_lost_tail(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with opened(path) as store:
        store.commit({key("a"): number(1)})
        early = store.snapshot()
    saved = path.read_bytes()
    with opened(path) as store:
        store.commit({key("a"): number(2)})
        lost = store.snapshot()
    path.write_bytes(saved)
    with opened(path) as store:
        assert store.value(key("a"), early) == 1
        store.commit({key("a"): number(3)})
        for use in (
            lambda: store.entry(key("a"), lost),
            lambda: store.feed(lost),
            lambda: store.commit({key("b"): number(1)}, snapshot=lost),
        ):
            with pytest.raises(InterlockError) as caught:
                use()
            assert caught.value.code == "snapshot_too_old"


def test_the_clock_goes_on_after_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A boot is another boot id and a clock that begins at 0; the wall clock may be wrong by then."""
    path = tmp_path / "store.db"
    with opened(path) as store:
        before = store.commit({key("a"): number(1)}).at
        assert step(store.backend.now()) >= before
    monkeypatch.setattr(schema, "boot_id", lambda: "another boot")
    monkeypatch.setattr(schema, "since_boot", lambda: 3.0)
    monkeypatch.setattr(schema.time, "time", lambda: 1000.0)
    with opened(path) as store:
        now = step(store.backend.now())
        assert now >= before
        assert store.commit({key("a"): number(2)}).at >= now
        with opened(path) as other:
            assert step(other.backend.now()) == now


def test_the_boot_is_known_without_a_proc_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **more: real("/no such file" if "boot_id" in str(path) else path)
    )
    assert schema.boot_id() == schema.boot_id() != ""
