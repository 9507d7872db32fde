from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from backends.anthropic import build_anthropic
from backends.remote import RemoteBackend, Timeouts
from gateway.dialects import AnthropicMessages
from orchestration.core import Call, Delta, Part, Secret, Usage
from orchestration.core.errors import (
    BackendBusy,
    BackendError,
    BackendRefused,
    BackendTimeout,
    InvalidRequest,
    LaminaError,
    Overloaded,
)
from tests.backends.calls import ask, chat_call, completion_call
from tests.backends.remote.fake_upstream import FakeUpstream, answering, silent, streaming, write_chunk

KEY = "sk-ant-very-secret"


@pytest.fixture
async def backend(upstream: FakeUpstream) -> AsyncIterator[RemoteBackend]:
    backend = build_anthropic(base_url=upstream.url, upstream_model="there", api_key=Secret(KEY))
    yield backend
    await backend.aclose()


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        event("content_block_start", index=index, content_block=start),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


BEGIN = event("message_start", message={"usage": {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 1}})
TEXT = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hé"}, {"type": "text_delta", "text": "y"})


def end(reason: str | None = "end_turn", **more: Any) -> list[bytes]:
    usage = {"output_tokens": 7, **more.pop("usage", {})}
    return [event("message_delta", delta={"stop_reason": reason, **more}, usage=usage), event("message_stop")]


def message(*content: dict[str, Any], reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 7}
    return {"type": "message", "content": list(content), "stop_reason": reason, "usage": usage, **more}


def anthropic_call(**fields: Any) -> Call:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **fields}
    headers = {b"anthropic-version": b"2024-01-01", b"anthropic-beta": b"x-1,y-2", b"x-api-key": b"the-clients-own"}
    return replace(chat_call(), request=AnthropicMessages().parse(orjson.dumps(body), headers))


