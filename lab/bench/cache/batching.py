"""Dynamic batching on the real encoder: how long to wait, how much to take, at little load and at much."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cache.owner_client import OwnerClient
from lab.bench.cache.processes import Model, Owner, owner, valkey
from lab.bench.process_tree import cpu_s

CONCURRENCIES = (1, 8, 32)
_TIMEOUT_S = 60.0
_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Setting:
    """How the owner batches, and over how many connections, as many as there are workers, it is asked."""

    max_batch_size: int
    max_queue_delay_ms: float
    num_workers: int = 1

    @property
    def flags(self) -> tuple[str, ...]:
        """Give the owner's options."""
        delay_ms = f"{self.max_queue_delay_ms:g}"
        return ("--max-batch-size", str(self.max_batch_size), "--max-queue-delay-ms", delay_ms)


SETTINGS = (
    Setting(1, 0),
    *(Setting(32, delay_ms) for delay_ms in (0, 1, 2, 4, 8)),
    Setting(8, 2),
    Setting(32, 2, num_workers=4),
)


@dataclass(slots=True)
class _Measured:
    """What one setting did at one concurrency, all rounds together."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_encoded: float = 0.0
    num_batches: float = 0.0
    times_ms: list[float] = field(default_factory=list)


def measure_batching(model: Model, *, requests: int = 200, rounds: int = 3) -> dict[str, Any]:
    """Ask owners of every setting, in turns, so that a load from outside falls on all; texts are all new."""
    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as name, contextlib.ExitStack() as stack:
        url, _ = stack.enter_context(valkey(Path(name)))
        owners = []
        for place, setting in enumerate(SETTINGS):
            folder = Path(name) / str(place)
            folder.mkdir()
            owners.append((setting, stack.enter_context(owner(folder, model, url, *setting.flags))))
        found = asyncio.run(_measure(owners, requests=requests, rounds=rounds))
    rows = [_row(setting, concurrency, one) for (setting, concurrency), one in found.items()]
    return {"rows": rows, "requests": requests, "rounds": rounds, "load_average": os.getloadavg()[0]}


async def _measure(
    owners: list[tuple[Setting, Owner]], *, requests: int, rounds: int
) -> dict[tuple[Setting, int], _Measured]:
    texts = (f"how far is it to the village number {number} of the north" for number in itertools.count())
    found = {(setting, concurrency): _Measured() for concurrency in CONCURRENCIES for setting, _ in owners}
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for setting, running in owners:
            clients[setting] = [OwnerClient(running.socket) for _ in range(setting.num_workers)]
            for client in clients[setting]:
                stack.push_async_callback(client.aclose)
            await _ask(clients[setting], texts, concurrency=4, requests=_WARM_UP)
        for _, concurrency in itertools.product(range(rounds), CONCURRENCIES):
            for setting, running in owners:
                await _add_round(
                    found[setting, concurrency], running, clients[setting], texts, concurrency, requests=requests
                )
    return found


async def _add_round(
    measured: _Measured,
    running: Owner,
    clients: list[OwnerClient],
    texts: Iterator[str],
    concurrency: int,
    *,
    requests: int,
) -> None:
    before, cpu_before, begun = await clients[0].stats(), cpu_s(running.process.pid), time.perf_counter()
    measured.times_ms += await _ask(clients, texts, concurrency=concurrency, requests=requests)
    measured.wall_s += time.perf_counter() - begun
    measured.cpu_s += cpu_s(running.process.pid) - cpu_before
    after = await clients[0].stats()
    measured.num_encoded += after["encoded"] - before["encoded"]
    measured.num_batches += after["batches"] - before["batches"]


async def _ask(clients: list[OwnerClient], texts: Iterator[str], *, concurrency: int, requests: int) -> list[float]:
    """Keep `concurrency` look-ups under way until `requests` were answered; returns their times in ms."""
    numbers, times = itertools.count(), list[float]()

    async def asker(client: OwnerClient) -> None:
        while next(numbers) < requests:
            begun = time.perf_counter()
            await client.search("bench", next(texts), top_k=5, timeout_s=_TIMEOUT_S)
            times.append((time.perf_counter() - begun) * 1e3)

    await asyncio.gather(*(asker(clients[place % len(clients)]) for place in range(concurrency)))
    return times


def _row(setting: Setting, concurrency: int, measured: _Measured) -> dict[str, Any]:
    p50, p95, p99 = np.quantile(measured.times_ms, (0.5, 0.95, 0.99))
    return {
        "max_batch_size": setting.max_batch_size,
        "max_queue_delay_ms": setting.max_queue_delay_ms,
        "workers": setting.num_workers,
        "concurrency": concurrency,
        "requests_per_s": len(measured.times_ms) / measured.wall_s,
        "cpu_ms": measured.cpu_s / len(measured.times_ms) * 1e3,
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "p99_ms": float(p99),
        "mean_batch": measured.num_encoded / measured.num_batches,
    }
