from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.check_metrics import CheckMetrics
from gateway.tallies import Tallies
from orchestration.core import CheckNote, Notes


def test_checks_are_counted_by_what_they_found_and_timed_now_and_then() -> None:
    registry = CollectorRegistry()
    tallies = Tallies()
    metrics = CheckMetrics(registry, tallies)
    notes = Notes()
    notes.checks += [
        CheckNote("length", "input", "pass", "none", duration_ms=0.5),
        CheckNote("secrets", "input", "rewrite", "rewrite", duration_ms=2.0),
    ]

    for is_timed in (True, False, False):
        metrics.observe(notes, is_timed=is_timed)
    tallies.tell()

    found = {"check": "secrets", "stage": "input", "verdict": "rewrite", "action": "rewrite"}
    assert registry.get_sample_value("lamina_checks_total", found) == 3
    assert registry.get_sample_value("lamina_check_seconds_sum", {"check": "length", "stage": "input"}) == 0.0005


def test_failures_are_counted_by_what_happened() -> None:
    registry = CollectorRegistry()
    tallies, notes = Tallies(), Notes()
    metrics = CheckMetrics(registry, tallies)
    for reason in (
        "timeout: it took longer than 1 s",
        "breaker_open: it failed",
        "raised: ValueError",
        "something: else",
    ):
        notes.checks.append(CheckNote("mine", "output", "error", "failed_open", reason))

    metrics.observe(notes, is_timed=False)
    tallies.tell()

    for kind in ("timeout", "breaker_open", "raised", "other"):
        labels = {"check": "mine", "stage": "output", "kind": kind}
        assert registry.get_sample_value("lamina_check_failures_total", labels) == 1
