"""What a call costs, and what a wrong answer costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for one call to a backend, and for one wrong answer served; raises `ValueError` where not positive."""

    call_usd: float = 0.002
    wrong_usd: float = 0.05

    def __post_init__(self) -> None:
        for name, value in (("call", self.call_usd), ("wrong answer", self.wrong_usd)):
            if not 0.0 < value < float("inf"):
                raise ValueError(f"the cost of a {name} is a positive number of US dollars, not {value}")

    @property
    def required_correct(self) -> float:
        """The least P(correct) at which serving pays: 1 - call / wrong, and never below 0."""
        return max(0.0, 1.0 - self.call_usd / self.wrong_usd)

    def value_usd(self, *, hits: float, wrong: float) -> float:
        """Return what `hits` save, wrong ones too, less what the wrong ones lose."""
        return hits * self.call_usd - wrong * self.wrong_usd
