"""What a judge must have shown before its word counts."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RIGHT = 0.95
"""The share of labelled pairs that a judge must get right, and of traps that it must refuse."""
LEAST_PAIRS = 100


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a judge made of labelled pairs: `num_right` of all, `num_fooled` of the `num_traps` whose answers differ. A
    pair without an opinion counts as wrong.
    """

    num_pairs: int
    num_right: int
    num_traps: int
    num_fooled: int

    @property
    def why_failed(self) -> str | None:
        """Say why these figures are not enough, None where they are."""
        if self.num_pairs < LEAST_PAIRS or not self.num_traps:
            return f"it saw {self.num_pairs} pairs with {self.num_traps} traps; {LEAST_PAIRS} and some traps are needed"
        right, refused = self.num_right / self.num_pairs, 1.0 - self.num_fooled / self.num_traps
        if right < LEAST_RIGHT or refused < LEAST_RIGHT:
            return (
                f"it got {right:.1%} of {self.num_pairs} pairs right and refused {refused:.1%} of {self.num_traps} "
                f"traps; {LEAST_RIGHT:.0%} of both are needed"
            )
        return None


def why_inert(certificate: Certificate | None) -> str | None:
    """Say why a judge with this certificate has no say, None where it has."""
    if certificate is None:
        return "it was not checked as it is now; run: lamina judge check"
    return certificate.why_failed
