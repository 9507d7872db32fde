"""The three shapes that everything in the pipe has."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from orchestration.core.call import Call
from orchestration.core.events import Event

# The protocols say `def`, their implementations `async def` with `yield`: calling such a function returns the
# generator at once, without awaiting anything.


class Handler(Protocol):
    """Answer a call with a stream of events; closing the generator cancels the call at once."""

    def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call."""
        ...


class Layer(Protocol):
    """Answer a call with the help of the next handler, which it wraps in `aclosing(next(call))`."""

    def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer the call, asking `next` or not."""
        ...


class Backend(Protocol):
    """Where answers come from. A handler with a name, a health and an end.

    It raises an error of `orchestration.core.errors` before its first event wherever it can: only then may the
    router try another one.
    """

    @property
    def name(self) -> str:
        """Name the backend in headers, records and metrics."""
        ...

    def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call."""
        ...

    async def check_health(self) -> str | None:
        """Say what is wrong, in a phrase, or None when the backend can answer."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and tasks; calls in flight end with an error."""
        ...
