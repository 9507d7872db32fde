from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backends.local.link import HistogramCounts, Measures
from gateway.metrics import Metrics
from gateway.parts import Access
from logging_layer.stages import timed, timed_handler
from orchestration.core import Call, Delta, Event, Finish, Handler, Secret, Start, Usage, compose
from orchestration.core.errors import Overloaded
from tests.gateway.serving import CHAT, Script, ask, chat, client_of, parts_of, served


async def test_models_are_listed_for_the_sdk() -> None:
    async with client_of(parts_of()) as client:
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("tiny")
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("unknown")

    assert [(model.id, model.object, model.owned_by) for model in listed] == [
        ("tiny", "model", "lamina"),
        ("org/embedder", "model", "lamina"),
    ]
    assert (one.id, one.created) == ("tiny", 1)


async def test_model_id_may_hold_slashes() -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, "/v1/models/org/embedder", method="GET")

    assert reply.json["id"] == "org/embedder"


async def test_unknown_model_is_the_handlers_to_refuse_and_counted_as_other() -> None:
    async with served(parts_of()) as port:
        await ask(port, CHAT, chat(model="no-such-model"))
        numbers = await _numbers(port)

    labels = [labels for name, labels, _ in numbers if name == "lamina_requests_total" and labels["endpoint"] == CHAT]
    assert [found["model"] for found in labels] == ["other"]


