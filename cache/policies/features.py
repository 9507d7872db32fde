"""What the scorer looks at: two questions side by side as a few numbers, the same whichever came first."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields

from cache.guard.comparison import Comparison
from cache.guard.lexicon import Lexicon

FEATURES_VERSION = 1
"""Counts up whenever the same two texts may get other numbers."""

_MOST_COUNTED = 3


@dataclass(frozen=True, slots=True)
class Features:
    """A candidate's evidence.

    `similarity` is the cosine, in [-1, 1]. `least_shared` is the share of one question's content words that the other
    has, for the question of which less is shared, in [0, 1]. `one_sided` is the logarithm of 1 + the number of content
    words that one side has alone, `special` how many of these the guard's lists know (3 at most): a day, a country, a
    kind of customer. `names_apart` and `denies_otherwise` are 0 or 1.
    """

    similarity: float
    least_shared: float = 1.0
    one_sided: float = 0.0
    special: float = 0.0
    names_apart: float = 0.0
    denies_otherwise: float = 0.0

    def values(self) -> tuple[float, ...]:
        """Return the numbers in the order of `feature_names`."""
        return astuple(self)


def feature_names() -> tuple[str, ...]:
    """Name the features in their order."""
    return tuple(field.name for field in fields(Features))


def features_of(similarity: float, pair: Comparison, lexicon: Lexicon) -> Features:
    """Measure a comparison."""
    a, b = pair.a, pair.b
    only = pair.only_a | pair.only_b
    special = sum(1 for word in only if word in lexicon.kinds or word in lexicon.opposites)
    return Features(
        similarity=similarity,
        least_shared=min(_shared(a.loud, pair.only_a), _shared(b.loud, pair.only_b)),
        one_sided=math.log1p(len(only)),
        special=float(min(_MOST_COUNTED, special)),
        names_apart=float(bool((a.literals.names ^ b.literals.names) & only)),
        denies_otherwise=float(a.num_denials != b.num_denials or bool(a.implicit_denials ^ b.implicit_denials)),
    )


def _shared(loud: frozenset[str], only: frozenset[str]) -> float:
    return 1.0 - len(only) / len(loud) if loud else 1.0
