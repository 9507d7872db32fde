"""The core of the onion: a model's name becomes backends, asked in order until one gives content."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing

from orchestration.core.attempt import Claim, attempt
from orchestration.core.call import Call
from orchestration.core.errors import InvalidRequest, LaminaError, NotFound
from orchestration.core.events import Event
from orchestration.core.hedge import HedgeBudget, race
from orchestration.core.request import TOKEN_KINDS
from orchestration.core.retry import Backoff
from orchestration.core.route import Route
from orchestration.core.standing import Standings
from orchestration.core.tries import Tries, Try, note_of


class Router:
    """Answer from the first backend that gives content.

    Nothing is yielded before the first content, so an error up to there may still fall back; an error after it
    ends the call. A backend whose stream ends without a `Finish` has broken off: no finish reason is invented.
    Backends that fail are left alone for a while (`standings`), and asked all the same where no other one answers.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        standings: Standings | None = None,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._routes = routes
        self._standings = standings or Standings()
        self._backoff = backoff or Backoff()
        self._sleep = sleep
        self._tries = Tries(routes, self._standings, rng=rng or random.Random())
        self._budgets = {name: HedgeBudget(route.hedge) for name, route in routes.items() if route.hedge is not None}

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call; raises the last backend's error when none gave content."""
        last: LaminaError | None = None
        hedged: set[str] = set()
        try:
            for one in self._tries.of(call, self._routes_of(call)):
                if one.target.id in hedged:
                    continue  # it failed already, beside the one before it
                if one.repeat and last is not None:
                    if not last.is_retryable:
                        continue
                    await self._sleep(self._backoff.wait_s(one.repeat, last))
                try:
                    async with aclosing(self._ask(call, one, hedged)) as events:
                        async for event in events:
                            yield event
                    return
                except LaminaError as exc:
                    if not exc.may_fall_back:
                        raise
                    last = exc
            assert last is not None, "a route has at least one backend"
            raise last
        finally:
            last = None  # its trace leads back here: a cycle with all that the call holds

    def route(self, model: str) -> Route:
        """Return the route of a model; raises `NotFound` with the names that exist."""
        route = self._routes.get(model)
        if route is None:
            known = ", ".join(sorted(self._routes))
            message = f"The model '{model}' does not exist here. Known models: {known}."
            raise NotFound(message, param="model", code="model_not_found")
        return route

    def _ask(self, call: Call, one: Try, hedged: set[str]) -> AsyncGenerator[Event, None]:
        """Ask one backend and, where its route allows it and it is slow, a second one beside it."""
        claim = Claim()
        first = attempt(call, one, self._standings, claim)
        budget = self._budgets.get(one.route.model)
        if budget is None or one.repeat:
            return first
        if one.is_first:
            budget.earn()
        wait_s = budget.wait_s()
        timed = budget.timed(first, clock=self._standings.clock)
        spare = one.spare
        if wait_s is None or spare is None:
            return timed

        def second() -> AsyncGenerator[Event, None] | None:
            if spare.id in hedged or not budget.take():
                return None
            hedged.add(spare.id)
            note_of(call)["hedge"] = {"after_ms": wait_s * 1000.0, "backend": spare.id}
            return attempt(call, Try(one.route, spare, 0, one.is_fallback), self._standings, claim)

        return race(timed, second, wait=self._sleep(wait_s))

    def _routes_of(self, call: Call) -> Iterator[Route]:
        route = self.route(call.request.model)
        if call.kind not in route.kinds:
            kinds = ", ".join(sorted(route.kinds))
            message = f"The model '{route.model}' does not answer {call.kind} calls, only: {kinds}."
            raise InvalidRequest(message, param="model")
        if route.choice is not None:
            chosen, note_of(call)["complexity"] = route.choice.choose(call.request)
            route = self._routes[chosen]
        yield route
        if call.kind in TOKEN_KINDS:
            return  # another model's tokens are others
        for model in route.fallbacks:
            if call.kind in self._routes[model].kinds:
                yield self._routes[model]
