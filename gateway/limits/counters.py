"""The live counters: a call is let in by one script, and settled by another, exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gateway.limits import scripts
from gateway.limits.errors import StoreLost
from gateway.limits.estimate import Estimate
from gateway.limits.rules import NANO_PER_USD, WINDOWS_S, Scope
from gateway.limits.store import Scripts
from orchestration.core.value import value

_T = TypeVar("_T")
logger = logging.getLogger(__name__)

MAX_UNSETTLED = 10_000
_RENEWED_AT_ONCE = 500
_NO_LIMIT = -1


class Ledger(Protocol):
    """What is known to be spent, for good."""

    async def spent_usd(self, scope: Scope, *, since: float) -> float:
        """Sum a scope's settled costs since a Unix time in seconds; raises `StoreLost`."""
        ...


@value
class Room:
    """Where a scope stands after a decision: what is left, and how long until all of it is back."""

    limit_requests: int | None
    limit_tokens: int | None
    remaining_requests: int = 0
    remaining_tokens: int = 0
    reset_requests_s: float = 0.0
    reset_tokens_s: float = 0.0


@value
class Admitted:
    """The call is let in. One that is leased must be settled."""

    rooms: tuple[Room, ...]
    is_leased: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is not let in: by which limit (`rpm`, `tpm`, `parallel`, `budget`) of which scope, and for how long.

    For a budget there is no such time: `left_nano_usd` is what calls in flight and calls that ended leave of it.
    """

    limit: str
    scope: Scope
    wait_s: float
    rooms: tuple[Room, ...]
    left_nano_usd: int = 0


@value
class _InFlight:
    """A call that holds something: its keys in the store and what it holds there, scope by scope."""

    keys: tuple[str, ...]
    holds: tuple[str, ...]
    begun: float


class Counters:
    """Admit and settle calls against the counters in one store, shared by all workers and gateways.

    A call in flight holds its slot, tokens and money by a lease of `lease_s` that this object renews: what a killed
    process held is free again when its leases end. A settlement that the store could not take is tried again until
    it can, at most `MAX_UNSETTLED` of them; beyond that their leases end without.
    """

    def __init__(self, store: Scripts, ledger: Ledger, *, lease_s: float = 10.0, prefix: str = "lamina:l:") -> None:
        self._store = store
        self._ledger = ledger
        self._lease_ms = round(lease_s * 1000)
        self._prefix = prefix
        self._in_flight: dict[str, _InFlight] = {}
        self._unsettled: dict[str, tuple[_InFlight, int, int]] = {}
        self._settling: set[str] = set()
        self._settled: asyncio.Future[None] | None = None
        self._seeds: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._mean_duration_s = 1.0

    @property
    def num_in_flight(self) -> int:
        """Count the calls that hold something."""
        return len(self._in_flight) + len(self._unsettled)

    async def admit(
        self, call_id: str, scopes: Sequence[Scope], estimate: Estimate, *, now: float
    ) -> Admitted | Refused:
        """Let the call in, or say which limit forbids it; `now` is Unix time in seconds. Raises `StoreLost`.

        Where the caller is cancelled meanwhile, what was reserved is given back.
        """
        keys = tuple(self._prefix + scope.name for scope in scopes)
        try:
            return await self._admit(call_id, keys, scopes, estimate, now)
        except asyncio.CancelledError:
            self._own(self._take_back(call_id, keys))
            raise

    async def settle(self, call_id: str, *, tokens: int, nano_usd: int) -> None:
        """Replace what the call reserved by what it used; whoever calls again, or waits no longer, changes nothing."""
        held = self._in_flight.pop(call_id, None)
        if held is None:
            return
        duration_s = asyncio.get_running_loop().time() - held.begun
        self._mean_duration_s += 0.1 * (duration_s - self._mean_duration_s)
        self._settling.add(call_id)
        try:
            await self._settle(call_id, held, tokens, nano_usd)
        except asyncio.CancelledError:
            # Whether it was done is not known; done twice it changes nothing.
            self._own(self._settle_after_all(call_id, held, tokens, nano_usd))
            raise
        except BaseException:
            self._end_settling(call_id)
            raise
        self._end_settling(call_id)

    async def aclose(self) -> None:
        """Finish what is under way; what still cannot be settled is logged and left to its lease."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._wait_for_settling(self._settling)
        await self._settle_late()
        if self._unsettled:
            logger.error("limits.unsettled count=%d", len(self._unsettled))

    async def _admit(
        self, call_id: str, keys: tuple[str, ...], scopes: Sequence[Scope], estimate: Estimate, now: float
    ) -> Admitted | Refused:
        is_leased = any(_is_leased(scope) for scope in scopes)
        arguments: list[str | int] = [call_id, self._lease_ms, estimate.tokens, estimate.nano_usd, int(is_leased)]
        for scope in scopes:
            arguments += _arguments(scope, now)
        for _ in range(2 * len(scopes) + 1):
            verdict, blamed, number, *states = await self._store.run(
                scripts.ADMIT, (f"{self._prefix}scopes", *keys), arguments
            )
            if verdict != b"seed":
                break
            await self._seed(scopes[blamed - 1], now)
        else:
            raise StoreLost("the counters' store forgets what it is told")
        rooms = tuple(_room(scope, state) for scope, state in zip(scopes, states, strict=True))
        if verdict != b"ok":
            return self._refused(verdict.decode(), scopes[blamed - 1], number, rooms)
        if is_leased:
            begun = asyncio.get_running_loop().time()
            self._in_flight[call_id] = _InFlight(keys, tuple(state[0].decode() for state in states), begun)
            self._renewing = self._renewing or asyncio.create_task(self._renew_always(), name="lease-renewal")
        return Admitted(rooms, is_leased)

    def _refused(self, limit: str, scope: Scope, number: int, rooms: tuple[Room, ...]) -> Refused:
        if limit == "budget":
            return Refused(limit, scope, 0.0, rooms, left_nano_usd=number)
        wait_s = number / 1000.0
        if limit == "parallel":
            # Calls end one by one: with so many at once, one of them does about so often.
            wait_s = min(10.0, max(0.05, self._mean_duration_s / (scope.limits.parallel or 1)))
        return Refused(limit, scope, wait_s, rooms)

    async def _take_back(self, call_id: str, keys: tuple[str, ...]) -> None:
        """Settle a call for nothing; the store hears of it after the admission, if that one was sent at all."""
        try:
            await self._store.run(scripts.SETTLE, keys, [call_id, 0, 0])
        except StoreLost as exc:
            logger.warning("limits.left_to_its_lease error=%s", exc)

    async def _settle_after_all(self, call_id: str, held: _InFlight, tokens: int, nano_usd: int) -> None:
        try:
            await self._settle(call_id, held, tokens, nano_usd)
        finally:
            self._end_settling(call_id)

    def _end_settling(self, call_id: str) -> None:
        self._settling.discard(call_id)
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def _settle(self, call_id: str, held: _InFlight, tokens: int, nano_usd: int) -> None:
        try:
            await self._store.run(scripts.SETTLE, held.keys, [call_id, tokens, nano_usd])
        except StoreLost as exc:
            logger.warning("limits.settle_postponed error=%s", exc)
            if len(self._unsettled) < MAX_UNSETTLED:
                self._unsettled[call_id] = (held, tokens, nano_usd)

    async def _settle_late(self) -> None:
        for call_id, (held, tokens, nano_usd) in list(self._unsettled.items()):
            try:
                await self._store.run(scripts.SETTLE, held.keys, [call_id, tokens, nano_usd])
            except StoreLost:
                return
            self._unsettled.pop(call_id, None)

    async def _seed(self, scope: Scope, now: float) -> None:
        """Begin the scope's budget window with what the ledger knows; callers that want the same one share the work."""
        name = f"{scope.name}:{scope.limits.window}:{scope.window_at(now)}"
        task = self._seeds.get(name)
        if task is None:
            task = self._seeds[name] = self._own(self._write_seed(scope, now))
            task.add_done_callback(lambda _: self._seeds.pop(name, None))
        await asyncio.shield(task)

    async def _write_seed(self, scope: Scope, now: float) -> None:
        length_s, number = WINDOWS_S[scope.limits.window], scope.window_at(now)
        spent = await self._ledger.spent_usd(scope, since=float(number * length_s))
        arguments = [length_s, number, round(spent * NANO_PER_USD)]
        await self._store.run(scripts.SEED, [self._prefix + scope.name], arguments)

    async def _renew_always(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000.0)
            try:
                await self._renew()
            except StoreLost as exc:
                logger.warning("limits.renewal_failed error=%s", exc)

    async def _renew(self) -> None:
        await self._settle_late()
        for group in _groups({**self._in_flight, **{name: late[0] for name, late in self._unsettled.items()}}):
            keys = [key for held in group.values() for key in held.keys]
            arguments: list[str | int] = [self._lease_ms]
            for call_id, held in group.items():
                for hold in held.holds:
                    arguments += (call_id, hold)
            await self._store.run(scripts.RENEW, keys, arguments)
            await self._forget_settled(group)

    async def _forget_settled(self, group: dict[str, _InFlight]) -> None:
        """Take back what was settled while its renewal was under way, which may have written it anew.

        Only once its settlement is through: that one must find the call, or its cost would not count.
        """
        await self._wait_for_settling(group)
        for call_id in group.keys() - self._in_flight.keys() - self._unsettled.keys() - self._settling:
            await self._store.run(scripts.ABANDON, group[call_id].keys, [call_id])

    async def _wait_for_settling(self, group: Collection[str]) -> None:
        while self._settling and not self._settling.isdisjoint(group):
            if self._settled is None or self._settled.done():
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)

    def _own(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_leased(scope: Scope) -> bool:
    """Tell whether the scope holds something that has to be given back."""
    limits = scope.limits
    return not (limits.parallel is limits.tpm is limits.budget_usd is None)


def _arguments(scope: Scope, now: float) -> tuple[str | int, ...]:
    limits = scope.limits
    rates = tuple(_NO_LIMIT if value is None else value for value in (limits.rpm, limits.tpm, limits.parallel))
    if limits.budget_usd is None:
        return (*rates, _NO_LIMIT, 0, 0)
    budget = round(limits.budget_usd * NANO_PER_USD)
    return (*rates, budget, WINDOWS_S[limits.window], scope.window_at(now))


def _room(scope: Scope, state: Sequence[bytes]) -> Room:
    _, requests, tokens, reset_requests_ms, reset_tokens_ms = state
    return Room(
        limit_requests=scope.limits.rpm,
        limit_tokens=scope.limits.tpm,
        remaining_requests=int(requests or 0),
        remaining_tokens=int(tokens or 0),
        reset_requests_s=int(reset_requests_ms) / 1000.0,
        reset_tokens_s=int(reset_tokens_ms) / 1000.0,
    )


def _groups(calls: dict[str, _InFlight]) -> Iterator[dict[str, _InFlight]]:
    names = list(calls)
    for first in range(0, len(names), _RENEWED_AT_ONCE):
        yield {name: calls[name] for name in names[first : first + _RENEWED_AT_ONCE]}
