"""The core of the onion: a model's name becomes backends, asked in order until one gives content."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

from orchestration.core.call import Call
from orchestration.core.errors import (
    BackendError,
    InvalidRequest,
    LaminaError,
    NotFound,
    StreamBroken,
)
from orchestration.core.events import Delta, Event, Finish, Start, Usage
from orchestration.core.notes import Attempt
from orchestration.core.protocols import Backend
from orchestration.core.request import Kind
from orchestration.core.retry import Backoff


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, in US dollars; cached input costs as other input where no price of its own is set."""

    input_per_1m: float = 0.0
    output_per_1m: float = 0.0
    cached_input_per_1m: float | None = None

    def cost_usd(self, usage: Usage) -> float:
        """Price one call's usage: the cached part of the prompt at its own price."""
        cached = self.input_per_1m if self.cached_input_per_1m is None else self.cached_input_per_1m
        fresh = usage.prompt_tokens - usage.cached_tokens
        micro_usd = fresh * self.input_per_1m + usage.cached_tokens * cached
        return (micro_usd + usage.completion_tokens * self.output_per_1m) / 1e6


@dataclass(frozen=True, slots=True)
class Route:
    """Where a model's calls go: its backends in turn, each asked again `retries` times, then the fallbacks."""

    model: str
    backends: tuple[Backend, ...]
    kinds: frozenset[Kind]
    retries: int = 1
    fallbacks: tuple[str, ...] = ()
    price: Price = Price()


class Router:
    """Answer from the first backend that gives content.

    Nothing is yielded before the first content, so an error up to there may still fall back; an error after it
    ends the call. A backend whose stream ends without a `Finish` has broken off: no finish reason is invented.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._routes = routes
        self._backoff = backoff or Backoff()
        self._sleep = sleep
        self._turns = {model: itertools.count() for model in routes}

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call; raises the last backend's error when none gave content."""
        error: LaminaError | None = None
        for route in self._routes_of(call):
            for backend, attempt in self._tries(route):
                if error is not None and attempt > 0:
                    if not error.is_retryable:
                        continue
                    await self._sleep(self._backoff.wait_s(attempt, error))
                begun = time.monotonic()
                is_begun = False
                try:
                    async with aclosing(_from_first_content(backend, _as_asked(call, route))) as events:
                        async for event in events:
                            if not is_begun:
                                is_begun = True
                                self._note(call, route, backend, begun)
                            if isinstance(event, Finish) and event.usage is not None:
                                call.notes.cost_usd = route.price.cost_usd(event.usage)
                            yield event
                    return
                except LaminaError as exc:
                    _note_failure(call, route, backend, begun=begun, error=exc)
                    if is_begun:
                        raise StreamBroken(f"the answer broke off: {exc.message}") from exc
                    if not exc.may_fall_back:
                        raise
                    error = exc
        assert error is not None, "a route has at least one backend"
        raise error

    def route(self, model: str) -> Route:
        """Return the route of a model; raises `NotFound` with the names that exist."""
        route = self._routes.get(model)
        if route is None:
            known = ", ".join(sorted(self._routes))
            raise NotFound(
                f"The model '{model}' does not exist here. Known models: {known}.",
                param="model",
                code="model_not_found",
            )
        return route

    def _routes_of(self, call: Call) -> Iterator[Route]:
        route = self.route(call.request.model)
        if call.kind not in route.kinds:
            kinds = ", ".join(sorted(route.kinds))
            raise InvalidRequest(
                f"The model '{route.model}' does not answer {call.kind} calls, only: {kinds}.", param="model"
            )
        yield route
        for model in route.fallbacks:
            if call.kind in self._routes[model].kinds:
                yield self._routes[model]

    def _tries(self, route: Route) -> Iterator[tuple[Backend, int]]:
        turn = next(self._turns[route.model]) % len(route.backends)
        for backend in route.backends[turn:] + route.backends[:turn]:
            for attempt in range(1 + route.retries):
                yield backend, attempt

    def _note(self, call: Call, route: Route, backend: Backend, begun: float) -> None:
        notes = call.notes
        notes.attempts.append(Attempt(route.model, backend.name, duration_ms=_ms_since(begun)))
        notes.backend = backend.name
        notes.is_fallback = route.model != call.request.model


def _as_asked(call: Call, route: Route) -> Call:
    """Ask a fallback by its own name."""
    if route.model == call.request.model:
        return call
    return replace(call, request=call.request.with_fields(model=route.model))


async def _from_first_content(backend: Backend, call: Call) -> AsyncGenerator[Event, None]:
    """Pass on a backend's events, its `Start` withheld until content or the end follows it."""
    start: Start | None = None
    is_finished = False
    async with aclosing(backend(call)) as events:
        async for event in events:
            match event:
                case Start():
                    start = event
                    continue
                case Delta() | Finish() if start is not None:
                    call.notes.model = start.model
                    yield start
                    start = None
                case Delta() | Finish():
                    pass
            is_finished = is_finished or isinstance(event, Finish)
            yield event
    if not is_finished:
        raise BackendError(f"{backend.name} ended its answer without saying why")


def _note_failure(call: Call, route: Route, backend: Backend, *, begun: float, error: LaminaError) -> None:
    call.notes.attempts.append(
        Attempt(route.model, backend.name, error=error.code or error.type, duration_ms=_ms_since(begun))
    )


def _ms_since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000.0
