"""Single-flight: one call on its way, and everybody who reads its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import aclosing
from types import TracebackType

from cache.recording import Reader, Recording
from orchestration.core import Call, Event, Finish
from orchestration.core.deadlines import Deadlines
from orchestration.core.errors import BackendUnavailable

logger = logging.getLogger(__name__)

_WIND_UP_S = 5.0
_CLOSE_S = 0.5


class Flight:
    """A call being answered by a task of its own, into a recording that several readers follow.

    The task ends with the answer, with an error that every reader gets, or when the last reader leaves before
    `Finish`. `call` is the leader's: the inner layers write their notes there, whether the leader stays or not.
    `is_orphan` tells that the leader left before the end. Once `is_landed`, all of the answer is in the recording.
    `epoch` is the latest invalidation that was known when it began.
    """

    def __init__(self, call: Call, *, id: str, started_at: float, recording: Recording, epoch: int = 0) -> None:
        self.call = call
        self.id = id
        self.started_at = started_at
        self.epoch = epoch
        self.recording = recording
        self.is_landed = False
        self.is_orphan = False
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._traceback: TracebackType | None = None

    @property
    def can_be_joined(self) -> bool:
        """Tell whether a newcomer would get the whole answer; one that has landed is for the store to give."""
        task = self._task
        is_ending = task is None or task.done() or task.cancelling() > 0
        return self.recording.is_whole and not is_ending and not self.is_landed

    def launch(
        self,
        events: AsyncGenerator[Event, None],
        *,
        before_finish: Callable[[Flight, Finish], Awaitable[None]],
        deadlines: Deadlines,
    ) -> asyncio.Task[None]:
        """Start pulling `events`; `before_finish` is awaited before any reader sees `Finish`."""
        self._deadlines = deadlines
        self._task = asyncio.create_task(self._pull(events, before_finish), name=f"flight-{self.id}")
        self._task.add_done_callback(self._end)
        return self._task

    async def lead(self) -> AsyncGenerator[Event, None]:
        """Read as the one whose call this is."""
        try:
            async with aclosing(self.follow()) as events:
                async for event in events:
                    yield event
        finally:
            self.is_orphan = not self.is_landed

    async def follow(self) -> AsyncGenerator[Event, None]:
        """Read from the first event on; the last one to leave before `Finish` takes the flight down with it."""
        try:
            async with aclosing(self.recording.read(Reader())) as events:
                async for event in events:
                    yield event
                    if isinstance(event, Finish):
                        return
            self._raise_failure()
        finally:
            if not self.recording.num_readers and not self.is_landed:
                await self._cancel()
                self._failure = self._traceback = None  # nobody reads any more, and its frames know this flight

    async def _pull(
        self, events: AsyncGenerator[Event, None], before_finish: Callable[[Flight, Finish], Awaitable[None]]
    ) -> None:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Finish):
                    await before_finish(self, event)
                    self.is_landed = True
                    await self.recording.append(event)
                    break
                await self.recording.append(event)
                if not self.recording.num_readers:
                    return
            await _wind_up(events, self._deadlines)

    async def _cancel(self) -> None:
        """Cancel the task and wait a moment, so that the inner layers have let go when our own end is reported."""
        task = self._task
        if task is None:
            return  # it has ended
        for _ in range(2):  # up to Python 3.11 `asyncio.wait_for`, wherever it is used, may swallow a cancellation
            task.cancel()
            # `wait` leaves the task alone should the waiting one be cancelled again.
            await asyncio.wait({task}, timeout=_CLOSE_S)

    def _end(self, task: asyncio.Task[None]) -> None:
        self.recording.end()
        self._task = None  # what it raised leads back here
        error = BackendUnavailable("the gateway is closing") if task.cancelled() else task.exception()
        if error is None:
            return
        if not self.is_landed and self.recording.num_readers:
            self._failure, self._traceback = error, error.__traceback__
        elif self.is_landed and not task.cancelled():
            logger.error("flight.failed_after_finish", exc_info=error)

    def _raise_failure(self) -> None:
        """Raise what ended the flight, to each reader with the traceback it had there."""
        assert self._task is None, "a recording ends with its task"
        if self._failure is not None:
            raise self._failure.with_traceback(self._traceback)


class Watch:
    """Whether a flight has landed since somebody began to look: a context in which it is told."""

    __slots__ = ("_key", "_watches", "has_landed")

    def __init__(self, watches: dict[str, set[Watch]], key: str) -> None:
        self._watches = watches
        self._key = key
        self.has_landed = False

    def __enter__(self) -> Watch:
        self._watches.setdefault(self._key, set()).add(self)
        return self

    def __exit__(self, *_: object) -> None:
        watches = self._watches[self._key]
        watches.discard(self)
        if not watches:
            del self._watches[self._key]


class Flights:
    """The flights under way, found by key; it owns their tasks."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: dict[str, set[Watch]] = {}
        self._deadlines = Deadlines()

    def find(self, key: Hashable) -> Flight | None:
        """Return the flight that a newcomer may join, if there is one."""
        flight = self._flights.get(key)
        return flight if flight is not None and flight.can_be_joined else None

    def launch(
        self,
        flight: Flight,
        events: AsyncGenerator[Event, None],
        *,
        before_finish: Callable[[Flight, Finish], Awaitable[None]],
        key: Hashable | None,
    ) -> None:
        """Start a flight and own its task; without a `key` nobody can join."""
        task = flight.launch(events, before_finish=before_finish, deadlines=self._deadlines)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if key is not None:
            self._flights[key] = flight
            task.add_done_callback(lambda _: self._remove(key, flight))

    def watch(self, entry_key: str) -> Watch:
        """Notice an answer that is stored under `entry_key` meanwhile: a look-up may have come a moment too early."""
        return Watch(self._watches, entry_key)

    def tell_landed(self, entry_key: str) -> None:
        """Tell those who watch that an answer has been stored."""
        for watch in self._watches.get(entry_key, ()):
            watch.has_landed = True

    def close_to_newcomers(self) -> None:
        """Let nobody new join what is under way; who reads already reads on."""
        self._flights.clear()

    async def aclose(self) -> None:
        """Cancel every flight and wait for its end; their readers get `BackendUnavailable`."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_WIND_UP_S)

    def _remove(self, key: Hashable, flight: Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


async def _wind_up(events: AsyncGenerator[Event, None], deadlines: Deadlines) -> None:
    """Let the inner layers run to their own end; the readers have everything already."""
    try:
        with deadlines.within(_WIND_UP_S):
            async for _ in events:
                pass
    except TimeoutError:
        logger.warning("flight.slow_end")
