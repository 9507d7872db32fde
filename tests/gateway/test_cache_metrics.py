from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.cache_metrics import CacheMetrics
from gateway.tallies import Tallies
from orchestration.core import CacheStatus, Candidate, Notes, Price, Usage

USAGE = Usage(prompt_tokens=1000, completion_tokens=500)


def a_hit(status: CacheStatus, *, is_alias: bool = False, is_collapsed: bool = False) -> Notes:
    notes = Notes(cost_usd=0.0, backend="echo")
    notes.cache.status, notes.cache.is_alias, notes.cache.is_collapsed = status, is_alias, is_collapsed
    return notes


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def tallies() -> Tallies:
    return Tallies()


@pytest.fixture
def metrics(registry: CollectorRegistry, tallies: Tallies) -> CacheMetrics:
    made = CacheMetrics(registry, tallies)
    made.price_of = lambda _models, _backend: Price(input_per_1m=10, output_per_1m=40)
    return made


@pytest.mark.parametrize(
    ("notes", "kind"),
    [
        (a_hit(CacheStatus.EXACT), "exact"),
        (a_hit(CacheStatus.SEMANTIC), "semantic"),
        (a_hit(CacheStatus.SEMANTIC, is_alias=True), "alias"),
        (a_hit(CacheStatus.EXACT, is_collapsed=True), "coalesced"),
    ],
)
def test_a_hit_is_counted_by_its_kind_and_what_it_saved(
    metrics: CacheMetrics, registry: CollectorRegistry, tallies: Tallies, notes: Notes, kind: str
) -> None:
    metrics.observe(notes, USAGE, model="m")
    tallies.tell()

    assert registry.get_sample_value("lamina_cache_hits_total", {"kind": kind}) == 1
    assert registry.get_sample_value("lamina_cache_saved_usd_total") == pytest.approx(0.03)
    assert registry.get_sample_value("lamina_cache_saved_tokens_total", {"type": "completion"}) == 500


def test_one_who_paid_for_the_flight_it_joined_saved_nothing(
    metrics: CacheMetrics, registry: CollectorRegistry, tallies: Tallies
) -> None:
    notes = a_hit(CacheStatus.EXACT, is_collapsed=True)
    notes.cost_usd = 0.03

    metrics.observe(notes, USAGE, model="m")
    tallies.tell()

    assert registry.get_sample_value("lamina_cache_saved_usd_total") == 0


@pytest.mark.parametrize(
    ("said", "threshold", "reason"),
    [
        (None, None, "absent"),
        ("temperature_unstated", None, "ineligible"),
        ("vetoed", 0.95, "vetoed"),
        ("slow", 0.95, "slow"),
        ("a word of tomorrow's", 0.95, "other"),
    ],
)
def test_a_miss_is_counted_by_its_reason(
    metrics: CacheMetrics,
    registry: CollectorRegistry,
    tallies: Tallies,
    said: str | None,
    threshold: float | None,
    reason: str,
) -> None:
    notes = Notes()
    notes.cache.status, notes.cache.threshold = CacheStatus.MISS, threshold
    if said is not None:
        notes.extra["semantic"] = said

    metrics.observe(notes, None, model="m")
    tallies.tell()

    assert registry.get_sample_value("lamina_cache_misses_total", {"reason": reason}) == 1


def test_every_veto_is_counted_by_its_reason(
    metrics: CacheMetrics, registry: CollectorRegistry, tallies: Tallies
) -> None:
    notes = Notes()
    notes.cache.status, notes.cache.threshold = CacheStatus.MISS, 0.95
    notes.cache.candidates = [Candidate("a", 0.99, veto="number"), Candidate("b", 0.98, veto="number")]

    metrics.observe(notes, None, model="m")
    tallies.tell()

    assert registry.get_sample_value("lamina_cache_vetoes_total", {"reason": "number"}) == 2


def test_a_call_that_was_not_looked_up_is_no_miss(
    metrics: CacheMetrics, registry: CollectorRegistry, tallies: Tallies
) -> None:
    metrics.observe(Notes(), None, model="m")
    tallies.tell()

    assert not any(
        sample.name.startswith("lamina_cache_misses") for family in registry.collect() for sample in family.samples
    )
