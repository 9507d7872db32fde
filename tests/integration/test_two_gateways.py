"""Two whole gateways on one Valkey and one Postgres: limits, cool-downs and answers are the same at both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest

from tests.integration.conftest import Served, two_gateways, until

RPM = 10
# An address that no machine has (RFC 5737): one on loopback would be each node's own.
CONFIG = """
limits: {{default: {{rpm: {rpm}, parallel: 50}}}}
cache: {{semantic: {{enabled: false}}}}
routing: {{health_interval_s: null}}
models:
  - {{id: m, backends: [{{type: echo}}]}}
  - id: shaky
    retries: 0
    backends:
      - {{type: openai_compatible, base_url: 'http://192.0.2.1:9/v1', timeout_s: {{connect: 1}}}}
      - {{type: echo}}
redis: {{url: '{redis}'}}
database: {{url: '{database}'}}
"""


@pytest.fixture
def pair(tmp_path: Path, valkey_url: str, postgres_server: str) -> Iterator[tuple[Served, Served]]:
    connection = psycopg2.connect(postgres_server)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS pair")
        cursor.execute("CREATE DATABASE pair")
    connection.close()
    database = postgres_server.replace("postgresql://", "postgresql+psycopg2://", 1).replace("@/postgres", "@/pair", 1)
    with two_gateways(tmp_path, CONFIG.format(rpm=RPM, redis=valkey_url, database=database)) as pair:
        yield pair


def ask(served: Served, content: str, *, key: str, model: str = "m") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


@pytest.mark.long
def test_two_gateways_on_one_store_and_one_database_are_one(pair: tuple[Served, Served]) -> None:
    one, other = pair

    # Limits: exactly as many calls as one caller may make, whichever gateway they come to.
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(ask, pair[turn % 2], f"call {turn}", key="limited") for turn in range(4 * RPM)]
        statuses = [each.result().status_code for each in asked]
    assert (statuses.count(200), statuses.count(429)) == (RPM, 3 * RPM)

    # Metrics: each counts what came to it.
    assert [each.num_chats() for each in pair] == [2 * RPM, 2 * RPM]

    # Answers: what was bought at one serves at the other, and to that caller alone.
    bought, hit = ask(one, "What is it?", key="a"), ask(other, "What is it?", key="a")
    stranger = ask(other, "What is it?", key="b")
    assert [reply.headers["x-lamina-cache"] for reply in (bought, hit, stranger)] == ["miss", "exact", "miss"]
    assert hit.json()["choices"] == bought.json()["choices"]

    # Cool-downs: what one sees of a dead upstream the other knows, without having asked it.
    turns = itertools.count()
    seen: dict[str, Any] = until(lambda: _is_heard(one, other, f"turn {next(turns)}"))
    assert seen["failures"] == 0

    # Records: a call's is read at both, and the page of one shows what the other answers.
    id = bought.headers["x-lamina-call"]
    records = [until(partial(_record, at, id)) for at in pair]
    assert [record["outcome"] for record in records] == ["answered", "answered"]
    until(lambda: id in {call["id"] for call in _get(other, "/admin/live")["ended"]})


def _get(served: Served, path: str) -> dict[str, Any]:
    view: dict[str, Any] = httpx.get(f"{served.url}{path}", timeout=30).json()
    return view


def _record(served: Served, id: str) -> dict[str, Any] | None:
    reply = httpx.get(f"{served.url}/admin/calls/{id}", timeout=30)
    return reply.json() if reply.status_code == 200 else None


def _is_heard(one: Served, other: Served, turn: str) -> dict[str, Any] | None:
    """Have one gateway find its upstream dead: a first cool-down may be over before a busy machine has told of it."""
    assert ask(one, turn, key=turn, model="shaky").headers["x-lamina-backend"] == "echo"
    return _cooled(other)


def _cooled(served: Served) -> dict[str, Any] | None:
    models = _get(served, "/admin/backends")["models"]
    backend: dict[str, Any] = next(model for model in models if model["model"] == "shaky")["backends"][0]
    return backend if backend["cooled_until"] is not None else None
