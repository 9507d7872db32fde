"""A handler with a script, and the calls and caches that the exact cache's tests send to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cache.exact import ExactBounds, ExactCache
from cache.memory_store import MemoryStore
from cache.store import Leases, Store
from orchestration.core import CacheControl, Call, Controls, Delta, Event, Finish, Kind, Request, Start, Usage, compose
from orchestration.core.protocols import Handler

# A busy machine is no dead store: the tests that want a deadline to pass say so.
PATIENT = ExactBounds(lookup_timeout_s=60.0, store_timeout_s=60.0, lease_wait_s=30.0)
FINISH = Finish(usage=Usage(prompt_tokens=7, completion_tokens=5))
PARIS: tuple[Event, ...] = (Start("real-model", "echo"), Delta(text="The capital"), Delta(text=" is Paris."), FINISH)


class Clock:
    """Tell the time it is set to."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Scripted:
    """Answer each call with the script; `gate` holds it before the event of that position, until it is set."""

    events: Sequence[Event | Exception] = PARIS
    gates: dict[int, asyncio.Event] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    num_open: int = 0
    reached: dict[int, asyncio.Event] = field(default_factory=dict)
    cost_usd: float | None = 0.25
    on_call: Callable[[Call], None] = lambda call: None

    def hold_at(self, position: int) -> asyncio.Event:
        self.reached[position] = asyncio.Event()
        self.gates[position] = asyncio.Event()
        return self.gates[position]

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        self.calls.append(call)
        self.on_call(call)
        self.num_open += 1
        try:
            for position, event in enumerate(self.events):
                if position in self.gates:
                    self.reached[position].set()
                    await self.gates[position].wait()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Start):
                    call.notes.model, call.notes.backend = event.model, event.backend
                if isinstance(event, Finish):
                    call.notes.cost_usd = self.cost_usd
                yield event
        finally:
            self.num_open -= 1


def a_call(
    id: str = "c1",
    *,
    tenant: str = "t1",
    kind: Kind = Kind.CHAT,
    dialect: str = "openai",
    namespace: str = "",
    threshold: float | None = None,
    cache: CacheControl | None = None,
    **fields: Any,
) -> Call:
    whole = {"model": "alias", "messages": [{"role": "user", "content": "What is the capital of France?"}], **fields}
    controls = Controls(cache=cache or CacheControl(), threshold=threshold, namespace=namespace)
    return Call(id, f"r-{id}", tenant, Request(kind, dialect, whole), 0.0, 0.0, controls=controls)


def an_exact_cache(
    store: Store | None = None,
    *,
    route: str = "route",
    policy: str = "policy",
    ttl_s: float = 3600.0,
    leases: Leases | None = None,
    is_last_tier: bool = True,
    bounds: ExactBounds = PATIENT,
    clock: Clock | None = None,
) -> ExactCache:
    return ExactCache(
        store or MemoryStore(),
        ttl_s=ttl_s,
        route_of=lambda alias: route,
        policy_of=lambda call: policy,
        leases=leases,
        is_last_tier=is_last_tier,
        bounds=bounds,
        now=clock or Clock(),
    )


async def answer(layer: ExactCache, core: Handler, call: Call) -> list[Event]:
    return [event async for event in compose([layer], core)(call)]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))
