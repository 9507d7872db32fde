from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.anthropic.decode import MessageDecoder
from backends.openai_compatible import build_openai_compatible
from backends.openai_compatible.decode import AnswerDecoder
from backends.remote.sse import SseParser
from backends.remote.wire import Decoder
from gateway.dialects import Answer, AnthropicMessages, Dialect, OpenAIChat, OpenAICompletions, OpenAIEmbeddings, Reply
from orchestration.core import Call, Delta, Event, Finish, Handler, Request, compose
from tests.backends.remote.fake_upstream import FakeUpstream
from tests.gateway.serving import CHAT, MODELS, ask, frames_of, parts_of, served

Change = Callable[[Event], list[Event]]


def frame(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + frame(value)


def chunk(delta: dict[str, Any], *, reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "unheard_of": [1, {"a": None}]}
    return {
        "id": "chatcmpl-theirs",
        "object": "o",
        "created": 7,
        "model": "theirs-1",
        "choices": [choice],
        "fp": "x",
        **more,
    }


MESSAGE = {"id": "msg_theirs", "type": "message", "role": "assistant", "model": "theirs-1", "content": []}
TOOL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "odd": 1}
OPENAI = [
    frame(chunk({"role": "assistant", "content": "", "odd": True}, usage=None)),
    b'data:{"choices":[{"index":0,"delta":{"content":"Hel"}}],"id":"chatcmpl-theirs","usage":null}\n\n',
    b'id: 5\ndata: {"choices": [{"index": 0, "delta": {"content": "lo \\u4e16"}}], "obfuscation": "zzz"}\n\n',
    frame(chunk({"content": ",", "reasoning_content": "two parts"}, usage=None)),
    frame(chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]})),
    frame(chunk({"content": "!"}, reason="stop", usage=None)),
    frame({**chunk({}), "choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
]
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": MESSAGE},
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel", "odd": 1}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": TOOL},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "odd": 2}, "usage": {"output_tokens": 2}},
]
ANTHROPIC = [*map(named, EVENTS), b'event: message_stop\ndata: {"type": "message_stop"   }\n\n']


def openai_request(**fields: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    return OpenAIChat().parse(orjson.dumps(body))


def anthropic_request(**fields: Any) -> Request:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return AnthropicMessages().parse(orjson.dumps(body))


def events_of(decoder: Decoder, pieces: Sequence[bytes]) -> Iterator[Event]:
    parser = SseParser()
    is_begun = False
    for piece in pieces:
        for one in parser.feed(piece):
            if decoder.is_end(one):
                yield decoder.finish()
                return
            for delta in decoder.read_frame(one):
                if not is_begun:
                    yield decoder.start
                is_begun = True
                yield delta
    yield decoder.finish()


def written(dialect: Dialect, request: Request, decoder: Decoder, pieces: Sequence[bytes], *changes: Change) -> bytes:
    """Write what comes of a stream that is cut into these pieces, its events changed on the way."""
    encoder = dialect.stream(Reply("01CALL", 9, request))
    assert encoder is not None
    events = list(events_of(decoder, pieces))
    for change in changes:
        events = [other for event in events for other in change(event)]
    return b"".join(encoder.encode(event) for event in events) + encoder.encode_end()


def openai(pieces: Sequence[bytes], *changes: Change, **fields: Any) -> bytes:
    request = openai_request(**fields)
    return written(OpenAIChat(), request, AnswerDecoder(request, backend="b", model="m"), pieces, *changes)


def anthropic(pieces: Sequence[bytes], *changes: Change) -> bytes:
    request = anthropic_request(stream=True)
    return written(AnthropicMessages(), request, MessageDecoder(request, backend="b", model="m"), pieces, *changes)


def shouting(event: Event) -> list[Event]:
    """Change one text as a check would."""
    if isinstance(event, Delta) and "lo" in event.text:
        return [replace(event, text=event.text.replace("lo", "LO"), raw=None)]
    return [event]


@given(st.lists(st.integers(1, len(b"".join(OPENAI)) - 1), max_size=40, unique=True))
def test_a_stream_of_ones_own_dialect_comes_byte_for_byte_however_it_is_cut(cuts: list[int]) -> None:
    whole = b"".join(OPENAI)
    edges = [0, *sorted(cuts), len(whole)]
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(edges)]

    assert openai(pieces, stream_options={"include_usage": True}) == whole


