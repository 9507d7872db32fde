"""Where a model's calls go, and what they cost there."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.core.balance import Strategy
from orchestration.core.complexity import ModelChoice
from orchestration.core.events import Usage
from orchestration.core.hedge import Hedge
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
class Terms:
    """What a route says of one backend: `id` names the deployment everywhere; without a price the route's counts."""

    id: str
    weight: float = 1.0
    price: Price | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One backend of a route, with its terms."""

    backend: Backend
    id: str
    weight: float
    price: Price


@dataclass(frozen=True, slots=True)
class Route:
    """A model's backends by `strategy`, each asked again `retries` times, then the models to fall back to.

    `terms`, where given, has one element a backend. A route with a `choice` has no backends: it picks a model by
    the request. `hedge` allows a second try beside a slow first one.
    """

    model: str
    backends: tuple[Backend, ...]
    kinds: frozenset[Kind]
    retries: int = 1
    fallbacks: tuple[str, ...] = ()
    price: Price = Price()
    strategy: Strategy = Strategy.ROUND_ROBIN
    terms: tuple[Terms, ...] = ()
    hedge: Hedge | None = None
    choice: ModelChoice | None = None

    def targets(self) -> tuple[Target, ...]:
        """List the backends with their terms; those without any are known by the model and their place."""
        terms = self.terms or tuple(
            Terms(f"{self.model}/{place}:{backend.name}") for place, backend in enumerate(self.backends)
        )
        return tuple(
            Target(backend, one.id, one.weight, one.price or self.price)
            for backend, one in zip(self.backends, terms, strict=True)
        )
