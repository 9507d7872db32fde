"""Scripted answers and calls for tests of the checks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from orchestration.core import Call, Delta, Event, Finish, Handler, Kind, Layer, Part, Request, Start, compose
from orchestration.core.errors import LaminaError
from validators.check import PASSED, Context, Cost, Outcome, Span, Stage, Subject, Verdict
from validators.output_checks import OutputChecks
from validators.policy import Rule
from validators.registry import build_checks, parse_specs


class Scripted:
    """Play a list of events, remembering the calls; an exception in it is raised."""

    def __init__(self, script: Sequence[Event | Exception] = ()) -> None:
        self.script = script or answer("fine")
        self.calls: list[Call] = []
        self.num_closed = 0

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        self.calls.append(call)
        try:
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.num_closed += 1


class Fixed:
    """A check with a fixed verdict, of either subject; it remembers what it read."""

    version = "1"
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites = frozenset(Stage)
    longest_match: int | None = None

    def __init__(self, verdict: Verdict = PASSED, *, subject: Subject = Subject.CONTENT, name: str = "fixed") -> None:
        self.name = name
        self.subject = subject
        self.verdict = verdict
        self.read: list[str] = []

    def applies(self, request: Request) -> bool:
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        self.read.append(text)
        return self.verdict


FAILED = Verdict(Outcome.ERROR, reason="down")


def rewriting(start: int, end: int, replacement: str) -> Verdict:
    return Verdict(Outcome.REWRITE, (Span(start, end, replacement),), "found")


def make_call(kind: Kind = Kind.CHAT, **fields: Any) -> Call:
    body = {"model": "m", **fields}
    if kind is Kind.CHAT:
        body.setdefault("messages", [{"role": "user", "content": "hi"}])
    request = Request(kind=kind, dialect="openai", fields=body, raw=b"as it came")
    return Call(id="01", request_id="r", tenant="t", request=request, received_at=0.0, started=0.0)


def answer(*texts: str, part: Part = Part.TEXT) -> list[Event | Exception]:
    deltas = [Delta(part=part, text=text, raw=f"<{text}>".encode("utf-8", "replace"), dialect="d") for text in texts]
    return [Start("real", "b"), *deltas, Finish()]


def tool_piece(arguments: str, *, index: int = 0, choice: int = 0, name: str | None = None) -> Delta:
    function: dict[str, Any] = {"arguments": arguments}
    data: dict[str, Any] = {"index": index, "function": function}
    if name is not None:
        function["name"] = name
        data["id"] = f"call_{index}"
    return Delta(choice=choice, part=Part.TOOL_CALL, data=data, raw=b"<tool>")


def rules(stage: str, *rows: Mapping[str, Any]) -> tuple[Rule, ...]:
    assert stage in ("input", "output")
    return build_checks(parse_specs(rows, stage=stage), stage=stage, worker=None)  # type: ignore[arg-type]


def output(*rows: Mapping[str, Any]) -> OutputChecks:
    return OutputChecks(rules("output", *rows))


async def run(layer: Layer, core: Handler, call: Call | None = None) -> list[Event]:
    async with aclosing(compose([layer], core)(call or make_call())) as events:
        return [event async for event in events]


async def run_to_error(layer: Layer, core: Handler, call: Call | None = None) -> tuple[list[Event], LaminaError | None]:
    seen: list[Event] = []
    try:
        async with aclosing(compose([layer], core)(call or make_call())) as events:
            async for event in events:
                seen.append(event)
    except LaminaError as error:
        return seen, error
    return seen, None


def said(events: Sequence[Event], part: Part = Part.TEXT, choice: int = 0) -> str:
    deltas = (event for event in events if isinstance(event, Delta) and event.part is part and event.choice == choice)
    return "".join(delta.data["function"]["arguments"] if part is Part.TOOL_CALL else delta.text for delta in deltas)
