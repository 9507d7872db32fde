"""The semantic cache's decisions as pure functions: what was recorded is enough to decide again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cache.guard.veto import SOFT_REASONS
from orchestration.core import Candidate

STATIC_POLICY = "static"


@dataclass(frozen=True, slots=True)
class Decision:
    """Serve `entry`, or none; `reason` says why in a word, `similarity` is that of the entry or of the nearest one."""

    entry: str | None
    similarity: float | None
    reason: str


def decide(candidates: Sequence[Candidate], *, bar: float, unusable: Collection[str] = ()) -> Decision:
    """Serve the nearest candidate whose cosine reaches `bar` and to which nothing recorded objects.

    `candidates` stand nearest first, as the index gave them. What objects: the entry is known to be unusable, the
    guard's veto, or a chance of being right that is smaller than the one required. Reasons: `served`,
    `no_candidates`, `below_bar`, and of the nearest one: `unusable` (gone, too old for this request, or damaged),
    `vetoed`, `unlikely`.
    """
    if not candidates:
        return Decision(None, None, "no_candidates")
    near = [candidate for candidate in candidates if candidate.similarity >= bar]
    if not near:
        return Decision(None, candidates[0].similarity, "below_bar")
    for candidate in near:
        if objection(candidate, unusable) is None:
            return Decision(candidate.entry, candidate.similarity, "served")
    return Decision(None, near[0].similarity, objection(near[0], unusable) or "unusable")


def decide_alias(decision: Decision, alias: Candidate | None, *, floor: float | None) -> Decision:
    """Serve the alias where nothing else is served and nothing speaks against it: its reason is `alias`.

    `alias` is the entry that a judge said answers this very question, with the cosine of the two questions; its `veto`
    is the guard's. Odds play no part. What objects: a reason of the guard that no judge overrules, and a request's own
    `floor` above its cosine.
    """
    if decision.entry is not None or alias is None:
        return decision
    if alias.veto is not None and alias.veto not in SOFT_REASONS:
        return decision
    if floor is not None and alias.similarity < floor:
        return decision
    return Decision(alias.entry, alias.similarity, "alias")


def objection(candidate: Candidate, unusable: Collection[str] = ()) -> str | None:
    """Say in a word why a candidate above the bar is not served, or None where it may be."""
    if candidate.entry in unusable:
        return "unusable"
    if candidate.veto is not None:
        return "vetoed"
    if candidate.p_required is not None and (candidate.p_correct or 0.0) < candidate.p_required:
        return "unlikely"
    return None


def bar_for(*, threshold: float, floor: float | None) -> float:
    """Return the bar in force: the configured cosine, or the request's own floor where that is higher."""
    return threshold if floor is None else max(threshold, floor)
