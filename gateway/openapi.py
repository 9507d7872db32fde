"""The hot endpoints in the OpenAPI document, written by hand: no framework looks at them.

The schemas say what the checks of `gateway/dialects` accept; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.openapi_anthropic import anthropic_schemas
from gateway.openapi_rerank import rerank_schemas
from gateway.openapi_responses import responses_schemas
from gateway.openapi_schemas import Schema, ref, schemas


def hot_document() -> Mapping[str, Schema]:
    """Return `paths` and `schemas` of the hot endpoints."""
    described = {**schemas(), **anthropic_schemas(), **responses_schemas(), **rerank_schemas()}
    return {"paths": _paths(), "schemas": described}


def _paths() -> Schema:
    events = {"text/event-stream": {"schema": ref("StreamEvent")}}
    return {
        "/v1/chat/completions": _post("Answer a chat, whole or streamed", "ChatRequest", "ChatCompletion", events),
        "/v1/completions": _post("Go on with a text, whole or streamed", "CompletionRequest", "Completion", events),
        "/v1/embeddings": _post("Turn texts into vectors", "EmbeddingRequest", "EmbeddingList", {}),
        "/v1/rerank": _post("Order documents by their relevance to a query", "RerankRequest", "Ranking", {}),
        "/v2/rerank": _post("The same, where Cohere's newer client asks for it", "RerankRequest", "Ranking", {}),
        "/v1/responses": _post(
            "Answer with output items, whole or streamed; nothing is stored", "ResponsesRequest", "Response", events
        ),
        "/v1/messages": _post(
            "Answer a chat in Anthropic's shape, whole or streamed",
            "MessagesRequest",
            "AnthropicMessage",
            events,
            error="AnthropicError",
        ),
        "/v1/messages/count_tokens": _post(
            "Count the tokens of a chat", "CountRequest", "TokenCount", {}, error="AnthropicError"
        ),
        "/tokenize": _post("Turn a text or a chat into the model's token ids", "TokenizeRequest", "Tokens", {}),
        "/detokenize": _post("Turn the model's token ids into text", "DetokenizeRequest", "Detokenized", {}),
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


def _post(summary: str, request: str, answer: str, other_content: Schema, *, error: str = "Error") -> Schema:
    good = _reply("The answer.", answer)
    good["content"].update(other_content)
    errors = {
        "400": "The request is wrong; `param` names the field.",
        "401": "The key is missing or wrong.",
        "403": "The host or the origin is not answered.",
        "404": "There is no such model.",
        "408": "The body stopped coming.",
        "413": "The body is too large.",
        "415": "The body is compressed.",
        "429": "A limit is reached or a queue is full.",
        "500": "A fault of the gateway.",
        "502": "A backend answered wrongly.",
        "503": "A backend cannot be reached.",
        "504": "A backend took too long, or nothing was cached and only that was asked for.",
    }
    if error == "AnthropicError":
        errors["529"] = "A queue is full."
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
            _header(
                "x-lamina-cache-tags",
                "Tags of this call's cache entries, parted by commas, by which they can be invalidated.",
                {"type": "string", "pattern": "^[!-+\\--~]{1,64}(, ?[!-+\\--~]{1,64}){0,15}$"},
            ),
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref(request)}}},
        "responses": {"200": good, **{status: _reply(meaning, error) for status, meaning in errors.items()}},
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
    return {"description": meaning, "content": {"application/json": {"schema": ref(schema)}}}


def _error(meaning: str) -> Schema:
    return _reply(meaning, "Error")
