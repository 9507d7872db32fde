"""WebSocket `/v1/stream`, by a real client against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.access import Gatekeeper
from gateway.endpoints import Stream
from gateway.exchange import Message
from gateway.metrics import Metrics
from gateway.parts import Access, AppParts
from orchestration.core import CacheStatus, Call, Delta, Finish, Part, Secret, Start, Usage
from orchestration.core.errors import LimitReached, Unauthorized
from tests.gateway.serving import Script, ask, parts_of, served

HELLO = (
    Start("tiny-1", "fake"),
    Delta(text="Hel"),
    Delta(text="lo"),
    Finish(reasons={0: "stop"}, usage=Usage(5, 2)),
)


class OneKey:
    """A key ring of one key, which can be revoked."""

    is_in_use = True
    is_live = True

    def admit(self, bearer: str) -> str:
        if bearer != "sk-good" or not self.is_live:
            raise Unauthorized("Incorrect API key provided.")
        return "key_1"

    def may_use(self, key_id: str, model: str) -> bool:
        return model != "forbidden"


@contextlib.asynccontextmanager
async def socket_of(parts: AppParts, **options: Any) -> AsyncIterator[ClientConnection]:
    async with served(parts) as port, connect(f"ws://127.0.0.1:{port}/v1/stream", proxy=None, **options) as client:
        yield client


def with_keys(ring: OneKey, script: Script | None = None) -> AppParts:
    return parts_of(script or Script(HELLO), access=Access(tenant_key=Secret("tenant-key"), keys=ring))


async def tell(client: ClientConnection, **fields: Any) -> None:
    await client.send(orjson.dumps(fields).decode())


async def hear(client: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(30):
        message = orjson.loads(await client.recv())
    assert isinstance(message, dict)
    return message


async def hear_all(client: ClientConnection) -> list[dict[str, Any]]:
    """Hear one call's messages to its end."""
    heard = [await hear(client)]
    while heard[-1]["type"] not in ("done", "error", "cancelled"):
        heard.append(await hear(client))
    return heard


