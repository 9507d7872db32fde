"""Faults that users of other gateways reported, each as a claim about this one, where no other test makes it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import redis.asyncio
from openai import AsyncOpenAI

from logging_layer.call_log import CallLog
from logging_layer.record import CallRecord
from orchestration.core import Delta, Finish, Start, Usage, compose
from tests.backends.remote.fake_upstream import FakeUpstream, answering, chunk, streaming, write_chunk
from tests.gateway.serving import CHAT, EMBEDDINGS, Reply, Script, ask, chat, frames_of, parts_of, served
from tests.gateway.test_bad_upstreams import head_and_silence
from tests.gateway.whole import good, whole

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


def cached(upstream: FakeUpstream, valkey_url: str, *, backends: str = "") -> str:
    """Write settings of a model with an exact cache, and of one more at the second address of the same server."""
    first = f'{{type: openai_compatible, base_url: "{upstream.url}", model: first, api_key: sk-upstream}}'
    return f"""
models:
  - {{id: tiny, retries: 0, backends: [{first}{backends}]}}
  - {{id: embedder, backends: [{first}]}}
cache: {{semantic: {{enabled: false}}}}
routing: {{health_interval_s: null}}
redis: {{url: "{valkey_url}"}}
"""


def second(upstream: FakeUpstream) -> str:
    return f', {{type: openai_compatible, base_url: "{upstream.url}", model: second}}'


async def test_three_interleaved_tool_calls_keep_their_ids_and_names(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """BerriAI/litellm 39796."""
    names = ["weather", "clock", "map"]
    begun = [chunk(tool_calls=[_call(place, id=f"c{place}", name=name)]) for place, name in enumerate(names)]
    grown = [chunk(tool_calls=[_call(place, arguments=piece)]) for piece in ('{"a":', "1}") for place in range(3)]
    upstream.script = streaming(*begun, *grown, chunk(finish="tool_calls"))
    async with (
        whole(tmp_path, cached(upstream, valkey_url)) as here,
        AsyncOpenAI(base_url=f"{here.url}/v1", api_key="k", max_retries=0, timeout=60) as client,
    ):
        pieces = [
            piece
            async for each in await client.chat.completions.create(**chat(), stream=True)
            for choice in each.choices
            for piece in choice.delta.tool_calls or ()
        ]

    told = [(piece.index, piece.id, piece.function.name) for piece in pieces if piece.id]
    assert told == [(0, "c0", "weather"), (1, "c1", "clock"), (2, "c2", "map")]
    for place in range(3):
        assert "".join(piece.function.arguments or "" for piece in pieces if piece.index == place) == '{"a":1}'


async def test_a_last_chunk_with_content_reason_and_usage_says_all_three(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """maximhq/bifrost PR 5832; BerriAI/litellm 36168."""
    last = {**chunk(content="lo", finish="length"), "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    upstream.script = streaming(chunk(content="Hel"), last)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with whole(tmp_path, cached(upstream, valkey_url)) as here:
        asked = frames_of((await here.ask(CHAT, chat(**options))).body)
        plain = frames_of((await here.ask(CHAT, chat(stream=True, seed=1))).body)

    for frames in (asked, plain):
        choices = [choice for frame in frames[:-1] for choice in frame["choices"]]
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Hello"
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
        assert choices[-1]["finish_reason"] == "length"
    assert asked[-2]["usage"]["completion_tokens"] == 2  # where the upstream said it: the frame goes out as it came
    assert not [frame for frame in plain[:-1] if frame.get("usage")]


async def test_an_anthropic_client_learns_the_prompts_tokens_from_any_backend(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """BerriAI/litellm 41406: a count that comes late is told late, and never as a zero that stays."""
    upstream.script = good()
    async with whole(tmp_path, cached(upstream, valkey_url)) as here:
        miss = await here.ask(MESSAGES, {**chat(stream=True), "max_tokens": 9})
        hit = await here.ask(MESSAGES, {**chat(stream=True), "max_tokens": 9})

    assert _events(miss)[-2]["usage"] == {**_events(miss)[-2]["usage"], "input_tokens": 3, "output_tokens": 2}
    assert hit.headers["x-lamina-cache"] == "exact"
    assert _events(hit)[0]["message"]["usage"]["input_tokens"] == 3


class Records:
    def __init__(self) -> None:
        self.kept: list[CallRecord] = []

    def append(self, record: CallRecord) -> None:
        self.kept.append(record)


async def test_streamed_responses_and_messages_are_logged_with_their_tokens() -> None:
    """maximhq/bifrost 4484, 4846; mlflow/mlflow 25707."""
    records = Records()
    script = Script((Start("m", "b"), Delta(text="Hi"), Finish(usage=Usage(7, 5, cache_write_tokens=3))))
    handler = compose([CallLog(records, content="full", worker="w")], script)
    async with served(parts_of(handler)) as port:
        await ask(port, RESPONSES, {"model": "tiny", "input": "Hi", "stream": True})
        await ask(port, MESSAGES, {**chat(stream=True), "max_tokens": 9})

    assert [record.usage for record in records.kept] == [Usage(7, 5, cache_write_tokens=3)] * 2


async def test_what_follows_a_streams_end_is_not_read_as_the_next_answer(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """maximhq/bifrost 1613: the last chunk of one answer comes while the next call is already asked for."""

    async def late_end(writer: asyncio.StreamWriter) -> None:
        await head_and_silence(writer)
        await good()(_WithoutHead(writer))  # type: ignore[arg-type]  # all that a script uses of a writer
        await writer.drain()
        await asyncio.sleep(0.02)
        write_chunk(writer, b": and one comment more\n\n")
        writer.write(b"0\r\n\r\n")

    async with whole(tmp_path, cached(upstream, valkey_url)) as here:
        for seed in range(10):
            upstream.script = late_end
            reply = await here.ask(CHAT, chat(stream=True, seed=seed))
            assert (reply.status, b"Hello" in reply.body, b'"error"' in reply.body) == (200, True, False)


class _WithoutHead:
    """Pass on chunks, but neither the head nor the end of the body."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        if not data.startswith((b"HTTP/1.1", b"0\r\n")):
            self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()


