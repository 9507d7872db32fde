"""The schemas of `/v1/responses`; they say what `gateway/dialects` accepts."""

from __future__ import annotations

from gateway.openapi_schemas import Schema, integer, number, object_of, ref

_TEXT = {"type": "string"}
_FILLED = {"type": "string", "minLength": 1}
_NOTHING = {"type": "null"}
_FLAG = {"type": ["boolean", "null"]}


def responses_schemas() -> Schema:
    """Return the schemas by name."""
    response = {
        "id": _TEXT,
        "object": {"const": "response"},
        "created_at": {"type": "integer"},
        "status": {"enum": ["completed", "incomplete"]},
        "model": _TEXT,
        "output": {"type": "array", "items": object_of({"type": _TEXT}, ["type"])},
        "usage": {"type": ["object", "null"]},
    }
    return {
        "ResponsesRequest": object_of(_request(), ["model", "input"]),
        "InputItem": _item(),
        "InputPart": _part(),
        "Response": object_of(response, list(response)),
    }


def _request() -> Schema:
    items = {"type": "array", "minItems": 1, "items": ref("InputItem")}
    function = object_of({"type": {"const": "function"}, "name": _FILLED}, ["type", "name"])
    custom = object_of({"type": {"const": "custom"}, "name": _FILLED}, ["type", "name"])
    shell = object_of({"type": {"const": "local_shell"}}, ["type"])
    return {
        "model": {"type": "string", "minLength": 1, "maxLength": 256},
        "input": {"anyOf": [_TEXT, items]},
        "instructions": {"type": ["string", "null"]},
        "max_output_tokens": integer(1),
        "temperature": number(0, 2),
        "top_p": number(0, 1),
        "stream": _FLAG,
        "parallel_tool_calls": _FLAG,
        "user": {"type": ["string", "null"]},
        "tools": {"type": ["array", "null"], "items": {"anyOf": [function, _custom(), shell]}},
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required", None]}, function, custom, shell]},
        "text": {
            **object_of({"verbosity": {"type": ["string", "null"]}, "format": _format()}),
            "type": ["object", "null"],
        },
        "reasoning": {**object_of({"effort": {"type": ["string", "null"]}}), "type": ["object", "null"]},
        "metadata": {"type": ["object", "null"]},
        **_without_state(),
    }


def _custom() -> Schema:
    grammar = object_of(
        {"type": {"const": "grammar"}, "syntax": _TEXT, "definition": _TEXT}, ["type", "syntax", "definition"]
    )
    other = object_of({"type": {"type": "string", "not": {"const": "grammar"}}}, ["type"])
    named = {"type": {"const": "custom"}, "name": _FILLED, "description": {"type": ["string", "null"]}}
    return object_of({**named, "format": {"anyOf": [grammar, other, {"type": "null"}]}}, ["type", "name"])


def _without_state() -> Schema:
    """Take what asks for no stored answers, and nothing else."""
    return {
        "store": {"enum": [False, None]},
        "background": {"enum": [False, None]},
        "truncation": {"enum": ["disabled", None]},
        "include": {"enum": [["reasoning.encrypted_content"], [], None]},
        "top_logprobs": {"enum": [0, None]},
        "previous_response_id": _NOTHING,
        "conversation": _NOTHING,
        "prompt": _NOTHING,
    }


def _format() -> Schema:
    plain = object_of({"type": {"enum": ["text", "json_object"]}}, ["type"])
    schema = {"type": {"const": "json_schema"}, "name": _FILLED, "schema": {"type": "object"}}
    return {"anyOf": [plain, object_of(schema, list(schema)), _NOTHING]}


def _item() -> Schema:
    roles = {"enum": ["user", "assistant", "system", "developer"]}
    content = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": ref("InputPart")}]}
    output = {"anyOf": [_TEXT, {"type": "array", "items": ref("InputPart")}]}
    thoughts = {"type": ["array", "null"], "items": object_of({"text": _TEXT}, ["text"])}
    call = {"type": {"const": "function_call"}, "call_id": _FILLED, "name": _FILLED, "arguments": _TEXT}
    outputs = ["function_call_output", "custom_tool_call_output", "local_shell_call_output"]
    result = {"type": {"enum": outputs}, "call_id": _FILLED, "output": output}
    custom = {"type": {"const": "custom_tool_call"}, "call_id": _FILLED, "name": _FILLED, "input": _TEXT}
    shell = {"type": {"const": "local_shell_call"}, "call_id": _FILLED, "action": object_of({})}
    thought = {"type": {"const": "reasoning"}, "summary": thoughts, "content": thoughts}
    return {
        "anyOf": [
            object_of({"type": {"enum": ["message", None]}, "role": roles, "content": content}, ["role", "content"]),
            *(object_of(one, list(one)) for one in (call, custom, shell)),
            object_of(result, list(result)),
            object_of(thought, ["type"]),
        ]
    }


def _part() -> Schema:
    fields = {
        "text": {"enum": ["input_text", "output_text"]},
        "refusal": {"const": "refusal"},
        "image_url": {"const": "input_image"},
        "file_data": {"const": "input_file"},
    }
    return {"anyOf": [object_of({"type": kind, field: _TEXT}, ["type", field]) for field, kind in fields.items()]}
