"""What keeping an entry is worth: the dollars that its hits are expected to save, per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

HALF_LIFE_S = 6 * 3600.0
"""A hit counts half as much after so long; chosen by `lamina bench cache --eviction` (docs/caching.md)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the caches may keep in all: entries, and bytes of values; None is no bound.

    Beyond it the entries that are worth least per byte leave, whatever their time to live.
    """

    max_entries: int | None = None
    max_bytes: int | None = None
    half_life_s: float = HALF_LIFE_S


def score(*, worth_usd: float, size_bytes: int, at_s: float, half_life_s: float) -> float:
    """Return log2 of what one use at `at_s` makes an entry worth per byte, seen from any fixed moment.

    A use loses half of its weight in `half_life_s`. Seen from a later moment all entries lose the same factor, so
    their order stays, and a score changes with a use alone: forward decay (Cormode and others, ICDE 2009).
    """
    return math.log2(worth_usd / size_bytes) + at_s / half_life_s


def plus(one: float, other: float) -> float:
    """Add two worths that are given as log2."""
    most = max(one, other)
    return most + math.log2(2.0 ** (one - most) + 2.0 ** (other - most))
