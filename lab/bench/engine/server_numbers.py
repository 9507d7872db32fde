"""What a server says of itself at `/metrics`, by vLLM's names, which our engine uses too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from lab.bench.engine.processes import get

_GAUGES = ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")
_COUNTERS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total")


@dataclass(slots=True)
class ServerNumbers:
    """What happened in a server during a run; all None where it does not say."""

    kv_usage_max: float | None = None
    running_max: float | None = None
    waiting_max: float | None = None
    hit_rate: float | None = None
    preemptions: int | None = None


@dataclass(slots=True)
class _Watch:
    """The largest gauges so far, and the counters before and after."""

    gauges: dict[str, float] = field(default_factory=dict)
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)

    def see(self, numbers: Mapping[str, float]) -> None:
        self.after = numbers
        self.before = self.before or numbers
        for name in _GAUGES:
            if name in numbers:
                self.gauges[name] = max(self.gauges.get(name, 0.0), numbers[name])

    def sum_up(self, into: ServerNumbers) -> None:
        into.kv_usage_max, into.running_max, into.waiting_max = map(self.gauges.get, _GAUGES)
        queries, hits, preemptions = (self._growth(name) for name in _COUNTERS)
        into.hit_rate = None if hits is None or not queries else hits / queries
        into.preemptions = None if preemptions is None else int(preemptions)

    def _growth(self, name: str) -> float | None:
        return self.after[name] - self.before.get(name, 0.0) if name in self.after else None


@contextlib.asynccontextmanager
async def watching(host: str, port: int, *, period_s: float = 1.0) -> AsyncIterator[ServerNumbers]:
    """Watch a server while the block runs; the numbers are there once it has ended."""
    watch, numbers = _Watch(), ServerNumbers()
    with contextlib.suppress(OSError, TimeoutError):
        watch.see(await read_metrics(host, port))
    task = asyncio.create_task(_follow(watch, host, port, period_s)) if watch.gauges else None
    try:
        yield numbers
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if task is not None:
        with contextlib.suppress(OSError, TimeoutError):
            watch.see(await read_metrics(host, port))
        watch.sum_up(numbers)


async def _follow(watch: _Watch, host: str, port: int, period_s: float) -> None:
    while True:
        await asyncio.sleep(period_s)
        with contextlib.suppress(OSError, TimeoutError):
            watch.see(await read_metrics(host, port))


async def read_metrics(host: str, port: int) -> Mapping[str, float]:
    """Return the numbers of `/metrics`, labels left out and equal names added up; raises `OSError`, `TimeoutError`."""
    status, body = await get(host, port, "/metrics", timeout_s=5.0)
    return parse_metrics(body) if status == 200 else {}


def parse_metrics(text: str) -> Mapping[str, float]:
    """Read Prometheus' text format as far as it is plain numbers."""
    numbers: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        with contextlib.suppress(ValueError):
            numbers[name] = numbers.get(name, 0.0) + float(line.rpartition(" ")[2])
    return numbers