async def test_no_parameter_is_left_out_of_the_key(upstream: FakeUpstream, valkey_url: str, tmp_path: Path) -> None:
    """BerriAI/litellm 42400 and Continuum-AI-Corp/OrcaRouter-Lite 84: a provider's own parameters count, too."""
    upstream.script = answering(_whole("Hello"))
    bodies = [chat(), chat(num_ctx=2048), chat(num_ctx=8192), chat(temperature=0), chat(max_tokens=16)]
    bodies += [chat(max_tokens=4000), chat(stop=["a"]), chat(options={"num_ctx": 1}), chat(options={"num_ctx": 2})]
    async with whole(tmp_path, cached(upstream, valkey_url)) as here:
        first = [(await here.ask(CHAT, body)).headers["x-lamina-cache"] for body in bodies]
        again = [(await here.ask(CHAT, body)).headers["x-lamina-cache"] for body in bodies]

    assert (set(first), set(again)) == ({"miss"}, {"exact"})


async def test_nobody_is_given_or_can_probe_anothers_answer(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """BerriAI/litellm 29955, theopenco/llmgateway GHSA-h9ww-f95j-h54c, maximhq/bifrost PR 5769."""
    upstream.script = answering(_whole("Hello"))
    async with whole(tmp_path, cached(upstream, valkey_url)) as here:
        mine = await here.ask(CHAT, chat(), headers={"authorization": "Bearer a"})
        probes = {"x-lamina-threshold": "-1", "x-litellm-cache-key": "x", "x-lamina-namespace": "a"}
        upstream.script = answering(_whole("Other"))
        theirs = [
            await here.ask(CHAT, chat(), headers={"authorization": f"Bearer b{place}", **probe})
            for place, probe in enumerate(({}, probes, {"cache-control": "only-if-cached"}))
        ]

    assert mine.status == 200
    assert [reply.status for reply in theirs] == [200, 200, 504]
    assert {reply.headers["x-lamina-cache"] for reply in theirs} == {"miss"}
    assert not [reply for reply in theirs if "x-lamina-entry" in reply.headers or b"Hello" in reply.body]


async def test_a_streamed_response_is_kept_and_told_again_in_pieces(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """BerriAI/litellm 24579, 11145, 32068: with its reasoning, and through no character."""
    text = "日本語 and 👩‍🚀 " * 20
    upstream.script = streaming(chunk(reasoning_content="Hm, so."), chunk(content=text), chunk(finish="stop"))
    body = {"model": "tiny", "input": "Hi", "stream": True}
    async with whole(tmp_path, cached(upstream, valkey_url)) as here:
        miss = _events(await here.ask(RESPONSES, body))
        hit = await here.ask(RESPONSES, body)

    assert hit.headers["x-lamina-cache"] == "exact"
    pieces = [each["delta"] for each in _events(hit) if each["type"] == "response.output_text.delta"]
    assert (len(pieces) > 3, "".join(pieces)) == (True, text)
    told = [each["response"]["output"] for each in (miss[-1], _events(hit)[-1])]
    assert [item["content"] for item in told[0]] == [item["content"] for item in told[1]]
    assert told[0][0]["type"] == "reasoning"


async def test_what_is_kept_ends_and_its_key_holds_no_words(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """BerriAI/litellm 6010, 7467, 29414: lists of embeddings as well."""
    vectors = [{"index": place, "embedding": [0.5, 0.5]} for place in range(2)]
    async with (
        whole(tmp_path, cached(upstream, valkey_url)) as here,
        redis.asyncio.Redis.from_url(valkey_url) as store,
    ):
        upstream.script = answering({"data": vectors})
        await here.ask(EMBEDDINGS, {"model": "embedder", "input": ["secret words", "more"]})
        upstream.script = answering(_whole("Hello"))
        await here.ask(CHAT, chat(messages=[{"role": "user", "content": "secret words " * 500}]))
        keys = [key for key in await store.keys() if b":l:" not in key]
        # The lists by which entries are found have no end of their own: what ends leaves them.
        times = [await store.ttl(key) for key in keys if b":x:" in key or b":c:e:" in key]

    assert len(keys) >= 2
    assert all(len(key) < 200 and b"secret" not in key for key in keys)
    assert len(times) >= 4
    assert all(0 < left_s <= 86_460 for left_s in times)


async def test_a_stream_that_was_cut_is_not_kept(upstream: FakeUpstream, valkey_url: str, tmp_path: Path) -> None:
    """gonka-ai/gonka 1722: an end without a reason is a cut as well."""
    scripts = [
        streaming(chunk(content="Hel"), done=False),
        streaming(chunk(content="Hel")),
        streaming(chunk(content="Hel"), done=False, ends=False),
    ]
    settings = cached(upstream, valkey_url).replace("api_key", "timeout_s: {total: 1}, api_key")
    async with whole(tmp_path, settings) as here:
        for seed, script in enumerate(scripts):
            upstream.script = script
            cut = await here.ask(CHAT, chat(stream=True, seed=seed))
            again = await here.ask(CHAT, chat(stream=True, seed=seed), headers={"cache-control": "only-if-cached"})
            assert (b"Hel" in cut.body, b'"error"' in cut.body) == (True, True)
            assert again.status == 504


async def test_a_stream_that_fails_before_content_falls_back_with_a_200(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """mlflow/mlflow 25262; BerriAI/litellm 29808: an error inside the stream, before any content, is no answer."""
    upstream.script = _by_model(upstream, first=streaming({"error": {"message": "full", "code": 503}}), second=good())
    async with whole(tmp_path, cached(upstream, valkey_url, backends=second(upstream))) as here:
        reply = await here.ask(CHAT, chat(stream=True))

    assert (reply.status, b"Hello" in reply.body, b'"error"' in reply.body) == (200, True, False)
    assert [each.body["model"] for each in upstream.asked] == ["first", "second"]


async def test_a_stream_that_fails_amid_its_answer_is_not_begun_again(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """BerriAI/litellm 27967, PR 32835: no text comes twice, and the true error is told."""
    broken = streaming(chunk(content="Hel"), {"error": {"message": "the true reason"}}, done=False)
    upstream.script = _by_model(upstream, first=broken, second=good())
    async with whole(tmp_path, cached(upstream, valkey_url, backends=second(upstream))) as here:
        reply = await here.ask(CHAT, chat(stream=True))

    assert [each.body["model"] for each in upstream.asked] == ["first"]
    assert (reply.body.count(b"Hel"), b"the true reason" in reply.body) == (1, True)


async def test_a_dead_backend_does_not_hold_up_calls_to_a_live_one(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """vllm-project/production-stack 749, 612: forty calls at once, half of which meet the dead one first."""
    nowhere = ', {type: openai_compatible, base_url: "http://127.0.0.1:9", model: dead}'
    upstream.script = answering(_whole("Hello"))
    async with whole(tmp_path, cached(upstream, valkey_url, backends=nowhere)) as here:
        async with asyncio.timeout(60):
            replies = await asyncio.gather(*(here.ask(CHAT, chat(seed=seed)) for seed in range(40)))

    assert {reply.status for reply in replies} == {200}


async def test_no_key_and_no_callers_header_leaves_for_another_place(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    """BerriAI/litellm 15799, 5762, PR 25203; maximhq/bifrost 1.6.8."""
    upstream.script = answering({"error": {"message": "bad key sk-upstream"}}, status=400)
    headers = {"authorization": "Bearer sk-caller", "anthropic-beta": "b", "x-caller": "c", "cookie": "d=e"}
    async with whole(tmp_path, cached(upstream, valkey_url)) as here:
        reply = await here.ask(CHAT, chat(), headers=headers)

    sent = upstream.asked[0].headers
    assert sent["authorization"] == "Bearer sk-upstream"
    assert {"anthropic-beta", "x-caller", "cookie", "x-api-key"}.isdisjoint(sent)
    assert b"sk-upstream" not in reply.body
    assert b"sk-caller" not in reply.body


def _by_model(upstream: FakeUpstream, **scripts: Any) -> Any:
    async def script(writer: asyncio.StreamWriter) -> None:
        await scripts[upstream.asked[-1].body["model"]](writer)

    return script


def _call(index: int, *, arguments: str = "", **more: Any) -> dict[str, Any]:
    name = {"name": more.pop("name")} if "name" in more else {}
    kind = {"type": "function"} if "id" in more else {}
    return {"index": index, **more, **kind, "function": {**name, "arguments": arguments}}


def _whole(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def _events(reply: Reply) -> list[dict[str, Any]]:
    lines = [line for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]
