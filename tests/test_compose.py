"""``docker-compose.yml`` gives servers that the backends accept: its settings, on servers of our own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from interlock import sync
from redis_servers import redis_server
from servers import postgresql_server

ROOT = Path(__file__).parent.parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]


def test_each_service_listens_here_only_and_keeps_its_data() -> None:
    assert SERVICES.keys() == {"postgresql", "valkey"}
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert len(service["volumes"]) == 1
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"
        assert ":latest" not in service["image"]
        assert ":" in service["image"]


def test_the_settings_of_postgresql_are_accepted() -> None:
    command = SERVICES["postgresql"]["command"]
    settings = dict(word.split("=") for flag, word in zip(command[1::2], command[2::2], strict=True) if flag == "-c")
    assert settings == {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
    with postgresql_server(settings) as server, sync.open(server.url, agent="tester", durability="fsync") as store:
        store.resource("stock").run(lambda session: session.add("n", 1))


def test_the_settings_of_valkey_are_accepted() -> None:
    words = SERVICES["valkey"]["command"][1:]
    settings = {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(*[iter(words)] * 2, strict=True)
    }
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory_policy"] == "noeviction"
    with redis_server(**settings) as server:
        url = server.url.replace("redis://", f"redis://:{settings['requirepass']}@")
        with sync.open(url, agent="tester", durability="fsync") as store:
            store.resource("stock").run(lambda session: session.add("n", 1))


def test_the_urls_in_its_comments_are_those_of_its_services() -> None:
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    environment = SERVICES["postgresql"]["environment"]
    user, password, database = (environment[f"POSTGRES_{name}"] for name in ("USER", "PASSWORD", "DB"))
    assert re.findall(r"--url (\S+)", text) == [
        f"postgresql://{user}:{password}@{SERVICES['postgresql']['ports'][0].rpartition(':')[0]}/{database}",
        f"redis://:interlock@{SERVICES['valkey']['ports'][0].rpartition(':')[0]}",
    ]