async def test_metrics_hold_each_layers_share_of_every_eighth_call() -> None:
    async def slow(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        await asyncio.sleep(0.03)
        async with aclosing(next(call)) as events:
            async for event in events:
                yield event

    handler = compose([timed("slow", slow)], timed_handler("router", Script()))
    async with served(parts_of(handler)) as port:
        for _ in range(9):
            await ask(port, CHAT, chat())
        numbers = {(name, *sorted(labels.values())): value for name, labels, value in await _numbers(port)}

    assert numbers["lamina_stage_seconds_count", "slow"] == 2
    assert numbers["lamina_stage_seconds_sum", "slow"] >= 0.06
    assert numbers["lamina_stage_seconds_count", "router"] == 2


async def test_health_live_is_all_it_takes_to_live() -> None:
    async with served(parts_of(health={"engine": _down}, is_draining=lambda: True)) as port:
        reply = await ask(port, "/health/live", method="GET")

    assert (reply.status, reply.json) == (200, {"status": "live"})


async def test_ready_when_every_part_answers() -> None:
    async with served(parts_of(health={"engine": _fine, "cache": _fine})) as port:
        reply = await ask(port, "/health/ready", method="GET")

    assert (reply.status, reply.json) == (200, {"status": "ready", "parts": {"engine": "ok", "cache": "ok"}})


async def test_not_ready_says_which_part_is_wrong() -> None:
    checks = {"engine": _down, "cache": _fine, "log": _broken}
    async with served(parts_of(health=checks)) as port:
        reply = await ask(port, "/health/ready", method="GET")

    assert reply.status == 503
    assert reply.json == {
        "status": "not ready",
        "parts": {"engine": "does not answer", "cache": "ok", "log": "OSError: no socket"},
    }


async def test_draining_is_not_ready() -> None:
    async with served(parts_of(health={"engine": _fine}, is_draining=lambda: True)) as port:
        reply = await ask(port, "/health/ready", method="GET")

    assert (reply.status, reply.json["status"]) == (503, "draining")


async def test_metrics_count_calls_by_how_they_ended() -> None:
    steps = (Start("tiny-1", "fake"), Delta(text="Hi"), Finish(usage=Usage(5, 2, cached_tokens=3)))
    async with served(parts_of(Script(steps))) as port:
        await ask(port, CHAT, chat())
        await ask(port, CHAT, chat(stream=True))
        await ask(port, CHAT, chat(n=0))
        numbers = {(name, *sorted(labels.values())): value for name, labels, value in await _numbers(port)}

    assert numbers["lamina_requests_total", "/v1/chat/completions", "200", "bypass", "tiny"] == 2
    assert numbers["lamina_requests_total", "", "/v1/chat/completions", "400", "bypass"] == 1
    assert numbers["lamina_requests_in_flight", "/v1/chat/completions"] == 0
    assert numbers["lamina_tokens_total", "completion", "tiny"] == 4
    assert numbers["lamina_tokens_total", "cached_prompt", "tiny"] == 6
    assert numbers["lamina_overhead_seconds_count", "/v1/chat/completions", "bypass"] == 2
    assert numbers["lamina_time_to_first_event_seconds_count", "/v1/chat/completions", "bypass"] == 2
    assert numbers["lamina_request_duration_seconds_count", "/v1/chat/completions", "bypass"] == 3


async def test_metrics_tell_broken_streams_and_leavers_from_good_calls() -> None:
    script = Script((Start("tiny-1", "fake"), Delta(text="Hi"), Overloaded("late")))
    waiting = Script((asyncio.Event().wait,))
    async with served(parts_of(script)) as port:
        await ask(port, CHAT, chat(stream=True))
        broken = await _numbers(port)
    async with served(parts_of(waiting)) as port:
        asking = asyncio.create_task(ask(port, CHAT, chat()))
        await waiting.begun.wait()
        running = await _numbers(port)
        asking.cancel()
        await waiting.closed.wait()
        left = await _numbers(port)

    assert "429" in _statuses(broken)
    assert ("lamina_requests_in_flight", {"endpoint": CHAT}, 1.0) in running
    assert ("lamina_requests_in_flight", {"endpoint": CHAT}, 0.0) in left
    assert "499" in _statuses(left)


MEASURES = Measures(
    model="tiny-1",
    numbers={"running": 3, "waiting": 1, "kv_usage": 0.25, "preemptions": 7, "pages_used": 40, "finished_stop": 5},
    histograms={"time_to_first_token_seconds": HistogramCounts((0.5, 1.0), (1, 2, 4), 7.5)},
)


async def measured() -> Measures:
    """Give what an engine measured."""
    return MEASURES


async def test_metrics_carry_the_engines_numbers_under_both_names() -> None:
    async with served(parts_of(engine=measured)) as port:
        numbers = {name: value for name, _, value in await _numbers(port)}

    assert numbers["vllm:num_requests_running"] == 3
    assert numbers["vllm:num_requests_waiting"] == 1
    assert numbers["vllm:kv_cache_usage_perc"] == 0.25
    assert numbers["vllm:num_preemptions_total"] == 7
    assert numbers["lamina_engine_pages_used"] == 40
    assert numbers["lamina_part_up"] == 1


async def test_metrics_have_the_engine_s_histograms_with_vllm_s_labels() -> None:
    async with served(parts_of(engine=measured)) as port:
        numbers = await _numbers(port)

    labels = {"model_name": "tiny-1", "engine": "0"}
    for bound, count in (("0.5", 1.0), ("1.0", 2.0), ("+Inf", 4.0)):
        assert ("vllm:time_to_first_token_seconds_bucket", {**labels, "le": bound}, count) in numbers
    assert ("vllm:time_to_first_token_seconds_count", labels, 4.0) in numbers
    assert ("vllm:time_to_first_token_seconds_sum", labels, 7.5) in numbers
    assert ("vllm:request_success_total", {**labels, "finished_reason": "stop"}, 5.0) in numbers


async def test_one_engine_counts_once_however_many_workers_there_are() -> None:
    async with served(parts_of(engine=measured)) as one, served(parts_of(engine=measured)) as other:
        told = [
            {(name, str(labels)): value for name, labels, value in await _numbers(port) if name.startswith("vllm:")}
            for port in (one, other)
        ]

    assert told[0] == told[1]
    assert told[0]["vllm:num_preemptions_total", str({"engine": "0", "model_name": "tiny-1"})] == 7


async def test_metrics_survive_an_engine_that_is_down() -> None:
    async def silent() -> Measures:
        raise OSError("no socket")

    async with served(parts_of(engine=silent)) as port:
        numbers = await _numbers(port)

    assert ("lamina_part_up", {"part": "engine"}, 0.0) in numbers
    assert not any(name.startswith("vllm:") for name, _, _ in numbers)


async def test_metrics_survive_a_part_that_is_down() -> None:
    async def engine() -> dict[str, float]:
        raise OSError("no socket")

    async with served(parts_of(stats={"engine": engine})) as port:
        numbers = await _numbers(port)

    assert ("lamina_part_up", {"part": "engine"}, 0.0) in numbers


def test_metrics_of_several_processes_are_merged(tmp_path: Path) -> None:
    counting = (
        "import asyncio\nfrom pathlib import Path\n"
        "from gateway.exchange import Exchange\nfrom gateway.metrics import Metrics\n"
        f"metrics = Metrics(['tiny'], folder=Path({str(tmp_path)!r}))\n"
        "async def count() -> None:\n"
        "    exchange = Exchange({'headers': []}, None, None)\n    exchange.status = 200\n"
        "    metrics.observe(exchange)\n    metrics.tell()\n"
        "asyncio.run(count())\nprint(metrics.render([]).decode())"
    )
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    pages = [subprocess.check_output([sys.executable, "-c", counting], env=environment, text=True) for _ in range(2)]

    line = 'lamina_requests_total{cache="bypass",endpoint="other",model="",status="200"}'
    assert f"{line} 1.0" in pages[0]
    assert f"{line} 2.0" in pages[1]


def test_metrics_folder_without_its_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="PROMETHEUS_MULTIPROC_DIR"):
        Metrics([], folder=tmp_path)


