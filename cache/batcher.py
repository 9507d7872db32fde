"""Dynamic batching: what waits is sent together, when a batch is full or the oldest has waited long enough."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Lane(IntEnum):
    """Who goes first: URGENT has a caller waiting on a deadline, PATIENT fills what is left."""

    URGENT = 0
    PATIENT = 1


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How a batch is bounded.

    `max_batch_tokens` bounds what is computed, padding included (the longest item times the number of items); a
    single longer item travels alone. On one thread MiniLM takes 0.1 ms a token and 1 ms a batch, so larger batches
    gain little, and their first items wait for their last: 128 lets more of a burst meet a deadline of 50 ms.
    `max_patient_tokens` bounds a batch of patient items alone, since an urgent one may come while it runs. After
    `patience_s` a patient item takes a place in any batch.
    """

    max_batch_size: int = 32
    max_queue_delay_s: float = 0.002
    max_batch_tokens: int = 128
    max_patient_tokens: int = 128
    patience_s: float = 1.0
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        if self.max_batch_size < 1 or self.max_waiting < 1:
            raise ValueError("max_batch_size and max_waiting are at least 1")
        if self.max_queue_delay_s < 0:
            raise ValueError("max_queue_delay_s is not negative")


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the decision needs to know of one waiting item."""

    arrived_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send now: the first `num_urgent` and the first `num_patient` of their lanes."""

    num_urgent: int
    num_patient: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `until_s` (None: until something arrives)."""

    until_s: float | None


def decide_batch(
    urgent: Sequence[Waiting],
    patient: Sequence[Waiting],
    *,
    limits: BatchLimits,
    now_s: float,
    mean_gap_s: float = 0.0,
) -> Send | Wait:
    """Decide what an idle model does next, each lane given oldest first.

    A full batch is sent at once; otherwise everything is sent once the oldest has waited `max_queue_delay_s`, or as
    soon as nobody else is to be expected until then: items have been coming `mean_gap_s` apart.
    """
    if not urgent and not patient:
        return Wait(None)
    chosen = _fill(urgent, patient, limits=limits, now_s=now_s)
    is_full = chosen.num_urgent + chosen.num_patient == limits.max_batch_size or (
        chosen.num_urgent + chosen.num_patient < len(urgent) + len(patient)
    )
    oldest_s = min(lane[0].arrived_s for lane in (urgent, patient) if lane)
    due_s = oldest_s + limits.max_queue_delay_s
    return chosen if is_full or now_s + mean_gap_s >= due_s else Wait(due_s)


def _fill(urgent: Sequence[Waiting], patient: Sequence[Waiting], *, limits: BatchLimits, now_s: float) -> Send:
    batch = _Batch(limits.max_batch_size, limits.max_batch_tokens if urgent else limits.max_patient_tokens)
    has_waited = bool(patient) and now_s - patient[0].arrived_s >= limits.patience_s
    if has_waited:
        batch.add(patient[0].num_tokens)
    num_urgent = batch.add_while_fitting(item.num_tokens for item in urgent)
    num_patient = batch.add_while_fitting(item.num_tokens for item in patient[has_waited:])
    return Send(num_urgent, has_waited + num_patient)


@dataclass(slots=True)
class _Batch:
    max_size: int
    max_tokens: int
    size: int = 0
    longest: int = 0

    def add(self, num_tokens: int) -> bool:
        longest = max(self.longest, num_tokens)
        if self.size and (self.size >= self.max_size or longest * (self.size + 1) > self.max_tokens):
            return False
        self.size, self.longest = self.size + 1, longest
        return True

    def add_while_fitting(self, items: Iterable[int]) -> int:
        num_added = 0
        for num_tokens in items:
            if not self.add(num_tokens):
                break
            num_added += 1
        return num_added


class QueueFull(Exception):
    """As many items wait as may wait."""

    code = "busy"


DELAYS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Count values in buckets up to `bounds`, and above the last one."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value, which its bucket's bound includes."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def dump(self) -> tuple[list[float], list[int], float]:
        """Return the bounds, the cumulative counts (one more than bounds), and the sum of all values."""
        return list(self._bounds), list(accumulate(self._counts)), self._total


@dataclass(slots=True)
class BatchCounts:
    """What was sent so far: `delays` from an item's arrival until its batch is sent, in seconds; `sizes` of batches."""

    num_items: int = 0
    num_batches: int = 0
    largest: int = 0
    delays: Histogram = field(default_factory=lambda: Histogram(DELAYS_S))
    sizes: Histogram = field(default_factory=lambda: Histogram(SIZES))


