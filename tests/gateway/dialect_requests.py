"""Requests in other dialects, and what they say in OpenAI's shape: data of the dialects' tests."""

from __future__ import annotations

from typing import Any

ANTHROPIC_TOOL: Any = {
    "name": "weather",
    "description": "Tell the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ANTHROPIC_REQUEST: dict[str, Any] = dict(
    model="tiny",
    max_tokens=5,
    system="Be kind.",
    metadata={"user_id": "u1"},
    stop_sequences=["END"],
    tools=[ANTHROPIC_TOOL],
    tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    thinking={"type": "enabled", "budget_tokens": 1024},
    messages=[
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "sig"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "rain", "is_error": True},
                {"type": "text", "text": "And this?", "cache_control": {"type": "ephemeral"}},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
                },
            ],
        },
    ],
    extra_body={"temperature": 0.5, "top_k": 3, "new_field": 1},
    extra_headers={"anthropic-beta": "a,b"},
)
ANTHROPIC_TOLD: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 5,
    "temperature": 0.5,
    "top_k": 3,
    "user": "u1",
    "stop": ["END"],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Tell the weather",
                "parameters": ANTHROPIC_TOOL["input_schema"],
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": False,
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                }
            ],
            "anthropic": {"thinking": [{"type": "thinking", "thinking": "Hm", "signature": "sig"}]},
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain", "anthropic": {"is_error": True}},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And this?", "anthropic": {"cache_control": {"type": "ephemeral"}}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
    ],
    "anthropic": {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "new_field": 1,
        "beta": "a,b",
    },
}

RESPONSES_TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
_FUNCTION = {name: value for name, value in RESPONSES_TOOL.items() if name != "type"}
_CALL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
RESPONSES_REQUEST: dict[str, Any] = dict(
    model="tiny",
    instructions="Be kind.",
    max_output_tokens=5,
    temperature=0.5,
    store=False,
    metadata={"a": "b"},
    parallel_tool_calls=False,
    tools=[RESPONSES_TOOL],
    tool_choice={"type": "function", "name": "weather"},
    reasoning={"effort": "low"},
    text={"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}},
    input=[
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {"type": "function_call_output", "call_id": "b", "output": "sun"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See"},
                {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
            ],
        },
    ],
    extra_body={"top_k": 3},
)
RESPONSES_TOLD: dict[str, Any] = {
    "model": "tiny",
    "temperature": 0.5,
    "top_k": 3,
    "parallel_tool_calls": False,
    "max_completion_tokens": 5,
    "reasoning_effort": "low",
    "tools": [{"type": "function", "function": _FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
    },
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm",
            "tool_calls": [{"id": "a", **_CALL}, {"id": "b", **_CALL}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "sun"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See"},
                {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
            ],
        },
    ],
}
