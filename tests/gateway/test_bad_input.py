from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from typing import Any

import orjson
import pytest
from fastapi import APIRouter
from fastapi import Request as FastAPIRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin_parts import AdminParts
from gateway.body import MAX_SIDE_BYTES, bounded
from gateway.dialects import Dialect, OpenAIChat, OpenAICompletions, OpenAIEmbeddings
from gateway.exchange import Exchange
from gateway.http_errors import BodyStalled
from gateway.parts import AppParts
from orchestration.core.errors import InvalidRequest
from tests.gateway.serving import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    Script,
    ask,
    ask_raw,
    chat,
    parts_of,
    request_bytes,
    served,
)


def _says(**message: Any) -> dict[str, Any]:
    return chat(messages=[message])


def _user(content: Any) -> dict[str, Any]:
    return _says(role="user", content=content)


def _completion(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Hi", **fields}


BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": "Hi"}]}, "model"),
    (chat(model=None), "model"),
    (chat(model=""), "model"),
    (chat(model=7), "model"),
    (chat(model="m" * 257), "model"),
    ({"model": "tiny"}, "messages"),
    (chat(messages=None), "messages"),
    (chat(messages=[]), "messages"),
    (chat(messages="Hi"), "messages"),
    (chat(messages={"role": "user", "content": "Hi"}), "messages"),
    (chat(messages=["Hi"]), "messages[0]"),
    (_says(content="Hi"), "messages[0].role"),
    (_says(role="wizard", content="Hi"), "messages[0].role"),
    (_says(role=7, content="Hi"), "messages[0].role"),
    (_says(role="user"), "messages[0].content"),
    (_says(role="assistant"), "messages[0].content"),
    (_says(role="assistant", content=None), "messages[0].content"),
    (_user(7), "messages[0].content"),
    (_user({"text": "Hi"}), "messages[0].content"),
    (_user([]), "messages[0].content"),
    (_user(["Hi"]), "messages[0].content[0]"),
    (_user([{"text": "Hi"}]), "messages[0].content[0].type"),
    (_user([{"type": 1}]), "messages[0].content[0].type"),
    (_user([{"type": "text"}]), "messages[0].content[0].text"),
    (_user([{"type": "text", "text": 7}]), "messages[0].content[0].text"),
    (_user([{"type": "image_url", "image_url": "http"}]), "messages[0].content[0].image_url"),
    (_user([{"type": "image_url", "image_url": {}}]), "messages[0].content[0].image_url.url"),
    (_says(role="user", content="Hi", name=7), "messages[0].name"),
    (_says(role="assistant", tool_calls="x"), "messages[0].tool_calls"),
    (_says(role="assistant", tool_calls=[7]), "messages[0].tool_calls[0]"),
    (_says(role="assistant", tool_calls=[{"id": "a"}]), "messages[0].tool_calls[0].function"),
    (_says(role="assistant", tool_calls=[{"function": {}}]), "messages[0].tool_calls[0].id"),
    (_says(role="tool", content="4", tool_call_id=7), "messages[0].tool_call_id"),
    (chat(n=0), "n"),
    (chat(n=-1), "n"),
    (chat(n=129), "n"),
    (chat(n=1.5), "n"),
    (chat(n="2"), "n"),
    (chat(n=True), "n"),
    (chat(max_tokens=0), "max_tokens"),
    (chat(max_tokens=-5), "max_tokens"),
    (chat(max_tokens=1.0), "max_tokens"),
    (chat(max_tokens=True), "max_tokens"),
    (chat(max_tokens=10**30), "max_tokens"),
    (chat(max_completion_tokens=0), "max_completion_tokens"),
    (chat(temperature=-0.1), "temperature"),
    (chat(temperature=2.1), "temperature"),
    (chat(temperature="hot"), "temperature"),
    (chat(temperature=False), "temperature"),
    (chat(top_p=-0.1), "top_p"),
    (chat(top_p=1.1), "top_p"),
    (chat(top_p=[]), "top_p"),
    (chat(top_k=-2), "top_k"),
    (chat(top_k=1.5), "top_k"),
    (chat(min_p=2), "min_p"),
    (chat(presence_penalty=3), "presence_penalty"),
    (chat(frequency_penalty=-3), "frequency_penalty"),
    (chat(seed="7"), "seed"),
    (chat(seed=1.5), "seed"),
    (chat(seed=2**64), "seed"),
    (chat(stop=""), "stop"),
    (chat(stop=7), "stop"),
    (chat(stop={}), "stop"),
    (chat(stop=["a", ""]), "stop[1]"),
    (chat(stop=["a", 7]), "stop[1]"),
    (chat(stop=["a"] * 17), "stop"),
    (chat(stream="true"), "stream"),
    (chat(stream=1), "stream"),
    (chat(stream_options={"include_usage": True}), "stream_options"),
    (chat(stream=False, stream_options={}), "stream_options"),
    (chat(stream=True, stream_options=True), "stream_options"),
    (chat(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (chat(logprobs=1), "logprobs"),
    (chat(logprobs="yes"), "logprobs"),
    (chat(top_logprobs=2), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (chat(logprobs=True, top_logprobs="2"), "top_logprobs"),
    (chat(logit_bias=[]), "logit_bias"),
    (chat(logit_bias={"a": 1}), "logit_bias"),
    (chat(logit_bias={"7": 101}), "logit_bias.7"),
    (chat(tools={}), "tools"),
    (chat(tools=[7]), "tools[0]"),
    (chat(tools=[{}]), "tools[0].type"),
    (chat(tools=[{"type": "function"}]), "tools[0].function"),
    (chat(tools=[{"type": "function", "function": {}}]), "tools[0].function.name"),
    (chat(tool_choice="maybe"), "tool_choice"),
    (chat(tool_choice=7), "tool_choice"),
    (chat(parallel_tool_calls=1), "parallel_tool_calls"),
    (chat(response_format="json"), "response_format"),
    (chat(response_format={}), "response_format.type"),
    (chat(user=7), "user"),
    (chat(ignore_eos="no"), "ignore_eos"),
]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "Hi"}, "model"),
    ({"model": "tiny"}, "prompt"),
    (_completion(prompt=None), "prompt"),
    (_completion(prompt=""), "prompt"),
    (_completion(prompt=[]), "prompt"),
    (_completion(prompt=7), "prompt"),
    (_completion(prompt=["a", ""]), "prompt[1]"),
    (_completion(prompt=["a", 7]), "prompt[1]"),
    (_completion(prompt=[1, "a"]), "prompt[1]"),
    (_completion(prompt=[-1]), "prompt[0]"),
    (_completion(prompt=[True]), "prompt[0]"),
    (_completion(prompt=[[]]), "prompt[0]"),
    (_completion(prompt=[[1], "a"]), "prompt[1]"),
    (_completion(max_tokens=0), "max_tokens"),
    (_completion(n=0), "n"),
    (_completion(logprobs=True), "logprobs"),
    (_completion(logprobs=21), "logprobs"),
    (_completion(echo="no"), "echo"),
    (_completion(suffix=1), "suffix"),
    (_completion(stop=""), "stop"),
    (_completion(stream_options={}), "stream_options"),
]

