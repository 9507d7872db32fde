"""What a policy is asked, what it says, and what it learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from cache.policies.features import Features


@dataclass(frozen=True, slots=True)
class Judgement:
    """How likely the candidate's answer is right. `inputs` are all numbers from which `p_correct` follows, beside the
    policy's version; they are what the log keeps.
    """

    p_correct: float
    p_required: float
    inputs: tuple[float, ...]

    @property
    def may_serve(self) -> bool:
        """Tell whether the price of being wrong is worth paying."""
        return self.p_correct >= self.p_required


@dataclass(frozen=True, slots=True)
class Label:
    """What became known of one look-up: whether the entry's answer was right for the question.

    `source` says who knows (`shadow`, `judge`, `feedback`), `at` is Unix time in seconds. `weight` is one over the
    probability with which such a look-up is labelled at all (100 for a re-ask of every hundredth hit), so that shares
    of labels estimate shares of requests.
    """

    entry: str
    features: Features
    is_correct: bool
    source: str
    at: float
    weight: float = 1.0


class Policy(Protocol):
    """Judge candidates that the guard let pass. A policy is a value: `observe` gives the next one.

    It sees numbers alone: neither texts nor what kind of question it is. `floor` is the least cosine that it looks at.
    """

    @property
    def name(self) -> str:
        """Name it as the settings do."""
        ...

    @property
    def version(self) -> str:
        """Name rule and numbers: equal versions judge equal inputs alike."""
        ...

    @property
    def floor(self) -> float:
        """Return the least cosine of a candidate worth judging."""
        ...

    def judge(self, entry: str, features: Features) -> Judgement:
        """Judge one candidate."""
        ...

    def observe(self, label: Label) -> Self:
        """Return the policy that knows one label more."""
        ...
