"""The cases of the gateway's benchmark, and what one run of a case gives."""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from lab.bench.gateway.client import Timings, run_load
from lab.bench.gateway.mock_upstream import NUM_CHUNKS
from lab.bench.gateway.targets import MASTER_KEY, Running
from lab.bench.process_tree import cpu_s

STALL_S = 1.0
_DRAIN_S = 120.0
_LOOK_S = 0.3
_BACKLOG = re.compile(r"^lamina_log_shipper_sql_backlog_bytes (\S+)", re.M)


@dataclass(frozen=True, slots=True)
class Case:
    """What is sent: `body_of` writes the body of a run's n-th request."""

    name: str
    body_of: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a case; times in milliseconds, CPU in microseconds over the server's whole process tree.

    `first_ms` and `token_ms` are a stream's: to its first token, and between two.
    """

    target: str
    case: str
    concurrency: int
    num_requests: int
    num_errors: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    first_ms: float | None
    token_ms: float | None
    cpu_us: float
    load: float


@dataclass(frozen=True, slots=True)
class Paced:
    """Streams held at once: how many, how many stood still for over a second, and the longest wait of all."""

    target: str
    num_streams: int
    num_errors: int
    num_stalled: int
    longest_gap_ms: float
    first_p99_ms: float


def misses(*, is_streamed: bool) -> Case:
    """Ask what was never asked before."""
    nonce = time.time_ns()
    head = b'{"model":"mock","stream":true,' if is_streamed else b'{"model":"mock",'
    tail = b'"messages":[{"role":"user","content":"What is the capital of France? Number %d of run %d."}]}'
    return Case("stream" if is_streamed else "whole", lambda number: head + tail % (number, nonce))


def hits() -> Case:
    """Ask the same over and over."""
    body = b'{"model":"mock","messages":[{"role":"user","content":"What is the capital of France?"}]}'
    return Case("exact hit", lambda _: body)


async def run_case(target: Running, case: Case, *, concurrency: int, seconds: float) -> Row:
    """Run one case for so long; what the log still has to ship counts as its CPU time."""
    load, used_s = os.getloadavg()[0], cpu_s(target.pid)
    timings = await run_load(target.target, case.body_of, concurrency=concurrency, seconds=seconds)
    await wait_until_drained(target)
    used_s = cpu_s(target.pid) - used_s
    num_requests = max(1, len(timings.latencies_s))
    return Row(
        target=target.name,
        case=case.name,
        concurrency=concurrency,
        num_requests=num_requests,
        num_errors=timings.num_errors,
        requests_per_s=num_requests / timings.wall_s,
        p50_ms=_quantile_ms(timings.latencies_s, 0.5),
        p99_ms=_quantile_ms(timings.latencies_s, 0.99),
        first_ms=_quantile_ms(timings.firsts_s, 0.5) if timings.firsts_s else None,
        token_ms=_token_ms(timings),
        cpu_us=used_s / num_requests * 1e6,
        load=load,
    )


async def run_paced(target: Running, *, num_streams: int, seconds: int) -> Paced:
    """Hold so many streams of ten events a second for so long."""
    body = b'{"model":"paced","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"Number %d at %d."}]}'
    nonce = time.time_ns()
    timings = await run_load(
        target.target,
        lambda number: body % (seconds * 10, number, nonce),
        concurrency=num_streams,
        num_requests=num_streams,
    )
    return Paced(
        target=target.name,
        num_streams=num_streams,
        num_errors=timings.num_errors,
        num_stalled=sum(gap_s > STALL_S for gap_s in timings.gaps_s),
        longest_gap_ms=max(timings.gaps_s, default=0.0) * 1e3,
        first_p99_ms=_quantile_ms(timings.firsts_s, 0.99),
    )


async def wait_until_drained(target: Running) -> None:
    """Wait until the log of a gateway of ours has shipped all that it has; others have none."""
    if target.name != "lamina":
        return
    for _ in range(round(_DRAIN_S / _LOOK_S)):
        if not await asyncio.to_thread(_backlog_bytes, target):
            return
        await asyncio.sleep(_LOOK_S)


def _backlog_bytes(target: Running) -> float:
    url = f"{target.target.url.removesuffix('/v1')}/metrics"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {MASTER_KEY}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        found = _BACKLOG.search(reply.read().decode())
    return float(found[1]) if found else 1.0


def _quantile_ms(values_s: list[float], share: float) -> float:
    if not values_s:
        return 0.0
    return sorted(values_s)[int((len(values_s) - 1) * share)] * 1e3


def _token_ms(timings: Timings) -> float | None:
    if len(timings.firsts_s) != len(timings.latencies_s) or not timings.firsts_s:
        return None
    rest_s = [whole - first for whole, first in zip(timings.latencies_s, timings.firsts_s, strict=True)]
    return statistics.median(rest_s) / (NUM_CHUNKS - 1) * 1e3
