"""When to ask the same backend again, and how long to wait before."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from orchestration.core.errors import LaminaError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waits with full jitter, never longer than `max_s`; a backend's own word on it counts more.

    Source of the jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    base_s: float = 0.05
    max_s: float = 2.0
    rng: random.Random = field(default_factory=random.Random)

    def wait_s(self, attempt: int, error: LaminaError) -> float:
        """Return the seconds to wait before try number `attempt` (the first repeat is 1)."""
        if error.retry_after_s is not None:
            return min(error.retry_after_s, self.max_s)
        return self.rng.uniform(0.0, min(self.max_s, self.base_s * 2.0**attempt))
