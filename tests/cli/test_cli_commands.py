"""Each command: what it prints as lines, as a table and as JSON, and how it exits however it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from interlock import sync
from interlock.cli import options
from interlock.cli.app import app
from interlock.cli.exits import Exit, status_of
from interlock.core.diagnosis import Outcome
from interlock.errors import (
    BackendCorruptError,
    BackendUnavailableError,
    CommitUnknownError,
    ConflictError,
    IsolationError,
    LimitExceededError,
    NotFoundError,
    RetriesExhaustedError,
    SnapshotTooOldError,
    UnsupportedError,
    UsageError,
    ValueRefusedError,
)
from interlock.testing import lost_replies

Run = Callable[..., Result]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A memory store of this test's own, which lives on between two commands."""
    return f"memory://{request.node.name.replace('[', '-').replace(']', '')}"


@pytest.fixture
def run(url: str) -> Run:
    """Run a command in this process, on that store."""

    def call(*words: str, status: int = 0, **more: Any) -> Result:
        result = CliRunner(env={"INTERLOCK_URL": url}).invoke(app, list(words), catch_exceptions=False, **more)
        assert result.exit_code == status, result.output
        return result

    return call


def objects(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def complaint(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stderr)
    assert {"code", "message", "explain", "retryable", "maybe_committed"} == set(found)
    assert result.stdout == ""
    return found


# --- get and put ------------------------------------------------------------------------------------------------------


def test_put_then_get(run: Run) -> None:
    said = run("put", "stock", "sku-1", "3").stdout.split()
    assert said[0] == "committed"
    assert run("get", "stock", "sku-1").stdout == "3\n"
    (entry,) = objects(run("get", "stock", "sku-1", "--json"))
    assert entry["transaction_id"] == said[1]
    assert entry["version"] == said[-1]
    assert (entry["resource"], entry["key"], entry["value"], entry["agent"]) == ("stock", "sku-1", 3, "cli")
    assert entry["at"].endswith("+00:00")
    assert entry["deleted"] is False


def test_what_get_prints_can_be_put(run: Run, url: str) -> None:
    value = {"price": Decimal("9.90"), "raw": b"\0\1", "seen": (1, {"a", "b"}), "$set": None}
    with sync.open(url, agent="program") as store:
        with store.resource("things").session() as session:
            session.write("x", value)
        printed = run("get", "things", "x").stdout
        run("put", "things", "y", printed)
        assert store.resource("things").read("y") == value


def test_texts_are_stored_and_shown_as_they_are(run: Run) -> None:
    run("put", "docs", "intro", "--text", 'Once upon "a" time\n')
    assert run("get", "docs", "intro").stdout == '"Once upon \\"a\\" time\\n"\n'
    assert run("get", "docs", "intro", "--text").stdout == 'Once upon "a" time\n'
    run("put", "docs", "count", "7")
    assert "is a int" in run("get", "docs", "count", "--text", status=2).stderr


def test_a_value_from_the_standard_input(run: Run) -> None:
    run("put", "docs", "a", "-", input='{"long": [1, 2]}\n')
    run("put", "docs", "b", "-", "--text", input="as it is\n")
    assert run("get", "docs", "a").stdout == '{"long": [1, 2]}\n'
    assert run("get", "docs", "b", "--text").stdout == "as it is\n"


def test_a_standard_input_that_is_no_text(run: Run) -> None:
    assert "not text" in run("put", "docs", "a", "-", input=b"\xff\xfe", status=2).stderr


def test_negative_numbers_need_no_tricks(run: Run) -> None:
    run("put", "stock", "sku-1", "-5")
    assert run("get", "stock", "sku-1").stdout == "-5\n"
    assert run("put", "stock", "sku-1", "--txt", status=2).stderr.startswith("not JSON")


def test_tuple_keys_and_raw_keys(run: Run, url: str) -> None:
    run("put", "queue", '["job", 7]', "1")
    run("put", "queue", '["job", 7]', "2", "--raw-key")
    run("put", "queue", '"quoted"', "3")
    with sync.open(url) as store:
        queue = store.resource("queue")
        assert dict(queue.scan()) == {("job", 7): 1, '["job", 7]': 2, "quoted": 3}
    assert run("get", "queue", '["job", 7]').stdout == "1\n"
    assert run("get", "queue", '["job", 7]', "--raw-key").stdout == "2\n"
    shown = [line.split("\t")[0] for line in run("scan", "queue").stdout.splitlines()]
    assert [run("get", "queue", key).stdout for key in shown] == ["2\n", "3\n", "1\n"], "shown keys can be given back"


def test_no_value_is_a_negative_answer(run: Run) -> None:
    assert run("get", "stock", "sku-1", status=1).stderr == "there is no value under sku-1 in resource 'stock'.\n"
    assert complaint(run("get", "stock", '["a", 1]', "--json", status=1))["code"] == "not_found"
    run("put", "stock", "nothing", "null")
    assert run("get", "stock", "nothing").stdout == "null\n"


def test_if_absent(run: Run) -> None:
    run("put", "stock", "sku-1", "1", "--if-absent")
    result = run("put", "stock", "sku-1", "2", "--if-absent", "--json", status=3)
    assert complaint(result)["code"] == "condition"
    assert run("get", "stock", "sku-1").stdout == "1\n"


def test_if_version(run: Run) -> None:
    (first,) = objects(run("put", "stock", "sku-1", "1", "--json"))
    (second,) = objects(run("put", "stock", "sku-1", "2", "--if-version", first["version"], "--json"))
    assert second["version"] != first["version"]
    stale = complaint(run("put", "stock", "sku-1", "3", "--if-version", first["version"], "--json", status=3))
    assert second["version"] in stale["message"]
    assert "absent" in run("put", "stock", "sku-2", "3", "--if-version", first["version"], status=3).stderr
    assert run("get", "stock", "sku-1").stdout == "2\n"
    assert "exclude" in run("put", "stock", "k", "1", "--if-absent", "--if-version", "x", status=2).stderr


def test_if_version_is_validated_at_the_commit(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes between the look at the version and the commit: refused, not overwritten."""
    (first,) = objects(run("put", "stock", "sku-1", "1", "--json"))
    look = sync.SharedResource.entry

    def look_and_lose(resource: Any, key: Any) -> Any:
        entry = look(resource, key)
        with sync.open(url, agent="rival") as other, other.resource("stock").session() as session:
            session.write(key, 100)
        return entry

    with monkeypatch.context() as patched:
        patched.setattr(sync.SharedResource, "entry", look_and_lose)
        result = run("put", "stock", "sku-1", "2", "--if-version", first["version"], "--json", status=3)
    assert complaint(result)["code"] == "read_conflict"
    assert "rival" in result.stderr
    assert run("get", "stock", "sku-1").stdout == "100\n"


def test_rules_of_programs_bind_the_command_line(run: Run, url: str) -> None:
    with sync.open(url, agent="program") as store:
        stock = store.resource("stock", int)
        stock.invariant("never negative", lambda view: (view.read("sku-1") or 0) >= 0)
        with stock.session() as session:
            session.write("sku-1", 1)
    refused = complaint(run("put", "stock", "sku-1", "-1", "--json", status=3))
    assert refused["code"] == "invariant"
    assert "never negative" in refused["message"]


def test_put_names_its_agent(run: Run) -> None:
    run("put", "stock", "sku-1", "1", "--agent", "carla")
    assert objects(run("get", "stock", "sku-1", "--json"))[0]["agent"] == "carla"


@pytest.mark.parametrize(
    ("words", "complains_of"),
    [
        (("put", "stock", "sku-1", "three"), "not JSON"),
        (("put", "stock", "sku-1", "1e999"), "$"),
        (("put", "stock", "sku-1", '{"$decimal": "NaN"}'), "finite"),
        (("put", "stock", "", "1"), "empty"),
        (("put", "stock", "k" * 2000, "1"), "1024"),
        (("put", "", "k", "1"), "empty"),
        (("put", "stock", "[1.5]", "1"), "texts and whole numbers"),
        (("put", "stock", "k", "1", "--agent", " "), "agent"),
        (("get", "stock", "[job]"), "--raw-key"),
        (("get", "stock", "k", "--url", "nosuch://x"), "no backend"),
        (("scan", "stock", "a", "--start", "b"), "not by both"),
        (("log", "--since", "cursor"), "not a cursor"),
        (("log", "--last", "1", "--limit", "1"), "exclude"),
        (("outcome", "7"), "32 hexadecimal digits"),
    ],
)
def test_wrong_usage(run: Run, words: tuple[str, ...], complains_of: str) -> None:
    assert complains_of in run(*words, status=2).stderr
    assert complains_of in complaint(run(*words, "--json", status=2))["explain"]


@pytest.mark.parametrize(
    "words", [("get", "stock"), ("get", "stock", "k", "--no-such-option"), ("log", "--limit", "0"), ("nothing",)]
)
def test_a_call_that_cannot_be_understood(run: Run, words: tuple[str, ...]) -> None:
    assert "Usage: interlock" in run(*words, status=2).stderr
    if words != ("nothing",):
        assert complaint(run(*words, "--json", status=2))["code"] == "usage"


# --- scan and history -------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(run: Run) -> Run:
    for key, value in (("a-1", "1"), ("a-2", '"x\ty"'), ("b-1", "[]"), ('["a", 1]', "{}"), ('["a", 2]', "null")):
        run("put", "things", key, value.replace("\t", "\\t"))
    return run


def test_scan_lists_in_key_order(filled: Run) -> None:
    lines = filled("scan", "things").stdout.splitlines()
    assert lines == ["a-1\t1", 'a-2\t"x\\ty"', "b-1\t[]", '["a", 1]\t{}', '["a", 2]\tnull']
    assert objects(filled("scan", "things", "--json"))[3] == {"key": ["a", 1], "value": {}}
    assert filled("scan", "elsewhere").stdout == ""


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["a"], ["a-1", "a-2"]),
        (['["a"]'], ['["a", 1]', '["a", 2]']),
        (["--start", "a-2", "--stop", "b-1"], ["a-2"]),
        (["--start", '["a", 2]'], ['["a", 2]']),
        (["--limit", "2"], ["a-1", "a-2"]),
        (["--reverse", "--limit", "1"], ['["a", 2]']),
    ],
)
def test_scan_takes_ranges(filled: Run, words: list[str], keys: list[str]) -> None:
    assert [line.split("\t")[0] for line in filled("scan", "things", *words).stdout.splitlines()] == keys


def test_history_shows_versions_newest_first(run: Run, url: str) -> None:
    for value in "123":
        run("put", "stock", "sku-1", value)
    with sync.open(url, agent="cleaner") as store, store.resource("stock").session() as session:
        session.delete("sku-1")
    lines = [line.split("\t") for line in run("history", "stock", "sku-1").stdout.splitlines()]
    assert [cells[-1] for cells in lines] == ["deleted", "3", "2", "1"]
    assert [cells[2] for cells in lines] == ["cleaner", "cli", "cli", "cli"]
    found = objects(run("history", "stock", "sku-1", "--limit", "2", "--json"))
    assert [(entry["value"], entry["deleted"]) for entry in found] == [(None, True), (3, False)]
    assert run("get", "stock", "sku-1", status=1).stdout == ""
    assert "nothing is known" in run("history", "stock", "other", status=1).stderr


def test_tables_are_for_terminals(filled: Run) -> None:
    """Also of names that are wide, that look like markup, or that are longer than the terminal."""
    filled("put", "things", "[bold]北京[/bold]" * 5, '"[red]"', "--raw-key")
    table = filled("scan", "things", env={"FORCE_COLOR": "1", "COLUMNS": "60", "NO_COLOR": "1"}).stdout
    assert "key" in table
    assert "[red]" in table
    assert "".join(table.split()).count("北京") == 5
    assert filled("get", "things", '["a", 1]', env={"FORCE_COLOR": "1"}).stdout == "{}\n"
    filled("put", "things", "d", '{"a": [1]}')
    assert filled("get", "things", "d", env={"FORCE_COLOR": "1"}).stdout.count("\n") == 5
    assert filled("log", "--last", "1", env={"FORCE_COLOR": "1", "COLUMNS": "160"}).stdout.count("a") > 3


# --- log, outcome, compact --------------------------------------------------------------------------------------------


def merging(session: sync.AgentSession[Any]) -> None:
    """One of everything."""
    session.read("absent")
    session.write("put", (1, 2))
    session.add("counter", 5, ceiling=10)
    session.append("list", "item")
    session.delete("put-before")
    session.clear("old-")


def test_log_says_what_was_done(run: Run, url: str) -> None:
    run("put", "r", "put-before", "0")
    run("put", "r", "old-1", "0")
    with sync.open(url, agent="program") as store:
        store.resource("r").run(merging, run_id="run-7")
    line = run("log").stdout.splitlines()[-1].split("\t")
    assert line[1] == "program"
    assert line[3].endswith("merging")
    for said in ('r put = {"$tuple": [1, 2]}', "r counter add 5", 'r list append "item"', "delete", "r old-1 clear"):
        assert said in line[4]
    change = objects(run("log", "--json"))[-1]
    assert change["run_id"] == "run-7"
    assert change["reads"] == [{"resource": "r", "key": "absent", "version": None}]
    counter = next(write for write in change["writes"] if write["key"] == "counter")
    assert counter["operations"] == [{"kind": "add", "operand": 5, "ceiling": 10}]


def test_log_goes_on_from_a_cursor(run: Run) -> None:
    for value in "123":
        run("put", "r", "k", value)
    first = objects(run("log", "--limit", "1", "--json"))
    rest = objects(run("log", "--since", first[0]["cursor"], "--json"))
    assert [change["writes"][0]["value"] for change in first + rest] == [1, 2, 3]
    assert objects(run("log", "--since", rest[-1]["cursor"], "--json")) == []
    assert [change["writes"][0]["value"] for change in objects(run("log", "--last", "2", "--json"))] == [2, 3]


def test_follow_shows_what_is_there_and_stops_at_its_limit(run: Run) -> None:
    run("put", "r", "k", "1")
    run("put", "r", "k", "2")
    assert len(run("log", "--follow", "--limit", "2").stdout.splitlines()) == 2
    assert len(run("log", "--follow", "--last", "1", "--json", "--limit", "1", status=2).stderr) > 0


def test_outcomes(run: Run) -> None:
    committed = run("put", "r", "k", "1").stdout.split()[1]
    assert run("outcome", committed).stdout == "committed\n"
    never = f"{int(committed, 16) + (1 << 90):032x}"
    assert run("outcome", never, status=1).stdout == "not committed\n"
    assert objects(run("outcome", never, "--json", status=1)) == [{"transaction_id": never, "outcome": "not committed"}]
    ancient = "0" * 31 + "1"
    assert run("outcome", ancient, status=1).stdout == "not committed\n"


def test_unknown_outcomes_have_a_status_of_their_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync.Store, "outcome", lambda store, transaction_id: Outcome.UNKNOWN)
    assert run("outcome", "0" * 32, status=5).stdout == "unknown\n"


def test_asking_ends_a_running_transaction(run: Run, url: str) -> None:
    with sync.open(url, agent="slow") as store:
        session = store.resource("r").begin()
        session.write("k", 1)
        assert run("outcome", session.transaction_id, status=1).stdout == "not committed\n"
        with pytest.raises(ConflictError, match="ended by a question"):
            session.commit()
    assert "Asking ends it" in run("outcome", "--help").stdout


def test_compact(run: Run) -> None:
    for value in "123":
        run("put", "r", "k", value)
    assert run("compact").stdout == "dropped 0\n"
    (first,) = objects(run("log", "--limit", "1", "--json"))
    run("put", "r", "k", "4")
    dropped = objects(run("compact", "--history-seconds", "0.001", "--json"))
    assert dropped[0]["dropped"] > 0
    assert run("get", "r", "k").stdout == "4\n"
    assert len(run("history", "r", "k").stdout.splitlines()) == 1
    assert complaint(run("log", "--since", first["cursor"], "--json", status=3))["code"] == "snapshot_too_old"
    assert run("outcome", first["transaction_id"], status=5).stdout == "unknown\n"


# --- stores -----------------------------------------------------------------------------------------------------------


def test_the_store_of_an_option_goes_before_the_environment(run: Run) -> None:
    other = "memory://another-store-of-the-command-line"
    run("put", "r", "k", "1", "--url", other)
    assert run("get", "r", "k", "--url", other).stdout == "1\n"
    run("get", "r", "k", status=1)


def test_without_option_or_environment_the_store_is_a_file_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERLOCK_URL", raising=False)
    runner = CliRunner()
    assert runner.invoke(app, ["put", "r", "k", "1"]).exit_code == 0
    assert (tmp_path / "interlock.db").exists()
    assert runner.invoke(app, ["get", "r", "k"]).stdout == "1\n"


@pytest.mark.parametrize("words", [("get", "r", "k"), ("scan", "r"), ("history", "r", "k"), ("log",), ("compact",)])
def test_only_put_makes_a_store(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "mistyped.db"
    result = CliRunner().invoke(app, [*words, "--url", f"sqlite:///{path}", "--json"])
    assert result.exit_code == 4
    assert complaint(result)["code"] == "backend_unavailable"
    assert not path.exists()


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear store,\n" * 100)
    result = CliRunner().invoke(app, ["get", "r", "k", "--url", f"sqlite:///{path}", "--json"])
    assert result.exit_code == 4
    assert complaint(result)["code"] == "backend_corrupt"
    assert path.read_text() == "Dear store,\n" * 100


def test_percent_signs_in_a_url_are_decoded_as_the_library_does(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a%20b.db"
    assert CliRunner().invoke(app, ["put", "r", "k", "1", "--url", url]).exit_code == 0
    assert (tmp_path / "a b.db").exists()
    assert CliRunner().invoke(app, ["get", "r", "k", "--url", url]).stdout == "1\n"


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFoundError("x"), Exit.NEGATIVE),
        (UsageError("x"), Exit.USAGE),
        (UnsupportedError("x"), Exit.USAGE),
        (ValueRefusedError("x"), Exit.USAGE),
        (LimitExceededError("x"), Exit.USAGE),
        (ConflictError("x"), Exit.REFUSED),
        (RetriesExhaustedError("x"), Exit.REFUSED),
        (SnapshotTooOldError("x"), Exit.REFUSED),
        (IsolationError("x"), Exit.REFUSED),
        (BackendUnavailableError("x"), Exit.BACKEND),
        (BackendCorruptError("x"), Exit.BACKEND),
        (CommitUnknownError("x"), Exit.UNKNOWN),
    ],
)
def test_statuses(error: Any, status: Exit) -> None:
    assert status_of(error) == status


def test_a_lost_reply_is_settled(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`put` runs its transaction as programs do, so that a lost reply is looked up and not passed on."""
    from interlock.testing import sync as testing

    with testing.open_store(url) as store, lost_replies(store):
        monkeypatch.setattr(options.sync, "open", lambda url, **settings: Kept(store))
        run("put", "r", "k", "1")
    monkeypatch.undo()
    assert run("get", "r", "k").stdout == "1\n"


class Kept:
    """Stands for a store that somebody else closes."""

    def __init__(self, store: sync.Store) -> None:
        self.store = store

    def __enter__(self) -> sync.Store:
        return self.store

    def __exit__(self, *_: object) -> None:
        pass


def test_ctrl_c_is_quiet(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    run("put", "r", "k", "1")
    monkeypatch.setattr(sync.SharedResource, "entry", interrupt)
    for words in (("get", "r", "k"), ("get", "r", "k", "--json")):
        result = run(*words, status=130)
        assert (result.stdout, result.stderr) == ("", "")


# --- help -------------------------------------------------------------------------------------------------------------

COMMANDS = ["get", "put", "scan", "history", "log", "outcome", "compact"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_exit_statuses(run: Run, name: str) -> None:
    for flag in ("--help", "-h"):
        shown = run(name, flag).stdout
        assert f"interlock {name}" in shown.split("Options")[0].partition("Usage:")[2].partition("\n")[2]
        assert "Exit status" in shown
        assert "nobody can tell whether it was committed" in shown
        assert {"--url", "--json"} <= set(shown.split())


def test_every_command_takes_url_and_json(run: Run) -> None:
    listed = run("--help").stdout
    for name in [*COMMANDS, "demo"]:
        assert name in listed
        shown = run(name, "--help", env={"COLUMNS": "120"}).stdout
        assert "--url" in shown
        assert "--json" in shown


def test_version(run: Run) -> None:
    from interlock import __version__

    assert run("--version").stdout == f"interlock {__version__}\n"
