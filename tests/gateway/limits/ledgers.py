"""What the tests of this folder have in common."""

from __future__ import annotations

from gateway.limits.counters import Admitted, Counters, Refused
from gateway.limits.errors import StoreLost
from gateway.limits.estimate import Estimate
from gateway.limits.rules import NANO_PER_USD, Limits, Scope
from gateway.limits.store import RedisScripts

NOON = 1_800_000_000.0
CENT = NANO_PER_USD // 100


class Ledger:
    """A ledger that knows sums by scope, or does not answer."""

    def __init__(self, **spent: float) -> None:
        self.spent = {name.replace("_", ":"): usd for name, usd in spent.items()}
        self.is_down = False
        self.asked: list[tuple[str, float]] = []

    async def spent_usd(self, scope: Scope, *, since: float) -> float:
        self.asked.append((scope.name, since))
        if self.is_down:
            raise StoreLost("away")
        return self.spent.get(scope.name, 0.0)


def counters_of(store: RedisScripts, ledger: Ledger | None = None, *, lease_s: float = 10.0) -> Counters:
    return Counters(store, ledger or Ledger(), lease_s=lease_s)


def scope(name: str = "key:a", **limits: float | str) -> Scope:
    return Scope(name, Limits(**limits))  # type: ignore[arg-type]  # the test names the fields


async def admit(
    counters: Counters, call_id: str, *scopes: Scope, tokens: int = 0, cents: float = 0, now: float = NOON
) -> Admitted | Refused:
    return await counters.admit(call_id, scopes, Estimate(tokens, round(cents * CENT)), now=now)
