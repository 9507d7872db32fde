"""What wiring starts from, and what it gives: a worker's surroundings, and everything that it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.cache_keeping import CacheKeeping
from gateway.cache_learning import CacheLearning
from gateway.cache_metrics import CacheMetrics
from gateway.feedback import Feedback
from gateway.limits.key_book import KeyBook
from gateway.live import LiveCalls
from gateway.live_nodes import LiveNodes
from gateway.parts import AppParts
from gateway.routing import RoutingWatch
from gateway.supervisor.place import Sockets
from gateway.supervisor.state import StateFolder
from logging_layer.spool import Spool
from orchestration.core.standing import Standings


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a worker runs: its folders, its number, what tells it that it is to end, and what outlives new settings.

    `standings` is how its backends stand. A `spool` that is given is another's to start and to close.
    """

    state: StateFolder
    sockets: Sockets
    folder: Path
    worker: str
    is_draining: Callable[[], bool]
    standings: Standings = field(default_factory=Standings)
    spool: Spool | None = None
    live: LiveCalls | None = None
    cache_metrics: CacheMetrics = field(default_factory=lambda: CacheMetrics(CollectorRegistry()))


@dataclass(slots=True)
class Wired:
    """Everything that one worker runs, and how it ends."""

    parts: AppParts
    spool: Spool
    book: KeyBook
    watch: RoutingWatch
    learning: CacheLearning
    feedback: Feedback
    keeping: CacheKeeping
    owns_spool: bool = True
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    nodes: LiveNodes | None = None

    async def start(self) -> None:
        """Begin to keep call records and to know the keys; raises `OSError` where the records' folder cannot be."""
        if self.owns_spool:
            await self.spool.start()
        await self.book.start()
        self.watch.start()
        await self.learning.start()
        await self.keeping.start()
        if self.nodes is not None:
            self.nodes.start()

    def describe_backends(self) -> list[dict[str, Any]]:
        """Say how each model is routed and how its backends stand."""
        return self.watch.describe()

    async def take_feedback(self, params: Any, payload: bytes) -> tuple[Any, bytes]:
        """Take a word about a call from another process of ours."""
        return await self.feedback.take_from_process(params, payload)

    def retire(self) -> None:
        """Let sockets and feeds end."""
        self.parts.ending.set()

    async def aclose(self) -> None:
        """End in the order of the calls' way, the log last, so that it holds what the others still had to say."""
        for close in self.closers:
            await close()
        if self.owns_spool:
            await self.spool.aclose()
