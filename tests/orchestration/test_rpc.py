"""Calls between our own processes: deadlines, cancelling, breaks, bounds."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.core.rpc import (
    RpcClient,
    RpcRefused,
    RpcServer,
    RpcTimeout,
    RpcUnavailable,
    encode_frame,
    read_frame,
)
from tests.garbage import Garbage


class Fault(Exception):
    code = "too_long"


class Methods:
    """An echo, a call that waits for ever, and faults."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def echo(self, params: Any, payload: bytes) -> tuple[Any, bytes]:
        await asyncio.sleep(0)
        return params, payload

    async def hang(self, _params: Any, _payload: bytes) -> tuple[Any, bytes]:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError("unreachable")

    async def fail(self, params: Any, _payload: bytes) -> tuple[Any, bytes]:
        raise Fault("300 tokens") if params else ZeroDivisionError("oops")

    def table(self) -> dict[str, Any]:
        return {"echo": self.echo, "hang": self.hang, "fail": self.fail}


@contextlib.asynccontextmanager
async def serving(path: Path, methods: Methods, **bounds: int) -> AsyncIterator[RpcServer]:
    server = RpcServer(methods.table(), **bounds)
    await server.start(path)
    try:
        yield server
    finally:
        await server.aclose()


@pytest.fixture
def path(short_folder: Path) -> Path:
    return short_folder / "rpc.sock"


async def test_many_calls_share_one_connection_and_keep_their_answers_apart(path: Path) -> None:
    async with serving(path, Methods()), contextlib.aclosing(RpcClient(path)) as client:
        answers = await asyncio.gather(
            *(client.call("echo", i, payload=bytes([i % 256]) * i, timeout_s=30) for i in range(200))
        )
    assert answers == [(i, bytes([i % 256]) * i) for i in range(200)]


async def test_a_late_answer_is_a_timeout_and_the_other_side_is_told(path: Path) -> None:
    methods = Methods()
    async with serving(path, methods), contextlib.aclosing(RpcClient(path)) as client:
        with pytest.raises(RpcTimeout, match="hang"):
            await client.call("hang", timeout_s=0.05)
        await asyncio.wait_for(methods.cancelled.wait(), 30)
        assert await client.call("echo", "still here", timeout_s=30) == ("still here", b"")


async def test_a_cancelled_caller_cancels_the_call(path: Path) -> None:
    methods = Methods()
    async with serving(path, methods), contextlib.aclosing(RpcClient(path)) as client:
        task = asyncio.create_task(client.call("hang", timeout_s=60))
        await methods.waiting.wait()
        task.cancel()
        await asyncio.wait_for(methods.cancelled.wait(), 30)


async def test_a_methods_fault_reaches_its_caller_with_its_code(path: Path) -> None:
    async with serving(path, Methods()), contextlib.aclosing(RpcClient(path)) as client:
        with pytest.raises(RpcRefused, match="300 tokens") as named:
            await client.call("fail", True, timeout_s=30)
        with pytest.raises(RpcRefused, match="oops") as internal:
            await client.call("fail", False, timeout_s=30)
        with pytest.raises(RpcRefused) as unknown:
            await client.call("nothing", timeout_s=30)
    assert (named.value.code, internal.value.code, unknown.value.code) == ("too_long", "internal", "unknown_method")


async def test_nobody_there_is_unavailable_and_a_new_server_is_found_again(path: Path) -> None:
    client = RpcClient(path)
    for _ in range(2):
        with pytest.raises(RpcUnavailable):
            await client.call("echo", timeout_s=30)
        async with serving(path, Methods()):
            assert await client.call("echo", 1, timeout_s=30) == (1, b"")
    with pytest.raises(RpcUnavailable):
        await client.call("echo", 1, timeout_s=30)
    await client.aclose()


async def test_a_broken_connection_ends_calls_in_flight(path: Path) -> None:
    methods = Methods()
    client = RpcClient(path)
    async with serving(path, methods):
        task = asyncio.create_task(client.call("hang", timeout_s=60))
        await methods.waiting.wait()
    with pytest.raises(RpcUnavailable, match="broke"):
        await task
    await client.aclose()


async def test_bounds_refuse_instead_of_queueing(path: Path) -> None:
    methods = Methods()
    async with (
        serving(path, methods, max_in_flight=1),
        contextlib.aclosing(RpcClient(path, max_in_flight=2)) as client,
    ):
        first = asyncio.create_task(client.call("hang", timeout_s=60))
        await methods.waiting.wait()
        with pytest.raises(RpcRefused) as busy:
            await client.call("echo", timeout_s=30)
        second = asyncio.create_task(client.call("hang", timeout_s=60))
        await asyncio.sleep(0)
        with pytest.raises(RpcUnavailable, match="2 calls"):
            await client.call("echo", timeout_s=30)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
    assert busy.value.code == "busy"


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.binary())
def test_a_frame_survives_any_split(header: dict[str, Any], payload: bytes) -> None:
    async def read() -> tuple[dict[str, Any], bytes]:
        reader = asyncio.StreamReader()
        for byte in encode_frame(header, payload):
            reader.feed_data(bytes([byte]))
        return await read_frame(reader)

    assert asyncio.run(read()) == (header, payload)


async def test_a_frame_out_of_bounds_is_refused() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(struct.pack(">II", 4, 99))
    with pytest.raises(OSError, match="cannot be"):
        await read_frame(reader)


async def test_calls_leave_nothing_to_the_collector_however_they_end(path: Path) -> None:
    garbage, methods = Garbage(), Methods()
    async with serving(path, methods):
        client = RpcClient(path)
        await client.call("echo", timeout_s=30)
        with garbage.counted("answered"):
            await asyncio.gather(*(client.call("echo", number, timeout_s=30) for number in range(20)))
        with garbage.counted("refused"):
            for is_coded in (True, False):
                with contextlib.suppress(RpcRefused):
                    await client.call("fail", is_coded, timeout_s=30)
        with garbage.counted("too late"):
            with contextlib.suppress(RpcTimeout):
                await client.call("hang", timeout_s=0.02)
            await asyncio.wait_for(methods.cancelled.wait(), 30)
        await client.aclose()
    assert not garbage.found
