"""A share of the hits is asked again of the backend, off the caller's way, to see whether it answers the same."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from cache.entry import Entry
from orchestration.core import Call, Delta, Event, Handler
from orchestration.core.errors import LaminaError
from orchestration.core.notes import Notes

MAX_AT_ONCE = 4
"""Re-asks under way; a hit that is drawn while so many run is not asked again."""
TIMEOUT_S = 120.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reask:
    """What became of one: `is_same` is True for equal answers, None where they differ in words.

    Two answers in other words may both be right: nothing but a person or a judge can say that one is wrong.
    """

    call: Call
    entry: Entry
    similarity: float | None
    is_same: bool | None
    cost_usd: float | None


class Shadow:
    """Ask a share of the hits again and `tell` each outcome. The house pays: no caller's limit or record is touched.

    `draw` gives a number in [0, 1). What fails is logged and not told; `aclose` cancels what is under way.
    """

    def __init__(self, *, share: float, draw: Callable[[], float], tell: Callable[[Reask], Awaitable[None]]) -> None:
        self._share = share
        self._draw = draw
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()

    def consider(self, call: Call, entry: Entry, next: Handler) -> None:
        """Draw whether this hit is asked again, and begin; the caller waits for nothing."""
        if self._draw() >= self._share or len(self._tasks) >= MAX_AT_ONCE:
            return
        task = asyncio.create_task(self._ask(call, entry, next), name="shadow")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, call: Call, entry: Entry, next: Handler) -> None:
        events: list[Event] = []
        again = replace(call, notes=Notes())
        try:
            async with asyncio.timeout(TIMEOUT_S), aclosing(next(again)) as answer:
                async for event in answer:
                    events.append(event)
        except (LaminaError, TimeoutError) as exc:
            logger.info("cache.shadow_failed call=%s: %s", call.id, type(exc).__name__)
            return
        is_same = normalised(events) == normalised(entry.events)
        similarity, cost_usd = call.notes.cache.similarity, again.notes.cost_usd
        await self._tell(Reask(call, entry, similarity, True if is_same else None, cost_usd))


def normalised(events: Sequence[Event]) -> str:
    """Return an answer's text without case, punctuation and spacing at its ends and between its words."""
    text = "".join(event.text for event in events if isinstance(event, Delta))
    return " ".join(re.findall(r"\w+", text.casefold()))
