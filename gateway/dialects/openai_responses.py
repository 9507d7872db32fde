"""OpenAI's responses: `POST /v1/responses`. Nothing is stored: every request brings its whole input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway.body import parse_object
from gateway.dialects import sse
from gateway.dialects.answer import Answer
from gateway.dialects.blocks import Blocks
from gateway.dialects.dialect import NO_HEADERS, Reply, StreamEncoder
from gateway.dialects.responses_output import Output, Told
from gateway.dialects.responses_request import read_fields
from gateway.dialects.responses_tools import kinds_of
from orchestration.core import Delta, Event, Finish, Kind, Request, Start, Usage
from orchestration.core.errors import LaminaError

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class OpenAIResponses:
    """The responses format; it has one choice."""

    name = "openai.responses"

    def parse(self, body: bytes, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Request:
        """Check the body; what needs answers that are stored is refused by name."""
        return Request(kind=Kind.CHAT, dialect=self.name, fields=read_fields(parse_object(body)), raw=body)

    def encode(self, answer: Answer, reply: Reply) -> bytes:
        """Write the response; its usage is null where nobody counted."""
        output = Output(reply.call_id, tools=_tools_of(reply))
        blocks = Blocks(reply.call_id, has_refusals=True)
        reason = next((choice.reason for index, choice in answer.choices if index == 0), None)
        for delta in answer.deltas:
            if delta.choice == 0:
                output.write(blocks.add(delta))
        output.write(blocks.end(), is_cut=reason in _INCOMPLETE)
        head = _head_of(reply, answer.model)
        return orjson.dumps({**head, **_ending(reason, answer.usage), "output": output.items})

    def stream(self, reply: Reply) -> StreamEncoder:
        """Return the encoder of numbered events."""
        return _ResponseStream(reply)


class _ResponseStream:
    __slots__ = ("_blocks", "_head", "_number", "_output", "_reply")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._blocks = Blocks(reply.call_id, has_refusals=True)
        self._output = Output(reply.call_id, tools=_tools_of(reply))
        self._head: dict[str, Any] | None = None
        self._number = 0

    def encode(self, event: Event) -> bytes:
        match event:
            case Start():
                return self._begin(event.model)
            case Delta():
                if event.choice != 0:
                    return b""
                return self._begin() + self._frames(self._output.write(self._blocks.add(event)))
            case Finish():
                reason = event.reasons.get(0)
                told = self._output.write(self._blocks.end(), is_cut=reason in _INCOMPLETE)
                return self._begin() + self._frames([*told, self._end(reason, event.usage)])

    def encode_error(self, error: LaminaError) -> bytes:
        fields = {"message": error.message.encode("utf-8", "replace").decode(), "code": error.code}
        # `error` as an object is what makes clients raise; the other fields are the API's own.
        return self._frame("error", {**fields, "param": error.param, "error": {**fields, "type": error.type}})

    def encode_keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def encode_end(self) -> bytes:
        return b""

    def _begin(self, model: str | None = None) -> bytes:
        if self._head is not None:
            return b""
        self._head = _head_of(self._reply, model)
        response = {**self._head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        return self._frames(
            [("response.created", {"response": response}), ("response.in_progress", {"response": response})]
        )

    def _end(self, reason: str | None, usage: Usage | None) -> Told:
        ending = _ending(reason, usage)
        response = {**(self._head or {}), **ending, "output": self._output.items}
        return f"response.{ending['status']}", {"response": response}

    def _frames(self, told: Iterable[Told]) -> bytes:
        return b"".join([self._frame(event, fields) for event, fields in told])

    def _frame(self, event: str, fields: Mapping[str, Any]) -> bytes:
        data = orjson.dumps({"type": event, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def _ending(reason: str | None, usage: Usage | None) -> dict[str, Any]:
    cut = _INCOMPLETE.get(reason or "")
    return {
        "status": "completed" if cut is None else "incomplete",
        "incomplete_details": None if cut is None else {"reason": cut},
        "usage": None if usage is None else _usage_fields(usage),
    }


def _usage_fields(usage: Usage) -> Mapping[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _tools_of(reply: Reply) -> Mapping[str, str]:
    return kinds_of(None if reply.request.raw is None else orjson.loads(reply.request.raw).get("tools"))


def _head_of(reply: Reply, model: str | None) -> dict[str, Any]:
    """Return what an answer says of its request: the fields as they were sent."""
    sent = {} if reply.request.raw is None else orjson.loads(reply.request.raw)
    echoed = {name: default if sent.get(name) is None else sent[name] for name, default in _ECHOED.items()}
    return {
        "id": f"resp_{reply.call_id}",
        "object": "response",
        "created_at": reply.created,
        "model": model or reply.request.model,
        "error": None,
        **echoed,
        "previous_response_id": None,
        "store": False,
    }


_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
