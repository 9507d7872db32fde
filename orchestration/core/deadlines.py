"""Many short deadlines on one timer: nearly all of them are kept, and then cost next to nothing.

`asyncio.timeout` makes and cancels a timer of the event loop each time, 5 us of CPU; this makes a list entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class Alarm:
    """Something to be done at a time, unless it is cancelled before.

    Once it rang or is cancelled it lets go of what it would do: that is a method of its keeper as a rule, and the cycle
    would keep all that a call holds until the garbage collector comes by.
    """

    __slots__ = ("_act", "_alarms", "at_s")

    def __init__(self, alarms: set[Alarm], at_s: float, act: Callable[[], None]) -> None:
        self._alarms = alarms
        self.at_s = at_s
        self._act: Callable[[], None] | None = act
        alarms.add(self)

    def ring(self) -> None:
        """Do it now, unless it is done or cancelled."""
        act = self._act
        self.cancel()
        if act is not None:
            act()

    def cancel(self) -> None:
        """Do nothing at that time; may be said again, and too late."""
        self._alarms.discard(self)
        self._act = None


class Deadlines:
    """Alarms and time limits that share one timer of the event loop; they come up to `grain_s` late.

    Belongs to the first event loop that it is used in. The timer runs only while there is something to wait for.
    """

    def __init__(self, *, grain_s: float = 0.002) -> None:
        self._grain_s = grain_s
        self._alarms: set[Alarm] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0

    def ring(self, delay_s: float, act: Callable[[], None]) -> Alarm:
        """Call `act` in `delay_s` seconds."""
        loop = asyncio.get_running_loop()
        at_s = loop.time() + delay_s
        if self._timer is None or at_s < self._timer_at_s - self._grain_s:
            self._set_timer(loop, at_s)
        return Alarm(self._alarms, at_s, act)

    def within(self, timeout_s: float) -> _Within:
        """Return a context that cancels what is awaited in it after `timeout_s` and raises `TimeoutError`."""
        return _Within(self, timeout_s)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = loop.call_at(at_s, self._look)

    def _look(self) -> None:
        """Do what is due, and look again when the next one will be."""
        self._timer = None
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._grain_s / 2
        for alarm in [alarm for alarm in self._alarms if alarm.at_s <= due_s]:
            alarm.ring()
        if self._alarms and self._timer is None:
            next_s = min(alarm.at_s for alarm in self._alarms)
            self._set_timer(loop, max(next_s, loop.time() + self._grain_s))


class _Within:
    """One time limit around what one task awaits, with the rules of `asyncio.timeout`."""

    __slots__ = ("_alarm", "_deadlines", "_is_over", "_num_cancelled", "_task", "_timeout_s")

    def __init__(self, deadlines: Deadlines, timeout_s: float) -> None:
        self._deadlines = deadlines
        self._timeout_s = timeout_s
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a time limit is for a task"
        self._task = task
        self._num_cancelled = task.cancelling()
        self._alarm = self._deadlines.ring(self._timeout_s, self._end)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        if self._is_over and self._task.uncancel() <= self._num_cancelled and kind is asyncio.CancelledError:
            raise TimeoutError from exc

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()
