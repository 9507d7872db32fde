"""What each bar would have done to a stream of requests, with the uncertainty of what was labelled."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from logging_layer.tuning.prices import Prices
from logging_layer.tuning.scored import Scored

PER = 1000
"""Counts and dollars of a `Point` are for so many requests."""
_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its 95 % Wilson interval; all three are NaN-free: without cases the interval is 0 to 1."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """One bar's outcome per 1,000 requests.

    `hits` counts every request at or above the bar, wrong ones too. Where only some hits are labelled, `wrong` is
    their share carried over to all hits, and the intervals are as wide as the few labels make them. Hits less similar
    than every labelled one are beyond what labels vouch for: the upper end takes them all for wrong.
    `value_low_usd` is the value if the wrong hits were at the upper end of their interval.
    """

    threshold: float
    hits: float
    wrong: float
    saved_usd: float
    lost_usd: float
    value_usd: float
    value_low_usd: float
    num_labelled: int
    hit_rate: Rate
    wrong_per_request: Rate
    wrong_per_hit: Rate
    wrong_per_trap: Rate


def wilson(successes: float, trials: float, *, z: float = _Z95) -> Rate:
    """Return a share with Wilson's score interval (E. B. Wilson, 1927)."""
    if trials <= 0:
        return Rate(0.0, 0.0, 1.0)
    share = successes / trials
    spread = z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    # Rounding may put an end a hair inside the share.
    return Rate(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def sweep(rows: Sequence[Scored], *, thresholds: Iterable[float], prices: Prices) -> list[Point]:
    """Return one point for each threshold, in the order given."""
    stream = _Stream(rows)
    return [stream.at(threshold, prices=prices) for threshold in thresholds]


def recommend(points: Sequence[Point]) -> Point | None:
    """Return the point with the most value that the labels vouch for, the higher bar among equals.

    None where no bar is sure to be worth its mistakes: then nothing should be served.
    """
    best = max(points, key=lambda point: (round(point.value_low_usd, 9), point.threshold), default=None)
    return best if best is not None and best.value_low_usd > 0.0 and best.hits > 0 else None


class _Stream:
    """The rows sorted by similarity, so that each bar is one search."""

    def __init__(self, rows: Sequence[Scored]) -> None:
        ordered = sorted(rows, key=lambda row: row.similarity)
        self._similarities = [row.similarity for row in ordered]
        self._labelled = _running(row.is_correct is not None for row in ordered)
        self._wrong = _running(row.is_correct is False for row in ordered)
        self._first_labelled = bisect_left(self._labelled, 1) - 1 if self._labelled[-1] else len(ordered)

    def at(self, threshold: float, *, prices: Prices) -> Point:
        """Compute one bar's outcome."""
        requests = len(self._similarities)
        below = bisect_left(self._similarities, threshold)
        hits = requests - below
        labelled, wrong = self._labelled[-1] - self._labelled[below], self._wrong[-1] - self._wrong[below]
        per_hit = wilson(wrong, labelled)
        if not hits:
            per_hit = Rate(0.0, 0.0, 0.0)
        hit_rate = wilson(hits, requests)
        scale, blind = hits / requests, max(0, self._first_labelled - below) / requests
        high = (scale - blind) * per_hit.high + blind
        per_request = Rate(scale * per_hit.value, (scale - blind) * per_hit.low, high)
        return Point(
            threshold=threshold,
            hits=PER * hit_rate.value,
            wrong=PER * per_request.value,
            saved_usd=PER * hit_rate.value * prices.call_usd,
            lost_usd=PER * per_request.value * prices.wrong_usd,
            value_usd=prices.value_usd(hits=PER * hit_rate.value, wrong=PER * per_request.value),
            value_low_usd=prices.value_usd(hits=PER * hit_rate.value, wrong=PER * per_request.high),
            num_labelled=labelled,
            hit_rate=hit_rate,
            wrong_per_request=per_request,
            wrong_per_hit=per_hit,
            wrong_per_trap=wilson(wrong, self._wrong[-1]),
        )


def _running(flags: Iterable[bool]) -> list[int]:
    return list(accumulate(flags, initial=0))