BAD_EMBEDDINGS: list[tuple[dict[str, Any], str]] = [
    ({"input": "Hi"}, "model"),
    ({"model": "e"}, "input"),
    ({"model": "e", "input": ""}, "input"),
    ({"model": "e", "input": []}, "input"),
    ({"model": "e", "input": ["a", ""]}, "input[1]"),
    ({"model": "e", "input": {"a": 1}}, "input"),
    ({"model": "e", "input": ["a"] * 2049}, "input"),
    ({"model": "e", "input": "a", "encoding_format": "hex"}, "encoding_format"),
    ({"model": "e", "input": "a", "dimensions": 0}, "dimensions"),
    ({"model": "e", "input": "a", "dimensions": 1.5}, "dimensions"),
]


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        *((OpenAIChat(), body, param) for body, param in BAD_CHATS),
        *((OpenAICompletions(), body, param) for body, param in BAD_COMPLETIONS),
        *((OpenAIEmbeddings(), body, param) for body, param in BAD_EMBEDDINGS),
    ],
)
def test_bad_field_is_named(dialect: Dialect, body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        dialect.parse(json.dumps(body).encode())

    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("name", ["Messages", "MESSAGES", "me\u017f\u017fages", "Model", "Stream"])
def test_a_field_in_another_case_is_none_that_goes_along_unread(name: str) -> None:
    # Servers written in Go read both alike, and take the last.
    with pytest.raises(InvalidRequest) as caught:
        OpenAIChat().parse(json.dumps(chat(**{name: [{"role": "user", "content": "unread"}]})).encode())

    assert caught.value.param == name
    assert OpenAIChat().parse(json.dumps(chat(someThing=1)).encode()).fields["someThing"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None, "stop": None, "stream": None, "n": None, "stream_options": None, "tools": None},
        {"stop": []},
        {"stop": ["a"] * 16},
        {"temperature": 0, "top_p": 1, "seed": -1, "top_k": 0},
        {"temperature": 2, "n": 128, "max_tokens": 1},
        {"stream": True, "stream_options": {"include_usage": True, "new": 1}},
        {"logprobs": True, "top_logprobs": 0},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [{"type": "new_kind", "anything": 1}]},
        {"unknown": {"kept": True}},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": [{"type": "new_part", "anything": 1}]}]},
        {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [_CALL]}
                for _CALL in [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
            ]
        },
    ],
)
def test_good_field_passes(fields: dict[str, Any]) -> None:
    body = orjson.dumps(chat(**fields))

    assert OpenAIChat().parse(body).fields == chat(**fields)


