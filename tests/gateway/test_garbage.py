"""What a call leaves for the garbage collector: nothing, so that memory stays flat however seldom it comes by."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import orjson

from tests.backends.remote.fake_upstream import FakeUpstream, answering, chunk, silent, streaming
from tests.garbage import Garbage
from tests.gateway.serving import CHAT, chat, request_bytes
from tests.gateway.test_bad_upstreams import BODIES, SHORT, USAGE, Script, hang_up
from tests.gateway.whole import Whole, until, whole

WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
STREAM = streaming(chunk(content="Hello"), chunk(finish="stop"), USAGE)
FAULTS: dict[str, Script] = {
    "hangs up": hang_up,
    "silence": silent,
    "a 500": answering({"error": "oops"}, status=500),
    "no JSON": streaming(b"data: {oops\n\n"),
    "an error after content": streaming(chunk(content="Hello"), {"error": {"message": "full", "code": 503}}),
}


def slow(script: Script) -> Script:
    """Answer once somebody watches whether the client is still there."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        await until(lambda: any(task.get_name() == "attendant" for task in asyncio.all_tasks()))
        await script(writer)

    return answer


def settings(upstream: FakeUpstream, valkey_url: str, *, more: str = "") -> str:
    """Every layer that a call goes through, and every limit."""
    return f"""
models:
  - id: tiny
    retries: 1
    backends:
      - {{type: openai_compatible, base_url: "{upstream.url}", model: there, api_key: sk-upstream{more}}}
cache: {{semantic: {{enabled: false}}}}
limits: {{default: {{parallel: 100, rpm: 100000, tpm: 100000000, budget_usd: 1000}}}}
routing: {{health_interval_s: null}}
redis: {{url: "{valkey_url}"}}
"""


async def ask_all(here: Whole, path: str, numbers: range, *, is_streamed: bool) -> set[int]:
    """Ask several questions at once; returns the statuses."""
    bodies = [orjson.dumps({**BODIES[path], "stream": is_streamed}).replace(b"Hi", b"Hi %d" % n) for n in numbers]
    return {reply.status for reply in await asyncio.gather(*(here.ask(path, body) for body in bodies))}


async def is_quiet(here: Whole) -> None:
    """Wait until no call is left, and what ends with it has ended."""
    await until(lambda: here.in_flight() == 0)
    await until(lambda: not any(task.get_name() == "attendant" for task in asyncio.all_tasks()))
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_answered_call_leaves_nothing_to_the_collector(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    garbage, numbers = Garbage(), itertools.count(step=4)
    async with whole(tmp_path, settings(upstream, valkey_url)) as here:
        for path, is_streamed in itertools.product(BODIES, (False, True)):
            upstream.script = slow(STREAM if is_streamed else answering(WHOLE))
            first = next(numbers)
            with garbage.counted(f"{path} {is_streamed}"):
                for _ in ("misses", "hits"):
                    assert await ask_all(here, path, range(first, first + 4), is_streamed=is_streamed) == {200}
                await is_quiet(here)
    assert not garbage.found


async def test_a_call_that_fails_leaves_nothing_to_the_collector(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    garbage, numbers = Garbage(), itertools.count(step=4)
    async with whole(tmp_path, settings(upstream, valkey_url, more=f", {SHORT}")) as here:
        for fault, is_streamed in itertools.product(FAULTS, (False, True)):
            upstream.script = FAULTS[fault]
            first = next(numbers)
            with garbage.counted(f"{fault} {is_streamed}"):
                await ask_all(here, CHAT, range(first, first + 4), is_streamed=is_streamed)
                await is_quiet(here)
    assert not garbage.found


async def test_a_call_that_is_refused_leaves_nothing_to_the_collector(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    garbage = Garbage()
    bodies: dict[str, Any] = {
        "no JSON": b"{",
        "no such model": chat(model="unknown"),
        "no such stream": chat(model="unknown", stream=True),
        "no messages": chat(messages=7),
    }
    async with whole(tmp_path, settings(upstream, valkey_url)) as here:
        for case, body in bodies.items():
            with garbage.counted(case):
                assert {(await here.ask(CHAT, body)).status for _ in range(3)} <= {400, 404}
                await is_quiet(here)
    assert not garbage.found


async def test_a_client_that_leaves_leaves_nothing_to_the_collector(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    garbage = Garbage()
    async with whole(tmp_path, settings(upstream, valkey_url)) as here:
        upstream.script = streaming(chunk(content="Hello"), done=False, ends=False)
        with garbage.counted("amid a stream"):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(request_bytes(CHAT, orjson.dumps(chat(stream=True))))
            await reader.readuntil(b"Hello")
            writer.transport.abort()
            await upstream.was_left.wait()
            await is_quiet(here)
    assert not garbage.found
