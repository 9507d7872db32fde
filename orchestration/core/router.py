"""The core of the onion: a model's name becomes backends, asked in order until one gives content."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

from orchestration.core.call import Call
from orchestration.core.errors import BackendError, InvalidRequest, LaminaError, NotFound, StreamBroken
from orchestration.core.events import Event, Finish, Start
from orchestration.core.notes import Attempt
from orchestration.core.protocols import Backend
from orchestration.core.retry import Backoff
from orchestration.core.route import Route


@dataclass(frozen=True, slots=True)
class _Try:
    """One try to be made: `repeat` counts how often this backend was asked before for this call."""

    route: Route
    backend: Backend
    repeat: int


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
        last: LaminaError | None = None
        for one in self._tries(call):
            if one.repeat and last is not None:
                if not last.is_retryable:
                    continue
                await self._sleep(self._backoff.wait_s(one.repeat, last))
            try:
                async with aclosing(_attempt(call, one)) as events:
                    async for event in events:
                        yield event
                return
            except LaminaError as exc:
                if not exc.may_fall_back:
                    raise
                last = exc
        assert last is not None, "a route has at least one backend"
        raise last

    def route(self, model: str) -> Route:
        """Return the route of a model; raises `NotFound` with the names that exist."""
        route = self._routes.get(model)
        if route is None:
            known = ", ".join(sorted(self._routes))
            message = f"The model '{model}' does not exist here. Known models: {known}."
            raise NotFound(message, param="model", code="model_not_found")
        return route

    def _tries(self, call: Call) -> Iterator[_Try]:
        for route in self._routes_of(call):
            turn = next(self._turns[route.model]) % len(route.backends)
            for backend in route.backends[turn:] + route.backends[:turn]:
                for repeat in range(1 + route.retries):
                    yield _Try(route, backend, repeat)

    def _routes_of(self, call: Call) -> Iterator[Route]:
        route = self.route(call.request.model)
        if call.kind not in route.kinds:
            kinds = ", ".join(sorted(route.kinds))
            message = f"The model '{route.model}' does not answer {call.kind} calls, only: {kinds}."
            raise InvalidRequest(message, param="model")
        yield route
        for model in route.fallbacks:
            if call.kind in self._routes[model].kinds:
                yield self._routes[model]


async def _attempt(call: Call, one: _Try) -> AsyncGenerator[Event, None]:
    """Pass on one backend's answer from its first content on; note how the try went.

    An error after content is raised as `StreamBroken`, which nobody retries.
    """
    begun = time.monotonic()
    route, backend, notes = one.route, one.backend, call.notes

    def note(error: LaminaError | None = None) -> None:
        code = None if error is None else error.code or error.type
        duration_ms = (time.monotonic() - begun) * 1000.0
        notes.attempts.append(Attempt(route.model, backend.name, error=code, duration_ms=duration_ms))

    is_begun = False
    try:
        async with aclosing(_from_first_content(backend, _as_asked(call, route))) as events:
            async for event in events:
                if not is_begun:
                    is_begun = True
                    note()
                    notes.backend = backend.name
                    notes.is_fallback = route.model != call.request.model
                if isinstance(event, Start):
                    notes.model = event.model
                elif isinstance(event, Finish) and event.usage is not None:
                    notes.cost_usd = route.price.cost_usd(event.usage)
                yield event
    except LaminaError as exc:
        note(exc)
        if is_begun:
            raise StreamBroken(f"the answer broke off: {exc.message}") from exc
        raise


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
            if isinstance(event, Start):
                start = event
                continue
            if start is not None:
                yield start
                start = None
            is_finished = isinstance(event, Finish)
            yield event
    if not is_finished:
        raise BackendError(f"{backend.name} ended its answer without saying why")
