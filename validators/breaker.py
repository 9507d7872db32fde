"""A check with a deadline and a breaker: whatever it does, its caller has a verdict in time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from orchestration.core import Request
from validators.check import Check, Context, Cost, Outcome, Stage, Subject, Verdict

OPENS_AFTER = 5
OPEN_S = 10.0

LONG_CHARS = 200_000
"""A text longer than these is read in a thread: it takes tenths of a second, for which no other call shall wait."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long one run may take, after how many failures in a row the check is left alone, and for how long.

    The deadline cuts off a check that waits; one that computes is only measured, as nothing can stop it.
    """

    deadline_s: float = 2.0
    opens_after: int = OPENS_AFTER
    open_s: float = OPEN_S


class Guarded:
    """Run another check within its bounds. A failure is `Outcome.ERROR` and never an exception.

    Its reason begins with what happened: `timeout`, `raised`, or `breaker_open` while the check is left alone after too
    many failures in a row. After `open_s` one call tries it again, and the others wait for what comes of that.
    """

    def __init__(
        self, check: Check, *, bounds: Bounds | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._bounds = bounds or Bounds()
        self._clock = clock
        self._num_failures = 0
        self._open_until: float | None = None

    @property
    def name(self) -> str:
        """Name the check as the settings do."""
        return self._check.name

    @property
    def version(self) -> str:
        """Name the version of the check's code."""
        return self._check.version

    @property
    def subject(self) -> Subject:
        """Say what the check reads."""
        return self._check.subject

    @property
    def cost(self) -> Cost:
        """Say what one run costs."""
        return self._check.cost

    @property
    def stages(self) -> frozenset[Stage]:
        """Say where the check may stand."""
        return self._check.stages

    @property
    def rewrites(self) -> frozenset[Stage]:
        """Say where the check can rewrite."""
        return self._check.rewrites

    @property
    def longest_match(self) -> int | None:
        """Bound a match."""
        return self._check.longest_match

    def applies(self, request: Request) -> bool:
        """Tell whether the check has anything to say about this request."""
        return self._check.applies(request)

    async def check(self, text: str, context: Context) -> Verdict:
        """Judge the text, or say why that could not be done."""
        if self._is_open():
            return Verdict(Outcome.ERROR, reason="breaker_open: it failed too often and is left alone for a while")
        try:
            verdict = await self._run(text, context)
        except TimeoutError:
            verdict = Verdict(Outcome.ERROR, reason=f"timeout: it took longer than {self._bounds.deadline_s:g} s")
        except Exception as exc:  # a check may be anyone's code; what it raises may quote the text, so its type is told
            verdict = Verdict(Outcome.ERROR, reason=f"raised: {type(exc).__name__}")
        self._count(verdict)
        return verdict

    async def _run(self, text: str, context: Context) -> Verdict:
        if self._check.cost is Cost.INLINE:  # it does not wait, so a timer would be 3 us for nothing
            if len(text) - context.start > LONG_CHARS and self._check.subject is Subject.CONTENT:
                return await asyncio.to_thread(_completed, self._check.check(text, context))
            return await self._check.check(text, context)
        async with asyncio.timeout(self._bounds.deadline_s):
            return await self._check.check(text, context)

    def _is_open(self) -> bool:
        if self._open_until is None:
            return False
        if self._clock() < self._open_until:
            return True
        self._open_until = self._clock() + self._bounds.deadline_s  # one call tries; the others wait for it
        return False

    def _count(self, verdict: Verdict) -> None:
        if verdict.is_requests_fault:  # or one client could have the check taken from all the others
            return
        if verdict.outcome is not Outcome.ERROR:
            if self._open_until is not None:
                logger.info("check.breaker_closed check=%s", self.name)
            self._num_failures, self._open_until = 0, None
            return
        self._num_failures += 1
        if self._num_failures < self._bounds.opens_after:
            return
        if self._open_until is None:
            logger.warning("check.breaker_opened check=%s failures=%d", self.name, self._num_failures)
        self._open_until = self._clock() + self._bounds.open_s


def _completed(running: Coroutine[Any, Any, Verdict]) -> Verdict:
    """Run what never waits to its end, without a loop."""
    try:
        running.send(None)
    except StopIteration as done:
        verdict: Verdict = done.value
        return verdict
    running.close()
    raise RuntimeError("a check that says it runs inline waited for something")
