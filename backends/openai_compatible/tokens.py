"""Tokens in the ways that servers tell of them: text or a chat to ids, and ids to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from backends.remote.wire import Ask
from orchestration.core.errors import InvalidRequest
from orchestration.core.request import Kind

Json = Mapping[str, Any]
_CHAT = ("model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt")
_MAX_CONTEXT = 2**31
"""Tokenizers that know no bound state one of thirty digits."""


@dataclass(frozen=True, slots=True)
class TokenFormat:
    """How a server is asked: by kind, a function from our fields (its own model's name among them) to the request."""

    ways: Mapping[Kind, Callable[[Json], Ask]]

    @property
    def kinds(self) -> frozenset[Kind]:
        """List the questions that it answers."""
        return frozenset(self.ways)


def read_tokens(answer: Any) -> dict[str, Any]:
    """Read ids in any of the ways in use: plain ones, or objects with their texts."""
    named = answer if isinstance(answer, dict) else {}
    rows: Any = answer if isinstance(answer, list) else named.get("tokens", named.get("tokenize_response"))
    ids = [int(row["id"]) if isinstance(row, dict) else int(row) for row in rows]
    longest = named.get("max_model_len")
    told = {
        "count": len(ids),
        "max_model_len": longest if type(longest) is int and 0 < longest < _MAX_CONTEXT else None,
        "tokens": ids,
    }
    texts = named.get("token_strs")
    if texts is None and ids and isinstance(rows[0], dict):
        texts = [_text_of(row) for row in rows]
    return told if texts is None else {**told, "token_strs": texts}


def read_text(answer: Json) -> dict[str, Any]:
    """Read the text of ids, under any of its names."""
    for name in ("prompt", "text", "content"):
        if isinstance(answer.get(name), str):
            return {"prompt": answer[name]}
    raise LookupError("no text")


def _text_of(row: Json) -> str:
    text = row.get("piece", row.get("text"))
    # Bytes that are no text alone, a part of a letter, come as numbers.
    return bytes(text).decode("utf-8", "replace") if isinstance(text, list) else str(text)


def _ask(path: str, body: Json) -> Ask:
    return Ask(path, orjson.dumps(body))


def _given(fields: Json, names: Sequence[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def _chat(path: str, fields: Json) -> Ask:
    return _ask(path, _given(fields, (*_CHAT, "return_token_strs")))


def _text(path: str, fields: Json) -> Ask:
    return _ask(path, _given(fields, ("model", "prompt", "add_special_tokens", "return_token_strs")))


def _text_alone(write: Callable[[Json], Ask], fields: Json) -> Ask:
    if fields.get("messages") is not None:
        raise InvalidRequest(
            "The server of this model tokenizes texts, not chats: send 'prompt'.", param="messages", code="no_tokenizer"
        )
    return write(fields)


def _vllm(fields: Json) -> Ask:
    is_chat = fields.get("messages") is not None
    return _chat("/tokenize", fields) if is_chat else _text("/tokenize", fields)


def _ids(fields: Json, **more: Any) -> Ask:
    return _ask("/detokenize", {"model": fields["model"], "tokens": fields["tokens"], **more})


def _llama_text(fields: Json) -> Ask:
    if fields.get("messages") is None:
        return _llama_content(fields, fields["prompt"], adds_special=fields.get("add_special_tokens") is not False)

    def then(answer: Any) -> Ask:
        return _llama_content(fields, answer["prompt"], adds_special=True)

    return Ask("/apply-template", orjson.dumps(_given(fields, _CHAT)), then=then)


def _llama_content(fields: Json, text: str, *, adds_special: bool) -> Ask:
    pieces = bool(fields.get("return_token_strs"))
    body = {"content": text, "add_special": adds_special, "parse_special": True, "with_pieces": pieces}
    return _ask("/tokenize", {"model": fields["model"], **body})


def _tgi(fields: Json) -> Ask:
    if fields.get("messages") is not None:
        return _chat("/chat_tokenize", fields)
    adds_special = fields.get("add_special_tokens") is not False
    return _ask("/tokenize", {"inputs": fields["prompt"], "add_special_tokens": adds_special})


NO_TOKENS = TokenFormat({})
VLLM_TOKENS = TokenFormat({Kind.COUNT: _vllm, Kind.TOKENIZE: _vllm, Kind.DETOKENIZE: _ids})
SGLANG_TOKENS = TokenFormat(
    {
        Kind.TOKENIZE: partial(_text_alone, partial(_text, "/tokenize")),
        Kind.DETOKENIZE: partial(_ids, skip_special_tokens=False),
    }
)
LLAMA_TOKENS = TokenFormat({**dict.fromkeys((Kind.COUNT, Kind.TOKENIZE), _llama_text), Kind.DETOKENIZE: _ids})
TGI_TOKENS = TokenFormat(dict.fromkeys((Kind.COUNT, Kind.TOKENIZE), _tgi))
