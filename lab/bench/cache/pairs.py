"""Labelled question pairs, and what rules make of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.bench.cache.embedding import Vector

SHIPPED = Path(__file__).parents[3] / "benchmarks" / "data" / "semcache"
BUDGETS = (0.01, 0.02, 0.05, 0.1)
_Z = 1.959964


class UnreadablePairs(ValueError):
    """The file holds no labelled pairs; the message names the line and what it wants."""


@dataclass(frozen=True, slots=True)
class Asked:
    """All that a rule sees of a pair: two texts and the cosine of their vectors."""

    a: str
    b: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair with its answers' key, which no rule sees. `category` is for the report alone."""

    a: str
    b: str
    same_answer: bool
    category: str = ""


Rule = Callable[[Asked], float | None]
"""Gives a pair its score, or None where it would not be served at any bar."""


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `total`, with the Wilson interval at 95 %."""

    count: int
    total: int

    @property
    def value(self) -> float:
        """Return the share, 0 of nothing."""
        return self.count / self.total if self.total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's interval (1927), (0, 1) for nothing."""
        if not self.total:
            return 0.0, 1.0
        n, p = self.total, self.value
        middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        reach = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
        return max(0.0, middle - reach), min(1.0, middle + reach)


@dataclass(frozen=True, slots=True)
class Point:
    """What is served at one bar: of the pairs with one answer, and of the traps."""

    bar: float
    served: Share
    wrong: Share


def read_pairs(path: Path, *, part: str | None = None) -> list[Pair]:
    """Read rows `{a, b, same_answer}`; raises `UnreadablePairs`. `part` takes only the rows of that part."""
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            pair = Pair(str(row["a"]), str(row["b"]), _truth(row["same_answer"]), str(row.get("category", "")))
        except (ValueError, KeyError, TypeError) as exc:
            raise UnreadablePairs(f'{path}:{number}: a row is {{"a", "b", "same_answer": true or false}}') from exc
        if part is None or row.get("part") == part:
            pairs.append(pair)
    if not pairs:
        raise UnreadablePairs(f"{path}: no pairs" + (f" of part {part}" if part else ""))
    return pairs


def asked_of(pairs: Iterable[Pair], vectors: Mapping[str, Vector]) -> list[Asked]:
    """Give what rules see; a text too long for the encoder is near to nothing."""
    return [Asked(pair.a, pair.b, _cosine(vectors.get(pair.a), vectors.get(pair.b))) for pair in pairs]


def at_bar(pairs: Sequence[Pair], scores: Sequence[float | None], bar: float) -> Point:
    """Count what reaches a bar."""
    served = [score is not None and score >= bar for score in scores]
    same = [is_served for pair, is_served in zip(pairs, served, strict=True) if pair.same_answer]
    traps = [is_served for pair, is_served in zip(pairs, served, strict=True) if not pair.same_answer]
    return Point(bar, Share(sum(same), len(same)), Share(sum(traps), len(traps)))


def at_budget(pairs: Sequence[Pair], scores: Sequence[float | None], budget: float) -> Point:
    """Return the lowest bar at which at most the budget's share of traps is served."""
    bars = sorted({score for score in scores if score is not None}, reverse=True)
    best = at_bar(pairs, scores, math.inf)
    for bar in bars:
        point = at_bar(pairs, scores, bar)
        if point.wrong.value > budget + 1e-12:
            break
        best = point
    return best


def by_category(pairs: Sequence[Pair], scores: Sequence[float | None], bar: float) -> dict[str, Share]:
    """Return the share served of each category; of a category of traps that is the share served wrongly."""
    counts: dict[str, list[bool]] = {}
    for pair, score in zip(pairs, scores, strict=True):
        name = f"{'same' if pair.same_answer else 'trap'}: {pair.category or 'all'}"
        counts.setdefault(name, []).append(score is not None and score >= bar)
    return {name: Share(sum(served), len(served)) for name, served in sorted(counts.items())}


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("same_answer is true or false")
    return value


def _cosine(one: Vector | None, other: Vector | None) -> float:
    return -1.0 if one is None or other is None else float(one @ other)
