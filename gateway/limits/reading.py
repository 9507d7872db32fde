"""The settings' sections as limits and costs; imports little, since the command line reads them too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.limits.estimate import ModelCost
from gateway.limits.rules import Limits
from gateway.settings import LimitSettings, ModelSettings
from orchestration.core import Price


def limits_of(settings: LimitSettings) -> Limits:
    """Read one element of the section `limits`."""
    return Limits(**settings.model_dump())


def costs_of(models: tuple[ModelSettings, ...]) -> Mapping[str, ModelCost]:
    """Bound each model's calls: any of its backends, what it chooses, or a fallback may answer, each at its price."""
    by_id = {model.id: model for model in models}
    costs = {}
    for model in models:
        chosen = [by_id[name] for name in model.route.models] if model.route is not None else [model]
        reached = [by_id[name] for one in chosen for name in (one.id, *one.fallbacks)]
        costs[model.id] = ModelCost(
            prices=tuple(price for one in reached for price in _prices(one)),
            max_tokens=max(one.max_tokens for one in chosen),
        )
    return costs


def _prices(model: ModelSettings) -> Iterator[Price]:
    for price in (model.price, *(backend.price for backend in model.backends if backend.price is not None)):
        yield Price(price.input_per_1m, price.output_per_1m, price.cached_input_per_1m)
