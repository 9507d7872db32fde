"""Anthropic's messages to events: whole ones, and the named events of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from backends.remote.frames import Frames
from backends.remote.sse import SseFrame
from backends.remote.wire import WireFault
from orchestration.core.errors import BackendError
from orchestration.core.events import Delta, Event, Finish, Part, Start, Usage
from orchestration.core.request import Request

Json = Mapping[str, Any]
DIALECT = "anthropic.messages"
_HEAD = frozenset({"id", "type", "role", "model", "content"})
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STATUS_BY_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_TEXTS = {"text": Part.TEXT, "thinking": Part.REASONING}
_TEXT_DELTAS = {"text_delta": ("text", Part.TEXT), "thinking_delta": ("thinking", Part.REASONING)}


class MessageDecoder:
    """Follow one message. What only this API says comes as a PAYLOAD: a signature, a citation, a block of another kind.

    Nothing is invented: a message that gives no reason to stop is one broken off.
    """

    def __init__(self, request: Request, *, backend: str, model: str) -> None:
        is_own = request.dialect == DIALECT
        self._frames = Frames(DIALECT, is_on=is_own and request.is_streamed)
        self._body = Frames(DIALECT, is_on=is_own and not request.is_streamed)
        self._mark = b""
        self._backend = backend
        self._model = model
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self._stop: str | None = None
        self._num_calls = 0
        self._block: dict[str, Any] = {}
        self._pieces: list[str] = []

    @property
    def start(self) -> Start:
        """Begin with what the prompt was counted for, which comes first."""
        return Start(model=self._model, backend=self._backend, usage=_read_usage({**self._usage, "output_tokens": 0}))

    def is_end(self, frame: SseFrame) -> bool:
        """Tell whether this is `message_stop`."""
        if frame.event != "message_stop" and (frame.event or b'"message_stop"' not in frame.data[:64]):
            return False
        self._mark = frame.raw
        return True

    def read_frame(self, frame: SseFrame) -> list[Delta]:
        """Read one event; raises `WireFault` where it is an error. Kinds that are not known say nothing."""
        return self._frames.attach(self._read_event(_parse(frame.data)), frame.raw)

    def _read_event(self, event: Json) -> list[Delta]:
        match event.get("type"):
            case "message_start":
                self._frames.require(event["message"], _HEAD)
                self._note_usage(event["message"].get("usage"))
            case "content_block_start":
                return list(self._open(event["content_block"]))
            case "content_block_delta":
                return list(self._grow(event["delta"]))
            case "content_block_stop":
                return list(self._close())
            case "message_delta":
                self._note_end(event["delta"])
                self._note_usage(event.get("usage"))
            case _:
                pass
        return []

    def read_whole(self, body: bytes) -> list[Event]:
        """Read a whole message and its end."""
        message = _parse(body)
        if message.get("type") != "message":
            raise TypeError("no message")
        self._body.require(message, _HEAD)
        events: list[Event] = []
        for block in message["content"]:
            events += [*self._open(block), *self._close()]
        self._note_end(message)
        self._note_usage(message.get("usage"))
        return self._body.whole([*events, self._finish()], body)

    def finish(self) -> Finish:
        """Return the end of the message; raises `BackendError` where the upstream gave none."""
        return self._frames.end(self._finish(), self._mark)

    def _finish(self) -> Finish:
        if self._reason is None:
            raise BackendError(f"{self._backend} ended its answer without saying why")
        return Finish(
            reasons={0: _REASONS.get(self._reason, self._reason)},
            usage=_read_usage(self._usage),
            stops={} if self._stop is None else {0: self._stop},
        )

    def _open(self, block: Json) -> Iterator[Delta]:
        """Begin a block; in a whole message, and with some servers, it begins with all that it has."""
        if block.get("type") in _TEXTS and block["type"] == self._block.get("type"):
            yield _payload("break", True)  # else the two would be read as one
        self._block, self._pieces = dict(block), []
        match block.get("type"):
            case "text" | "thinking" as kind:
                if block.get(kind):
                    yield Delta(part=_TEXTS[kind], text=block[kind])
                if block.get("signature"):
                    yield _payload("signature", block["signature"])
                for citation in block.get("citations") or ():
                    yield _payload("citation", citation)
            case "tool_use":
                function = {"name": block["name"], "arguments": ""}
                yield self._call({"id": block["id"], "type": "function", "function": function})
                self._num_calls += 1
            case _:
                pass

    def _grow(self, delta: Json) -> Iterator[Delta]:
        kind = str(delta["type"])
        if kind in _TEXT_DELTAS:
            name, part = _TEXT_DELTAS[kind]
            if delta[name]:
                yield Delta(part=part, text=delta[name])
        elif kind == "input_json_delta":
            if delta["partial_json"]:
                self._pieces.append(delta["partial_json"])
                if self._block.get("type") == "tool_use":
                    yield self._arguments(delta["partial_json"])
        elif kind == "signature_delta":
            yield _payload("signature", delta["signature"])
        elif kind == "citations_delta":
            yield _payload("citation", delta["citation"])

    def _close(self) -> Iterator[Delta]:
        """End a block: a tool call without pieces of arguments had them all along, and one of another kind is whole."""
        match self._block.get("type"):
            case "text" | "thinking":
                pass
            case "tool_use":
                if not self._pieces:
                    yield self._arguments(orjson.dumps(self._block.get("input") or {}).decode())
            case _:
                if self._pieces:
                    self._block["input"] = orjson.loads("".join(self._pieces))
                yield _payload("block", self._block)

    def _arguments(self, piece: str) -> Delta:
        return Delta(part=Part.TOOL_CALL, data={"index": self._num_calls - 1, "function": {"arguments": piece}})

    def _call(self, head: Json) -> Delta:
        return Delta(part=Part.TOOL_CALL, data={"index": self._num_calls, **head})

    def _note_usage(self, usage: Json | None) -> None:
        """Take counts, which are totals: what a later one does not say stays as it was."""
        self._usage.update({name: count for name, count in (usage or {}).items() if count is not None})

    def _note_end(self, holder: Json) -> None:
        self._reason = holder.get("stop_reason") or self._reason
        self._stop = holder.get("stop_sequence") or self._stop


def _parse(data: bytes) -> Json:
    parsed = orjson.loads(data)
    if not isinstance(parsed, dict):
        raise TypeError("no JSON object")
    if parsed.get("type") == "error" or parsed.get("error"):
        error = parsed.get("error")
        kind = error.get("type") if isinstance(error, dict) else None
        raise WireFault(_STATUS_BY_TYPE.get(str(kind), 502), parsed)
    return parsed


def _read_usage(usage: Json) -> Usage | None:
    """Read the counts: `input_tokens` are only those that no cache had to do with."""
    if "input_tokens" not in usage or "output_tokens" not in usage:
        return None
    cached = usage.get("cache_read_input_tokens", 0)
    written = usage.get("cache_creation_input_tokens", 0)
    return Usage(
        prompt_tokens=usage["input_tokens"] + cached + written,
        completion_tokens=usage["output_tokens"],
        cached_tokens=cached,
        reasoning_tokens=(usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0,
        cache_write_tokens=written,
    )


def _payload(name: str, value: Any) -> Delta:
    return Delta(part=Part.PAYLOAD, data={name: value})