class _Arrivals:
    """How far apart items come, the latest counting most: a fifth each; before the second one, for ever."""

    def __init__(self) -> None:
        self.mean_gap_s = float("inf")
        self._latest_s: float | None = None

    def add(self, now_s: float) -> None:
        if self._latest_s is not None:
            gap_s = now_s - self._latest_s
            is_first = self.mean_gap_s == float("inf")
            self.mean_gap_s = gap_s if is_first else 0.8 * self.mean_gap_s + 0.2 * gap_s
        self._latest_s = now_s


@dataclass(slots=True)
class _Pending(Generic[Item, Result]):
    item: Item
    waiting: Waiting
    future: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher(Generic[Item, Result]):
    """Run items through `run`, one batch at a time; an item whose caller has gone is never run.

    An exception of `run` is every item's of that batch; the next batch is run as usual.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        limits: BatchLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = BatchCounts()
        self._run = run
        self._limits = limits
        self._clock = clock
        self._lanes: dict[Lane, deque[_Pending[Item, Result]]] = {lane: deque() for lane in Lane}
        self._arrivals = _Arrivals()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Count the items that wait for a batch."""
        return sum(len(lane) for lane in self._lanes.values())

    def start(self) -> None:
        """Begin to send; items submitted before wait for this."""
        self._task = asyncio.create_task(self._send_forever(), name="batcher")

    async def submit(self, item: Item, *, num_tokens: int, lane: Lane = Lane.URGENT) -> Result:
        """Return the item's result; raises `QueueFull` at once where `max_waiting` items wait already."""
        if self.num_waiting >= self._limits.max_waiting:
            raise QueueFull(f"{self._limits.max_waiting} texts wait to be encoded already")
        now_s = self._clock()
        self._arrivals.add(now_s)
        pending: _Pending[Item, Result] = _Pending(item, Waiting(now_s, num_tokens))
        self._lanes[lane].append(pending)
        self._arrived.set()
        return await pending.future

    async def aclose(self) -> None:
        """Stop sending; whoever still waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for lane in self._lanes.values():
            while lane:
                lane.popleft().future.cancel()

    async def _send_forever(self) -> None:
        while True:
            self._drop_abandoned()
            match self._decide():
                case Wait(until_s):
                    await self._wait(until_s)
                case Send(num_urgent, num_patient):
                    await self._send(self._take(num_urgent, num_patient))

    def _decide(self) -> Send | Wait:
        urgent, patient = ([pending.waiting for pending in self._lanes[lane]] for lane in Lane)
        gap_s = self._arrivals.mean_gap_s
        return decide_batch(urgent, patient, limits=self._limits, now_s=self._clock(), mean_gap_s=gap_s)

    def _drop_abandoned(self) -> None:
        for lane, waiting in self._lanes.items():
            if any(pending.future.done() for pending in waiting):
                self._lanes[lane] = deque(pending for pending in waiting if not pending.future.done())

    async def _wait(self, until_s: float | None) -> None:
        self._arrived.clear()
        timeout_s = None if until_s is None else max(0.0, until_s - self._clock())
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            pass  # the oldest has waited its delay

    def _take(self, num_urgent: int, num_patient: int) -> list[_Pending[Item, Result]]:
        counts = ((Lane.URGENT, num_urgent), (Lane.PATIENT, num_patient))
        return [self._lanes[lane].popleft() for lane, number in counts for _ in range(number)]

    async def _send(self, batch: list[_Pending[Item, Result]]) -> None:
        self.counts.num_batches += 1
        self.counts.num_items += len(batch)
        self.counts.largest = max(self.counts.largest, len(batch))
        self.counts.sizes.add(len(batch))
        now_s = self._clock()
        for pending in batch:
            self.counts.delays.add(now_s - pending.waiting.arrived_s)
        try:
            results = await self._run([pending.item for pending in batch])
        except Exception as exc:  # each caller hears it, the next batch may be fine
            for pending in batch:
                if not pending.future.done():
                    pending.future.set_exception(exc)
            return
        except asyncio.CancelledError:
            for pending in batch:
                pending.future.cancel()
            raise
        for pending, result in zip(batch, results, strict=True):
            if not pending.future.done():
                pending.future.set_result(result)
