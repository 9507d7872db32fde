"""A second try beside a slow first one: whoever gives content first answers, and the other is closed at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from orchestration.core.errors import LaminaError
from orchestration.core.events import Event

_MIN_SAMPLES = 20
_NUM_SAMPLES = 128
_BURST = 10.0


@dataclass(frozen=True, slots=True)
class Hedge:
    """When to try a second backend: after `after_ms` without content or, without that, after `quantile` of times.

    At most `max_share` of a model's calls are tried twice. Source: J. Dean, L. A. Barroso, "The Tail at Scale",
    Communications of the ACM, 2013.
    """

    after_ms: float | None = None
    quantile: float = 0.95
    max_share: float = 0.05


class HedgeBudget:
    """One model's times to first content, and how many second tries it may still make.

    Each call earns `max_share` of a second try; at most ten are saved up. Before twenty calls were measured there is
    no quantile, and so no second try by it.
    """

    def __init__(self, hedge: Hedge) -> None:
        self._hedge = hedge
        self._saved = 0.0
        self._recent_ms: deque[float] = deque(maxlen=_NUM_SAMPLES)

    async def timed(
        self, events: AsyncGenerator[Event, None], *, clock: Callable[[], float]
    ) -> AsyncGenerator[Event, None]:
        """Pass on a first try's events and keep its time to first content, or how long it was waited for in vain."""
        begun_s = clock()
        is_measured = False
        try:
            async with aclosing(events):
                async for event in events:
                    if not is_measured:
                        is_measured = True
                        self._recent_ms.append((clock() - begun_s) * 1000.0)
                    yield event
        except LaminaError:
            is_measured = True  # a failure's time is no time to first content
            raise
        finally:
            if not is_measured:
                self._recent_ms.append((clock() - begun_s) * 1000.0)

    def earn(self) -> None:
        """Count a call."""
        self._saved = min(_BURST, self._saved + self._hedge.max_share)

    def wait_s(self) -> float | None:
        """Return how long a call waits before its second try, None where there will be none."""
        if self._hedge.after_ms is not None:
            return self._hedge.after_ms / 1000.0
        if len(self._recent_ms) < _MIN_SAMPLES:
            return None
        ranked = sorted(self._recent_ms)
        return ranked[min(len(ranked) - 1, int(self._hedge.quantile * len(ranked)))] / 1000.0

    def take(self) -> bool:
        """Pay for a second try; False where the budget does not allow one."""
        if self._saved < 1.0 - 1e-9:
            return False
        self._saved -= 1.0
        return True


async def race(
    first: AsyncGenerator[Event, None],
    second: Callable[[], AsyncGenerator[Event, None] | None],
    *,
    wait: Awaitable[None],
) -> AsyncGenerator[Event, None]:
    """Pass on the events of `first`, or of `second`, made once `wait` is over, where that gives its first one sooner.

    Both withhold their first event until content. Where one fails, the other is waited for; where both fail, the
    first one's error is raised. Each runs in a task of its own, which is cancelled here before anything else runs on.
    """
    runs = [_Run(first)]
    timer = asyncio.ensure_future(wait)
    try:
        winner = await _find_winner(runs, timer, second)
        for run in runs:
            if run is not winner:
                run.cancel()
        while (event := await winner.next()) is not None:
            yield event
    finally:
        timer.cancel()
        for run in runs:
            run.cancel()
        await asyncio.wait([timer, *(run.task for run in runs)])
        for run in runs:
            run.forget()


async def _find_winner(
    runs: list[_Run], timer: asyncio.Future[None], second: Callable[[], AsyncGenerator[Event, None] | None]
) -> _Run:
    """Return the run that gave content first, or the first one where none did."""
    while True:
        pending = {run.decided for run in runs if not run.decided.done()}
        if len(runs) == 1 and not timer.done():
            pending.add(timer)
        if pending:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for run in runs:
            if run.has_content:
                return run
        if all(run.decided.done() for run in runs):
            return runs[0]
        if timer.done() and len(runs) == 1:
            other = second()
            if other is None:
                await runs[0].decided
                return runs[0]
            runs.append(_Run(other))


class _Run:
    """One try in a task of its own, one event ahead of its reader."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_content = False
        self._events = events
        self._error: Exception | None = None
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=1)
        self.task = asyncio.create_task(self._pump(), name="hedged-try")

    def cancel(self) -> None:
        """Close the try."""
        self.task.cancel()

    def forget(self) -> None:
        """Let go of what the try raised, whose trace leads back here: a cycle with all that the call holds."""
        self._error = None

    async def next(self) -> Event | None:
        """Return the next event, None at the end; raises what the try raised."""
        event = await self._queue.get()
        if event is None and self._error is not None:
            raise self._error
        return event

    async def _pump(self) -> None:
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    self._decide(has_content=True)
                    await self._queue.put(event)
        except Exception as exc:  # whatever it is, it is the reader's, who raises it
            self._error = exc
        finally:
            self._decide(has_content=False)
        await self._queue.put(None)

    def _decide(self, *, has_content: bool) -> None:
        if not self.decided.done():
            self.has_content = has_content
            self.decided.set_result(None)
