from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from gateway.protocol import BODY_FOLLOWS, MAX_HEAD_BYTES, LeanProtocol

App = Callable[[Any, Any, Any], Awaitable[None]]
Skip = Callable[[float], None]


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
            async with asyncio.timeout(120):
                yield reader, writer
        finally:
            writer.close()
            for listener in server.servers:
                listener.close()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


@pytest.fixture
async def skip(monkeypatch: pytest.MonkeyPatch) -> Skip:
    """Give a way to set the event loop's clock ahead, so that a wait for its timers does not depend on the machine."""
    loop = asyncio.get_running_loop()
    real, skipped_s = loop.time, 0.0

    def skip(seconds: float) -> None:
        nonlocal skipped_s
        skipped_s += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + skipped_s)
    return skip


def answering(
    *pieces: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    waits: bool = False,
    begun: asyncio.Event | None = None,
) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun is not None:
            begun.set()
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


async def test_a_connection_that_is_idle_for_too_long_is_closed_and_one_in_use_is_not(skip: Skip) -> None:
    async with serving(answering(b"x"), timeout_keep_alive=20) as (reader, writer):
        for _ in range(3):
            writer.write(request())
            await reader.readuntil(b"0\r\n\r\n")
            skip(9.0)
        skip(12.0)
        assert await reader.read() == b""


async def test_the_last_answer_says_that_the_connection_closes() -> None:
    async with serving(answering(b"x")) as (reader, writer):
        writer.write(request(more=b"connection: close\r\n"))
        answer = await reader.read()
    assert answer.count(b"connection: close\r\n") == 1


async def test_an_offer_of_http_2_is_passed_over_and_the_body_is_read() -> None:
    # Java's client offers it with every first request.
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
    async with serving(answering(b"<BODY>")) as (reader, writer):
        writer.write(request(b"whole", more=offer))
        assert b"<whole>" in await reader.readuntil(b"0\r\n\r\n")
        head, body = request(b"in two", more=offer).split(b"\r\n\r\n")
        writer.write(head[:40])
        await writer.drain()
        writer.write(head[40:] + b"\r\n\r\n")
        await writer.drain()
        writer.write(body + request(b"and on"))
        assert b"<in two>" in await reader.readuntil(b"0\r\n\r\n")
        assert b"<and on>" in await reader.readuntil(b"0\r\n\r\n")


async def test_an_offer_of_another_protocol_does_not_keep_a_connection_that_is_to_close() -> None:
    async with serving(answering(b"<BODY>")) as (reader, writer):
        writer.write(request(b"last", more=b"connection: close, upgrade\r\nupgrade: h2c\r\n"))
        assert b"<last>" in await reader.read()


async def test_a_tunnel_is_refused() -> None:
    async with serving(answering(b"x")) as (reader, writer):
        writer.write(b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_http_1_0_gets_no_chunks() -> None:
    async with serving(answering(b"one ", b"two", waits=True)) as (reader, writer):
        writer.write(request().replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"one two"


async def test_a_path_with_percent_signs_is_unquoted() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answering(str(scope["path"]).encode())(scope, receive, send)

    async with serving(app) as (reader, writer):
        writer.write(request().replace(b"POST / ", b"POST /a%2fb%20c "))
        assert b"/a/b c" in await reader.readuntil(b"0\r\n\r\n")


@pytest.mark.parametrize("begun", [b"", b"POST / HTTP/1.1\r\nhost: x\r\n"], ids=["nothing", "half a head"])
async def test_a_client_that_does_not_end_its_head_is_left(begun: bytes) -> None:
    async with serving(answering(b"x"), timeout_keep_alive=1) as (reader, writer):
        writer.write(begun)
        assert await reader.read() == b""


async def test_a_body_may_take_longer_than_a_head(skip: Skip) -> None:
    begun = asyncio.Event()
    async with serving(answering(b"<BODY>", begun=begun), timeout_keep_alive=20) as (reader, writer):
        head, body = request(b"late").split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await begun.wait()
        skip(30.0)
        writer.write(body)
        assert b"<late>" in await reader.readuntil(b"0\r\n\r\n")


async def test_a_head_without_an_end_is_refused() -> None:
    async with serving(answering(b"x")) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nx-long: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"a" * 65536)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        assert reader.at_eof() or reader.exception() is not None


async def test_a_large_body_is_no_large_head() -> None:
    body = b"b" * (MAX_HEAD_BYTES + 1)
    async with serving(answering(b"read")) as (reader, writer):
        for _ in range(2):
            writer.write(request(body))
            assert b"read" in await reader.readuntil(b"0\r\n\r\n")
