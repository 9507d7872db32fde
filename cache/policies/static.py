"""The cosine bar: serve what is near enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from cache.policies.features import Features
from cache.policies.policy import Judgement, Label


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """Serve every candidate whose cosine reaches `floor`. What the chance of being right is, it does not know."""

    floor: float

    name = "static"
    version = "static-1"

    def judge(self, entry: str, features: Features) -> Judgement:
        """Pass off the cosine as the chance, so that the bar is where it was set."""
        return Judgement(features.similarity, self.floor, (features.similarity,))

    def observe(self, label: Label) -> Self:
        """Learn nothing."""
        return self
