"""From a thousand entries to a million over 10,000 partitions: look-ups, memory, and how long a restart takes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cache.encoder import Encoder
from cache.index import Row
from cache.owner_client import OwnerClient
from cache.partitions import Partitions
from cache.vector_store import VectorStore
from lab.bench.cache.processes import Model, Owner, owner, valkey
from lab.bench.cache.synthetic import DIM, Texts
from lab.bench.process_tree import cpu_s, rss_mb

SIZES = (1_000, 10_000, 100_000, 1_000_000)
NUM_PARTITIONS = 10_000
_NUM_LOOKUPS = 2000
_FOREVER_S = 1e8
_NUM_TIMED_TEXTS = 300
_TOP_K = 5


@dataclass(frozen=True, slots=True)
class InMemory:
    """The index alone: microseconds a look-up, bytes an entry, and how long filling it took."""

    num_entries: int
    num_partitions: int
    cpu_us: float
    p50_us: float
    p95_us: float
    bytes_per_entry: float
    fill_s: float
    load_average: float


@dataclass(frozen=True, slots=True)
class Restart:
    """The owner as a process: how soon it answers, and has all in memory, from Valkey; and after a graceful end."""

    num_entries: int
    ready_s: float
    ready_cpu_s: float
    loaded_s: float
    loaded_cpu_s: float
    first_lookup_ms: float
    graceful_ready_s: float
    lookup_cpu_ms: float
    lookup_p50_ms: float
    lookup_p95_ms: float
    owner_mb: float
    valkey_mb: float
    load_average: float


def measure_scale(sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """Measure the index at every size, each in a process of its own, so that memory is that size's."""
    context = multiprocessing.get_context("spawn")
    found = []
    for size in sizes:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found.append(asdict(pool.submit(measure_in_memory, size).result()))
    return found


def measure_in_memory(num_entries: int, *, seed: int = 0) -> InMemory:
    """Fill partitions in random order, then look up questions in random ones."""
    generator = np.random.default_rng(seed)
    texts = Texts(num_entries, seed=seed)
    num_partitions = min(num_entries, NUM_PARTITIONS)
    names = [f"{number:064x}" for number in range(num_partitions)]
    partitions = Partitions(DIM, max_rows=2 * num_entries, max_partitions=2 * num_partitions)
    before, fill_s, number = rss_mb(), 0.0, 0
    ends = time.time() + _FOREVER_S
    for vectors in texts.wordings(num_entries):
        begun = time.thread_time()
        for vector, place in zip(vectors, generator.integers(0, num_partitions, len(vectors)), strict=True):
            partitions.add(names[place], Row(f"{number:064x}", vector, ends))
            number += 1
        fill_s += time.thread_time() - begun
    del vectors
    used = rss_mb() - before
    questions = texts.questions(_NUM_LOOKUPS)
    places = generator.integers(0, num_partitions, _NUM_LOOKUPS)
    walls: list[float] = []
    cpu = time.thread_time()
    for vector, place in zip(questions, places, strict=True):
        begun = time.perf_counter()
        partitions.search(names[place], vector, _TOP_K)
        walls.append((time.perf_counter() - begun) * 1e6)
    cpu_us = (time.thread_time() - cpu) / _NUM_LOOKUPS * 1e6
    p50, p95 = np.quantile(walls, (0.5, 0.95))
    return InMemory(
        num_entries,
        num_partitions,
        cpu_us,
        float(p50),
        float(p95),
        used * 1e6 / num_entries,
        fill_s,
        os.getloadavg()[0],
    )


def measure_restart(model: Model, num_entries: int, *, seed: int = 0) -> Restart:
    """Fill a Valkey, start an owner on it, kill it and start it again, end it gracefully and start it again."""
    encoder = Encoder(model.exported)
    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as name:
        folder = Path(name)
        with valkey(folder) as (url, valkey_pid):
            names = asyncio.run(_fill(url, encoder.revision, num_entries, seed=seed))
            flags = ("--state", str(folder / "state"), "--max-rows", str(2 * num_entries))
            with owner(folder, model, url, *flags) as running:
                first = asyncio.run(_look_up_when_ready(running, names, num_entries))
                owner_mb, valkey_mb = rss_mb(running.process.pid), rss_mb(valkey_pid)
                running.stop()
            with owner(folder, model, url, *flags) as again:
                graceful_s = again.ready_s
    return Restart(
        num_entries=num_entries,
        ready_s=running.ready_s,
        graceful_ready_s=graceful_s,
        owner_mb=owner_mb,
        valkey_mb=valkey_mb,
        load_average=os.getloadavg()[0],
        **first,
    )


async def _fill(url: str, revision: str, num_entries: int, *, seed: int) -> list[str]:
    """Put entries into Valkey as an owner does; returns the partitions' names."""
    store = VectorStore(url, revision=revision, dim=DIM, owner="bench", timeout_s=60.0)
    texts, ends = Texts(num_entries, seed=seed), time.time() + _FOREVER_S
    num_partitions = min(num_entries, NUM_PARTITIONS)
    per_partition = num_entries // num_partitions
    names = [f"{number:064x}" for number in range(num_partitions)]
    try:
        first = 0
        for vectors in texts.wordings(num_partitions * per_partition):
            for begin in range(0, len(vectors), per_partition):
                name = names[(first + begin) // per_partition]
                part = enumerate(vectors[begin : begin + per_partition], first + begin)
                rows = [Row(f"{number:064x}", vector, ends) for number, vector in part]
                await store.save_all(name, rows, ttl_s=_FOREVER_S)
            first += len(vectors)
    finally:
        await store.aclose()
    return names


async def _look_up_when_ready(running: Owner, names: list[str], num_entries: int) -> dict[str, float]:
    """Look up at once, wait until everything is in memory, and look up many texts that it has not seen."""
    begun, ready_cpu_s = time.monotonic(), cpu_s(running.process.pid)
    client = OwnerClient(running.socket)
    try:
        first_ms = await _lookup_ms(client, names[-1], "the first question of all")
        while (await client.stats())["rows"] < num_entries:  # noqa: ASYNC110 (the news is in another process)
            await asyncio.sleep(0.05)
        loaded_s = running.ready_s + time.monotonic() - begun
        loaded_cpu_s = cpu_s(running.process.pid)
        generator = np.random.default_rng(1)
        asked = [
            (names[place], f"how far is it to the village number {number} of the north")
            for number, place in enumerate(generator.integers(0, len(names), _NUM_TIMED_TEXTS))
        ]
        before = cpu_s(running.process.pid)
        times = [await _lookup_ms(client, name, text) for name, text in asked]
        lookup_cpu_ms = (cpu_s(running.process.pid) - before) / len(times) * 1e3
    finally:
        await client.aclose()
    p50, p95 = np.quantile(times, (0.5, 0.95))
    return {
        "ready_cpu_s": ready_cpu_s,
        "loaded_s": loaded_s,
        "loaded_cpu_s": loaded_cpu_s,
        "first_lookup_ms": first_ms,
        "lookup_cpu_ms": lookup_cpu_ms,
        "lookup_p50_ms": float(p50),
        "lookup_p95_ms": float(p95),
    }


async def _lookup_ms(client: OwnerClient, partition: str, text: str) -> float:
    begun = time.perf_counter()
    await client.search(partition, text, top_k=_TOP_K, timeout_s=60.0)
    return (time.perf_counter() - begun) * 1e3
