"""The engine without threads or sockets: submit, abort, step; whoever calls it calls from one thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from backends.engine.ahead import Flight, RunAhead, StepRunner
from backends.engine.config import EngineConfig
from backends.engine.sched.decision import Decision
from backends.engine.sched.scheduler import Scheduler
from backends.engine.types import Output, Sampled, Submission

logger = logging.getLogger(__name__)


class EngineCore:
    """A scheduler and a runner, and the rule that an error belongs to the requests of its step alone.

    With `overlap` a thread of its own computes a step while this one plans the next and hands out what the last one
    drew. A request that comes is planned a step later then; answers are the same.
    """

    def __init__(
        self, config: EngineConfig, runner: StepRunner, *, new_seed: Callable[[], int], overlap: bool = False
    ) -> None:
        self._config = config
        self._runner = runner
        self._new_seed = new_seed
        self._scheduler = Scheduler(config)
        self._ahead = RunAhead(runner) if overlap else None
        self._flight: Flight | None = None
        self._last_key = 0
        self.last_decision = "none"

    @property
    def has_work(self) -> bool:
        """Tell whether any request is alive, or a step in flight."""
        return self._scheduler.has_work or self._flight is not None

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
            return self._step_alone() if self._ahead is None else self._step_ahead(self._ahead)
        except Exception:
            return self._start_anew()

    def close(self) -> None:
        """End the thread of the steps in flight; nothing may be called after that but `stats` and `check`."""
        if self._ahead is not None:
            self._ahead.close()

    def _step_alone(self) -> list[Output]:
        """Plan, compute and apply one step; raises where the books do not hold."""
        decision = self._scheduler.schedule()
        self.last_decision = decision.describe()
        sampled = self._land(Flight(decision, lambda: self._runner.run(decision) if decision.rows else ()))
        return self._scheduler.fail_step(decision) if sampled is None else self._scheduler.apply(decision, sampled)

    def _step_ahead(self, ahead: RunAhead) -> list[Output]:
        """Plan the next step while one is computed, launch it when that one lands, and then apply that one."""
        if self._flight is not None and not self._scheduler.has_any(self._flight.decision):
            self._land(self._flight)  # all of its requests were aborted
            self._flight = None
        if self._flight is None:
            self._launch(ahead, self._scheduler.schedule())
        if self._flight is None:
            return []
        plan = self._scheduler.schedule()
        flight, self._flight = self._flight, None
        sampled = self._land(flight)
        if sampled is None:
            failed = {row.key for row in flight.decision.rows}
            # What the failed step was to save may not be there, so nothing that the plan brings back is relied on.
            loaded = plan.loaded_keys - failed
            self._launch(ahead, plan.settle({}, without=failed | loaded))
            return self._scheduler.fail_step(flight.decision) + self._scheduler.fail(sorted(loaded))
        drawn = {result.key: result.token for result in sampled if result.token is not None}
        self._launch(ahead, plan.settle(drawn, without=self._scheduler.ends(sampled)))
        return self._scheduler.apply(flight.decision, sampled)

    def _launch(self, ahead: RunAhead, decision: Decision) -> None:
        if not decision.is_empty:
            self.last_decision = decision.describe()
            self._flight = ahead.launch(decision)

    def _land(self, flight: Flight) -> Sequence[Sampled] | None:
        """Return what a step drew, or `None`, having said why, where it raised."""
        try:
            return flight.land()
        except Exception:
            logger.exception("engine.step_failed %s", flight.decision.describe())
            return None

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
        self._flight = None  # what it writes is of no use to anyone, and it is computed before any later step
        ended = self._scheduler.fail_all()
        self._scheduler = Scheduler(self._config, self._scheduler.counters)
        return ended
