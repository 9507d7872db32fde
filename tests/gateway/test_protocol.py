from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from gateway.protocol import BODY_FOLLOWS, LeanProtocol

App = Callable[[Any, Any, Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve an application, and connect to it once."""
    config = uvicorn.Config(app, http=LeanProtocol, lifespan="off", log_level="critical", **options)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await server.startup(sockets=[listening])
        reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
        try:
            async with asyncio.timeout(20):
                yield reader, writer
        finally:
            writer.close()
            for listener in server.servers:
                listener.close()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


def answering(*pieces: bytes, headers: list[tuple[bytes, bytes]] | None = None, waits: bool = False) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        start = {"type": "http.response.start", "status": 200, "headers": headers or []}
        await send({**start, BODY_FOLLOWS: True})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece.replace(b"BODY", body), "more_body": True})
            if waits:
                await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b""})

    return app


def request(body: bytes = b"", *, method: bytes = b"POST", more: bytes = b"") -> bytes:
    return b"%b / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n%b" % (method, len(body), more, body)


async def test_pieces_that_are_ready_together_are_one_chunk_and_others_are_not_held_back() -> None:
    async with serving(answering(b"one ", b"two ", b"three")) as (reader, writer):
        writer.write(request())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked\r\n" in head
        assert await reader.readuntil(b"0\r\n\r\n") == b"d\r\none two three\r\n0\r\n\r\n"
    async with serving(answering(b"one ", b"two ", waits=True)) as (reader, writer):
        writer.write(request())
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\none \r\n4\r\ntwo \r\n0\r\n\r\n"


async def test_requests_that_come_at_once_are_answered_in_turn() -> None:
    async with serving(answering(b"<BODY>", waits=True)) as (reader, writer):
        writer.write(request(b"a") + request(b"b") + request(b"c"))
        for name in (b"a", b"b", b"c"):
            assert b"<%b>" % name in await reader.readuntil(b"0\r\n\r\n")


async def test_a_length_that_is_stated_is_kept() -> None:
    async with serving(answering(b"four", headers=[(b"content-length", b"4")])) as (reader, writer):
        writer.write(request())
        assert (await reader.readuntil(b"four")).count(b"transfer-encoding") == 0
    async with serving(answering(b"five!", headers=[(b"content-length", b"4")])) as (reader, writer):
        writer.write(request())
        assert b"five" not in await reader.read()


async def test_a_head_is_answered_without_a_body() -> None:
    async with serving(answering(b"four", headers=[(b"content-length", b"4")])) as (reader, writer):
        writer.write(request(method=b"HEAD") + request(method=b"HEAD", more=b"connection: close\r\n"))
        answer = await reader.read()
    assert answer.count(b"content-length: 4\r\n") == 2
    assert b"four" not in answer


async def test_a_client_that_asks_is_told_to_go_on() -> None:
    async with serving(answering(b"<BODY>")) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert b"<body>" in await reader.readuntil(b"0\r\n\r\n")


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
async def test_no_header_is_two(value: bytes) -> None:
    async with serving(answering(b"x", headers=[(b"x-model", value)])) as (reader, writer):
        writer.write(request())
        answer = await reader.read()
    assert b"set-cookie" not in answer
    assert b"x-model" not in answer


async def test_a_connection_that_is_idle_for_too_long_is_closed_and_one_in_use_is_not() -> None:
    async with serving(answering(b"x"), timeout_keep_alive=1) as (reader, writer):
        loop = asyncio.get_running_loop()
        for _ in range(3):
            writer.write(request())
            await reader.readuntil(b"0\r\n\r\n")
            await asyncio.sleep(0.4)
        begun = loop.time()
        assert await reader.read() == b""
        assert 0.4 < loop.time() - begun < 10.0


async def test_the_last_answer_says_that_the_connection_closes() -> None:
    async with serving(answering(b"x")) as (reader, writer):
        writer.write(request(more=b"connection: close\r\n"))
        answer = await reader.read()
    assert answer.count(b"connection: close\r\n") == 1
