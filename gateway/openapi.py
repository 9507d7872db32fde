"""The hot endpoints in the OpenAPI document, written by hand: no framework looks at them.

The schemas say what the checks of `gateway/dialects` accept, field by field; what depends on two fields at once
stands in the descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

_MAX_INTEGER = 2**63 - 1


def hot_document() -> Mapping[str, Schema]:
    """Return `paths` and `schemas` of the hot endpoints."""
    return {"paths": _paths(), "schemas": _schemas()}


def _paths() -> Schema:
    events = {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        "/v1/chat/completions": _post("Answer a chat, whole or streamed", "ChatRequest", "ChatCompletion", events),
        "/v1/completions": _post("Go on with a text, whole or streamed", "CompletionRequest", "Completion", events),
        "/v1/embeddings": _post("Turn texts into vectors", "EmbeddingRequest", "EmbeddingList", {}),
        "/v1/models": _get("List the models", "ModelList"),
        "/v1/models/{model}": {
            "parameters": [_path_parameter("model")],
            **_get("Describe one model", "Model", {"404": _error("There is no such model.")}),
        },
        "/health/live": _get("Tell that this process lives", "Health", tag="health", is_open=True),
        "/health/ready": _get(
            "Tell whether calls are taken, and which part is wrong where not",
            "Health",
            {"503": _reply("A part does not answer, or calls in flight are ending.", "Health")},
            tag="health",
            is_open=True,
        ),
        "/metrics": {
            "get": {
                "tags": ["health"],
                "summary": "Give the numbers in Prometheus' text format",
                "responses": {
                    "200": {"description": "The numbers.", "content": {"text/plain": {"schema": {"type": "string"}}}},
                    "403": _error("The host or the origin is not answered."),
                },
            }
        },
    }


def _post(summary: str, request: str, answer: str, other_content: Schema) -> Schema:
    good = _reply("The answer.", answer)
    good["content"].update(other_content)
    errors = {
        "400": "The request is wrong; `param` names the field.",
        "401": "The key is missing or wrong.",
        "403": "The host or the origin is not answered.",
        "404": "There is no such model.",
        "408": "The body stopped coming.",
        "413": "The body is too large.",
        "429": "A limit is reached or a queue is full.",
        "500": "A fault of the gateway.",
        "502": "A backend answered wrongly.",
        "503": "A backend cannot be reached.",
        "504": "A backend took too long, or nothing was cached and only that was asked for.",
    }
    operation = {
        "tags": ["calls"],
        "summary": summary,
        "parameters": [
            _header("Cache-Control", "`no-cache`, `no-store`, `max-age=N`, `only-if-cached`.", {"type": "string"}),
            _header(
                "x-lamina-threshold",
                "A cosine floor for similar answers; it can only raise the bar.",
                {"type": "number", "minimum": -1, "maximum": 1},
            ),
            _header(
                "x-lamina-namespace",
                "Keeps this call's cache entries apart.",
                {"type": "string", "pattern": "^[!-~]{1,128}$"},
            ),
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(request)}}},
        "responses": {"200": good, **{status: _error(meaning) for status, meaning in errors.items()}},
    }
    return {"post": operation}


def _get(
    summary: str, answer: str, other: Schema | None = None, *, tag: str = "models", is_open: bool = False
) -> Schema:
    errors = {"403": _error("The host or the origin is not answered.")}
    if not is_open:
        errors["401"] = _error("The key is missing or wrong.")
    responses = {"200": _reply("The answer.", answer), **errors, **(other or {})}
    return {"get": {"tags": [tag], "summary": summary, "responses": responses}}


def _header(name: str, meaning: str, schema: Schema) -> Schema:
    return {"name": name, "in": "header", "required": False, "description": meaning, "schema": schema}


def _path_parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _reply(meaning: str, schema: str) -> Schema:
    return {"description": meaning, "content": {"application/json": {"schema": _ref(schema)}}}


def _error(meaning: str) -> Schema:
    return _reply(meaning, "Error")


def _ref(schema: str) -> Schema:
    return {"$ref": f"#/components/schemas/{schema}"}


def _integer(minimum: int, maximum: int = _MAX_INTEGER) -> Schema:
    return {"type": ["integer", "null"], "minimum": minimum, "maximum": maximum}


def _number(minimum: float, maximum: float) -> Schema:
    return {"type": ["number", "null"], "minimum": minimum, "maximum": maximum}


def _object(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": required or [], **more}


def _schemas() -> Schema:
    return {
        **_request_schemas(),
        **_answer_schemas(),
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
        "messages": {"type": "array", "minItems": 1, "items": _ref("Message")},
        **_sampling(),
        "max_completion_tokens": _integer(1),
        "logprobs": {"type": ["boolean", "null"]},
        "top_logprobs": {**_integer(0, 20), "description": "Only with `logprobs`."},
        "parallel_tool_calls": {"type": ["boolean", "null"]},
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
        "ChatRequest": _object(chat, ["model", "messages"]),
        "CompletionRequest": _object(completion, ["model", "prompt"]),
        "EmbeddingRequest": _object(embedding, ["model", "input"]),
        "Message": _message(),
    }


def _message() -> Schema:
    text_part = _object({"type": {"const": "text"}, "text": {"type": "string"}}, ["type", "text"])
    image = _object({"url": {"type": "string"}}, ["url"])
    image_part = _object({"type": {"const": "image_url"}, "image_url": image}, ["type", "image_url"])
    content = {
        "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"anyOf": [text_part, image_part]}}]
    }
    return _object(
        {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {**content, "description": "May be null where an assistant called tools."},
            "name": {"type": ["string", "null"]},
            "refusal": {"type": ["string", "null"]},
            "reasoning_content": {"type": ["string", "null"]},
            "tool_call_id": {"type": ["string", "null"]},
        },
        ["role", "content"],
    )


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
        "ModelList": _object({"object": text, "data": {"type": "array", "items": _ref("Model")}}, ["object", "data"]),
    }