async def test_prompt_goes_in_and_tokens_come_out_until_done() -> None:
    script = Script(HELLO)
    async with socket_of(parts_of(script)) as client:
        await tell(client, prompt="Hi", system="Be brief.")
        start, first, second, done = await hear_all(client)

    assert (start["type"], start["model"], start["backend"], start["cache"]) == (
        "start",
        "tiny-1",
        "fake",
        {"status": "bypass"},
    )
    assert [first, second] == [{"type": "token", "text": "Hel"}, {"type": "token", "text": "lo"}]
    assert (done["type"], done["call"], done["finish_reason"]) == ("done", start["call"], "stop")
    assert (done["usage"]["prompt_tokens"], done["usage"]["completion_tokens"]) == (5, 2)
    fields = script.calls[0].request.fields
    assert fields["model"] == "tiny"
    assert fields["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert script.calls[0].request.is_streamed


async def test_chat_requests_follow_one_another_on_one_socket() -> None:
    script = Script(HELLO)
    async with socket_of(parts_of(script)) as client:
        for number in range(3):
            await tell(client, model="tiny", messages=[{"role": "user", "content": f"{number}"}], temperature=0)
            assert (await hear_all(client))[-1]["type"] == "done"

    assert [call.request.fields["messages"][0]["content"] for call in script.calls] == ["0", "1", "2"]
    assert len({call.id for call in script.calls}) == 3


async def test_reasoning_refusal_and_tool_calls_have_messages_of_their_own() -> None:
    pieces = [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    steps = (
        Start("tiny-1", "fake"),
        Delta(part=Part.REASONING, text="hm"),
        Delta(part=Part.REFUSAL, text="no", choice=1),
        Delta(part=Part.TOOL_CALL, data=pieces),
        Finish(reasons={0: "tool_calls", 1: "stop"}),
    )
    async with socket_of(parts_of(Script(steps))) as client:
        await tell(client, prompt="Hi", n=2)
        heard = await hear_all(client)

    assert heard[1:4] == [
        {"type": "reasoning", "text": "hm"},
        {"type": "refusal", "text": "no", "choice": 1},
        {"type": "tool_call", "tool_calls": pieces},
    ]
    assert heard[4]["finish_reasons"] == {"0": "tool_calls", "1": "stop"}
    assert heard[4]["usage"] is None


async def test_a_hit_shows_its_evidence_and_costs_nothing() -> None:
    class Hit(Script):
        async def __call__(self, call: Call, /) -> Any:
            cache = call.notes.cache
            cache.status, cache.similarity, cache.threshold = CacheStatus.SEMANTIC, 0.97, 0.95
            async with contextlib.aclosing(super().__call__(call)) as events:
                async for event in events:
                    yield event

    async with socket_of(parts_of(Hit(HELLO))) as client:
        await tell(client, prompt="Hi")
        start, *_, done = await hear_all(client)

    assert start["cache"] == {"status": "semantic", "similarity": 0.97, "threshold": 0.95}
    assert (done["cache"], done["cost_usd"]) == ("semantic", 0.0)


async def test_controls_come_with_the_message_and_not_with_the_handshake() -> None:
    script = Script(HELLO)
    async with socket_of(parts_of(script), additional_headers={"Cache-Control": "no-cache"}) as client:
        await tell(client, prompt="Hi")
        await hear_all(client)
        await tell(client, prompt="Hi", headers={"Cache-Control": "no-store", "x-request-id": "mine"})
        start = (await hear_all(client))[0]

    plain, controlled = script.calls
    assert not plain.controls.cache.is_no_cache
    assert controlled.controls.cache.is_no_store
    assert "headers" not in controlled.request.fields
    assert (start["request_id"], controlled.request_id) == ("mine", "mine")


async def test_cancel_closes_the_answer_and_leaves_the_socket_usable() -> None:
    script = Script((Start("tiny-1", "fake"), Delta(text="x"), asyncio.Event().wait))
    async with socket_of(parts_of(script)) as client:
        await tell(client, prompt="Hi")
        start = await hear(client)
        await hear(client)
        await tell(client, type="cancel")
        cancelled = await hear(client)
        assert script.closed.is_set()
        script.steps = HELLO
        await tell(client, prompt="Again")
        again = await hear_all(client)
        await tell(client, type="cancel")
        idle = await hear(client)

    assert cancelled == {"type": "cancelled", "call": start["call"]}
    assert again[-1]["type"] == "done"
    assert idle == {"type": "cancelled", "call": None}


async def test_a_second_call_beside_a_running_one_is_refused_and_the_first_goes_on() -> None:
    gate = asyncio.Event()
    script = Script((HELLO[0], HELLO[1], gate.wait, *HELLO[2:]))
    async with socket_of(parts_of(script)) as client:
        await tell(client, prompt="Hi")
        await hear(client)
        await hear(client)
        await tell(client, prompt="Me too")
        refused = await hear(client)
        gate.set()
        rest = await hear_all(client)

    assert (refused["status"], refused["call"], refused["error"]["code"]) == (409, None, "call_running")
    assert [message["type"] for message in rest] == ["token", "done"]
    assert len(script.calls) == 1


async def test_a_client_that_vanishes_closes_the_answer_at_once() -> None:
    script = Script((Start("tiny-1", "fake"), Delta(text="x"), asyncio.Event().wait))
    async with socket_of(parts_of(script)) as client:
        await tell(client, prompt="Hi")
        await hear(client)
        client.transport.abort()
        async with asyncio.timeout(30):
            await script.closed.wait()


async def test_a_client_that_leaves_before_content_closes_the_call() -> None:
    script = Script((asyncio.Event().wait,))
    async with socket_of(parts_of(script)) as client:
        await tell(client, prompt="Hi")
        await script.begun.wait()
        await client.close()
        async with asyncio.timeout(30):
            await script.closed.wait()


async def test_a_slow_reader_holds_the_answer_back_and_gets_all_of_it() -> None:
    made = []

    class Flood(Script):
        async def __call__(self, call: Call, /) -> Any:
            yield Start("tiny-1", "fake")
            for number in range(400):
                made.append(number)
                yield Delta(text="x" * 65536)
            yield Finish()

    async with served(parts_of(Flood())) as port:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # so that the bound is soon met
        raw.connect(("127.0.0.1", port))
        uri = f"ws://127.0.0.1:{port}/v1/stream"
        async with connect(uri, sock=raw, proxy=None, max_queue=(2, 1)) as client:
            await tell(client, prompt="Hi")
            seen = -1
            while seen != len(made):  # until nothing moves any more
                seen = len(made)
                await asyncio.sleep(0.1)
            assert 0 < len(made) < 400
            heard = await hear_all(client)

    assert sum(len(message.get("text", "")) for message in heard) == 400 * 65536


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ('{"prompt": ""}', "prompt"),
        ('{"prompt": "a", "messages": []}', "prompt"),
        ('{"system": "a", "messages": []}', "system"),
        ('{"messages": "none"}', "messages"),
        ('{"prompt": "a", "temperature": 9}', "temperature"),
        ('{"prompt": "a", "headers": {"authorization": "b"}}', "headers"),
        ('{"prompt": "a", "headers": 1}', "headers"),
        ('{"type": "dance"}', "type"),
        ('{"type": "auth", "key": 1}', "key"),
        ("[]", None),
        ("{", None),
        ("", None),
        (b'{"prompt": "\xff"}', None),
    ],
)
async def test_a_wrong_message_is_an_error_in_openais_shape_and_the_socket_goes_on(
    message: str | bytes, param: str | None
) -> None:
    async with socket_of(parts_of(Script(HELLO))) as client:
        await client.send(message)
        refused = await hear(client)
        await tell(client, prompt="Hi")
        answered = await hear_all(client)

    assert refused["type"] == "error"
    assert refused["status"] == 400
    assert set(refused["error"]) == {"message", "type", "param", "code"}
    assert refused["error"]["param"] == param
    assert answered[-1]["type"] == "done"


