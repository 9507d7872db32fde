"""What the shipper does beside shipping, again and again: it may fail, is tried again, and never holds up a sink."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from logging_layer.feed import pause
from logging_layer.labels import LabelsDown
from logging_layer.sink import SinkDown

_logger = logging.getLogger(__name__)


class Job(Protocol):
    """Do a bounded piece of work."""

    @property
    def name(self) -> str:
        """Name the work in problems and numbers."""
        ...

    async def step(self) -> bool:
        """Do one piece; True where more waits. Raises `SinkDown`, `LabelsDown` or `OSError` where it cannot."""
        ...

    def numbers(self) -> dict[str, float]:
        """Count what was done since this process began."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


class Chore:
    """Step through a job every `every_s`, every `busy_s` while more waits; after a failure up to `max_wait_s` later."""

    def __init__(self, job: Job, *, every_s: float, busy_s: float, max_wait_s: float = 60.0) -> None:
        self._job = job
        self._every_s = every_s
        self._busy_s = busy_s
        self._max_wait_s = max_wait_s
        self.problem: str | None = None

    @property
    def name(self) -> str:
        """Name the job."""
        return self._job.name

    def numbers(self) -> dict[str, float]:
        """Give the job's counts."""
        return self._job.numbers()

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping`; what is not done then is done by the next process."""
        wait_s = self._every_s
        while not stopping.is_set():
            try:
                wait_s = self._busy_s if await self._job.step() else self._every_s
                self.problem = None
            except (SinkDown, LabelsDown, OSError) as exc:
                if str(exc) != self.problem:
                    _logger.warning("chore.waits name=%s: %s", self.name, exc)
                self.problem = str(exc)
                wait_s = min(max(wait_s, self._every_s) * 2, self._max_wait_s)
            await pause(stopping, wait_s)

    async def aclose(self) -> None:
        """Close the job."""
        await self._job.aclose()
