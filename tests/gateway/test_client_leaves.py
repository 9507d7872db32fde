from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
import pytest
import uvloop

from gateway.endpoints import generation
from orchestration.core import Call, Delta, Event, Finish, Handler, Start, compose
from tests.gateway.serving import CHAT, COMPLETIONS, EMBEDDINGS, Script, ask, chat, parts_of, request_bytes, served

START = Start("tiny-1", "fake")


def never() -> Any:
    return asyncio.Event().wait()


async def _closed_within(script: Script, seconds: float = 2.0) -> bool:
    async with asyncio.timeout(seconds):
        await script.closed.wait()
    return True


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat()),
        (CHAT, chat(stream=True)),
        (COMPLETIONS, {"model": "tiny", "prompt": "Hi"}),
        (COMPLETIONS, {"model": "tiny", "prompt": "Hi", "stream": True}),
        (EMBEDDINGS, {"model": "tiny", "input": "Hi"}),
    ],
)
async def test_client_that_leaves_before_the_first_event_closes_the_handler(path: str, body: dict[str, Any]) -> None:
    script = Script((never,))
    async with served(parts_of(script)) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(path, orjson.dumps(body)))
        await script.begun.wait()

        writer.close()

        assert await _closed_within(script)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_client_that_leaves_in_the_middle_closes_the_handler(is_streamed: bool) -> None:
    reached = asyncio.Event()

    async def mark() -> None:
        reached.set()

    script = Script((START, Delta(text="Hello"), mark, never))
    async with served(parts_of(script)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(CHAT, orjson.dumps(chat(stream=is_streamed))))
        await reached.wait()
        if is_streamed:
            await reader.readuntil(b"Hello")

        writer.close()

        assert await _closed_within(script)


async def test_client_that_leaves_during_keep_alives_closes_the_handler() -> None:
    script = Script((never,))
    async with served(parts_of(script, stream_commit_s=0.02)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(CHAT, orjson.dumps(chat(stream=True))))
        await reader.readuntil(b": keep-alive\n\n")

        writer.close()

        assert await _closed_within(script)


async def test_client_that_leaves_while_sending_its_body_reaches_no_handler() -> None:
    script = Script()
    async with served(parts_of(script)) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(CHAT, b'{"model"', headers={"content-length": "500"}))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

        reply = await ask(port, CHAT, chat())

    assert reply.status == 200
    assert len(script.calls) == 1


async def test_every_layer_is_closed_before_the_next_call_begins_nothing() -> None:
    order: list[str] = []

    def layer(name: str) -> Any:
        async def run(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
            try:
                async with aclosing(next(call)) as events:
                    async for event in events:
                        yield event
            finally:
                order.append(name)

        return run

    script = Script((START, Delta(text="Hello"), never))
    async with served(parts_of(compose([layer("outer"), layer("inner")], script))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(CHAT, orjson.dumps(chat(stream=True))))
        await reader.readuntil(b"Hello")
        writer.close()
        await _closed_within(script)
        await ask(port, "/health/live", method="GET")

    assert order == ["inner", "outer"]


async def test_reader_that_does_not_read_holds_the_handler_back() -> None:
    num_yielded = 0

    async def handler(call: Call, /) -> AsyncGenerator[Event, None]:
        nonlocal num_yielded
        yield START
        for _ in range(2000):
            num_yielded += 1
            yield Delta(text="x" * 10_000)
            await asyncio.sleep(0)
        yield Finish()

    async with served(parts_of(handler)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request_bytes(CHAT, orjson.dumps(chat(stream=True))))
        await reader.readuntil(b"\r\n")
        seen = -1
        while seen != num_yielded:  # until it stands still
            seen = num_yielded
            for _ in range(200):
                await asyncio.sleep(0)

        assert num_yielded < 2000
        writer.close()


async def test_handlers_end_is_awaited_before_the_end_of_the_stream() -> None:
    order: list[str] = []

    async def handler(call: Call, /) -> AsyncGenerator[Event, None]:
        yield START
        yield Delta(text="Hello")
        yield Finish()
        await asyncio.sleep(0.05)
        order.append("handler ended")

    async with served(parts_of(handler)) as port:
        reply = await ask(port, CHAT, chat(stream=True))
        order.append("stream ended")

    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert order == ["handler ended", "stream ended"]


async def test_fault_while_closing_after_the_client_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    closed = asyncio.Event()

    async def handler(call: Call, /) -> AsyncGenerator[Event, None]:
        try:
            yield START
            await never()
        finally:
            closed.set()
            raise RuntimeError("cannot close")

    async with served(parts_of(handler)) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(CHAT, orjson.dumps(chat())))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(30):
            await closed.wait()
        await ask(port, "/health/live", method="GET")

    assert [record.name for record in caplog.records if "cleanup_failed" in record.message] == [generation.__name__]


def test_head_and_first_event_go_out_in_one_write() -> None:
    async def first_read() -> bytes:
        script = Script((START, Delta(text="Hello"), never))
        async with served(parts_of(script)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_bytes(CHAT, orjson.dumps(chat(stream=True))))
            data = await reader.read(65536)
            writer.close()
            await _closed_within(script)
            return data

    data = uvloop.run(first_read())

    assert data.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"content":"Hello"' in data
