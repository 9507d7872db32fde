"""The layer `limits`: nobody gets more than it may have, and nothing that is held is forgotten."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Protocol

from gateway.headers import RATE_LIMIT
from gateway.limits.counters import Admitted, Refused, Room
from gateway.limits.errors import BudgetExceeded, LimitsUnavailable, StoreLost
from gateway.limits.estimate import Estimate, Estimator
from gateway.limits.rules import NANO_PER_USD, WINDOWS_S, Rules, Scope
from orchestration.core import CacheStatus, Call, Delta, Event, Finish, Handler, Usage
from orchestration.core.errors import LaminaError, LimitReached

_RETRY_AFTER_S = 1.0
_HITS = (CacheStatus.EXACT, CacheStatus.SEMANTIC)
_WORDS = {"rpm": "requests per minute", "tpm": "tokens per minute", "parallel": "calls at once"}


class Counting(Protocol):
    """Admit calls and settle them."""

    async def admit(
        self, call_id: str, scopes: tuple[Scope, ...], estimate: Estimate, *, now: float
    ) -> Admitted | Refused:
        """Let a call in, or say why not; raises `StoreLost`."""
        ...

    async def settle(self, call_id: str, *, tokens: int, nano_usd: int) -> None:
        """Replace what a call reserved by what it used."""
        ...


class LimitsLayer:
    """Hold each caller to its limits and its team's; a caller without any costs nothing here.

    Admission is one round trip, settlement another; the end of the answer is handed on when the call is settled,
    so that a caller's next call finds its slot free. Cached answers count as requests alone. Where the counters
    cannot be asked, callers with a budget are refused, and the others go on with a note.
    """

    def __init__(
        self, counters: Counting, *, rules: Rules, estimator: Estimator, clock: Callable[[], float] = time.time
    ) -> None:
        self._counters = counters
        self._rules = rules
        self._estimator = estimator
        self._clock = clock

    def __call__(self, call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        """Answer the call, or raise `LimitReached`, `BudgetExceeded` or `LimitsUnavailable`."""
        scopes = self._rules.scopes_of(call.tenant)
        return self._limited(call, next, scopes) if scopes else next(call)

    async def _limited(self, call: Call, next: Handler, scopes: tuple[Scope, ...]) -> AsyncGenerator[Event, None]:
        is_leased = await self._admit(call, scopes)
        used = _Used()
        try:
            async with aclosing(next(call)) as events:
                async for event in events:
                    used.saw(event)
                    if isinstance(event, Finish) and is_leased:
                        await self._settle(call, used)
                    yield event
        finally:
            if is_leased:
                await self._settle(call, used)

    async def _admit(self, call: Call, scopes: tuple[Scope, ...]) -> bool:
        """Return whether the call must be settled."""
        estimate = self._estimator.estimate(call)
        try:
            decision = await self._counters.admit(call.id, scopes, estimate, now=call.received_at)
        except StoreLost as exc:
            if any(scope.limits.budget_usd is not None for scope in scopes):
                raise LimitsUnavailable(
                    "Your budget cannot be looked at right now; try again in a moment.", retry_after_s=_RETRY_AFTER_S
                ) from exc
            call.notes.degrade("limits_down")
            return False
        headers = _headers(decision.rooms)
        if headers:
            call.notes.extra[RATE_LIMIT] = headers
        if isinstance(decision, Refused):
            raise self._refusal(decision, estimate, call.received_at)
        return decision.is_leased

    async def _settle(self, call: Call, used: _Used) -> None:
        """Settle by what the call used; the counters do it once, however often they are asked."""
        if used.is_settled:
            return
        used.is_settled = True
        tokens, cost_usd = self._used_by(call, used)
        await self._counters.settle(call.id, tokens=tokens, nano_usd=round(cost_usd * NANO_PER_USD))

    def _used_by(self, call: Call, used: _Used) -> tuple[int, float]:
        """Count the tokens and dollars of a call that ended here; one that broke off is not free, so it is guessed."""
        notes = call.notes
        is_free = notes.cost_usd is None and not used.is_answered
        if notes.cache.status in _HITS or is_free:
            return 0, 0.0
        if used.usage is not None and notes.cost_usd is not None:
            return used.usage.total_tokens, notes.cost_usd
        tokens, cost_usd = self._estimator.broken_off(call, num_deltas=used.num_deltas, num_chars=used.num_chars)
        if notes.cost_usd is None:
            notes.cost_usd = cost_usd  # so that the log's sum and the counters' agree
            notes.extra["cost_is_estimated"] = True
        return tokens, notes.cost_usd

    def _refusal(self, refused: Refused, estimate: Estimate, now: float) -> LaminaError:
        limits, whose = refused.scope.limits, "your team's" if refused.scope.is_team else "your"
        if refused.limit == "budget":
            return _over_budget(refused, estimate, whose=whose, now=now)
        limit = {"rpm": limits.rpm, "tpm": limits.tpm, "parallel": limits.parallel}[refused.limit]
        return LimitReached(
            f"Rate limit reached: {whose} limit is {limit} {_WORDS[refused.limit]}. "
            f"Try again in {refused.wait_s:.3f} s.",
            retry_after_s=refused.wait_s,
        )


def _over_budget(refused: Refused, estimate: Estimate, *, whose: str, now: float) -> BudgetExceeded:
    limits = refused.scope.limits
    end = (refused.scope.window_at(now) + 1) * WINDOWS_S[limits.window]
    until = datetime.fromtimestamp(end, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    cost, left = _usd(estimate.nano_usd), _usd(refused.left_nano_usd)
    less = " A smaller max_tokens could cost less." if refused.left_nano_usd > 0 else ""
    return BudgetExceeded(
        f"This call could cost {cost} USD, and {left} USD are left of {whose} budget of {limits.budget_usd:g} USD per "
        f"{limits.window}, which begins anew at {until}.{less}"
    )


def _usd(nano: int) -> str:
    return f"{nano / NANO_PER_USD:.9f}".rstrip("0").rstrip(".")


class _Used:
    """What was seen of an answer."""

    __slots__ = ("is_answered", "is_settled", "num_chars", "num_deltas", "usage")

    def __init__(self) -> None:
        self.is_answered = False
        self.is_settled = False
        self.usage: Usage | None = None
        self.num_deltas = 0
        self.num_chars = 0

    def saw(self, event: Event) -> None:
        """Note an event."""
        if isinstance(event, Delta):
            self.is_answered = True
            self.num_deltas += 1
            self.num_chars += len(event.text)
        elif isinstance(event, Finish):
            self.is_answered = True
            self.usage = event.usage


def _headers(rooms: tuple[Room, ...]) -> dict[str, str]:
    """Tell of the scope that has the least left."""
    headers: dict[str, str] = {}
    by_requests = [room for room in rooms if room.limit_requests is not None]
    if by_requests:
        tightest = min(by_requests, key=lambda room: room.remaining_requests)
        headers["limit-requests"] = str(tightest.limit_requests)
        headers["remaining-requests"] = str(tightest.remaining_requests)
        headers["reset-requests"] = f"{tightest.reset_requests_s:.3f}s"
    by_tokens = [room for room in rooms if room.limit_tokens is not None]
    if by_tokens:
        tightest = min(by_tokens, key=lambda room: room.remaining_tokens)
        headers["limit-tokens"] = str(tightest.limit_tokens)
        headers["remaining-tokens"] = str(tightest.remaining_tokens)
        headers["reset-tokens"] = f"{tightest.reset_tokens_s:.3f}s"
    return headers