BAD_BODIES = [
    b"",
    b"   ",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"7",
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "tiny", "temperature": NaN, "messages": [{"role": "user", "content": "Hi"}]}',
    b'{"model": "tiny", "temperature": Infinity, "messages": [{"role": "user", "content": "Hi"}]}',
    b'{"model": "tiny", "temperature": 1e999, "messages": [{"role": "user", "content": "Hi"}]}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} and more',
    b"\xef\xbb\xbf{}",
    b'{"a":' * 150 + b"1" + b"}" * 150,
    b"[" * 100_000,
    b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "x": ' + b"[" * 900 + b"]" * 900 + b"}",
]


async def test_body_that_is_no_good_json_is_a_400_and_the_next_request_works() -> None:
    script = Script()
    async with served(parts_of(script)) as port:
        for body in BAD_BODIES:
            for path in (CHAT, COMPLETIONS, EMBEDDINGS):
                reply = await ask(port, path, body)

                assert reply.status == 400, body[:80]
                assert reply.error["type"] == "invalid_request_error"
                assert reply.error["code"] == "invalid_json"
                assert reply.headers["x-lamina-call"]
        assert script.calls == []

        assert (await ask(port, CHAT, chat())).status == 200


async def test_bad_field_is_a_400_on_the_wire() -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, CHAT, chat(n=0))

    assert reply.status == 400
    assert reply.error == {
        "message": "Invalid value for 'n': expected an integer from 1 to 128, but got 0.",
        "type": "invalid_request_error",
        "param": "n",
        "code": "invalid_value",
    }


async def test_wrong_content_type_is_tolerated() -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, CHAT, chat(), headers={"content-type": "text/plain"})

    assert reply.status == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/tokenize"])
async def test_a_compressed_body_is_refused_as_such(path: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, path, gzip.compress(orjson.dumps(chat())), headers={"content-encoding": "GZIP"})
        plain = await ask(port, CHAT, chat(), headers={"content-encoding": "identity"})

    assert (reply.status, plain.status) == (415, 200)
    assert "'GZIP'" in reply.json["error"]["message"]
    assert reply.json["error"].get("code", "unsupported_content_encoding") == "unsupported_content_encoding"


async def test_body_over_the_limit_is_a_413_before_it_is_read() -> None:
    script = Script()
    async with served(parts_of(script, max_body_bytes=1000)) as port:
        announced = await ask_raw(port, request_bytes(CHAT, headers={"content-length": "5000"}))
        sent = await ask(port, CHAT, b" " * 3_000_000)
        chunked = await ask_raw(
            port,
            request_bytes(CHAT, headers={"content-length": "", "transfer-encoding": "chunked"})
            + b"3e8\r\n"
            + b" " * 1000
            + b"\r\n1\r\n \r\n",
        )
        fits = await ask(port, CHAT, orjson.dumps(chat()).ljust(1000))

    assert [announced.status, sent.status, chunked.status, fits.status] == [413, 413, 413, 200]
    assert announced.error["code"] == "request_too_large"
    assert announced.headers["connection"] == "close"
    assert len(script.calls) == 1


