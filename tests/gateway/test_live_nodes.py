"""Two gateways on one Redis: each one's page shows the other's calls."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from gateway.admin_parts import AdminParts
from gateway.live import LiveCalls
from gateway.live_nodes import LiveNodes
from tests.gateway.serving import ask, parts_of, served
from tests.gateway.test_live import admin_of, answer, call_of, run


async def shown_by(nodes: LiveNodes) -> list[dict[str, Any]]:
    """Ask until another node shows something."""
    async with asyncio.timeout(60):
        while True:
            if found := await nodes.others():
                return found


async def num_gets(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return int(stats.get("cmdstat_get", {}).get("calls", 0))


async def test_a_node_shows_its_calls_to_another_one_that_watches(valkey_url: str) -> None:
    here, there = LiveCalls("worker-0"), LiveCalls("worker-0")
    ours = LiveNodes(valkey_url, live=here, node="here", worker="worker-0", beat_s=0.01)
    theirs = LiveNodes(valkey_url, live=there, node="there", worker="worker-0", beat_s=0.01)
    await run(here, answer, call_of(1))
    await run(there, answer, call_of(2))
    ours.start()
    theirs.start()

    (seen,) = await shown_by(ours)
    own = admin_of(here)
    admin = AdminParts(ask_workers=own.ask_workers, holder_of=own.holder_of, nodes=ours.others)
    async with served(parts_of(admin=admin)) as port:
        view = (await ask(port, "/admin/live", method="GET")).json
    await ours.aclose()
    await theirs.aclose()

    assert not [task for task in asyncio.all_tasks() if task.get_name() == "live-nodes"]
    assert [call["id"] for call in seen["ended"]] == ["01CALL0002"]
    assert [(call["id"], call["worker"]) for call in view["ended"]] == [
        ("01CALL0002", "worker-0 on there"),
        ("01CALL0001", "worker-0"),
    ]


async def test_nothing_is_put_into_redis_while_nobody_watches(valkey_url: str) -> None:
    live = LiveCalls("worker-0")
    await run(live, answer, call_of(1))
    nodes = LiveNodes(valkey_url, live=live, node="here", worker="worker-0", beat_s=0.001)
    redis = Redis.from_url(valkey_url, protocol=2)
    before = await num_gets(redis)
    nodes.start()
    async with asyncio.timeout(60):
        while await num_gets(redis) < before + 3:
            pass
    keys = await redis.keys("*")
    await nodes.aclose()
    await redis.aclose()

    assert keys == []


async def test_without_redis_there_are_no_other_nodes(tmp_path: object) -> None:
    nodes = LiveNodes(f"unix://{tmp_path}/none", live=None, node="here", worker="worker-0", beat_s=0.001)
    nodes.start()

    assert await nodes.others() == []
    await nodes.aclose()
