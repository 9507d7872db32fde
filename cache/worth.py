"""What keeping an entry is worth: the dollars that its hits are expected to save, per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

PRICE_POWER = 0.25
"""How much a price counts. At 1 a few dear entries push out many hits, and save less than at 1/4, which won in every
run of `lamina bench cache --eviction` (docs/caching.md)."""
HALF_LIFE_TURNS = 4.0
"""A use counts half as much after the cache was filled so many times over."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the caches may keep in all: entries, and the bytes that they take with their cards; None is no bound.

    Beyond it the entries that are worth least per byte leave, whatever their time to live.
    """

    max_entries: int | None = None
    max_bytes: int | None = None


def score(
    *,
    worth_usd: float,
    size_bytes: int,
    turns: float,
    power: float = PRICE_POWER,
    half_life_turns: float = HALF_LIFE_TURNS,
) -> float:
    """Return log2 of what one use makes an entry worth per byte, seen from any fixed moment.

    `turns` is the time of the use, in fillings of the cache: each stored entry adds one over the number of entries,
    so that it runs as fast as entries are pushed out, whatever the traffic. A use loses half of its weight in
    `half_life_turns`. Seen from a later moment all entries lose the same factor, so their order stays, and a score
    changes with a use alone: forward decay (Cormode and others, ICDE 2009).
    """
    return power * math.log2(worth_usd) - math.log2(size_bytes) + turns / half_life_turns


def plus(one: float, other: float) -> float:
    """Add two worths that are given as log2."""
    most = max(one, other)
    return most + math.log2(2.0 ** (one - most) + 2.0 ** (other - most))
