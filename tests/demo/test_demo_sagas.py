"""The demonstration's second part: the judge, the outside world, and small runs with real processes that are killed."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import interlock.sync
from interlock.demo import command, saga_main
from interlock.demo.coordinator import Purchase
from interlock.demo.outside import Fact, World, read_log
from interlock.demo.saga_main import PLAIN, SAGA, SagaColumn, SagaOptions, SagaResult, run_saga_demo
from interlock.demo.saga_report import render_sagas
from interlock.demo.saga_truth import SagaVerdict, judge_sagas
from interlock.demo.supervisor import DemoError
from interlock.errors import UsageError
from redis_servers import redis_server
from servers import postgresql_server

OPENING = {"MUG": 10}
ORDERS = {"o-1": Purchase("o-1", "MUG", 2, 500)}
DONE = (Fact("charge", "o-1", "c1", 500), Fact("ship", "o-1", "s1"), Fact("mail", "o-1", "m1"))
UNDONE = (
    Fact("charge", "o-2", "c2", 700),
    Fact("ship", "o-2", "s2"),
    Fact("recall", "o-2", "s2"),
    Fact("refund", "o-2", "c2", 700),
)


def verdict(*log: Fact, left: int = 8, acknowledged: tuple[str, ...] = ("o-1",)) -> SagaVerdict:
    return judge_sagas(OPENING, {"MUG": left}, ORDERS, log, acknowledged)


def test_a_whole_order_and_one_that_was_undone_are_right() -> None:
    assert verdict(*DONE, *UNDONE) == SagaVerdict()


@pytest.mark.parametrize(
    ("log", "wrong"),
    [
        ((*DONE, UNDONE[0]), SagaVerdict(charges_without_order=1)),
        (DONE[1:], SagaVerdict(orders_without_charge=1)),
        ((*DONE, Fact("refund", "o-1", "c1", 500)), SagaVerdict(orders_without_charge=1)),
        ((*DONE, Fact("charge", "o-1", "c3", 500)), SagaVerdict(double_charges=1)),
        ((Fact("charge", "o-1", "c1", 501), *DONE[1:]), SagaVerdict(wrong_amounts=1)),
        ((*DONE, *UNDONE, UNDONE[3]), SagaVerdict(wrong_refunds=1)),
        ((*DONE, *UNDONE[:3], Fact("refund", "o-2", "c2", 699)), SagaVerdict(wrong_refunds=1)),
        ((*DONE, Fact("refund", "o-9", "c9", 1)), SagaVerdict(wrong_refunds=1)),
        ((*DONE, Fact("mail", "o-2", "m2")), SagaVerdict(mails_for_cancelled=1)),
        (DONE[:2], SagaVerdict(orders_without_mail=1)),
        ((*DONE, Fact("mail", "o-1", "m2")), SagaVerdict(mails_twice=1)),
        ((*DONE, UNDONE[1]), SagaVerdict(shipments_without_order=1)),
        ((DONE[0], DONE[2]), SagaVerdict(orders_not_shipped_once=1)),
    ],
)
def test_each_kind_of_wrong_is_counted_as_what_it_is(log: tuple[Fact, ...], wrong: SagaVerdict) -> None:
    assert verdict(*log) == wrong
    assert not wrong.clean


def test_stock_and_acknowledgements_are_compared_too() -> None:
    assert verdict(*DONE, left=7) == SagaVerdict(stock_error_units=1)
    assert verdict(*DONE, acknowledged=("o-1", "o-3")) == SagaVerdict(acknowledged_lost=1)


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world that declines nothing and loses no answer."""
    for name in ("DECLINED", "REFUSED", "LOST_ONCE", "LOST_TWICE"):
        monkeypatch.setattr(f"interlock.demo.outside.{name}", 0.0)


def test_a_key_is_one_act_and_a_void_key_none(tmp_path: Path, kind: None) -> None:
    world = World(tmp_path / "log", 0)
    charge = {"verb": "charge", "order": "o-1", "cents": 5, "key": "k"}
    assert world.answer({"verb": "find", "key": "k"}) == {"result": None}
    first = world.answer(charge)
    assert first == world.answer(charge) == world.answer({"verb": "void", "key": "k"})
    assert world.answer({"verb": "void", "key": "late"}) == {"result": None}
    assert world.answer({**charge, "key": "late"}) == {"refused": "the key is void"}
    assert [fact.kind for fact in read_log(tmp_path / "log")] == ["charge"]
    assert world.answer({**charge, "key": ""}) != world.answer({**charge, "key": ""}), "no key: an act each"


