"""A whole answer, collected from the same events that a stream is written from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from orchestration.core import Delta, Event, Finish, Part, Start, Usage


@dataclass(slots=True)
class Choice:
    """One choice: its pieces in the order they came, by part."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    logprobs: list[tuple[Part, Any]] = field(default_factory=list)
    payloads: list[Any] = field(default_factory=list)
    reason: str | None = None

    def add(self, delta: Delta) -> None:
        """Take one piece."""
        match delta.part:
            case Part.TEXT:
                self.text.append(delta.text)
            case Part.REASONING:
                self.reasoning.append(delta.text)
            case Part.REFUSAL:
                self.refusal.append(delta.text)
            case Part.TOOL_CALL:
                for piece in delta.data if isinstance(delta.data, list) else [delta.data]:
                    self._add_tool_call(piece)
            case Part.PAYLOAD:
                self.payloads.append(delta.data)
        if delta.logprobs is not None:
            self.logprobs.append((delta.part, delta.logprobs))

    def _add_tool_call(self, piece: dict[str, Any]) -> None:
        """Merge a piece into its call: arguments are put together, every other field is kept as first sent."""
        index = piece.get("index")
        if index is None:
            # Without an index a piece with an id begins a call, and one without goes on with the last.
            index = len(self.tool_calls) - (0 if piece.get("id") or not self.tool_calls else 1)
        call = self.tool_calls.setdefault(index, {})
        for name, value in piece.items():
            if name == "function" and isinstance(value, dict):
                _merge_function(call.setdefault("function", {}), value)
            elif name != "index" and call.get(name) is None:
                call[name] = value


class Answer:
    """Everything an answer held; `usage` is None where nobody counted, `is_finished` tells a whole from a cut one.

    `deltas` are the pieces as they came, `stops` the stop strings that ended choices.
    """

    __slots__ = ("deltas", "finish", "is_finished", "model", "stops", "usage")

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.stops: Mapping[int, str] = {}
        self.model: str | None = None
        self.usage: Usage | None = None
        self.is_finished = False
        self.finish: Finish | None = None

    @property
    def choices(self) -> list[tuple[int, Choice]]:
        """Put the pieces together, choice by choice; an answer that is relayed as it came needs none of it."""
        found: defaultdict[int, Choice] = defaultdict(Choice)
        for delta in self.deltas:
            found[delta.choice].add(delta)
        if self.finish is not None:
            for index, reason in self.finish.reasons.items():
                found[index].reason = reason
        return sorted(found.items(), key=itemgetter(0))

    def add(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Start():
                self.model = event.model
            case Delta():
                self.deltas.append(event)
            case Finish():
                self.is_finished = True
                self.finish = event
                self.usage = event.usage
                self.stops = event.stops


def _merge_function(function: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        if name == "arguments":
            function["arguments"] = function.get("arguments", "") + (value or "")
        elif function.get(name) is None:
            function[name] = value