async def test_an_error_before_and_one_amid_the_answer_end_the_call_alone() -> None:
    script = Script((LimitReached("slow down", retry_after_s=1.5),))
    async with socket_of(parts_of(script)) as client:
        await tell(client, prompt="Hi")
        before = await hear_all(client)
        script.steps = (Start("tiny-1", "fake"), Delta(text="x"), RuntimeError("secret"))
        await tell(client, prompt="Hi")
        amid = await hear_all(client)
        script.steps = (Start("tiny-1", "fake"), Delta(text="x"))
        await tell(client, prompt="Hi")
        unfinished = await hear_all(client)

    assert [(message["status"], message["retry_after_ms"]) for message in before] == [(429, 1500)]
    assert [message["type"] for message in amid] == ["start", "token", "error"]
    assert amid[0]["call"] == amid[2]["call"]
    assert "secret" not in amid[2]["error"]["message"]
    assert unfinished[-1]["status"] == 502


async def test_message_over_the_bound_closes_the_socket() -> None:
    async with socket_of(parts_of(Script(HELLO))) as client:
        with contextlib.suppress(ConnectionClosed):  # it may be closed while it is still sending
            await client.send("x" * (17 * 1024 * 1024))
        await client.wait_closed()
        assert client.close_code == 1009


async def test_foreign_host_and_foreign_page_are_refused_at_the_handshake() -> None:
    async with served(parts_of()) as port:
        uri = f"ws://127.0.0.1:{port}/v1/stream"
        wrong_host = {"uri": "ws://evil.example/v1/stream", "host": "127.0.0.1", "port": port}
        two_hosts = {"uri": uri, "additional_headers": {"Host": "evil.example"}}
        wrong_page = {"uri": uri, "additional_headers": {"Origin": "https://evil.example"}}
        no_page = {"uri": uri, "additional_headers": {"Origin": "null"}}
        for options in (wrong_host, two_hosts, wrong_page, no_page):
            with pytest.raises(InvalidStatus) as refused:
                await connect(**options, proxy=None)
            assert refused.value.response.status_code == 403
            assert orjson.loads(refused.value.response.body)["error"]["type"] == "permission_error"
        async with connect(uri, origin=f"http://127.0.0.1:{port}", proxy=None) as own_page:  # type: ignore[arg-type]
            await tell(own_page, prompt="Hi")
            assert (await hear_all(own_page))[-1]["type"] == "done"


