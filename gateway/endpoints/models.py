"""`GET /v1/models` and `GET /v1/models/{id}`, in OpenAI's shape or, for its clients, in Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import orjson

from gateway.access import Gatekeeper
from gateway.anthropic_errors import anthropic_error_body
from gateway.exchange import Exchange
from gateway.parts import ModelCard
from orchestration.core.errors import InvalidRequest, LaminaError, NotFound

PREFIX = "/models/"
MAX_LIMIT = 1000
_USUAL_LIMIT = 20


class Models:
    """List the models that the caller's key may ask for; another one is a 404, as one that does not exist.

    A request with `anthropic-version` is answered in Anthropic's shape, in pages where it asks for them.
    """

    def __init__(self, cards: Sequence[ModelCard], *, gatekeeper: Gatekeeper) -> None:
        self._cards = {card.id: card for card in cards}
        self._gatekeeper = gatekeeper

    async def list(self, exchange: Exchange) -> None:
        """Answer with the caller's models."""
        tenant = self._gatekeeper.tenant_of(exchange.headers)
        cards = [card for card in self._cards.values() if self._gatekeeper.may_use(tenant, card.id)]
        if not _is_anthropics(exchange):
            await exchange.reply(200, orjson.dumps({"object": "list", "data": [_item(card) for card in cards]}))
            return
        try:
            await exchange.reply(200, orjson.dumps(_page(cards, parse_qs(exchange.scope["query_string"].decode()))))
        except InvalidRequest as error:
            await _refuse(exchange, error)

    async def get(self, exchange: Exchange) -> None:
        """Answer with one model, whose id may hold slashes; raises `NotFound` where the caller has none such."""
        tenant = self._gatekeeper.tenant_of(exchange.headers)
        model = exchange.scope["path"].partition(PREFIX)[2]
        card = self._cards.get(model)
        is_anthropics = _is_anthropics(exchange)
        if card is None or not self._gatekeeper.may_use(tenant, model):
            missing = NotFound(f"The model '{model[:256]}' does not exist here.", param="model", code="model_not_found")
            if not is_anthropics:
                raise missing
            await _refuse(exchange, missing)
            return
        await exchange.reply(200, orjson.dumps(_anthropic_item(card) if is_anthropics else _item(card)))


def _is_anthropics(exchange: Exchange) -> bool:
    return b"anthropic-version" in exchange.headers


async def _refuse(exchange: Exchange, error: LaminaError) -> None:
    """Answer an error in Anthropic's shape: the path alone does not tell whose client asks."""
    await exchange.reply(error.status, anthropic_error_body(error, exchange.id))


def _item(card: ModelCard) -> Mapping[str, Any]:
    kinds = sorted(kind.value for kind in card.kinds)
    return {"id": card.id, "object": "model", "created": card.created, "owned_by": card.owned_by, "kinds": kinds}


def _anthropic_item(card: ModelCard) -> Mapping[str, Any]:
    created_at = datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": card.id, "display_name": card.id, "created_at": created_at}


def _page(cards: Sequence[ModelCard], query: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """Cut the page that `limit`, `after_id` and `before_id` ask for; raises `InvalidRequest` by name."""
    limit = _limit_of(query.get("limit", [str(_USUAL_LIMIT)])[-1])
    ids = [card.id for card in cards]
    begin, end = 0, len(cards)
    if after := query.get("after_id"):
        begin = _place(ids, after[-1], "after_id") + 1
    elif before := query.get("before_id"):
        end = _place(ids, before[-1], "before_id")
        begin = max(0, end - limit)
    page = cards[begin : min(end, begin + limit)]
    has_more = begin > 0 if "before_id" in query else begin + len(page) < len(cards)
    return {
        "data": [_anthropic_item(card) for card in page],
        "has_more": has_more,
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }


def _limit_of(text: str) -> int:
    limit = int(text[:8]) if text.isascii() and text.isdigit() else 0
    if not 1 <= limit <= MAX_LIMIT:
        message = f"Invalid value for 'limit': expected a number from 1 to {MAX_LIMIT}, but got '{text[:32]}'."
        raise InvalidRequest(message, param="limit")
    return limit


def _place(ids: Sequence[str], id: str, param: str) -> int:
    if id not in ids:
        raise InvalidRequest(f"Invalid value for '{param}': there is no model '{id[:256]}'.", param=param)
    return ids.index(id)
