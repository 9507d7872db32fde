"""How each backend stands, as this process sees it: load, speed, failures, and whether it is left alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestration.core.cooldown import Cooldowns, cooldown_s
from orchestration.core.errors import LaminaError

_DECAY_S = 10.0
_PROBE_S = 60.0
_MAX_ERROR_CHARS = 300


@dataclass(slots=True)
class PeakEwma:
    """A moving average in milliseconds that jumps to every peak at once and comes down with time."""

    value_ms: float | None = None
    _seen_s: float = 0.0

    def observe(self, taken_ms: float, *, now_s: float) -> None:
        """Take one more measurement."""
        if self.value_ms is None or taken_ms >= self.value_ms:
            self.value_ms = taken_ms
        else:
            share = math.exp(-max(0.0, now_s - self._seen_s) / _DECAY_S)
            # A burst of good calls in no time must count for something, too.
            share = min(share, 0.9)
            self.value_ms = self.value_ms * share + taken_ms * (1.0 - share)
        self._seen_s = now_s


@dataclass(slots=True)
class Standing:
    """One backend's record. A cool-down ends with a probe: one call goes there, the others wait for its outcome."""

    id: str
    in_flight: int = 0
    attempts: int = 0
    failures: int = 0
    streak: int = 0
    latency: PeakEwma = field(default_factory=PeakEwma)
    cooled_until_s: float = 0.0
    reason: str = ""
    last_error: str | None = None
    last_error_at: float | None = None
    health: str | None = None
    health_at: float | None = None
    is_told: bool = False
    """Whether the others' common knowledge holds this cool-down."""
    _needs_proof: bool = False
    _probe_until_s: float = 0.0
    _cooled_at_s: float = 0.0

    def cooled_s(self, now_s: float) -> float:
        """Return for how long the backend is left alone from now on, 0 where it may be asked."""
        if not self._needs_proof:
            return 0.0
        return max(0.0, self.cooled_until_s - now_s, self._probe_until_s - now_s)

    def begin(self, now_s: float) -> bool:
        """Count a call that is being sent; tells whether it is the probe, the first one after a cool-down."""
        self.in_flight += 1
        self.attempts += 1
        is_probe = self._needs_proof and now_s >= max(self.cooled_until_s, self._probe_until_s)
        if is_probe:
            self._probe_until_s = now_s + _PROBE_S
        return is_probe

    def end(self, *, was_probe: bool) -> None:
        """Count a call as no longer there; after a probe that showed nothing another one may go."""
        self.in_flight -= 1
        if was_probe:
            self._probe_until_s = 0.0

    def cool(self, *, now_s: float, until_s: float, reason: str) -> None:
        """Leave the backend alone until then, at least."""
        self._needs_proof = True
        self._cooled_at_s = now_s
        self._probe_until_s = 0.0
        if until_s > self.cooled_until_s:
            self.cooled_until_s, self.reason = until_s, reason

    def is_proven_by(self, begun_s: float) -> bool:
        """Tell whether an answer to a call sent then counts: one sent before the cool-down says nothing about it."""
        return not self._needs_proof or begun_s >= self._cooled_at_s

    def warm(self) -> bool:
        """Ask it again like any other; tells whether it had been left alone."""
        was_cooled, self._needs_proof = self._needs_proof, False
        self.cooled_until_s = self._probe_until_s = 0.0
        self.streak, self.reason, self.is_told = 0, "", False
        return was_cooled


class Standings:
    """Every backend's standing by its id. Ids name deployments, so that two models share what they know of one."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.cooldowns: Cooldowns | None = None
        self._now = now
        self._standings: dict[str, Standing] = {}

    def of(self, id: str) -> Standing:
        """Return a backend's standing, a fresh one where it was never asked."""
        standing = self._standings.get(id)
        if standing is None:
            standing = self._standings[id] = Standing(id)
        return standing

    def answered(self, standing: Standing, *, begun_s: float) -> None:
        """Take note of the first content of a call that was sent at `begun_s`."""
        now_s = self.clock()
        standing.latency.observe((now_s - begun_s) * 1000.0, now_s=now_s)
        if standing.is_proven_by(begun_s):
            self.recovered(standing)

    def outwaited(self, standing: Standing, *, begun_s: float) -> None:
        """Take note that no content came until now: the time that it would have taken is at least that."""
        now_s = self.clock()
        taken_ms = (now_s - begun_s) * 1000.0
        if taken_ms > (standing.latency.value_ms or 0.0):
            standing.latency.observe(taken_ms, now_s=now_s)

    def recovered(self, standing: Standing) -> None:
        """Take note that it answers; where it was left alone, tell the others, too."""
        if standing.warm() and self.cooldowns is not None:
            self.cooldowns.lift(standing.id)

    def failed(self, standing: Standing, error: LaminaError) -> None:
        """Take note of an error, and leave the backend alone where its sort of error asks for it."""
        if not error.may_fall_back:
            return  # the client's own fault, which says nothing about the backend
        standing.failures += 1
        standing.streak += 1
        standing.last_error, standing.last_error_at = error.message[:_MAX_ERROR_CHARS], self._now()
        for_s = cooldown_s(error, streak=standing.streak)
        if for_s > 0.0:
            self.cool(standing, for_s=for_s, reason=error.code or error.type)

    def cool(self, standing: Standing, *, for_s: float, reason: str) -> None:
        """Leave a backend alone from now on, and tell the others."""
        now_s = self.clock()
        standing.cool(now_s=now_s, until_s=now_s + for_s, reason=reason)
        if self.cooldowns is not None:
            self.cooldowns.announce(standing.id, for_s=for_s, reason=reason)

    def hear(self, ids: Iterable[str], told: Mapping[str, tuple[float, str]]) -> None:
        """Follow what all processes know of `ids`: (seconds left, reason) by id. What is gone there was lifted."""
        now_s = self.clock()
        for id in ids:
            standing = self.of(id)
            found = told.get(id)
            if found is not None:
                standing.is_told = True
                if now_s + found[0] > standing.cooled_until_s + 0.05:
                    standing.cool(now_s=now_s, until_s=now_s + found[0], reason=found[1])
            elif standing.is_told:
                standing.is_told = False
                if now_s < standing.cooled_until_s:
                    standing.warm()

    def describe(self, id: str) -> dict[str, Any]:
        """Write a backend's standing as JSON's values; `cooled_until` is Unix time in seconds."""
        one, left_s = self.of(id), self.of(id).cooled_s(self.clock())
        return {
            "id": id,
            "in_flight": one.in_flight,
            "attempts": one.attempts,
            "failures": one.failures,
            "failures_in_a_row": one.streak,
            "first_content_ewma_ms": one.latency.value_ms,
            "cooled_until": self._now() + left_s if left_s else None,
            "cooled_for": one.reason or None,
            "last_error": one.last_error,
            "last_error_at": one.last_error_at,
            "health": one.health,
            "health_checked_at": one.health_at,
        }
