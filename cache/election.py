"""One call among many workers and nodes: a lease elects who asks, the others wait for what it stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from cache.entry import Entry
from cache.store import Leases, StoreDown
from orchestration.core import Event

logger = logging.getLogger(__name__)

_FIRST_POLL_S = 0.02
_MAX_POLL_S = 0.2
_CLOSE_S = 1.0


class Election:
    """Elect by lease, for at most `wait_s`: nobody waits longer, so a longer lease would hold nobody back.

    Whoever waits in vain, or cannot reach the leases, asks for itself. A lease is given back when its holder has
    its answer, stored or not; a holder that dies is outlived by `wait_s`.
    """

    def __init__(self, leases: Leases, *, wait_s: float) -> None:
        self._leases = leases
        self._wait_s = wait_s
        self._releases: set[asyncio.Task[None]] = set()

    async def run(
        self,
        key: str,
        *,
        look_up: Callable[[], Awaitable[Entry | None]],
        found: Callable[[Entry], AsyncGenerator[Event, None]],
        ask: Callable[[], AsyncGenerator[Event, None]],
    ) -> AsyncGenerator[Event, None]:
        """Answer with `found` where another one's answer can be looked up in time, else with `ask`."""
        token, entry = await self._stand(key, look_up)
        try:
            async with aclosing(ask() if entry is None else found(entry)) as events:
                async for event in events:
                    yield event
        finally:
            if token is not None:
                self._give_back(key, token)

    async def aclose(self) -> None:
        """Wait for the leases that are being given back."""
        if self._releases:
            await asyncio.wait(self._releases, timeout=_CLOSE_S)

    async def _stand(self, key: str, look_up: Callable[[], Awaitable[Entry | None]]) -> tuple[str | None, Entry | None]:
        """Return the lease's token if it is ours, and the entry if there is one by now."""
        loop = asyncio.get_running_loop()
        deadline, poll_s = loop.time() + self._wait_s, _FIRST_POLL_S
        while True:
            try:
                token = await self._leases.acquire(key, ttl_s=self._wait_s)
            except StoreDown:
                return None, None
            # Its last holder may have stored and left since our own look-up.
            entry = await look_up()
            if token is not None or entry is not None or loop.time() >= deadline:
                return token, entry
            await asyncio.sleep(poll_s)
            poll_s = min(poll_s * 1.5, _MAX_POLL_S)

    def _give_back(self, key: str, token: str) -> None:
        task = asyncio.create_task(self._release(key, token), name="lease-release")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, key: str, token: str) -> None:
        try:
            await self._leases.release(key, token)
        except StoreDown:
            logger.info("lease.left_to_expire")
