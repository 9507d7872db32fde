"""Questions about the tokens of models that are elsewhere: asked, limited, checked and logged as calls are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from tests.backends.remote.fake_upstream import FakeUpstream, answering
from tests.gateway.serving import Reply
from tests.gateway.test_anthropic_messages import HI
from tests.gateway.whole import Whole, whole

COUNT = "/v1/messages/count_tokens"
SECRET = "ghp_" + "a" * 36
IDS: dict[str, Any] = {"count": 3, "max_model_len": 4096, "tokens": [5, 6, 7]}


def settings_of(upstream: FakeUpstream, valkey_url: str, more: str = "") -> str:
    def backend(rest: str) -> str:
        return f"backends: [{{{rest}, base_url: '{upstream.url}', model: there, api_key: sk-upstream}}]"

    models = "".join(
        f"  - {{id: {name}, retries: 1, price: {{input_per_1m: 1000}}, {backend(rest)}}}\n"
        for name, rest in {
            "claude": "type: anthropic",
            "plain": "type: openai_compatible",
            **{name: f"type: openai_compatible, provider: {name}" for name in ("vllm", "sglang", "llama_cpp", "tgi")},
        }.items()
    )
    return f"models:\n{models}cache: {{semantic: {{enabled: false}}}}\nredis: {{url: '{valkey_url}'}}\n{more}"


def client_of(gateway: Whole) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=gateway.url, api_key="some-key", max_retries=0)


async def record_of(gateway: Whole, reply: Reply) -> dict[str, Any]:
    record = await gateway.wired.parts.calls.get(reply.headers["x-lamina-call"].upper())
    assert record is not None
    return record


async def test_the_anthropic_client_counts_at_an_anthropic_server(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    upstream.script = answering({"input_tokens": 42})

    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway, client_of(gateway) as client:
        thinking: Any = {"type": "enabled", "budget_tokens": 2048}
        counted = await client.messages.count_tokens(
            model="claude", system="Be kind.", messages=HI, thinking=thinking, extra_headers={"anthropic-beta": "b-1"}
        )

    (asked,) = upstream.asked
    assert counted.input_tokens == 42
    assert asked.path == COUNT
    assert asked.body == {"model": "there", "system": "Be kind.", "messages": HI, "thinking": thinking}
    assert (asked.headers["x-api-key"], asked.headers["anthropic-beta"]) == ("sk-upstream", "b-1")


async def test_a_question_is_limited_costs_nothing_and_is_in_the_log(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    upstream.script = answering({"input_tokens": 42})
    limits = "limits: {default: {rpm: 2, tpm: 5, budget_usd: 0.000001}}"

    async with whole(tmp_path, settings_of(upstream, valkey_url, limits)) as gateway:
        replies = [await gateway.ask(COUNT, {"model": "claude", "messages": HI}) for _ in range(3)]
        records = [await record_of(gateway, reply) for reply in replies]

    assert [reply.status for reply in replies] == [200, 200, 429]
    assert [reply.headers["x-ratelimit-remaining-tokens"] for reply in replies] == ["5", "5", "5"]
    assert [(one["kind"], one["outcome"], one["status"]) for one in records] == [
        ("count", "answered", 200),
        ("count", "answered", 200),
        ("count", "error", 429),
    ]
    assert records[0]["backend"] == replies[0].headers["x-lamina-backend"]
    assert (records[0]["cost_usd"], records[0]["extra"]["num_tokens"]) == (0.0, 42)
    assert records[0]["cache"]["reason"] == "kind"
    assert len(upstream.asked) == 2


async def test_what_a_check_blocks_never_leaves(upstream: FakeUpstream, tmp_path: Path, valkey_url: str) -> None:
    checks = "validators: {input: [{check: secrets, on_fail: block, fail: closed}]}"
    asked: list[tuple[str, dict[str, Any]]] = [
        (COUNT, {"model": "claude", "messages": [{"role": "user", "content": SECRET}]}),
        (COUNT, {"model": "vllm", "system": SECRET, "messages": HI}),
        ("/tokenize", {"model": "vllm", "prompt": SECRET}),
        ("/tokenize", {"model": "llama_cpp", "messages": [{"role": "user", "content": SECRET}]}),
    ]

    async with whole(tmp_path, settings_of(upstream, valkey_url, checks)) as gateway:
        replies = [await gateway.ask(path, body) for path, body in asked]
        records = [await record_of(gateway, reply) for reply in replies]

    assert [reply.status for reply in replies] == [400] * 4
    assert [record["outcome"] for record in records] == ["blocked"] * 4
    assert SECRET not in str(records)
    assert upstream.asked == []


async def test_what_a_check_rewrites_is_counted_without_it(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    upstream.script = answering({"input_tokens": 7})
    checks = "validators: {input: [{check: secrets, on_fail: rewrite}]}"
    body = {"model": "claude", "messages": [{"role": "user", "content": f"key {SECRET}"}], "temperature": 0.5}

    async with whole(tmp_path, settings_of(upstream, valkey_url, checks)) as gateway:
        reply = await gateway.ask(COUNT, body)

    (asked,) = upstream.asked
    assert reply.json == {"input_tokens": 7}
    assert asked.body.keys() == {"model", "messages"}  # the API refuses what is no part of a prompt
    assert SECRET not in str(asked.body)


async def test_each_server_is_asked_for_a_texts_ids_in_its_way(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    plain = {"model": "there", "prompt": "Hi", "add_special_tokens": False}
    llama = {"model": "there", "content": "Hi", "add_special": False, "parse_special": True, "with_pieces": False}
    rows = [{"id": id, "text": "x", "start": 0, "stop": 1} for id in IDS["tokens"]]
    ways: dict[str, tuple[Any, Any]] = {
        "vllm": (IDS, plain),
        "sglang": ({**IDS, "max_model_len": 10**30}, plain),
        "llama_cpp": ({"tokens": IDS["tokens"]}, llama),
        "tgi": (rows, {"inputs": "Hi", "add_special_tokens": False}),
    }
    replies = {}

    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway:
        for model, (answer, _) in ways.items():
            upstream.script = answering(answer)
            replies[model] = await gateway.ask("/tokenize", {**plain, "model": model})

    assert [(asked.path, asked.body) for asked in upstream.asked] == [("/tokenize", sent) for _, sent in ways.values()]
    assert {model: reply.json["max_model_len"] for model, reply in replies.items()} == {
        **dict.fromkeys(ways),
        "vllm": 4096,
    }
    for reply in replies.values():
        assert (reply.json["count"], reply.json["tokens"]) == (3, IDS["tokens"])


async def test_texts_of_tokens_come_along_where_they_are_asked_for(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    upstream.script = answering({"tokens": [{"id": 5, "piece": "H"}, {"id": 6, "piece": [0xC3]}]})

    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway:
        reply = await gateway.ask("/tokenize", {"model": "llama_cpp", "prompt": "Hé", "return_token_strs": True})

    assert reply.json == {"count": 2, "max_model_len": None, "tokens": [5, 6], "token_strs": ["H", "\ufffd"]}


async def test_each_server_turns_ids_into_text(upstream: FakeUpstream, tmp_path: Path, valkey_url: str) -> None:
    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway:
        for model, field in {"vllm": "prompt", "sglang": "text", "llama_cpp": "content"}.items():
            upstream.script = answering({field: model})
            reply = await gateway.ask("/detokenize", {"model": model, "tokens": [5, 6]})
            assert reply.json == {"prompt": model}

    assert [(asked.path, asked.body["tokens"]) for asked in upstream.asked] == [("/detokenize", [5, 6])] * 3


async def test_a_chat_is_counted_by_vllms_template(upstream: FakeUpstream, tmp_path: Path, valkey_url: str) -> None:
    upstream.script = answering(IDS)
    tool: Any = {"name": "clock", "input_schema": {"type": "object"}}

    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway, client_of(gateway) as client:
        counted = await client.messages.count_tokens(model="vllm", system="Be kind.", messages=HI, tools=[tool])

    (asked,) = upstream.asked
    assert counted.input_tokens == 3
    assert asked.body["messages"] == [{"role": "system", "content": "Be kind."}, *HI]
    assert asked.body["tools"][0]["function"]["name"] == "clock"


async def test_a_chat_is_counted_by_llama_cpp_in_two_steps(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    async def script(writer: asyncio.StreamWriter) -> None:
        is_template = upstream.asked[-1].path == "/apply-template"
        await answering({"prompt": "<user>Hi"} if is_template else {"tokens": [1, 2, 3, 4]})(writer)

    upstream.script = script

    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway:
        reply = await gateway.ask(COUNT, {"model": "llama_cpp", "messages": HI})

    assert reply.json == {"input_tokens": 4}
    assert [asked.path for asked in upstream.asked] == ["/apply-template", "/tokenize"]
    assert upstream.asked[1].body["content"] == "<user>Hi"
    assert upstream.num_connections == 1


async def test_where_nobody_can_tell_the_answer_says_who_can(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    counting = "'claude', 'llama_cpp', 'tgi', 'vllm'"
    cases: list[tuple[str, dict[str, Any], str]] = [
        (COUNT, {"model": "plain", "messages": HI}, counting),
        (COUNT, {"model": "sglang", "messages": HI}, counting),
        ("/tokenize", {"model": "claude", "prompt": "Hi"}, "'llama_cpp', 'sglang', 'tgi', 'vllm'"),
        ("/detokenize", {"model": "tgi", "tokens": [1]}, "'llama_cpp', 'sglang', 'vllm'"),
    ]

    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway:
        replies = [await gateway.ask(path, body) for path, body, _ in cases]

    assert [reply.status for reply in replies] == [400] * 4
    for reply, (_, _, can) in zip(replies, cases, strict=True):
        assert reply.json["error"]["message"].endswith(f"you may ask {can}.")
    assert upstream.asked == []


async def test_a_server_that_tokenizes_texts_alone_gets_no_chat(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway:
        reply = await gateway.ask("/tokenize", {"model": "sglang", "messages": HI})

    assert (reply.status, reply.error["param"], upstream.asked) == (400, "messages", [])


async def test_what_the_server_says_instead_is_told_in_the_clients_shape(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    too_long = {"type": "error", "error": {"message": "too long", "type": "invalid_request_error"}}
    said = [
        (answering(too_long, status=400), 400),
        (answering({"error": {"message": "wrong key"}}, status=401), 502),
        (answering({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, status=529), 529),
        (answering({"error": {"message": "inside"}}), 502),
        (answering({"nothing": 1}), 502),
        (answering([1]), 502),
        (answering(b"not json"), 502),
        (answering({"input_tokens": 1}, content_type="text/event-stream"), 502),
    ]
    heard = []
    settings = settings_of(upstream, valkey_url).replace("retries: 1", "retries: 0")

    async with whole(tmp_path, settings) as gateway, client_of(gateway) as client:
        for upstream.script, _ in said:
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.count_tokens(model="claude", messages=HI)
            heard.append(caught.value.status_code)
        in_flight = gateway.in_flight()

    assert (heard, in_flight) == ([status for _, status in said], 0)


async def test_a_passing_fault_is_tried_again_as_a_calls_is(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    async def script(writer: asyncio.StreamWriter) -> None:
        is_first = len(upstream.asked) == 1
        await (answering({"error": "x"}, status=503) if is_first else answering({"input_tokens": 2}))(writer)

    upstream.script = script

    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway:
        reply = await gateway.ask(COUNT, {"model": "claude", "messages": HI})
        record = await record_of(gateway, reply)

    assert reply.json == {"input_tokens": 2}
    assert [attempt["error"] is None for attempt in record["attempts"]] == [False, True]


async def test_a_client_that_leaves_closes_the_question(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    async with whole(tmp_path, settings_of(upstream, valkey_url)) as gateway:
        asking = asyncio.create_task(gateway.ask(COUNT, {"model": "claude", "messages": HI}))
        await upstream.was_asked.wait()
        asking.cancel()
        async with asyncio.timeout(30):
            await upstream.was_left.wait()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_silent_server_is_waited_for_no_longer_than_is_set(
    upstream: FakeUpstream, tmp_path: Path, valkey_url: str
) -> None:
    settings = settings_of(upstream, valkey_url).replace("model: there", "model: there, timeout_s: {total: 0.1}")

    async with whole(tmp_path, settings) as gateway:
        reply = await gateway.ask("/tokenize", {"model": "vllm", "prompt": "x"})

    assert reply.status == 504
