from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.tallies import Tallies
from tests.gateway.whole import until


def _page(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line and not line.startswith("#")]


def _histogram() -> tuple[CollectorRegistry, Histogram]:
    registry = CollectorRegistry()
    return registry, Histogram("h", "H.", ["a"], buckets=(0.1, 1, 10), registry=registry)


@given(st.lists(st.lists(st.one_of(st.floats(0, 20), st.sampled_from([0.1, 1.0, 10.0])))))
def test_a_histogram_told_late_shows_what_it_would_have_shown_at_once(rounds: list[list[float]]) -> None:
    late, late_metric = _histogram()
    at_once, metric = _histogram()
    tallies = Tallies()
    tally = tallies.histogram(late_metric)

    for values in rounds:
        for value in values:
            tally("x").observe(value)
            metric.labels("x").observe(value)
        tallies.tell()

    counts = [line for line in _page(late) if "_sum" not in line]
    assert not rounds or not any(rounds) or counts == [line for line in _page(at_once) if "_sum" not in line]
    assert sum(map(sum, rounds)) - 1e-6 <= (late.get_sample_value("h_sum", {"a": "x"}) or 0.0)


def test_counters_and_gauges_show_what_was_counted_when_they_are_told() -> None:
    registry = CollectorRegistry()
    tallies = Tallies()
    calls = tallies.counter(Counter("calls", "C.", ["a"], registry=registry))
    running = tallies.gauge(Gauge("running", "R.", ["a"], registry=registry))

    with running("x"):
        calls("x").waiting += 2
        before = registry.get_sample_value("calls_total", {"a": "x"})
        tallies.tell()
        meanwhile = registry.get_sample_value("running", {"a": "x"})
    calls("x").waiting += 1
    tallies.tell()
    tallies.tell()

    assert (before, meanwhile) == (0.0, 1.0)
    assert registry.get_sample_value("calls_total", {"a": "x"}) == 3.0
    assert registry.get_sample_value("running", {"a": "x"}) == 0.0


async def test_what_nobody_asks_for_is_told_by_itself() -> None:
    registry = CollectorRegistry()
    tallies = Tallies()
    calls = tallies.counter(Counter("calls", "C.", ["a"], registry=registry))

    calls("x").waiting += 1
    tallies.touched()
    await until(lambda: registry.get_sample_value("calls_total", {"a": "x"}) == 1.0)