async def test_a_stream_becomes_events_and_its_usage_is_known_at_both_ends(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    upstream.script = streaming(BEGIN, event("ping"), *TEXT, *end(), done=False)

    answer = await ask(backend, chat_call(stream=True))

    assert answer.start.usage == Usage(prompt_tokens=8, cached_tokens=3)
    assert answer.text() == "Héy"
    assert answer.finish.reasons == {0: "stop"}
    assert answer.finish.usage == Usage(prompt_tokens=8, completion_tokens=7, cached_tokens=3)
    assert upstream.asked[0].path == "/v1/messages"
    assert upstream.asked[0].body == {
        "model": "there",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stream": True,
    }


async def test_a_stream_cut_at_every_byte_says_the_same(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    data = b"".join([BEGIN, *TEXT, *end()])
    upstream.script = streaming(*(data[i : i + 1] for i in range(len(data))), done=False)

    answer = await ask(backend, chat_call(stream=True))

    assert answer.text() == "Héy"
    assert answer.finish.reasons == {0: "stop"}


async def test_a_whole_message_becomes_the_same_events(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    upstream.script = answering(
        message(
            {"type": "thinking", "thinking": "Hm", "signature": "sig"},
            {"type": "text", "text": "Hey"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"x": [1]}},
            {"type": "tool_use", "id": "t2", "name": "wait", "input": {}},
            reason="tool_use",
        )
    )

    answer = await ask(backend, chat_call())

    assert (answer.text(part=Part.REASONING), answer.text()) == ("Hm", "Hey")
    assert [delta.data for delta in answer.deltas if delta.part is Part.PAYLOAD] == [{"signature": "sig"}]
    assert [delta.data for delta in answer.deltas if delta.part is Part.TOOL_CALL] == [
        {"index": 0, "id": "t1", "type": "function", "function": {"name": "look", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x":[1]}'}},
        {"index": 1, "id": "t2", "type": "function", "function": {"name": "wait", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert answer.finish.reasons == {0: "tool_calls"}
    assert answer.finish.usage == Usage(prompt_tokens=10, completion_tokens=7, cached_tokens=3, cache_write_tokens=2)


async def test_a_stop_sequence_is_named(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    upstream.script = streaming(BEGIN, *TEXT, *end("stop_sequence", stop_sequence="END"), done=False)

    answer = await ask(backend, chat_call(stream=True, stop="END"))

    assert answer.finish.stops == {0: "END"}
    assert upstream.asked[0].body["stop_sequences"] == ["END"]


async def test_blocks_of_other_kinds_come_whole(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    frames = block(0, search, {"type": "input_json_delta", "partial_json": '{"q":'}, {"type": "input_json_delta", "partial_json": "1}"})  # fmt: skip # noqa: E501 - one block
    upstream.script = streaming(
        BEGIN, *frames, *block(1, {"type": "redacted_thinking", "data": "x"}), *end(), done=False
    )

    answer = await ask(backend, chat_call(stream=True))

    assert [delta.data["block"] for delta in answer.deltas] == [
        {**search, "input": {"q": 1}},
        {"type": "redacted_thinking", "data": "x"},
    ]


async def test_an_anthropic_clients_request_goes_out_as_it_came(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    upstream.script = answering(message({"type": "text", "text": "x"}))
    fields: dict[str, Any] = {
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "not_known_yet": {"x": 1},
    }

    await ask(backend, anthropic_call(**fields))

    asked = upstream.asked[0]
    user = {"role": "user", "content": "hi"}
    assert asked.body == {"model": "there", "max_tokens": 5, "messages": [user], **fields}
    assert asked.headers["anthropic-version"] == "2024-01-01"
    assert asked.headers["anthropic-beta"] == "x-1,y-2"
    assert asked.headers["x-api-key"] == KEY
    assert "authorization" not in asked.headers
    assert "the-clients-own" not in str(asked.headers)


async def test_a_request_that_a_layer_changed_is_told_again_with_all_it_had(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    upstream.script = answering(message({"type": "text", "text": "x"}))
    thought = {"type": "thinking", "thinking": "Hm", "signature": "sig"}
    call = anthropic_call(
        system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": [
                    thought,
                    {"type": "text", "text": "I look"},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                    {"type": "tool_use", "id": "b", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}]},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                    {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
                ],
            },
        ],
        tools=[{"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        top_k=4,
        metadata={"user_id": "u"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        thinking={"type": "disabled"},
    )
    sent = orjson.loads(call.request.raw or b"")

    await ask(backend, replace(call, request=call.request.with_fields(temperature=0.5)))

    sent["messages"][0]["content"] = [{"type": "text", "text": "go"}]
    sent["messages"][2]["content"][1]["content"] = "2"
    assert upstream.asked[0].body == {**sent, "model": "there", "temperature": 0.5}
    assert upstream.asked[0].headers["anthropic-beta"] == "x-1,y-2"


async def test_openais_request_is_told_in_anthropics_shape(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    upstream.script = answering(message({"type": "text", "text": "x"}))
    call = chat_call(
        max_completion_tokens=9,
        stop="END",
        user="u1",
        top_k=-1,
        n=1,
        presence_penalty=0,
        reasoning_effort="low",
        tools=[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
        tool_choice={"type": "function", "function": {"name": "f"}},
        parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        messages=[
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]},  # noqa: E501 - one message
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},  # noqa: E501 - one message
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "user", "content": "and?"},
        ],
    )  # fmt: skip

    await ask(backend, call)

    assert upstream.asked[0].headers["anthropic-version"] == "2023-06-01"
    image = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert upstream.asked[0].body == {
        "model": "there",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be kind."}],
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u1"},
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "source": image}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"temperature": 1.5}, "temperature"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "maybe"}, "tool_choice"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ],
)  # fmt: skip
async def test_what_the_format_cannot_say_is_refused_by_name(
    upstream: FakeUpstream, backend: RemoteBackend, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await ask(backend, chat_call(**fields))

    assert caught.value.param == param
    assert not upstream.asked


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (400, "invalid_request_error", BackendRefused),
        (401, "authentication_error", BackendError),
        (404, "not_found_error", BackendRefused),
        (429, "rate_limit_error", Overloaded),
        (500, "api_error", BackendError),
        (529, "overloaded_error", BackendBusy),
    ],
)
async def test_errors_mean_the_same_before_and_inside_a_stream(
    upstream: FakeUpstream, backend: RemoteBackend, status: int, kind: str, raised: type[LaminaError]
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": f"no, not with {KEY}"}}
    for script in (answering(body, status=status), streaming(BEGIN, *TEXT, event("error", **body), done=False)):
        upstream.script = script

        with pytest.raises(raised) as caught:
            await ask(backend, chat_call(stream=True))

        assert KEY not in caught.value.message


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [BEGIN],
        [BEGIN, *TEXT],
        [BEGIN, *TEXT, *end(None)],
        [b"event: message_start\ndata: [1]\n\n"],
        [b"event: content_block_start\ndata: {\n\n"],
        [event("content_block_start", index=0)],
        [event("content_block_delta", index=0, delta={"type": "text_delta"})],
    ],
)
async def test_a_stream_that_is_none_or_breaks_off_has_no_end(
    upstream: FakeUpstream, backend: RemoteBackend, frames: list[bytes]
) -> None:
    upstream.script = streaming(*frames, done=False)

    with pytest.raises(BackendError):
        await ask(backend, chat_call(stream=True))


async def test_closing_the_generator_closes_the_upstream(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        write_chunk(writer, b"".join([BEGIN, *TEXT[:2]]))
        await writer.drain()

    upstream.script = script
    events = backend(chat_call(stream=True))
    await anext(events)
    assert await anext(events) == Delta(text="Hé")

    await events.aclose()

    async with asyncio.timeout(30):
        await upstream.was_left.wait()


async def test_a_silent_server_times_out(upstream: FakeUpstream) -> None:
    upstream.script = silent
    backend = build_anthropic(base_url=upstream.url, timeouts=Timeouts(first_token_s=0.05))

    with pytest.raises(BackendTimeout):
        await ask(backend, chat_call(stream=True))

    await backend.aclose()


async def test_it_answers_chats_only_and_is_named_after_its_server(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    with pytest.raises(BackendError, match="completion"):
        await ask(backend, completion_call())

    assert backend.name.startswith("anthropic/127.0.0.1:")
    upstream.script = answering({"data": []})
    assert await backend.check_health() is None
    assert upstream.asked[-1].path == "/v1/models"