def test_a_lost_answer_was_an_act_and_comes_when_asked_again(
    tmp_path: Path, kind: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.demo.outside.LOST_ONCE", 1.0)
    world = World(tmp_path / "log", 0)
    charge = {"verb": "charge", "order": "o-1", "cents": 5, "key": "k"}
    assert world.answer(charge) is None
    assert read_log(tmp_path / "log") == (Fact("charge", "o-1", "charge-1", 5),)
    assert world.answer(charge) == {"result": "charge-1"}


@pytest.mark.usefixtures("copies")
def test_killed_coordinators_leave_nothing_behind_with_sagas_and_much_without() -> None:
    seen: dict[str, list[int]] = {}
    options = SagaOptions(orders=40, processes=2, kills=4, limit_seconds=200)
    result = run_saga_demo(options, lambda name, done, total: seen.setdefault(name, []).append(done))
    plain, sagas = result.columns
    assert (plain.name, sagas.name) == (PLAIN, SAGA)
    assert sagas.verdict == SagaVerdict()
    assert sagas.clean
    assert result.ok
    assert sagas.coordinators_killed > 0
    assert 0 < sagas.orders < 40
    assert not plain.verdict.clean
    assert plain.verdict.double_charges > 0
    assert plain.verdict.mails_for_cancelled > 0
    assert all(counts == sorted(counts) and counts[-1] == 40 for counts in seen.values())


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("start", [postgresql_server, redis_server])
def test_on_a_server_the_sagas_of_others_are_left_alone(start: Callable[[], Any]) -> None:
    with start() as server, interlock.sync.open(server.url, agent="somebody") as store:
        with pytest.raises(LookupError), store.saga("order", id="o-1", lease_seconds=1.0) as saga:
            saga.step(len, "of somebody else")
            saga._frame.course.recorder.journal.lost = True  # type: ignore[union-attr]  # as if it had died here
            raise LookupError
        result = run_saga_demo(SagaOptions(server.url, orders=16, processes=2, kills=3, limit_seconds=200))
        plain, sagas = result.columns
        assert sagas.clean
        assert sagas.coordinators_killed > 0
        assert sagas.orders > 0
        assert plain.orders > 0
        while not (undone := store.recover(older_than_seconds=0).undone):
            pass  # its lease may not be over yet
        assert undone == ("order/o-1",)


def test_a_store_that_processes_cannot_share_is_refused() -> None:
    with pytest.raises(DemoError, match="share"):
        run_saga_demo(SagaOptions("memory://shop"))


def test_what_takes_too_long_is_broken_off() -> None:
    with pytest.raises(DemoError, match="not done in time"):
        run_saga_demo(SagaOptions(orders=2, processes=1, kills=0, limit_seconds=0.001))


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ({"processes": 0}, {"kills": 101}, {"orders": 0, "kills": 0}, {"kills": -1}):
        with pytest.raises(UsageError):
            SagaOptions(**wrong)


def column(name: str, safe: bool, found: SagaVerdict, **other: Any) -> SagaColumn:
    facts = {"orders": 1, "coordinators_killed": 1, "broken": 0, "undone": 1, "finished": 0, "dead_letters": 0}
    return SagaColumn(name=name, safe=safe, verdict=found, seconds=1.0, **{**facts, **other})


WRONG = SagaVerdict(double_charges=1)
RIGHT = SagaResult(1, 1, (column(PLAIN, False, WRONG), column(SAGA, True, SagaVerdict())))


def with_sagas(**other: Any) -> SagaResult:
    return replace(RIGHT, columns=(RIGHT.columns[0], replace(RIGHT.columns[1], **other)))


def test_the_command_ends_with_1_if_a_saga_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(command.demo)
    for result, status in ((RIGHT, 0), (with_sagas(verdict=WRONG), 1), (with_sagas(dead_letters=1), 1)):
        monkeypatch.setattr(command, "run_saga_demo", lambda options, show, result=result: result)
        assert CliRunner().invoke(app, ["--sagas"]).exit_code == status
        report = json.loads(CliRunner().invoke(app, ["--sagas", "--json"]).stdout)
        assert report["ok"] is report["sagas"]["ok"] is (status == 0)
        assert "rows" not in report


def test_the_report_says_what_it_shows_and_what_it_does_not() -> None:
    def text(result: SagaResult) -> str:
        console = Console(width=120, file=io.StringIO())
        with console.capture() as captured:
            console.print(render_sagas(result))
        return captured.get()

    assert "double charges" in text(RIGHT)
    assert "wrong" not in text(RIGHT).splitlines()[-1]
    assert "got something wrong" in text(with_sagas(verdict=WRONG))
    clean = replace(RIGHT, columns=(column(PLAIN, False, SagaVerdict()), column(SAGA, True, SagaVerdict(), undone=0)))
    assert "proves nothing" in text(clean)
    assert "in the middle of an order" in text(clean)


def test_the_orders_of_a_seed_are_the_same_each_time() -> None:
    options = SagaOptions(orders=5, kills=0)
    assert saga_main.purchases_of(options) == saga_main.purchases_of(options)
    assert saga_main.purchases_of(options) != saga_main.purchases_of(replace(options, seed=1))
