"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.exchange import Exchange
from gateway.parts import ModelCard
from orchestration.core.errors import NotFound

PREFIX = "/v1/models/"


class Models:
    """List the models that may be asked for; what is listed is fixed at start."""

    def __init__(self, cards: Sequence[ModelCard]) -> None:
        self._items = {card.id: orjson.dumps(_item(card)) for card in cards}
        self._list = orjson.dumps({"object": "list", "data": [_item(card) for card in cards]})

    async def list(self, exchange: Exchange) -> None:
        """Answer with all models."""
        await exchange.reply(200, self._list)

    async def get(self, exchange: Exchange) -> None:
        """Answer with one model, whose id may hold slashes; raises `NotFound` where there is none."""
        model = exchange.scope["path"].removeprefix(PREFIX)
        item = self._items.get(model)
        if item is None:
            raise NotFound(f"The model '{model[:256]}' does not exist here.", param="model", code="model_not_found")
        await exchange.reply(200, item)


def _item(card: ModelCard) -> Mapping[str, Any]:
    kinds = sorted(kind.value for kind in card.kinds)
    return {"id": card.id, "object": "model", "created": card.created, "owned_by": card.owned_by, "kinds": kinds}
