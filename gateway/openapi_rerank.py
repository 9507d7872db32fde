"""The schemas of `/v1/rerank` in the OpenAPI document: what `gateway/dialects/rerank.py` accepts."""

from __future__ import annotations

from gateway.dialects.rerank import MAX_DOCUMENTS
from gateway.openapi_schemas import Schema, integer, object_of


def rerank_schemas() -> Schema:
    """Return the schemas by name."""
    filled = {"type": "string", "minLength": 1}
    count = {"type": "integer", "minimum": 0}
    document = {"anyOf": [filled, object_of({"text": filled}, ["text"])]}
    result = object_of(
        {"index": count, "relevance_score": {"type": "number"}, "document": {"type": "object"}},
        ["index", "relevance_score"],
    )
    usage = object_of({"prompt_tokens": count, "total_tokens": count}, ["prompt_tokens", "total_tokens"])
    return {
        "RerankRequest": object_of(
            {
                "model": {"type": "string", "minLength": 1, "maxLength": 256},
                "query": filled,
                "documents": {"type": "array", "minItems": 1, "maxItems": MAX_DOCUMENTS, "items": document},
                "top_n": integer(1),
                "return_documents": {"type": ["boolean", "null"]},
                "user": {"type": ["string", "null"]},
            },
            ["model", "query", "documents"],
        ),
        "Ranking": object_of(
            {
                "id": {"type": "string"},
                "object": {"const": "list"},
                "model": {"type": "string"},
                "results": {"type": "array", "items": result},
                "usage": usage,
                "meta": {"type": "object"},
            },
            ["id", "object", "model", "results"],
        ),
    }
