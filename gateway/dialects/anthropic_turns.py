"""Anthropic's turns of a conversation, told as OpenAI's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.dialects import fields as check
from orchestration.core.errors import InvalidRequest

Json = Mapping[str, Any]
REST = "anthropic"
"""The key of what only Anthropic's API knows."""
_THINKING = ("thinking", "redacted_thinking")


def with_rest(fields: dict[str, Any], rest: Json) -> dict[str, Any]:
    """Keep what has no place in OpenAI's shape beside what has one."""
    kept = {name: value for name, value in rest.items() if value is not None}
    if kept:
        fields[REST] = kept
    return fields


def read_system(name: str, system: Any) -> Json:
    """Return the system prompt, a text or text blocks, as a message."""
    if type(system) is str:
        return {"role": "system", "content": system}
    check.array(name, system)
    return {"role": "system", "content": _plain([_read_part(f"{name}[{i}]", item) for i, item in enumerate(system)])}


def read_turns(name: str, turns: Sequence[Any]) -> list[Json]:
    """Return the messages; raises `InvalidRequest` that names the place."""
    if not turns:
        raise check.wrong_value(name, "at least one message", 0)
    messages: list[Json] = []
    for index, turn in enumerate(turns):
        at = f"{name}[{index}]"
        check.json_object(at, turn)
        check.one_of("user", "assistant")(f"{at}.role", turn.get("role"))
        content = turn.get("content")
        if type(content) is str:
            messages.append({"role": turn["role"], "content": content})
            continue
        if type(content) is not list:
            raise check.wrong_type(f"{at}.content", "a string or an array of content blocks", content)
        blocks = [(f"{at}.content[{place}]", block) for place, block in enumerate(content)]
        messages += _read_user(blocks) if turn["role"] == "user" else [_read_assistant(blocks)]
    return messages


def _read_user(blocks: Sequence[tuple[str, Any]]) -> list[Json]:
    """Split a turn at its tool results: each is a message of its own in OpenAI's shape."""
    messages: list[Json] = []
    parts: list[Json] = []
    for at, block in blocks:
        kind = _kind_of(at, block)
        if kind in ("tool_use", *_THINKING):
            raise check.wrong_value(f"{at}.type", "a block that users may send", kind)
        if kind != "tool_result":
            parts.append(_read_part(at, block))
            continue
        if parts:
            messages.append({"role": "user", "content": _plain(parts)})
            parts = []
        messages.append(_read_result(at, block))
    if parts or not messages:
        messages.append({"role": "user", "content": _plain(parts)})
    return messages


def _read_result(at: str, block: Json) -> Json:
    check.filled_string(f"{at}.tool_use_id", block.get("tool_use_id"))
    content = block.get("content")
    if type(content) is list:
        content = _plain([_read_part(f"{at}.content[{place}]", part) for place, part in enumerate(content)])
    elif content is not None:
        check.string(f"{at}.content", content)
    rest = {key: value for key, value in block.items() if key not in ("type", "tool_use_id", "content")}
    return with_rest({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content or ""}, rest)


def _read_assistant(blocks: Sequence[tuple[str, Any]]) -> Json:
    parts: list[Json] = []
    calls: list[Json] = []
    thoughts: list[Json] = []
    for at, block in blocks:
        kind = _kind_of(at, block)
        if kind == "tool_use":
            calls.append(_read_call(at, block))
        elif kind == "tool_result":
            raise check.wrong_value(f"{at}.type", "a block that assistants may send", kind)
        elif kind in _THINKING:
            thoughts.append(block)
        else:
            parts.append(_read_part(at, block))
    message: dict[str, Any] = {"role": "assistant", "content": _plain(parts) if parts or not calls else None}
    reasoning = "".join(str(block.get("thinking") or "") for block in thoughts)
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return with_rest(message, {"thinking": thoughts or None})


def _read_call(at: str, block: Json) -> Json:
    check.filled_string(f"{at}.id", block.get("id"))
    check.filled_string(f"{at}.name", block.get("name"))
    check.json_object(f"{at}.input", block.get("input"))
    function = {"name": block["name"], "arguments": orjson.dumps(block["input"]).decode()}
    rest = {key: value for key, value in block.items() if key not in ("type", "id", "name", "input")}
    return with_rest({"id": block["id"], "type": "function", "function": function}, rest)


def _read_part(at: str, block: Any) -> Json:
    """Read a text or an image; a block of another kind is its backend's business."""
    match _kind_of(at, block):
        case "text":
            check.string(f"{at}.text", block.get("text"))
            rest = {key: value for key, value in block.items() if key not in ("type", "text")}
            return with_rest({"type": "text", "text": block["text"]}, rest)
        case "image":
            return _read_image(at, block)
        case _:
            return dict(block)


def _read_image(at: str, block: Json) -> Json:
    source = block.get("source")
    check.json_object(f"{at}.source", source)
    assert isinstance(source, dict), "just checked"
    match source.get("type"):
        case "base64":
            check.string(f"{at}.source.media_type", source.get("media_type"))
            check.string(f"{at}.source.data", source.get("data"))
            url = f"data:{source['media_type']};base64,{source['data']}"
        case "url":
            check.string(f"{at}.source.url", source.get("url"))
            url = source["url"]
        case kind:
            check.string(f"{at}.source.type", kind)
            return dict(block)
    rest = {key: value for key, value in block.items() if key not in ("type", "source")}
    return with_rest({"type": "image_url", "image_url": {"url": url}}, rest)


def _kind_of(at: str, block: Any) -> str:
    check.json_object(at, block)
    kind = block.get("type")
    if kind is None:
        raise InvalidRequest(f"Missing required parameter: '{at}.type'.", param=f"{at}.type")
    check.string(f"{at}.type", kind)
    return str(kind)


def _plain(parts: list[Json]) -> str | list[Json]:
    """Write a single text that has nothing beside it as a text: so most of OpenAI's clients send it."""
    if not parts:
        return ""
    only = parts[0]
    return str(only["text"]) if len(parts) == 1 and only["type"] == "text" and REST not in only else parts
