from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anthropic
import orjson
import pytest
from anthropic import AsyncAnthropic
from hypothesis import given
from hypothesis import strategies as st

from backends.echo import EchoBackend
from gateway.dialects import Answer, AnthropicMessages, Reply
from gateway.parts import Access, AppParts
from orchestration.core import Delta, Event, Finish, Kind, Part, Request, Secret, Start, Usage
from orchestration.core.errors import (
    BackendBusy,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    LaminaError,
    LimitReached,
    NotFound,
    Overloaded,
    StreamBroken,
)
from tests.gateway.dialect_requests import ANTHROPIC_REQUEST, ANTHROPIC_TOLD, ANTHROPIC_TOOL
from tests.gateway.serving import Script, ask, parts_of, served

MESSAGES = "/v1/messages"
START = Start("tiny-1", "fake", usage=Usage(prompt_tokens=9, cached_tokens=4))
HI: Any = [{"role": "user", "content": "Hi"}]


@contextlib.asynccontextmanager
async def client_of(parts: AppParts, **options: Any) -> AsyncIterator[AsyncAnthropic]:
    """Give the unmodified Anthropic client of a server."""
    async with (
        served(parts) as port,
        AsyncAnthropic(
            base_url=f"http://127.0.0.1:{port}", **{"api_key": "some-key", "max_retries": 0, **options}
        ) as client,
    ):
        yield client


def call_piece(index: int, arguments: str, **more: Any) -> Delta:
    function = {"arguments": arguments, **({"name": more.pop("name")} if "name" in more else {})}
    return Delta(part=Part.TOOL_CALL, data={"index": index, **more, "function": function})


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 9, "messages": HI, **fields}


def events_of(data: bytes) -> list[tuple[str, Any]]:
    events = []
    for frame in data.split(b"\n\n")[:-1]:
        event, line = frame.split(b"\n")
        events.append((event.removeprefix(b"event: ").decode(), orjson.loads(line.removeprefix(b"data: "))))
    assert all(name == fields["type"] for name, fields in events)
    return events


async def test_whole_message_is_read_by_the_sdk() -> None:
    answer = (START, Delta(text="Hel"), Delta(text="lo"), Finish(usage=Usage(9, 2, cached_tokens=4)))
    async with client_of(parts_of(Script(answer))) as client:
        message = await client.messages.create(model="tiny", max_tokens=5, messages=HI)

    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].type == "text"
    assert message.content[0].text == "Hello"
    assert (message.model, message.role, message.stop_reason, message.stop_sequence) == (
        "tiny-1", "assistant", "end_turn", None,
    )  # fmt: skip
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 2)
    assert message.usage.cache_read_input_tokens == 4
    assert message.id.startswith("msg_")
    assert message._request_id == message.id.removeprefix("msg_")


async def test_streamed_message_is_the_whole_one_for_the_sdk() -> None:
    steps = (
        START,
        Delta(part=Part.REASONING, text="Hm"),
        Delta(text="Let me "),
        Delta(text="look."),
        call_piece(0, "", id="call_1", name="weather"),
        call_piece(0, '{"city":'),
        call_piece(0, '"Oslo"}'),
        Finish(reasons={0: "tool_calls"}, usage=Usage(9, 7, cached_tokens=4)),
    )
    async with client_of(parts_of(Script(steps))) as client:
        whole = await client.messages.create(model="tiny", max_tokens=5, messages=HI, tools=[ANTHROPIC_TOOL])
        async with client.messages.stream(model="tiny", max_tokens=5, messages=HI, tools=[ANTHROPIC_TOOL]) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()

    assert text == "Let me look."
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.content[2].type == "tool_use"
    assert (whole.content[2].id, whole.content[2].name, whole.content[2].input) == (
        "call_1", "weather", {"city": "Oslo"},
    )  # fmt: skip
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert [block.to_dict() for block in whole.content] == [block.to_dict() for block in streamed.content]
    assert whole.usage.to_dict() == streamed.usage.to_dict()


