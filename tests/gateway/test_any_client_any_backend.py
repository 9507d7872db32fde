"""Every client against every backend: what one of them says, all of them hear the same."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from backends.anthropic import build_anthropic
from backends.echo import EchoBackend
from backends.openai_compatible import build_openai_compatible
from orchestration.core import Backend
from tests.backends.anthropic.test_backend import block, end, event, message
from tests.backends.remote.fake_upstream import FakeUpstream, answering, streaming
from tests.gateway.serving import ask, parts_of, served

QUESTION = "What is the weather in Oslo?"
PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
CALLS = [("a1", "weather", {"city": "Oslo"}), ("a2", "clock", {})]


@dataclass(frozen=True)
class Heard:
    """What a client made of an answer."""

    text: str
    calls: list[tuple[str, str, Any]]
    reason: str
    prompt_tokens: int
    completion_tokens: int


USAGE: Any = {"stream_options": {"include_usage": True}}
Ask = Callable[[int, bool, bool], Any]


async def ask_openai(port: int, is_streamed: bool, has_tools: bool) -> Heard:
    names = ("weather", "clock") if has_tools else ()
    fields: Any = {
        "model": "tiny",
        "max_tokens": 50,
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": QUESTION}],
    }
    if names:
        functions = [{"name": name, "parameters": PARAMETERS, "strict": True} for name in names]
        fields["tools"] = [{"type": "function", "function": function} for function in functions]
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as client:
        if is_streamed:
            return await _join(await client.chat.completions.create(**fields, stream=True, **USAGE))
        answer: Any = await client.chat.completions.create(**fields)
    choice = answer.choices[0]
    calls = choice.message.tool_calls or []
    return Heard(
        choice.message.content or "",
        [(call.id, call.function.name, orjson.loads(call.function.arguments)) for call in calls],
        choice.finish_reason,
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )


async def _join(stream: Any) -> Heard:
    """Join the chunks: the SDK's own helper takes a call for complete as soon as another one's piece comes."""
    text, reason = "", ""
    calls: dict[int, list[str]] = {}
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for piece in choice.delta.tool_calls or []:
                call = calls.setdefault(piece.index, [piece.id, piece.function.name, ""])
                call[2] += piece.function.arguments or ""
    told = [(id, name, orjson.loads(arguments)) for id, name, arguments in calls.values()]
    return Heard(text, told, reason, chunk.usage.prompt_tokens, chunk.usage.completion_tokens)


async def ask_responses(port: int, is_streamed: bool, has_tools: bool) -> Heard:
    names = ("weather", "clock") if has_tools else ()
    fields: Any = {"model": "tiny", "max_output_tokens": 50, "instructions": "Be kind.", "input": QUESTION}
    if names:
        fields["tools"] = [
            {"type": "function", "name": name, "parameters": PARAMETERS, "strict": True} for name in names
        ]
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as client:
        if is_streamed:
            async with client.responses.stream(**fields) as stream:
                answer: Any = await stream.get_final_response()
        else:
            answer = await client.responses.create(**fields)
    assert answer.status == "completed"
    calls = [item for item in answer.output if item.type == "function_call"]
    return Heard(
        answer.output_text,
        [(call.call_id, call.name, orjson.loads(call.arguments)) for call in calls],
        "tool_calls" if calls else "stop",
        answer.usage.input_tokens,
        answer.usage.output_tokens,
    )


async def ask_anthropic(port: int, is_streamed: bool, has_tools: bool) -> Heard:
    names = ("weather", "clock") if has_tools else ()
    fields: Any = {
        "model": "tiny",
        "max_tokens": 50,
        "system": "Be kind.",
        "messages": [{"role": "user", "content": QUESTION}],
    }
    if names:
        fields["tools"] = [{"name": name, "input_schema": PARAMETERS} for name in names]
    async with AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0) as client:
        if is_streamed:
            async with client.messages.stream(**fields) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await client.messages.create(**fields)
    reasons = {"end_turn": "stop", "tool_use": "tool_calls"}
    return Heard(
        "".join(each.text for each in answer.content if each.type == "text"),
        [(each.id, each.name, each.input) for each in answer.content if each.type == "tool_use"],
        reasons[answer.stop_reason],
        answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0),
        answer.usage.output_tokens,
    )


def anthropic_script(is_streamed: bool, has_tools: bool) -> Any:
    usage = {"input_tokens": 6, "cache_read_input_tokens": 3, "output_tokens": 1}
    uses = CALLS if has_tools else []
    reason = "tool_use" if has_tools else "end_turn"
    if not is_streamed:
        blocks = [{"type": "tool_use", "id": id, "name": name, "input": args} for id, name, args in uses]
        said = message({"type": "text", "text": "Let me see."}, *blocks, reason=reason)
        return answering({**said, "usage": {**usage, "output_tokens": 7}})
    text = {"type": "text", "text": ""}
    frames = block(0, text, *({"type": "text_delta", "text": piece} for piece in ("Let me", " see.")))
    for index, (id, name, args) in enumerate(uses, start=1):
        json = orjson.dumps(args).decode() if args else ""
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", json[:5], json[5:])]
        frames += block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, *pieces)
    begin = event("message_start", message={"usage": usage})
    return streaming(begin, event("ping"), *frames, *end(reason), done=False)


def openai_script(is_streamed: bool, has_tools: bool) -> Any:
    usage = {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
    uses = CALLS if has_tools else []
    reason = "tool_calls" if has_tools else "stop"
    calls: list[dict[str, Any]] = [
        {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": orjson.dumps(args).decode()}}  # noqa: E501 - one call
        for index, (id, name, args) in enumerate(uses)
    ]  # fmt: skip
    if not is_streamed:
        said = {"role": "assistant", "content": "Let me see.", **({"tool_calls": calls} if calls else {})}
        return answering({"choices": [{"index": 0, "message": said, "finish_reason": reason}], "usage": usage})
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "Let me"}, {"content": " see."}]
    # Interleaved, as some servers write parallel calls.
    deltas += [{"tool_calls": [{**call, "function": {**call["function"], "arguments": ""}}]} for call in calls]
    for cut in (slice(0, 1), slice(1, None)):
        for call in calls:
            function = {"arguments": call["function"]["arguments"][cut]}
            deltas.append({"tool_calls": [{"index": call["index"], "function": function}]})
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return streaming(*chunks, last, {"choices": [], "usage": usage})


@contextlib.asynccontextmanager
async def remote(build: Callable[..., Backend], script: Any) -> AsyncIterator[tuple[Backend, FakeUpstream]]:
    upstream = FakeUpstream()
    await upstream.start()
    upstream.script = script
    backend = build(base_url=upstream.url, upstream_model="there")
    try:
        yield backend, upstream
    finally:
        await backend.aclose()
        await upstream.stop()


@pytest.mark.parametrize("has_tools", [False, True], ids=["text", "tools"])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("build", "script"),
    [(build_openai_compatible, openai_script), (build_anthropic, anthropic_script)],
    ids=["openai_compatible", "anthropic"],
)
@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic, ask_responses])
async def test_every_client_hears_the_same_from_every_remote_backend(
    ask: Ask, build: Any, script: Any, is_streamed: bool, has_tools: bool
) -> None:
    async with (
        remote(build, script(is_streamed, has_tools)) as (backend, upstream),
        served(parts_of(backend)) as port,
    ):
        heard = await ask(port, is_streamed, has_tools)

    reason = "tool_calls" if has_tools else "stop"
    assert heard == Heard("Let me see.", CALLS if has_tools else [], reason, 9, 7)
    body = upstream.asked[0].body
    assert body["model"] == "there"
    assert "anthropic" not in body
    assert len(body.get("tools", [])) == (2 if has_tools else 0)
    assert QUESTION in str(body["messages"][-1])


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic, ask_responses])
async def test_every_client_hears_the_echo(ask: Ask, is_streamed: bool) -> None:
    async with served(parts_of(EchoBackend())) as port:
        heard = await ask(port, is_streamed, False)

    assert heard == Heard(QUESTION, [], "stop", 8, 6)


async def test_an_openai_upstream_sees_nothing_that_only_anthropic_knows() -> None:
    async with (
        remote(build_openai_compatible, openai_script(False, False)) as (backend, upstream),
        served(parts_of(backend)) as port,
        AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0) as client,
    ):
        await client.messages.create(
            model="tiny",
            max_tokens=5,
            thinking={"type": "enabled", "budget_tokens": 1024},
            system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
            tools=[{"name": "f", "input_schema": PARAMETERS, "cache_control": {"type": "ephemeral"}}],
            messages=[
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": "s"},
                        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": True}]},
            ],
            extra_headers={"anthropic-beta": "b"},
        )

    asked = upstream.asked[0]
    assert asked.body == {
        "model": "there",
        "max_tokens": 5,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Hm",
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": ""},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}],
    }
    assert not [name for name in asked.headers if name.startswith("anthropic")]


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"}},
         "thinking, output_config"),
        ({"thinking": {"type": "disabled"}, "context_management": {}, "mcp_servers": [], "container": None}, None),
        ({"speed": "fast"}, "speed"),
    ],
)  # fmt: skip
async def test_an_anthropic_client_hears_what_another_backend_was_not_told(
    fields: dict[str, Any], dropped: str | None
) -> None:
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], **fields}
    async with (
        remote(build_openai_compatible, openai_script(False, False)) as (backend, _),
        served(parts_of(backend)) as port,
    ):
        reply = await ask(port, "/v1/messages", body, headers={"anthropic-beta": "b"})

    assert (reply.status, reply.headers.get("x-lamina-dropped")) == (200, dropped)


@pytest.mark.parametrize("name", ["mcp_servers", "container"])
async def test_work_that_only_anthropics_servers_do_is_refused_elsewhere(name: str) -> None:
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], name: [{"url": "x"}]}
    async with (
        remote(build_openai_compatible, openai_script(False, False)) as (backend, upstream),
        served(parts_of(backend)) as port,
    ):
        reply = await ask(port, "/v1/messages", body)

    assert (reply.status, upstream.asked) == (400, [])
    assert name in reply.json["error"]["message"]


@pytest.mark.parametrize("name", ["output_format", "output_config"])
async def test_an_answers_schema_reaches_another_backend(name: str) -> None:
    wanted = {"type": "json_schema", "schema": PARAMETERS}
    stated = wanted if name == "output_format" else {"format": wanted}
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], name: stated}
    async with (
        remote(build_openai_compatible, openai_script(False, False)) as (backend, upstream),
        served(parts_of(backend)) as port,
    ):
        assert (await ask(port, "/v1/messages", body)).status == 200

    assert upstream.asked[0].body["response_format"]["json_schema"]["schema"] == PARAMETERS


async def test_an_openai_client_hears_what_anthropic_was_not_told() -> None:
    said = {"seed": 1, "store": True, "verbosity": "low", "user": "u", "reasoning_effort": "minimal"}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **said}
    async with (
        remote(build_anthropic, anthropic_script(False, False)) as (backend, _),
        served(parts_of(backend)) as port,
    ):
        reply = await ask(port, "/v1/chat/completions", body)

    assert reply.headers["x-lamina-dropped"] == "seed, store, verbosity, reasoning_effort"


async def test_thoughts_signatures_and_citations_come_through_between_anthropics_own() -> None:
    citation = {"type": "char_location", "cited_text": "x", "document_index": 0}
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "x"}}
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "abc"},
        search,
        {"type": "text", "text": "One. "},
        {"type": "text", "text": "Two.", "citations": [citation]},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "text", "text": "Three."},
    ]
    script = answering(message(*content, reason="tool_use"))
    async with remote(build_anthropic, script) as (backend, _), served(parts_of(backend)) as port:
        client = AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0)
        async with client:
            whole = await client.messages.create(
                model="tiny", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
            )

    told = [each.to_dict() for each in whole.content]
    assert told == content
