"""Two kinds of load: so many clients that each wait for their answer, or arrivals that wait for nobody."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` clients; each sends its next request when it has the answer to its last one."""

    concurrency: int
    num_requests: int

    @property
    def label(self) -> str:
        """Name the load in a table."""
        return f"{self.concurrency} clients" if self.concurrency > 1 else "1 client"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """`rate` requests a second on average, whether or not the earlier ones are answered.

    The times between arrivals are drawn from a gamma distribution of shape `burstiness`: 1 is Poisson's, less comes in
    bursts, more is more even.
    """

    rate: float
    num_requests: int
    burstiness: float = 1.0

    @property
    def label(self) -> str:
        """Name the load in a table."""
        return f"{self.rate:g}/s"


Load = ClosedLoop | OpenLoop


async def run_load(load: Load, ask: Callable[[int], Awaitable[Reply]], *, seed: str) -> Sequence[Reply]:
    """Send the load's requests, numbered from 0, and return what `ask` gave for each; it must not raise."""
    match load:
        case ClosedLoop(concurrency, num_requests):
            return await _closed_loop(ask, concurrency, num_requests)
        case OpenLoop(_, num_requests):
            return await _open_loop(ask, arrivals(load, seed=seed), num_requests)


def arrivals(load: OpenLoop, *, seed: str) -> Sequence[float]:
    """Return when each request is sent, in seconds from the start; the same seed gives the same times."""
    draw = random.Random(seed)
    now_s, times = 0.0, []
    for _ in range(load.num_requests):
        times.append(now_s)
        now_s += draw.gammavariate(load.burstiness, 1.0 / (load.rate * load.burstiness))
    return times


async def _closed_loop(ask: Callable[[int], Awaitable[Reply]], concurrency: int, num_requests: int) -> Sequence[Reply]:
    numbers = iter(range(num_requests))
    answers: dict[int, Reply] = {}

    async def client() -> None:
        for number in numbers:
            answers[number] = await ask(number)

    async with asyncio.TaskGroup() as clients:
        for _ in range(min(concurrency, num_requests)):
            clients.create_task(client())
    return [answers[number] for number in range(num_requests)]


async def _open_loop(
    ask: Callable[[int], Awaitable[Reply]], times: Sequence[float], num_requests: int
) -> Sequence[Reply]:
    begun_s = time.monotonic()
    async with asyncio.TaskGroup() as requests:
        tasks = []
        for number in range(num_requests):
            await asyncio.sleep(max(0.0, begun_s + times[number] - time.monotonic()))
            tasks.append(requests.create_task(_asked(ask, number)))
    return [task.result() for task in tasks]


async def _asked(ask: Callable[[int], Awaitable[Reply]], number: int) -> Reply:
    return await ask(number)
