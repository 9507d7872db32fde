from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.echo import EchoBackend
from gateway.dialects import Answer, OpenAIResponses, Reply
from orchestration.core import Delta, Event, Finish, Kind, Part, Request, Start, Usage
from orchestration.core.errors import Overloaded, StreamBroken
from tests.gateway.dialect_requests import RESPONSES_REQUEST, RESPONSES_TOLD, RESPONSES_TOOL
from tests.gateway.serving import Script, ask, client_of, parts_of, served
from tests.gateway.test_anthropic_messages import call_piece, events_of

RESPONSES = "/v1/responses"
START = Start("tiny-1", "fake")
USAGE = Usage(9, 7, cached_tokens=4, reasoning_tokens=2)
STEPS = (
    START,
    Delta(part=Part.REASONING, text="Hm"),
    Delta(text="Let me "),
    Delta(text="look."),
    call_piece(0, "", id="call_1", name="weather"),
    call_piece(0, '{"city":'),
    call_piece(0, '"Oslo"}'),
    Finish(reasons={0: "tool_calls"}, usage=USAGE),
)


async def test_whole_response_is_read_by_the_sdk() -> None:
    async with client_of(parts_of(Script(STEPS))) as client:
        response = await client.responses.create(
            model="tiny", input="Hi", instructions="Be kind.", tools=[RESPONSES_TOOL]
        )

    assert response.output_text == "Let me look."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    call = response.output[2]
    assert call.type == "function_call"
    assert (call.call_id, call.name, call.arguments) == ("call_1", "weather", '{"city":"Oslo"}')
    assert (response.status, response.model, response.instructions) == ("completed", "tiny-1", "Be kind.")
    assert response.id.startswith("resp_")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (9, 7, 16)
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.output_tokens_details.reasoning_tokens == 2


async def test_streamed_response_is_the_whole_one_for_the_sdk() -> None:
    async with client_of(parts_of(Script(STEPS))) as client:
        whole = await client.responses.create(model="tiny", input="Hi", tools=[RESPONSES_TOOL])
        async with client.responses.stream(model="tiny", input="Hi", tools=[RESPONSES_TOOL]) as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_response()

    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert text == ["Let me ", "look."]
    assert _plain(streamed.to_dict()["output"]) == _plain(whole.to_dict()["output"])
    assert streamed.usage == whole.usage


def _plain(output: Any) -> Any:
    """Leave out the ids, which name the call, and what the SDK's own parsing adds."""
    drop = ("id", "parsed", "parsed_arguments")
    if isinstance(output, dict):
        return {name: _plain(value) for name, value in output.items() if name not in drop}
    return [_plain(item) for item in output] if isinstance(output, list) else output


async def test_the_echo_answers_the_sdk_and_says_that_it_was_cut() -> None:
    async with client_of(parts_of(EchoBackend())) as client:
        response = await client.responses.create(model="tiny", input="one two three", max_output_tokens=2)

    assert response.output_text == "one two "
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    message = response.output[0]
    assert message.type == "message"
    assert message.status == "incomplete"


async def test_stream_on_the_wire_is_exactly_what_openai_sends() -> None:
    script = Script((START, Delta(text="Hel"), Delta(text="lo"), Finish(usage=USAGE)))
    async with served(parts_of(script)) as port:
        reply = await ask(port, RESPONSES, {"model": "tiny", "input": "Hi", "stream": True})

    events = events_of(reply.body)
    assert [name for name, _ in events] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert events[0][1]["response"]["status"] == "in_progress"
    assert events[0][1]["response"]["usage"] is None
    assert {fields.get("item_id", events[2][1]["item"]["id"]) for _, fields in events[2:-1]} == {
        events[2][1]["item"]["id"]
    }
    assert events[-1][1]["response"]["output"][0]["content"][0]["text"] == "Hello"


async def test_usage_that_nobody_counted_is_not_made_up() -> None:
    async with client_of(parts_of(Script((START, Delta(text="x"), Finish())))) as client:
        response = await client.responses.create(model="tiny", input="Hi")

    assert response.usage is None


async def test_a_refusal_is_one_for_the_sdk() -> None:
    steps = (START, Delta(part=Part.REFUSAL, text="No."), Finish())
    async with client_of(parts_of(Script(steps))) as client:
        response = await client.responses.create(model="tiny", input="Hi")

    message = response.output[0]
    assert message.type == "message"
    assert message.content[0].type == "refusal"
    assert message.content[0].refusal == "No."


async def test_the_request_is_told_in_the_chats_shape() -> None:
    script = Script()
    async with client_of(parts_of(script)) as client:
        await client.responses.create(**RESPONSES_REQUEST)

    assert script.calls[0].request.fields == RESPONSES_TOLD


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0].name"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "a", "description": {"b": 1}}]}, "tools[0].description"),
        ({"tools": [{"type": "custom", "name": "a", "format": {}}]}, "tools[0].format.type"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
async def test_what_is_wrong_or_needs_stored_answers_is_named(fields: dict[str, Any], named: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, RESPONSES, {"model": "tiny", "input": "Hi", **fields})

    assert (reply.status, reply.error["param"]) == (400, named)


async def test_errors_before_and_inside_a_stream_are_the_sdks_own() -> None:
    async with client_of(parts_of(Script((Overloaded("full", retry_after_s=1),)))) as client:
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="tiny", input="Hi", stream=True)
    async with client_of(parts_of(Script((START, Delta(text="x"), StreamBroken("broke off"))))) as client:
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in await client.responses.create(model="tiny", input="Hi", stream=True):
                pass


async def test_a_client_that_leaves_closes_the_call() -> None:
    script = Script((START, Delta(text="x"), asyncio.Event().wait))
    async with client_of(parts_of(script)) as client:
        stream = await client.responses.create(model="tiny", input="Hi", stream=True)
        await anext(aiter(stream))
        await stream.close()
        async with asyncio.timeout(30):
            await script.closed.wait()


_PARTS = st.sampled_from([Part.TEXT, Part.REASONING, Part.REFUSAL])
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.builds(Delta, part=_PARTS, text=_TEXT), max_size=20), st.sampled_from(["stop", "length"]))
def test_the_stream_ends_with_the_whole_response(deltas: Sequence[Delta], reason: str) -> None:
    events: list[Event] = [START, *deltas, Finish(reasons={0: reason}, usage=USAGE)]
    reply = Reply("01CALL", 7, Request(Kind.CHAT, "openai.responses", {"model": "tiny"}))
    answer = Answer()
    for each in events:
        answer.add(each)
    encoder = OpenAIResponses().stream(reply)

    told = events_of(b"".join(map(encoder.encode, events)))

    assert told[-1][1]["response"] == orjson.loads(OpenAIResponses().encode(answer, reply))
    assert [fields["sequence_number"] for _, fields in told] == list(range(len(told)))
    done = [fields["item"] for name, fields in told if name == "response.output_item.done"]
    assert done == told[-1][1]["response"]["output"]