async def test_admin_gives_a_calls_record() -> None:
    class Calls:
        async def get(self, call_id: str) -> dict[str, Any] | None:
            return {"id": call_id, "cache": {"status": "exact"}} if call_id == "01CALL" else None

    async with served(parts_of(calls=Calls())) as port:
        known = await ask(port, "/admin/calls/01CALL", method="GET")
        unknown = await ask(port, "/admin/calls/01NONE", method="GET")

    assert (known.status, known.json) == (200, {"id": "01CALL", "cache": {"status": "exact"}})
    assert (unknown.status, unknown.error["code"]) == (404, "call_not_found")


async def test_fault_behind_fastapi_is_a_500_in_openais_shape(caplog: pytest.LogCaptureFixture) -> None:
    class Calls:
        async def get(self, call_id: str) -> dict[str, Any] | None:
            raise RuntimeError("secret detail")

    async with served(parts_of(calls=Calls())) as port:
        reply = await ask(port, "/admin/calls/01CALL", method="GET")

    assert (reply.status, reply.error["type"]) == (500, "server_error")
    assert reply.headers["x-lamina-call"].upper() in reply.error["message"]
    assert b"secret detail" not in reply.body
    assert [record.exc_info is not None for record in caplog.records if "call.failed" in record.message] == [True]


async def test_documents_describe_the_hot_endpoints() -> None:
    async with served(parts_of()) as port:
        document = (await ask(port, "/openapi.json", method="GET")).json
        page = await ask(port, "/docs", method="GET")

    assert {CHAT, "/v1/embeddings", "/v1/models/{model}", "/metrics", "/admin/calls/{call_id}"} <= set(
        document["paths"]
    )
    assert page.status == 200
    text = page.body.decode()
    assert all(f" {path}</code>" in text for path in document["paths"])
    assert all(f'id="{name}"' in text for name in document["components"]["schemas"])
    named = set(re.findall(r'href="#([^"]+)"', text))
    assert named
    assert named <= set(document["components"]["schemas"])


async def test_no_page_lets_others_scripts_run_where_the_admin_side_is() -> None:
    async with served(parts_of()) as port:
        pages = [await ask(port, path, method="GET") for path in ("/docs", "/")]
        redoc = await ask(port, "/redoc", method="GET")

    for page in pages:
        assert page.status == 200
        assert not re.findall(rb"""(?:src|href)=["'](?:https?:)?//""", page.body)
        assert "default-src 'none'" in page.headers["content-security-policy"]
    assert redoc.status == 404


@pytest.mark.parametrize("path", ["/health/live", "/", "/v1/messages", "/v1/responses", "/v1/chat/completions"])
async def test_head_is_answered_without_a_key_or_a_body(path: str) -> None:
    async with served(parts_of(access=Access(tenant_key=Secret("t"), master_key=Secret("sk-m")))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        data = await reader.read()
        writer.close()

    assert data.startswith(b"HTTP/1.1 200 OK\r\n")
    assert data.endswith(b"\r\n\r\n")


async def _fine() -> str | None:
    return None


async def _down() -> str | None:
    return "does not answer"


async def _broken() -> str | None:
    raise OSError("no socket")


async def _numbers(port: int) -> list[tuple[str, dict[str, str], float]]:
    reply = await ask(port, "/metrics", method="GET")
    assert reply.status == 200
    families = text_string_to_metric_families(reply.body.decode())
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def _statuses(numbers: list[tuple[str, dict[str, str], float]]) -> set[str]:
    return {labels["status"] for name, labels, _ in numbers if name == "lamina_requests_total"}
