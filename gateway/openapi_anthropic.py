"""The schemas of the endpoints that Anthropic's clients ask; they say what `gateway/dialects` accepts."""

from __future__ import annotations

from gateway.openapi_schemas import Schema, integer, number, object_of, ref

_TEXT = {"type": "string"}
_FILLED = {"type": "string", "minLength": 1}


def anthropic_schemas() -> Schema:
    """Return the schemas by name."""
    count = {"type": ["integer", "null"], "minimum": 0}
    message = {
        "id": _TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": _TEXT,
        "content": {"type": "array", "items": object_of({"type": _TEXT}, ["type"])},
        "stop_reason": {"type": ["string", "null"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": object_of({"input_tokens": count, "output_tokens": count}, ["input_tokens", "output_tokens"]),
    }
    error = object_of({"type": _TEXT, "message": _TEXT}, ["type", "message"])
    fields = _request()
    return {
        "MessagesRequest": object_of(fields, ["model", "messages", "max_tokens"]),
        "CountRequest": object_of({**fields, "max_tokens": integer(0)}, ["model", "messages"]),
        "MessagePart": _one_block({"text": _text(), "image": _image()}),
        "UserBlock": _one_block(
            {"text": _text(), "image": _image(), "tool_result": _tool_result()},
            refused=["tool_use", "thinking", "redacted_thinking"],
        ),
        "AssistantBlock": _one_block(
            {"text": _text(), "image": _image(), "tool_use": _tool_use()}, refused=["tool_result"]
        ),
        "AnthropicMessage": object_of(message, list(message)),
        "TokenCount": object_of({"input_tokens": {"type": "integer", "minimum": 0}}, ["input_tokens"]),
        "AnthropicError": object_of(
            {"type": {"const": "error"}, "error": error, "request_id": _TEXT}, ["type", "error", "request_id"]
        ),
    }


def _request() -> Schema:
    parts = {"type": "array", "items": ref("MessagePart")}
    return {
        "model": {"type": "string", "minLength": 1, "maxLength": 256},
        "max_tokens": {**integer(0), "type": "integer"},
        "messages": {"type": "array", "minItems": 1, "items": {"anyOf": [_turn("user"), _turn("assistant")]}},
        "system": {"anyOf": [_TEXT, parts, {"type": "null"}]},
        "stop_sequences": {"type": ["array", "null"], "maxItems": 16, "items": _FILLED},
        "temperature": number(0, 1),
        "top_p": number(0, 1),
        "top_k": integer(0),
        "stream": {"type": ["boolean", "null"]},
        "metadata": {**object_of({"user_id": {"type": ["string", "null"]}}), "type": ["object", "null"]},
        "tools": {"type": ["array", "null"], "items": _tool()},
        "tool_choice": {"anyOf": [_tool_choice(), {"type": "null"}]},
        "output_config": {**object_of({"format": _format()}), "type": ["object", "null"]},
        "thinking": {**object_of({"type": _TEXT}, ["type"]), "type": ["object", "null"]},
    }


def _turn(role: str) -> Schema:
    blocks = {"type": "array", "items": ref("UserBlock" if role == "user" else "AssistantBlock")}
    return object_of({"role": {"const": role}, "content": {"anyOf": [_TEXT, blocks]}}, ["role", "content"])


def _one_block(kinds: Schema, *, refused: list[str] | None = None) -> Schema:
    """Take the kinds that something here looks into, and every other one but the refused."""
    other = {"type": "string", "not": {"enum": [*kinds, *(refused or [])]}}
    return {"anyOf": [*kinds.values(), object_of({"type": other}, ["type"])]}


def _text() -> Schema:
    return object_of({"type": {"const": "text"}, "text": _TEXT}, ["type", "text"])


def _image() -> Schema:
    inline = object_of(
        {"type": {"const": "base64"}, "media_type": _TEXT, "data": _TEXT}, ["type", "media_type", "data"]
    )
    linked = object_of({"type": {"const": "url"}, "url": _TEXT}, ["type", "url"])
    other = object_of({"type": {"type": "string", "not": {"enum": ["base64", "url"]}}}, ["type"])
    source = {"anyOf": [inline, linked, other]}
    return object_of({"type": {"const": "image"}, "source": source}, ["type", "source"])


def _tool_result() -> Schema:
    content = {"anyOf": [_TEXT, {"type": "array", "items": ref("MessagePart")}, {"type": "null"}]}
    fields = {"type": {"const": "tool_result"}, "tool_use_id": _FILLED, "content": content}
    return object_of(fields, ["type", "tool_use_id"])


def _tool_use() -> Schema:
    fields = {"type": {"const": "tool_use"}, "id": _FILLED, "name": _FILLED, "input": {"type": "object"}}
    return object_of(fields, list(fields))


def _tool() -> Schema:
    own = {"type": {"enum": ["custom", None]}, "name": _FILLED, "input_schema": {"type": "object"}}
    theirs = {"type": {"type": "string", "not": {"const": "custom"}}}
    return {"anyOf": [object_of(own, ["name", "input_schema"]), object_of(theirs, ["type"])]}


def _tool_choice() -> Schema:
    plain = object_of({"type": {"enum": ["auto", "any", "none"]}}, ["type"])
    return {"anyOf": [plain, object_of({"type": {"const": "tool"}, "name": _FILLED}, ["type", "name"])]}


def _format() -> Schema:
    wanted = object_of({"type": {"const": "json_schema"}, "schema": {"type": "object"}}, ["type", "schema"])
    return {"anyOf": [wanted, {"type": "null"}]}