async def test_a_key_in_the_handshake_is_checked_there() -> None:
    script = Script(HELLO)
    async with served(with_keys(OneKey(), script)) as port:
        uri = f"ws://127.0.0.1:{port}/v1/stream"
        with pytest.raises(InvalidStatus) as refused:
            await connect(uri, additional_headers={"Authorization": "Bearer sk-bad"}, proxy=None)
        async with connect(uri, additional_headers={"Authorization": "Bearer sk-good"}, proxy=None) as client:
            await tell(client, prompt="Hi")
            await hear_all(client)

    assert refused.value.response.status_code == 401
    assert [call.tenant for call in script.calls] == ["key_1"]


async def test_a_browser_sends_its_key_as_the_first_message() -> None:
    script = Script(HELLO)
    async with socket_of(with_keys(OneKey(), script)) as client:
        await tell(client, prompt="Hi")
        without = await hear_all(client)
        await tell(client, type="auth", key="sk-good")
        assert await hear(client) == {"type": "authenticated"}
        await tell(client, prompt="Hi")
        answered = await hear_all(client)
        await tell(client, prompt="Hi", model="forbidden")
        forbidden = await hear_all(client)

    assert without[-1]["status"] == 401
    assert answered[-1]["type"] == "done"
    assert forbidden[-1]["status"] == 403
    assert [call.tenant for call in script.calls] == ["key_1"]


async def test_a_wrong_key_closes_the_socket() -> None:
    async with socket_of(with_keys(OneKey())) as client:
        await tell(client, type="auth", key="sk-bad")
        refused = await hear(client)
        with pytest.raises(ConnectionClosed):
            await client.recv()

    assert (refused["status"], client.close_code) == (401, 1008)


async def test_a_socket_that_never_shows_a_key_is_closed() -> None:
    parts = with_keys(OneKey())
    endpoint = Stream(
        parts.handler,
        gatekeeper=Gatekeeper(parts.access),
        metrics=Metrics([]),
        models=["tiny"],
        ending=asyncio.Event(),
        is_draining=lambda: False,
        auth_s=0.01,
    )
    sent: list[Message] = []
    coming = [{"type": "websocket.connect"}]

    async def receive() -> Message:
        return coming.pop() if coming else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(30):
        await endpoint({"type": "websocket", "headers": [(b"host", b"localhost")]}, receive, send)

    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.close"]
    assert sent[1]["code"] == 1008


async def test_a_key_revoked_meanwhile_is_refused_at_the_next_call() -> None:
    ring = OneKey()
    async with socket_of(with_keys(ring), additional_headers={"x-api-key": "sk-good"}) as client:
        await tell(client, prompt="Hi")
        assert (await hear_all(client))[-1]["type"] == "done"
        ring.is_live = False
        await tell(client, prompt="Hi")
        refused = await hear_all(client)

    assert refused[-1]["status"] == 401


@pytest.mark.parametrize(("is_draining", "code"), [(True, 1001), (False, 1012)])
async def test_a_socket_ends_after_its_running_answer(is_draining: bool, code: int) -> None:
    gate = asyncio.Event()
    script = Script((HELLO[0], HELLO[1], gate.wait, *HELLO[2:]))
    parts = parts_of(script, is_draining=lambda: is_draining)
    async with served(parts) as port:
        uri = f"ws://127.0.0.1:{port}/v1/stream"
        async with connect(uri, proxy=None) as idle, connect(uri, proxy=None) as busy:
            await tell(busy, prompt="Hi")
            await hear(busy)
            await hear(busy)
            parts.ending.set()
            await idle.wait_closed()
            assert busy.state.name == "OPEN"
            gate.set()
            rest = await hear_all(busy)
            await busy.wait_closed()

    assert [message["type"] for message in rest] == ["token", "done"]
    assert (idle.close_code, busy.close_code) == (code, code)


async def test_calls_are_counted_under_the_sockets_path() -> None:
    async with served(parts_of(Script(HELLO))) as port:
        async with connect(f"ws://127.0.0.1:{port}/v1/stream", proxy=None) as client:
            await tell(client, prompt="Hi")
            await hear_all(client)
        page = (await ask(port, "/metrics", method="GET")).body.decode()

    assert 'lamina_requests_total{cache="bypass",endpoint="/v1/stream",model="tiny",status="200"} 1.0' in page
    assert 'lamina_requests_in_flight{endpoint="/v1/stream"} 0.0' in page


async def test_other_sockets_are_refused() -> None:
    async with served(parts_of()) as port:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{port}/v1/other", proxy=None)

    assert refused.value.response.status_code == 403
