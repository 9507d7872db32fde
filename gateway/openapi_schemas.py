"""The schemas of the OpenAPI document's hot endpoints.

They say what the checks of `gateway/dialects` accept; a test holds the two together.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_MAX_INTEGER = 2**63 - 1
_OTHER_KIND = {"type": "string", "not": {"const": "function"}}


def schemas() -> Schema:
    """Return the schemas by name."""
    return {
        **_request_schemas(),
        **_answer_schemas(),
        "StreamEvent": _object({"data": {"type": "string"}}, ["data"]),
        "Error": _object(
            {
                "error": _object(
                    {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "param": {"type": ["string", "null"]},
                        "code": {"type": ["string", "null"]},
                    },
                    ["message", "type", "param", "code"],
                )
            },
            ["error"],
        ),
        "Health": _object({"status": {"type": "string"}, "parts": {"type": "object"}}, ["status"]),
    }


def _request_schemas() -> Schema:
    filled = {"type": "string", "minLength": 1}
    token_ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
    inputs = {
        "anyOf": [
            filled,
            {"type": "array", "minItems": 1, "maxItems": 2048, "items": filled},
            token_ids,
            {"type": "array", "minItems": 1, "maxItems": 2048, "items": token_ids},
        ]
    }
    model = {"type": "string", "minLength": 1, "maxLength": 256}
    chat = {
        "model": model,
        "messages": {"type": "array", "minItems": 1, "items": ref("Message")},
        **_sampling(),
        "max_completion_tokens": _integer(1),
        "logprobs": {"type": ["boolean", "null"]},
        "top_logprobs": {**_integer(0, 20), "description": "Only with `logprobs`."},
        **_tools(),
    }
    completion = {
        "model": model,
        "prompt": inputs,
        **_sampling(),
        "logprobs": _integer(0, 20),
        "echo": {"type": ["boolean", "null"]},
        "best_of": _integer(1, 128),
        "suffix": {"type": ["string", "null"]},
    }
    embedding = {
        "model": model,
        "input": inputs,
        "encoding_format": {"enum": ["float", "base64", None]},
        "dimensions": _integer(1, 65536),
        "user": {"type": ["string", "null"]},
    }
    return {
        "ChatRequest": _object(
            chat,
            ["model", "messages"],
            allOf=[_only_with("stream_options", "stream"), _only_with("top_logprobs", "logprobs")],
        ),
        "CompletionRequest": _object(completion, ["model", "prompt"], allOf=[_only_with("stream_options", "stream")]),
        "EmbeddingRequest": _object(embedding, ["model", "input"]),
        "Message": _message(),
        "ContentPart": _content_part(),
    }


def _message() -> Schema:
    text = {"type": ["string", "null"]}
    parts = {"type": "array", "minItems": 1, "items": ref("ContentPart")}
    ways_without_content = ("tool_calls", "function_call", "audio", "refusal", "reasoning_content")
    says_content = {"required": ["content"], "properties": {"content": {"not": {"type": "null"}}}}
    says_otherwise = {
        "properties": {"role": {"const": "assistant"}},
        "anyOf": [{"required": [way], "properties": {way: {"not": {"type": "null"}}}} for way in ways_without_content],
    }
    return _object(
        {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {"anyOf": [{"type": "string"}, parts, {"type": "null"}]},
            "name": text,
            "refusal": text,
            "reasoning_content": text,
            "tool_call_id": text,
            "tool_calls": {"type": ["array", "null"], "items": _tool_call()},
        },
        ["role"],
        anyOf=[says_content, says_otherwise],
    )


def _content_part() -> Schema:
    text = {"type": "string"}
    known = ["text", "refusal", "image_url", "input_audio", "file"]
    image = _object({"url": text}, ["url"])
    return {
        "anyOf": [
            _object({"type": {"const": "text"}, "text": text}, ["type", "text"]),
            _object({"type": {"const": "refusal"}, "refusal": text}, ["type", "refusal"]),
            _object({"type": {"const": "image_url"}, "image_url": image}, ["type", "image_url"]),
            _object({"type": {"const": "input_audio"}, "input_audio": _object({})}, ["type", "input_audio"]),
            _object({"type": {"const": "file"}, "file": _object({})}, ["type", "file"]),
            _object({"type": {"type": "string", "not": {"enum": known}}}, ["type"]),
        ]
    }


def _tool_call() -> Schema:
    text = {"type": "string"}
    function = _object({"name": text, "arguments": text}, ["name", "arguments"])
    plain = _object({"id": text, "type": {"const": "function"}, "function": function}, ["id", "function"])
    return {"anyOf": [plain, _object({"id": text, "type": _OTHER_KIND}, ["id", "type"])]}


def _tools() -> Schema:
    function = _object({"name": {"type": "string", "minLength": 1}}, ["name"])
    plain = _object({"type": {"const": "function"}, "function": function}, ["type", "function"])
    tool = {"anyOf": [plain, _object({"type": _OTHER_KIND}, ["type"])]}
    words = {"enum": ["none", "auto", "required", None]}
    return {
        "tools": {"type": ["array", "null"], "items": tool},
        "tool_choice": {"anyOf": [words, {"type": "object"}]},
        "parallel_tool_calls": {"type": ["boolean", "null"]},
        "response_format": {**_object({"type": {"type": "string"}}, ["type"]), "type": ["object", "null"]},
    }


def _sampling() -> Schema:
    filled = {"type": "string", "minLength": 1}
    return {
        "n": _integer(1, 128),
        "max_tokens": _integer(1),
        "temperature": _number(0, 2),
        "top_p": _number(0, 1),
        "top_k": _integer(-1),
        "min_p": _number(0, 1),
        "presence_penalty": _number(-2, 2),
        "frequency_penalty": _number(-2, 2),
        "seed": _integer(-(2**63)),
        "stop": {"anyOf": [filled, {"type": "array", "maxItems": 16, "items": filled}, {"type": "null"}]},
        "stream": {"type": ["boolean", "null"]},
        "stream_options": {
            "type": ["object", "null"],
            "properties": {"include_usage": {"type": ["boolean", "null"]}},
            "description": "Only with `stream`.",
        },
        "logit_bias": {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        },
        "ignore_eos": {"type": ["boolean", "null"]},
        "user": {"type": ["string", "null"]},
    }


def _answer_schemas() -> Schema:
    text = {"type": "string"}
    count = {"type": "integer", "minimum": 0}
    usage = _object({"prompt_tokens": count, "total_tokens": count}, ["prompt_tokens", "total_tokens"])
    choice = _object({"index": count, "finish_reason": {"type": ["string", "null"]}}, ["index", "finish_reason"])
    answer = {
        "id": text,
        "object": text,
        "created": count,
        "model": text,
        "choices": {"type": "array", "items": choice},
        "usage": usage,
    }
    required = ["id", "object", "created", "model", "choices"]
    vector = {"anyOf": [{"type": "array", "items": {"type": "number"}}, text]}
    embedding = _object({"object": text, "index": count, "embedding": vector}, ["object", "index", "embedding"])
    model = {"id": text, "object": {"const": "model"}, "created": count, "owned_by": text}
    return {
        "ChatCompletion": _object(answer, required),
        "Completion": _object(answer, required),
        "EmbeddingList": _object(
            {"object": text, "data": {"type": "array", "items": embedding}, "model": text, "usage": usage},
            ["object", "data", "model"],
        ),
        "Model": _object(model, list(model)),
        "ModelList": _object({"object": text, "data": {"type": "array", "items": ref("Model")}}, ["object", "data"]),
    }


def _integer(minimum: int, maximum: int = _MAX_INTEGER) -> Schema:
    return {"type": ["integer", "null"], "minimum": minimum, "maximum": maximum}


def _number(minimum: float, maximum: float) -> Schema:
    return {"type": ["number", "null"], "minimum": minimum, "maximum": maximum}


def _object(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": required or [], **more}


def _only_with(field: str, switch: str) -> Schema:
    """Allow a field only where a switch is on."""
    on = {"properties": {switch: {"const": True}}, "required": [switch]}
    return {"anyOf": [on, {"properties": {field: {"type": "null"}}}]}


def ref(schema: str) -> Schema:
    """Return the reference to a schema by its name."""
    return {"$ref": f"#/components/schemas/{schema}"}
