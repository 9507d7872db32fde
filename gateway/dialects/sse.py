"""Server-sent events as OpenAI writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.error_body import error_body
from orchestration.core import Usage
from orchestration.core.errors import LaminaError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream
)


def error_frames(error: LaminaError) -> bytes:
    """End a stream that broke off: one frame that clients raise from, and the end mark they wait for."""
    return b"data: " + error_body(error) + b"\n\n" + DONE


def usage_fields(usage: Usage) -> Mapping[str, Any]:
    """Write usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def head_of(frames: bytes) -> Mapping[str, Any]:
    """Read what is the same in all chunks of a stream out of its first one that has it; nothing where none has."""
    for frame in frames.split(b"\n\n"):
        if frame.startswith(b"data:"):
            chunk = orjson.loads(frame.removeprefix(b"data:"))
            return {name: chunk[name] for name in ("id", "created", "model") if chunk.get(name)}
    return {}


class ChunkWriter:
    """Write the chunks of one stream: the same id, time and model in all, usage as the client asked.

    With `includes_usage` every chunk has `"usage": null` and one more, without choices, has the numbers;
    otherwise usage is nowhere.
    """

    __slots__ = ("_head", "_includes_usage", "_tail")

    def __init__(self, *, object_name: str, answer_id: str, created: int, model: str, includes_usage: bool) -> None:
        head = orjson.dumps({"id": answer_id, "object": object_name, "created": created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._includes_usage = includes_usage
        self._tail = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"

    def chunk(self, choice: bytes) -> bytes:
        """Write one choice's piece, given as JSON."""
        return self._head + choice + self._tail

    def usage_chunk(self, usage: Usage | None) -> bytes:
        """Write the numbers where they were asked for and somebody counted."""
        if not self._includes_usage or usage is None:
            return b""
        return self._head + b'],"usage":' + orjson.dumps(usage_fields(usage)) + b"}\n\n"
