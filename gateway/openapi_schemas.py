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
        "StreamEvent": object_of({"data": {"type": "string"}}, ["data"]),
        "Error": object_of(
            {
                "error": object_of(
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
        "Health": object_of({"status": {"type": "string"}, "parts": {"type": "object"}}, ["status"]),
    }


def _request_schemas() -> Schema:
    filled = {"type": "string", "minLength": 1}
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
    token_ids = {**ids, "minItems": 1}
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
        "max_completion_tokens": integer(1),
        "logprobs": {"type": ["boolean", "null"]},
        "top_logprobs": {**integer(0, 20), "description": "Only with `logprobs`."},
        **_tools(),
    }
    completion = {
        "model": model,
        "prompt": inputs,
        **_sampling(),
        "logprobs": integer(0, 20),
        "echo": {"type": ["boolean", "null"]},
        "best_of": integer(1, 128),
        "suffix": {"type": ["string", "null"]},
    }
    embedding = {
        "model": model,
        "input": inputs,
        "encoding_format": {"enum": ["float", "base64", None]},
        "dimensions": integer(1, 65536),
        "user": {"type": ["string", "null"]},
    }
    tokenize = {
        "model": model,
        "prompt": {"type": ["string", "null"]},
        "messages": {"type": ["array", "null"], "items": ref("Message")},
        "add_special_tokens": {"type": ["boolean", "null"]},
        "return_token_strs": {"type": ["boolean", "null"]},
    }
    return {
        "TokenizeRequest": object_of(tokenize, ["model"]),
        "DetokenizeRequest": object_of({"model": model, "tokens": ids}, ["model", "tokens"]),
        "ChatRequest": object_of(
            chat,
            ["model", "messages"],
            allOf=[_only_with("stream_options", "stream"), _only_with("top_logprobs", "logprobs")],
        ),
        "CompletionRequest": object_of(completion, ["model", "prompt"], allOf=[_only_with("stream_options", "stream")]),
        "EmbeddingRequest": object_of(embedding, ["model", "input"]),
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
    return object_of(
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
    image = object_of({"url": text}, ["url"])
    return {
        "anyOf": [
            object_of({"type": {"const": "text"}, "text": text}, ["type", "text"]),
            object_of({"type": {"const": "refusal"}, "refusal": text}, ["type", "refusal"]),
            object_of({"type": {"const": "image_url"}, "image_url": image}, ["type", "image_url"]),
            object_of({"type": {"const": "input_audio"}, "input_audio": object_of({})}, ["type", "input_audio"]),
            object_of({"type": {"const": "file"}, "file": object_of({})}, ["type", "file"]),
            object_of({"type": {"type": "string", "not": {"enum": known}}}, ["type"]),
        ]
    }


def _tool_call() -> Schema:
    text = {"type": "string"}
    function = object_of({"name": text, "arguments": text}, ["name", "arguments"])
    plain = object_of({"id": text, "type": {"const": "function"}, "function": function}, ["id", "function"])
    return {"anyOf": [plain, object_of({"id": text, "type": _OTHER_KIND}, ["id", "type"])]}


def _tools() -> Schema:
    function = object_of({"name": {"type": "string", "minLength": 1}}, ["name"])
    plain = object_of({"type": {"const": "function"}, "function": function}, ["type", "function"])
    tool = {"anyOf": [plain, object_of({"type": _OTHER_KIND}, ["type"])]}
    words = {"enum": ["none", "auto", "required", None]}
    return {
        "tools": {"type": ["array", "null"], "items": tool},
        "tool_choice": {"anyOf": [words, {"type": "object"}]},
        "parallel_tool_calls": {"type": ["boolean", "null"]},
        "response_format": {**object_of({"type": {"type": "string"}}, ["type"]), "type": ["object", "null"]},
    }


def _sampling() -> Schema:
    filled = {"type": "string", "minLength": 1}
    return {
        "n": integer(1, 128),
        "max_tokens": integer(1),
        "temperature": number(0, 2),
        "top_p": number(0, 1),
        "top_k": integer(-1),
        "min_p": number(0, 1),
        "presence_penalty": number(-2, 2),
        "frequency_penalty": number(-2, 2),
        "seed": integer(-(2**63)),
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
        "priority": integer(-(2**63)),
        "user": {"type": ["string", "null"]},
    }


def _answer_schemas() -> Schema:
    text = {"type": "string"}
    count = {"type": "integer", "minimum": 0}
    usage = object_of({"prompt_tokens": count, "total_tokens": count}, ["prompt_tokens", "total_tokens"])
    choice = object_of({"index": count, "finish_reason": {"type": ["string", "null"]}}, ["index", "finish_reason"])
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
    embedding = object_of({"object": text, "index": count, "embedding": vector}, ["object", "index", "embedding"])
    model = {"id": text, "object": {"const": "model"}, "created": count, "owned_by": text}
    return {
        "ChatCompletion": object_of(answer, required),
        "Completion": object_of(answer, required),
        "EmbeddingList": object_of(
            {"object": text, "data": {"type": "array", "items": embedding}, "model": text, "usage": usage},
            ["object", "data", "model"],
        ),
        "Tokens": object_of(
            {
                "count": count,
                "max_model_len": {"type": ["integer", "null"]},
                "tokens": {"type": "array", "items": count},
                "token_strs": {"type": "array", "items": text},
            },
            ["count", "max_model_len", "tokens"],
        ),
        "Detokenized": object_of({"prompt": text}, ["prompt"]),
        "Model": object_of(model, list(model)),
        "ModelList": object_of({"object": text, "data": {"type": "array", "items": ref("Model")}}, ["object", "data"]),
    }


def integer(minimum: int, maximum: int = _MAX_INTEGER) -> Schema:
    """Take whole numbers within bounds, and null."""
    return {"type": ["integer", "null"], "minimum": minimum, "maximum": maximum}


def number(minimum: float, maximum: float) -> Schema:
    """Take numbers within bounds, and null."""
    return {"type": ["number", "null"], "minimum": minimum, "maximum": maximum}


def object_of(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """Take objects; fields that are not named may be there, too."""
    return {"type": "object", "properties": properties, "required": required or [], **more}


def _only_with(field: str, switch: str) -> Schema:
    """Allow a field only where a switch is on."""
    on = {"properties": {switch: {"const": True}}, "required": [switch]}
    return {"anyOf": [on, {"properties": {field: {"type": "null"}}}]}


def ref(schema: str) -> Schema:
    """Return the reference to a schema by its name."""
    return {"$ref": f"#/components/schemas/{schema}"}
