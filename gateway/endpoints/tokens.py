"""`/tokenize`, `/detokenize` and `/v1/messages/count_tokens`: what local models read, without asking them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from gateway.access import Gatekeeper
from gateway.body import parse_object, read_body
from gateway.dialects import fields as check
from gateway.dialects.anthropic_messages import AnthropicMessages
from gateway.dialects.openai_chat import OpenAIChat
from gateway.exchange import Exchange
from gateway.parts import ModelTokens
from orchestration.core.errors import InvalidRequest, NotFound

_MAX_NAMED = 8


class Tokens:
    """Answer for the models whose tokenizer is here; for another one of ours the answer is a 400 that says so."""

    def __init__(
        self,
        tokens: Mapping[str, ModelTokens],
        *,
        gatekeeper: Gatekeeper,
        models: Collection[str],
        max_body_bytes: int,
    ) -> None:
        self._tokens = tokens
        self._gatekeeper = gatekeeper
        self._models = frozenset(models)
        self._max_body_bytes = max_body_bytes

    async def count(self, exchange: Exchange) -> None:
        """Count the tokens of a request in Anthropic's shape."""
        body = await read_body(exchange, max_bytes=self._max_body_bytes)
        request = AnthropicMessages().parse_prompt(body, exchange.headers)
        token_ids = await self._of(exchange, request.model).encode_chat(request)
        await exchange.reply(200, orjson.dumps({"input_tokens": len(token_ids)}))

    async def tokenize(self, exchange: Exchange) -> None:
        """Answer with the ids of a `prompt`, or of a chat's `messages`."""
        body = await read_body(exchange, max_bytes=self._max_body_bytes)
        fields = parse_object(body)
        check.check_fields(fields, _TOKENIZE)
        tokens = self._of(exchange, check.require(fields, "model"))
        if fields.get("messages") is not None:
            token_ids = await tokens.encode_chat(OpenAIChat().parse(body))
        else:
            adds_special = fields.get("add_special_tokens") is not False
            token_ids = await tokens.encode_text(check.require(fields, "prompt"), adds_special=adds_special)
        answer: dict[str, Any] = {
            "count": len(token_ids),
            "max_model_len": await tokens.max_tokens(),
            "tokens": token_ids,
        }
        if fields.get("return_token_strs"):
            answer["token_strs"] = [await tokens.label(token_id) for token_id in token_ids]
        await exchange.reply(200, orjson.dumps(answer))

    async def detokenize(self, exchange: Exchange) -> None:
        """Answer with the text of `tokens`."""
        fields = parse_object(await read_body(exchange, max_bytes=self._max_body_bytes))
        check.check_fields(fields, _DETOKENIZE)
        tokens = self._of(exchange, check.require(fields, "model"))
        text = await tokens.decode(check.require(fields, "tokens"))
        await exchange.reply(200, orjson.dumps({"prompt": text}))

    def _of(self, exchange: Exchange, model: str) -> ModelTokens:
        exchange.model = model
        tenant = self._gatekeeper.tenant_of(exchange.headers)
        self._gatekeeper.check_model(tenant, model)
        tokens = self._tokens.get(model)
        if tokens is not None:
            return tokens
        if model not in self._models:
            raise NotFound(f"The model '{model[:256]}' does not exist here.", param="model", code="model_not_found")
        can = [f"'{name}'" for name in sorted(self._tokens) if self._gatekeeper.may_use(tenant, name)]
        raise InvalidRequest(
            f"The tokenizer of '{model}' is not here: only local models' tokens can be counted, of which you may ask "
            f"{', '.join(can[:_MAX_NAMED]) or 'none'}.",
            param="model",
            code="no_tokenizer",
        )


def _check_ids(name: str, value: Any) -> None:
    check.array(name, value)
    if not all(type(token) is int for token in value):
        raise check.wrong_type(name, "an array of token ids", value)


_TOKENIZE: Mapping[str, check.FieldCheck] = {
    "model": check.model_name,
    "prompt": check.string,
    "add_special_tokens": check.boolean,
    "return_token_strs": check.boolean,
}
_DETOKENIZE: Mapping[str, check.FieldCheck] = {"model": check.model_name, "tokens": _check_ids}
