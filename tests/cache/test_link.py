from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache.link import SharedLink, open_link
from cache.store import StoreDown


@contextlib.asynccontextmanager
async def answering(path: Path, answer: bytes) -> AsyncIterator[str]:
    """Answer each read with the same bytes, or with none."""

    served: list[asyncio.Task[None]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                writer.write(answer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.create_task(talk(reader, writer)))

    server = await asyncio.start_unix_server(serve, str(path))
    async with server:
        yield f"unix://{path}"
        await asyncio.gather(*served)


async def test_many_commands_share_one_connection_and_keep_their_order(valkey_url: str) -> None:
    link = await open_link(valkey_url, timeout_s=30.0)

    answers = await asyncio.gather(*(link.send("ECHO", number) for number in range(500)))

    assert answers == [str(number).encode() for number in range(500)]
    link.close()


async def test_whoever_leaves_does_not_take_anothers_answer(valkey_url: str) -> None:
    link = await open_link(valkey_url, timeout_s=30.0)

    first, second = link.send("ECHO", "a"), link.send("ECHO", "b")
    first.cancel()

    assert await second == b"b"
    link.close()


async def test_a_server_that_is_silent_loses_the_connection(short_folder: Path) -> None:
    async with answering(short_folder / "silent.sock", b"") as url:
        link = await open_link(url, timeout_s=0.05)
        with pytest.raises(StoreDown, match="silent"):
            await link.send("PING")
        assert not link.is_open
        with pytest.raises(StoreDown):
            link.send("PING")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"+OK\r\n+OK\r\n"])
async def test_what_is_no_answer_closes_the_connection(short_folder: Path, answer: bytes) -> None:
    async with answering(short_folder / "odd.sock", answer) as url:
        link = await open_link(url, timeout_s=30.0)
        waiting = link.send("PING")
        with contextlib.suppress(StoreDown):
            await waiting
        assert not link.is_open


async def test_database_and_password_are_sent(valkey_url: str) -> None:
    link = await open_link(f"{valkey_url}?db=3", timeout_s=30.0)
    await link.send("SET", "a", "1")

    assert b"db=3" in await link.send("CLIENT", "INFO")
    with pytest.raises(StoreDown, match="let us in") as caught:
        await open_link(valkey_url.replace("unix://", "unix://:hunter2@"), timeout_s=30.0)
    assert "hunter2" not in str(caught.value)
    await link.send("FLUSHALL")
    link.close()


async def test_a_connection_that_was_lost_is_opened_again(valkey_url: str) -> None:
    shared = SharedLink(valkey_url, timeout_s=30.0)
    own = await shared.ask("CLIENT", "ID")
    killer = await open_link(valkey_url, timeout_s=30.0)
    await killer.send("CLIENT", "KILL", "ID", own)

    assert await shared.ask("ECHO", "there") == b"there"
    killer.close()
    shared.close()


async def test_nobody_waits_long_for_a_server_that_is_not_there() -> None:
    shared = SharedLink("redis://127.0.0.1:9/0", timeout_s=0.5)

    async with asyncio.timeout(30):
        with pytest.raises(StoreDown, match="cannot be reached"):
            await shared.ask("PING")
