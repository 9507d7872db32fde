from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from openai import AsyncOpenAI, RateLimitError

from gateway.limits.key_table import KeyHash, KeyTable, NewKey
from gateway.limits.rules import Limits
from gateway.settings import parse_settings
from gateway.supervisor.place import Sockets
from gateway.supervisor.state import StateFolder
from gateway.wired import Surroundings, Wired
from gateway.wiring import wire
from orchestration.core import Secret
from tests.gateway.serving import CHAT, ask, chat, served

SETTINGS = """
models:
  - {id: tiny, backends: [{type: echo}], price: {output_per_1m: 1000}, max_tokens: 100}
  - {id: large, backends: [{type: echo}]}
cache: {semantic: {enabled: false}}
limits: {teams: {lab: {parallel: 50}}}
"""


@contextlib.asynccontextmanager
async def wired_of(tmp_path: Path, valkey_url: str) -> AsyncIterator[tuple[Wired, KeyTable]]:
    """Wire a worker as it is on its own, with the table of its keys."""
    state = StateFolder(tmp_path / ".lamina")
    state.hold()
    state.ensure_tenant_key()
    settings = parse_settings(f"{SETTINGS}redis: {{url: '{valkey_url}'}}", environment={})
    place = Surroundings(
        state=state, sockets=Sockets(tmp_path), folder=tmp_path, worker="worker-0", is_draining=lambda: False
    )
    table = KeyTable(state.database_url, KeyHash(Secret(state.tenant_key_file.read_text())))
    wired = wire(settings, place)
    wired.parts = replace(wired.parts, metrics_folder=None)
    await wired.start()
    try:
        yield wired, table
    finally:
        await wired.aclose()
        table.close()
        state.release()


def made(table: KeyTable, **limits: float) -> str:
    new = NewKey("a", team="lab", models=["tiny"], limits=Limits(**limits))  # type: ignore[arg-type]  # named by tests
    return table.create(new, now=0.0)[1]


async def test_keys_models_and_limits_hold_through_the_whole_gateway(tmp_path: Path, valkey_url: str) -> None:
    async with (
        wired_of(tmp_path, valkey_url) as (wired, table),
        served(wired.parts) as port,
    ):
        before = await ask(port, CHAT, chat(), headers={"authorization": "Bearer anything"})
        secret = await asyncio.to_thread(made, table, rpm=3)
        await wired.book.refresh()
        key = {"authorization": f"Bearer {secret}"}
        replies = [await ask(port, CHAT, chat(temperature=0), headers=key) for _ in range(4)]
        stranger = await ask(port, CHAT, chat(), headers={"authorization": "Bearer anything"})
        elsewhere = await ask(port, CHAT, chat(model="large"), headers=key)
        await asyncio.to_thread(table.revoke, "a", now=0.0)
        await wired.book.refresh()
        revoked = await ask(port, CHAT, chat(), headers=key)

    assert [reply.status for reply in (before, *replies)] == [200, 200, 200, 200, 429]
    assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["2", "1", "0", "0"]
    assert [reply.headers["x-lamina-cache"] for reply in replies] == ["miss", "exact", "exact", "bypass"]
    assert (stranger.status, revoked.status) == (401, 401)
    assert elsewhere.status == 403
    assert "'large'" in elsewhere.error["message"]
    assert "x-ratelimit-limit-requests" not in before.headers


async def test_the_openai_client_does_not_repeat_what_a_budget_refused(tmp_path: Path, valkey_url: str) -> None:
    async with (
        wired_of(tmp_path, valkey_url) as (wired, table),
        served(wired.parts) as port,
    ):
        secret = await asyncio.to_thread(made, table, budget_usd=0.0001)
        await wired.book.refresh()
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key=secret, max_retries=2) as client:
            try:
                await client.chat.completions.create(**chat())
            except RateLimitError as exc:
                error = exc
        cheap = await ask(port, CHAT, chat(max_tokens=1, stream=True), headers={"authorization": f"Bearer {secret}"})

    assert error.code == "budget_exceeded"
    assert error.type == "insufficient_quota"
    assert error.request.headers["x-stainless-retry-count"] == "0"
    assert cheap.status == 429
