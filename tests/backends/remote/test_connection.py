from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from backends.remote.pool import Pool, PoolFull
from backends.remote.upstream import Upstream
from orchestration.core.errors import BackendError, BackendTimeout, BackendUnavailable, LaminaError
from tests.backends.remote.fake_upstream import FakeUpstream, answering, silent

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
BODY = json.dumps({"text": "世界" * 50}).encode()


@contextlib.asynccontextmanager
async def client_of(upstream: FakeUpstream) -> AsyncIterator[Upstream]:
    client = Upstream(base_url=upstream.url, name=None, kind="test", headers={}, connect_s=5.0)
    yield client
    await client.aclose()


def writing(*pieces: bytes, closes: bool = False) -> Script:
    """Answer with bytes as they are, each in a packet of its own as far as the network lets us."""

    async def script(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if closes:
            writer.close()

    return script


async def post(client: Upstream, *, timeout_s: float = 20.0, limit_bytes: int = 1_000_000) -> bytes:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    reply = await client.post("x", b"{}", headers={}, deadline_s=deadline_s)
    try:
        assert reply.status == 200
        return await reply.read(deadline_s=deadline_s, limit_bytes=limit_bytes)
    finally:
        reply.close()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SIZED = HEAD + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n5\r\nabcde\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(("answer", "expected"), [(SIZED, BODY), (CHUNKED, BODY + b"abcde")])
async def test_an_answer_is_the_same_however_the_network_cuts_it(
    upstream: FakeUpstream, answer: bytes, expected: bytes
) -> None:
    async with client_of(upstream) as client:
        for position in range(1, len(answer), 7):
            upstream.script = writing(answer[:position], answer[position:])
            assert await post(client) == expected
        upstream.script = writing(*(answer[index : index + 1] for index in range(len(answer))))
        assert await post(client) == expected

    assert upstream.num_connections == 1


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
async def test_a_body_that_comes_packed_all_the_same_is_unpacked(
    upstream: FakeUpstream, pack: Callable[[bytes], bytes]
) -> None:
    name = "gzip" if pack is gzip.compress else "deflate"
    upstream.script = answering(pack(BODY), headers=f"content-encoding: {name}\r\n")

    async with client_of(upstream) as client:
        assert await post(client) == BODY


@pytest.mark.parametrize(
    "answer",
    [
        answering(b"x", headers="content-encoding: br\r\n"),
        answering(gzip.compress(bytes(30_000_000)), headers="content-encoding: gzip\r\n"),
        answering(b"x", headers="y: " + "z" * 70_000 + "\r\n"),
        writing(b"SSH-2.0-none\r\n"),
        writing(HEAD, closes=True),
        writing(HEAD + b"content-length: 9\r\n\r\nhalf", closes=True),
        writing(HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", closes=True),
        writing(b"", closes=True),
    ],
)
async def test_what_is_no_whole_answer_is_an_error(upstream: FakeUpstream, answer: Script) -> None:
    upstream.script = answer

    async with client_of(upstream) as client:
        with pytest.raises(BackendUnavailable, match="broke"):
            await post(client)


async def test_a_body_without_a_length_ends_with_its_connection(upstream: FakeUpstream) -> None:
    upstream.script = writing(HEAD + b"\r\n", BODY, closes=True)

    async with client_of(upstream) as client:
        assert await post(client) == BODY


async def test_announcements_before_the_answer_are_no_answer(upstream: FakeUpstream) -> None:
    upstream.script = writing(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", SIZED)

    async with client_of(upstream) as client:
        assert await post(client) == BODY
        assert await post(client) == BODY
    assert upstream.num_connections == 1


async def test_a_body_over_the_limit_is_read_no_further(upstream: FakeUpstream) -> None:
    upstream.script = answering(bytes(2_000_000))

    async with client_of(upstream) as client:
        with pytest.raises(BackendError, match="over the limit"):
            await post(client, limit_bytes=1_000)
    async with asyncio.timeout(30):
        await upstream.was_left.wait()


async def test_a_large_body_that_is_read_slowly_is_all_there(upstream: FakeUpstream) -> None:
    upstream.script = answering(bytes(range(256)) * 20_000)

    async with client_of(upstream) as client:
        deadline_s = asyncio.get_running_loop().time() + 20.0
        reply = await client.post("x", b"{}", headers={}, deadline_s=deadline_s)
        await asyncio.sleep(0.05)
        pieces = []
        while piece := await reply.read_piece(deadline_s=deadline_s):
            pieces.append(piece)
            await asyncio.sleep(0)
        reply.close()

    assert b"".join(pieces) == bytes(range(256)) * 20_000


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(upstream: FakeUpstream) -> None:
    upstream.script = answering(b"1", headers="connection: close\r\n")
    async with client_of(upstream) as client:
        await post(client)
        await post(client)
        upstream.script = writing(SIZED, closes=True)
        await post(client)
        for _ in range(500):
            if not client._pool._idle[-1].is_open:
                break
            await asyncio.sleep(0.01)
        assert await post(client) == BODY

    assert upstream.num_connections == 4


async def test_each_of_many_waits_keeps_its_own_deadline(upstream: FakeUpstream) -> None:
    async with client_of(upstream) as client:
        upstream.script = answering(b"1")
        await post(client, timeout_s=60.0)
        upstream.script = silent
        with pytest.raises(BackendTimeout):
            await post(client, timeout_s=0.05)


async def test_whoever_finds_every_connection_lent_waits_for_one(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.remote.pool._MAX_CONNECTIONS", 1)
    port = int(upstream.url.split(":")[2].split("/")[0])
    pool = Pool(host="127.0.0.1", port=port, is_secure=False, connect_s=0.2)
    first = await pool.acquire()

    with pytest.raises(PoolFull):
        await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    pool.release(first)
    second = await waiting

    assert second is not first  # nothing was asked on it, so it was closed
    await pool.aclose()


@pytest.mark.parametrize("url", ["ftp://x/v1", "http://", "localhost:80", "http://x:port/", "http://x/ y", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        Upstream(base_url=url, name=None, kind="test", headers={}, connect_s=1.0)


async def test_a_key_of_two_lines_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="line's end"):
        Upstream(base_url="http://x", name=None, kind="test", headers={"authorization": "a\r\nb"}, connect_s=1.0)


async def test_a_host_that_does_not_exist_cannot_be_reached() -> None:
    client = Upstream(base_url="http://nobody.invalid", name=None, kind="test", headers={}, connect_s=5.0)

    with pytest.raises(LaminaError):
        await post(client)
