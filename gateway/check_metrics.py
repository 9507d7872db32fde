"""What the checks do, as metrics: how often each one ran, what it found, and how long it took."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.tallies import Tallies
from orchestration.core.notes import Notes

_SECONDS = (0.000002, 0.00001, 0.00005, 0.0002, 0.001, 0.005, 0.02, 0.1, 0.5, 2, 10)
_KINDS = frozenset({"timeout", "raised", "breaker_open", "unavailable", "busy"})
"""What a failure's reason begins with."""


class CheckMetrics:
    """Count the checks of calls that end. Names of checks are the settings', so their number is bounded.

    The registry knows of them when the `tallies` are told.
    """

    def __init__(self, registry: CollectorRegistry, tallies: Tallies | None = None) -> None:
        tallies = tallies or Tallies()
        runs = Counter(
            "lamina_checks",
            "Checks that ran: what each found (pass, rewrite, block, error), and what was done about it.",
            ["check", "stage", "verdict", "action"],
            registry=registry,
        )
        seconds = Histogram(
            "lamina_check_seconds",
            "How long a check took over one call, of every eighth call.",
            ["check", "stage"],
            buckets=_SECONDS,
            registry=registry,
        )
        failures = Counter(
            "lamina_check_failures",
            "Checks that could not run: timeout, raised, breaker_open, unavailable, busy, or other.",
            ["check", "stage", "kind"],
            registry=registry,
        )
        self._runs = tallies.counter(runs)
        self._seconds = tallies.histogram(seconds)
        self._failures = tallies.counter(failures)

    def observe(self, notes: Notes, *, is_timed: bool) -> None:
        """Count one call's checks, and their times where `is_timed`."""
        for note in notes.checks:
            self._runs(note.check, note.stage, note.verdict, note.action).waiting += 1
            if note.verdict == "error":
                self._failures(note.check, note.stage, _kind(note.reason)).waiting += 1
            if is_timed:
                self._seconds(note.check, note.stage).observe(note.duration_ms / 1000.0)


def _kind(reason: str | None) -> str:
    kind = (reason or "").partition(":")[0]
    return kind if kind in _KINDS else "other"
