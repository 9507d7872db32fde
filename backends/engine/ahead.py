"""A thread that computes decisions one after another, so that the next is planned while one is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    """Own the thread; decisions are computed in the order in which they were launched."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-runner")

    def launch(self, decision: Decision) -> Flight:
        """Start computing a decision after those before it."""
        return Flight(decision, self._thread.submit(self._runner.run, decision).result)

    def close(self) -> None:
        """End the thread after what was launched."""
        self._thread.shutdown()
