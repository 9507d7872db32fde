"""A thread that computes decisions one after another, so that the next is planned while one is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from backends.engine.sched.decision import Decision
from backends.engine.types import Sampled


class StepRunner(Protocol):
    """Computes decisions."""

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Return what was drawn for each row that draws; may raise, and the next decision must then work again."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A decision on its way; `land` waits for what it drew, and raises what computing it raised."""

    decision: Decision
    land: Callable[[], Sequence[Sampled]]


class RunAhead:
    """Own the thread; decisions are computed in the order in which they were launched.

    At most one is launched before the one before it landed. A step that hangs does not keep the process from ending.
    """

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._launched: SimpleQueue[tuple[Decision, Future[Sequence[Sampled]]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-runner", daemon=True)
        self._thread.start()

    def launch(self, decision: Decision) -> Flight:
        """Start computing a decision after those before it."""
        drawn: Future[Sequence[Sampled]] = Future()
        self._launched.put((decision, drawn))
        return Flight(decision, drawn.result)

    def close(self, *, timeout_s: float = 10.0) -> None:
        """End the thread after what was launched."""
        self._launched.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._launched.get()) is not None:
            decision, drawn = work
            try:
                drawn.set_result(self._runner.run(decision))
            except Exception as exc:
                drawn.set_exception(exc)  # whoever lands it answers
