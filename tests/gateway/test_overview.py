"""The lists and sums of the admin side, over a real database."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.admin_parts import AdminParts, Holder
from gateway.facts import in_use, processes
from gateway.settings import Settings
from logging_layer.listing import CallListing
from logging_layer.sink import Shipped
from logging_layer.sql_sink import SqlSink
from orchestration.core import CacheStatus
from tests.gateway.serving import ask, parts_of, served
from tests.logging_layer.samples import make_record


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[AdminParts]:
    """Give an admin side over three calls, two of them of one key."""
    url = f"sqlite:///{tmp_path}/lamina.db"
    base = await make_record()
    now = time.time()
    cache = replace(base.cache, status=CacheStatus.SEMANTIC, similarity=0.97, threshold=0.95, reason="served")
    records = [
        replace(base, id="01A", tenant="key_1", requested_model="small", cost_usd=0.5, received_at=now - 7200),
        replace(base, id="01B", tenant="other", requested_model="large", cost_usd=2.0, received_at=now - 60),
        replace(base, id="01C", tenant="key_1", requested_model="small", cost_usd=0.0, received_at=now, cache=cache),
    ]
    sink = SqlSink(url)
    await sink.send([Shipped(record.to_json()) for record in records])
    await sink.aclose()
    listing = CallListing(url)
    holder = Holder(name="app", team="blue", last_four="wxyz")
    yield AdminParts(
        listing=listing,
        holder_of=lambda tenant: holder if tenant == "key_1" else None,
        facts=lambda: {**in_use(Settings(), node="n", worker="worker-0"), **processes({"mlflow": "http://m:5000"})},
    )
    await listing.aclose()


async def test_calls_are_listed_with_the_layer_that_answered_and_whose_they_are(admin: AdminParts) -> None:
    async with served(parts_of(admin=admin)) as port:
        everything = (await ask(port, "/admin/calls", method="GET")).json["calls"]
        page = (await ask(port, "/admin/calls?limit=1&before=01C", method="GET")).json["calls"]
        of_model = (await ask(port, "/admin/calls?model=large", method="GET")).json["calls"]

    assert [(row["id"], row["layer"], row["key"], row["team"]) for row in everything] == [
        ("01C", "semantic", "app (…wxyz)", "blue"),
        ("01B", "backend", None, None),
        ("01A", "backend", "app (…wxyz)", "blue"),
    ]
    assert everything[0]["question"] == "What is the capital of France?"
    assert [row["id"] for row in page] == ["01B"]
    assert [row["id"] for row in of_model] == ["01B"]


async def test_cache_decisions_show_the_similarity_against_the_bar(admin: AdminParts) -> None:
    async with served(parts_of(admin=admin)) as port:
        answer = (await ask(port, "/admin/cache/decisions", method="GET")).json

    decision, missed, _ = answer["decisions"]
    assert (missed["id"], missed["cache"]["similarity"], missed["cache"]["threshold"]) == ("01B", 0.71, 0.95)
    assert (decision["id"], decision["cache"]["similarity"], decision["cache"]["threshold"]) == ("01C", 0.97, 0.95)
    assert {row["cache_status"]: row["calls"] for row in answer["by_status"]} == {"miss": 2, "semantic": 1}


async def test_spend_is_by_key_team_and_model_in_a_window(admin: AdminParts) -> None:
    async with served(parts_of(admin=admin)) as port:
        day = (await ask(port, "/admin/spend", method="GET")).json
        hour = (await ask(port, "/admin/spend?window=1h", method="GET")).json

    assert [(row["key"], row["tenant"], row["cost_usd"]) for row in day["by_key"]] == [
        (None, "other", 2.0),
        ("app (…wxyz)", "key_1", 0.5),
    ]
    assert day["by_team"] == [{"team": "blue", "calls": 2, "cost_usd": 0.5}]
    assert [(row["requested_model"], row["cost_usd"]) for row in hour["by_model"]] == [("large", 2.0), ("small", 0.0)]


@pytest.mark.parametrize("path", ["/admin/spend?window=2d", "/admin/calls?limit=0", "/admin/calls?limit=x"])
async def test_a_wrong_question_is_a_400_that_names_the_field(admin: AdminParts, path: str) -> None:
    async with served(parts_of(admin=admin)) as port:
        reply = await ask(port, path, method="GET")

    assert reply.status == 400
    assert reply.error["param"] in path


async def test_a_database_that_is_away_is_a_503() -> None:
    listing = CallListing("postgresql+psycopg2://u:secret@127.0.0.1:1/none")
    async with served(parts_of(admin=AdminParts(listing=listing))) as port:
        lists = await ask(port, "/admin/calls", method="GET")
        sums = await ask(port, "/admin/spend", method="GET")
    await listing.aclose()

    assert (lists.status, sums.status) == (503, 503)
    assert b"secret" not in lists.body + sums.body


async def test_status_says_what_is_in_use_and_how_the_parts_are(admin: AdminParts) -> None:
    async def down() -> str | None:
        return "does not answer"

    async with served(parts_of(admin=admin, health={"engine": down})) as port:
        status = (await ask(port, "/admin/status", method="GET")).json

    assert status["ready"] == {"status": "not ready", "parts": {"engine": "does not answer"}}
    assert status["cache"]["semantic"]["threshold"] == 0.95
    assert status["mlflow"] == "http://m:5000"
    assert "call_log" in status["layers"]


def test_mlflow_is_a_link_only_where_a_browser_can_go() -> None:
    assert processes({"mlflow": "sqlite:///x"})["mlflow"] is None
    assert processes({"mlflow": "javascript:alert(1)"})["mlflow"] is None
    assert processes({})["mlflow"] is None
