"""Compare HTTP clients for one kind of request: `python -m benchmarks.upstream_clients`.

A POST of a small chat over kept connections to a stand-in on loopback, the whole body read. Every repeat goes through
all clients in turn; CPU is this process's own, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import httpx
import uvloop

from backends.remote.upstream import Upstream
from lab.bench.gateway.targets import mock_upstream

BODY = b'{"model":"mock","messages":[{"role":"user","content":"What is the capital of France?"}]}'
Ask = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def own(url: str) -> AsyncIterator[Ask]:
    """Give our client."""
    upstream = Upstream(base_url=url, name=None, kind="bench", headers={}, connect_s=5.0)

    async def ask() -> bytes:
        deadline_s = asyncio.get_running_loop().time() + 60.0
        reply = await upstream.post("chat/completions", BODY, headers={}, deadline_s=deadline_s)
        body = await reply.read(deadline_s=deadline_s, limit_bytes=1_000_000)
        reply.close()
        return body

    yield ask
    await upstream.aclose()


@asynccontextmanager
async def over_httpx(url: str) -> AsyncIterator[Ask]:
    """Give httpx over its own transport."""
    limits = httpx.Limits(max_connections=1_000, max_keepalive_connections=100)
    async with httpx.AsyncClient(limits=limits, trust_env=False, timeout=60.0) as client:

        async def ask() -> bytes:
            async with client.stream("POST", f"{url}/chat/completions", content=BODY) as reply:
                return await reply.aread()

        yield ask


@asynccontextmanager
async def over_aiohttp(url: str) -> AsyncIterator[Ask]:
    """Give aiohttp."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1_000)) as session:

        async def ask() -> bytes:
            async with session.post(f"{url}/chat/completions", data=BODY) as reply:
                return await reply.read()

        yield ask


CLIENTS = {"ours": own, "httpx": over_httpx, "aiohttp": over_aiohttp}


async def run(url: str, name: str, concurrency: int, num_requests: int) -> float:
    """Return the CPU microseconds of one request."""
    async with CLIENTS[name](url) as ask:

        async def client() -> None:
            for _ in range(num_requests // concurrency):
                await ask()

        await asyncio.gather(*(ask() for _ in range(concurrency)))
        begun_s = time.process_time()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        return (time.process_time() - begun_s) / num_requests * 1e6


async def main(repeats: int, num_requests: int) -> None:
    """Measure and print."""
    with mock_upstream() as upstream:
        figures: dict[tuple[str, int], list[float]] = {}
        for _ in range(repeats):
            for concurrency in (1, 32):
                for name in CLIENTS:
                    figures.setdefault((name, concurrency), []).append(
                        await run(upstream.target.url, name, concurrency, num_requests)
                    )
    print(f"CPU us of a request, median of {repeats} (least); load {os.getloadavg()[0]:.1f}")
    for (name, concurrency), values in figures.items():
        print(f"{name:8} {concurrency:3} at once: {statistics.median(values):7.0f} ({min(values):.0f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=960)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(options.repeats, options.requests))