async def test_the_echo_answers_the_sdk_and_stops_at_max_tokens() -> None:
    async with client_of(parts_of(EchoBackend())) as client:
        message = await client.messages.create(
            model="tiny",
            max_tokens=2,
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": [{"type": "text", "text": "one two three"}]}],
        )

    assert message.content[0].type == "text"
    assert message.content[0].text == "one two "
    assert message.stop_reason == "max_tokens"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 2)


async def test_a_stop_sequence_is_named() -> None:
    script = Script((START, Delta(text="a"), Finish(stops={0: "END"})))
    async with client_of(parts_of(script)) as client:
        whole = await client.messages.create(model="tiny", max_tokens=5, messages=HI, stop_sequences=["END"])
        async with client.messages.stream(model="tiny", max_tokens=5, messages=HI, stop_sequences=["END"]) as stream:
            streamed = await stream.get_final_message()

    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "END")
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "END")
    assert script.calls[0].request.fields["stop"] == ["END"]


async def test_stream_on_the_wire_is_exactly_what_anthropic_sends() -> None:
    script = Script((START, Delta(text="Hel"), Delta(text="lo"), Finish(usage=Usage(9, 2))))
    async with served(parts_of(script)) as port:
        reply = await ask(port, MESSAGES, body(stream=True))

    events = events_of(reply.body)
    assert [name for name, _ in events] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    start = events[0][1]["message"]
    assert start["usage"]["input_tokens"] == 5
    assert start["usage"]["cache_read_input_tokens"] == 4
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert events[2][1] == {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}
    assert events[5][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[5][1]["usage"]["output_tokens"] == 2
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["request-id"] == reply.headers["x-lamina-call"]


async def test_usage_that_nobody_counted_is_not_made_up() -> None:
    async with served(parts_of(Script((Start("t", "f"), Delta(text="x"), Finish())))) as port:
        whole = await ask(port, MESSAGES, body())
        streamed = events_of((await ask(port, MESSAGES, body(stream=True))).body)

    assert whole.json["usage"] == {"input_tokens": None, "output_tokens": None}
    assert streamed[-2][1]["usage"] == {"input_tokens": None, "output_tokens": None}


async def test_a_stream_that_has_nothing_to_show_yet_pings() -> None:
    may_go_on = asyncio.Event()
    script = Script((START, may_go_on.wait, Delta(text="x"), Finish()))
    async with served(parts_of(script, stream_commit_s=0.01)) as port:
        asking = asyncio.create_task(ask(port, MESSAGES, body(stream=True)))
        async with asyncio.timeout(30):
            await script.begun.wait()
            await asyncio.sleep(0.15)  # the beat is what this is about
        may_go_on.set()
        events = events_of((await asking).body)

    names = [name for name, _ in events]
    assert names[0] == "ping"
    assert names[-1] == "message_stop"


def streamed(events: Sequence[Event]) -> list[Any]:
    encoder = AnthropicMessages().stream(reply_of())
    assert encoder is not None
    return [fields for _, fields in events_of(b"".join(map(encoder.encode, events)) + encoder.encode_end())]


def reply_of() -> Reply:
    return Reply("01CALL", 7, Request(Kind.CHAT, "anthropic.messages", {"model": "tiny"}))


def whole(events: Sequence[Event]) -> Any:
    answer = Answer()
    for event in events:
        answer.add(event)
    return orjson.loads(AnthropicMessages().encode(answer, reply_of()))


def test_interleaved_tool_calls_become_blocks_one_after_the_other() -> None:
    events: list[Event] = [
        START,
        call_piece(0, "", id="a", name="first"),
        call_piece(1, "", id="b", name="second"),
        call_piece(2, "", id="c", name="third"),
        call_piece(1, '{"x":'),
        call_piece(0, '{"y":'),
        call_piece(2, "{}"),
        call_piece(0, "1}"),
        call_piece(1, "2}"),
        Finish(reasons={0: "tool_calls"}),
    ]

    blocks = _accumulate(streamed(events))

    assert [(block["id"], block["name"], orjson.loads(block["json"])) for block in blocks] == [
        ("a", "first", {"y": 1}),
        ("b", "second", {"x": 2}),
        ("c", "third", {}),
    ]
    assert [(block["id"], block["input"]) for block in whole(events)["content"]] == [
        ("a", {"y": 1}), ("b", {"x": 2}), ("c", {}),
    ]  # fmt: skip


def test_calls_that_come_one_after_the_other_are_not_held_back() -> None:
    encoder = AnthropicMessages().stream(reply_of())
    assert encoder is not None
    encoder.encode(START)
    encoder.encode(call_piece(0, '{"x":1}', id="a", name="first"))

    frames = events_of(encoder.encode(call_piece(1, '{"y"', id="b", name="second")))

    assert [name for name, _ in frames] == ["content_block_stop", "content_block_start", "content_block_delta"]


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_PIECES = st.one_of(
    st.builds(Delta, part=st.sampled_from([Part.TEXT, Part.REASONING]), text=_TEXT),
    st.builds(lambda index: ("call", index), st.integers(0, 3)),
)


@given(st.lists(_PIECES, max_size=30), st.randoms())
def test_blocks_are_in_strict_order_and_hold_everything(pieces: list[Any], random: Any) -> None:
    arguments = {index: orjson.dumps({"n": index, "text": "{}"}).decode() for index in range(4)}
    rest = dict(arguments)
    events: list[Event] = [START]
    begun: set[int] = set()
    for piece in pieces:
        if isinstance(piece, Delta):
            events.append(piece)
            continue
        index = piece[1]
        cut = random.randint(0, len(rest[index]))
        more = {} if index in begun else {"id": f"id{index}", "name": f"f{index}"}
        begun.add(index)
        events.append(call_piece(index, rest[index][:cut], **more))
        rest[index] = rest[index][cut:]
    events += [call_piece(index, rest[index]) for index in sorted(begun)]
    events.append(Finish(reasons={0: "tool_calls" if begun else "stop"}))

    blocks = _accumulate(streamed(events))

    told = [event for event in events if isinstance(event, Delta)]
    for part, kind, field in ((Part.TEXT, "text", "text"), (Part.REASONING, "thinking", "thinking")):
        said = "".join(delta.text for delta in told if delta.part is part)
        assert "".join(block[field] for block in blocks if block["type"] == kind) == said
    calls = {block["id"]: block["json"] for block in blocks if block["type"] == "tool_use"}
    assert calls == {f"id{index}": arguments[index] for index in begun}
    assert len(whole(events)["content"]) == len(blocks)


def _accumulate(events: list[Any]) -> list[Any]:
    """Put a stream's blocks together, holding it to the order that clients rely on."""
    blocks: list[Any] = []
    is_open = False
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append({"json": "", **event["content_block"]})
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                delta = event["delta"]
                name = {"input_json_delta": "json", "text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
                blocks[-1][name] += delta.get("partial_json", delta.get(name))
            case "content_block_stop":
                assert is_open
                is_open = False
    assert not is_open
    assert [event["type"] for event in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    return blocks


def test_a_tool_call_cut_by_the_token_limit_is_not_passed_off_as_whole() -> None:
    events: list[Event] = [
        START,
        Delta(text="x"),
        call_piece(0, '{"city":', id="a", name="f"),
        Finish(reasons={0: "length"}),
    ]

    message = whole(events)

    assert [block["type"] for block in message["content"]] == ["text"]
    assert message["stop_reason"] == "max_tokens"


def test_forced_tool_calls_end_with_tool_use() -> None:
    events: list[Event] = [START, call_piece(0, "{}", id="a", name="f"), Finish(reasons={0: "stop"})]

    assert whole(events)["stop_reason"] == "tool_use"


async def test_the_request_is_told_in_openais_shape() -> None:
    script = Script()
    async with client_of(parts_of(script)) as client:
        await client.messages.create(**ANTHROPIC_REQUEST)

    request = script.calls[0].request
    assert request.kind is Kind.CHAT
    assert request.raw is not None
    assert set(request.headers) == {"anthropic-version", "anthropic-beta"}
    assert request.with_fields(model="other").headers == request.headers
    assert request.fields == ANTHROPIC_TOLD


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "content[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"system": 3}, "system"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"metadata": {"user_id": 3}}, "metadata.user_id"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"thinking": {}}, "thinking.type"),
    ],
)
async def test_a_wrong_field_is_named_in_anthropics_shape(fields: dict[str, Any], named: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, MESSAGES, body(**fields))

    assert reply.status == 400
    assert reply.json["type"] == "error"
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert named in reply.json["error"]["message"]
    assert reply.json["request_id"].lower() == reply.headers["request-id"]  # the test's client folds the case


@pytest.mark.parametrize(
    ("error", "status", "kind", "raised"),
    [
        (InvalidRequest("no"), 400, "invalid_request_error", anthropic.BadRequestError),
        (NotFound("no"), 404, "not_found_error", anthropic.NotFoundError),
        (LimitReached("no", retry_after_s=1.5), 429, "rate_limit_error", anthropic.RateLimitError),
        (Overloaded("no", retry_after_s=1.5), 529, "overloaded_error", anthropic.InternalServerError),
        (BackendUnavailable("no"), 503, "api_error", anthropic.InternalServerError),
        (BackendBusy("no"), 529, "overloaded_error", anthropic.InternalServerError),
        (BackendTimeout("no"), 504, "timeout_error", anthropic.InternalServerError),
    ],
)
async def test_errors_are_the_sdks_own(
    error: LaminaError, status: int, kind: str, raised: type[anthropic.APIStatusError]
) -> None:
    async with client_of(parts_of(Script((error,)))) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(model="tiny", max_tokens=5, messages=HI)

    assert caught.value.status_code == status
    assert isinstance(caught.value, raised)
    assert caught.value.body["error"] == {"type": kind, "message": "no"}  # type: ignore[index]  # checked by this
    assert caught.value.request_id
    if error.retry_after_s is not None:
        assert caught.value.response.headers["retry-after-ms"] == "1500"


async def test_keys_sites_methods_and_sizes_are_refused_in_anthropics_shape() -> None:
    access = Access(tenant_key=Secret("t"), master_key=Secret("right"))
    async with served(parts_of(access=access, max_body_bytes=500)) as port:
        replies = {
            401: await ask(port, MESSAGES, body(), headers={"x-api-key": "wrong"}),
            403: await ask(port, MESSAGES, body(), headers={"host": "evil.example"}),
            404: await ask(port, f"{MESSAGES}/nothing", body()),
            405: await ask(port, MESSAGES, method="GET"),
            413: await ask(port, MESSAGES, b"x" * 501, headers={"x-api-key": "right"}),
            200: await ask(port, MESSAGES, body(), headers={"x-api-key": "right"}),
        }

    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kinds |= {405: "invalid_request_error", 413: "request_too_large"}
    assert {status: reply.status for status, reply in replies.items()} == {status: status for status in replies}
    assert {status: replies[status].json["error"]["type"] for status in kinds} == kinds
    assert all("request-id" in reply.headers for reply in replies.values())


async def test_broken_stream_makes_the_sdk_raise() -> None:
    script = Script((START, Delta(text="Hel"), StreamBroken("broke off")))
    async with (
        client_of(parts_of(script)) as client,
        client.messages.stream(model="tiny", max_tokens=5, messages=HI) as stream,
    ):
        with pytest.raises(anthropic.APIStatusError, match="broke off"):
            await stream.get_final_message()


async def test_a_client_that_leaves_closes_the_call() -> None:
    script = Script((START, Delta(text="x"), asyncio.Event().wait))
    async with client_of(parts_of(script)) as client:
        stream = await client.messages.create(model="tiny", max_tokens=5, messages=HI, stream=True)
        await anext(stream.__aiter__())
        await stream.close()
        async with asyncio.timeout(30):
            await script.closed.wait()