@pytest.mark.parametrize(("write", "frames"), [(openai, OPENAI), (anthropic, ANTHROPIC)])
def test_streams_cut_at_every_byte_are_the_same(write: Callable[..., bytes], frames: list[bytes]) -> None:
    whole = b"".join(frames)
    expected = write([whole])

    assert all(write([whole[:at], whole[at:]]) == expected for at in range(1, len(whole)))
    assert write([whole[at : at + 1] for at in range(len(whole))]) == expected


def test_anthropics_stream_comes_byte_for_byte() -> None:
    assert anthropic(ANTHROPIC) == b"".join(ANTHROPIC)


def test_usage_that_only_we_asked_for_is_left_out_and_nothing_else() -> None:
    out = openai(OPENAI)

    kept = [one for one in OPENAI if b'"odd":1' not in one]
    assert out == b"".join(one.replace(b',"usage":null', b"") for one in kept)


def test_usage_in_a_frame_with_an_ending_has_that_frame_written_anew() -> None:
    frames = [*OPENAI[:2], frame(chunk({}, reason="stop", usage=USAGE)), OPENAI[-1]]

    out = frames_of(openai(frames).replace(b"data:{", b"data: {"))

    assert [one["choices"][0]["finish_reason"] for one in out[:-1] if one["choices"][0].get("finish_reason")] == [
        "stop"
    ]
    assert "usage" not in out[-2]
    assert {one["id"] for one in out[:-1]} == {"chatcmpl-theirs"}


def test_a_changed_event_is_written_anew_under_the_same_id_and_so_is_all_behind_it() -> None:
    out = openai(OPENAI, shouting, stream_options={"include_usage": True})

    assert out.startswith(b"".join(OPENAI[:2]))
    anew = frames_of(out[len(b"".join(OPENAI[:2])) :])
    assert [one["choices"][0]["delta"].get("content") for one in anew[:-2]][:1] == ["LO 世"]
    assert {(one["id"], one["created"], one["model"]) for one in anew[:-1]} == {("chatcmpl-theirs", 7, "theirs-1")}
    assert all("role" not in one["choices"][0]["delta"] for one in anew[:-2])
    assert anew[-3]["choices"][0]["finish_reason"] == "stop"


