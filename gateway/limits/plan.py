"""From the settings to the parts that know keys and hold limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.limits.counters import Counters
from gateway.limits.estimate import Estimator
from gateway.limits.key_book import KeyBook
from gateway.limits.key_table import KeyHash, KeyTable
from gateway.limits.layer import LimitsLayer
from gateway.limits.reading import costs_of, limits_of
from gateway.limits.rules import Rules
from gateway.limits.spend import Spend
from gateway.limits.store import RedisScripts
from gateway.settings import Settings
from orchestration.core import Secret


@dataclass(frozen=True, slots=True)
class LimitParts:
    """The keys, the layer, and what is to be closed, in this order."""

    book: KeyBook
    layer: LimitsLayer
    closers: tuple[Callable[[], Awaitable[None]], ...]


def build_limits(settings: Settings, *, tenant_key: Secret, redis_url: str, database_url: str) -> LimitParts:
    """Build everything once; nothing connects before its first use."""
    hash_of = KeyHash(tenant_key)
    book = KeyBook(KeyTable(database_url, hash_of), hash_of, is_required=settings.keys.required)
    store, spend = RedisScripts(redis_url), Spend(database_url)
    counters = Counters(store, spend)
    layer = LimitsLayer(counters, rules=rules_of(settings, book), estimator=Estimator(costs_of(settings.models)))
    return LimitParts(book, layer, (counters.aclose, store.aclose, spend.aclose, book.aclose))


def rules_of(settings: Settings, book: KeyBook) -> Rules:
    """Read the defaults and the teams."""
    teams = {name: limits_of(team) for name, team in settings.limits.teams.items()}
    return Rules(book, default=limits_of(settings.limits.default), teams=teams)
