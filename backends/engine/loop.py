"""The engine's own thread: commands in between two steps, outputs out after each, and a watchdog beside it."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from backends.engine.core import EngineCore
from backends.engine.journal import Journal
from backends.engine.numbers import Snapshot
from backends.engine.types import Output, RefusalCode, Refused, Submission

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submit:
    """Take a request, known to its owner as `ticket`."""

    ticket: int
    submission: Submission
    at_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request, if it has not ended."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Check:
    """Look whether the books agree; `tell` gets what is wrong with them, or `None`, in the engine's thread."""

    tell: Callable[[str | None], None]


Command = Submit | Abort | Check


@dataclass(frozen=True, slots=True)
class Report:
    """What happened at once: outputs by ticket, and refusals by ticket."""

    outputs: tuple[tuple[int, Output], ...] = ()
    refusals: tuple[tuple[int, Refused], ...] = ()


class EngineLoop:
    """Own the core in one thread; everything public may be called from any other.

    Commands wait in a bounded queue: where it is full a submission is refused at once. Aborts are always taken; there
    can be no more of them than there were submissions. `deliver` and `crashed` are called in the engine's thread and
    must not block; after `crashed` nothing runs any more.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        deliver: Callable[[Report], None],
        crashed: Callable[[], None],
        journal: Journal | None = None,
        max_commands: int = 4096,
        stall_s: float = 30.0,
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._crashed = crashed
        self._journal = journal or Journal()
        self._max_commands = max_commands
        self._stall_s = stall_s
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._keys: dict[int, int] = {}
        self._tickets: dict[int, int] = {}
        self._working_since: float | None = None
        self._turn_s = 0.0
        self._stats = core.stats()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name="engine-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread and its watchdog."""
        self._thread.start()
        self._watchdog.start()

    def close(self, *, timeout_s: float = 10.0) -> None:
        """End both threads after the step in flight; live requests are dropped."""
        with self._wake:
            self._is_closing = True
            self._wake.notify_all()
        self._thread.join(timeout_s)
        self._watchdog.join(timeout_s)

    def submit(self, ticket: int, submission: Submission) -> None:
        """Pass a request on; its outputs or its refusal come by `deliver`. Raises `Refused` where the queue is full."""
        with self._wake:
            if len(self._commands) >= self._max_commands:
                retry_after_s = min(60.0, max(0.1, self._turn_s))  # they are all taken before the next step
                raise Refused(RefusalCode.QUEUE_FULL, "too many submissions at once", retry_after_s=retry_after_s)
            self._commands.append(Submit(ticket, submission))
            self._wake.notify_all()

    def abort(self, ticket: int) -> None:
        """End a request before the next step; nothing more is delivered for it after that."""
        with self._wake:
            self._commands.append(Abort(ticket))
            self._wake.notify_all()

    def check(self, tell: Callable[[str | None], None]) -> None:
        """Ask whether pages, locks and requests agree; `tell` is called before the next step and must not block."""
        with self._wake:
            self._commands.append(Check(tell))
            self._wake.notify_all()

    def stats(self) -> Mapping[str, float]:
        """Return the numbers as they were after the last step or command."""
        return {**self._stats, **self._journal.counts()}

    def histograms(self) -> Snapshot:
        """Return the histograms of steps and requests."""
        return self._journal.histograms.snapshot()

    def _run(self) -> None:
        try:
            while (commands := self._next_commands()) is not None:
                began_s = time.monotonic()
                self._turn(commands)
                self._turn_s = time.monotonic() - began_s
        except Exception:
            logger.exception("engine.crashed decision=%s", self._core.last_decision)
            self._crashed()
        finally:
            self._core.close()

    def _turn(self, commands: Sequence[Command]) -> None:
        refusals = [refusal for refusal in map(self._execute, commands) if refusal is not None]
        self._stats = self._core.stats()
        outputs = self._step() if self._core.has_work else ()
        if not self._core.has_work:
            self._working_since = None  # the last one may have ended by an abort, without a step
        self._stats = self._core.stats()
        if outputs or refusals:
            self._deliver(Report(tuple(outputs), tuple(refusals)))

    def _next_commands(self) -> list[Command] | None:
        """Wait until there is something to do; returns the commands to run first, `None` at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._commands or self._is_closing or self._core.has_work)
            if self._is_closing:
                return None
            commands = list(self._commands)
            self._commands.clear()
            return commands

    def _execute(self, command: Command) -> tuple[int, Refused] | None:
        match command:
            case Submit(ticket, submission, at_s):
                try:
                    key = self._core.submit(submission)
                except Refused as refused:
                    return ticket, refused
                self._keys[ticket], self._tickets[key] = key, ticket
                self._journal.queued(key, at_s=at_s, num_prompt_tokens=len(submission.prompt))
            case Abort(ticket):
                ended = self._keys.pop(ticket, None)
                if ended is not None:
                    self._core.abort(ended)
                    self._journal.aborted(ended)
                    del self._tickets[ended]
            case Check(tell):
                tell(self._fault())
        return None

    def _fault(self) -> str | None:
        try:
            self._core.check()
        except AssertionError as exc:
            logger.exception("engine.books_wrong %s", self._core.describe())
            return str(exc) or "an assertion"
        return None

    def _step(self) -> Sequence[tuple[int, Output]]:
        before = self._core.progress
        self._working_since = self._working_since or time.monotonic()
        outputs = self._journal.gave(self._core.step())
        is_moving = self._core.progress != before
        if is_moving:
            self._working_since = time.monotonic()
        else:
            with self._wake:  # nothing should ever stand still; if it does, let it not spin
                self._wake.wait_for(lambda: self._commands or self._is_closing, timeout=0.1)
        addressed = [(self._tickets[output.key], output) for output in outputs]
        for ticket, output in addressed:
            if output.finish is not None:
                del self._keys[ticket], self._tickets[output.key]
        return addressed

    def _watch(self) -> None:
        """Log one state dump for every stall: work there, and nothing moved for `stall_s`."""
        reported: float | None = None
        while not self._is_closing:
            with self._wake:
                self._wake.wait_for(lambda: self._is_closing, timeout=min(1.0, self._stall_s / 4))
            since = self._working_since
            if since is None or since == reported or time.monotonic() - since < self._stall_s:
                continue
            reported = since
            logger.error("engine.stall %s", self._describe(time.monotonic() - since))

    def _describe(self, stalled_s: float) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else "the thread is gone"
        return f"stalled_s={stalled_s:.1f} stats={dict(self._stats)} {self._core.describe()}\n{stack}"
