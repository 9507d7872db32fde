"""Planning a step while the last one is computed changes nothing that anybody is told."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.core import EngineCore
from backends.engine.sched.decision import PENDING, Decision
from backends.engine.types import FinishReason, Output, Sampled
from tests.backends.engine.fakes import EOS, Bench, FakeRunner, answer, config, submission


class GatedRunner:
    """Draw what the fake runner draws, each step when it is let go; a step with the end token raises."""

    def __init__(self) -> None:
        self.fake = FakeRunner(page_size=4)
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Wait for a permit, then compute."""
        self.entered.release()
        assert self.gate.acquire(timeout=60)
        if any(EOS in row.tokens for row in decision.rows):
            raise RuntimeError("bad luck")
        return self.fake.run(decision)


class Engine:
    """A core that plans ahead, and what each request got."""

    def __init__(self, **changes: object) -> None:
        self.runner = GatedRunner()
        self.core = EngineCore(config(**changes), self.runner, new_seed=lambda: 1, overlap=True)
        self.outputs: dict[int, list[Output]] = {}

    def submit(self, prompt: Sequence[int], **changes: object) -> int:
        """Submit; returns the key."""
        submitted = submission(prompt, **changes)  # type: ignore[arg-type]
        key = self.core.submit(submitted)
        self.runner.fake.expect(key, submitted)
        self.outputs[key] = []
        return key

    def step(self, *, num_permits: int = 1) -> None:
        """Run one step, letting so many go."""
        self.runner.gate.release(num_permits)
        for output in self.core.step():
            self.outputs[output.key].append(output)
        self.core.check()

    def finish(self) -> None:
        """Run until nothing is alive or in flight."""
        while self.core.has_work:
            self.step()

    def tokens(self, key: int) -> tuple[int, ...]:
        """Return what a request got."""
        return tuple(token for output in self.outputs[key] for token in output.tokens)


@contextmanager
def _engine(**changes: object) -> Iterator[Engine]:
    engine = Engine(**changes)
    try:
        yield engine
    finally:
        engine.runner.gate.release(100)
        engine.core.close()


def test_the_next_step_is_launched_before_the_last_ones_tokens_are_handed_out() -> None:
    with _engine() as engine:
        key = engine.submit([1, 2, 3], max_tokens=4)
        engine.step()

        assert engine.runner.entered.acquire(timeout=30)
        assert engine.runner.entered.acquire(timeout=30)  # the second step is being computed
        assert engine.tokens(key) == answer([1, 2, 3], 1)
        engine.finish()
        assert engine.tokens(key) == answer([1, 2, 3], 4)


def test_no_row_is_computed_for_a_request_that_the_step_before_ended() -> None:
    prompt = [1, 2, 3]
    stop = answer(prompt, 3)[2]
    with _engine() as engine:
        stopped = engine.submit(prompt, max_tokens=9, stop_ids=[stop])
        other = engine.submit([7, 8], max_tokens=6)
        engine.finish()

        assert engine.outputs[stopped][-1].finish is FinishReason.STOP
        assert engine.tokens(stopped) == answer(prompt, 9, stop_ids=[stop])
        assert engine.tokens(other) == answer([7, 8], 6)
        rows = [row for decision in engine.runner.fake.decisions for row in decision.rows]
        assert sum(row.key == stopped for row in rows) == len(engine.tokens(stopped))
        assert all(PENDING not in row.tokens for row in rows)


def test_an_abort_while_its_step_is_computed_gives_nothing_more_and_frees_its_pages() -> None:
    with _engine() as engine:
        key = engine.submit([1, 2, 3, 4, 5], max_tokens=20)
        engine.step()
        assert engine.core.abort(key)
        engine.core.check()
        later = engine.submit([9, 9], max_tokens=3)
        engine.runner.gate.release()  # for the step of nobody
        engine.finish()

        assert engine.tokens(key) == answer([1, 2, 3, 4, 5], 1)
        assert engine.tokens(later) == answer([9, 9], 3)
        assert engine.core.stats()["pages_used"] == 0


def test_a_token_drawn_for_one_that_gave_way_meanwhile_is_not_lost() -> None:
    with _engine(num_swap_pages=8) as engine:
        key = engine.submit([1, 2, 3, 4, 5], max_tokens=8)
        engine.step()
        assert engine.core._scheduler.preempt(key)
        engine.core.check()
        engine.step()

        assert engine.tokens(key) == answer([1, 2, 3, 4, 5], 2)
        engine.finish()
        assert engine.tokens(key) == answer([1, 2, 3, 4, 5], 8)


def test_one_that_gave_way_may_end_with_the_token_in_flight() -> None:
    with _engine() as engine:
        key = engine.submit([1, 2, 3], max_tokens=2)
        engine.step()
        assert engine.core._scheduler.preempt(key)
        engine.finish()

        assert engine.tokens(key) == answer([1, 2, 3], 2)
        assert engine.outputs[key][-1].finish is FinishReason.LENGTH


def test_a_step_that_raises_ends_its_own_requests_and_what_was_planned_for_them() -> None:
    with _engine() as engine:
        sound = engine.submit([1, 2], max_tokens=6)
        engine.step()
        broken = engine.submit([EOS], max_tokens=6)
        engine.step()
        engine.step()
        later = engine.submit([4, 5], max_tokens=3)
        engine.finish()

        assert engine.outputs[broken][-1].finish is FinishReason.ERROR
        assert engine.outputs[sound][-1].finish is FinishReason.ERROR  # it was in the same step
        assert engine.tokens(sound) == answer([1, 2], 2)
        assert engine.tokens(later) == answer([4, 5], 3)


@pytest.mark.parametrize("num_swap_pages", [0, 8])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_answers_are_those_of_one_step_after_another(num_swap_pages: int, seed: int) -> None:
    draw = random.Random(seed)
    asked = [
        ([draw.randrange(6) for _ in range(draw.randint(1, 14))], draw.randint(1, 12), draw.randrange(3))
        for _ in range(12)
    ]
    chosen = config(num_pages=12, admission="greedy", num_swap_pages=num_swap_pages, max_batch_size=draw.choice([2, 4]))
    benches = [Bench(chosen, overlap=overlap) for overlap in (False, True)]
    for prompt, count, priority in asked:
        for bench in benches:
            bench.submit(submission(prompt, max_tokens=count, priority=priority, stop_ids=range(4)))
            if draw.random() < 0.3:
                bench.step()
    for bench in benches:
        bench.finish()

    alone, ahead = benches
    wanted = {key: answer(each[0], each[1], stop_ids=range(4)) for key, each in enumerate(asked, start=1)}
    assert {key: alone.tokens(key) for key in wanted} == wanted
    assert {key: ahead.tokens(key) for key in wanted} == wanted
    assert ahead.num_used == 0
