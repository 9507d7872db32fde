"""Backends are asked in the background whether they are well, so that calls need not find out."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress

from orchestration.core import Backend
from orchestration.core.errors import LaminaError
from orchestration.core.standing import Standing, Standings

_NUM_AT_ONCE = 4
_TIMEOUT_S = 5.0
_LIFTED = ("unhealthy", "backend_unavailable")
"""The reasons that a good check speaks against; an upstream that is well may still refuse for other ones."""


class HealthWatch:
    """Ask every backend each `interval_s`, four at a time at most, each for five seconds at most.

    One that is not well is left alone for two intervals; one that is well again is asked again.
    """

    def __init__(
        self,
        backends: Mapping[str, Backend],
        *,
        standings: Standings,
        interval_s: float,
        rng: random.Random | None = None,
    ) -> None:
        self._backends = backends
        self._standings = standings
        self._interval_s = interval_s
        self._rng = rng or random.Random()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask, the first time after a part of the interval, so that workers do not ask all at once."""
        if self._backends:
            self._task = asyncio.create_task(self._keep_asking(), name="health-watch")

    async def aclose(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def check_all(self) -> None:
        """Ask every backend once."""
        gate = asyncio.Semaphore(_NUM_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for id, backend in self._backends.items():
                group.create_task(self._check(self._standings.of(id), backend, gate))

    async def _keep_asking(self) -> None:
        await asyncio.sleep(self._interval_s * self._rng.random())
        while True:
            await self.check_all()
            await asyncio.sleep(self._interval_s)

    async def _check(self, standing: Standing, backend: Backend, gate: asyncio.Semaphore) -> None:
        problem: str | None = f"it did not say within {_TIMEOUT_S:g} s"
        async with gate:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    problem = await _problem_of(backend)
        standing.health, standing.health_at = problem or "ok", time.time()
        if problem is not None:
            self._standings.cool(standing, for_s=2 * self._interval_s, reason="unhealthy")
        elif standing.reason in _LIFTED:
            self._standings.recovered(standing)


async def _problem_of(backend: Backend) -> str | None:
    try:
        return await backend.check_health()
    except (LaminaError, OSError) as exc:
        return str(exc) or type(exc).__name__
