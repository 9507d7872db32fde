"""What a sweep shows beside its curve: histograms, the reliability of a scorer, the bar at every price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logging_layer.tuning.prices import Prices
from logging_layer.tuning.scored import Scored
from logging_layer.tuning.sweep import Rate, recommend, sweep, wilson

NUM_BINS = 40
RATIOS = (1, 2, 5, 10, 15, 25, 40, 60, 100, 150, 250, 500, 1000)
"""Prices of a wrong answer, in calls, at which the bar is shown."""


@dataclass(frozen=True, slots=True)
class Bin:
    """The rows whose similarity is at least `low` and below `high`, by what is known of them."""

    low: float
    high: float
    right: int
    wrong: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """The labelled rows whose P(correct) falls into one tenth: what was claimed, and what came true."""

    claimed: float
    came_true: Rate
    num_rows: int


@dataclass(frozen=True, slots=True)
class PricePoint:
    """The recommended bar, and its value per 1,000 requests, where a wrong answer costs `ratio` calls."""

    ratio: float
    threshold: float | None
    value_usd: float


def histogram(rows: Sequence[Scored], *, num_bins: int = NUM_BINS) -> list[Bin]:
    """Count right, wrong and unknown neighbours in equal bins from the least similarity to 1."""
    low = min(0.9, *(row.similarity for row in rows)) if len(rows) > 1 else min(0.9, rows[0].similarity)
    width = (1.0 - low) / num_bins
    counts = [[0, 0, 0] for _ in range(num_bins)]
    for row in rows:
        at = min(int((row.similarity - low) / width), num_bins - 1)
        counts[at][2 if row.is_correct is None else 0 if row.is_correct else 1] += 1
    return [Bin(low + n * width, low + (n + 1) * width, *count) for n, count in enumerate(counts)]


def reliability(rows: Sequence[Scored]) -> list[Calibration]:
    """Compare P(correct) with what came true, by tenths; empty where no row has one."""
    tenths: list[list[Scored]] = [[] for _ in range(10)]
    for row in rows:
        if row.p_correct is not None and row.is_correct is not None:
            tenths[min(int(row.p_correct * 10), 9)].append(row)
    return [_calibration(tenth) for tenth in tenths if tenth]


def expected_calibration_error(rows: Sequence[Calibration]) -> float | None:
    """Return the mean distance between claim and truth, weighted by rows (Naeini et al., 2015); None without rows."""
    total = sum(row.num_rows for row in rows)
    return sum(row.num_rows * abs(row.claimed - row.came_true.value) for row in rows) / total if total else None


def price_curve(rows: Sequence[Scored], *, thresholds: Sequence[float], call_usd: float) -> list[PricePoint]:
    """Return the recommended bar at every price of a wrong answer."""
    curve = []
    for ratio in RATIOS:
        best = recommend(sweep(rows, thresholds=thresholds, prices=Prices(call_usd, ratio * call_usd)))
        curve.append(PricePoint(ratio, best.threshold if best else None, best.value_usd if best else 0.0))
    return curve


def _calibration(rows: Sequence[Scored]) -> Calibration:
    claimed = sum(row.p_correct or 0.0 for row in rows) / len(rows)
    return Calibration(claimed, wilson(sum(row.is_correct is True for row in rows), len(rows)), len(rows))
