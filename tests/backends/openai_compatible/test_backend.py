from __future__ import annotations

import asyncio
import base64
import struct
from contextlib import aclosing
from typing import Any

import pytest

from backends.openai_compatible import build_openai_compatible
from backends.remote import RemoteBackend, Timeouts
from orchestration.core import Part, Start, Usage
from orchestration.core.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    CredentialsRefused,
    LaminaError,
    Overloaded,
)
from tests.backends.calls import ask, chat_call, completion_call, embedding_call
from tests.backends.openai_compatible.conftest import KEY
from tests.backends.remote.fake_upstream import (
    FakeUpstream,
    answering,
    chunk,
    silent,
    sse,
    streaming,
    write_chunk,
)

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}


async def test_every_field_goes_along_and_only_the_model_is_replaced(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    upstream.script = answering({**WHOLE, "usage": USAGE})
    call = chat_call("hi", temperature=0.5, unheard_of={"a": [1, None]}, seed=None)

    answer = await ask(backend, call)

    (asked,) = upstream.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {**call.request.fields, "model": "there"}
    assert answer.start == Start(model="there", backend=backend.name)
    assert answer.text() == "hello"
    assert answer.deltas[0].raw is None  # it has no id: it is written anew
    assert answer.finish.reasons == {0: "stop"}
    assert answer.finish.usage == Usage(9, 4, cached_tokens=3)


async def test_the_key_stands_in_authorization_and_no_header_of_ours_goes_out(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    upstream.script = answering(WHOLE)

    await ask(backend, chat_call())

    headers = upstream.asked[0].headers
    assert headers.pop("authorization") == f"Bearer {KEY}"
    assert KEY not in repr(upstream.asked[0])
    assert set(headers) == {
        "host", "user-agent", "content-type", "content-length", "accept", "accept-encoding", "connection"
    }  # fmt: skip


async def test_without_a_key_there_is_no_authorization(upstream: FakeUpstream) -> None:
    upstream.script = answering(WHOLE)
    backend = build_openai_compatible(base_url=upstream.url)

    await ask(backend, chat_call())
    await backend.aclose()

    assert "authorization" not in upstream.asked[0].headers
    assert upstream.asked[0].body["model"] == "m"


async def test_a_stream_asks_for_usage_and_keeps_what_the_client_asked(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    upstream.script = streaming(chunk(content="x"), chunk(finish="stop"))

    await ask(backend, chat_call(stream=True, stream_options={"chunk_size": 3}))

    assert upstream.asked[0].body["stream_options"] == {"chunk_size": 3, "include_usage": True}


async def test_a_stream_becomes_deltas_with_their_frames(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    frames = [chunk(role="assistant", content=""), chunk(content="Hel"), chunk(content="lo 世"), chunk(finish="stop")]
    upstream.script = streaming(*frames, {"choices": [], "usage": USAGE})

    answer = await ask(backend, chat_call(stream=True))

    # What comes together may be one delta.
    assert "".join(delta.text for delta in answer.deltas) == "Hello 世"
    asked = [sse(frame).replace(b', "usage": null', b"") for frame in frames]  # which only we asked for
    assert b"".join(delta.raw or b"" for delta in answer.deltas) == b"".join(asked[:3])
    assert answer.finish.raw == asked[3] + b"data: [DONE]\n\n"
    assert {delta.dialect for delta in answer.deltas} == {"openai.chat"}
    assert answer.finish.reasons == {0: "stop"}
    assert answer.finish.usage == Usage(9, 4, cached_tokens=3)


async def test_usage_on_a_frame_with_choices_counts_and_an_empty_one_after_it_does_not(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    upstream.script = streaming(
        {**chunk(content="all", finish="length"), "usage": USAGE}, {"choices": [], "usage": None}, {"choices": []}
    )

    answer = await ask(backend, chat_call(stream=True))

    assert answer.text() == "all"
    assert answer.deltas[0].raw is None  # the frame says more than this delta
    assert answer.finish.reasons == {0: "length"}
    assert answer.finish.usage == Usage(9, 4, cached_tokens=3)


async def test_an_upstream_without_usage_gets_none_invented(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    upstream.script = streaming(chunk(content="x"), chunk(finish="stop"))

    assert (await ask(backend, chat_call(stream=True))).finish.usage is None


async def test_reasoning_refusals_and_tool_calls_are_parts(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    tools = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "{}"}},
    ]
    upstream.script = streaming(
        chunk(reasoning_content="hm", reasoning="hm"),
        chunk(reasoning="m."),
        chunk(refusal="no"),
        *[chunk(tool_calls=[tool]) for tool in tools],
        chunk(finish="tool_calls"),
    )

    answer = await ask(backend, chat_call(stream=True))

    assert answer.text(part=Part.REASONING) == "hmm."
    assert answer.text(part=Part.REFUSAL) == "no"
    assert [delta.data for delta in answer.deltas if delta.part is Part.TOOL_CALL] == tools


async def test_a_whole_answer_has_its_parts_and_choices(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    logprobs = {"content": [{"token": "x", "logprob": -0.1, "bytes": [120], "top_logprobs": []}], "refusal": None}
    upstream.script = answering(
        {
            "choices": [
                {
                    "index": 1,
                    "message": {"content": "x", "reasoning_content": "r"},
                    "finish_reason": "stop",
                    "logprobs": logprobs,
                },
                {"index": 0, "message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"},
            ]
        }
    )

    answer = await ask(backend, chat_call(n=2))

    assert answer.text(1) == "x"
    assert answer.text(1, Part.REASONING) == "r"
    assert [delta.logprobs for delta in answer.deltas if delta.logprobs] == [logprobs["content"]]
    assert [delta.data for delta in answer.deltas if delta.choice == 0] == [{"index": 0, **call}]
    assert answer.finish.reasons == {0: "tool_calls", 1: "stop"}


async def test_completions_have_their_own_shape(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": None, "text_offset": [0]}
    choice = {"index": 0, "text": "a", "logprobs": logprobs, "finish_reason": None}
    frame = {"id": "c1", "object": "text_completion", "model": "m1", "choices": [choice]}
    upstream.script = streaming(frame, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})

    answer = await ask(backend, completion_call("x", stream=True))

    assert upstream.asked[0].path == "/v1/completions"
    (delta,) = answer.deltas
    assert (delta.text, delta.logprobs, delta.raw, delta.dialect) == ("a", logprobs, sse(frame), "openai.completions")
    assert answer.finish.reasons == {0: "length"}


@pytest.mark.parametrize("is_packed", [False, True])
async def test_embeddings_are_one_payload_of_numbers(
    upstream: FakeUpstream, backend: RemoteBackend, is_packed: bool
) -> None:
    vectors = [[0.5, -1.0], [2.0, 0.25]]
    sent = [base64.b64encode(struct.pack("<2f", *vector)).decode() if is_packed else vector for vector in vectors]
    rows = [{"object": "embedding", "index": index, "embedding": sent[index]} for index in (1, 0)]
    upstream.script = answering({"data": rows, "usage": {"prompt_tokens": 4, "total_tokens": 4}})

    answer = await ask(backend, embedding_call(["a", "b"], encoding_format="base64"))

    assert upstream.asked[0].path == "/v1/embeddings"
    assert upstream.asked[0].body["encoding_format"] == "base64"
    assert answer.deltas[0].part is Part.PAYLOAD
    assert answer.deltas[0].data == [{"index": index, "embedding": vectors[index]} for index in range(2)]
    assert answer.finish.usage == Usage(prompt_tokens=4)


@pytest.mark.parametrize(
    ("status", "expected", "reported"),
    [
        (400, BackendRefused, 400),
        (404, BackendRefused, 404),
        (422, BackendRefused, 422),
        (401, CredentialsRefused, 502),
        (403, CredentialsRefused, 502),
        (402, CredentialsRefused, 502),
        (429, Overloaded, 429),
        (500, BackendError, 502),
        (502, BackendError, 502),
        (503, BackendUnavailable, 503),
        (504, BackendTimeout, 504),
        (302, BackendError, 502),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_upstreams_status_says_whose_fault_it_is(
    upstream: FakeUpstream,
    backend: RemoteBackend,
    status: int,
    expected: type[LaminaError],
    reported: int,
    is_streamed: bool,
) -> None:
    error = {"message": f"bad key {KEY} in field", "param": "field", "code": "odd"}
    upstream.script = answering({"error": error}, status=status, headers="retry-after: 7\r\n")

    with pytest.raises(LaminaError) as caught:
        await ask(backend, chat_call(stream=is_streamed))

    assert type(caught.value) is expected
    assert caught.value.status == reported
    assert KEY not in caught.value.message
    if expected is BackendRefused:
        assert (caught.value.message, caught.value.param) == ("bad key *** in field", "field")
    if expected is Overloaded:
        assert caught.value.retry_after_s == 7.0
    if status in (401, 403):
        assert caught.value.message.endswith("the provider refused our credentials")


@pytest.mark.parametrize("page", [b"404 page not found", b"<html>nginx</html>", b'{"detail":"Not Found"}', b""])
async def test_a_servers_own_404_is_a_wrong_address_and_no_fault_of_the_clients(
    upstream: FakeUpstream, backend: RemoteBackend, page: bytes
) -> None:
    upstream.script = answering(page, status=404)

    with pytest.raises(BackendError) as caught:
        await ask(backend, chat_call())

    assert caught.value.status == 502
    assert caught.value.message.startswith(backend.name)
    assert "base_url" in caught.value.message


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"<html>no</html>", "400"), ({"detail": [{"msg": "bad"}]}, "bad"), ({"message": "old"}, "old"), (b"", "400")],
)
async def test_a_refusal_in_any_shape_has_words(
    upstream: FakeUpstream, backend: RemoteBackend, body: object, words: str
) -> None:
    upstream.script = answering(body, status=400)

    with pytest.raises(BackendRefused, match=words):
        await ask(backend, chat_call())


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([chunk(content="half")], "without saying why"),
        ([], "without saying why"),
        ([chunk(0, content="a"), chunk(1, content="b"), chunk(0, finish="stop")], "without saying why"),
        ([b"data: {broken\n\n"], "not OpenAI's format"),
        ([b"data: [1]\n\n"], "not OpenAI's format"),
        ([{"choices": [5]}], "not OpenAI's format"),
        ([{"error": {"message": "queue full"}}], "queue full"),
    ],
)
@pytest.mark.parametrize("is_done", [False, True])
async def test_a_stream_that_is_no_whole_answer_is_an_error(
    upstream: FakeUpstream, backend: RemoteBackend, frames: list[Any], message: str, is_done: bool
) -> None:
    upstream.script = streaming(*frames, done=is_done)

    with pytest.raises(BackendError, match=message):
        await ask(backend, chat_call(stream=True))


async def test_an_error_inside_a_stream_keeps_its_meaning(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    upstream.script = streaming({"error": {"message": "later please", "code": 429}})

    with pytest.raises(Overloaded, match="later please"):
        await ask(backend, chat_call(stream=True))


async def test_a_stream_cut_by_the_network_is_an_error(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    async def script(writer: asyncio.StreamWriter) -> None:
        await streaming(chunk(content="x"), done=False, ends=False)(writer)
        writer.close()

    upstream.script = script

    with pytest.raises(BackendUnavailable, match="broke"):
        await ask(backend, chat_call(stream=True))


async def test_a_stream_without_done_but_with_its_reasons_is_whole(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    upstream.script = streaming(chunk(content="x"), chunk(finish="stop"), done=False)

    assert (await ask(backend, chat_call(stream=True))).finish.reasons == {0: "stop"}


async def test_a_whole_answer_where_a_stream_was_asked_is_taken(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    upstream.script = answering(WHOLE)

    assert (await ask(backend, chat_call(stream=True))).text() == "hello"


@pytest.mark.parametrize("body", [b"no json", [], {"choices": []}, {"choices": [{"message": {"content": "x"}}]}])
async def test_a_whole_answer_that_is_none_is_an_error(
    upstream: FakeUpstream, backend: RemoteBackend, body: object
) -> None:
    upstream.script = answering(body)

    with pytest.raises(BackendError):
        await ask(backend, chat_call())


async def test_connections_are_used_again_after_streams_too(upstream: FakeUpstream, backend: RemoteBackend) -> None:
    for script, is_streamed in ((streaming(chunk(content="x", finish="stop")), True), (answering(WHOLE), False)) * 2:
        upstream.script = script
        await ask(backend, chat_call(stream=is_streamed))

    assert upstream.num_connections == 1


async def started(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    write_chunk(writer, sse(chunk(role="assistant", content="")))


@pytest.mark.parametrize(("script", "is_streamed"), [(silent, True), (silent, False), (started, True)])
async def test_a_caller_that_leaves_before_content_closes_the_upstream(
    upstream: FakeUpstream, backend: RemoteBackend, script: Any, is_streamed: bool
) -> None:
    upstream.script = script
    task = asyncio.create_task(ask(backend, chat_call(stream=is_streamed)))
    await upstream.was_asked.wait()

    task.cancel()

    async with asyncio.timeout(30):
        await upstream.was_left.wait()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_closing_the_generator_amid_a_stream_closes_the_upstream(
    upstream: FakeUpstream, backend: RemoteBackend
) -> None:
    upstream.script = streaming(chunk(content="x"), done=False, ends=False)

    async with aclosing(backend(chat_call(stream=True))) as events:
        assert isinstance(await anext(events), Start)
        await anext(events)

    async with asyncio.timeout(30):
        await upstream.was_left.wait()


@pytest.mark.parametrize(
    ("script", "is_streamed", "timeouts"),
    [
        (silent, True, Timeouts(first_token_s=0.05)),
        (started, True, Timeouts(first_token_s=0.05)),
        (silent, False, Timeouts(first_token_s=0.01, total_s=0.1)),
        (streaming(chunk(content="x"), done=False, ends=False), True, Timeouts(total_s=0.1)),
    ],
)
async def test_each_wait_has_its_limit_and_closes_the_upstream(
    upstream: FakeUpstream, script: Any, is_streamed: bool, timeouts: Timeouts
) -> None:
    upstream.script = script
    backend = build_openai_compatible(base_url=upstream.url, timeouts=timeouts)

    with pytest.raises(BackendTimeout):
        await ask(backend, chat_call(stream=is_streamed))

    async with asyncio.timeout(30):
        await upstream.was_left.wait()
    await backend.aclose()


async def test_nobody_there_is_unavailable(upstream: FakeUpstream) -> None:
    backend = build_openai_compatible(base_url=upstream.url)
    await upstream.stop()

    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        await ask(backend, chat_call())
    assert "cannot be reached" in (await backend.check_health() or "")
    await backend.aclose()


@pytest.mark.parametrize(("status", "is_well"), [(200, True), (404, True), (500, False)])
async def test_health_is_whether_somebody_answers(
    upstream: FakeUpstream, backend: RemoteBackend, status: int, is_well: bool
) -> None:
    upstream.script = answering({}, status=status)

    assert (await backend.check_health() is None) is is_well
