"""Requests that wait, in the order of a policy chosen by name; nothing here costs more for a longer queue."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from backends.engine.sched.policy import rank
from backends.engine.sched.request import Request

CachedLength = Callable[[Request], int]
"""Returns how many tokens of a waiting request are cached now."""


class WaitingQueue(Protocol):
    """The order of those that wait; a request is in it at most once."""

    def __len__(self) -> int:
        """Return how many wait."""

    def add(self, request: Request) -> None:
        """Put a request in."""

    def discard(self, request: Request) -> None:
        """Take a request out that is in."""

    def first(self, count: int) -> Sequence[Request]:
        """Return the next `count` in order; being admitted before one that stands earlier is overtaking it."""

    def prefer(self, candidates: Sequence[Request]) -> Sequence[Request]:
        """Return candidates in the order in which to try them."""

    def charge(self, salt: str, num_tokens: int) -> None:
        """Note that so many tokens were spent on a tenant."""


class ByRank:
    """First come, first served, by rank: priorities with ageing."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Put a request in: a few comparisons, and a move of pointers that ten thousand do not make felt."""
        bisect.insort(self._requests, request, key=rank)

    def discard(self, request: Request) -> None:
        """Take a request out that is in."""
        index = bisect.bisect_left(self._requests, rank(request), key=rank)
        assert self._requests[index] is request
        del self._requests[index]

    def first(self, count: int) -> Sequence[Request]:
        """Return the next `count`."""
        return self._requests[:count]

    def prefer(self, candidates: Sequence[Request]) -> Sequence[Request]:
        """Return candidates as they stand."""
        return candidates

    def charge(self, salt: str, num_tokens: int) -> None:
        """Note nothing; nobody's share counts."""


class LongestPrefix(ByRank):
    """Prefer, among the next few by rank, those with the most cached tokens; the bound on overtaking ages the rest."""

    def __init__(self, cached_length: CachedLength) -> None:
        super().__init__()
        self._cached_length = cached_length

    def prefer(self, candidates: Sequence[Request]) -> Sequence[Request]:
        """Return candidates by cached tokens, most first; equal ones as they stand."""
        return sorted(candidates, key=self._cached_length, reverse=True)


@dataclass(slots=True)
class _Tenant:
    """One tenant's waiting requests, and the tokens spent on it."""

    served: int
    waiting: ByRank = field(default_factory=ByRank)
    is_listed: bool = False


class FairShare:
    """Serve the tenant on which the fewest tokens were spent; within a tenant by rank.

    A prompt counts when it is admitted, an answer token by token. A tenant that comes back from having nothing to wait
    for starts level with whoever was served last: idleness saves nothing up. Requests that were running and gave way
    go before all, since they were paid for. At most `max_idle` tenants with nothing to wait for are remembered.
    """

    def __init__(self, *, max_idle: int = 4096) -> None:
        self._max_idle = max_idle
        self._resuming = ByRank()
        self._tenants: dict[str, _Tenant] = {}
        self._listed: list[tuple[int, str]] = []  # a heap; an entry's count may be behind its tenant's, never ahead
        self._level = 0
        self._num_new = 0
        self._num_kept = 0

    def __len__(self) -> int:
        return self._num_new + len(self._resuming)

    def add(self, request: Request) -> None:
        """Put a request in."""
        if request.was_admitted:
            self._resuming.add(request)
            return
        tenant = self._tenant(request.submission.salt)
        if not tenant.waiting:
            tenant.served = max(tenant.served, self._level)
        tenant.waiting.add(request)
        self._num_new += 1
        if not tenant.is_listed:
            tenant.is_listed = True
            heapq.heappush(self._listed, (tenant.served, request.submission.salt))

    def discard(self, request: Request) -> None:
        """Take a request out that is in."""
        if request.was_admitted:
            self._resuming.discard(request)
            return
        self._tenants[request.submission.salt].waiting.discard(request)
        self._num_new -= 1

    def first(self, count: int) -> Sequence[Request]:
        """Return the next `count`, as they would be served if each cost its prompt."""
        chosen = list(self._resuming.first(count))
        counted: list[tuple[int, str, Iterator[Request]]] = []  # a heap by the tokens spent if those chosen are served
        listed: list[str] = []
        while len(chosen) < count:
            while (least := self._least_served()) and (not counted or least < counted[0][:2]):
                served, salt = heapq.heappop(self._listed)
                heapq.heappush(counted, (served, salt, iter(self._tenants[salt].waiting.first(count))))
                listed.append(salt)
            if not counted:
                break
            served, salt, waiting = heapq.heappop(counted)
            request = next(waiting, None)
            if request is not None:
                chosen.append(request)
                heapq.heappush(counted, (served + len(request.tokens), salt, waiting))
        for salt in listed:
            heapq.heappush(self._listed, (self._tenants[salt].served, salt))
        return chosen

    def prefer(self, candidates: Sequence[Request]) -> Sequence[Request]:
        """Return candidates as they stand."""
        return candidates

    def charge(self, salt: str, num_tokens: int) -> None:
        """Note that so many tokens were spent on a tenant."""
        self._tenant(salt).served += num_tokens

    def _least_served(self) -> tuple[int, str] | None:
        """Return the head of the list, brought up to date; `None` where nobody waits."""
        while self._listed:
            served, salt = self._listed[0]
            tenant = self._tenants[salt]
            if not tenant.waiting:
                heapq.heappop(self._listed)
                tenant.is_listed = False
            elif served < tenant.served:
                heapq.heapreplace(self._listed, (tenant.served, salt))
            else:
                self._level = max(self._level, served)
                return served, salt
        return None

    def _tenant(self, salt: str) -> _Tenant:
        if salt not in self._tenants:
            if len(self._tenants) >= self._num_kept + self._max_idle:
                self._forget()
            self._tenants[salt] = _Tenant(self._level)
        return self._tenants[salt]

    def _forget(self) -> None:
        """Drop tenants with nothing to wait for; what the last of them overdrew is forgiven."""
        self._tenants = {salt: tenant for salt, tenant in self._tenants.items() if tenant.is_listed or tenant.waiting}
        self._num_kept = len(self._tenants)


def by_rank(cached_length: CachedLength) -> WaitingQueue:
    """Return an empty queue by rank; what is cached does not matter to it."""
    return ByRank()


def fair_share(cached_length: CachedLength) -> WaitingQueue:
    """Return an empty queue by tenants' shares; what is cached does not matter to it."""
    return FairShare()


POLICIES: Mapping[str, Callable[[CachedLength], WaitingQueue]] = {
    "fcfs": by_rank,
    "longest_prefix": LongestPrefix,
    "fair_share": fair_share,
}
