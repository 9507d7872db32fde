"""Anthropic's messages: `POST /v1/messages`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.anthropic_errors import anthropic_error_body
from gateway.dialects.answer import Answer
from gateway.dialects.anthropic_request import read_fields, read_headers
from gateway.dialects.blocks import Blocks, Closed, Grown, Opened, Step
from gateway.dialects.dialect import NO_HEADERS, Reply, StreamEncoder
from gateway.dialects.relay import RelayedStream, relayed_body
from orchestration.core import Delta, Event, Finish, Kind, Request, Start, Usage
from orchestration.core.errors import BackendError, LaminaError

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class AnthropicMessages:
    """The messages format; it has one choice, and its streams end without a mark."""

    name = "anthropic.messages"

    def parse(self, body: bytes, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Request:
        """Check the body; what only Anthropic's API knows is kept under `anthropic`."""
        fields = read_fields(body, headers, needs_max_tokens=True)
        return Request(kind=Kind.CHAT, dialect=self.name, fields=fields, raw=body, headers=read_headers(headers))

    def parse_prompt(self, body: bytes, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Request:
        """Check a body of which only the prompt is to be counted: it needs no `max_tokens`."""
        fields = read_fields(body, headers, needs_max_tokens=False)
        return Request(kind=Kind.CHAT, dialect=self.name, fields=fields, raw=body, headers=read_headers(headers))

    def encode(self, answer: Answer, reply: Reply) -> bytes:
        """Write the message; its counts are null where nobody counted."""
        raw = relayed_body(answer, self.name)
        if raw is not None:
            return raw
        blocks = Blocks(reply.call_id)
        steps = [step for delta in answer.deltas if delta.choice == 0 for step in blocks.add(delta)]
        reason = next((choice.reason for index, choice in answer.choices if index == 0), None)
        content = _fold([*steps, *blocks.end()], is_cut=reason == "length")
        ending = _ending(reason, answer.stops.get(0), has_tool_calls=blocks.has_tool_calls)
        return orjson.dumps(
            {
                **_head(reply, answer.model),
                "content": content,
                **ending,
                "usage": usage_fields(answer.usage),
            }
        )

    def stream(self, reply: Reply) -> StreamEncoder:
        """Return the encoder of named events."""
        return RelayedStream(_MessageStream(reply), dialect=self.name)


class _MessageStream:
    __slots__ = ("_blocks", "_index", "_is_begun", "_reply", "_start")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._blocks = Blocks(reply.call_id)
        self._start: Start | None = None
        self._is_begun = False
        self._index = -1

    def encode(self, event: Event) -> bytes:
        match event:
            case Start():
                self._start = event  # its frame goes out with the first content's
                return b""
            case Delta():
                if event.choice != 0:
                    return b""
                return self._begin() + self._write(self._blocks.add(event))
            case Finish():
                return self._begin() + self._write(self._blocks.end()) + self._end(event)

    def go_on_from(self, frames: bytes) -> None:
        """Change nothing: the id stands in the first frame alone."""

    def encode_error(self, error: LaminaError) -> bytes:
        return b"event: error\ndata: " + anthropic_error_body(error, self._reply.call_id) + b"\n\n"

    def encode_keep_alive(self) -> bytes:
        return _PING

    def encode_end(self) -> bytes:
        return _frame("message_stop", {})

    def _begin(self) -> bytes:
        if self._is_begun:
            return b""
        self._is_begun = True
        start = self._start
        usage = (start.usage if start is not None else None) or Usage()
        # So far nothing was put out, and clients cannot begin without numbers; the end has the true ones.
        message = {
            **_head(self._reply, None if start is None else start.model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage_fields(usage), "output_tokens": 0},
        }
        return _frame("message_start", {"message": message})

    def _write(self, steps: Iterable[Step]) -> bytes:
        frames = []
        for step in steps:
            match step:
                case Opened():
                    self._index += 1
                    frames.append(_frame("content_block_start", {"index": self._index, "content_block": step.block}))
                case Grown():
                    frames.append(_frame("content_block_delta", {"index": self._index, "delta": step.delta}))
                case Closed():
                    frames.append(_frame("content_block_stop", {"index": self._index}))
        return b"".join(frames)

    def _end(self, event: Finish) -> bytes:
        ending = _ending(event.reasons.get(0), event.stops.get(0), has_tool_calls=self._blocks.has_tool_calls)
        return _frame("message_delta", {"delta": ending, "usage": usage_fields(event.usage)})


def usage_fields(usage: Usage | None) -> Mapping[str, int | None]:
    """Write usage in Anthropic's shape: what was read from or written to a cache is no part of `input_tokens`."""
    if usage is None:
        return {"input_tokens": None, "output_tokens": None}
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _head(reply: Reply, model: str | None) -> Mapping[str, Any]:
    return {
        "id": f"msg_{reply.call_id}",
        "type": "message",
        "role": "assistant",
        "model": model or reply.request.model,
    }


def _ending(reason: str | None, stop: str | None, *, has_tool_calls: bool) -> Mapping[str, str | None]:
    """Say why it ended. A forced tool call ends with OpenAI's `stop`, and clients look for `tool_use`."""
    if reason == "stop" and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    if reason == "stop" and has_tool_calls:
        reason = "tool_calls"
    return {"stop_reason": _REASONS.get(reason or "", reason), "stop_sequence": None}


def _frame(event: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + orjson.dumps({"type": event, **fields}) + b"\n\n"


def _fold(steps: Iterable[Step], *, is_cut: bool) -> list[dict[str, Any]]:
    """Put the blocks together; a tool call that the token limit cut through is left out, as it cannot be made."""
    blocks: list[dict[str, Any]] = []
    pieces: list[Mapping[str, Any]] = []
    for step in steps:
        match step:
            case Opened():
                blocks.append(dict(step.block))
                pieces = []
            case Grown():
                pieces.append(step.delta)
            case Closed():
                if not _complete(blocks[-1], pieces):
                    if not is_cut:
                        raise BackendError("the model wrote arguments of a tool call that are no JSON object")
                    blocks.pop()
                pieces = []
    return blocks


def _complete(block: dict[str, Any], pieces: Sequence[Mapping[str, Any]]) -> bool:
    citations = [piece["citation"] for piece in pieces if "citation" in piece]
    if citations:
        block["citations"] = citations
    texts: dict[str, list[str]] = {}
    for piece in pieces:
        name = next(key for key in piece if key != "type")
        if name != "citation":
            texts.setdefault(name, []).append(str(piece[name]))
    arguments = "".join(texts.pop("partial_json", ()))
    block.update({name: "".join(found) for name, found in texts.items()})
    if not arguments.strip():
        return True
    try:
        block["input"] = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return False
    return isinstance(block["input"], dict)
