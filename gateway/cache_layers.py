"""The two cache layers, put together from the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from cache.context import MultiTurn
from cache.exact import ExactCache
from cache.examiner import Examiner
from cache.guard import load_guard
from cache.judge.desk import DeskLimits, JudgeDesk
from cache.owner_client import OwnerClient
from cache.policies.build import build_policy
from cache.policies.drift import Terms
from cache.semantic import SemanticCache
from cache.worth import Bounds
from gateway.cache_keeping import CacheKeeping
from gateway.cache_learning import CacheLearning
from gateway.judging import judge_of
from gateway.route_hash import RouteHashes
from gateway.settings import Settings
from orchestration.core import Layer, Route
from orchestration.core.call import Call
from orchestration.core.standing import Standings


@dataclass(frozen=True, slots=True)
class CacheLayers:
    """What both layers are made of; `policy_of` says which checks stand for a call. `closers` end what was made."""

    settings: Settings
    keeping: CacheKeeping
    learning: CacheLearning
    owner: OwnerClient
    routes: RouteHashes
    policy_of: Callable[[Call], str]
    standings: Standings
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def exact(self) -> Layer | None:
        """Build the exact cache; `None` where it is off."""
        exact = self.settings.cache.exact
        if not exact.enabled:
            return None
        layer = ExactCache(
            self.keeping.store,
            ttl_s=exact.ttl_s,
            route_of=self.routes.of,
            policy_of=self.policy_of,
            leases=self.keeping.store if self._has_company() else None,  # three commands per miss
            is_last_tier=not self.settings.uses_semantic_cache,
            ledger=self.keeping.ledger,
        )
        self.keeping.on_cut(layer.close_flights)
        self.closers.append(layer.aclose)
        return layer

    def _has_company(self) -> bool:
        """Tell whether other workers or nodes may ask the same at the same time."""
        return self.settings.server.workers > 1 or self.settings.redis.url is not None

    def semantic(self, routes: Mapping[str, Route]) -> Layer | None:
        """Build the semantic cache; `None` where it is off."""
        semantic = self.settings.cache.semantic
        if not semantic.enabled:
            return None
        policy = build_policy(
            semantic.policy, threshold=semantic.threshold, wrong_to_call_cost=semantic.wrong_to_call_cost
        )
        examiner = Examiner(policy, load_guard() if semantic.guard else None)
        terms = Terms(semantic.policy, semantic.threshold, semantic.wrong_to_call_cost)
        self.learning.follow(
            examiner,
            settings=terms,
            shadow_share=semantic.shadow_share,
            near_miss_share=semantic.judge.share if semantic.judge is not None else 1.0,
        )
        layer = SemanticCache(
            self.owner,
            self.keeping.store,
            route_of=self.routes.of,
            policy_of=self.policy_of,
            examiner=examiner,
            shadow=self.learning.shadow(semantic.shadow_share),
            judge=self._judge(routes, examiner),
            multi_turn=MultiTurn(semantic.multi_turn),
            ledger=self.keeping.ledger,
            ttl_s=semantic.ttl_s,
            top_k=semantic.top_k,
            deadline_ms=semantic.deadline_ms,
        )
        self.closers.append(layer.aclose)
        return layer

    def _judge(self, routes: Mapping[str, Route], examiner: Examiner) -> JudgeDesk | None:
        chosen = self.settings.cache.semantic.judge
        if chosen is None:
            return None
        judge = judge_of(
            routes[chosen.model],
            mark=self.routes.of(chosen.model),
            standings=self.standings,
            timeout_s=chosen.timeout_s,
        )
        limits = DeskLimits(
            per_minute=chosen.per_minute / self.settings.server.workers,
            share=chosen.share,
            max_waiting=chosen.max_waiting,
            min_similarity=chosen.min_similarity,
        )
        store = self.keeping.store
        return self.learning.judge(
            judge, model=chosen.model, limits=limits, store=store, leases=store, examiner=examiner
        )


def cache_bounds(settings: Settings) -> Bounds:
    """Return what the caches may keep; of a private Valkey half, where nothing else is said: it holds counters, too."""
    max_bytes = settings.cache.max_bytes
    if max_bytes is None and settings.redis.url is None:
        max_bytes = settings.redis.max_memory_mb * 1024 * 1024 // 2
    return Bounds(settings.cache.max_entries, max_bytes)
