"""The settings' sections as limits and costs; imports little, since the command line reads them too."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.limits.estimate import ModelCost
from gateway.limits.rules import Limits
from gateway.settings import LimitSettings, ModelSettings
from orchestration.core import Price


def limits_of(settings: LimitSettings) -> Limits:
    """Read one element of the section `limits`."""
    return Limits(**settings.model_dump())


def costs_of(models: tuple[ModelSettings, ...]) -> Mapping[str, ModelCost]:
    """Bound each model's calls: a fallback may answer, at its own price."""
    prices = {
        model.id: Price(model.price.input_per_1m, model.price.output_per_1m, model.price.cached_input_per_1m)
        for model in models
    }
    return {
        model.id: ModelCost(
            prices=tuple(prices[name] for name in (model.id, *model.fallbacks)), max_tokens=model.max_tokens
        )
        for model in models
    }
