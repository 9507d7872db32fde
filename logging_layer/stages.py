"""How each layer's time is measured: a wrapper that notes when the layer was entered, first gave, and ended."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any

from orchestration.core import Call, Event, Handler, Layer, Notes

SPANS = "spans"
"""The key of `call.notes.extra` that holds the spans: `{"name", "start_ms", "first_ms", "end_ms"}` since `started`."""


def stage_times(notes: Notes) -> dict[str, float]:
    """Give the milliseconds of each layer: its own count where it has one, else up to the next layer's beginning.

    The last one's are up to its first event.
    """
    spans: list[dict[str, Any]] = notes.extra.get(SPANS, [])
    ends = [span["start_ms"] for span in spans[1:]] + [span.get("first_ms") for span in spans[-1:]]
    times = {
        span["name"]: round(end - span["start_ms"], 3) for span, end in zip(spans, ends, strict=True) if end is not None
    }
    return {**times, **notes.stages_ms}


def timed(name: str, layer: Layer, *, clock: Callable[[], float] = time.monotonic) -> Layer:
    """Wrap a layer so that the call's notes say when it was entered, first gave an event, and ended.

    A layer that is not reached leaves no span; one that is still running has no `end_ms`. Costs nothing per event
    after the first.
    """

    def timed_layer(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        return _Timed(layer(call, next), call, name, clock)

    return timed_layer


def timed_handler(name: str, handler: Handler, *, clock: Callable[[], float] = time.monotonic) -> Handler:
    """Wrap the core of the onion in the same way."""

    def timed_core(call: Call, /) -> AsyncGenerator[Event, None]:
        return _Timed(handler(call), call, name, clock)

    return timed_core


class _Timed(AsyncGenerator[Event, None]):
    """Hand a generator's awaitables on as they are, so that only its first step and its end cost anything.

    The end is `aclose()`: every layer closes the next one (rule 1 of the onion), also one that has run out.
    """

    __slots__ = ("_call", "_clock", "_inner", "_is_begun", "_span")

    def __init__(self, inner: AsyncGenerator[Event, None], call: Call, name: str, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._call = call
        self._clock = clock
        self._is_begun = False
        self._span: dict[str, Any] = {"name": name}

    def __anext__(self) -> Any:
        return self._inner.__anext__() if self._is_begun else self._begin()

    def asend(self, value: None) -> Any:
        return self._inner.asend(value)

    def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Any:
        return self._inner.athrow(typ) if isinstance(typ, BaseException) else self._inner.athrow(typ, val, tb)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            if self._is_begun:
                self._span.setdefault("end_ms", self._now_ms())

    async def _begin(self) -> Event:
        self._is_begun = True
        self._span["start_ms"] = self._now_ms()
        self._call.notes.extra.setdefault(SPANS, []).append(self._span)
        event = await self._inner.__anext__()
        self._span["first_ms"] = self._now_ms()
        return event

    def _now_ms(self) -> float:
        return round((self._clock() - self._call.started) * 1000.0, 3)
