"""Which limits hold for whom: a caller's own, those of its team, and the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

WINDOWS_S: Mapping[str, int] = {"1h": 3600, "1d": 86400, "30d": 30 * 86400}
"""The lengths of budget windows; each begins at a multiple of its length since 1970, in UTC."""
NANO_PER_USD = 1_000_000_000
"""Money is counted in whole billionths of a dollar: sums are exact up to nine million dollars."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a scope may use: requests and tokens in any 60 s, calls at once, dollars a window; None is no limit."""

    rpm: int | None = None
    tpm: int | None = None
    parallel: int | None = None
    budget_usd: float | None = None
    window: str = "1d"

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is limited."""
        return self.rpm is self.tpm is self.parallel is self.budget_usd is None

    def over(self, default: Limits) -> Limits:
        """Fill in what is not set from the defaults; a budget and its window belong together."""
        money = self if self.budget_usd is not None else default
        return Limits(
            rpm=default.rpm if self.rpm is None else self.rpm,
            tpm=default.tpm if self.tpm is None else self.tpm,
            parallel=default.parallel if self.parallel is None else self.parallel,
            budget_usd=money.budget_usd,
            window=money.window,
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """One holder of limits: `key:<tenant>` or `team:<name>`."""

    name: str
    limits: Limits

    @property
    def is_team(self) -> bool:
        """Tell whether several keys share it."""
        return self.name.startswith("team:")

    @property
    def holder(self) -> str:
        """Return the tenant's id or the team's name."""
        return self.name.partition(":")[2]

    def window_at(self, now: float) -> int:
        """Return the number of the budget's window at this Unix time in seconds."""
        return int(now // WINDOWS_S[self.limits.window])


class KeyLimits(Protocol):
    """What a key says about its limits."""

    @property
    def limits(self) -> Limits:
        """Return its own limits."""
        ...

    @property
    def team(self) -> str | None:
        """Name its team."""
        ...


class Keys(Protocol):
    """Find a key by the tenant that it stands for."""

    def by_id(self, key_id: str) -> KeyLimits | None:
        """Return the key, or None where the tenant has none."""
        ...


MAX_KNOWN = 10_000


class Rules:
    """Tell each tenant's scopes, those alone that limit something.

    A key's are remembered while it is the same object, of `MAX_KNOWN` keys at most; then all are found anew.
    """

    def __init__(self, keys: Keys | None, *, default: Limits, teams: Mapping[str, Limits]) -> None:
        self._keys = keys
        self._default = default
        self._known: dict[str, tuple[KeyLimits, tuple[Scope, ...]]] = {}
        self._teams = {name: Scope(f"team:{name}", limits) for name, limits in teams.items() if not limits.is_empty}

    def scopes_of(self, tenant: str) -> tuple[Scope, ...]:
        """Return the tenant's own scope and its team's; empty where neither limits anything."""
        key = None if self._keys is None else self._keys.by_id(tenant)
        if key is None:
            return () if self._default.is_empty else (Scope(f"key:{tenant}", self._default),)
        known = self._known.get(tenant)
        if known is not None and known[0] is key:
            return known[1]
        scopes = self._scopes_by(key, tenant)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[tenant] = key, scopes
        return scopes

    def _scopes_by(self, key: KeyLimits, tenant: str) -> tuple[Scope, ...]:
        limits = key.limits.over(self._default)
        own = () if limits.is_empty else (Scope(f"key:{tenant}", limits),)
        team = None if key.team is None else self._teams.get(key.team)
        return own if team is None else (*own, team)
