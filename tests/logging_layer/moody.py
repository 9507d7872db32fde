"""A server that speaks MLflow's intake, in whatever mood a test wants it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
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

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            found = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(found[1]) if found else 0)
            is_intake = head.startswith("POST /v1/traces")
            self.num_asked += is_intake
            if is_intake and self.status == HANGS:
                await reader.read()
                return
            status = self.status if is_intake else 200
            if is_intake and status == 200:
                request = ExportTraceServiceRequest.FromString(body)
                scopes = [scope for one in request.resource_spans for scope in one.scope_spans]
                roots = [span for scope in scopes for span in scope.spans if not span.parent_span_id]
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
    server = await asyncio.start_server(server_side.serve, "127.0.0.1", 0)
    server_side.uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield server_side
    finally:
        server.close()


def weight_in(span: Any) -> float:
    """Read how many calls a trace stands for."""
    return next(float(one.value.double_value) for one in span.attributes if one.key == SAMPLE_WEIGHT)
