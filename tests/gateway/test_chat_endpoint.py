from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from orchestration.core import Delta, Finish, Part, Request, Start, Usage
from orchestration.core.errors import BackendUnavailable, Overloaded, StreamBroken
from tests.gateway.serving import CHAT, Script, ask, chat, client_of, frames_of, parts_of, served

START = Start("tiny-1", "fake")
ANSWER = (START, Delta(text="Hel"), Delta(text="lo"), Finish(usage=Usage(5, 2, cached_tokens=4)))
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


async def test_whole_answer_is_read_by_the_sdk() -> None:
    async with client_of(parts_of(Script(ANSWER))) as client:
        completion = await client.chat.completions.create(model="tiny", messages=MESSAGES)

    assert completion.choices[0].message.content == "Hello"
    assert completion.choices[0].message.role == "assistant"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.model == "tiny-1"
    assert completion.object == "chat.completion"
    assert completion.id.startswith("chatcmpl-")
    assert completion.usage is not None
    assert completion.usage.total_tokens == 7
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 4


async def test_streamed_answer_is_read_by_the_sdk() -> None:
    async with client_of(parts_of(Script(ANSWER))) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.role for chunk in chunks[1:]] == [None, None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1


async def test_stream_on_the_wire_is_exactly_what_openai_sends() -> None:
    async with served(parts_of(Script(ANSWER))) as port:
        reply = await ask(port, CHAT, chat(stream=True))

    head = f'{{"id":"chatcmpl-{reply.headers["x-lamina-call"].upper()}","object":"chat.completion.chunk","created":'
    created = reply.body.split(b'"created":')[1].split(b",")[0].decode()
    head += f'{created},"model":"tiny-1","choices":[{{"index":0,"delta":'
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.body.decode() == (
        f'data: {head}{{"role":"assistant","content":"Hel"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"content":"lo"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {head}{{}},"logprobs":null,"finish_reason":"stop"}}]}}\n\n'
        "data: [DONE]\n\n"
    )


async def test_asked_usage_is_null_in_every_chunk_and_then_alone_in_one() -> None:
    async with served(parts_of(Script(ANSWER))) as port:
        reply = await ask(port, CHAT, chat(stream=True, stream_options={"include_usage": True}))

    *chunks, last, done = frames_of(reply.body)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 5
    assert last["usage"]["completion_tokens"] == 2
    assert done == b"[DONE]"


async def test_usage_that_was_not_asked_for_is_nowhere() -> None:
    async with served(parts_of(Script(ANSWER))) as port:
        reply = await ask(port, CHAT, chat(stream=True))

    assert b"usage" not in reply.body


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_usage_that_nobody_counted_is_not_invented(is_streamed: bool) -> None:
    script = Script((START, Delta(text="Hello"), Finish()))
    options = {"stream_options": {"include_usage": True}} if is_streamed else {}

    async with served(parts_of(script)) as port:
        reply = await ask(port, CHAT, chat(stream=is_streamed, **options))

    assert b"prompt_tokens" not in reply.body


async def test_choices_reasoning_refusal_and_logprobs_arrive_whole() -> None:
    token = {"token": "A", "logprob": -0.5, "bytes": [65], "top_logprobs": []}
    script = Script(
        (
            START,
            Delta(choice=1, text="second"),
            Delta(part=Part.REASONING, text="because"),
            Delta(text="A", logprobs=[token]),
            Delta(choice=2, part=Part.REFUSAL, text="No."),
            Delta(text="B", logprobs=[token]),
            Finish(reasons={0: "stop", 1: "length", 2: "stop"}),
        )
    )

    async with client_of(parts_of(script)) as client:
        completion = await client.chat.completions.create(model="tiny", messages=MESSAGES, n=3)

    first, second, third = completion.choices
    assert first.message.content == "AB"
    assert first.message.model_extra == {"reasoning_content": "because"}
    assert first.logprobs is not None
    assert first.logprobs.content is not None
    assert [entry.token for entry in first.logprobs.content] == ["A", "A"]
    assert (second.message.content, second.finish_reason, second.logprobs) == ("second", "length", None)
    assert (third.message.content, third.message.refusal) == (None, "No.")


async def test_parallel_tool_calls_are_merged_by_index() -> None:
    async with client_of(parts_of(Script(TOOL_STEPS))) as client:
        completion = await client.chat.completions.create(model="tiny", messages=MESSAGES)

    calls: Any = completion.choices[0].message.tool_calls
    assert completion.choices[0].message.content is None
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        ("a", "first", '{"x": 1}'),
        ("b", "second", '{"y": 2}'),
    ]


async def test_streamed_tool_calls_keep_their_pieces() -> None:
    async with served(parts_of(Script(TOOL_STEPS))) as port:
        reply = await ask(port, CHAT, chat(stream=True))

    deltas = [frame["choices"][0]["delta"] for frame in frames_of(reply.body)[:-1]]
    assert deltas[0] == {"role": "assistant", "content": None, "tool_calls": [TOOL_STEPS[1].data]}
    assert [delta["tool_calls"][0]["index"] for delta in deltas[:-1]] == [0, 1, 0, 1]


def _piece(index: int, arguments: str, **more: Any) -> Delta:
    name = {"name": more.pop("name")} if more else {}
    return Delta(part=Part.TOOL_CALL, data={"index": index, **more, "function": {**name, "arguments": arguments}})