def test_anthropics_blocks_go_on_where_a_changed_event_was() -> None:
    out = anthropic(ANTHROPIC, shouting)

    assert out.startswith(b"".join(ANTHROPIC[:4]))
    anew = [
        orjson.loads(one.partition(b"data: ")[2]) for one in out[len(b"".join(ANTHROPIC[:4])) :].split(b"\n\n")[:-1]
    ]
    assert [(one["type"], one.get("index")) for one in anew] == [
        ("content_block_delta", 0), ("content_block_stop", 0), ("content_block_start", 1),
        ("content_block_delta", 1), ("content_block_stop", 1), ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    assert anew[0]["delta"]["text"] == "LO"


@pytest.mark.parametrize("lost", [0, 1])
def test_a_frame_of_which_an_event_was_taken_out_is_not_written(lost: int) -> None:
    num_seen = 0

    def without_one_of_two(event: Event) -> list[Event]:
        nonlocal num_seen
        if isinstance(event, Delta) and event.text in (",", "two parts"):
            num_seen += 1
            if num_seen - 1 == lost:
                return []
        return [event]

    out = openai(OPENAI, without_one_of_two)

    assert (b'"content":","' in out, b"two parts" in out) == (lost == 0, lost == 1)


def whole_answer(dialect: Dialect, request: Request, decoder: Decoder, body: bytes, *changes: Change) -> bytes:
    answer = Answer()
    events = [decoder.start, *decoder.read_whole(body)]
    for change in changes:
        events = [other for event in events for other in change(event)]
    for event in events:
        answer.add(event)
    return dialect.encode(answer, Reply("01CALL", 9, request))


def test_a_whole_answer_comes_byte_for_byte_unless_it_was_changed() -> None:
    request = openai_request(stream=False)
    message = {"role": "assistant", "content": "lo", "reasoning_content": "hm", "odd": 1}
    body = (
        b' {"id": "x", "object": "o", "model": "t", "choices": [{"index":0, "finish_reason":"stop", "message": %b}]}\n'
        % orjson.dumps(message)
    )

    def decoder() -> Decoder:
        return AnswerDecoder(request, backend="b", model="m")

    def only_text(event: Event) -> list[Event]:
        return [] if isinstance(event, Delta) and event.text == "hm" else [event]

    assert whole_answer(OpenAIChat(), request, decoder(), body) == body
    changed = orjson.loads(whole_answer(OpenAIChat(), request, decoder(), body, shouting))
    assert changed["choices"][0]["message"]["content"] == "LO"
    assert "odd" not in changed["choices"][0]["message"]
    assert b"hm" not in whole_answer(OpenAIChat(), request, decoder(), body, only_text)


def test_whole_messages_completions_and_embeddings_come_byte_for_byte() -> None:
    message = orjson.dumps({**MESSAGE, "content": [{"type": "text", "text": "x", "odd": 1}], "stop_reason": "end_turn"})
    request = anthropic_request()
    assert (
        whole_answer(AnthropicMessages(), request, MessageDecoder(request, backend="b", model="m"), message) == message
    )

    text = b'{"id":"x", "object":"o", "model":"t", "choices":[{"index":0,"text":"x","finish_reason":"stop","odd":1}]}'
    request = OpenAICompletions().parse(b'{"model":"m","prompt":"hi"}')
    assert whole_answer(OpenAICompletions(), request, AnswerDecoder(request, backend="b", model="m"), text) == text

    vectors = b'{"object":"list", "model":"t", "data": [{"index":0,"embedding":[1.50]}], "odd": 1}'
    request = OpenAIEmbeddings().parse(b'{"model":"m","input":"hi"}')
    assert whole_answer(OpenAIEmbeddings(), request, AnswerDecoder(request, backend="b", model="m"), vectors) == vectors


def test_a_stream_where_a_whole_was_asked_is_put_together() -> None:
    request = openai_request(stream=False)
    events = list(events_of(AnswerDecoder(request, backend="b", model="m"), OPENAI))

    assert all(event.raw is None for event in events if isinstance(event, (Delta, Finish)))


def test_an_answer_without_what_every_answer_has_is_written_anew() -> None:
    request = openai_request(stream=False)
    body = b'{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"x"},"odd":1}]}'

    out = orjson.loads(whole_answer(OpenAIChat(), request, AnswerDecoder(request, backend="b", model="m"), body))

    assert (out["id"], out["object"], out["model"]) == ("chatcmpl-01CALL", "chat.completion", "m")
    assert openai(OPENAI[1:]).startswith(b'data: {"id":"chatcmpl-01CALL"')


async def test_through_the_gateway_a_stream_is_the_upstreams_and_anew_behind_a_layer_that_changes_it(
    upstream: FakeUpstream,
) -> None:
    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + b"".join(OPENAI)
        )
        writer.close()

    async def loud(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        async with aclosing(next(call)) as events:
            async for event in events:
                for changed in shouting(event):
                    yield changed

    upstream.script = script
    backend = build_openai_compatible(base_url=upstream.url)
    body = {**openai_request().fields, "model": MODELS[0].id, "stream_options": {"include_usage": True}}
    async with served(parts_of(backend)) as port:
        assert (await ask(port, CHAT, body)).body == b"".join(OPENAI)
    async with served(parts_of(compose([loud], backend))) as port:
        assert b"LO" in (await ask(port, CHAT, body)).body
    await backend.aclose()
