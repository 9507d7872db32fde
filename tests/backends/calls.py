"""Calls to put to backends, and what to make of their events."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from orchestration.core import Backend, Call, Delta, Event, Finish, Kind, Part, Request, Start


def chat_call(content: object = "hi", *, tenant: str = "t", **fields: object) -> Call:
    """Make a chat of one user message."""
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    return _make(Kind.CHAT, "openai.chat", body, tenant)


def completion_call(prompt: object = "Once", *, tenant: str = "t", **fields: object) -> Call:
    """Make a completion."""
    return _make(Kind.COMPLETION, "openai.completions", {"model": "m", "prompt": prompt, **fields}, tenant)


def embedding_call(texts: object, **fields: object) -> Call:
    """Ask for embeddings."""
    return _make(Kind.EMBEDDING, "openai.embeddings", {"model": "m", "input": texts, **fields}, "t")


@dataclass(frozen=True)
class Answer:
    """Every event of one answer."""

    events: list[Event]

    @property
    def start(self) -> Start:
        assert isinstance(self.events[0], Start)
        return self.events[0]

    @property
    def finish(self) -> Finish:
        assert isinstance(self.events[-1], Finish)
        return self.events[-1]

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    def text(self, choice: int = 0, part: Part = Part.TEXT) -> str:
        return "".join(delta.text for delta in self.deltas if delta.choice == choice and delta.part is part)


async def ask(backend: Backend, call: Call) -> Answer:
    """Collect a whole answer."""
    async with aclosing(backend(call)) as events:
        return Answer([event async for event in events])


def _make(kind: Kind, dialect: str, body: dict[str, object], tenant: str) -> Call:
    request = Request(kind=kind, dialect=dialect, fields=body)
    return Call(id="01", request_id="r", tenant=tenant, request=request, received_at=0.0, started=0.0)
