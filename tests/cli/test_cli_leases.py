"""The command ``leases``."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from interlock import sync
from interlock.cli.app import app


def run(url: str, *words: str) -> Result:
    result = CliRunner().invoke(app, ["leases", "--url", url, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_leases_are_listed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with sync.open(url, agent="ann") as store:
        store.resource("stock").run(lambda session: session.write("a", 1))
        assert run(url).stdout == ""
        with store.lease("report", ttl_seconds=60) as lease, store.lease("a\tname", agent="bob"):
            rows = [line.split("\t") for line in run(url).stdout.splitlines()]
            assert [(row[0], row[1], row[4]) for row in rows] == [('"a\\tname"', "bob", "-"), ("report", "ann", "-")]
            assert rows[1][2] == f"{lease.token.incarnation}-{lease.token.position}"
            assert 0 < float(rows[1][3]) <= 60
            first, second = (json.loads(line) for line in run(url, "--json").stdout.splitlines())
            assert (first["name"], second["name"], second["ttl_seconds"]) == ("a\tname", "report", 60.0)
            assert second["token"] == list(lease.token)
            assert (second["waiting"], len(second["holder"])) == ([], 32)
        assert run(url, "--json").stdout == ""
