from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import Answer, Dialect, OpenAIChat, OpenAICompletions, Reply
from orchestration.core import Delta, Event, Finish, Kind, Part, Request, Start, Usage
from tests.gateway.serving import frames_of

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_PARTS = st.sampled_from([Part.TEXT, Part.REASONING, Part.REFUSAL])
_DELTAS = st.builds(Delta, choice=st.integers(0, 2), part=_PARTS, text=_TEXT)
_TEXTS = st.builds(Delta, choice=st.integers(0, 2), text=_TEXT)
_USAGES = st.none() | st.builds(Usage, st.integers(0, 99), st.integers(0, 99), st.integers(0, 9), st.integers(0, 9))
_REASONS = {0: "stop", 1: "length", 2: "stop"}


def _reply(dialect: Dialect, **fields: Any) -> Reply:
    kind = Kind.CHAT if isinstance(dialect, OpenAIChat) else Kind.COMPLETION
    return Reply("01CALL", 7, Request(kind, dialect.name, {"model": "tiny", **fields}))


def _whole(dialect: Dialect, events: Sequence[Event]) -> Any:
    answer = Answer()
    for event in events:
        answer.add(event)
    return orjson.loads(dialect.encode(answer, _reply(dialect)))


def _streamed(dialect: Dialect, events: Sequence[Event], **fields: Any) -> list[Any]:
    encoder = dialect.stream(_reply(dialect, stream=True, **fields))
    assert encoder is not None
    return frames_of(b"".join(encoder.encode(event) for event in events) + encoder.encode_end())


@given(deltas=st.lists(_DELTAS), usage=_USAGES)
def test_streamed_chat_is_the_whole_one_in_pieces(deltas: list[Delta], usage: Usage | None) -> None:
    events: list[Event] = [Start("tiny-1", "fake"), *deltas, Finish(reasons=_REASONS, usage=usage)]

    whole = _whole(OpenAIChat(), events)
    *chunks, done = _streamed(OpenAIChat(), events, stream_options={"include_usage": True})

    assert done == b"[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for choice in whole["choices"]:
        pieces = [piece for chunk in chunks for piece in chunk["choices"] if piece["index"] == choice["index"]]
        for field in ("content", "reasoning_content", "refusal"):
            joined = "".join(piece["delta"].get(field) or "" for piece in pieces)
            assert joined == (choice["message"].get(field) or "")
        assert [piece["delta"].get("role") for piece in pieces] == ["assistant"] + [None] * (len(pieces) - 1)
        assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + [choice["finish_reason"]]
    assert [chunk["usage"] for chunk in chunks if not chunk["choices"]] == ([whole["usage"]] if usage else [])


@given(deltas=st.lists(_TEXTS), usage=_USAGES)
def test_streamed_completion_is_the_whole_one_in_pieces(deltas: list[Delta], usage: Usage | None) -> None:
    events: list[Event] = [Start("tiny-1", "fake"), *deltas, Finish(reasons=_REASONS, usage=usage)]

    whole = _whole(OpenAICompletions(), events)
    *chunks, _ = _streamed(OpenAICompletions(), events)

    for choice in whole["choices"]:
        pieces = [piece for chunk in chunks for piece in chunk["choices"] if piece["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
    assert all("usage" not in chunk for chunk in chunks)


def test_text_that_breaks_lines_stays_in_its_frame() -> None:
    text = "one\n\ndata: [DONE]\n\r\n\u2028two"
    events: list[Event] = [Start("tiny-1", "fake"), Delta(text=text), Finish()]

    first, *_ = _streamed(OpenAIChat(), events)

    assert first["choices"][0]["delta"]["content"] == text


def _piece(arguments: str | None, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"arguments": arguments, **({"name": "f"} if "id" in more else {})}}


@pytest.mark.parametrize(
    "pieces",
    [
        [_piece('{"x"', index=0, id="a"), _piece(":1}", index=0)],
        [_piece('{"x"', id="a"), _piece(":1}")],
        [_piece(None, index=0, id="a"), _piece('{"x":1}', index=0)],
        [[_piece('{"x":1}', index=0, id="a")]],
    ],
)
def test_tool_call_in_pieces_is_put_together(pieces: list[Any]) -> None:
    deltas = [Delta(part=Part.TOOL_CALL, data=piece) for piece in pieces]

    whole = _whole(OpenAIChat(), [Start("t", "b"), *deltas, Finish(reasons={0: "tool_calls"})])

    call = whole["choices"][0]["message"]["tool_calls"][0]
    assert (call["id"], call["function"]) == ("a", {"name": "f", "arguments": '{"x":1}'})
