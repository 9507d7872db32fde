from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from cache.examiner import Examiner
from cache.policies.static import StaticPolicy
from gateway.policy_admin import policy_routes
from gateway.policy_watch import PolicyWatch
from logging_layer.policies import PolicyHistory
from orchestration.core.errors import InvalidRequest


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/lamina.db"


def a_client(history: PolicyHistory) -> httpx.AsyncClient:
    """Serve the routes as the application does."""
    app = FastAPI()
    app.include_router(policy_routes(history))

    @app.exception_handler(InvalidRequest)
    async def refuse(_request: Request, error: InvalidRequest) -> JSONResponse:
        return JSONResponse({"param": error.param, "message": error.message}, 400)

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_an_applied_policy_reaches_every_worker_and_its_version_is_known(url: str) -> None:
    history, workers = PolicyHistory(url), [Examiner(StaticPolicy(0.95)) for _ in range(3)]
    watches = [PolicyWatch(history, examiner) for examiner in workers]
    async with a_client(history) as client:
        body = {"threshold": 0.975, "by": "ann", "reason": "a sweep of today"}
        applied = (await client.put("/admin/cache/policy", json=body)).json()
        for watch in watches:
            await watch.look()
        known = (await client.get("/admin/cache/policy")).json()["policies"]

    assert {(examiner.policy.floor, examiner.applied) for examiner in workers} == {(0.975, applied["version"])}
    assert (known[0]["applied_by"], known[0]["reason"]) == ("ann", "a sweep of today")
    for watch in watches:
        await watch.aclose()
    await history.aclose()


async def test_the_word_goes_back_to_the_settings(url: str) -> None:
    examiner, history = Examiner(StaticPolicy(0.95)), PolicyHistory(url)
    watch = PolicyWatch(history, examiner)
    for policy in ("calibrated", "settings"):
        await history.apply(
            policy=policy, threshold=0.5, wrong_to_call_cost=25, applied_by="ann", reason="try", now=0.0
        )
        await watch.look()

    assert (examiner.policy.name, examiner.policy.floor, examiner.applied) == ("static", 0.95, 2)
    await watch.aclose()
    await history.aclose()


async def test_a_policy_that_this_version_does_not_know_changes_nothing(url: str) -> None:
    examiner, history = Examiner(StaticPolicy(0.95)), PolicyHistory(url)
    watch = PolicyWatch(history, examiner)
    await history.apply(policy="tea-leaves", threshold=0.1, wrong_to_call_cost=2, applied_by="x", reason="y", now=0.0)

    await watch.look()

    assert examiner.policy == StaticPolicy(0.95)
    await watch.aclose()
    await history.aclose()


async def test_a_database_that_is_away_leaves_in_force_what_is() -> None:
    examiner = Examiner(StaticPolicy(0.95))
    history = PolicyHistory("postgresql+psycopg2://nobody@127.0.0.1:9/none")
    watch = PolicyWatch(history, examiner)

    await watch.start()

    assert examiner.policy == StaticPolicy(0.95)
    await watch.aclose()
    await history.aclose()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"threshold": 95}, "threshold"),
        ({"threshold": None}, "threshold"),
        ({"policy": "dynamic"}, "policy"),
        ({"by": ""}, "by"),
        ({"reason": 3}, "reason"),
        ({"wrong_to_call_cost": 0.5}, "wrong_to_call_cost"),
    ],
)
async def test_what_is_wrong_is_named(url: str, change: dict[str, object], param: str) -> None:
    history = PolicyHistory(url)
    async with a_client(history) as client:
        body = {"threshold": 0.97, "by": "ann", "reason": "why", **change}
        reply = await client.put("/admin/cache/policy", json=body)

    assert (reply.status_code, reply.json()["param"]) == (400, param)
    assert await history.recent() == []
    await history.aclose()
