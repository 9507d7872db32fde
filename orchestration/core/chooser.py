"""A layer that chooses the model before the caches, where an alias shares the cached answers of what it chooses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

from orchestration.core.call import Call
from orchestration.core.complexity import ModelChoice
from orchestration.core.events import Event
from orchestration.core.protocols import Handler
from orchestration.core.tries import note_of


class Chooser:
    """Pass a call to an alias of `choices` on as one to the model that the request wants; others go on as they are.

    The choice is a pure function of the request, so that it may be made before the key of the exact cache.
    """

    def __init__(self, choices: Mapping[str, ModelChoice]) -> None:
        self._choices = choices

    async def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer the call."""
        choice = self._choices.get(call.request.model)
        if choice is not None:
            model, note_of(call)["complexity"] = choice.choose(call.request)
            call = replace(call, request=call.request.with_fields(model=model))
        async with aclosing(next(call)) as events:
            async for event in events:
                yield event
