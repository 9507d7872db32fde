"""Histograms of bounded size, under vLLM's names, and what a step costs to be counted: a few additions a row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_BETWEEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)

BOUNDS: Mapping[str, Sequence[float]] = {
    "time_to_first_token_seconds": _FIRST_S,
    "inter_token_latency_seconds": _BETWEEN_S,
    "request_time_per_output_token_seconds": _BETWEEN_S,
    "e2e_request_latency_seconds": _WHOLE_S,
    "request_queue_time_seconds": _WHOLE_S,
    "request_prefill_time_seconds": _WHOLE_S,
    "request_decode_time_seconds": _WHOLE_S,
    "request_inference_time_seconds": _WHOLE_S,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "iteration_tokens_total": _STEP_TOKENS,
    "step_seconds": _STEP_S,
}
"""The upper bounds of every histogram's buckets. All but `step_seconds` are vLLM's, and so are their bounds."""


class Histogram:
    """Count values by bucket; a value on a bound belongs below it, as in Prometheus."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> Sequence[int]:
        """Return how many values are at most each bound, and at last how many there are in all."""
        return list(accumulate(self._counts))


Snapshot = Mapping[str, tuple[Sequence[float], Sequence[int], float]]
"""By a histogram's name, its bounds, its cumulative counts (one more than bounds), and the sum of its values."""


class Histograms:
    """Every histogram of an engine, by its name without a prefix."""

    def __init__(self) -> None:
        self._by_name = {name: Histogram(bounds) for name, bounds in BOUNDS.items()}

    def __getitem__(self, name: str) -> Histogram:
        """Return one to observe."""
        return self._by_name[name]

    def snapshot(self) -> Snapshot:
        """Return all of them as they are now."""
        return {name: (each.bounds, each.cumulative(), each.total) for name, each in self._by_name.items()}
