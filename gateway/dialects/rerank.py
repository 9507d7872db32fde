"""Reranking in the shape that Cohere and Jina share: `POST /v1/rerank`, and `/v2/rerank` for Cohere's newer client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.body import parse_object
from gateway.dialects import fields as check
from gateway.dialects.answer import Answer
from gateway.dialects.dialect import NO_HEADERS, Reply
from orchestration.core import Kind, Request

MAX_DOCUMENTS = 2048


class Rerank:
    """The rerank format, always whole: the documents' places, the most relevant first.

    A document is a text or an object with a `text`; its other keys are the client's own and come back with it where
    `return_documents` is true.
    """

    name = "rerank"

    def parse(self, body: bytes, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Request:
        """Check the body; unknown fields are kept as they came."""
        fields = parse_object(body)
        for name in ("model", "query", "documents"):
            check.require(fields, name)
        check.check_fields(fields, _CHECKS)
        return Request(kind=Kind.RERANK, dialect=self.name, fields=fields, raw=body)

    def encode(self, answer: Answer, reply: Reply) -> bytes:
        """Write the results, at most `top_n`; usage is left out where nobody counted."""
        fields = reply.request.fields
        found = [result for _, choice in answer.choices for payload in choice.payloads for result in payload]
        found.sort(key=lambda result: (-result["relevance_score"], result["index"]))
        shown = fields["documents"] if fields.get("return_documents") is True else None
        whole: dict[str, Any] = {
            "id": f"rerank-{reply.call_id}",
            "object": "list",
            "model": answer.model or reply.request.model,
            "results": [_result(result, shown) for result in found[: fields.get("top_n") or len(found)]],
        }
        if answer.usage is not None:
            tokens = answer.usage.prompt_tokens
            whole["usage"] = {"prompt_tokens": tokens, "total_tokens": answer.usage.total_tokens}
            whole["meta"] = {"tokens": {"input_tokens": tokens}}
        return orjson.dumps(whole)

    def stream(self, reply: Reply) -> None:
        """Say that there are no streams of ranks."""
        return


def _result(result: Mapping[str, Any], documents: list[Any] | None) -> Mapping[str, Any]:
    written = {"index": result["index"], "relevance_score": result["relevance_score"]}
    if documents is None:
        return written
    document = documents[result["index"]]
    return {**written, "document": {"text": document} if isinstance(document, str) else document}


def _check_documents(name: str, value: Any) -> None:
    check.array(name, value)
    if not 1 <= len(value) <= MAX_DOCUMENTS:
        raise check.wrong_value(name, f"1 to {MAX_DOCUMENTS} documents", len(value))
    for index, document in enumerate(value):
        place = f"{name}[{index}]"
        if type(document) is str:
            check.filled_string(place, document)
            continue
        if type(document) is not dict:
            raise check.wrong_type(place, "a string, or an object with a 'text'", document)
        check.filled_string(f"{place}.text", document.get("text"))


_CHECKS: Mapping[str, check.FieldCheck] = {
    "model": check.model_name,
    "query": check.filled_string,
    "documents": _check_documents,
    "top_n": check.integer(1),
    "return_documents": check.boolean,
    "user": check.string,
}
