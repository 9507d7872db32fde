"""Closed-loop load: so many clients, each sending its next request when the last one is answered."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.server import Server


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Times in milliseconds; CPU is the server's whole process tree."""

    name: str
    concurrency: int
    num_requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms_per_request: float
    output_tokens_per_s: float
    num_otherwise: int
    """How many calls were answered by another layer than the case is about: a cache that was too slow, for one."""


async def closed_loop(
    server: Server,
    *,
    name: str,
    concurrency: int,
    num_requests: int,
    body_of: Callable[[int], dict[str, Any]],
    expect_cache: str,
) -> Row:
    """Send `num_requests` chat calls and measure them; raises where one is not answered."""
    numbers = itertools.count()
    latencies: list[float] = []
    tokens = num_otherwise = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal tokens, num_otherwise
        while (number := next(numbers)) < num_requests:
            begun = time.perf_counter()
            async with session.post(f"{server.url}/v1/chat/completions", json=body_of(number)) as reply:
                answer = await reply.json()
            latencies.append(time.perf_counter() - begun)
            if reply.status != 200:
                raise SystemExit(f"{name}: {reply.status} {answer}")
            num_otherwise += reply.headers["x-lamina-cache"] != expect_cache
            tokens += answer["usage"]["completion_tokens"]

    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:
        cpu_s, begun = server.cpu_s(), time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(concurrency)))
        wall_s, cpu_s = time.perf_counter() - begun, server.cpu_s() - cpu_s
    return Row(
        name=name,
        concurrency=concurrency,
        num_requests=num_requests,
        requests_per_s=num_requests / wall_s,
        p50_ms=statistics.median(latencies) * 1e3,
        p99_ms=statistics.quantiles(latencies, n=100)[98] * 1e3,
        cpu_ms_per_request=cpu_s / num_requests * 1e3,
        output_tokens_per_s=tokens / wall_s,
        num_otherwise=num_otherwise,
    )
