"""Live calls: what a worker knows of them, how workers are asked together, and the feed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.admin_parts import AdminParts, Holder
from gateway.backends_view import merge_backends
from gateway.company import Company
from gateway.live import LiveCalls, layer_of, question_of
from gateway.parts import Access
from logging_layer.call_log import CallLog
from logging_layer.record import CallRecord
from orchestration.core import (
    CacheStatus,
    Call,
    Candidate,
    Delta,
    Event,
    Finish,
    Handler,
    Kind,
    Request,
    Secret,
    Start,
    Usage,
)
from orchestration.core.errors import Blocked, LimitReached
from orchestration.core.rpc import RpcServer
from tests.gateway.serving import Script, ask, chunks_of, parts_of, request_bytes, served


@dataclass
class NoSpool:
    def append(self, record: CallRecord) -> None:
        return


def call_of(number: int = 1, *, text: str = "Where is Paris?") -> Call:
    fields = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return Call(
        id=f"01CALL{number:04}",
        request_id="r",
        tenant="key_1",
        request=Request(kind=Kind.CHAT, dialect="openai.chat", fields=fields),
        received_at=time.time(),
        started=time.monotonic(),
    )


async def answer(call: Call, /) -> AsyncGenerator[Event, None]:
    call.notes.backend, call.notes.cost_usd = "fake", 0.002
    call.notes.cache.status, call.notes.cache.threshold = CacheStatus.MISS, 0.95
    call.notes.cache.candidates.append(Candidate("e", 0.71))
    yield Start("tiny-1", "fake")
    yield Delta(text="In France.")
    yield Finish(reasons={0: "stop"}, usage=Usage(5, 3))


async def run(live: LiveCalls, handler: Handler, call: Call, *, content: str = "full") -> None:
    log = CallLog(NoSpool(), content=content, worker="worker-0", watcher=live)
    async with aclosing(log(call, handler)) as events:
        async for _ in events:
            pass


async def test_a_call_is_shown_while_it_runs_and_after_its_end() -> None:
    live = LiveCalls("worker-0")
    script = Script((Start("tiny-1", "fake"), asyncio.Event().wait))
    call = call_of()
    running = asyncio.create_task(run(live, script, call))
    await script.begun.wait()

    during = live.view({})
    running.cancel()
    await asyncio.wait([running])
    after = live.view({})

    assert [shown["id"] for shown in during["running"]] == [call.id]
    assert (during["num_running"], during["ended"]) == (1, [])
    assert after["running"] == []
    assert [(shown["id"], shown["outcome"], shown["status"]) for shown in after["ended"]] == [
        (call.id, "client_left", 499)
    ]


async def test_an_ended_call_says_which_layer_answered_and_on_what_evidence() -> None:
    live = LiveCalls("worker-0")
    await run(live, answer, call_of())

    (shown,) = live.view({})["ended"]

    assert (shown["layer"], shown["backend"], shown["status"], shown["cost_usd"]) == ("backend", "fake", 200, 0.002)
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == (5, 3)
    assert (shown["cache"]["similarity"], shown["cache"]["threshold"]) == (0.71, 0.95)
    assert shown["question"] == "Where is Paris?"


@pytest.mark.parametrize("content", ["redacted", "none"])
async def test_no_text_is_kept_unless_content_is_logged_in_full(content: str) -> None:
    live = LiveCalls("worker-0")
    await run(live, answer, call_of(text="a secret thing"), content=content)

    assert b"secret" not in orjson.dumps(live.view({}))


async def test_only_what_was_not_seen_is_given_again_and_the_ring_is_bounded() -> None:
    live = LiveCalls("worker-0", max_ended=3)
    for number in range(5):
        await run(live, answer, call_of(number))
    first = live.view({})
    await run(live, answer, call_of(9))

    second = live.view({first["name"]: first["number"]})
    other_run = live.view({"worker-0/ffff": 6})

    assert [shown["id"] for shown in first["ended"]] == ["01CALL0002", "01CALL0003", "01CALL0004"]
    assert [shown["id"] for shown in second["ended"]] == ["01CALL0009"]
    assert len(other_run["ended"]) == 3


@pytest.mark.parametrize(
    ("outcome", "cache", "backend", "error", "layer"),
    [
        ("answered", "exact", None, None, "exact"),
        ("answered", "semantic", None, None, "semantic"),
        ("answered", "miss", "engine", None, "backend"),
        ("blocked", "bypass", None, Blocked.code, "checks"),
        ("error", "bypass", None, LimitReached.code, "limits"),
        ("error", "miss", None, "backend_unavailable", "none"),
    ],
)
def test_the_layer_that_answered(outcome: str, cache: str, backend: str | None, error: str | None, layer: str) -> None:
    assert layer_of(outcome=outcome, cache_status=cache, backend=backend, error_code=error) == layer


@pytest.mark.parametrize(
    ("request_fields", "question"),
    [
        ({"messages": [{"content": "old"}, {"content": " a \n b "}]}, "a b"),
        ({"messages": [{"content": [{"type": "text", "text": "seen"}, {"type": "image_url"}]}]}, "seen"),
        ({"prompt": "p"}, "p"),
        ({"input": ["first", "last"]}, "last"),
        ({"prompt": "x" * 500}, "x" * 159 + "…"),
        ({"messages": []}, None),
        ({"messages": [None]}, None),
        ({"input": [1, 2]}, None),
        (None, None),
    ],
)
def test_question_is_the_first_words_of_the_last_turn(request_fields: Any, question: str | None) -> None:
    assert question_of(request_fields) == question


async def test_every_worker_is_asked_and_one_that_is_gone_is_named(short_folder: Path) -> None:
    run_folder = short_folder / "company"
    run_folder.mkdir()
    servers = []
    for index in range(2):

        async def show(params: Any, _payload: bytes, index: int = index) -> tuple[Any, bytes]:
            return [index, params], b""

        server = RpcServer({"view": show})
        await server.start(run_folder / f"w{index}.sock")
        servers.append(server)
    company = Company(run_folder)

    both = await company.ask("view", {"a": 1})
    await servers[1].aclose()
    one = await company.ask("view")
    await company.aclose()
    await servers[0].aclose()

    assert both == {"worker-0": [0, {"a": 1}], "worker-1": [1, {"a": 1}]}
    assert one == {"worker-0": [0, {}], "worker-1": None}


def admin_of(*workers: LiveCalls, holder: Holder | None = None) -> AdminParts:
    async def ask_workers(_view: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {f"worker-{index}": worker.view(params["seen"]) for index, worker in enumerate(workers)}

    return AdminParts(ask_workers=ask_workers, holder_of=lambda _tenant: holder)


async def test_live_merges_all_workers_newest_first() -> None:
    one, two = LiveCalls("worker-0"), LiveCalls("worker-1")
    for number in range(4):
        await run((one, two)[number % 2], answer, call_of(number))
    holder = Holder(name="app", team="blue", last_four="abcd")

    async with served(parts_of(admin=admin_of(one, two, holder=holder))) as port:
        view = (await ask(port, "/admin/live", method="GET")).json

    assert [shown["id"] for shown in view["ended"]] == [f"01CALL000{number}" for number in (3, 2, 1, 0)]
    assert view["workers"] == {"worker-0": True, "worker-1": True}
    assert {shown["key"] for shown in view["ended"]} == {"app"}


async def test_feed_has_everything_first_then_only_news_and_ends_with_the_pipeline() -> None:
    live = LiveCalls("worker-0")
    await run(live, answer, call_of(1))
    parts = parts_of(admin=admin_of(live))
    async with served(parts) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes("/admin/live", method="GET", headers={"accept": "text/event-stream"}))
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        chunks = chunks_of(reader)
        async with asyncio.timeout(30):
            first = await anext(chunks)
            await run(live, answer, call_of(2))
            second = await anext(chunks)
            parts.ending.set()
            rest = [chunk async for chunk in chunks]
        writer.close()

    assert "content-type: text/event-stream" in head
    assert [_ids(chunk) for chunk in (first, second)] == [["01CALL0001"], ["01CALL0002"]]
    assert [chunk for chunk in rest if chunk] == []


async def test_feed_and_lists_want_the_master_key_where_there_is_one() -> None:
    access = Access(tenant_key=Secret("t"), master_key=Secret("sk-master"))
    async with served(parts_of(access=access)) as port:
        for path in ("/admin/live", "/admin/status", "/admin/calls", "/admin/spend", "/admin/cache/decisions"):
            without = await ask(port, path, method="GET")
            with_key = await ask(port, path, method="GET", headers={"authorization": "Bearer sk-master"})
            assert (path, without.status, with_key.status) == (path, 401, 200)


def test_backends_are_merged_over_workers() -> None:
    def seen(**changes: Any) -> dict[str, Any]:
        target = {
            **{"name": "b", "id": "b1", "weight": 1, "in_flight": 1, "attempts": 10, "failures": 1},
            **{"failures_in_a_row": 0, "first_content_ewma_ms": 10.0, "cooled_until": None, "cooled_for": None},
            **{"last_error": None, "last_error_at": None, "health": None, "health_checked_at": None},
        }
        return {"model": "m", "strategy": "latency", "backends": [{**target, **changes}]}

    bad = seen(attempts=30, first_content_ewma_ms=30.0, cooled_until=99.0, cooled_for="timeout", last_error="x")
    bad["backends"][0]["last_error_at"] = 50.0

    (model,) = merge_backends([[seen()], [bad], [seen(in_flight=0, first_content_ewma_ms=None)]])
    (target,) = model["backends"]

    assert (target["in_flight"], target["attempts"], target["failures"]) == (2, 50, 3)
    assert (target["cooled_until"], target["cooled_for"], target["last_error"]) == (99.0, "timeout", "x")
    assert target["first_content_ewma_ms"] == 25.0


def _ids(chunk: bytes) -> list[str]:
    event, data = chunk.decode().strip().split("\n")
    assert event == "event: calls"
    return [shown["id"] for shown in orjson.loads(data.removeprefix("data: "))["ended"]]
