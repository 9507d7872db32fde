"""The lobby: where requests wait, within bounds, and how often one may be passed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from backends.engine.config import EngineConfig
from backends.engine.sched.meter import QueueMeter
from backends.engine.sched.queue import POLICIES, CachedLength
from backends.engine.sched.request import Request
from backends.engine.types import RefusalCode, Refused

WINDOW = 16
"""How many of those that wait are looked at for one admission, however many wait."""


class Lobby:
    """Hold the waiting requests, new ones and those that gave way, and offer the next few in the policy's order."""

    def __init__(self, config: EngineConfig, *, cached_length: CachedLength, clock: Callable[[], float]) -> None:
        self._config = config
        self._requests: dict[int, Request] = {}
        self._queue = POLICIES[config.policy](cached_length)
        self._meter = QueueMeter(clock)
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    @property
    def num_tokens(self) -> int:
        """Return how many tokens those that wait have in all."""
        return self._num_tokens

    def find(self, key: int) -> Request | None:
        """Return a waiting request."""
        return self._requests.get(key)

    def check_room(self, num_tokens: int) -> None:
        """Raise `Refused`, with the time until there is room, where one more request of so many tokens is too much."""
        if len(self) >= self._config.max_waiting:
            raise self._full(f"{len(self)} requests wait already", 0)
        limit = self._config.max_waiting_tokens
        if limit is not None and self._requests and self._num_tokens + num_tokens > limit:
            message = f"{self._num_tokens} tokens wait already and {num_tokens} more exceed {limit}"
            raise self._full(message, self._num_tokens + num_tokens - limit)

    def add(self, request: Request) -> None:
        """Let a request wait."""
        if not self._requests:
            self._meter.note_beginning()
        self._requests[request.key] = request
        self._num_tokens += len(request.tokens)
        self._queue.add(request)

    def remove(self, request: Request) -> None:
        """Take a waiting request out; one that does not wait is left alone."""
        if self._requests.pop(request.key, None) is not None:
            self._num_tokens -= len(request.tokens)
            self._queue.discard(request)

    def candidates(self, *, without: Collection[int]) -> Sequence[Request]:
        """Return the next few in order, one of which is to run next."""
        return [request for request in self._queue.first(WINDOW) if request.key not in without]

    def may_pass(self, request: Request, candidates: Sequence[Request]) -> bool:
        """Tell whether nobody before it was overtaken as often as may be."""
        earlier = candidates[: candidates.index(request)]
        limit = self._config.max_overtakes
        return not any(each.num_overtaken >= limit and each.key in self._requests for each in earlier)

    def prefer(self, candidates: Sequence[Request]) -> Sequence[Request]:
        """Return candidates in the order in which to try them."""
        return self._queue.prefer(candidates)

    def admit(self, request: Request, *, candidates: Sequence[Request]) -> int:
        """Take out a candidate that runs now; returns how many it overtook."""
        self.remove(request)
        if not request.was_admitted:
            self._meter.note_departure(len(request.tokens))
        overtaken = [each for each in candidates[: candidates.index(request)] if each.key in self._requests]
        for each in overtaken:
            each.num_overtaken += 1
        return len(overtaken)

    def charge(self, salt: str, num_tokens: int) -> None:
        """Note that so many tokens were spent on a tenant."""
        self._queue.charge(salt, num_tokens)

    def check(self) -> None:
        """Assert that queue, index and counts agree."""
        queued = self._queue.first(len(self) + 1)
        assert {request.key for request in queued} == self._requests.keys()
        assert len(queued) == len(self._queue) == len(self)
        assert all(request.holding is None for request in queued)
        assert self._num_tokens == sum(len(request.tokens) for request in queued)
        assert all(request.num_overtaken <= self._config.max_overtakes for request in queued)

    def _full(self, message: str, num_tokens: int) -> Refused:
        return Refused(
            RefusalCode.QUEUE_FULL,
            f"{message}; ask again later",
            retry_after_s=self._meter.retry_after_s(num_tokens),
        )
