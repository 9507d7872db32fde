"""`/v1/rerank` from our own encoder: documents by their cosine similarity to the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.errors import InvalidRequest

MAX_DOCUMENTS = 1024
"""More than these, and the encoder would belong to one call for minutes."""

Result = dict[str, int | float]


def ranked_texts(fields: Mapping[str, Any]) -> list[str]:
    """Return the query and then the documents' texts; raises `InvalidRequest` for what cannot be ranked."""
    query, documents = fields.get("query"), fields.get("documents")
    if not isinstance(query, str) or not query:
        raise InvalidRequest("'query' has to be a text that is not empty.", param="query")
    if not isinstance(documents, list) or not documents:
        raise InvalidRequest("'documents' has to be a list of at least one text.", param="documents")
    if len(documents) > MAX_DOCUMENTS:
        message = f"'documents' holds {len(documents)} texts, at most {MAX_DOCUMENTS} are taken by this model."
        raise InvalidRequest(message, param="documents")
    return [query, *(_text_of(place, document) for place, document in enumerate(documents))]


def rank(vectors: NDArray[np.float32], *, top_n: int | None) -> list[Result]:
    """Order documents by their cosine similarity to the query, ties by their place.

    `vectors` are unit vectors (1 + n, dim), the query's first. A cosine of two texts that were encoded apart
    (a bi-encoder's score, in [-1, 1]) is not a cross-encoder's: it orders well, and means no probability.
    """
    scores = vectors[1:] @ vectors[0]
    order: Sequence[int] = np.argsort(-scores, kind="stable")[:top_n].tolist()
    return [{"index": place, "relevance_score": round(float(scores[place]), 6)} for place in order]


def _text_of(place: int, document: Any) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str) or not text:
        raise InvalidRequest(f"'documents[{place}]' has to hold a text that is not empty.", param="documents")
    return text