TOOL_STEPS = (
    START,
    _piece(0, "", id="a", type="function", name="first"),
    _piece(1, "", id="b", type="function", name="second"),
    _piece(0, '{"x": 1}'),
    _piece(1, '{"y": 2}'),
    Finish(reasons={0: "tool_calls"}),
)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_error_before_content_is_a_status_code(is_streamed: bool) -> None:
    script = Script((Overloaded("The queue is full.", retry_after_s=1.25),))

    async with client_of(parts_of(script)) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=is_streamed)

    assert caught.value.code == "overloaded"
    assert caught.value.response.headers["retry-after-ms"] == "1250"
    assert caught.value.response.headers["retry-after"] == "2"
    assert caught.value.response.headers["x-lamina-cache"] == "bypass"
    assert caught.value.request_id == caught.value.response.headers["x-lamina-call"]


async def test_error_after_content_is_one_error_frame_and_the_sdk_raises() -> None:
    script = Script((START, Delta(text="Hel"), StreamBroken("the answer broke off")))

    async with client_of(parts_of(script)) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        piece = await anext(stream)
        with pytest.raises(openai.APIError, match="broke off"):
            await anext(stream)

    assert piece.choices[0].delta.content == "Hel"
    assert piece.choices[0].finish_reason is None


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ((START, Delta(text="Hel")), "backend_error"),
        ((START, Delta(text="Hel"), StreamBroken("broke")), "stream_broken"),
        ((START, Delta(text="Hel"), RuntimeError("secret detail")), None),
    ],
)
async def test_a_broken_stream_invents_no_finish_reason(steps: Any, code: str | None) -> None:
    async with served(parts_of(Script(steps))) as port:
        reply = await ask(port, CHAT, chat(stream=True, stream_options={"include_usage": True}))

    first, error, done = frames_of(reply.body)
    assert first["choices"][0]["finish_reason"] is None
    assert error["error"]["code"] == code
    assert b"secret detail" not in reply.body
    assert done == b"[DONE]"


async def test_whole_answer_without_an_end_is_an_error() -> None:
    async with served(parts_of(Script((START, Delta(text="Hel"))))) as port:
        reply = await ask(port, CHAT, chat())

    assert reply.status == 502
    assert reply.error["code"] == "backend_error"


async def test_error_after_a_start_without_content_is_still_a_status_code() -> None:
    async with served(parts_of(Script((START, BackendUnavailable("gone"))))) as port:
        reply = await ask(port, CHAT, chat(stream=True))

    assert reply.status == 503
    assert reply.error["code"] == "backend_unavailable"


async def test_fault_of_ours_is_a_500_that_names_the_call_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with served(parts_of(Script((RuntimeError("secret detail"),)))) as port:
        reply = await ask(port, CHAT, chat())

    assert reply.status == 500
    assert reply.error["type"] == "server_error"
    assert reply.headers["x-lamina-call"].upper() in reply.error["message"]
    assert b"secret detail" not in reply.body
    assert caplog.records[-1].exc_info is not None


async def test_request_keeps_every_field_that_was_sent() -> None:
    script = Script()
    sent = chat(stream=False, new_field={"deep": [1, None]}, top_k=5, metadata={"a": "b"})

    async with served(parts_of(script)) as port:
        reply = await ask(port, CHAT, sent)

    request: Request = script.calls[0].request
    assert reply.status == 200
    assert request.fields == sent
    assert request.dialect == "openai.chat"


async def test_64_calls_at_once_are_all_answered() -> None:
    script = Script((START, lambda: asyncio.sleep(0.01), *ANSWER[1:]))

    async with client_of(parts_of(script)) as client:
        completions = await asyncio.gather(
            *(client.chat.completions.create(model="tiny", messages=MESSAGES) for _ in range(64))
        )

    assert [completion.choices[0].message.content for completion in completions] == ["Hello"] * 64
    assert len({completion.id for completion in completions}) == 64
    assert script.ended == 64


async def test_quiet_stream_is_committed_and_kept_alive_until_content() -> None:
    gate = asyncio.Event()
    script = Script((gate.wait, *ANSWER))

    async with served(parts_of(script, stream_commit_s=0.05)) as port:
        asking = asyncio.create_task(ask(port, CHAT, chat(stream=True)))
        await script.begun.wait()
        asyncio.get_running_loop().call_later(0.3, gate.set)
        reply = await asking

    assert reply.status == 200
    assert reply.body.startswith(b": keep-alive\n\n: keep-alive\n\n")
    assert reply.body.count(b"keep-alive") <= 6
    assert [frame for frame in frames_of(reply.body)][-1] == b"[DONE]"


async def test_error_after_the_commit_is_an_error_frame() -> None:
    gate = asyncio.Event()
    script = Script((gate.wait, BackendUnavailable("gone")))

    async with served(parts_of(script, stream_commit_s=0.05)) as port:
        asyncio.get_running_loop().call_later(0.2, gate.set)
        reply = await ask(port, CHAT, chat(stream=True))

    assert reply.status == 200
    assert frames_of(reply.body)[0]["error"]["code"] == "backend_unavailable"
    assert frames_of(reply.body)[1:] == [b"[DONE]"]
