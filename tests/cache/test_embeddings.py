from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cache.embeddings import EmbeddingBackend
from cache.owner_client import Embedded
from cache.semantic import IndexFault
from orchestration.core import Delta, Event, Finish, Kind, Part, Start
from orchestration.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextTooLong,
    InvalidRequest,
    LaminaError,
    Overloaded,
)
from tests.cache.scripted import a_call


class Source:
    """Give each text a vector that tells its place, and three tokens."""

    def __init__(self, fault: IndexFault | None = None) -> None:
        self.fault = fault
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        if self.fault is not None:
            raise self.fault
        self.texts += texts
        return Embedded(np.eye(len(texts), 4, dtype=np.float32), num_tokens=(3,) * len(texts), embedder="m@1")

    async def check_health(self) -> str | None:
        return None


async def embed(source: Source, given: Any, **fields: Any) -> list[Event]:
    call = a_call(kind=Kind.EMBEDDING, input=given, **fields)
    return [event async for event in EmbeddingBackend(source, model="minilm")(call)]


async def test_a_text_becomes_one_vector_and_its_tokens_are_counted() -> None:
    start, delta, finish = await embed(Source(), "hello")

    assert start == Start("minilm", "embedder")
    assert delta == Delta(part=Part.PAYLOAD, data=[{"index": 0, "embedding": [1.0, 0.0, 0.0, 0.0]}])
    assert isinstance(finish, Finish)
    assert finish.usage is not None
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (3, 0)


async def test_a_list_keeps_its_order() -> None:
    source = Source()

    _, delta, finish = await embed(source, ["a", "b", "c"], dimensions=4)

    assert source.texts == ["a", "b", "c"]
    assert isinstance(delta, Delta)
    assert [(item["index"], item["embedding"].index(1.0)) for item in delta.data] == [(0, 0), (1, 1), (2, 2)]
    assert isinstance(finish, Finish)
    assert finish.usage is not None
    assert finish.usage.prompt_tokens == 9


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "a text or a list"),
        ([], "a text or a list"),
        ("", "not empty"),
        (["a", ""], r"input\[1\]"),
        (["a", None], r"input\[1\]"),
        ([1, 2, 3], "token ids"),
        ([[1, 2], [3]], "token ids"),
        ({"text": "a"}, "a text or a list"),
        (["a"] * 2049, "2049 texts"),
    ],
)
async def test_what_is_no_text_is_refused_by_name(given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        await embed(Source(), given)

    assert caught.value.param == "input"


@pytest.mark.parametrize("dimensions", [3, 0, "4"])
async def test_other_dimensions_than_the_models_are_refused(dimensions: Any) -> None:
    with pytest.raises(InvalidRequest, match="is 4") as caught:
        await embed(Source(), "a", dimensions=dimensions)

    assert caught.value.param == "dimensions"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("too_long", ContextTooLong),
        ("bad_params", InvalidRequest),
        ("busy", Overloaded),
        ("slow", BackendTimeout),
        ("down", BackendUnavailable),
        ("internal", BackendError),
    ],
)
async def test_each_fault_of_the_owner_is_the_error_that_it_means(code: str, error: type[LaminaError]) -> None:
    with pytest.raises(error) as caught:
        await embed(Source(IndexFault(code, "text 0 has 300 tokens")), "a")

    assert type(caught.value) is error


async def rerank(**fields: Any) -> list[Event]:
    call = a_call(kind=Kind.RERANK, **{"query": "q", "documents": ["a", {"text": "b"}, "c"], **fields})
    return [event async for event in EmbeddingBackend(Near(), model="minilm")(call)]


class Near(Source):
    """Give the query's vector, and documents that stand at 0.6, 0.8 and 0.6 to it."""

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        assert list(texts) == ["q", "a", "b", "c"]
        vectors = np.array([[1, 0], [0.6, 0.8], [0.8, 0.6], [0.6, -0.8]], dtype=np.float32)
        return Embedded(vectors, num_tokens=(3,) * 4, embedder="m@1")


async def test_documents_are_ranked_by_their_cosine_and_ties_by_their_place() -> None:
    start, delta, finish = await rerank()

    assert start == Start("minilm", "embedder")
    assert isinstance(delta, Delta)
    assert [(item["index"], item["relevance_score"]) for item in delta.data] == [(1, 0.8), (0, 0.6), (2, 0.6)]
    assert isinstance(finish, Finish)
    assert finish.usage is not None
    assert finish.usage.prompt_tokens == 12


async def test_no_more_documents_than_asked_for_are_ranked() -> None:
    _, delta, _ = await rerank(top_n=1)

    assert isinstance(delta, Delta)
    assert [item["index"] for item in delta.data] == [1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["a"] * 1025}, "documents"),
        ({"documents": ["a", {"text": ""}]}, "documents"),
    ],
)
async def test_what_cannot_be_ranked_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await rerank(**fields)

    assert caught.value.param == param


async def test_a_document_that_is_too_long_is_named_as_a_document() -> None:
    call = a_call(kind=Kind.RERANK, query="q", documents=["a"])
    source = Source(IndexFault("too_long", "300 tokens, at most 256"))
    with pytest.raises(ContextTooLong) as caught:
        [event async for event in EmbeddingBackend(source, model="minilm")(call)]

    assert caught.value.param == "documents"
