"""The checked text inside an event, and the event with another text in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestration.core import Delta, Part

Key = tuple[int, Part, int]
"""Which text a piece belongs to: the choice, the part, and the tool call's index (0 for other parts)."""

_TOOL_TEXTS = (("function", "arguments"), ("custom", "input"))


def key_of(delta: Delta) -> Key | None:
    """Say which text an event is a piece of; None for what holds no checked text (embeddings)."""
    if delta.part is Part.PAYLOAD:
        return None
    index = delta.data.get("index", 0) if delta.part is Part.TOOL_CALL and isinstance(delta.data, Mapping) else 0
    return delta.choice, delta.part, index


def text_of(delta: Delta) -> str:
    """Return an event's piece of text; empty for a tool call's first frame, which only names it."""
    if delta.part is not Part.TOOL_CALL:
        return delta.text
    place = _place_of(delta.data)
    return str(delta.data[place[0]][place[1]]) if place else ""


def with_text(delta: Delta, text: str) -> Delta | None:
    """Return the event with another text: no raw frames, no logprobs; None where nothing of it is left."""
    if delta.part is not Part.TOOL_CALL:
        return replace(delta, text=text, raw=None, logprobs=None) if text else None
    place = _place_of(delta.data)
    assert place is not None, "only an event with a text is given another one"
    outer, inner = place
    data = {**delta.data, outer: {**delta.data[outer], inner: text}}
    return replace(delta, data=data, raw=None, logprobs=None)


def _place_of(data: Any) -> tuple[str, str] | None:
    if isinstance(data, Mapping):
        for outer, inner in _TOOL_TEXTS:
            if isinstance(data.get(outer), Mapping) and isinstance(data[outer].get(inner), str):
                return outer, inner
    return None
