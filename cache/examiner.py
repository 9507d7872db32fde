"""One candidate examined: the guard's word first, then the policy's odds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cache.decide import STATIC_POLICY
from cache.guard import GUARD_VERSION, Guard
from cache.guard.reading import Reading
from cache.policies.features import Features, features_of
from cache.policies.policy import Label, Policy
from orchestration.core import Candidate

NO_QUESTION = "no_question"
"""The veto against an entry whose question was not kept: what cannot be compared is not served."""


@dataclass(slots=True)
class Examiner:
    """Judge candidates by guard and policy. `guard` None looks at no words; `policy` is replaced as it learns.

    `applied` numbers the policy that was put in force while serving, None for the settings' own.
    """

    policy: Policy
    guard: Guard | None = None
    applied: int | None = None

    @property
    def guard_version(self) -> int | None:
        """Name the guard's version, None where there is no guard."""
        return None if self.guard is None else GUARD_VERSION

    @property
    def needs_texts(self) -> bool:
        """Tell whether candidates are judged by more than their cosine."""
        return self.guard is not None or self.policy.name != STATIC_POLICY

    def read(self, text: str) -> Reading | None:
        """Read the question asked, once for all its candidates; None where no guard reads."""
        return None if self.guard is None else self.guard.read(text)

    def examine(self, candidate: Candidate, *, asked: Reading | None, question: str | None) -> Candidate:
        """Return the candidate with the guard's verdict and, where it passes and the policy weighs odds, these."""
        veto, features = self.compare(candidate.similarity, asked=asked, question=question)
        if veto is not None:
            return replace(candidate, veto=veto)
        if self.policy.name == STATIC_POLICY:
            return candidate
        judged = self.policy.judge(candidate.entry, features)
        return replace(candidate, p_correct=judged.p_correct, p_required=judged.p_required, inputs=judged.inputs)

    def compare(self, similarity: float, *, asked: Reading | None, question: str | None) -> tuple[str | None, Features]:
        """Return the guard's reason against serving `question`'s answer, None for none, and what a scorer looks at.

        Where there is a reason the words are not measured: no scorer looks at such a pair.
        """
        if self.guard is None or asked is None:
            return None, Features(similarity)
        if question is None:
            return NO_QUESTION, Features(similarity)
        pair = self.guard.compare(asked, self.guard.read(question))
        veto = self.guard.judge(pair)
        if veto is not None:
            return veto.reason, Features(similarity)
        return None, features_of(similarity, pair, self.guard.lexicon)

    def observe(self, label: Label) -> None:
        """Learn from a label: the next candidate is judged by what it says."""
        self.policy = self.policy.observe(label)
