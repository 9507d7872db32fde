"""The semantic cache's decisions as pure functions: what was recorded is enough to decide again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestration.core import Candidate

STATIC_POLICY = "static"


@dataclass(frozen=True, slots=True)
class Decision:
    """Serve `entry`, or none; `reason` says why in a word, `similarity` is that of the entry or of the nearest one."""

    entry: str | None
    similarity: float | None
    reason: str


def decide(candidates: Sequence[Candidate], *, bar: float, unusable: Collection[str] = ()) -> Decision:
    """Serve the nearest candidate whose cosine reaches `bar` and whose entry is not known to be unusable.

    `candidates` stand nearest first, as the index gave them. Reasons: `served`, `no_candidates`, `below_bar`,
    `unusable` (near enough, but gone, too old for this request, or damaged).
    """
    if not candidates:
        return Decision(None, None, "no_candidates")
    near = [candidate for candidate in candidates if candidate.similarity >= bar]
    if not near:
        return Decision(None, candidates[0].similarity, "below_bar")
    for candidate in near:
        if candidate.entry not in unusable:
            return Decision(candidate.entry, candidate.similarity, "served")
    return Decision(None, near[0].similarity, "unusable")


def bar_for(*, threshold: float, floor: float | None) -> float:
    """Return the bar in force: the configured cosine, or the request's own floor where that is higher."""
    return threshold if floor is None else max(threshold, floor)
