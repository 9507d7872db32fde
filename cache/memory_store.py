"""A store in this process's memory: for tests, and for one worker without a server."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from cache.card import Card


class MemoryStore:
    """Keep at most `max_entries` values, the least recently used leaving first; `clock` counts seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, max_entries: int = 10_000) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._values: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none or its time is over."""
        kept = self._values.get(key)
        if kept is None:
            return None
        ends_at, value = kept
        if self._clock() >= ends_at:
            del self._values[key]
            return None
        self._values.move_to_end(key)
        return value

    async def put(self, key: str, value: bytes, *, ttl_s: float, card: Card | None = None) -> None:
        """Keep the value for `ttl_s` seconds, in place of any earlier one; cards are not kept."""
        self._values[key] = (self._clock() + ttl_s, value)
        self._values.move_to_end(key)
        while len(self._values) > self._max_entries:
            self._values.popitem(last=False)

    async def delete(self, key: str) -> None:
        """Forget the value, if there is one."""
        self._values.pop(key, None)
