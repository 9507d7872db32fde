"""The answer as the log keeps it: the pieces of a stream put together again, within a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestration.core import Delta, Part

_NAMES = {Part.TEXT: "text", Part.REASONING: "reasoning", Part.REFUSAL: "refusal"}


@dataclass(slots=True)
class _Choice:
    pieces: dict[str, list[str]] = field(default_factory=dict)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)


class Answer:
    """Collect an answer's texts and tool calls, at most `max_chars` characters of them; the rest is counted only.

    Embeddings are counted, not kept: they can be computed again, and weigh more than everything else.
    """

    def __init__(self, *, max_chars: int) -> None:
        self._max_chars = max_chars
        self._choices: dict[int, _Choice] = {}
        self.num_chars = 0
        self.num_vectors = 0

    @property
    def is_truncated(self) -> bool:
        """Tell whether some of the answer was not kept."""
        return self.num_chars > self._max_chars

    def add(self, delta: Delta) -> None:
        """Take the next piece."""
        if delta.part is Part.PAYLOAD:
            self.num_vectors += len(delta.data) if isinstance(delta.data, list) else 1
        elif delta.part is Part.TOOL_CALL:
            self._add_tool_calls(delta)
        elif delta.text:
            kept = self._take(delta.text)
            if kept:
                self._choice(delta.choice).pieces.setdefault(_NAMES[delta.part], []).append(kept)

    def choices(self) -> list[dict[str, Any]]:
        """Give each choice's whole texts and tool calls, by its index."""
        return [
            {
                "index": index,
                **{name: "".join(pieces) for name, pieces in choice.pieces.items()},
                **(
                    {"tool_calls": [_tool_call(each) for each in choice.tool_calls.values()]}
                    if choice.tool_calls
                    else {}
                ),
            }
            for index, choice in sorted(self._choices.items())
        ]

    def _take(self, text: str) -> str:
        room = self._max_chars - self.num_chars
        self.num_chars += len(text)
        return text[: max(room, 0)]

    def _choice(self, index: int) -> _Choice:
        return self._choices.setdefault(index, _Choice())

    def _add_tool_calls(self, delta: Delta) -> None:
        tool_calls = self._choice(delta.choice).tool_calls
        for piece in delta.data if isinstance(delta.data, list) else [delta.data]:
            if not isinstance(piece, Mapping):
                continue
            known = tool_calls.setdefault(int(piece.get("index") or 0), {"id": None, "name": None, "arguments": []})
            function = piece.get("function") or {}
            known["id"] = piece.get("id") or known["id"]
            known["name"] = function.get("name") or known["name"]
            known["arguments"].append(self._take(str(function.get("arguments") or "")))


def _tool_call(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {**parts, "arguments": "".join(parts["arguments"])}
