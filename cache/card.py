"""What a store is told about an answer beside its bytes: whose it is, what it is found by, what it is worth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from cache.entry import Entry
from orchestration.core import Call, Event, Finish, Usage

USD_PER_UNPRICED_TOKEN = 1e-6
"""What a token counts for where the call had no price: a dollar a million, so that longer answers are worth more."""
_LEAST_WORTH_USD = 1e-9


class Invalidated(Exception):
    """The answer was on its way when an invalidation that covers it came: it is not kept."""


@dataclass(frozen=True, slots=True)
class Card:
    """One kept answer's card. `model` is the alias that was asked for, `real_model` the one that answered.

    `epoch` is the latest invalidation that was known when the backend was asked. `saves_usd` is what a hit saves,
    None where the call had no price; `worth_usd` is always more than 0. `partition` is a semantic entry's, `twin`
    the store's key under which the exact cache keeps the same answer.
    """

    id: str
    kind: str
    call: str
    tenant: str
    model: str
    real_model: str
    tags: tuple[str, ...]
    epoch: int
    worth_usd: float
    saves_usd: float | None = None
    partition: str | None = None
    twin: str | None = None

    def pack(self) -> str:
        """Write it as the script reads it."""
        fields = {
            "id": self.id,
            "kind": self.kind,
            "call": self.call,
            "tenant": self.tenant,
            "model": self.model,
            "real": self.real_model,
            "tags": list(self.tags),
            "saves": self.saves_usd or 0.0,
            "partition": self.partition or "",
            "twin": self.twin or "",
        }
        return json.dumps(fields)


def make_card(
    call: Call,
    entry: Entry,
    events: Sequence[Event],
    *,
    kind: str,
    epoch: int,
    partition: str | None = None,
    twin: str | None = None,
) -> Card:
    """Make the card of a call that has just been answered by `events`, of which `entry` is made."""
    cost_usd = call.notes.cost_usd
    return Card(
        id=entry.id,
        kind=kind,
        call=call.id,
        tenant=call.tenant,
        model=call.request.model,
        real_model=entry.model,
        tags=call.controls.tags,
        epoch=epoch,
        worth_usd=_worth_usd(cost_usd, _usage_of(events)),
        saves_usd=cost_usd,
        partition=partition,
        twin=twin,
    )


def _worth_usd(cost_usd: float | None, usage: Usage | None) -> float:
    """Return what the call cost, or a nominal price of its tokens."""
    if cost_usd is not None and cost_usd > 0.0:
        return cost_usd
    num_tokens = 0 if usage is None else usage.prompt_tokens + usage.completion_tokens
    return max(_LEAST_WORTH_USD, num_tokens * USD_PER_UNPRICED_TOKEN)


def _usage_of(events: Sequence[Event]) -> Usage | None:
    last = events[-1] if events else None
    return last.usage if isinstance(last, Finish) else None
