"""What a flight has brought so far: written by one task, read by several, each at its own pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from orchestration.core import Delta, Event
from orchestration.core.errors import StreamBroken

_EVENT_BYTES = 100
_NUMBER_BYTES = 9


@dataclass(slots=True, eq=False)
class Reader:
    """One who reads: `position` counts the events read so far; `is_cut` when it was too slow to be waited for."""

    position: int = 0
    is_cut: bool = False


class Recording:
    """Events in the order they came, about `max_bytes` of them at most.

    Up to the bound everything is kept, the writer is never held up, and a reader may begin at any time. Beyond it
    (`is_whole` is False from then on, and nobody may begin) what all have read is dropped, and the writer waits
    for the slowest. While a faster reader is kept waiting by that, at most `patience_s` seconds are spent in all;
    then the slowest are cut off with `StreamBroken`. A reader alone is waited for as long as it stays.
    """

    def __init__(self, *, max_bytes: int, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_whole = True
        self.is_over = False
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._clock = clock
        self._events: list[Event] = []
        self._sizes: list[int] = []
        self._num_dropped = 0
        self._held_bytes = 0
        self._readers: set[Reader] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._progress = asyncio.Event()

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that came; only while the recording is whole."""
        assert self.is_whole, "the beginning is no longer here"
        return tuple(self._events)

    @property
    def held_bytes(self) -> int:
        """Estimate what is held now."""
        return self._held_bytes

    @property
    def num_readers(self) -> int:
        """Count those who read."""
        return len(self._readers)

    async def append(self, event: Event) -> None:
        """Add an event and wake the readers; then wait for room where the bound is passed."""
        size = size_bytes(event)
        self._events.append(event)
        self._sizes.append(size)
        self._held_bytes += size
        self._wake_readers()
        if self._held_bytes > self._max_bytes:
            self.is_whole = False
            await self._make_room()

    def end(self) -> None:
        """Let the readers come to an end; nothing is appended afterwards."""
        self.is_over = True
        self._wake_readers()

    async def read(self, reader: Reader) -> AsyncGenerator[Event, None]:
        """Give the events from the first one on, until the recording has ended; raises `StreamBroken` when cut off."""
        self._readers.add(reader)
        try:
            while not reader.is_cut:
                while reader.position < self._num_dropped + len(self._events) and not reader.is_cut:
                    event = self._events[reader.position - self._num_dropped]
                    reader.position += 1
                    self._progress.set()
                    yield event
                if reader.is_cut:
                    break
                if self.is_over:
                    return
                await self._wait_for_news()
            raise StreamBroken("the client read too slowly while others waited for the same answer")
        finally:
            self._readers.discard(reader)
            self._progress.set()

    async def _wait_for_news(self) -> None:
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(news)
        await news

    def _wake_readers(self) -> None:
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():  # a reader that left
                news.set_result(None)

    async def _make_room(self) -> None:
        self._drop_what_all_have_read()
        while self._held_bytes > self._max_bytes and self._readers:
            slowest = min(reader.position for reader in self._readers)
            front = self._num_dropped + len(self._events)
            is_anybody_kept_waiting = any(reader.position == front for reader in self._readers)
            if is_anybody_kept_waiting and self._patience_s <= 0:
                self._cut(slowest)
            else:
                await self._wait_for_progress(is_charged=is_anybody_kept_waiting)
            self._drop_what_all_have_read()

    async def _wait_for_progress(self, *, is_charged: bool) -> None:
        """Wait until a reader has moved, for no longer than the patience left where that is `is_charged`."""
        self._progress.clear()
        began = self._clock()
        try:
            async with asyncio.timeout(self._patience_s if is_charged else None):
                await self._progress.wait()
        except TimeoutError:
            self._patience_s = 0.0
        if is_charged:
            self._patience_s -= self._clock() - began

    def _cut(self, position: int) -> None:
        for reader in [reader for reader in self._readers if reader.position == position]:
            reader.is_cut = True
            self._readers.discard(reader)
        self._wake_readers()

    def _drop_what_all_have_read(self) -> None:
        read = min((reader.position for reader in self._readers), default=0) - self._num_dropped
        if read > 0:
            self._held_bytes -= sum(self._sizes[:read])
            del self._events[:read], self._sizes[:read]
            self._num_dropped += read


def size_bytes(event: Event) -> int:
    """Estimate what an event holds, to within a small factor and without walking through every number of a vector."""
    if not isinstance(event, Delta):
        return _EVENT_BYTES
    raw = len(event.raw) if event.raw is not None else 0
    return _EVENT_BYTES + len(event.text) + raw + _size_of(event.data) + _size_of(event.logprobs)


def _size_of(value: Any) -> int:
    match value:
        case None:
            return 0
        case str() | bytes():
            return len(value)
        case dict():
            return sum(len(name) + _size_of(item) for name, item in value.items())
        case [float(), *_]:
            return _NUMBER_BYTES * len(value)
        case list():
            return sum(_size_of(item) for item in value)
        case _:
            return _NUMBER_BYTES
