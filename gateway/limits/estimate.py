"""How much a call may use at most, before anybody knows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.limits.rules import NANO_PER_USD
from orchestration.core import Call, Kind, Price, Request, Usage
from orchestration.core.errors import InvalidRequest
from orchestration.core.request import TOKEN_KINDS

DEFAULT_MAX_TOKENS = 8192
_BYTES_PER_TOKEN = 4
_EMBEDDED = b";base64,"
_EMBEDDED_TOKENS = 4096
"""What an image counts for instead of its bytes."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What bounds a model's calls: the dearest price of the model and its fallbacks, and its longest answer."""

    prices: tuple[Price, ...] = ()
    max_tokens: int = DEFAULT_MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Estimate:
    """A call's share of the limits: `tokens` is likely, `nano_usd` is a bound that the cost does not pass."""

    tokens: int
    nano_usd: int


class Estimator:
    """Bound calls by what they carry: no tokenizer makes more tokens than there are bytes."""

    def __init__(self, models: Mapping[str, ModelCost]) -> None:
        self._models = models

    def estimate(self, call: Call) -> Estimate:
        """Bound one call: its prompt, and as many answers of the longest length as it asks for."""
        request = call.request
        if request.kind in TOKEN_KINDS:
            return Estimate(tokens=0, nano_usd=0)
        model = self._models.get(request.model, ModelCost())
        prompt = _prompt_bytes(request)
        answer = _answer_tokens(request, model.max_tokens)
        dearest = max((_bound(price, prompt, answer) for price in model.prices), default=0.0)
        return Estimate(
            tokens=math.ceil(prompt / _BYTES_PER_TOKEN) + answer, nano_usd=math.ceil(dearest * NANO_PER_USD)
        )

    def broken_off(self, call: Call, *, num_deltas: int, num_chars: int) -> tuple[int, float]:
        """Guess the tokens and the dollars of an answer that broke off: nobody counts those, and they are not free."""
        if call.kind in TOKEN_KINDS:
            return 0, 0.0
        model = self._models.get(_answering(call), ModelCost())
        prompt = math.ceil(_prompt_bytes(call.request) / _BYTES_PER_TOKEN)
        most = _answer_tokens(call.request, model.max_tokens)
        answer = min(most, max(num_deltas, math.ceil(num_chars / _BYTES_PER_TOKEN)))
        usage = Usage(prompt_tokens=prompt, completion_tokens=answer)
        return usage.total_tokens, model.prices[0].cost_usd(usage) if model.prices else 0.0


def _answering(call: Call) -> str:
    """Name the model that answered, as far as it is known: a fallback, or one that was chosen, has its own price."""
    return call.notes.attempts[-1].model if call.notes.attempts else call.request.model


def _bound(price: Price, prompt_tokens: int, answer_tokens: int) -> float:
    dearest_input = max(price.input_per_1m, price.cached_input_per_1m or 0.0)
    return (prompt_tokens * dearest_input + answer_tokens * price.output_per_1m) / 1e6


def _prompt_bytes(request: Request) -> int:
    """Count the request's bytes: JSON's own around each message outweigh what a template adds."""
    raw = request.raw or _dumped(request.fields)
    if _EMBEDDED not in raw:
        return len(raw)
    pieces = raw.split(_EMBEDDED)
    embedded = sum(piece.find(b'"') for piece in pieces[1:])
    return len(raw) - embedded + len(pieces[1:]) * _EMBEDDED_TOKENS


def _dumped(fields: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(dict(fields))
    except TypeError:  # half of a surrogate pair, an integer of more than 64 bits
        try:
            return json.dumps(dict(fields)).encode()
        except RecursionError as exc:
            raise InvalidRequest("The request is nested too deeply.") from exc


def _answer_tokens(request: Request, most: int) -> int:
    if request.kind not in (Kind.CHAT, Kind.COMPLETION):
        return 0
    fields = request.fields
    asked = fields.get("max_completion_tokens") or fields.get("max_tokens")
    return (asked if isinstance(asked, int) else most) * _num_answers(request.num_choices, fields)


def _num_answers(num_choices: int, fields: Mapping[str, Any]) -> int:
    best_of = fields.get("best_of")
    each = max(num_choices, best_of) if isinstance(best_of, int) else num_choices
    prompt = fields.get("prompt")
    is_several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return each * len(prompt) if isinstance(prompt, list) and is_several else each
