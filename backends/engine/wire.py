"""The engine link on the wire: frames, and the messages in them as plain maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from backends.engine.types import Output, RefusalCode, Refused, SamplingParams, Submission, TokenLogprobs

MAX_FRAME_BYTES = 16 << 20
_HEADER_BYTES = 4


class BadFrame(Exception):
    """What came is no frame of this link; the connection cannot go on."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a frame: the length as 32 bits, big-endian, then one msgpack map."""
    body: bytes = msgpack.packb(message)
    return len(body).to_bytes(_HEADER_BYTES, "big") + body


class FrameReader:
    """Cut a byte stream into messages; holds at most one frame that is not complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """Take bytes; gives every message that is complete. Raises `BadFrame`."""
        self._buffer += data
        while len(self._buffer) >= _HEADER_BYTES:
            size = int.from_bytes(self._buffer[:_HEADER_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise BadFrame(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are taken")
            end = _HEADER_BYTES + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER_BYTES:end])
            del self._buffer[:end]
            yield _decode(body)


def _decode(body: bytes) -> Mapping[str, Any]:
    try:
        message = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as exc:
        raise BadFrame(f"a frame that is not msgpack: {exc}") from exc
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise BadFrame("a frame that is no map with an op")
    return message


def read_submission(message: Mapping[str, Any]) -> Submission:
    """Return what a submit message asks for. Raises `Refused` for a field of the wrong type."""
    fields = _Fields(message)
    params = SamplingParams(
        max_tokens=fields.integer("max_tokens"),
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        top_k=fields.integer("top_k", 0),
        seed=fields.optional_integer("seed"),
        stop_ids=frozenset(fields.integers("stop_ids", ())),
        ignore_eos=bool(message.get("ignore_eos", False)),
        logprobs=fields.optional_integer("logprobs"),
    )
    salt = message.get("salt", "")
    if not isinstance(salt, str):
        raise Refused(RefusalCode.BAD_PARAMS, f"salt is a {type(salt).__name__}; it must be a string")
    return Submission(tuple(fields.integers("prompt")), params, salt, fields.integer("priority", 0))


def step_message(rows: Sequence[tuple[int, Output]]) -> Mapping[str, Any]:
    """Return one step's message of a connection's rows, each with the connection's own id.

    What is new about when things happened stands beside the rows, where a reader that does not know it passes it by.
    """
    message: dict[str, Any] = {"op": "step", "rows": [_row(request_id, output) for request_id, output in rows]}
    events = [[request_id, output.events] for request_id, output in rows if output.events is not None]
    if events:
        message["events"] = events
    return message


def refused_message(request_id: int, refused: Refused) -> Mapping[str, Any]:
    """Return the message that a request was not taken."""
    return {
        "op": "refused",
        "id": request_id,
        "code": refused.code.value,
        "message": refused.message,
        "retry_after_s": refused.retry_after_s,
    }


def _row(request_id: int, output: Output) -> Sequence[Any]:
    logprobs = None if output.logprobs is None else [_logprobs(each) for each in output.logprobs]
    finish = None if output.finish is None else output.finish.value
    return [request_id, list(output.tokens), logprobs, finish, output.cached_prompt_tokens]


def _logprobs(token: TokenLogprobs) -> Sequence[Any]:
    return [token.logprob, [list(pair) for pair in token.top]]


class _Fields:
    """Read typed fields of a message, refusing what is of another type by its name."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self._message = message

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.optional_integer(name)
        value = default if value is None else value
        if value is None:
            raise Refused(RefusalCode.BAD_PARAMS, f"{name} is missing")
        return value

    def optional_integer(self, name: str) -> int | None:
        value = self._message.get(name)
        if value is not None and type(value) is not int:
            raise Refused(RefusalCode.BAD_PARAMS, f"{name} is a {type(value).__name__}; it must be an integer")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._message.get(name)
        if value is not None and type(value) not in (int, float):
            raise Refused(RefusalCode.BAD_PARAMS, f"{name} is a {type(value).__name__}; it must be a number")
        return default if value is None else float(value)

    def integers(self, name: str, default: Sequence[int] | None = None) -> Sequence[int]:
        value = self._message.get(name, default)
        if not isinstance(value, (list, tuple)) or any(type(each) is not int for each in value):
            raise Refused(RefusalCode.BAD_PARAMS, f"{name} must be a list of token ids")
        return value
