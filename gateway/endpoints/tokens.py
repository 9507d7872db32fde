"""`/tokenize`, `/detokenize` and `/v1/messages/count_tokens`: what a model reads, without asking it to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson

from gateway.access import Gatekeeper
from gateway.body import parse_object, read_body
from gateway.dialects import fields as check
from gateway.dialects.anthropic_messages import AnthropicMessages
from gateway.dialects.openai_chat import OpenAIChat
from gateway.endpoints.generation import cut_off, while_connected
from gateway.exchange import Exchange
from gateway.headers import controls_of
from gateway.parts import ModelCard, ModelTokens
from orchestration.core import Call, Delta, Finish, Handler, Kind, Part, Request
from orchestration.core.errors import InvalidRequest, NotFound

_MAX_NAMED = 8
NUM_TOKENS = "num_tokens"
"""The key of `Notes.extra` that says how many tokens a server elsewhere counted."""


class Tokens:
    """Answer for the models whose tokenizer is here, and ask the servers of others where they tell of their tokens.

    What goes to a server elsewhere goes through `handler`, as every call does: it is limited, checked and logged. Where
    nobody can tell, the answer is a 400 that says who can.
    """

    def __init__(
        self,
        tokens: Mapping[str, ModelTokens],
        handler: Handler,
        *,
        gatekeeper: Gatekeeper,
        models: Sequence[ModelCard],
        max_body_bytes: int,
    ) -> None:
        self._tokens = tokens
        self._handler = handler
        self._gatekeeper = gatekeeper
        self._kinds = {card.id: card.kinds for card in models}
        self._max_body_bytes = max_body_bytes

    async def count(self, exchange: Exchange) -> None:
        """Count the tokens of a request in Anthropic's shape."""
        body = await read_body(exchange, max_bytes=self._max_body_bytes)
        request = AnthropicMessages().parse_prompt(body, exchange.headers)
        tokens = self._of(exchange, request.model, Kind.COUNT)
        if tokens is None:
            num_tokens = (await self._ask(exchange, replace(request, kind=Kind.COUNT)))["count"]
        else:
            num_tokens = len(await tokens.encode_chat(request))
        await exchange.reply(200, orjson.dumps({"input_tokens": num_tokens}))

    async def tokenize(self, exchange: Exchange) -> None:
        """Answer with the ids of a `prompt`, or of a chat's `messages`."""
        body = await read_body(exchange, max_bytes=self._max_body_bytes)
        fields = parse_object(body)
        check.check_fields(fields, _TOKENIZE)
        tokens = self._of(exchange, check.require(fields, "model"), Kind.TOKENIZE)
        chat = OpenAIChat().parse(body) if fields.get("messages") is not None else None
        if chat is None:
            check.require(fields, "prompt")
        if tokens is None:
            answer = await self._ask(exchange, Request(Kind.TOKENIZE, "tokenize", fields, raw=body))
        else:
            answer = await _tokenized(tokens, fields, chat)
        await exchange.reply(200, orjson.dumps(answer))

    async def detokenize(self, exchange: Exchange) -> None:
        """Answer with the text of `tokens`."""
        body = await read_body(exchange, max_bytes=self._max_body_bytes)
        fields = parse_object(body)
        check.check_fields(fields, _DETOKENIZE)
        tokens = self._of(exchange, check.require(fields, "model"), Kind.DETOKENIZE)
        token_ids = check.require(fields, "tokens")
        if tokens is None:
            answer = await self._ask(exchange, Request(Kind.DETOKENIZE, "detokenize", fields, raw=body))
        else:
            answer = {"prompt": await tokens.decode(token_ids)}
        await exchange.reply(200, orjson.dumps(answer))

    def _of(self, exchange: Exchange, model: str, kind: Kind) -> ModelTokens | None:
        """Return a local model's tokens, None where its server can be asked; raises where nobody can tell."""
        exchange.model = model
        tenant = self._gatekeeper.tenant_of(exchange.headers)
        self._gatekeeper.check_model(tenant, model)
        tokens = self._tokens.get(model)
        if tokens is not None or kind in self._kinds.get(model, ()):
            return tokens
        if model not in self._kinds:
            raise NotFound(f"The model '{model[:256]}' does not exist here.", param="model", code="model_not_found")
        able = {*self._tokens, *(name for name, kinds in self._kinds.items() if kind in kinds)}
        can = [f"'{name}'" for name in sorted(able) if self._gatekeeper.may_use(tenant, name)]
        raise InvalidRequest(
            f"The tokenizer of '{model}' is not here, and its server does not {_ACTS[kind]}; of the models that can, "
            f"you may ask {', '.join(can[:_MAX_NAMED]) or 'none'}.",
            param="model",
            code="no_tokenizer",
        )

    async def _ask(self, exchange: Exchange, request: Request) -> dict[str, Any]:
        """Return what the model's server tells; the client's leaving ends the question."""
        tenant = self._gatekeeper.tenant_of(exchange.headers)
        call = exchange.call(request, tenant=tenant, controls=controls_of(exchange.headers))
        found: list[dict[str, Any]] = []
        await while_connected(exchange, self._collect(exchange, call, found))
        return found[0]

    async def _collect(self, exchange: Exchange, call: Call, found: list[dict[str, Any]]) -> None:
        is_finished = False
        async with aclosing(self._handler(call)) as events:
            async for event in events:
                exchange.saw(event)
                is_finished = isinstance(event, Finish)
                if isinstance(event, Delta) and event.part is Part.PAYLOAD:
                    found.append(event.data)
                    if "count" in event.data:
                        call.notes.extra[NUM_TOKENS] = event.data["count"]
        if not (found and is_finished):
            raise cut_off()
        exchange.cost_is_known = True


async def _tokenized(tokens: ModelTokens, fields: Mapping[str, Any], chat: Request | None) -> dict[str, Any]:
    if chat is not None:
        token_ids = await tokens.encode_chat(chat)
    else:
        adds_special = fields.get("add_special_tokens") is not False
        token_ids = await tokens.encode_text(fields["prompt"], adds_special=adds_special)
    answer: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": await tokens.max_tokens(),
        "tokens": token_ids,
    }
    if fields.get("return_token_strs"):
        answer["token_strs"] = [await tokens.label(token_id) for token_id in token_ids]
    return answer


_ACTS = {
    Kind.COUNT: "count a chat's tokens",
    Kind.TOKENIZE: "turn text into tokens",
    Kind.DETOKENIZE: "turn tokens into text",
}


_TOKENIZE: Mapping[str, check.FieldCheck] = {
    "model": check.model_name,
    "prompt": check.string,
    "add_special_tokens": check.boolean,
    "return_token_strs": check.boolean,
}
_DETOKENIZE: Mapping[str, check.FieldCheck] = {"model": check.model_name, "tokens": check.token_ids}
