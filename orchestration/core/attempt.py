"""One try at one backend: its answer from the first content on, and what it says about the backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from orchestration.core.call import Call
from orchestration.core.errors import BackendError, LaminaError, StreamBroken
from orchestration.core.events import Event, Finish, Start
from orchestration.core.notes import Attempt
from orchestration.core.protocols import Backend
from orchestration.core.route import Route
from orchestration.core.standing import Standings
from orchestration.core.tries import Try

HEDGE_LOST = "hedge_lost"


class Claim:
    """Who answers the call: the first of its tries that has content."""

    def __init__(self) -> None:
        self._holder: Try | None = None

    def take(self, one: Try) -> bool:
        """Take the call, if no other try has it."""
        if self._holder is None:
            self._holder = one
        return self._holder is one

    def is_lost_to(self, one: Try) -> bool:
        """Tell whether another try has the call."""
        return self._holder is not None and self._holder is not one


async def attempt(call: Call, one: Try, standings: Standings, claim: Claim) -> AsyncGenerator[Event, None]:
    """Pass on one backend's answer from its first content on; note how the try went.

    An error after content is raised as `StreamBroken`, which nobody retries. A try that finds the call taken by
    another ends without an event.
    """
    route, backend, notes = one.route, one.target.backend, call.notes
    standing = standings.of(one.target.id)
    begun_s = standings.clock()
    is_probe = standing.begin(begun_s)
    is_noted = False

    def note(error: str | None = None) -> None:
        nonlocal is_noted
        is_noted = True
        duration_ms = (standings.clock() - begun_s) * 1000.0
        notes.attempts.append(Attempt(route.model, backend.name, error=error, duration_ms=duration_ms))

    try:
        async with aclosing(_from_first_content(backend, _as_asked(call, route))) as events:
            async for event in events:
                if not is_noted:
                    standings.answered(standing, begun_s=begun_s)
                    if not claim.take(one):
                        return
                    note()
                    notes.backend = backend.name
                    notes.is_fallback = one.is_fallback
                if isinstance(event, Start):
                    notes.model = event.model
                elif isinstance(event, Finish) and event.usage is not None:
                    notes.cost_usd = one.target.price.cost_usd(event.usage)
                yield event
    except LaminaError as exc:
        standings.failed(standing, exc)
        had_content = is_noted
        note(exc.code or exc.type)
        if had_content:
            raise StreamBroken(f"the answer broke off: {exc.message}") from exc
        raise
    finally:
        standing.end(was_probe=is_probe)
        if not is_noted and claim.is_lost_to(one):
            note(HEDGE_LOST)
            standings.outwaited(standing, begun_s=begun_s)


def _as_asked(call: Call, route: Route) -> Call:
    """Ask another model than the one asked for by its own name."""
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
