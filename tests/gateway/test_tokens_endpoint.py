from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.local.link import EngineLink
from backends.local.model import LocalModel
from backends.local.tokens import LocalTokens
from gateway.parts import Access, AppParts
from orchestration.core import Secret
from tests.gateway.serving import ask, parts_of, served
from tests.gateway.test_anthropic_messages import HI, client_of

HELLO = {"model": "tiny", "prompt": "Hello <|im_start|> wörld"}


class _Tokens(LocalTokens):
    """The real tokenizer, with no engine to say how much fits."""

    async def max_tokens(self) -> int:
        return 8192


@pytest.fixture
def parts(language_model: Path) -> AppParts:
    model = LocalModel(EngineLink("unix:///nowhere"), path=language_model)
    return parts_of(tokens={"tiny": _Tokens(model)})


async def test_a_text_becomes_ids_and_comes_back(parts: AppParts) -> None:
    async with served(parts) as port:
        there = await ask(port, "/tokenize", {**HELLO, "return_token_strs": True})
        back = await ask(port, "/detokenize", {"model": "tiny", "tokens": there.json["tokens"]})

    assert there.json["count"] == len(there.json["tokens"]) > 3
    assert there.json["max_model_len"] == 8192
    assert "<|im_start|>" in there.json["token_strs"]
    assert back.json == {"prompt": HELLO["prompt"]}


async def test_a_chat_is_counted_as_the_model_reads_it(parts: AppParts) -> None:
    async with client_of(parts) as client, served(parts) as port:
        counted = await client.messages.count_tokens(model="tiny", system="Be kind.", messages=HI)
        chat = [{"role": "system", "content": "Be kind."}, *HI]
        ids = await ask(port, "/tokenize", {"model": "tiny", "messages": chat})
        text = await ask(port, "/detokenize", {"model": "tiny", "tokens": ids.json["tokens"]})

    assert counted.input_tokens == ids.json["count"] > 5
    assert text.json["prompt"].endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/tokenize", {"prompt": "x"}, 400, "model"),
        ("/tokenize", {"model": "tiny"}, 400, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": 3}, 400, "prompt"),
        ("/tokenize", {"model": "tiny", "messages": []}, 400, "messages"),
        ("/tokenize", {"model": "nobody", "prompt": "x"}, 404, "model"),
        ("/tokenize", {"model": "org/embedder", "prompt": "x"}, 400, "model"),
        ("/detokenize", {"model": "tiny", "tokens": ["x"]}, 400, "tokens[0]"),
        ("/detokenize", {"model": "tiny", "tokens": [10**9]}, 400, "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"model": "tiny", "tokens": [5, 2**63]}, 400, "tokens[1]"),
    ],
)
async def test_what_is_wrong_is_named(parts: AppParts, path: str, body: Any, status: int, named: str) -> None:
    async with served(parts) as port:
        reply = await ask(port, path, body)

    assert (reply.status, reply.error["param"]) == (status, named)


async def test_tokens_of_a_remote_model_are_refused_in_anthropics_shape(parts: AppParts) -> None:
    async with served(parts) as port:
        reply = await ask(port, "/v1/messages/count_tokens", {"model": "org/embedder", "messages": HI})

    assert reply.status == 400
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert "tokenizer" in reply.json["error"]["message"]
    assert "you may ask 'tiny'." in reply.json["error"]["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
async def test_tokens_need_a_key_where_calls_do(path: str) -> None:
    access = Access(tenant_key=Secret("t"), master_key=Secret("right"))
    async with served(parts_of(access=access)) as port:
        reply = await ask(port, path, HELLO)

    assert reply.status == 401
