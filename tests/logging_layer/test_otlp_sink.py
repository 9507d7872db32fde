"""Any collector: what arrives there is a trace in the conventions' names, inside the caller's own where it has one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from logging_layer.feed import Feed
from logging_layer.otlp_sink import OtlpSink
from logging_layer.shipper import Shipper
from logging_layer.sink import Shipped, Sink, SinkDown, SinkRefused
from orchestration.core import Secret
from orchestration.core.trace_context import TraceContext, root_span_id_of
from tests.logging_layer.moody import listening, read_request, spans_in
from tests.logging_layer.samples import make_record, make_records, shipped
from tests.logging_layer.test_shipping import Memory, spool_of

SECRET = "planted-collector-key"


@dataclass
class Collector:
    """Take OTLP over HTTP, and answer with `status`; a `status` of 0 is silence."""

    status: int = 200
    body: bytes = ExportTraceServiceResponse().SerializeToString()
    heads: list[str] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, body = await read_request(reader)
            self.heads.append(head)
            if not self.status:
                await reader.read()
                return
            if self.status == 200:
                self.spans += spans_in(body)
            answer = self.body if self.status == 200 else f"no, {self.status}".encode()
            kind = "application/x-protobuf" if self.status == 200 else "text/plain"
            said = f"HTTP/1.1 {self.status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(answer)}\r\n"
            writer.write(said.encode() + b"connection: close\r\n\r\n" + answer)
            await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def collecting(**options: Any) -> AsyncIterator[Collector]:
    collector = Collector(**options)
    async with listening(collector.serve) as uri:
        collector.url = f"{uri}/v1/traces"
        yield collector


def a_sink(collector: Collector, *, timeout_s: float = 30.0) -> OtlpSink:
    return OtlpSink(collector.url, headers={"x-api-key": Secret(SECRET)}, timeout_s=timeout_s)


async def send(sink: OtlpSink, *records: Shipped) -> None:
    try:
        await sink.send(records)
    finally:
        await sink.aclose()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_a_call_is_a_span_per_layer_in_the_conventions_names() -> None:
    async with collecting() as collector:
        await send(a_sink(collector), shipped(await make_record(), weight=4.0))

    assert f"x-api-key: {SECRET}" in collector.heads[0]
    assert [span.name for span in collector.spans] == [
        *("chat small", "limits", "input_checks", "exact_cache", "semantic_cache", "output_checks", "router"),
        "chat small",
    ]
    told = attributes(collector.spans[-1])
    assert (told["gen_ai.operation.name"], told["gen_ai.request.model"]) == ("chat", "small")
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (12, 7)
    assert attributes(collector.spans[0])["lamina.sample_weight"] == 4.0
    assert not [name for span in collector.spans for name in attributes(span) if name.startswith("mlflow.")]


async def test_spans_are_part_of_the_callers_trace() -> None:
    record = replace(await make_record(), trace=TraceContext("ab" * 16, "cd" * 8, "01"))
    async with collecting() as collector:
        await send(a_sink(collector), shipped(record))

    assert {span.trace_id.hex() for span in collector.spans} == {"ab" * 16}
    assert collector.spans[0].parent_span_id.hex() == "cd" * 8
    assert collector.spans[0].span_id == root_span_id_of(record.id)
    assert collector.spans[1].parent_span_id == root_span_id_of(record.id)


@pytest.mark.parametrize(("status", "fault"), [(400, SinkRefused), (429, SinkDown), (401, SinkDown), (503, SinkDown)])
async def test_a_refusal_is_about_the_records_or_about_the_collector(status: int, fault: type[Exception]) -> None:
    async with collecting(status=status) as collector:
        with pytest.raises(fault, match=f"the collector at 127.0.0.1 answered {status}: no, {status}"):
            await send(a_sink(collector), shipped(await make_record()))


async def test_silence_is_a_collector_that_is_down() -> None:
    async with collecting(status=0) as collector:
        with pytest.raises(SinkDown, match="took too long"):
            await send(a_sink(collector, timeout_s=0.2), shipped(await make_record()))


async def test_what_a_collector_left_out_is_said(caplog: pytest.LogCaptureFixture) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
    body = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    async with collecting(body=body) as collector:
        await send(a_sink(collector), shipped(await make_record()))

    assert "spans=3: too old" in caplog.text
    assert SECRET not in caplog.text


async def test_collectors_that_are_down_hold_nobody_back(tmp_path: Path) -> None:
    await spool_of(tmp_path, await make_records(9))
    up, stopping = Memory("up"), asyncio.Event()
    stopping.set()
    async with collecting(status=503) as down, collecting() as other:
        sinks: list[Sink] = [up, a_sink(down), a_sink(other)]
        shipper = Shipper(tmp_path, [Feed(tmp_path, sink) for sink in sinks])
        shipper.start()
        await shipper.run(stopping)
        await shipper.aclose()

    assert (len(up.kept), len({span.trace_id for span in other.spans})) == (9, 9)
    assert list(shipper.problems()) == [sinks[1].name]
    assert SECRET not in str(shipper.problems())
