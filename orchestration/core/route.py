"""Where a model's calls go, and what they cost there."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.core.events import Usage
from orchestration.core.protocols import Backend
from orchestration.core.request import Kind


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, in US dollars; cached input costs as other input where no price of its own is set."""

    input_per_1m: float = 0.0
    output_per_1m: float = 0.0
    cached_input_per_1m: float | None = None

    def cost_usd(self, usage: Usage) -> float:
        """Price one call's usage: the cached part of the prompt at its own price."""
        cached = self.input_per_1m if self.cached_input_per_1m is None else self.cached_input_per_1m
        fresh = usage.prompt_tokens - usage.cached_tokens
        micro_usd = fresh * self.input_per_1m + usage.cached_tokens * cached
        return (micro_usd + usage.completion_tokens * self.output_per_1m) / 1e6


@dataclass(frozen=True, slots=True)
class Route:
    """A model's backends in turn, each asked again `retries` times, then the models to fall back to."""

    model: str
    backends: tuple[Backend, ...]
    kinds: frozenset[Kind]
    retries: int = 1
    fallbacks: tuple[str, ...] = ()
    price: Price = Price()
