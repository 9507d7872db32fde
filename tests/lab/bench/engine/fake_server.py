"""A server of completions that answers as it is told, one reply per connection, and counts what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

METRICS = """# HELP vllm:kv_cache_usage_perc of the pages
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_requests_running 3
vllm:prefix_cache_queries_total{engine="0"} 100
vllm:prefix_cache_hits_total{engine="0"} 25
vllm:num_preemptions_total 2
"""


def stream_of(num_tokens: int, *, is_whole: bool = True) -> bytes:
    """Return a stream of so many tokens."""
    events: list[Any] = [{"choices": [{"text": "a", "finish_reason": None}]} for _ in range(num_tokens)]
    if is_whole:
        events.append({"choices": [{"text": "", "finish_reason": "length"}]})
        events.append({"choices": [], "usage": {"completion_tokens": num_tokens, "prompt_tokens": 9}})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return (text + ("data: [DONE]\n\n" if is_whole else "")).encode()


class FakeServer:
    """Answer every completion with `head` and `pieces`, each a chunk."""

    def __init__(self, pieces: Sequence[bytes], *, status: str = "200 OK", header: str = "", ends: bool = True) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self._pieces = pieces
        self._status = status
        self._header = header
        self._ends = ends

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET"):
            writer.write(f"HTTP/1.0 200 OK\r\n\r\n{METRICS}".encode())
        else:
            size = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length"))
            self.bodies.append(json.loads(await reader.readexactly(size)))
            writer.write(f"HTTP/1.1 {self._status}\r\n{self._header}Transfer-Encoding: chunked\r\n\r\n".encode())
            for piece in self._pieces:
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if self._ends:
                writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(server: FakeServer) -> AsyncIterator[FakeServer]:
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server
