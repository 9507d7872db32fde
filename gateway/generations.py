"""New settings while serving: new calls go to a new pipeline, old ones finish in theirs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.exchange import Receive, Scope, Send

RETIRE_S = 900.0
"""How long an old pipeline waits for its calls before it is closed under them."""

logger = logging.getLogger(__name__)
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Parts(Protocol):
    """What a generation runs."""

    async def start(self) -> None:
        """Begin."""
        ...

    def describe_backends(self) -> list[dict[str, Any]]:
        """Say how each model is routed and how its backends stand."""
        ...

    async def take_feedback(self, params: Any, payload: bytes) -> tuple[Any, bytes]:
        """Take a word about a call from another process of ours."""
        ...

    def retire(self) -> None:
        """Hear that new calls go elsewhere, so that what has no end of its own ends."""
        ...

    async def aclose(self) -> None:
        """End."""
        ...


@dataclass(slots=True, eq=False)
class Generation:
    """One pipeline behind its application, and the calls that are in it."""

    app: ASGIApp
    parts: Parts
    in_flight: int = 0
    is_empty: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and know meanwhile that it runs."""
        self.in_flight += 1
        self.is_empty.clear()
        try:
            await self.app(scope, receive, send)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.is_empty.set()


class Generations:
    """An ASGI application that answers each request by the newest generation.

    A generation is prepared, its parts running, before it is committed: nothing can fail then any more.
    """

    def __init__(self, first: Generation) -> None:
        self._current = first
        self._prepared: Generation | None = None
        self._retiring: dict[asyncio.Task[None], Generation] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._current.answer(scope, receive, send)

    async def prepare(self, generation: Generation) -> None:
        """Start a generation's parts; raises what they raise, the generation closed again."""
        await self.discard()
        try:
            await generation.parts.start()
        except BaseException:
            await generation.parts.aclose()
            raise
        self._prepared = generation

    def commit(self) -> bool:
        """Answer from now on by the prepared generation; False where none is prepared."""
        if self._prepared is None:
            return False
        old, self._current, self._prepared = self._current, self._prepared, None
        old.parts.retire()
        task = asyncio.create_task(_retire(old), name="retire-generation")
        self._retiring[task] = old
        task.add_done_callback(self._retiring.pop)
        return True

    async def discard(self) -> None:
        """Close what was prepared and not committed."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await prepared.parts.aclose()

    @property
    def parts(self) -> Parts:
        """Give what the newest generation runs."""
        return self._current.parts

    def drain(self) -> None:
        """Let what has no end of its own end: no more calls are taken."""
        self._current.parts.retire()

    async def aclose(self) -> None:
        """Close every generation, whatever still runs in it."""
        retiring = dict(self._retiring)
        for generation in retiring.values():
            generation.is_empty.set()  # not so, but nothing more is waited for
        if retiring:
            await asyncio.wait(retiring)
        await self.discard()
        await self._current.parts.aclose()


async def _retire(generation: Generation) -> None:
    """Close a generation once its last call has ended, or after `RETIRE_S`."""
    try:
        if generation.in_flight:
            async with asyncio.timeout(RETIRE_S):
                await generation.is_empty.wait()
    except TimeoutError:
        logger.warning("generation.cut in_flight=%d after_s=%g", generation.in_flight, RETIRE_S)
    await generation.parts.aclose()
