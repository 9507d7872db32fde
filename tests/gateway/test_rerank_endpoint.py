from __future__ import annotations

from typing import Any

import pytest

from orchestration.core import Delta, Finish, Kind, Part, Start, Usage
from tests.gateway.serving import Script, ask, parts_of, served

RERANK = "/v1/rerank"
RANKS = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.25}]
SCRIPT = (Start("ranker-1", "fake"), Delta(part=Part.PAYLOAD, data=RANKS), Finish(usage=Usage(prompt_tokens=7)))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "ranker", "query": "q", "documents": ["a", {"text": "b", "id": 7}], **fields}


@pytest.mark.parametrize("path", [RERANK, "/v2/rerank"])
async def test_documents_are_ordered_by_their_relevance(path: str) -> None:
    script = Script(SCRIPT)
    async with served(parts_of(script)) as port:
        reply = await ask(port, path, body())

    assert reply.status == 200
    assert reply.json["id"].startswith("rerank-")
    assert reply.json == {
        "id": reply.json["id"],
        "object": "list",
        "model": "ranker-1",
        "results": RANKS,
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "meta": {"tokens": {"input_tokens": 7}},
    }
    assert script.calls[0].kind is Kind.RERANK
    assert reply.headers["x-lamina-cache"] == "bypass"


async def test_documents_come_back_where_they_are_asked_for() -> None:
    async with served(parts_of(Script(SCRIPT))) as port:
        reply = await ask(port, RERANK, body(return_documents=True))

    assert [result["document"] for result in reply.json["results"]] == [{"text": "b", "id": 7}, {"text": "a"}]


async def test_top_n_holds_whatever_the_backend_gave() -> None:
    async with served(parts_of(Script(SCRIPT))) as port:
        reply = await ask(port, RERANK, body(top_n=1))

    assert reply.json["results"] == RANKS[:1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"query": ["q"]}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": ["a", 7]}, "documents[1]"),
        ({"documents": [{"id": 7}]}, "documents[0].text"),
        ({"documents": [{"text": ""}]}, "documents[0].text"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
    ],
)
async def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, RERANK, body(**fields))

    assert (reply.status, reply.error["param"]) == (400, param)


async def test_an_answer_without_an_end_is_an_error() -> None:
    async with served(parts_of(Script(SCRIPT[:2]))) as port:
        reply = await ask(port, RERANK, body())

    assert (reply.status, reply.error["code"]) == (502, "backend_error")
