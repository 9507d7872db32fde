from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI

from backends.echo import EchoBackend
from gateway.app import create_app
from gateway.exchange import headers_of
from gateway.ids import new_ulid
from gateway.parts import Access
from orchestration.core import Delta, Kind, Route, Router, Secret, Start
from tests.gateway.serving import CHAT, Script, ask, chat, client_of, frames_of, parts_of, served

START = Start("tiny-1", "fake")


class Connection:
    """An ASGI server's side of one request, in memory; `send` stalls while `is_stalled`."""

    def __init__(self, path: str, body: dict[str, Any], **scope: Any) -> None:
        headers = [(b"host", b"localhost")]
        self.scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": headers, **scope}
        self.sent: list[Any] = []
        self._incoming = [{"type": "http.request", "body": orjson.dumps(body), "more_body": False}]

    async def receive(self) -> Any:
        if self._incoming:
            return self._incoming.pop()
        return await asyncio.Event().wait()

    async def send(self, message: Any) -> None:
        self.sent.append(message)


async def _stop_during(script: Script, body: dict[str, Any]) -> Connection:
    connection = Connection(CHAT, body)
    app = create_app(parts_of(script))
    task = asyncio.create_task(app(connection.scope, connection.receive, connection.send))
    await script.begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await script.closed.wait()
    return connection


async def test_call_that_outlives_the_drain_is_told_so() -> None:
    connection = await _stop_during(Script((asyncio.Event().wait,)), chat())

    head, body = connection.sent
    assert head["status"] == 503
    assert orjson.loads(body["body"])["error"]["code"] == "shutting_down"


async def test_stream_that_outlives_the_drain_ends_with_an_error_frame() -> None:
    script = Script((START, Delta(text="Hello"), asyncio.Event().wait))

    connection = await _stop_during(script, chat(stream=True))

    head, content, end = connection.sent
    assert head["status"] == 200
    assert b"Hello" in content["body"]
    assert frames_of(end["body"])[0]["error"]["code"] == "shutting_down"
    assert end["more_body"] is False


async def test_admin_below_a_root_path_is_guarded_too() -> None:
    connection = Connection("/proxied/admin/calls/x", {}, method="GET", root_path="/proxied", query_string=b"")
    locked = Access(tenant_key=Secret("k"), master_key=Secret("sk-master"))

    await create_app(parts_of(access=locked))(connection.scope, connection.receive, connection.send)

    assert connection.sent[0]["status"] == 401


def test_headers_of_one_name_are_one_list() -> None:
    fields = [(b"cache-control", b"no-store"), (b"host", b"h"), (b"cache-control", b"max-age=1")]

    assert headers_of({"headers": fields}) == {b"cache-control": b"no-store, max-age=1", b"host": b"h"}


def test_ids_are_ulids_that_sort_by_time_and_never_repeat() -> None:
    ids = [new_ulid() for _ in range(1000)]

    assert len(set(ids)) == 1000
    assert all(len(name) == 26 and name[0] in "01234567" for name in ids)
    assert {letter for name in ids for letter in name} <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    assert [name[:10] for name in ids] == sorted(name[:10] for name in ids)


async def test_echo_behind_the_router_answers_the_sdk() -> None:
    route = Route("tiny", (EchoBackend(),), frozenset([Kind.CHAT]))
    async with client_of(parts_of(Router({"tiny": route}))) as client:
        messages: Any = [{"role": "user", "content": "all of  this"}]
        raw = await client.chat.completions.with_raw_response.create(model="tiny", messages=messages)
        stream = await client.chat.completions.create(model="tiny", messages=messages, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert raw.parse().choices[0].message.content == "all of  this" == "".join(pieces)
    assert raw.headers["x-lamina-backend"] == "echo"
    assert float(raw.headers["x-lamina-overhead-ms"]) > 0.0


async def test_openais_client_is_answered_without_v1_in_its_address_too() -> None:
    route = Route("tiny", (EchoBackend(),), frozenset([Kind.CHAT, Kind.COMPLETION]))
    async with (
        served(parts_of(Router({"tiny": route}))) as port,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0) as client,
    ):
        answer = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}])
        completed = await client.completions.create(model="tiny", prompt="Hi")
        response = await client.responses.create(model="tiny", input="Hi")
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve(listed[0])
        counted = (await ask(port, "/metrics", method="GET")).body
        nowhere = await ask(port, "/messages", {})

    assert answer.choices[0].message.content == completed.choices[0].text == response.output_text == "Hi"
    assert one.id == listed[0]
    assert b'"/chat/completions"' not in counted
    assert nowhere.status == 404


async def test_unknown_model_and_kind_are_refused_with_what_exists() -> None:
    route = Route("tiny", (EchoBackend(),), frozenset([Kind.CHAT]))
    async with served(parts_of(Router({"tiny": route}))) as port:
        unknown = await ask(port, CHAT, chat(model="gpt-99"))
        wrong_kind = await ask(port, "/v1/embeddings", {"model": "tiny", "input": "Hi"})

    assert (unknown.status, unknown.error["code"], unknown.error["param"]) == (404, "model_not_found", "model")
    assert "tiny" in unknown.error["message"]
    assert (wrong_kind.status, wrong_kind.error["param"]) == (400, "model")
