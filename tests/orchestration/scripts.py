"""Scripted backends and calls for tests of the onion."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from orchestration.core import Call, Delta, Event, Finish, Handler, Kind, Layer, Request, Start


def make_call(model: str = "m", **fields: object) -> Call:
    """Make a chat call."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}
    request = Request(kind=Kind.CHAT, dialect="openai.chat", fields=body)
    return Call(id="01", request_id="r", tenant="t", request=request, received_at=0.0, started=0.0)


def answer(text: str = "hello", model: str = "real") -> list[Event | Exception]:
    """Script a whole answer of one piece."""
    return [Start(model, "b"), Delta(text=text), Finish()]


@dataclass
class Scripted:
    """A backend that plays a list: events are yielded, exceptions raised. It counts its calls and its ends."""

    script: Sequence[Event | Exception]
    name: str = "scripted"
    models: list[str] = field(default_factory=list)
    num_closed: int = 0

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        self.models.append(call.request.model)
        try:
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.num_closed += 1

    async def check_health(self) -> str | None:
        return None

    async def aclose(self) -> None:
        pass


def passing(log: list[str], name: str) -> Layer:
    """Make a layer that notes when it is entered and left."""

    async def layer(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        log.append(f"enter {name}")
        try:
            async with aclosing(next(call)) as events:
                async for event in events:
                    yield event
        finally:
            log.append(f"leave {name}")

    return layer


async def collect(events: AsyncGenerator[Event, None]) -> list[Event]:
    """Read a stream to its end."""
    async with aclosing(events):
        return [event async for event in events]
