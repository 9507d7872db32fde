"""When a backend is left alone for a while, and for how long: by the sort of error, longer each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestration.core.errors import LaminaError
from orchestration.core.failure import IS_CLIENTS_FAULT, IS_DOWN, IS_LIMITED, IS_ODD, IS_SLOW, ROTATES, Condition


@dataclass(frozen=True, slots=True)
class CooldownRule:
    """Leave a backend alone after `after` failures in a row: `base_s`, twice that the next time, at most `max_s`."""

    when: Condition
    base_s: float
    max_s: float
    after: int = 1


COOLDOWN_RULES = (
    CooldownRule(ROTATES, base_s=60.0, max_s=600.0),
    CooldownRule(IS_LIMITED, base_s=1.0, max_s=60.0),
    CooldownRule(IS_DOWN, base_s=1.0, max_s=30.0),
    CooldownRule(IS_SLOW, base_s=2.0, max_s=60.0),
    CooldownRule(IS_ODD, base_s=1.0, max_s=30.0, after=3),
)


class Cooldowns(Protocol):
    """Tell other processes what this one saw; neither method waits or raises."""

    def announce(self, id: str, *, for_s: float, reason: str) -> None:
        """Say that a backend is left alone for `for_s` seconds from now."""
        ...

    def lift(self, id: str) -> None:
        """Say that it answers again."""
        ...


def cooldown_s(error: LaminaError, *, streak: int, rules: Sequence[CooldownRule] = COOLDOWN_RULES) -> float:
    """Return the seconds for which a backend is left alone after its `streak`-th failure in a row, 0 for none.

    A longer wait that the backend itself asks for counts, up to the rule's bound.
    """
    if IS_CLIENTS_FAULT(error):
        return 0.0
    for rule in rules:
        if rule.when(error):
            if streak < rule.after:
                return 0.0
            grown_s = rule.base_s * 2.0 ** min(streak - rule.after, 30)
            return min(max(grown_s, error.retry_after_s or 0.0), rule.max_s)
    return 0.0
