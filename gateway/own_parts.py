"""How a worker's parts are, and their numbers: what `/health/ready` and `/metrics` ask of other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backends.local.link import HistogramCounts
from backends.registry import BackendFactory
from cache.owner_client import OwnerClient
from cache.redis_store import RedisStore
from cache.semantic import IndexFault
from gateway.cache_learning import CacheLearning
from gateway.checks import CheckPlan
from gateway.limits.key_book import KeyBook
from gateway.parts import HealthCheck, StatsSource
from gateway.settings import Settings
from logging_layer.spool import Spool
from orchestration.core import Route
from orchestration.core.rpc import RpcClient, RpcError
from validators.guardrails_client import GuardrailsClient

_STATS_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class OwnParts:
    """The parts that are asked; none of them is remote."""

    settings: Settings
    checks: CheckPlan
    store: RedisStore
    spool: Spool
    book: KeyBook
    factory: BackendFactory
    owner: OwnerClient
    guard: GuardrailsClient
    shipper: RpcClient
    learning: CacheLearning

    def health(self, routes: Mapping[str, Route]) -> dict[str, HealthCheck]:
        """Ask every local part that is on, and none that is remote."""
        checks: dict[str, HealthCheck] = {"store": self.store.check_health, "log": self.spool.check_health}
        checks["keys"] = self.book.check_health
        checks["log_shipper"] = self._shipper_problem
        for model in self.settings.models:
            for settings, backend in zip(model.backends, routes[model.id].backends, strict=True):
                if settings.type == "engine":
                    checks["engine"] = backend.check_health
        if self.settings.uses_embedder:
            checks["cache_owner"] = self.owner.check_health
        if self.checks.worker_checks:
            checks["guardrails"] = self.guard.check_health
        return checks

    def stats(self) -> dict[str, StatsSource]:
        """Return whom to ask for numbers, by part."""
        sources: dict[str, StatsSource] = {"log_shipper": self._shipper_stats}
        if self.settings.uses_engine:
            sources["engine"] = self._engine_stats
        if self.settings.uses_embedder:
            sources["cache_owner"] = self._owner_stats
        if self.settings.uses_semantic_cache:
            sources["cache"] = self.learning.numbers
        return sources

    async def _engine_stats(self) -> Mapping[str, float]:
        return await self.factory.engine_stats() or {}

    async def _owner_stats(self) -> Mapping[str, float]:
        try:
            return await self.owner.stats()
        except IndexFault as exc:
            raise OSError(str(exc)) from exc

    async def owner_histograms(self) -> Mapping[str, HistogramCounts]:
        """Return the owner's histograms; raises `OSError` where it does not answer."""
        try:
            known = await self.owner.histograms()
        except IndexFault as exc:
            raise OSError(str(exc)) from exc
        return {
            name: HistogramCounts(tuple(bounds), tuple(counts), total)
            for name, (bounds, counts, total) in known.items()
        }

    async def _shipper_stats(self) -> Mapping[str, float]:
        try:
            numbers, _ = await self.shipper.call("stats", timeout_s=_STATS_TIMEOUT_S)
        except RpcError as exc:
            raise OSError(str(exc)) from exc
        return {str(name): float(value) for name, value in numbers.items()}

    async def _shipper_problem(self) -> str | None:
        try:
            answer, _ = await self.shipper.call("ping", timeout_s=_STATS_TIMEOUT_S)
        except RpcError as exc:
            return f"the log shipper does not answer: {exc}"
        problems = answer["problems"]
        return "; ".join(f"{sink}: {problem}" for sink, problem in problems.items()) or None
