"""OpenAI's embeddings: `POST /v1/embeddings`."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.body import parse_object
from gateway.dialects import fields as check
from gateway.dialects.answer import Answer
from gateway.dialects.dialect import NO_HEADERS, Reply
from gateway.dialects.openai_completions import check_inputs
from gateway.dialects.relay import relayed_body
from orchestration.core import Kind, Request

Vector = Sequence[float] | str
"""Numbers, or little-endian float32 in base64."""


class OpenAIEmbeddings:
    """The embeddings format, always whole; vectors are written as the client asked, whichever way they came."""

    name = "openai.embeddings"

    def parse(self, body: bytes, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Request:
        """Check the body; unknown fields are kept as they came, and what is absent stays absent."""
        fields = parse_object(body)
        check.require(fields, "model")
        check.require(fields, "input")
        check.check_fields(fields, _CHECKS)
        return Request(kind=Kind.EMBEDDING, dialect=self.name, fields=fields, raw=body)

    def encode(self, answer: Answer, reply: Reply) -> bytes:
        """Write the list of embeddings; usage is left out where nobody counted."""
        raw = relayed_body(answer, self.name)
        if raw is not None:
            return raw
        write = _to_base64 if reply.request.fields.get("encoding_format") == "base64" else _to_numbers
        items = [item for _, choice in answer.choices for payload in choice.payloads for item in payload]
        whole: dict[str, Any] = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": item["index"], "embedding": write(item["embedding"])}
                for item in sorted(items, key=lambda item: int(item["index"]))
            ],
            "model": answer.model or reply.request.model,
        }
        if answer.usage is not None:
            whole["usage"] = {"prompt_tokens": answer.usage.prompt_tokens, "total_tokens": answer.usage.total_tokens}
        return orjson.dumps(whole)

    def stream(self, reply: Reply) -> None:
        """Say that there are no streams of embeddings."""
        return


def _to_base64(vector: Vector) -> str:
    if isinstance(vector, str):
        return vector
    packed = array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()


def _to_numbers(vector: Vector) -> Sequence[float]:
    if not isinstance(vector, str):
        return vector
    packed = array("f", base64.b64decode(vector))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


_CHECKS: Mapping[str, check.FieldCheck] = {
    "model": check.model_name,
    "input": check_inputs,
    "encoding_format": check.one_of("float", "base64"),
    "dimensions": check.integer(1, 65536),
    "user": check.string,
}
