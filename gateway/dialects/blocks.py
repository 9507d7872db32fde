"""An answer as blocks, made from events: one after the other, each closed before the next.

The blocks are in Anthropic's words; refusals are blocks of their own where a format has such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from orchestration.core import Delta, Part
from orchestration.core.errors import BackendError

Key = str | int
"""`text`, `refusal`, `thinking`, a tool call's index, or `block` for one that came whole."""
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Opened:
    """A block begins."""

    block: Json


@dataclass(frozen=True, slots=True)
class Grown:
    """The open block grows; the delta is as the wire has it."""

    delta: Json


@dataclass(frozen=True, slots=True)
class Closed:
    """The open block is complete."""


Step = Opened | Grown | Closed


class Blocks:
    """Turn one choice's deltas into blocks in strict order.

    Pieces of parallel tool calls may come interleaved: one block at a time is open, and what belongs to another waits
    until the open one is known to be complete (its arguments are whole JSON), or the answer is.
    """

    def __init__(self, call_id: str, *, has_refusals: bool = False) -> None:
        self._call_id = call_id
        self._has_refusals = has_refusals
        self._open: Key | None = None
        self._arguments: list[str] = []
        self._waiting: dict[Key, list[Json]] = {}
        self._last_call = -1
        self._done: set[Key] = set()
        self.has_tool_calls = False

    def add(self, delta: Delta) -> Iterator[Step]:
        """Take a delta and give the steps that it makes."""
        match delta.part:
            case Part.REFUSAL if self._has_refusals:
                yield from self._take("refusal", {"type": "refusal_delta", "refusal": delta.text}, bool(delta.text))
            case Part.TEXT | Part.REFUSAL:
                yield from self._take("text", {"type": "text_delta", "text": delta.text}, bool(delta.text))
            case Part.REASONING:
                yield from self._take("thinking", {"type": "thinking_delta", "thinking": delta.text}, bool(delta.text))
            case Part.TOOL_CALL:
                self.has_tool_calls = True
                for piece in delta.data if isinstance(delta.data, list) else [delta.data]:
                    yield from self._take(self._index_of(piece), piece)
            case Part.PAYLOAD:
                yield from self._take_payload(delta.data)

    def end(self) -> Iterator[Step]:
        """Give what still waits, and close the last block."""
        while self._waiting:
            yield from self._open_next()
        yield from self._close()

    def _take_payload(self, data: Any) -> Iterator[Step]:
        """Take what a backend of the same dialect sent beyond the neutral events: a signature, or a whole block."""
        if not isinstance(data, dict):
            return
        if "signature" in data:
            yield from self._take("thinking", {"type": "signature_delta", "signature": data["signature"]})
        elif "citation" in data:
            yield from self._take("text", {"type": "citations_delta", "citation": data["citation"]})
        elif "break" in data:
            if isinstance(self._open, str):
                yield from self._close()
        elif "block" in data:
            yield from self._take("block", data["block"])

    def _take(self, key: Key, piece: Json, has_content: bool = True) -> Iterator[Step]:
        if not has_content:
            return
        if key == self._open:
            yield from self._grow(key, piece)
            return
        if key in self._done:
            if str((piece.get("function") or {}).get("arguments") or "").strip():
                raise BackendError("the backend sent more arguments for a tool call that was complete")
            return
        self._waiting.setdefault(key, []).append(piece)
        while self._waiting and self._may_close():
            yield from self._open_next()

    def _open_next(self) -> Iterator[Step]:
        yield from self._close()
        key = next(iter(self._waiting))
        pieces = self._waiting.pop(key)
        if key == "block":
            for block in pieces:
                yield Opened(block)
                yield Closed()
            return
        self._open = key
        yield Opened(self._head_of(key, pieces))
        for piece in pieces:
            yield from self._grow(key, piece)

    def _grow(self, key: Key, piece: Json) -> Iterator[Step]:
        if isinstance(key, str):
            yield Grown(piece)
            return
        arguments = (piece.get("function") or {}).get("arguments")
        if arguments:
            self._arguments.append(arguments)
            yield Grown({"type": "input_json_delta", "partial_json": arguments})

    def _close(self) -> Iterator[Step]:
        if self._open is not None:
            if isinstance(self._open, int):
                self._done.add(self._open)
            self._open = None
            self._arguments = []
            yield Closed()

    def _may_close(self) -> bool:
        return not isinstance(self._open, int) or is_whole_json("".join(self._arguments))

    def _head_of(self, key: Key, pieces: list[Json]) -> Json:
        match key:
            case "text":
                return {"type": "text", "text": ""}
            case "refusal":
                return {"type": "refusal", "refusal": ""}
            case "thinking":
                return {"type": "thinking", "thinking": "", "signature": ""}
            case _:
                name = next((found for piece in pieces if (found := (piece.get("function") or {}).get("name"))), "")
                # A result has to name the call that it answers, so one that came without an id gets one.
                call = next((found for piece in pieces if (found := piece.get("id"))), f"toolu_{self._call_id}_{key}")
                return {"type": "tool_use", "id": call, "name": name, "input": {}}

    def _index_of(self, piece: Json) -> int:
        """Return a piece's call: without an index one with an id begins a call, and one without goes on."""
        index = piece.get("index")
        if not isinstance(index, int):
            index = self._last_call + 1 if piece.get("id") or self._last_call < 0 else self._last_call
        self._last_call = max(self._last_call, index)
        return index


def is_whole_json(text: str) -> bool:
    """Tell whether the text is one JSON value from begin to end."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
