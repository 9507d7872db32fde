"""OpenAI's text completions: `POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.body import parse_object
from gateway.dialects import fields as check
from gateway.dialects import sse
from gateway.dialects.answer import Answer, Choice
from gateway.dialects.dialect import NO_HEADERS, Reply, StreamEncoder
from gateway.dialects.relay import RelayedStream, relayed_body
from orchestration.core import Delta, Event, Finish, Kind, Request, Start
from orchestration.core.errors import LaminaError

MAX_INPUTS = 2048


class OpenAICompletions:
    """The completions format; a list of prompts makes `n` choices for each, in the prompts' order."""

    name = "openai.completions"

    def parse(self, body: bytes, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Request:
        """Check the body; unknown fields are kept as they came."""
        fields = parse_object(body)
        check.require(fields, "model")
        check.require(fields, "prompt")
        check.check_fields(fields, _CHECKS)
        check.check_stream(fields)
        return Request(kind=Kind.COMPLETION, dialect=self.name, fields=fields, raw=body)

    def encode(self, answer: Answer, reply: Reply) -> bytes:
        """Write `text_completion`; usage is left out where nobody counted."""
        raw = relayed_body(answer, self.name)
        if raw is not None:
            return raw
        whole: dict[str, Any] = {
            "id": f"cmpl-{reply.call_id}",
            "object": "text_completion",
            "created": reply.created,
            "model": answer.model or reply.request.model,
            "choices": [_whole_choice(index, choice) for index, choice in answer.choices],
        }
        if answer.usage is not None:
            whole["usage"] = sse.usage_fields(answer.usage)
        return orjson.dumps(whole)

    def stream(self, reply: Reply) -> StreamEncoder:
        """Return the encoder of streamed `text_completion`s."""
        return RelayedStream(_CompletionStream(reply), dialect=self.name)


class _CompletionStream:
    __slots__ = ("_head", "_reply", "_writer")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._head: Mapping[str, Any] = {}
        self._writer: sse.ChunkWriter | None = None

    def encode(self, event: Event) -> bytes:
        match event:
            case Start():
                self._writer = self._chunks(event.model)
                return b""
            case Delta():
                return self._chunk(event.choice, text=event.text, logprobs=event.logprobs)
            case Finish():
                ends = [self._chunk(choice, reason=reason) for choice, reason in sorted(event.reasons.items())]
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
                object_name="text_completion",
                answer_id=self._head.get("id") or f"cmpl-{self._reply.call_id}",
                created=self._head.get("created") or self._reply.created,
                model=self._head.get("model") or model or self._reply.request.model,
                includes_usage=check.includes_usage(self._reply.request.fields),
            )
        return self._writer

    def _chunk(self, choice: int, *, text: str = "", logprobs: Any = None, reason: str | None = None) -> bytes:
        piece = {"text": text, "index": choice, "logprobs": logprobs, "finish_reason": reason}
        return self._chunks().chunk(orjson.dumps(piece))


def check_inputs(name: str, value: Any) -> None:
    """Accept a text, a list of texts, a list of token ids, or a list of such lists; nothing empty."""
    if type(value) is str:
        check.filled_string(name, value)
        return
    if type(value) is not list:
        raise check.wrong_type(name, "a string, or an array of strings or token ids", value)
    if not value:
        raise check.wrong_value(name, "at least one input", value)
    if type(value[0]) is int:
        _check_ids(name, value)
        return
    if len(value) > MAX_INPUTS:
        raise check.wrong_value(name, f"at most {MAX_INPUTS} inputs", len(value))
    is_text = type(value[0]) is str
    for index, item in enumerate(value):
        if is_text:
            check.filled_string(f"{name}[{index}]", item)
        else:
            _check_ids(f"{name}[{index}]", item)


def _check_ids(name: str, value: Any) -> None:
    check.array(name, value)
    if not value:
        raise check.wrong_value(name, "at least one token id", value)
    check.token_ids(name, value)


def _whole_choice(index: int, choice: Choice) -> Mapping[str, Any]:
    return {
        "text": "".join(choice.text),
        "index": index,
        "logprobs": _merged_logprobs([found for _, found in choice.logprobs]),
        "finish_reason": choice.reason,
    }


def _merged_logprobs(pieces: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Join the parallel lists of OpenAI's `logprobs` object, piece by piece."""
    if not pieces:
        return None
    merged: dict[str, Any] = {}
    for piece in pieces:
        for name, values in piece.items():
            if isinstance(values, list) and isinstance(merged.get(name), list):
                merged[name] = merged[name] + values
            elif merged.get(name) is None:
                merged[name] = values
    return merged


_CHECKS: Mapping[str, check.FieldCheck] = {
    **check.SAMPLING,
    "prompt": check_inputs,
    "logprobs": check.integer(0, 20),
    "echo": check.boolean,
    "best_of": check.integer(1, 128),
    "suffix": check.string,
}
