"""Upstreams that fail in every phase, seen by clients through a whole worker; nothing may be held after them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.backends.anthropic.test_backend import block, event
from tests.backends.remote.fake_upstream import FakeUpstream, answering, chunk, silent, sse, streaming, write_chunk
from tests.gateway.serving import CHAT, Reply, chat, request_bytes
from tests.gateway.whole import Leaks, remote_settings, whole

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat(),
    MESSAGES: {**chat(), "max_tokens": 9},
    RESPONSES: {"model": "tiny", "input": "Hi"},
}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
ERROR = {"error": {"message": "the queue is full", "code": 503}}
SHORT = "timeout_s: {connect: 5, first_token: 0.3, total: 1}"


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def head_alone(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    await writer.drain()
    writer.close()


async def head_and_silence(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")


async def half_a_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
    await writer.drain()
    writer.close()


async def no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    await writer.drain()
    writer.close()


def broken_after(*frames: bytes) -> Script:
    """Send frames, the last of them cut in the middle, and hang up."""

    async def script(writer: asyncio.StreamWriter) -> None:
        await head_and_silence(writer)
        for frame in frames[:-1]:
            write_chunk(writer, frame)
        write_chunk(writer, frames[-1][: len(frames[-1]) // 2])
        await writer.drain()
        writer.close()

    return script


BEFORE_CONTENT: dict[str, tuple[Script, set[int]]] = {
    "hangs up": (hang_up, {502, 503}),
    "half a head": (half_a_head, {502, 503}),
    "no HTTP": (no_http, {502, 503}),
    "head alone": (head_alone, {502, 503}),
    "silence": (silent, {504}),
    "head and silence": (head_and_silence, {504}),
    "role and silence": (streaming(chunk(role="assistant"), done=False, ends=False), {504}),
    "cut in the first frame": (broken_after(sse(chunk(content="Hello"))), {502, 503}),
    "an error in the stream": (streaming(ERROR), {503, 529}),
    "no JSON": (streaming(b"data: {oops\n\n"), {502}),
    "no object": (streaming(b"data: 7\n\n"), {502}),
    "an empty stream": (streaming(), {502}),
    "a page": (answering(b"<html>busy</html>", content_type="text/html"), {502}),
    "a page with 503": (answering(b"<html>busy</html>", status=503, content_type="text/html"), {503}),
    "a 500": (answering({"error": "oops"}, status=500), {502}),
    "a 302": (answering(b"", status=302, headers="location: http://elsewhere/\r\n"), {502}),
    "nothing at all": (answering(b""), {502}),
    "a list": (answering([1, 2]), {502}),
    "no choices": (answering({"choices": None}), {502}),
}
AFTER_CONTENT: dict[str, Script] = {
    "hangs up": broken_after(sse(chunk(content="Hello")), b""),
    "cut in a frame": broken_after(sse(chunk(content="Hello")), sse(chunk(content="there"))),
    "no reason": streaming(chunk(content="Hello"), done=False),
    "no reason but an end": streaming(chunk(content="Hello")),
    "an error in the stream": streaming(chunk(content="Hello"), ERROR, done=False),
    "no JSON": streaming(chunk(content="Hello"), b"data: {oops\n\n"),
    "silence": streaming(chunk(content="Hello"), done=False, ends=False),
}


def _pairs(faults: Iterable[str]) -> list[Any]:
    """Pair every fault with every client; beside one client each, in turn, only at length."""
    return [
        pytest.param(fault, path, marks=[] if (place + turn) % len(BODIES) == 0 else [pytest.mark.long])
        for place, fault in enumerate(faults)
        for turn, path in enumerate(BODIES)
    ]


@pytest.mark.parametrize(("fault", "path"), _pairs(BEFORE_CONTENT))
async def test_what_fails_before_content_is_a_status_and_holds_nothing(
    fault: str, path: str, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    script, statuses = BEFORE_CONTENT[fault]
    settings = remote_settings(upstream, valkey_url).replace("api_key", f"{SHORT}, api_key")
    async with whole(tmp_path, settings) as here:
        leaks = Leaks(here, upstream)
        await leaks.begin()
        for is_streamed in (False, True):
            upstream.script = script
            async with asyncio.timeout(60):
                reply = await here.ask(path, {**BODIES[path], "stream": is_streamed})
            assert reply.status in statuses, (is_streamed, reply)
            assert "error" in reply.json
            assert "sk-upstream" not in str(reply)
        await leaks.check()


@pytest.mark.parametrize(("fault", "path"), _pairs(AFTER_CONTENT))
async def test_what_fails_after_content_is_one_error_frame_and_holds_nothing(
    fault: str, path: str, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    upstream.script = AFTER_CONTENT[fault]
    settings = remote_settings(upstream, valkey_url).replace("api_key", f"{SHORT}, api_key")
    async with whole(tmp_path, settings) as here:
        leaks = Leaks(here, upstream)
        await leaks.begin()
        async with asyncio.timeout(60):
            reply = await here.ask(path, {**BODIES[path], "stream": True})
        await leaks.check()

    assert reply.status == 200
    assert b"Hello" in reply.body
    assert reply.body.count(b'"error":{') == 1
    assert b'"finish_reason":"' not in reply.body
    assert b"message_stop" not in reply.body
    assert b"response.completed" not in reply.body


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_comes_byte_by_byte_says_the_same(
    path: str, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    frames = [chunk(content="Hé 日本"), chunk(content=" 👩‍🚀!"), chunk(finish="stop"), USAGE]
    data = b"".join(sse(frame) for frame in frames) + b"data: [DONE]\n\n"

    async def bytewise(writer: asyncio.StreamWriter) -> None:
        await head_and_silence(writer)
        for place in range(len(data)):
            write_chunk(writer, data[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    async with whole(tmp_path, remote_settings(upstream, valkey_url)) as here:
        upstream.script = streaming(*frames)
        at_once = await here.ask(path, {**BODIES[path], "stream": True})
        upstream.script = bytewise
        in_bytes = await here.ask(path, {**BODIES[path], "stream": True})

    assert _said(in_bytes) == _said(at_once)
    assert "Hé 日本 👩‍🚀!" in _said(in_bytes)


@pytest.mark.parametrize("path", BODIES)
async def test_frames_of_a_megabyte_come_through(
    path: str, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    text = "long" * 262_144
    upstream.script = streaming(chunk(content=text), chunk(content="end"), chunk(finish="stop"), USAGE)
    async with whole(tmp_path, remote_settings(upstream, valkey_url)) as here:
        reply = await here.ask(path, {**BODIES[path], "stream": True})

    assert reply.status == 200
    assert (text + "end").encode() in _said(reply).encode()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("last", [b"", event("error", error={"type": "overloaded_error", "message": "busy"})])
async def test_an_anthropic_upstream_that_dies_is_told_to_every_client(
    last: bytes, path: str, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    begin = event("message_start", message={"usage": {"input_tokens": 5}})
    words = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello"})
    upstream.script = streaming(begin, *words, last, done=False) if last else streaming(begin, *words, done=False)
    async with whole(tmp_path, remote_settings(upstream, valkey_url, type="anthropic")) as here:
        leaks = Leaks(here, upstream)
        await leaks.begin()
        async with asyncio.timeout(60):
            reply = await here.ask(path, {**BODIES[path], "stream": True})
        assert b"Hello" in reply.body
        assert reply.body.count(b'"error":{') == 1
        assert b"message_stop" not in reply.body
        await leaks.check()


async def test_a_compressed_stream_is_read_though_none_was_asked_for(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    data = gzip.compress(b"".join(sse(frame) for frame in (chunk(content="Hello"), chunk(finish="stop"), USAGE)))

    async def script(writer: asyncio.StreamWriter) -> None:
        head = b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"content-length: %d\r\n\r\n" % len(data) + data)

    upstream.script = script
    async with whole(tmp_path, remote_settings(upstream, valkey_url)) as here:
        reply = await here.ask(CHAT, chat(stream=True))

    assert upstream.asked[0].headers["accept-encoding"] == "identity"
    assert (reply.status, b"Hello" in reply.body) == (200, True)
    assert "content-encoding" not in reply.headers


@pytest.mark.parametrize(("phase", "path"), _pairs(["before headers", "before content", "amid the stream", "whole"]))
async def test_a_client_that_vanishes_frees_its_slot_and_the_upstream(
    phase: str, path: str, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    upstream.script = {
        "before headers": silent,
        "before content": head_and_silence,
        "amid the stream": streaming(chunk(content="Hello"), done=False, ends=False),
        "whole": silent,
    }[phase]
    async with whole(tmp_path, remote_settings(upstream, valkey_url)) as here:
        leaks = Leaks(here, upstream)
        await leaks.begin()
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(request_bytes(path, orjson.dumps({**BODIES[path], "stream": phase != "whole"})))
        async with asyncio.timeout(60):
            await upstream.was_asked.wait()
            if phase == "amid the stream":
                await reader.readuntil(b"Hello")
            writer.transport.abort()
            await upstream.was_left.wait()
        await leaks.check()


async def test_a_reader_that_does_not_read_holds_the_upstream_back(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await head_and_silence(writer)
        while sent < 400:
            write_chunk(writer, sse(chunk(content="x" * 100_000)))
            await writer.drain()
            sent += 1

    upstream.script = flood
    async with whole(tmp_path, remote_settings(upstream, valkey_url)) as here:
        leaks = Leaks(here, upstream)
        await leaks.begin()
        _, writer = await asyncio.open_connection("127.0.0.1", here.port, limit=1024)
        writer.write(request_bytes(CHAT, orjson.dumps(chat(stream=True))))
        await upstream.was_asked.wait()
        before = -1
        while before != sent or sent == 0:  # until nothing more is taken
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 400
        writer.transport.abort()
        async with asyncio.timeout(60):
            await upstream.was_left.wait()
        await leaks.check()


def _said(reply: Reply) -> str:
    """Join the text of a stream in any of the three formats."""
    text = ""
    for line in reply.body.split(b"\n"):
        with contextlib.suppress(orjson.JSONDecodeError):
            data: Any = orjson.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: {") else {}
            delta: Any = data.get("delta")
            if data.get("type") == "response.output_text.delta":
                text += delta
            elif data.get("type") == "content_block_delta":
                text += delta["text"]
            for choice in data.get("choices", ()):
                text += choice["delta"].get("content") or ""
    return text
