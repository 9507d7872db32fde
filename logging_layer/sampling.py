"""Which calls are shown in MLflow: what went wrong or nearly did always, the rest by a rate.

What is left out is counted by what is not: a call that was sent with probability p has the weight 1 / p, so that sums
over what is shown, each call by its weight, are right in the mean, whatever the rate was at any time (Horvitz and
Thompson, "A generalization of sampling without replacement from a finite universe", 1952).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

NEAR_BAR = 0.02
"""A cosine this close to the bar, on either side, is a decision that people want to look at."""


def weight_of(record: Mapping[str, Any], *, rate: float) -> float:
    """Return a call's weight, 0 where it is left out: errors, blocks and near-bar decisions are always sent, others
    with probability `rate`.

    The draw is made from the call's id, so that the same call is drawn the same way again.
    """
    if record["outcome"] in ("error", "blocked") or is_near_bar(record["cache"]):
        return 1.0
    return 1.0 / rate if zlib.crc32(record["id"].encode()) < rate * 2**32 else 0.0


def is_near_bar(cache: Mapping[str, Any]) -> bool:
    """Tell whether the semantic cache's best candidate lay close to the bar."""
    threshold = cache["threshold"]
    if threshold is None:
        return False
    similarities = [candidate["similarity"] for candidate in cache["candidates"]]
    if cache["similarity"] is not None:
        similarities.append(cache["similarity"])
    return bool(similarities) and round(abs(max(similarities) - threshold), 6) <= NEAR_BAR


def lowered(rate: float, *, backlog_bytes: int, bearable_bytes: int) -> float:
    """Lower the rate in proportion once more than `bearable_bytes` of the spool wait for MLflow."""
    return rate if backlog_bytes <= bearable_bytes else rate * bearable_bytes / backlog_bytes
