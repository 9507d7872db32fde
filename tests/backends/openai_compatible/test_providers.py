from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from backends.openai_compatible import build_openai_compatible
from backends.openai_compatible.providers import PROVIDERS
from backends.remote import RemoteBackend
from orchestration.core import Call, Delta, Kind, Part, Request, Usage
from orchestration.core.errors import BackendError, InvalidRequest
from orchestration.core.notes import DROPPED_PARAMS
from tests.backends.calls import ask, chat_call, completion_call
from tests.backends.remote.fake_upstream import FakeUpstream, answering

CHAT_ANSWER = {"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}]}
TEXT_ANSWER = {"choices": [{"index": 0, "text": "ok", "finish_reason": "stop"}]}
Build = Callable[..., AbstractAsyncContextManager[RemoteBackend]]


@pytest.fixture
def build(upstream: FakeUpstream) -> Build:
    @asynccontextmanager
    async def make(provider: str | None, **options: Any) -> Any:
        backend = build_openai_compatible(base_url=upstream.url, provider=provider, upstream_model="there", **options)
        yield backend
        await backend.aclose()

    return make


def rerank_call(**fields: Any) -> Call:
    body = {"model": "m", "query": "q", "documents": ["a", {"text": "b", "id": 7}, "c"], **fields}
    request = Request(kind=Kind.RERANK, dialect="rerank", fields=body)
    return Call(id="01", request_id="r", tenant="t", request=request, received_at=0.0, started=0.0)


@pytest.mark.parametrize(
    ("provider", "sent", "told"),
    [
        (None, {"max_tokens": 5, "top_k": 3, "n": 2}, {"max_tokens": 5, "top_k": 3, "n": 2}),
        ("vllm", {"max_tokens": 5, "top_k": 3, "new": 1}, {"max_tokens": 5, "top_k": 3, "new": 1}),
        ("sglang", {"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
        ("openai", {"max_tokens": 5}, {"max_completion_tokens": 5}),
        ("openai", {"max_tokens": 5, "max_completion_tokens": 6}, {"max_completion_tokens": 6}),
        ("tgi", {"max_completion_tokens": 5, "n": 1}, {"max_tokens": 5}),
        ("llama_cpp", {"max_completion_tokens": 5, "min_p": 0.1}, {"max_tokens": 5, "min_p": 0.1}),
        ("ollama", {"max_completion_tokens": 5, "tool_choice": "auto"}, {"max_tokens": 5}),
        ("nim", {"max_completion_tokens": 5}, {"max_tokens": 5}),
    ],
)
async def test_each_provider_is_told_what_it_takes(
    provider: str | None, sent: dict[str, Any], told: dict[str, Any], upstream: FakeUpstream, build: Build
) -> None:
    upstream.script = answering(CHAT_ANSWER)
    async with build(provider) as backend:
        await ask(backend, chat_call(**sent))

    body = upstream.asked[0].body
    assert {name: value for name, value in body.items() if name not in ("model", "messages")} == told


@pytest.mark.parametrize(("provider", "field", "value"), [("openai", "top_k", 5), ("ollama", "n", 2), ("tgi", "n", 2)])
async def test_what_a_provider_does_not_take_is_refused_by_name(
    provider: str, field: str, value: Any, upstream: FakeUpstream, build: Build
) -> None:
    async with build(provider) as backend:
        with pytest.raises(InvalidRequest, match="drop_params") as caught:
            await ask(backend, chat_call(**{field: value}))

    assert (caught.value.param, caught.value.code) == (field, "unsupported_parameter")
    assert not upstream.asked


async def test_dropped_fields_are_noted_by_name(upstream: FakeUpstream, build: Build) -> None:
    upstream.script = answering(TEXT_ANSWER)
    call = completion_call(top_k=5, min_p=0.5, max_tokens=3)
    async with build("openai", drops=True) as backend:
        await ask(backend, call)

    assert upstream.asked[0].body == {"model": "there", "prompt": "Once", "max_tokens": 3}
    assert call.notes.extra[DROPPED_PARAMS] == ["min_p", "top_k"]


@pytest.mark.parametrize(
    ("provider", "path", "body", "answer"),
    [
        (
            None,
            "/v1/rerank",
            {"model": "there", "query": "q", "documents": ["a", "b", "c"], "top_n": 2, "truncate": True},
            {"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.2}]},
        ),
        (
            "sglang",
            "/v1/rerank",
            {"model": "there", "query": "q", "documents": ["a", "b", "c"], "top_n": 2, "truncate": True},
            [{"index": 0, "score": 0.2, "document": "a"}, {"index": 1, "score": 0.9, "document": "b"}],
        ),
        (
            "tei",
            "/rerank",
            {"query": "q", "texts": ["a", "b", "c"], "truncate": True},
            [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.2}],
        ),
        (
            "nim",
            "/v1/ranking",
            {
                "model": "there",
                "query": {"text": "q"},
                "passages": [{"text": "a"}, {"text": "b"}, {"text": "c"}],
                "truncate": True,
            },
            {"rankings": [{"index": 1, "logit": 0.9}, {"index": 0, "logit": 0.2}]},
        ),
    ],
)
async def test_ranks_are_asked_and_read_in_every_providers_way(
    provider: str | None, path: str, body: Any, answer: Any, upstream: FakeUpstream, build: Build
) -> None:
    upstream.script = answering(answer)
    async with build(provider) as backend:
        told = await ask(backend, rerank_call(top_n=2, return_documents=True, truncate=True))

    assert (upstream.asked[0].path, upstream.asked[0].body) == (path, body)
    ranks = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.2}]
    assert told.deltas == [Delta(part=Part.PAYLOAD, data=ranks)]
    assert told.finish.usage is None


@pytest.mark.parametrize(
    "counted", [{"usage": {"total_tokens": 9}}, {"meta": {"tokens": {"input_tokens": 9, "output_tokens": 0}}}]
)
async def test_ranks_are_counted_as_the_upstream_counts(
    counted: dict[str, Any], upstream: FakeUpstream, build: Build
) -> None:
    upstream.script = answering({"results": [{"index": 0, "relevance_score": 1}], **counted})
    async with build("vllm") as backend:
        told = await ask(backend, rerank_call())

    assert told.finish.usage == Usage(prompt_tokens=9)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"results": []},
        {"results": [{"index": 3, "relevance_score": 1}]},
        {"results": [{"index": -1, "relevance_score": 1}]},
        {"results": [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 2}]},
        {"results": [{"index": 0}]},
        {"results": [{"index": 0, "relevance_score": None}]},
        {"results": [7]},
        {"results": 7},
        [7],
        7,
    ],
)
async def test_ranks_that_are_none_are_the_backends_fault(answer: Any, upstream: FakeUpstream, build: Build) -> None:
    upstream.script = answering(answer)
    async with build("vllm") as backend:
        with pytest.raises(BackendError):
            await ask(backend, rerank_call())


async def test_a_provider_answers_at_its_usual_address() -> None:
    for name, provider in PROVIDERS.items():
        backend = build_openai_compatible(provider=name)
        assert provider.base_url is not None
        assert backend.name.removeprefix("openai_compatible/") in provider.base_url
        await backend.aclose()
    with pytest.raises(ValueError, match="no provider 'x'; these are known: openai, vllm"):
        build_openai_compatible(provider="x")
