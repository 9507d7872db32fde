"""Calls, records and a view of MLflow for the log's tests."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from ulid import ULID

from logging_layer.call_log import CallLog
from logging_layer.record import CallRecord
from logging_layer.segment import list_segments, read_lines
from logging_layer.sink import Shipped
from logging_layer.stages import timed, timed_handler
from orchestration.core import (
    Attempt,
    CacheNote,
    CacheStatus,
    Call,
    Candidate,
    CheckNote,
    Delta,
    Event,
    Finish,
    Handler,
    Kind,
    Request,
    Start,
    Usage,
    compose,
)


@dataclass
class Kept:
    """A spool that keeps its records in memory."""

    records: list[CallRecord] = field(default_factory=list)

    def append(self, record: CallRecord) -> None:
        self.records.append(record)


def make_call(call_id: str | None = None, **fields: Any) -> Call:
    """Make a chat call with an id of its own."""
    body = {"model": "small", "messages": [{"role": "user", "content": "What is the capital of France?"}], **fields}
    return Call(
        id=call_id or str(ULID()),
        request_id="req-1",
        tenant="tenant-a",
        request=Request(kind=Kind.CHAT, dialect="openai.chat", fields=body),
        received_at=time.time(),
        started=time.monotonic(),
    )


async def answering(call: Call, /) -> AsyncGenerator[Event, None]:
    """Answer in two pieces, and note what a router notes."""
    call.notes.model, call.notes.backend, call.notes.cost_usd = "small-1", "engine", 0.00002
    call.notes.attempts.append(Attempt("small", "engine", duration_ms=0.01))
    yield Start("small-1", "engine")
    yield Delta(text="The capital of France ")
    yield Delta(text="is Paris.")
    yield Finish(usage=Usage(prompt_tokens=12, completion_tokens=7, cached_tokens=4))


async def missing(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
    """Note a semantic miss, then ask the next handler."""
    call.notes.cache.status = CacheStatus.MISS
    call.notes.cache.threshold = 0.95
    call.notes.cache.partition = "p1"
    call.notes.cache.candidates.append(Candidate("entry-1", 0.71))
    call.notes.checks.append(CheckNote("length", "input", "pass", "none"))
    async with aclosing(next(call)) as events:
        async for event in events:
            yield event


def layered(spool: Kept, core: Handler = answering, *, content: str = "full") -> Handler:
    """Build an onion as wiring does: each layer timed, the log outermost."""
    names = ["limits", "input_checks", "exact_cache", "semantic_cache", "output_checks"]
    layers = [timed(name, missing if name == "semantic_cache" else passing) for name in names]
    return compose([CallLog(spool, content=content, worker="w0"), *layers], timed_handler("router", core))


async def passing(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
    """Do nothing."""
    async with aclosing(next(call)) as events:
        async for event in events:
            yield event


async def make_record(*, core: Handler = answering, content: str = "full", **fields: Any) -> CallRecord:
    """Make the record of one call through the whole onion."""
    spool = Kept()
    try:
        async with aclosing(layered(spool, core, content=content)(make_call(**fields))) as events:
            async for _ in events:
                pass
    except Exception:  # the record is what is wanted, also of a call that fails
        assert spool.records
    return spool.records[0]


async def make_records(count: int) -> list[CallRecord]:
    """Make several records."""
    return [await make_record() for _ in range(count)]


def shipped(record: CallRecord, *, weight: float = 1.0) -> Shipped:
    """Make of a record what a sink gets."""
    return Shipped(record.to_json(), weight)


def batch_of(records: Iterable[CallRecord]) -> list[Shipped]:
    """Make of records what a sink gets at a time."""
    return [shipped(record) for record in records]


def spooled(folder: Path) -> list[bytes]:
    """Read every whole line of a spool."""
    return [line.data for path in list_segments(folder) for line in read_lines(path) if line.data is not None]


@dataclass(frozen=True)
class Mlflow:
    """What MLflow holds, read through its REST API."""

    uri: str

    def traces(self, experiment: str) -> list[dict[str, Any]]:
        """List the traces of an experiment, without their spans."""
        experiment_id = self.experiment_id(experiment)
        location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment_id}}
        traces: list[dict[str, Any]] = []
        token = ""
        while True:
            body = {"locations": [location], "max_results": 100, **({"page_token": token} if token else {})}
            answer = self._post("/api/3.0/mlflow/traces/search", body)
            traces += answer.get("traces", [])
            token = answer.get("next_page_token", "")
            if not token:
                return traces

    def trace(self, trace_id: str) -> dict[str, Any]:
        """Get one trace with its spans."""
        response = httpx.get(f"{self.uri}/api/3.0/mlflow/traces/get", params={"trace_id": trace_id}, timeout=30.0)
        response.raise_for_status()
        return dict(response.json()["trace"])

    def experiment_id(self, name: str) -> str:
        """Find an experiment."""
        response = httpx.get(
            f"{self.uri}/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": name}, timeout=30.0
        )
        response.raise_for_status()
        return str(response.json()["experiment"]["experiment_id"])

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """Ask for one thing of its runs, such as `runs/get`."""
        response = httpx.get(f"{self.uri}/api/2.0/mlflow/{path}", params=params, timeout=30.0)
        response.raise_for_status()
        return dict(response.json())

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = httpx.post(f"{self.uri}{path}", json=body, timeout=30.0)
        response.raise_for_status()
        return dict(response.json())


def hit(*, similarity: float, threshold: float) -> CacheNote:
    """Note a semantic hit."""
    return CacheNote(
        status=CacheStatus.SEMANTIC,
        similarity=similarity,
        threshold=threshold,
        candidates=[Candidate("entry-1", similarity)],
    )
