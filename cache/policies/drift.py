"""Do answers go wrong more often than was promised? A test that may look again after every label, and what follows.

Testing by betting: a wealth of 1 is staked, label by label, on the rate being higher than promised, and multiplied by
the likelihood ratio, rate / promised for a wrong answer and (1 - rate) / (1 - promised) for a right one. While the
true rate is at most the promised one, wealth is a supermartingale, so that by Ville's inequality it ever reaches
1 / alpha with a probability of at most alpha, however often one looks (Waudby-Smith and Ramdas, 2024, arXiv
2010.09686). The stake is spread over several rates, and over the labels at which the trouble may have begun (the
mixture of e-processes in Shin, Ramdas and Rinaldo, 2023, arXiv 2203.03532, with weights whose sum is 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 0.05
"""The probability that a policy which keeps its promise is ever tightened, over as many labels as may come."""
ENOUGH = 2.0 / ALPHA
"""The wealth that speaks of drift: two streams of labels are tested, each with half of `ALPHA`."""
WINDOW = 4_000
"""How many of the latest labels are looked at."""
_START_EVERY = 50
_TIMES_PROMISED = (1.5, 2.0, 3.0, 5.0, 10.0)
_HIGHEST_THRESHOLD = 0.999
_HIGHEST_COST = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides: the policy's name, the cosine bar of `static`, the price from which `calibrated` has its own."""

    policy: str
    threshold: float
    wrong_to_call_cost: float


def wealth(is_wrong: Sequence[bool], *, promised: float, num_before: int = 0) -> float:
    """Return what the stake has become after these labels, oldest first; `ENOUGH` and more speaks of drift.

    `promised` is the highest rate of wrong answers that keeps the promise, in (0, 1). `num_before` labels came earlier
    and are forgotten; what was staked on trouble since then is lost, which never raises a false alarm.
    """
    num_all, num_wrong = len(is_wrong), 0
    total = _weight_from(num_before + num_all)
    wrong_since: dict[int, int] = {}
    for place in range(num_all - 1, -1, -1):
        num_wrong += is_wrong[place]
        if (num_before + place) % _START_EVERY == 0:
            wrong_since[place] = num_wrong
    for place, wrong in wrong_since.items():
        weight = _weight((num_before + place) // _START_EVERY)
        total += weight * grown(wrong, num_all - place, promised=promised)
    return total


def grown(num_wrong: int, num_all: int, *, promised: float) -> float:
    """Return what a stake of 1, spread over the rates, has become after `num_all` labels in any order."""
    rates = [min(times * promised, (1.0 + promised) / 2.0) for times in _TIMES_PROMISED]
    gains = (
        num_wrong * math.log(rate / promised) + (num_all - num_wrong) * math.log((1.0 - rate) / (1.0 - promised))
        for rate in rates
    )
    return math.fsum(math.exp(min(gain, 700.0)) for gain in gains) / len(rates)


def tightened(terms: Terms) -> Terms | None:
    """Return the next tighter terms, None where there are none: half of what lies between the cosine bar and 1 for
    `static`, twice the price of a wrong answer for `calibrated`.
    """
    if terms.policy == "static":
        if terms.threshold >= _HIGHEST_THRESHOLD:
            return None
        return Terms(terms.policy, 1.0 - (1.0 - terms.threshold) / 2.0, terms.wrong_to_call_cost)
    if terms.wrong_to_call_cost >= _HIGHEST_COST:
        return None
    return Terms(terms.policy, terms.threshold, min(_HIGHEST_COST, 2.0 * terms.wrong_to_call_cost))


def promised_rate(wrong_to_call_cost: float) -> float:
    """Return the share of hits that may be wrong: one over the price of a wrong answer, at which hits stop to pay."""
    return min(0.5, 1.0 / wrong_to_call_cost)


def _weight(start: int) -> float:
    """Return the part of the stake that begins at a start, counted from 0: half at the first, then 1 / 2 s (s + 1)."""
    return 0.5 if start == 0 else 0.5 / (start * (start + 1))


def _weight_from(num_labels: int) -> float:
    """Return the part of the stake whose start has not come after so many labels."""
    num_begun = math.ceil(num_labels / _START_EVERY)
    return 1.0 if num_begun == 0 else 0.5 / num_begun
