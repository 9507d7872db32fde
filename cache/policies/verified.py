"""A second opinion in the grey zone: a slow, better judge of two texts, heard only once it has won here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from cache.policies.calibrated import CalibratedPolicy, evidence_of
from cache.policies.conformal import UNREACHABLE, Outcome, conformal_bar, num_labels_needed
from cache.policies.features import Features
from cache.policies.policy import Judgement, Label

MIN_LABELS = 100
WINDOW = 1_000
_MIN_OF_EACH = 10


class Verifier(Protocol):
    """A cross-encoder or anything else that reads both texts."""

    @property
    def version(self) -> str:
        """Name model, content and precision."""
        ...

    async def score(self, asked: str, question: str) -> float:
        """Return how surely one answer serves both, in [0, 1]; raises `VerifierFailed`, which is a miss."""
        ...


class VerifierFailed(Exception):
    """The verifier gave no score; the candidate is not served, whatever else speaks for it."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A labelled candidate of the grey zone with both opinions of it."""

    evidence: float
    score: float
    is_correct: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class VerifiedPolicy:
    """Judge as `inner` does; a candidate in the grey zone may still be served by the verifier's score.

    The grey zone reaches from `grey_from` up to the chance that the price asks for. The verifier is heard only while,
    on the latest labelled candidates of that zone (100 at least), it ranks right above wrong ones more often than the
    inner evidence does; its bar is the conformal one over them.
    """

    inner: CalibratedPolicy
    verifier_version: str
    grey_from: float = 0.7
    heard: tuple[Heard, ...] = ()
    bar: float = field(default=UNREACHABLE)

    name = "verified"

    @property
    def version(self) -> str:
        """Name the inner policy and the verifier."""
        return f"verified-1/{self.inner.version}/{self.verifier_version}"

    @property
    def floor(self) -> float:
        """Return the least cosine worth judging."""
        return self.inner.floor

    def judge(self, entry: str, features: Features) -> Judgement:
        """Judge without the verifier."""
        return self.inner.judge(entry, features)

    def wants_score(self, judged: Judgement) -> bool:
        """Tell whether the verifier could change the decision."""
        return self.bar < UNREACHABLE and self.is_grey(judged)

    def is_grey(self, judged: Judgement) -> bool:
        """Tell whether a candidate lies in the grey zone, where scores are worth collecting."""
        return self.grey_from <= judged.p_correct < judged.p_required

    def weigh(self, judged: Judgement, score: float) -> Judgement:
        """Return the judgement that counts the verifier's score: a chance, since the bar is one."""
        if not self.wants_score(judged):
            return judged
        return Judgement(score, self.bar, (*judged.inputs, score, self.bar))

    def observe(self, label: Label) -> Self:
        """Return the policy whose inner one knows one label more."""
        return replace(self, inner=self.inner.observe(label))

    def observe_score(self, label: Label, score: float) -> Self:
        """Return the policy that knows how both judges saw a labelled candidate of the grey zone."""
        record = self.inner.learned.records.get(label.entry)
        offset, spread = (0.0, self.inner.model.entry_variance)
        if record is not None:
            offset, spread = record.offset(variance=self.inner.model.entry_variance)
        evidence = evidence_of(self.inner.model, label.features.values(), offset, spread)
        heard = (*self.heard, Heard(evidence, score, label.is_correct, label.weight))[-WINDOW:]
        return replace(self.observe(label), heard=heard, bar=self._bar(heard))

    def _bar(self, heard: Sequence[Heard]) -> float:
        budget = 1.0 - self.inner.p_required
        if budget <= 0.0 or len(heard) < max(MIN_LABELS, num_labels_needed(budget)) or not has_won(heard):
            return UNREACHABLE
        bar = conformal_bar((Outcome(one.score, one.is_correct, one.weight) for one in heard), budget=budget)
        return max(0.0, bar)


def has_won(heard: Sequence[Heard]) -> bool:
    """Tell whether the verifier's area under the ROC curve beats the evidence's by two standard errors.

    The error is that of an area without knowledge, sqrt((m + n + 1) / 12 m n); ten of each kind are needed at least.
    """
    right = [one for one in heard if one.is_correct]
    wrong = [one for one in heard if not one.is_correct]
    if min(len(right), len(wrong)) < _MIN_OF_EACH:
        return False
    by_score = _area([one.score for one in right], [one.score for one in wrong])
    by_evidence = _area([one.evidence for one in right], [one.evidence for one in wrong])
    error = math.sqrt((len(heard) + 1) / (12.0 * len(right) * len(wrong)))
    return by_score - by_evidence > 2.0 * error


def _area(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Return the share of (right, wrong) couples that are ranked in order, a tie counting half (Mann-Whitney)."""
    ranked = sorted([(value, True) for value in right] + [(value, False) for value in wrong])
    below = 0.0
    area = 0.0
    place = 0
    while place < len(ranked):
        tied = place
        while tied < len(ranked) and ranked[tied][0] == ranked[place][0]:
            tied += 1
        group = [is_right for _, is_right in ranked[place:tied]]
        num_right = sum(group)
        num_wrong = len(group) - num_right
        area += num_right * (below + num_wrong / 2.0)
        below += num_wrong
        place = tied
    return area / (len(right) * len(wrong))
