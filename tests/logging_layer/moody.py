"""A server that speaks MLflow's intake, in whatever mood a test wants it."""

from __future__ import annotations

import asyncio
import re
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from logging_layer.names import SAMPLE_WEIGHT

HANGS = 0
EXPERIMENT = b'{"experiment": {"experiment_id": "7"}}'


@dataclass
class Moody:
    """A server that speaks MLflow's intake and answers with `status`, or not at all."""

    status: int
    traces: set[bytes] = field(default_factory=set)
    weight: float = 0.0
    num_asked: int = 0
    uri: str = ""

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            head, body = await read_request(reader)
            is_intake = head.startswith("POST /v1/traces")
            self.num_asked += is_intake
            if is_intake and self.status == HANGS:
                await reader.read()
                return
            status = self.status if is_intake else 200
            if is_intake and status == 200:
                roots = [span for span in spans_in(body) if not span.parent_span_id]
                new = [span for span in roots if span.trace_id not in self.traces]
                self.traces |= {span.trace_id for span in new}
                self.weight += sum(weight_in(span) for span in new)
            said = f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(EXPERIMENT)}\r\n\r\n"
            writer.write(said.encode() + EXPERIMENT)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the shipper was killed meanwhile
        finally:
            writer.close()


@asynccontextmanager
async def moody(status: int) -> AsyncIterator[Moody]:
    server_side = Moody(status)
    async with listening(server_side.serve) as server_side.uri:
        yield server_side


@asynccontextmanager
async def listening(serve: Callable[[StreamReader, StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve connections on a port of this machine, and give its address."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def read_request(reader: StreamReader) -> tuple[str, bytes]:
    """Read one request: its head, and its body by the length that the head says."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    found = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
    return head, await reader.readexactly(int(found[1]) if found else 0)


def spans_in(body: bytes) -> list[Any]:
    """List the spans of an OTLP request."""
    request = ExportTraceServiceRequest.FromString(body)
    return [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]


def weight_in(span: Any) -> float:
    """Read how many calls a trace stands for."""
    return next(float(one.value.double_value) for one in span.attributes if one.key == SAMPLE_WEIGHT)
