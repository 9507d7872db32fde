"""OpenAI's wire format to events: whole answers, and chunks of a stream."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from backends.openai_compatible.ranking import read_ranks
from backends.remote.frames import Frames
from backends.remote.sse import SseFrame
from backends.remote.wire import WireFault
from orchestration.core.errors import BackendError
from orchestration.core.events import Delta, Event, Finish, Part, Start, Usage
from orchestration.core.request import Kind, Request

Json = Mapping[str, Any]
_TEXTS = {  # in the order in which they came to be: formats with blocks keep it
    "reasoning_content": Part.REASONING,
    "reasoning": Part.REASONING,
    "content": Part.TEXT,
    "refusal": Part.REFUSAL,
}
_HEAD = frozenset({"id", "object", "model"})
_EMBEDDINGS_HEAD = frozenset({"object", "model"})
_PLAIN = frozenset({"index", "delta", "finish_reason", "logprobs"})
_DIALECTS = {Kind.CHAT: "openai.chat", Kind.COMPLETION: "openai.completions", Kind.EMBEDDING: "openai.embeddings"}


class AnswerDecoder:
    """Follow one answer: chunks go in, `Delta`s come out, and `finish` says how it ended.

    Nothing is invented: a choice that was begun and got no reason is an answer broken off.
    """

    def __init__(self, request: Request, *, backend: str, model: str) -> None:
        self.start = Start(model=model, backend=backend)
        self._request = request
        self._kind = request.kind
        self._backend = backend
        is_own = request.dialect == _DIALECTS.get(request.kind)
        self._frames = Frames(request.dialect, is_on=is_own and request.is_streamed)
        self._body = Frames(request.dialect, is_on=is_own and not request.is_streamed)
        self._includes_usage = (request.fields.get("stream_options") or {}).get("include_usage") is True
        self._mark = b""
        self._reasons: dict[int, str | None] = {}
        self._usage: Usage | None = None
        self._stops: dict[int, str] = {}

    def is_end(self, frame: SseFrame) -> bool:
        """Tell whether this is the mark behind the content."""
        if not frame.data.startswith(b"[DONE]"):
            return False
        self._mark = frame.raw
        return True

    def read_frame(self, frame: SseFrame) -> list[Delta]:
        """Read one frame of a stream; raises `WireFault` for an error in it."""
        chunk = _parse(frame.data)
        self._frames.require(chunk, _HEAD)
        plain = self._read_plain(chunk)
        if plain is not None:
            return self._frames.attach([plain], frame.raw)
        deltas: list[Delta] = []
        is_end = False
        for choice in chunk.get("choices") or ():
            deltas += self._read_choice(choice, choice.get("delta") if self._kind is Kind.CHAT else choice)
            is_end = is_end or choice.get("finish_reason") is not None
        self._note_usage(chunk)
        raw = frame.raw
        if "usage" in chunk and not self._includes_usage:  # only we asked for it
            if chunk["usage"] is not None:
                if chunk.get("choices"):
                    self._frames.give_up()
                return deltas
            raw = _without_usage(raw)
        if is_end and self._request.num_choices == 1:
            return self._frames.hold(deltas, raw)
        return self._frames.attach(deltas, raw)

    def _read_plain(self, chunk: Json) -> Delta | None:
        """Read a chunk that brings a chat one piece of text and nothing else, as nearly all do; None for any other."""
        choices = chunk.get("choices")
        if "usage" in chunk or self._kind is not Kind.CHAT or type(choices) is not list or len(choices) != 1:
            return None
        choice = choices[0]
        delta, index = choice.get("delta"), choice.get("index")
        if not _PLAIN.issuperset(choice) or type(delta) is not dict or len(delta) != 1 or type(index) is not int:
            return None
        text = delta.get("content")
        if not text or type(text) is not str or not (choice.get("finish_reason") is choice.get("logprobs") is None):
            return None
        self._reasons.setdefault(index, None)
        return Delta(index, Part.TEXT, text)

    def read_whole(self, body: bytes) -> list[Event]:
        """Read a whole answer: one delta per part of each choice, and its end."""
        if self._kind is Kind.RERANK:
            ranks = orjson.loads(body) if body.lstrip().startswith(b"[") else _parse(body)
            return read_ranks(ranks, backend=self._backend, num_documents=len(self._request.fields["documents"]))
        answer = _parse(body)
        self._body.require(answer, _HEAD if self._kind is not Kind.EMBEDDING else _EMBEDDINGS_HEAD)
        if self._kind is Kind.EMBEDDING:
            return self._body.whole(read_embeddings(answer, backend=self._backend), body)
        return self._body.whole([*self._read_answer(answer), self._finish()], body)

    def _read_answer(self, answer: Json) -> list[Delta]:
        deltas: list[Delta] = []
        for choice in answer.get("choices") or ():
            deltas += self._read_choice(choice, choice.get("message") if self._kind is Kind.CHAT else choice)
        self._note_usage(answer)
        return deltas

    def finish(self) -> Finish:
        """Return the end of the answer; raises `BackendError` where the upstream gave none."""
        return self._frames.end(self._finish(), self._mark)

    def _finish(self) -> Finish:
        if not self._reasons or None in self._reasons.values():
            raise BackendError(f"{self._backend} ended its answer without saying why")
        return Finish(
            reasons={index: reason for index, reason in sorted(self._reasons.items()) if reason is not None},
            usage=self._usage,
            stops=self._stops,
        )

    def _read_choice(self, choice: Json, message: Json | None) -> Iterator[Delta]:
        index = int(choice.get("index") or 0)
        self._reasons[index] = choice.get("finish_reason") or self._reasons.get(index)
        stop = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM's name, SGLang's; token ids are numbers
        if isinstance(stop, str):
            self._stops[index] = stop
        parts = list(self._read_parts(index, message or {}))
        logprobs = self._read_logprobs(choice)
        if logprobs is not None:
            first = parts[0] if parts else Delta(choice=index)
            parts[:1] = [Delta(first.choice, first.part, first.text, first.data, logprobs)]
        yield from parts

    def _read_parts(self, index: int, message: Json) -> Iterator[Delta]:
        if self._kind is Kind.COMPLETION:
            if message.get("text"):
                yield Delta(choice=index, text=message["text"])
            return
        has_reasoning = False
        for name, part in _TEXTS.items():
            text = message.get(name)
            # Some servers send the same reasoning under both of its names.
            if text and not (part is Part.REASONING and has_reasoning):
                has_reasoning = has_reasoning or part is Part.REASONING
                yield Delta(choice=index, part=part, text=text)
        for position, tool_call in enumerate(message.get("tool_calls") or ()):
            yield Delta(choice=index, part=Part.TOOL_CALL, data={"index": position, **tool_call})

    def _read_logprobs(self, choice: Json) -> Any:
        logprobs = choice.get("logprobs")
        if self._kind is Kind.COMPLETION or logprobs is None:
            return logprobs
        return logprobs.get("content") or None

    def _note_usage(self, message: Json) -> None:
        # An empty usage after a full one must not wipe it out; one on a frame with choices counts as any other.
        self._usage = read_usage(message.get("usage")) or self._usage


def _parse(data: bytes) -> Json:
    """Read a JSON object; raises `WireFault` where it is an error, `TypeError` where it is none."""
    parsed = orjson.loads(data)
    if not isinstance(parsed, dict):
        raise TypeError("no JSON object")
    error = parsed.get("error")
    if error:
        code = error.get("code") if isinstance(error, dict) else None
        raise WireFault(code if isinstance(code, int) and 400 <= code < 600 else 502, parsed)
    return parsed


def read_usage(usage: Json | None) -> Usage | None:
    """Read OpenAI's usage object; None where there is none or it is empty."""
    if not usage:
        return None
    prompt_details = usage.get("prompt_tokens_details") or {}
    completion_details = usage.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=prompt_details.get("cached_tokens") or 0,
        reasoning_tokens=completion_details.get("reasoning_tokens") or 0,
    )


def read_embeddings(answer: Json, *, backend: str) -> list[Event]:
    """Read an embeddings answer: one payload with floats, however they were sent, and its usage."""
    rows = [{"index": row["index"], "embedding": _read_vector(row["embedding"])} for row in answer.get("data") or ()]
    if not rows:
        raise BackendError(f"{backend} sent no embeddings")
    return [
        Delta(part=Part.PAYLOAD, data=sorted(rows, key=lambda row: int(row["index"]))),
        Finish(usage=read_usage(answer.get("usage"))),
    ]


def _read_vector(vector: Any) -> list[float]:
    if isinstance(vector, str):  # base64 of little-endian floats, which OpenAI's own clients ask for
        packed = base64.b64decode(vector, validate=True)
        return list(struct.unpack(f"<{len(packed) // 4}f", packed))
    return [float(value) for value in vector]


def _without_usage(raw: bytes) -> bytes:
    """Leave out of a frame the empty usage that stands there because we asked for it."""
    return raw.replace(b',"usage":null', b"", 1).replace(b', "usage": null', b"", 1)
