"""Whether one more request may start: three rules by name, pure functions of what is held and may come."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """The tokens a request holds once its prompt is computed, and how many more it holds at its end."""

    current: int
    remaining: int


Admission = Callable[[Sequence[Demand], Demand, int, int], bool]
"""Tells whether a candidate fits beside the running, in a pool of so many tokens in pages of such a size."""


def peak_usage(demands: Sequence[Demand], page_size: int = 1) -> int:
    """Return the most tokens that pages are held for at once, each request ending when its remaining are used up.

    usage(t) is the sum over the requests with remaining >= t of (current + t), each rounded up to whole pages. It is
    largest at the end of one. Exact, and O(n log n): what rounding adds depends on the remainders alone, and those
    that round up lie together in their order.
    """
    peak_pages = whole_pages = 0
    remainders: list[int] = []
    for count, demand in enumerate(sorted(demands, key=lambda each: -each.remaining), start=1):
        pages, remainder = divmod(demand.current, page_size)
        whole_pages += pages
        bisect.insort(remainders, remainder)
        more_pages, more = divmod(demand.remaining, page_size)
        begun = count - bisect.bisect_right(remainders, 0) if more == 0 else count
        second = count - bisect.bisect_right(remainders, page_size - more)
        peak_pages = max(peak_pages, whole_pages + count * more_pages + begun + second)
    return peak_pages * page_size


def future_peak(running: Sequence[Demand], candidate: Demand, capacity: int, page_size: int = 1) -> bool:
    """Admit if the predicted peak fits; a prediction that fails is mended by preemption."""
    if reserve(running, candidate, capacity, page_size):
        return True  # the usual case, and cheaper to see
    return peak_usage([*running, candidate], page_size) <= capacity


def reserve(running: Sequence[Demand], candidate: Demand, capacity: int, page_size: int = 1) -> bool:
    """Admit if everything fits at its full length at once; nothing is ever preempted."""
    return sum(-(-(each.current + each.remaining) // page_size) for each in (*running, candidate)) <= (
        capacity // page_size
    )


def greedy(running: Sequence[Demand], candidate: Demand, capacity: int, page_size: int = 1) -> bool:
    """Admit if what is held now leaves room for the candidate's prompt."""
    return sum(-(-each.current // page_size) for each in (*running, candidate)) <= capacity // page_size


ADMISSIONS: Mapping[str, Admission] = {"future_peak": future_peak, "reserve": reserve, "greedy": greedy}


class OutputLengths:
    """Predict how long an answer gets from the answers that ended lately.

    The prediction is the median of the last answers longer than the one asked about, and never more than is allowed.
    Below `min_samples` of those, it is what is allowed. Many answers never come to be long together: taking each to be
    as long as nine of ten are leaves half the pool empty (`lamina bench admission`), and what the median misjudges is
    mended by preemption.
    """

    def __init__(self, *, window: int = 256, min_samples: int = 16, quantile: float = 0.5) -> None:
        self._window = window
        self._lengths: deque[int] = deque()
        self._sorted: list[int] = []
        self._min_samples = min_samples
        self._quantile = quantile

    def add(self, length: int) -> None:
        """Note the length of an answer that ended by itself or by its limit."""
        self._lengths.append(length)
        bisect.insort(self._sorted, length)
        if len(self._lengths) > self._window:
            del self._sorted[bisect.bisect_left(self._sorted, self._lengths.popleft())]

    def remaining(self, *, generated: int, allowed: int) -> int:
        """Return how many more tokens to expect of an answer with `generated` so far and `allowed` to come."""
        first = bisect.bisect_right(self._sorted, generated)
        num_longer = len(self._sorted) - first
        if num_longer < self._min_samples:
            return allowed
        return min(allowed, self._sorted[first + int(self._quantile * (num_longer - 1))] - generated)
