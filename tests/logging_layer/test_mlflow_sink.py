"""MLflow, for real: what is sent is what its own API gives back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logging_layer.codec import decode
from logging_layer.feed import Feed
from logging_layer.mlflow_sink import MlflowSink
from logging_layer.record import CallRecord
from logging_layer.sampling import lowered, weight_of
from logging_layer.shipper import Shipper
from logging_layer.sink import SinkDown
from logging_layer.spans import spans_of, trace_id_of
from logging_layer.spool import Spool
from orchestration.core import Attempt, Call, Event, Start
from orchestration.core.errors import BackendTimeout, Blocked
from orchestration.core.notes import ENGINE
from tests.logging_layer.samples import Mlflow, answering, batch_of, hit, make_record, make_records, shipped


def attributes_of(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


async def send(mlflow: Mlflow, experiment: str, *records: CallRecord) -> None:
    sink = MlflowSink(mlflow.uri, experiment=experiment)
    await sink.send(batch_of(records))
    await sink.aclose()


async def test_every_call_is_one_trace_however_often_it_is_sent(mlflow: Mlflow) -> None:
    records = await make_records(40)

    await send(mlflow, "many", *records)
    await send(mlflow, "many", *records[:10])

    traces = mlflow.traces("many")
    assert len(traces) == 40
    assert {trace["tags"]["lamina.call"] for trace in traces} == {record.id for record in records}


async def test_a_trace_has_a_span_per_layer_and_what_mlflow_shows_of_it(mlflow: Mlflow) -> None:
    record = await make_record(user="u1", metadata={"session_id": "s1"}, temperature=0.0)

    await send(mlflow, "shape", record)

    trace = mlflow.trace(f"tr-{trace_id_of(record.id).hex()}")
    info = trace["trace_info"]
    assert [span["name"] for span in trace["spans"]] == [
        "chat small",
        *("limits", "input_checks", "exact_cache", "semantic_cache", "output_checks", "router"),
        "chat small",
    ]
    assert "capital of France" in info["request_preview"]
    assert "Paris" in info["response_preview"]
    metadata = info["trace_metadata"]
    assert (metadata["mlflow.trace.session"], metadata["mlflow.trace.user"]) == ("s1", "u1")
    usage = json.loads(metadata["mlflow.trace.tokenUsage"])
    assert (usage["input_tokens"], usage["output_tokens"]) == (12, 7)
    assert json.loads(metadata["mlflow.trace.cost"])["total_cost"] == 0.00002
    assert info["state"] == "OK"
    cache = attributes_of(next(span for span in trace["spans"] if span["name"] == "semantic_cache"))
    assert "miss" in str(cache["lamina.cache.status"])
    assert "0.95" in str(cache["lamina.cache.threshold"])


async def test_a_failed_call_is_an_error_in_mlflow(mlflow: Mlflow) -> None:
    async def failing(call: Call, /) -> AsyncGenerator[Event, None]:
        call.notes.attempts.append(Attempt("small", "engine", error="backend_timeout", duration_ms=5.0))
        raise BackendTimeout("too slow")
        yield Start("m", "b")

    record = await make_record(core=failing)

    await send(mlflow, "failed", record)

    assert [trace["state"] for trace in mlflow.traces("failed")] == ["ERROR"]


@pytest.mark.parametrize("odd", ["\ud800", "a\0b", "x" * 100_000])
async def test_odd_texts_reach_mlflow(mlflow: Mlflow, odd: str) -> None:
    record = await make_record(user=odd, metadata={"session_id": odd}, stop=[odd])

    await send(mlflow, "odd", record)

    assert mlflow.trace(f"tr-{trace_id_of(record.id).hex()}")["spans"]


async def test_redacted_records_show_no_text_in_mlflow(mlflow: Mlflow) -> None:
    record = await make_record(content="redacted")

    await send(mlflow, "redacted", record)

    assert "France" not in json.dumps(mlflow.trace(f"tr-{trace_id_of(record.id).hex()}"))


async def test_nobody_there_is_a_sink_that_is_down() -> None:
    sink = MlflowSink("http://127.0.0.1:1", experiment="x")

    with pytest.raises(SinkDown):
        await sink.send([shipped(await make_record())])

    await sink.aclose()


async def test_a_batch_that_takes_too_long_is_made_smaller() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = b'{"experiment": {"experiment_id": "7"}}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))
        else:
            await reader.read()  # until the client gives up
        writer.close()
        await writer.wait_closed()
        num_served.release()

    num_served = asyncio.Semaphore(0)
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sink = MlflowSink(f"http://127.0.0.1:{port}", experiment="x", timeout_s=0.2)
    first = sink.max_records

    with pytest.raises(SinkDown, match="took too long for 1 traces"):
        await sink.send([shipped(await make_record())])

    assert sink.max_records == first // 2
    await sink.aclose()
    for _ in range(2):
        await num_served.acquire()
    server.close()
    await server.wait_closed()


async def test_what_is_left_out_is_counted_and_what_went_wrong_is_not(mlflow: Mlflow, tmp_path: Path) -> None:
    async def blocking(call: Call, /) -> AsyncGenerator[Event, None]:
        raise Blocked("no")
        yield Start("m", "b")

    spool = Spool(tmp_path, worker="w0")
    await spool.start()
    for record in [*await make_records(5), await make_record(core=blocking)]:
        spool.append(record)
    await spool.aclose()
    feed = Feed(
        tmp_path,
        MlflowSink(mlflow.uri, experiment="sampled"),
        choose=lambda record, _backlog_bytes: weight_of(record, rate=0.0),
    )
    shipper, stopping = Shipper(tmp_path, [feed]), asyncio.Event()
    stopping.set()
    shipper.start()

    await shipper.run(stopping)

    assert [trace["tags"]["lamina.outcome"] for trace in mlflow.traces("sampled")] == ["blocked"]
    assert (feed.counts.shipped, feed.counts.left_out) == (1, 5)
    await shipper.aclose()


@settings(deadline=None)  # others use this machine too
@given(st.integers(0, 10**6).map(str), st.floats(0, 1))
def test_a_draw_is_the_same_again_and_grows_with_the_rate(call_id: str, rate: float) -> None:
    record = {"id": call_id, "outcome": "answered", "cache": {"threshold": None}}

    assert weight_of(record, rate=1.0) == 1.0
    assert weight_of(record, rate=0.0) == 0.0
    assert weight_of(record, rate=rate) in (0.0, 1.0 / (rate or 1.0))
    assert (weight_of(record, rate=rate) > 0.0) <= (weight_of(record, rate=min(rate + 0.1, 1.0)) > 0.0)


@pytest.mark.parametrize(
    ("similarity", "is_sent"), [(0.97, True), (0.94, True), (0.931, True), (0.92, False), (1.0, False)]
)
def test_decisions_near_the_bar_are_always_sent(similarity: float, is_sent: bool) -> None:
    note = hit(similarity=similarity, threshold=0.95)
    cache = {
        "threshold": note.threshold,
        "similarity": note.similarity,
        "candidates": [{"similarity": each.similarity} for each in note.candidates],
    }

    assert weight_of({"id": "x", "outcome": "answered", "cache": cache}, rate=0.0) == float(is_sent)


def test_the_rate_is_lowered_in_proportion_to_the_backlog() -> None:
    assert lowered(1.0, backlog_bytes=100, bearable_bytes=100) == 1.0
    assert lowered(0.5, backlog_bytes=400, bearable_bytes=100) == 0.125


async def test_spans_lie_inside_their_parents() -> None:
    record = decode((await make_record()).to_json())

    spans = {span.span_id: span for span in spans_of(record)}

    assert len(spans) == 8
    for span in spans.values():
        assert span.start_ns <= span.end_ns
        if span.parent_id:
            assert spans[span.parent_id].start_ns <= span.start_ns
            assert span.end_ns <= spans[span.parent_id].end_ns


@pytest.mark.parametrize("content", ["full", "redacted", "none"])
async def test_each_sequence_of_the_engine_has_a_span_with_what_happened_to_it(content: str) -> None:
    told = {"submitted_ms": 0.01, "queued": 0.0, "admitted": 0.001, "first_token": 0.003, "preempted": [0.002]}

    async def by_engine(call: Call, /) -> AsyncGenerator[Event, None]:
        call.notes.extra[ENGINE] = [{**told, "finished": 0.004}, told]
        async with aclosing(answering(call)) as events:
            async for event in events:
                yield event

    record = decode((await make_record(core=by_engine, content=content)).to_json())
    spans = spans_of(record)

    parents = {span.span_id: span for span in spans}
    ended, aborted = (span for span in spans if span.name == "engine")
    for span in (ended, aborted):
        parent = parents[span.parent_id]
        assert parent.name == "chat small"
        assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns
        assert span.attributes["lamina.engine.admitted_ms"] == 0.001
        assert span.attributes["lamina.engine.preemptions"] == 1
    names = ["queued", "admitted", "preempted", "first_token", "finished"]
    assert [moment.name for moment in ended.moments] == names
    assert [moment.name for moment in aborted.moments] == names[:-1]
    assert [moment.at_ns - ended.start_ns for moment in ended.moments] == [0, 1000, 2000, 3000, 4000]


async def test_usage_is_on_one_span_alone() -> None:
    record = decode((await make_record()).to_json())

    holders = [span.name for span in spans_of(record) if "gen_ai.usage.input_tokens" in span.attributes]

    assert holders == ["chat small"]
