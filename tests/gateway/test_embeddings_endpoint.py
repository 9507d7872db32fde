from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from orchestration.core import Delta, Finish, Kind, Part, Start, Usage
from tests.gateway.serving import EMBEDDINGS, Script, ask, client_of, parts_of, served

VECTOR = [0.5, -0.25, 1.0]
PACKED = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()


def _script(vector: Any) -> Script:
    payload = [{"index": 1, "embedding": [0.0, 0.0, 0.0]}, {"index": 0, "embedding": vector}]
    return Script(
        (
            Start("all-minilm-l6-v2", "embedder"),
            Delta(part=Part.PAYLOAD, data=payload),
            Finish(usage=Usage(prompt_tokens=4)),
        )
    )


@pytest.mark.parametrize("vector", [VECTOR, PACKED])
async def test_vectors_are_read_by_the_sdk_whichever_way_they_came(vector: Any) -> None:
    script = _script(vector)
    async with client_of(parts_of(script)) as client:
        default = await client.embeddings.create(model="org/embedder", input=["a", "b"])
        floats = await client.embeddings.create(model="org/embedder", input=["a", "b"], encoding_format="float")

    for embeddings in (default, floats):
        assert [item.index for item in embeddings.data] == [0, 1]
        assert embeddings.data[0].embedding == VECTOR
        assert embeddings.model == "all-minilm-l6-v2"
        assert (embeddings.usage.prompt_tokens, embeddings.usage.total_tokens) == (4, 4)
    assert [call.request.fields.get("encoding_format") for call in script.calls] == ["base64", "float"]
    assert script.calls[0].kind is Kind.EMBEDDING


async def test_base64_holds_little_endian_float32() -> None:
    async with served(parts_of(_script(VECTOR))) as port:
        reply = await ask(port, EMBEDDINGS, {"model": "e", "input": "a", "encoding_format": "base64"})

    assert reply.json["data"][0] == {"object": "embedding", "index": 0, "embedding": PACKED}


async def test_absent_format_stays_absent_and_means_numbers() -> None:
    script = _script(PACKED)
    async with served(parts_of(script)) as port:
        reply = await ask(port, EMBEDDINGS, {"model": "e", "input": [1, 2]})

    assert reply.json["data"][0]["embedding"] == VECTOR
    assert "encoding_format" not in script.calls[0].request.fields


async def test_there_are_no_streams_of_embeddings() -> None:
    async with served(parts_of(_script(VECTOR))) as port:
        reply = await ask(port, EMBEDDINGS, {"model": "e", "input": "a", "stream": True})

    assert reply.headers["content-type"] == "application/json"
    assert reply.json["object"] == "list"
