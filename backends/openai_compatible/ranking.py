"""Rerank calls in the three ways that servers ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestration.core.errors import BackendError
from orchestration.core.events import Delta, Event, Finish, Part, Usage

Json = Mapping[str, Any]
_OURS = frozenset({"model", "query", "documents", "top_n", "return_documents"})


@dataclass(frozen=True, slots=True)
class RankFormat:
    """How a server is asked: a function from our fields (its own model's name among them) to its body."""

    write: Callable[[Json], dict[str, Any]]


def read_ranks(answer: Any, *, backend: str, num_documents: int) -> list[Event]:
    """Read the scores of documents, in any of the ways in use, the most relevant first.

    Raises `BackendError` where there are none, or one for a document that was not sent.
    """
    named = answer if isinstance(answer, dict) else {}
    rows = answer if isinstance(answer, list) else named.get("results") or named.get("rankings") or ()
    results = [{"index": int(row["index"]), "relevance_score": _score_of(row)} for row in rows]
    places = {result["index"] for result in results}
    if not results or len(places) < len(results) or not places <= set(range(num_documents)):
        raise BackendError(f"{backend} ranked other documents than were sent")
    results.sort(key=lambda result: (-result["relevance_score"], result["index"]))
    return [Delta(part=Part.PAYLOAD, data=results), Finish(usage=_usage_of(named))]


def _score_of(row: Json) -> float:
    for name in ("relevance_score", "score", "logit"):
        if name in row:
            return float(row[name])
    raise LookupError("no score")


def _usage_of(answer: Json) -> Usage | None:
    """Read OpenAI's usage, or Cohere's `meta`; documents count as prompt."""
    usage = answer.get("usage") or {}
    meta = answer.get("meta") or {}
    tokens = usage.get("prompt_tokens") or usage.get("total_tokens") or (meta.get("tokens") or {}).get("input_tokens")
    return Usage(prompt_tokens=int(tokens)) if tokens else None


def _texts(fields: Json) -> list[str]:
    return [each if isinstance(each, str) else each["text"] for each in fields["documents"]]


def _rest(fields: Json) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _OURS}


def _as_cohere(fields: Json) -> dict[str, Any]:
    """The documents are here: none has to come back."""
    body = {name: fields[name] for name in ("model", "query", "top_n") if fields.get(name) is not None}
    return {**_rest(fields), **body, "documents": _texts(fields)}


def _as_texts(fields: Json) -> dict[str, Any]:
    return {**_rest(fields), "query": fields["query"], "texts": _texts(fields)}


def _as_passages(fields: Json) -> dict[str, Any]:
    passages = [{"text": text} for text in _texts(fields)]
    return {**_rest(fields), "model": fields["model"], "query": {"text": fields["query"]}, "passages": passages}


COHERE = RankFormat(_as_cohere)
BY_TEXTS = RankFormat(_as_texts)
PASSAGES = RankFormat(_as_passages)
