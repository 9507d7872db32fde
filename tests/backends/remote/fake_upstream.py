"""A scripted upstream on a real socket: it keeps what it was asked, and sees when its client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: Any


class FakeUpstream:
    """Answer each request by `script`, which writes what it likes; the connection is kept after it."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.num_connections = 0
        self.was_asked = asyncio.Event()
        self.was_left = asyncio.Event()
        self.script: Callable[[asyncio.StreamWriter], Awaitable[None]] = silent
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    @property
    def num_open(self) -> int:
        """Count the connections that are open."""
        return len(self._tasks)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.asked.append(await _read_request(head, reader))
                self.was_asked.set()
                await self.script(writer)
                await writer.drain()
        except (OSError, EOFError):
            self.was_left.set()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


async def silent(writer: asyncio.StreamWriter) -> None:
    """Answer nothing."""


def answering(
    body: object, *, status: int = 200, headers: str = "", content_type: str = "application/json"
) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Answer with a whole body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def script(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
        writer.write(head.encode() + data)

    return script


def streaming(
    *frames: object, ends: bool = True, done: bool = True
) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Answer with a stream of frames: JSON values, or bytes as they are."""

    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for frame in frames:
            write_chunk(writer, frame if isinstance(frame, bytes) else sse(frame))
            await writer.drain()
        if done:
            write_chunk(writer, b"data: [DONE]\n\n")
        if ends:
            writer.write(b"0\r\n\r\n")

    return script


def sse(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def chunk(index: int = 0, *, finish: str | None = None, logprobs: object = None, **delta: object) -> dict[str, Any]:
    """Make a chat chunk of one choice."""
    choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m1", "choices": [choice], "usage": None}


async def _read_request(head: bytes, reader: asyncio.StreamReader) -> Asked:
    first, *lines = head.decode().strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(path=first.split(" ")[1], headers=headers, body=json.loads(body) if body else None)