async def test_chunked_body_within_the_limit_is_read_whole() -> None:
    body = orjson.dumps(chat())
    chunks = b"".join(b"1\r\n" + body[index : index + 1] + b"\r\n" for index in range(len(body))) + b"0\r\n\r\n"
    headers = {"content-length": "", "transfer-encoding": "chunked"}

    async with served(parts_of()) as port:
        reply = await ask_raw(port, request_bytes(CHAT, headers=headers) + chunks)

    assert reply.status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", CHAT, 405, "POST"),
        ("PUT", EMBEDDINGS, 405, "POST"),
        ("OPTIONS", COMPLETIONS, 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("POST", "/v1/models/tiny", 405, "GET"),
        ("DELETE", "/health/live", 405, "GET"),
        ("POST", "/admin/calls/x", 405, "GET"),
        ("GET", "/v1/nothing", 404, None),
        ("POST", "/v1/chat/completions/", 404, None),
        ("GET", "/admin", 404, None),
        ("GET", "/v1/models/unknown", 404, None),
        ("GET", "/%F0%9F%92%A9/%0d%0a", 404, None),
    ],
)
async def test_wrong_path_or_method_has_openais_shape(method: str, path: str, status: int, allow: str | None) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, path, method=method)

    assert reply.status == status
    assert reply.error["type"] == "invalid_request_error"
    assert reply.headers.get("allow") == (allow.lower() if allow else None)
    assert reply.headers["x-lamina-cache"] == "bypass"
    assert reply.headers["x-request-id"] == reply.headers["x-lamina-call"]


async def test_every_bad_field_is_a_400_over_one_kept_connection() -> None:
    async with served(parts_of()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body, _ in BAD_CHATS[:40]:
            writer.write(request_bytes(CHAT, orjson.dumps(body)))
            status = await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            assert status == b"HTTP/1.1 400 Bad Request\r\n"
        writer.close()


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "input",
        "stop",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "n",
        "seed",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "response_format",
        "temperature",
        "max_tokens",
        "role",
        "content",
    ]
)
_MESSAGE = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "name", "tool_call_id"]), _JSON | st.just("user"), max_size=5
)
_REQUEST = st.dictionaries(
    _NAMES, _JSON | st.lists(_MESSAGE, max_size=3) | st.just("tiny") | st.lists(st.integers(), max_size=3), max_size=8
)
_DIALECTS = st.sampled_from([OpenAIChat(), OpenAICompletions(), OpenAIEmbeddings()])


@settings(max_examples=150, deadline=None)
@given(dialect=_DIALECTS, fields=_REQUEST)
def test_any_json_object_is_parsed_or_refused_by_name(dialect: Dialect, fields: dict[str, Any]) -> None:
    _parse_or_refuse(dialect, json.dumps(fields).encode())


@settings(max_examples=150, deadline=None)
@given(dialect=_DIALECTS, body=st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(dialect: Dialect, body: bytes) -> None:
    _parse_or_refuse(dialect, body)


def _parse_or_refuse(dialect: Dialect, body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        request = dialect.parse(body)

        assert request.model
        assert request.num_choices >= 1


async def _count(request: FastAPIRequest) -> int:
    return len(await request.body())


def _reading() -> AppParts:
    router = APIRouter()
    router.add_api_route("/admin/read", _count, methods=["PUT"])
    return parts_of(admin=AdminParts(routers=(router,)))


async def test_bodies_of_the_admin_side_are_bounded_too() -> None:
    async with served(_reading()) as port:
        fits = await ask(port, "/admin/read", b" " * MAX_SIDE_BYTES, method="PUT")
        over = await ask(port, "/admin/read", b" " * (MAX_SIDE_BYTES + 1), method="PUT")

    assert (fits.status, fits.json) == (200, MAX_SIDE_BYTES)
    assert (over.status, over.error["code"]) == (413, "request_too_large")


async def test_a_client_that_leaves_the_admin_side_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async with served(_reading()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes("/admin/read", b"half", method="PUT", headers={"content-length": "8"}))
        await writer.drain()
        writer.close()
        assert await reader.read() == b""
        for _ in range(200):
            counted = (await ask(port, "/metrics", method="GET")).body
            if b'status="499"' in counted:
                break

    assert b'status="499"' in counted
    assert not caplog.records


async def test_a_body_that_stops_coming_is_waited_for_no_longer_behind_the_edge_either() -> None:
    messages = [{"type": "http.request", "body": b"a", "more_body": True}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        raise AssertionError(message)

    read = bounded(Exchange({"type": "http", "headers": [], "path": "/"}, receive, send), stall_s=0.01)

    assert (await read())["body"] == b"a"
    with pytest.raises(BodyStalled):
        await read()
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    assert not (await read())["more_body"]
    with pytest.raises(TimeoutError):  # whether the client leaves is waited for without an end
        await asyncio.wait_for(read(), 0.1)
