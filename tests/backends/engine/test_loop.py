from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from backends.engine.core import EngineCore
from backends.engine.loop import EngineLoop, Report
from backends.engine.sched.decision import Decision
from backends.engine.types import FinishReason, RefusalCode, Refused, Sampled
from tests.backends.engine.fakes import config, submission


class StuckRunner:
    """Hang in the first step until told, then draw zeros."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Hang, or draw."""
        self.entered.set()
        assert self.go_on.wait(60)
        return [Sampled(row.key, 0) for row in decision.rows if row.draw is not None]


class WrongRunner:
    """Answer for a request that nobody knows, so that the books of our own break."""

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Return something that is no sample."""
        return [None]  # type: ignore[list-item]


@contextmanager
def _running(core: EngineCore, **options: float) -> Iterator[tuple[EngineLoop, queue.Queue[Report]]]:
    reports: queue.Queue[Report] = queue.Queue()
    loop = EngineLoop(core, deliver=reports.put, crashed=lambda: None, **options)  # type: ignore[arg-type]
    loop.start()
    try:
        yield loop, reports
    finally:
        loop.close()


def test_a_stall_is_logged_once_with_what_is_needed_to_understand_it(caplog: pytest.LogCaptureFixture) -> None:
    runner, logged = StuckRunner(), threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: logged.set()  # type: ignore[method-assign]
    logger = logging.getLogger("backends.engine.loop")
    logger.addHandler(handler)
    try:
        core = EngineCore(config(), runner, new_seed=lambda: 1)
        with caplog.at_level(logging.ERROR), _running(core, stall_s=0.05) as (loop, reports):
            loop.submit(1, submission([1, 2], max_tokens=1))
            assert logged.wait(30)
            runner.go_on.set()
            assert reports.get(timeout=30).outputs[0][1].finish is FinishReason.LENGTH
    finally:
        logger.removeHandler(handler)

    (record,) = caplog.records
    assert "engine.stall" in record.message
    assert "rows=[1:0+2]" in record.message
    assert "running=1 [1:0/3+0] waiting=0 [] free=31 evictable=0 of=32" in record.message
    assert "go_on.wait" in record.message


class EndlessRunner:
    """Draw zeros, one step for every permission."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Wait for a permission, then draw."""
        assert self.permits.acquire(timeout=60)
        return [Sampled(row.key, 0) for row in decision.rows if row.draw is not None]


def test_an_engine_whose_last_request_was_aborted_is_idle_and_not_stalled() -> None:
    runner = EndlessRunner()
    core = EngineCore(config(), runner, new_seed=lambda: 1)
    with _running(core) as (loop, reports):
        loop.submit(1, submission([1, 2], max_tokens=60))
        runner.permits.release()
        reports.get(timeout=30)
        loop.abort(1)
        loop.submit(2, submission([1, 2, 3], max_tokens=0))  # its refusal tells that the abort was done
        runner.permits.release(100)
        while not reports.get(timeout=30).refusals:
            pass
        loop.submit(3, submission([1, 2, 3], max_tokens=0))
        reports.get(timeout=30)

        assert core.stats()["aborted"] == 1
        assert loop._working_since is None


def test_a_full_command_queue_refuses_at_once_and_still_takes_aborts() -> None:
    runner = StuckRunner()
    core = EngineCore(config(), runner, new_seed=lambda: 1)
    with _running(core, max_commands=1) as (loop, reports):
        loop.submit(1, submission([1]))
        assert runner.entered.wait(30)
        loop.submit(2, submission([1]))
        with pytest.raises(Refused) as refusal:
            loop.submit(3, submission([1]))
        loop.abort(1)
        loop.abort(2)
        runner.go_on.set()
        reports.get(timeout=30)

    assert refusal.value.code is RefusalCode.QUEUE_FULL


def test_broken_books_end_every_request_and_start_anew() -> None:
    core = EngineCore(config(), WrongRunner(), new_seed=lambda: 1)
    keys = [core.submit(submission([n])) for n in range(6)]

    outputs = core.step()

    assert sorted(output.key for output in outputs) == keys
    assert {output.finish for output in outputs} == {FinishReason.ERROR}
    assert not core.has_work
    assert core.stats()["pages_used"] == 0
    assert core.stats()["finished"] == 6
    core.check()


def test_closing_ends_both_threads_with_work_left() -> None:
    runner = StuckRunner()
    runner.go_on.set()
    core = EngineCore(config(), runner, new_seed=lambda: 1)
    with _running(core) as (loop, reports):
        loop.submit(1, submission([1], max_tokens=60))
        reports.get(timeout=30)

    assert not loop._thread.is_alive()
    assert not loop._watchdog.is_alive()


def test_without_a_seed_each_request_gets_its_own() -> None:
    seeds = iter([3, 4])
    core = EngineCore(config(), StuckRunner(), new_seed=lambda: next(seeds))
    core.submit(submission([1]))
    core.submit(submission([1]))

    decision = core._scheduler.schedule()

    assert [row.draw.seed for row in decision.rows if row.draw] == [3, 4]
