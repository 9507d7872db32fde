"""A store that never keeps a call waiting: deadlines, and a breaker that spares calls a dead server."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from cache.card import Card, Invalidated
from cache.store import Leases, Store, StoreDown, StoreFull, StoreSlow
from orchestration.core.deadlines import Deadlines

T = TypeVar("T")


class Breaker:
    """Stop asking after `max_failures` in a row, and let one ask again after a pause.

    The pause begins at `pause_s` and doubles with each failed try up to `max_pause_s`; a success ends it all.
    """

    def __init__(
        self,
        *,
        max_failures: int = 3,
        pause_s: float = 0.5,
        max_pause_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_failures = max_failures
        self._first_pause_s = pause_s
        self._max_pause_s = max_pause_s
        self._clock = clock
        self._failures = 0
        self._pause_s = pause_s
        self._asks_again_at = 0.0
        self._is_trying = False

    def may_ask(self) -> bool:
        """Tell whether to ask now; True to one caller for each pause that ends, until `succeed` is heard."""
        if self._failures < self._max_failures:
            return True
        if self._clock() < self._asks_again_at:
            return False
        self._asks_again_at = self._clock() + self._pause_s
        self._is_trying = True
        return True

    def succeed(self) -> None:
        """Hear that the asked one answered."""
        self._failures = 0
        self._is_trying = False
        self._pause_s = self._first_pause_s

    def fail(self) -> None:
        """Hear that it did not."""
        self._failures += 1
        if self._is_trying:
            self._is_trying = False
            self._pause_s = min(self._pause_s * 2, self._max_pause_s)
        elif self._failures != self._max_failures:
            return  # too few yet, or one of many that were asked before the pause began
        self._asks_again_at = self._clock() + self._pause_s


class BoundedStore:
    """Ask a store within a deadline: `StoreSlow` when it is over, `StoreDown` at once while the breaker is open.

    A slow write does not count against the store, since its deadline is far shorter than a sound server may take; nor
    does a refused one, which is an answer.
    """

    def __init__(self, store: Store, *, get_timeout_s: float, put_timeout_s: float, breaker: Breaker) -> None:
        self._store = store
        self._get_timeout_s = get_timeout_s
        self._put_timeout_s = put_timeout_s
        self._breaker = breaker
        self._deadlines = Deadlines()

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none."""
        read = partial(self._store.get, key)
        return await ask_within(self._get_timeout_s, read, breaker=self._breaker, deadlines=self._deadlines)

    async def put(self, key: str, value: bytes, *, ttl_s: float, card: Card | None = None) -> None:
        """Keep the value for `ttl_s` seconds; after `StoreSlow` it may be kept or not."""
        write = partial(self._store.put, key, value, ttl_s=ttl_s, card=card)
        await ask_within(
            self._put_timeout_s, write, breaker=self._breaker, deadlines=self._deadlines, does_slow_count=False
        )


class BoundedLeases:
    """Ask for leases within the same bounds."""

    def __init__(self, leases: Leases, *, timeout_s: float, breaker: Breaker) -> None:
        self._leases = leases
        self._timeout_s = timeout_s
        self._breaker = breaker
        self._deadlines = Deadlines()

    async def acquire(self, key: str, *, ttl_s: float) -> str | None:
        """Take the lease for `ttl_s` seconds and return its token, or None while another holds it."""
        take = partial(self._leases.acquire, key, ttl_s=ttl_s)
        return await ask_within(self._timeout_s, take, breaker=self._breaker, deadlines=self._deadlines)

    async def release(self, key: str, token: str) -> None:
        """Give the lease back, if `token` still holds it."""
        give = partial(self._leases.release, key, token)
        await ask_within(self._timeout_s, give, breaker=self._breaker, deadlines=self._deadlines)


async def ask_within(
    timeout_s: float,
    asking: Callable[[], Awaitable[T]],
    *,
    breaker: Breaker,
    deadlines: Deadlines,
    does_slow_count: bool = True,
) -> T:
    """Return what `asking` does; raises `StoreSlow` after `timeout_s`, `StoreDown` at once while the breaker is open.

    The breaker hears how it went; a refusal (`Invalidated`, `StoreFull`) is an answer.
    """
    if not breaker.may_ask():
        raise StoreDown("the store has failed several times in a row and is left alone for a moment")
    try:
        with deadlines.within(timeout_s):
            answer = await asking()
    except TimeoutError as exc:
        if does_slow_count:
            breaker.fail()
        raise StoreSlow(f"the store took more than {timeout_s} s") from exc
    except (Invalidated, StoreFull):
        breaker.succeed()
        raise
    except StoreDown:
        breaker.fail()
        raise
    breaker.succeed()
    return answer
