"""The engine without threads or sockets: submit, abort, step; whoever calls it calls from one thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from backends.engine.config import EngineConfig
from backends.engine.sched.decision import Decision
from backends.engine.sched.scheduler import Scheduler
from backends.engine.types import Output, Sampled, Submission

logger = logging.getLogger(__name__)


class StepRunner(Protocol):
    """Computes decisions."""

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Return what was drawn for each row that draws; may raise, and the next decision must then work again."""


class EngineCore:
    """A scheduler and a runner, and the rule that an error belongs to the requests of its step alone."""

    def __init__(self, config: EngineConfig, runner: StepRunner, *, new_seed: Callable[[], int]) -> None:
        self._config = config
        self._runner = runner
        self._new_seed = new_seed
        self._scheduler = Scheduler(config)
        self._last_key = 0
        self.last_decision = "none"

    @property
    def has_work(self) -> bool:
        """Tell whether any request is alive."""
        return self._scheduler.has_work

    @property
    def progress(self) -> tuple[int, ...]:
        """Return a mark that every step changes unless something is wrong."""
        return self._scheduler.progress

    def submit(self, submission: Submission) -> int:
        """Queue a request; returns its key. Raises `Refused`."""
        seed = submission.params.seed
        key = self._last_key + 1
        self._scheduler.submit(key, submission, seed=self._new_seed() if seed is None else seed)
        self._last_key = key
        return key

    def abort(self, key: int) -> bool:
        """End a request at once and free its pages; returns False where it has ended already."""
        return self._scheduler.abort(key)

    def step(self) -> list[Output]:
        """Run one step; a step that raises ends its own requests with an error, and the rest go on."""
        try:
            decision = self._scheduler.schedule()
        except Exception:
            return self._start_anew()
        self.last_decision = decision.describe()
        try:
            sampled = self._runner.run(decision) if decision.rows else []
        except Exception:
            logger.exception("engine.step_failed %s", self.last_decision)
            return self._scheduler.fail([row.key for row in decision.rows])
        try:
            return self._scheduler.apply(decision, sampled)
        except Exception:
            return self._start_anew()

    def stats(self) -> Mapping[str, float]:
        """Return the numbers of the stats frame."""
        scheduler = self._scheduler
        pool, counters = scheduler.kv.pool, asdict(scheduler.counters)
        idle = scheduler.kv.tree.num_evictable
        used = pool.num_pages - pool.num_free - idle
        return {
            "running": scheduler.num_running,
            "waiting": scheduler.num_waiting,
            "waiting_tokens": scheduler.num_waiting_tokens,
            "num_pages": pool.num_pages,
            "pages_used": used,
            "pages_cached": idle,
            "kv_usage": used / pool.num_pages,
            **counters,
        }

    def describe(self) -> str:
        """Return one line on the state, without any token; may be asked for from another thread while a step hangs."""
        return f"decision=({self.last_decision}) {self._scheduler.describe()}"

    def check(self) -> None:
        """Assert that pages, locks and requests agree."""
        self._scheduler.check()

    def _start_anew(self) -> list[Output]:
        """Answer a fault of our own in the books: every live request ends with an error, and the books are empty."""
        logger.exception("engine.books_lost %s", self.last_decision)
        ended = self._scheduler.fail_all()
        self._scheduler = Scheduler(self._config, self._scheduler.counters)
        return ended
