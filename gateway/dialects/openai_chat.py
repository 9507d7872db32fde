"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.body import parse_object
from gateway.dialects import fields as check
from gateway.dialects import sse
from gateway.dialects.answer import Answer, Choice
from gateway.dialects.dialect import NO_HEADERS, Reply, StreamEncoder
from gateway.dialects.messages import check_messages
from gateway.dialects.relay import RelayedStream, relayed_body
from orchestration.core import Delta, Event, Finish, Kind, Part, Request, Start
from orchestration.core.errors import InvalidRequest, LaminaError

_TEXT_FIELDS = {Part.TEXT: "content", Part.REASONING: "reasoning_content", Part.REFUSAL: "refusal"}


class OpenAIChat:
    """The chat format. One id, time and model hold for the whole stream, also where its begin was another's."""

    name = "openai.chat"

    def parse(self, body: bytes, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Request:
        """Check the body; unknown fields are kept as they came."""
        fields = parse_object(body)
        check.require(fields, "model")
        check.require(fields, "messages")
        check.check_fields(fields, _CHECKS)
        check.check_stream(fields)
        if fields.get("top_logprobs") is not None and fields.get("logprobs") is not True:
            raise InvalidRequest(
                "The 'top_logprobs' parameter is only allowed when 'logprobs' is true.", param="top_logprobs"
            )
        return Request(kind=Kind.CHAT, dialect=self.name, fields=fields, raw=body)

    def encode(self, answer: Answer, reply: Reply) -> bytes:
        """Write `chat.completion`; usage is left out where nobody counted."""
        raw = relayed_body(answer, self.name)
        if raw is not None:
            return raw
        whole: dict[str, Any] = {
            "id": f"chatcmpl-{reply.call_id}",
            "object": "chat.completion",
            "created": reply.created,
            "model": answer.model or reply.request.model,
            "choices": [_whole_choice(index, choice) for index, choice in answer.choices],
        }
        if answer.usage is not None:
            whole["usage"] = sse.usage_fields(answer.usage)
        return orjson.dumps(whole)

    def stream(self, reply: Reply) -> StreamEncoder:
        """Return the encoder of `chat.completion.chunk`s."""
        return RelayedStream(_ChatStream(reply), dialect=self.name)


class _ChatStream:
    __slots__ = ("_begun", "_head", "_reply", "_writer")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._begun: set[int] = set()
        self._head: Mapping[str, Any] = {}
        self._writer: sse.ChunkWriter | None = None

    def encode(self, event: Event) -> bytes:
        match event:
            case Start():
                self._writer = self._chunks(event.model)
                return b""
            case Delta(part=Part.PAYLOAD):
                return b""  # what only another dialect can say
            case Delta():
                return self._chunk(event.choice, self._delta_of(event), logprobs=event)
            case Finish():
                ends = [self._end(choice, reason) for choice, reason in sorted(event.reasons.items())]
                return b"".join(ends) + self._chunks().usage_chunk(event.usage)

    def go_on_from(self, frames: bytes) -> None:
        self._head = sse.head_of(frames)
        self._writer = None

    def encode_error(self, error: LaminaError) -> bytes:
        return sse.error_frames(error)

    def encode_keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def encode_end(self) -> bytes:
        return sse.DONE

    def _chunks(self, model: str | None = None) -> sse.ChunkWriter:
        if self._writer is None:
            self._writer = sse.ChunkWriter(
                object_name="chat.completion.chunk",
                answer_id=self._head.get("id") or f"chatcmpl-{self._reply.call_id}",
                created=self._head.get("created") or self._reply.created,
                model=self._head.get("model") or model or self._reply.request.model,
                includes_usage=check.includes_usage(self._reply.request.fields),
            )
        return self._writer

    def _delta_of(self, event: Delta) -> dict[str, Any]:
        if event.part in _TEXT_FIELDS:
            return {_TEXT_FIELDS[event.part]: event.text}
        return {"tool_calls": event.data if isinstance(event.data, list) else [event.data]}

    def _chunk(self, choice: int, delta: dict[str, Any], *, logprobs: Delta | None, reason: str | None = None) -> bytes:
        if choice not in self._begun:
            self._begun.add(choice)
            delta = {"role": "assistant", "content": None if "content" not in delta and delta else "", **delta}
        found = None if logprobs is None else _logprobs_of(logprobs)
        piece = {"index": choice, "delta": delta, "logprobs": found, "finish_reason": reason}
        return self._chunks().chunk(orjson.dumps(piece))

    def _end(self, choice: int, reason: str) -> bytes:
        return self._chunk(choice, {}, logprobs=None, reason=reason)


def _logprobs_of(event: Delta) -> Mapping[str, Any] | None:
    if event.logprobs is None:
        return None
    if event.part is Part.REFUSAL:
        return {"content": None, "refusal": event.logprobs}
    return {"content": event.logprobs, "refusal": None}


def _whole_choice(index: int, choice: Choice) -> Mapping[str, Any]:
    return {
        "index": index,
        "message": _message_of(choice),
        "logprobs": _whole_logprobs(choice),
        "finish_reason": choice.reason,
    }


def _message_of(choice: Choice) -> Mapping[str, Any]:
    """Write the message: its content is null only where it says something in another way."""
    says_otherwise = choice.tool_calls or choice.refusal
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(choice.text) if choice.text or not says_otherwise else None,
        "refusal": "".join(choice.refusal) or None,
    }
    if choice.reasoning:
        message["reasoning_content"] = "".join(choice.reasoning)
    if choice.tool_calls:
        message["tool_calls"] = [call for _, call in sorted(choice.tool_calls.items())]
    return message


def _whole_logprobs(choice: Choice) -> Mapping[str, Any] | None:
    if not choice.logprobs:
        return None
    content = [token for part, tokens in choice.logprobs if part is not Part.REFUSAL for token in tokens]
    refusal = [token for part, tokens in choice.logprobs if part is Part.REFUSAL for token in tokens]
    return {"content": content or None, "refusal": refusal or None}


def _check_tools(name: str, value: Any) -> None:
    check.array(name, value)
    for index, tool in enumerate(value):
        at = f"{name}[{index}]"
        check.json_object(at, tool)
        check.string(f"{at}.type", tool.get("type"))
        if tool["type"] == "function":
            check.json_object(f"{at}.function", tool.get("function"))
            check.filled_string(f"{at}.function.name", tool["function"].get("name"))


def _check_tool_choice(name: str, value: Any) -> None:
    if type(value) is str:
        check.one_of("none", "auto", "required")(name, value)
    else:
        check.json_object(name, value)


def _check_response_format(name: str, value: Any) -> None:
    check.json_object(name, value)
    check.string(f"{name}.type", value.get("type"))


_CHECKS: Mapping[str, check.FieldCheck] = {
    **check.SAMPLING,
    "messages": check_messages,
    "max_completion_tokens": check.integer(1),
    "logprobs": check.boolean,
    "top_logprobs": check.integer(0, 20),
    "tools": _check_tools,
    "tool_choice": _check_tool_choice,
    "parallel_tool_calls": check.boolean,
    "response_format": _check_response_format,
}
