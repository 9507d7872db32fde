"""Routes from settings, and what runs beside the router: shared cool-downs and health checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backends.registry import BackendOptions, kinds_of
from gateway.cooldowns import RedisCooldowns
from gateway.deployments import deployment_id
from gateway.health_watch import HealthWatch
from gateway.settings import BackendSettings, ModelSettings, Settings
from gateway.settings.tree import PriceSettings
from orchestration.core import Backend, Kind, Price, Route
from orchestration.core.complexity import ModelChoice
from orchestration.core.hedge import Hedge
from orchestration.core.route import Terms
from orchestration.core.standing import Standings

BuildBackend = Callable[[ModelSettings, BackendSettings], Backend]


def build_routes(settings: Settings, build: BuildBackend, *, node: str) -> dict[str, Route]:
    """Make every model's route, in the order of the settings; those that choose take the kinds of what they choose."""
    routes = {model.id: _route(settings, model, build, node) for model in settings.models if model.route is None}
    for model in settings.models:
        if model.route is not None:
            # A chat is counted by the model that it would be answered by; ids have no model that they choose.
            ids = {Kind.TOKENIZE, Kind.DETOKENIZE}
            kinds = frozenset.intersection(*(routes[name].kinds for name in model.route.models)) - ids
            choice = ModelChoice(small=model.route.small, medium=model.route.medium, large=model.route.large)
            routes[model.id] = Route(model=model.id, backends=(), kinds=kinds, choice=choice)
    return {model.id: routes[model.id] for model in settings.models}


def choices_before_caches(settings: Settings, routes: Mapping[str, Route]) -> dict[str, ModelChoice]:
    """List the aliases whose model is chosen before the caches look."""
    found = {}
    for model in settings.models:
        choice = routes[model.id].choice
        if choice is not None and model.route is not None and model.route.cache_scope == "model":
            found[model.id] = choice
    return found


def price_of(routes: Mapping[str, Route], models: Sequence[str | None], backend: str | None) -> Price:
    """Return what an answer costs: at the first of these models that has backends, by the price of the backend of
    that name, else of its first one.

    An answer of models that are not there, or that choose among others, costs nothing here.
    """
    routed = (routes[model].targets() for model in models if model is not None and model in routes)
    targets = next((targets for targets in routed if targets), ())
    named = (target for target in targets if target.backend.name == backend)
    found = next(named, targets[0] if targets else None)
    return Price() if found is None else found.price


def remote_options(model: ModelSettings, backend: BackendSettings) -> BackendOptions:
    """Say how a backend is reached, as far as its own settings say it."""
    return BackendOptions(
        type=backend.type,
        model=model.id,
        upstream_model=backend.model,
        base_url=backend.base_url,
        api_key=backend.api_key,
        provider=backend.provider,
        drops=backend.drop_params,
        connect_s=backend.timeout_s.connect,
        first_token_s=backend.timeout_s.first_token,
        total_s=backend.timeout_s.total,
    )


class RoutingWatch:
    """Share cool-downs, watch backends' health where another could stand in, and say how each one stands."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        standings: Standings,
        redis_url: str,
        health_interval_s: float | None,
    ) -> None:
        self._routes = routes
        self._standings = standings
        ids = [target.id for route in routes.values() for target in route.targets()]
        self._cooldowns = RedisCooldowns(redis_url, standings=standings, ids=ids)
        self._health = HealthWatch(
            _replaceable(routes) if health_interval_s is not None else {},
            standings=standings,
            interval_s=health_interval_s or 0.0,
        )

    def start(self) -> None:
        """Begin to share and to watch."""
        self._standings.cooldowns = self._cooldowns
        self._cooldowns.start()
        self._health.start()

    async def aclose(self) -> None:
        """Stop both."""
        if self._standings.cooldowns is self._cooldowns:
            self._standings.cooldowns = None
        await self._health.aclose()
        await self._cooldowns.aclose()

    def describe(self) -> list[dict[str, Any]]:
        """Say how each model is routed and how its backends stand, as this process sees it."""
        return [self._describe(route) for route in self._routes.values()]

    def _describe(self, route: Route) -> dict[str, Any]:
        backends = [
            {"name": target.backend.name, "weight": target.weight, **self._standings.describe(target.id)}
            for target in route.targets()
        ]
        chooses = list(route.choice.models()) if route.choice is not None else None
        return {
            "model": route.model,
            "strategy": route.strategy.value if chooses is None else "complexity",
            "chooses": chooses,
            "fallbacks": list(route.fallbacks),
            "backends": backends,
        }


def _route(settings: Settings, model: ModelSettings, build: BuildBackend, node: str) -> Route:
    kinds: Sequence[frozenset[Kind]] = [kinds_of(backend.type, backend.provider) for backend in model.backends]
    terms = tuple(
        Terms(
            id=deployment_id(settings, model, backend, node=node),
            weight=backend.weight,
            price=_price(backend.price) if backend.price is not None else None,
        )
        for backend in model.backends
    )
    hedge = model.hedge
    return Route(
        model=model.id,
        backends=tuple(build(model, backend) for backend in model.backends),
        kinds=frozenset.intersection(*kinds),
        retries=model.retries,
        fallbacks=model.fallbacks,
        price=_price(model.price),
        strategy=model.strategy,
        terms=terms,
        hedge=Hedge(hedge.after_ms, hedge.quantile, hedge.max_share) if hedge is not None else None,
    )


def _price(price: PriceSettings) -> Price:
    return Price(price.input_per_1m, price.output_per_1m, price.cached_input_per_1m)


def _replaceable(routes: Mapping[str, Route]) -> dict[str, Backend]:
    """List the backends that another backend or model could stand in for."""
    return {
        target.id: target.backend
        for route in routes.values()
        for target in route.targets()
        if len(route.backends) > 1 or route.fallbacks
    }
