"""A real server around small fakes: what the tests of the HTTP side have in common."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from openai import AsyncOpenAI

from gateway.app import create_app
from gateway.parts import Access, AppParts, ModelCard
from gateway.protocol import LeanProtocol
from gateway.socket_protocol import SocketProtocol
from orchestration.core import Call, Delta, Event, Finish, Handler, Kind, Secret, Start, Usage

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = (
    ModelCard("tiny", frozenset([Kind.CHAT, Kind.COMPLETION]), created=1),
    ModelCard("org/embedder", frozenset([Kind.EMBEDDING]), created=2),
)

Step = Event | Exception | Callable[[], Awaitable[Any]]
"""An event to yield, an error to raise, or something to wait for."""


@dataclass
class Script:
    """A handler that plays its steps, remembers its calls, and says when it was closed before its end."""

    steps: tuple[Step, ...] = (Start("tiny-1", "fake"), Delta(text="Hello"), Finish(usage=Usage(5, 1)))
    calls: list[Call] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: int = 0

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        self.calls.append(call)
        self.begun.set()
        is_ended = False
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    is_ended = True
                    raise step
                if callable(step):
                    await step()
                else:
                    yield step
            is_ended = True
        finally:
            self.ended += is_ended
            if not is_ended:
                self.closed.set()


class NoCalls:
    async def get(self, call_id: str) -> dict[str, Any] | None:
        return None


def parts_of(handler: Handler | None = None, **changes: Any) -> AppParts:
    access = Access(tenant_key=Secret("tenant-key"))
    return AppParts(
        **{"handler": handler or Script(), "models": MODELS, "access": access, "calls": NoCalls(), **changes}
    )


@contextlib.asynccontextmanager
async def served(parts: AppParts) -> AsyncIterator[int]:
    """Serve the parts on a free port of this loop; gives the port. Calls in flight at the end lose their client."""
    config = uvicorn.Config(
        create_app(parts),
        http=LeanProtocol,
        log_level="warning",
        lifespan="off",
        ws=SocketProtocol,
        ws_per_message_deflate=False,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # asyncio (unlike uvloop) does not see that this is TCP, and would leave Nagle's algorithm on.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await server.startup(sockets=[listening])
        try:
            yield listening.getsockname()[1]
        finally:
            # uvicorn's own main loop and shutdown take 0.2 s, in naps.
            for listener in server.servers:
                listener.close()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            async with asyncio.timeout(30):
                await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def client_of(parts: AppParts, *, api_key: str = "some-key") -> AsyncIterator[AsyncOpenAI]:
    """Give the unmodified OpenAI client of a server."""
    async with (
        served(parts) as port,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=api_key, max_retries=0) as client,
    ):
        yield client


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert set(self.json) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
        return error


def request_bytes(
    path: str, body: bytes = b"", *, method: str = "POST", headers: dict[str, str] | None = None
) -> bytes:
    all_headers = {"host": "127.0.0.1", "content-length": str(len(body)), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items() if value)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


async def ask(
    port: int,
    path: str,
    body: bytes | dict[str, Any] = b"",
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> Reply:
    """Send one request over a connection of its own and read the reply to its end."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return await ask_raw(
        port, request_bytes(path, raw, method=method, headers={"connection": "close", **(headers or {})})
    )


async def ask_raw(port: int, data: bytes) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        async with asyncio.timeout(60):
            return await read_reply(reader)
    finally:
        writer.close()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    if "transfer-encoding" in headers:
        body = b"".join([chunk async for chunk in chunks_of(reader)])
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return Reply(int(head[0].split()[1]), headers, body)


async def chunks_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        length = int(await reader.readline(), 16)
        chunk = await reader.readexactly(length)
        await reader.readexactly(2)
        if not length:
            return
        yield chunk


def frames_of(body: bytes) -> list[Any]:
    """Return the JSON of each SSE frame, the end mark as it stands; comments are left out."""
    assert body.endswith(b"\n\n")
    frames = [frame for frame in body.split(b"\n\n")[:-1] if not frame.startswith(b":")]
    assert all(frame.startswith(b"data: ") for frame in frames)
    return [frame[6:] if frame == b"data: [DONE]" else orjson.loads(frame[6:]) for frame in frames]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}
