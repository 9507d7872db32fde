"""Exchanges as coding agents make them, over a whole worker, unmodified, whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.backends.anthropic.test_backend import block, event
from tests.backends.remote.fake_upstream import FakeUpstream, answering, chunk, streaming
from tests.gateway.agent_exchanges import (
    CLAUDE_FIRST,
    CLAUDE_HEADERS,
    CLAUDE_SECOND,
    CODEX_FIRST,
    CODEX_SECOND,
    PATCH,
)
from tests.gateway.serving import Reply
from tests.gateway.whole import Whole, remote_settings, whole

MESSAGES = "/v1/messages?beta=true"
VERSIONED = {**CLAUDE_HEADERS, "anthropic-version": "2023-06-01", "authorization": "Bearer sk-agent"}
USAGE: Any = {"input_tokens": 12, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 4, "output_tokens": 1}
THOUGHT = {"type": "thinking", "thinking": "I list them.", "signature": "c2ln"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls -é"}}


def anthropic_whole() -> Any:
    content = [THOUGHT, {"type": "text", "text": "Look:"}, CALL]
    usage = {**USAGE, "output_tokens": 9}
    return answering({"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage})


def anthropic_stream() -> Any:
    arguments = json.dumps(CALL["input"], ensure_ascii=False)
    thought = [{"type": "thinking_delta", "thinking": "I list them."}, {"type": "signature_delta", "signature": "c2ln"}]
    pieces = [{"type": "input_json_delta", "partial_json": part} for part in ("", arguments[:7], arguments[7:])]
    return streaming(
        event("message_start", message={"usage": USAGE}),
        event("ping"),
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thought),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Look:"}),
        *block(2, {**CALL, "input": {}}, *pieces),
        event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 9}),
        event("message_stop"),
        done=False,
    )


def openai_calls(*calls: tuple[str, str, Any], text: str = "Look:") -> tuple[Any, Any]:
    """Return the scripts, whole and streamed, of an answer that calls tools."""
    told: list[dict[str, Any]] = [
        {"index": place, "id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for place, (id, name, arguments) in enumerate(calls)
    ]
    usage = {"prompt_tokens": 46, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 30}}
    said = {"role": "assistant", "content": text, "reasoning_content": "I list them.", "tool_calls": told}
    chunks = [chunk(role="assistant"), chunk(reasoning_content="I list them."), chunk(content=text)]
    for call in told:
        arguments = call["function"]["arguments"]
        chunks.append(chunk(tool_calls=[{**call, "function": {**call["function"], "arguments": arguments[:9]}}]))
        chunks.append(chunk(tool_calls=[{"index": call["index"], "function": {"arguments": arguments[9:]}}]))
    whole = answering({"choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}], "usage": usage})
    return whole, streaming(*chunks, chunk(finish="tool_calls"), {"choices": [], "usage": usage})


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("turn", [CLAUDE_FIRST, CLAUDE_SECOND], ids=["first", "second"])
async def test_claude_codes_turns_reach_an_anthropic_upstream_as_they_came(
    turn: dict[str, Any], is_streamed: bool, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    upstream.script = anthropic_stream() if is_streamed else anthropic_whole()
    settings = remote_settings(upstream, valkey_url, type="anthropic", more="validators: {input: []}")
    async with whole(tmp_path, settings) as here:
        reply = await here.ask(MESSAGES, {**turn, "stream": is_streamed}, headers=VERSIONED)
        message = await _message(here, turn, is_streamed)

    asked = upstream.asked[0]
    assert asked.path == "/v1/messages"
    assert asked.body == {**turn, "stream": is_streamed, "model": "there"}
    assert list(asked.body) == list({**turn, "stream": is_streamed})
    assert asked.headers["anthropic-beta"] == CLAUDE_HEADERS["anthropic-beta"]
    assert asked.headers["x-api-key"] == "sk-upstream"
    assert "sk-agent" not in str(asked.headers)
    assert reply.status == 200
    assert [part.type for part in message.content] == ["thinking", "text", "tool_use"]
    assert (message.content[0].signature, message.content[2].input) == ("c2ln", CALL["input"])
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (12, 30, 9)
    assert message.stop_reason == "tool_use"
    if is_streamed:
        _check_blocks(reply)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("turn", [CLAUDE_FIRST, CLAUDE_SECOND], ids=["first", "second"])
async def test_claude_codes_turns_are_told_to_an_openai_upstream(
    turn: dict[str, Any], is_streamed: bool, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    upstream.script = openai_calls(("toolu_1", "Bash", CALL["input"]))[is_streamed]
    async with whole(tmp_path, remote_settings(upstream, valkey_url)) as here:
        reply = await here.ask(MESSAGES, {**turn, "stream": is_streamed}, headers=VERSIONED)
        message = await _message(here, turn, is_streamed)

    body = upstream.asked[0].body
    assert "cache_control" not in json.dumps(body)
    assert "context_management" not in body
    assert body["messages"][0]["role"] == "system"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["Bash", "Read"]
    if turn is CLAUDE_SECOND:
        assert [each["role"] for each in body["messages"]] == ["system", "user", "assistant", "tool"]
        assert body["messages"][3]["tool_call_id"] == "toolu_1"
    assert [part.type for part in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].input == CALL["input"]
    assert (message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)) == 46
    if is_streamed:
        _check_blocks(reply)


async def _message(here: Whole, turn: dict[str, Any], is_streamed: bool) -> Any:
    """Ask by the unmodified client."""
    async with AsyncAnthropic(base_url=here.url, api_key="sk-agent", max_retries=0, timeout=60) as client:
        fields: Any = {**turn, "extra_headers": CLAUDE_HEADERS}
        fields["extra_body"] = {name: fields.pop(name) for name in ("context_management", "temperature")}
        if not is_streamed:
            return await client.messages.create(**fields)
        async with client.messages.stream(**fields) as stream:
            return await stream.get_final_message()


def _check_blocks(reply: Reply) -> None:
    """Blocks are opened and closed one after another, and every event has its name."""
    frames = [frame.split(b"\n") for frame in reply.body.split(b"\n\n")[:-1]]
    events = [orjson.loads(lines[1].removeprefix(b"data: ")) for lines in frames]
    assert [lines[0].decode() for lines in frames] == [f"event: {each['type']}" for each in events]
    steps = [
        (each["type"], each["index"])
        for each in events
        if each["type"] in ("content_block_start", "content_block_stop")
    ]
    assert steps == [
        step for place in range(3) for step in (("content_block_start", place), ("content_block_stop", place))
    ]
    kinds = {each["delta"]["type"] for each in events if each["type"] == "content_block_delta"}
    assert {"thinking_delta", "text_delta", "input_json_delta"} <= kinds
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")


async def test_claude_codes_probes_are_answered(upstream: FakeUpstream, valkey_url: str, tmp_path: Path) -> None:
    async with whole(tmp_path, remote_settings(upstream, valkey_url)) as here:
        models = await here.ask("/v1/models?limit=1000", method="GET", headers=VERSIONED)
        counted = {name: CLAUDE_FIRST[name] for name in ("model", "messages", "system", "tools", "thinking")}
        count = await here.ask("/v1/messages/count_tokens?beta=true", counted, headers=VERSIONED)
        event_log = await here.ask("/api/event_logging/batch", {"events": []}, headers=VERSIONED)

    assert [model["id"] for model in models.json["data"]] == ["tiny", "spare"]
    assert count.status in (200, 400)
    assert count.status == 200 or count.json["error"]["type"] == "invalid_request_error"
    assert event_log.status == 404


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("turn", [CODEX_FIRST, CODEX_SECOND], ids=["first", "second"])
async def test_codexs_turns_are_told_to_an_openai_upstream_and_its_tools_come_back(
    turn: dict[str, Any], is_streamed: bool, upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    calls = [
        ("call_3", "apply_patch", {"input": PATCH}),
        ("call_4", "local_shell", {"command": ["ls", "-l"], "timeout_ms": 500}),
        ("call_5", "update_plan", {"plan": ["rename"]}),
    ]
    upstream.script = openai_calls(*calls)[is_streamed]
    async with (
        whole(tmp_path, remote_settings(upstream, valkey_url)) as here,
        AsyncOpenAI(base_url=f"{here.url}/v1", api_key="sk-agent", max_retries=0, timeout=60) as client,
    ):
        response, kinds = await _response(client, turn, is_streamed)

    body = upstream.asked[0].body
    assert [tool["function"]["name"] for tool in body["tools"]] == ["update_plan", "apply_patch", "local_shell"]
    assert "lark" in body["tools"][1]["function"]["description"]
    assert body["tools"][1]["function"]["parameters"]["required"] == ["input"]
    assert "encrypted" not in json.dumps(body)
    assert {"store", "include", "text"}.isdisjoint(body)
    if turn is CODEX_SECOND:
        told = body["messages"][3:]
        assert [each["role"] for each in told] == ["assistant", "tool", "assistant", "tool"]
        shell, patch = (each["tool_calls"][0]["function"] for each in told[::2])
        assert json.loads(shell["arguments"]) == {"command": ["ls"], "timeout_ms": 1000}
        assert json.loads(patch["arguments"]) == {"input": "*** Begin Patch"}
    reasoning, said, patched, shelled, planned = response.output
    assert (reasoning.type, said.content[0].text) == ("reasoning", "Look:")
    assert (patched.type, patched.call_id, patched.name, patched.input) == (
        "custom_tool_call",
        "call_3",
        "apply_patch",
        PATCH,
    )
    assert (shelled.type, shelled.action.command, shelled.action.timeout_ms) == ("local_shell_call", ["ls", "-l"], 500)
    assert (planned.type, json.loads(planned.arguments)) == ("function_call", {"plan": ["rename"]})
    assert (response.status, response.usage.input_tokens, response.store) == ("completed", 46, False)
    if is_streamed:
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert "response.custom_tool_call_input.done" in kinds
        assert kinds[-1] == "response.completed"


async def _response(client: AsyncOpenAI, turn: dict[str, Any], is_streamed: bool) -> tuple[Any, list[str]]:
    fields: Any = dict(turn)
    if not is_streamed:
        return await client.responses.create(**fields), []
    kinds, numbers = [], []
    events: Any = await client.responses.create(**fields, stream=True)
    async for each in events:
        kinds.append(each.type)
        numbers.append(each.sequence_number)
    assert numbers == list(range(len(numbers)))
    return each.response, kinds


async def test_arguments_that_are_no_json_come_back_as_they_are(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "apply_patch", "arguments": PATCH}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    upstream.script = answering({"choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}]})
    async with (
        whole(tmp_path, remote_settings(upstream, valkey_url)) as here,
        AsyncOpenAI(base_url=f"{here.url}/v1", api_key="sk-agent", max_retries=0, timeout=60) as client,
    ):
        response: Any = await client.responses.create(**CODEX_FIRST)

    assert response.output[0].input == PATCH
