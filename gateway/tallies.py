"""Numbers counted here at once and told to prometheus_client every so often: telling it takes 2 us for each of them."""

from __future__ import annotations

import asyncio
import functools
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol, TypeVar

from prometheus_client import Counter, Gauge, Histogram

TOLD_EVERY_S = 0.25


class _Tally(Protocol):
    def tell(self) -> None:
        """Hand on what was counted since the last time."""
        ...


_T = TypeVar("_T", bound=_Tally)


class Tallies:
    """Make tallies by their labels, whose values come from closed lists, and tell all of them together.

    Within `TOLD_EVERY_S` of `touched` prometheus_client knows everything; who reads it at once calls `tell` before. For
    one event loop.
    """

    def __init__(self) -> None:
        self._all: list[_Tally] = []
        self._timer: asyncio.TimerHandle | None = None

    def counter(self, metric: Counter) -> Callable[..., CounterTally]:
        """Return what gives a counter's tally by its labels."""
        return functools.cache(lambda *labels: self._known(CounterTally(metric.labels(*labels))))

    def gauge(self, metric: Gauge) -> Callable[..., GaugeTally]:
        """Return what gives a gauge's tally by its labels."""
        return functools.cache(lambda *labels: self._known(GaugeTally(metric.labels(*labels))))

    def histogram(self, metric: Histogram) -> Callable[..., HistogramTally]:
        """Return what gives a histogram's tally by its labels."""
        return functools.cache(lambda *labels: self._known(HistogramTally(metric.labels(*labels))))

    def touched(self) -> None:
        """See to it that what was counted is told."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOLD_EVERY_S, self.tell)

    def tell(self) -> None:
        """Tell everything now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for tally in self._all:
            tally.tell()

    def _known(self, tally: _T) -> _T:
        self._all.append(tally)
        return tally


class CounterTally:
    """What is to be added to a counter."""

    __slots__ = ("_child", "waiting")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self.waiting = 0.0

    def tell(self) -> None:
        """Add it."""
        if self.waiting:
            self._child.inc(self.waiting)
            self.waiting = 0.0


class GaugeTally:
    """What a gauge is to show, as a context in which it is one more."""

    __slots__ = ("_child", "_told", "value")

    def __init__(self, child: Gauge) -> None:
        self._child = child
        self.value = 0
        self._told = 0

    def __enter__(self) -> None:
        self.value += 1

    def __exit__(self, *_: object) -> None:
        self.value -= 1

    def tell(self) -> None:
        """Show it."""
        if self.value != self._told:
            self._child.set(self.value)
            self._told = self.value


class HistogramTally:
    """Observations of one histogram by bucket."""

    __slots__ = ("_bounds", "_child", "_counts", "_sum")

    def __init__(self, child: Histogram) -> None:
        self._child = child
        self._bounds = child._upper_bounds
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def tell(self) -> None:
        """Add the observations; the library itself takes them one by one only."""
        if not any(self._counts):
            return
        self._child._sum.inc(self._sum)
        for bucket, count in zip(self._child._buckets, self._counts, strict=True):
            if count:
                bucket.inc(count)
        self._counts = [0] * len(self._counts)
        self._sum = 0.0
